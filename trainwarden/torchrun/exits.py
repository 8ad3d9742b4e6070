"""How the ranks of this node end, known before torchrun looks: a thread waits for each, and leaves it to be reaped.

torchrun tells of its ranks by START events on a logger of its own; the format is private to it, so whatever is
unlike what is known is passed over, and then only the ends are not known.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

MOST_FAILURES: Final = 3  # as the service's (actions/launchers/torchrun/table.py)
FORGIVEN_S: Final = 3600.0
REAPED_S: Final = 0.01  # between two looks whether torchrun has taken a death as one that ends all
EVENTS: Final = "torchelastic-events-{}"
DESTINATIONS: Final = ("null", "console")
_INFO: Final = struct.Struct("<QQ11Ii")  # linux/pidfd.h: pidfd_info, PIDFD_INFO_EXIT and PIDFD_GET_INFO
_INFO_EXIT: Final = 1 << 3
_GET_INFO: Final = (3 << 30) | (_INFO.size << 16) | (0xFF << 8) | 11
# By events of another form, and by threads that cannot be started. Not Exception: torchrun's handler of SIGTERM raises
# one of its own wherever the main thread is, also where an event is read, and that is to pass.
UNKNOWN_FORM: Final = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
Changed = Callable[[int, dict[str, Any]], None]
KILLS_AFTER_S: Final = 9.0  # torchrun waits 30 s before it kills, our rendezvous ten


class Exit(NamedTuple):
    """The end of a rank; `code` and `signal` are both None if nobody could say.

    `renewed`: the rank is started again alone.
    """

    rank: int
    pid: int
    at_s: float
    code: int | None
    signal: str | None
    asked: bool
    renewed: bool = False

    @property
    def how(self) -> str:
        """In words."""
        if self.signal is not None:
            return f"was ended by {self.signal}"
        return "ended, nobody knows how" if self.code is None else f"ended with code {self.code}"


class Renewals:
    """Which ranks that died are started again alone: those whose script has said that the others go on meanwhile.

    A script says so by a file of its rank (`trainwarden.transition.launcher`), and takes it back where it gives up. The
    file bears torchrun's pid: those of others in the same folder, or of an earlier one, say nothing of our ranks.

    Parameters
    ----------
    folder : Path
        Where the hook's files are.
    most : int
        How many within an hour. After that a death ends all ranks, as without this.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self._most, self._prefix = most, folder / f"resilient-{os.getpid()}"
        self._renewed_s: list[float] = []
        with suppress(OSError):
            for old in folder.glob(f"{self._prefix.name}-*"):  # of one that had our pid before us
                old.unlink()

    def is_offered(self, rank: int, attempt: int) -> bool:
        """Whether the rank may be started again, as far as its script has said."""
        return self._most > 0 and self._offer(rank, attempt).exists()

    def _offer(self, rank: int, attempt: int) -> Path:
        return self._prefix.with_name(f"{self._prefix.name}-{attempt}-{rank}")

    def is_due(self, rank: int, attempt: int) -> bool:
        """Whether the rank is to be started again; it has to say anew that it can be, and counts."""
        now_s = time.monotonic()
        self._renewed_s = [then_s for then_s in self._renewed_s if now_s - then_s < FORGIVEN_S]
        try:
            self._offer(rank, attempt).unlink()
        except OSError:
            return False
        if len(self._renewed_s) >= self._most:
            return False
        self._renewed_s.append(now_s)
        return True


class Exits(logging.Handler):
    """Hears of ranks, and says how they are.

    Parameters
    ----------
    changed : callable
        Called with a round, and what has changed of its ``ranks``, ``alive``, ``failure`` and ``finished``
        (`messages.Beat` of the service).
    ended : callable
        Told each `Exit`; it may wait for a disk.
    renewals : Renewals
        Which ranks are started again alone.
    """

    def __init__(self, changed: Changed, ended: Callable[[Exit], None], renewals: Renewals) -> None:
        super().__init__(logging.INFO)
        self._changed, self._ended, self._renewals = changed, ended, renewals
        self._guard = threading.Condition()
        self._publishing = threading.Lock()  # what is seen later is published later
        self._renewed: dict[int, bool | None] = {}  # by pid, what was decided of a death; None: it is being started
        self._dead: list[int] = []  # who waits for that, in the order of their deaths
        self._ranks: dict[int, int] = {}  # by pid, of this round
        self._ends: dict[int, Exit] = {}
        self._round = self._size = 0
        # Ranks were to end; torchrun ends what is left of them; one has ended that is not started again.
        self._requested = self._failed = False
        self._killed_s: float | None = None

    def listen(self) -> None:
        """Hear torchrun's events, also where it was told to log less: that destination writes nothing."""
        for destination in (*DESTINATIONS, os.environ.get("PET_EVENT_LOG_HANDLER", "null")):
            logger = logging.getLogger(EVENTS.format(destination))
            if self not in logger.handlers:
                logger.addHandler(self)
            if destination == "null":
                logger.setLevel(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        """One event of torchrun's."""
        try:
            event = json.loads(record.getMessage())["metadata"]
            if event["state"] == "START" and event["worker_id"] is not None:
                more = json.loads(event["metadata"])
                ranks = int(more["role_world_size"][0]) // int(more["group_world_size"])
                self.started(int(event["worker_id"]), int(event["global_rank"]), ranks)
        except UNKNOWN_FORM:
            logging.getLogger("trainwarden.torchrun").debug("event not understood", exc_info=True)

    def begin(self, number: int = 0) -> None:
        """Ranks of the round `number` come."""
        with self._guard:
            self._round, self._size = number, 0
            self._ranks, self._ends = {}, {}
            self._requested = self._failed = False
            self._killed_s = None

    def end(self, *, requested: bool) -> None:
        """torchrun ends its ranks now: as that was `requested`, or as one of them has failed."""
        with self._guard:
            self._requested = self._requested or requested
            self._note_killing()
            self._guard.notify_all()

    def started(self, pid: int, rank: int, of: int) -> None:
        """A rank was started, one of `of` on this node; told again of it, nothing follows."""
        with self._guard:
            ranks = self._ranks
            if pid in ranks:
                return
            ranks[pid], self._size = rank, of
            self._renewed.pop(pid, None)
            whole = len(ranks) == of
        self._follow(pid, rank, ranks)
        if whole:
            self._publish()

    def _follow(self, pid: int, rank: int, ranks: dict[int, int]) -> None:
        threading.Thread(
            target=self._wait, args=(pid, rank, ranks), name=f"trainwarden-rank-{rank}", daemon=True
        ).start()

    def is_to_renew(self, pid: int) -> bool:
        """Whether the rank whose process `pid` has failed is to be started again, while the others go on.

        torchrun's own thread asks, which alone can do so; `renewed` or `given_up` has to follow.
        """
        with self._guard:
            if pid not in self._renewed:
                possible = pid in self._ranks and not self._requested and self._killed_s is None
                due = possible and self._renewals.is_due(self._ranks[pid], self._round - 1)
                self._decide(pid, None if due else False)
            return self._renewed[pid] is None

    def _decide(self, pid: int, renewed: bool | None) -> None:
        self._renewed[pid] = renewed
        self._guard.notify_all()

    def renewed(self, old: int, new: int) -> None:
        """The process `new` has taken the place of `old`, which has failed."""
        with self._guard:
            ranks = self._ranks
            rank = ranks[new] = ranks.pop(old)
            self._renewed.pop(new, None)
            self._decide(old, True)
        self._follow(new, rank, ranks)

    def given_up(self, pid: int) -> None:
        """No process could take the place of `pid`, so torchrun ends all."""
        with self._guard:
            self._decide(pid, False)

    def all_started(self) -> tuple[int, list[int]] | None:
        """The round and the pids of its ranks here, once all were started; None before."""
        with self._guard:
            return (self._round, list(self._ranks)) if self._ranks and len(self._ranks) == self._size else None

    def running(self) -> list[int]:
        """Pids of ranks that have not ended."""
        with self._guard:
            return [pid for pid in self._ranks if pid not in self._ends]

    def _wait(self, pid: int, rank: int, ranks: dict[int, int]) -> None:
        code, name = _end_of(pid)
        at_s = time.time()
        with self._guard:
            # Of an earlier round's ranks whoever was asked to end was ended for this one.
            late = ranks is not self._ranks and name == "SIGTERM"
            asked = late or self._requested or self._is_killed_by_us(name)
            self._dead.append(pid)
            renewed = code != 0 and self._is_renewed(pid, rank, ranks)
            self._guard.wait_for(lambda: self._dead[0] == pid)  # the first that failed is reported as such
            asked = asked or self._is_killed_by_us(name)
            end = Exit(rank, pid, at_s, code, name, asked and not renewed, renewed)
            ours = ranks is self._ranks and not renewed
            if ours:
                self._ends[pid] = end
                self._failed = self._failed or bool(code or name)
                if self._failed:
                    self._note_killing()
            self._dead.pop(0)
            self._guard.notify_all()
        if ours:
            self._publish()
        self._ended(end)

    def _note_killing(self) -> None:
        """From now on torchrun ends its ranks."""
        self._killed_s = time.monotonic() if self._killed_s is None else self._killed_s

    def _is_killed_by_us(self, name: str | None) -> bool:
        """Whether torchrun ended a rank by the signal `name`: at once by SIGTERM, and what ignores that by SIGKILL.

        Another SIGKILL, as the kernel's for memory, is the rank's own end, though torchrun may have noticed it first.
        """
        since_s = self._killed_s
        if since_s is None:
            return False
        return name == "SIGTERM" or (name == "SIGKILL" and time.monotonic() - since_s >= KILLS_AFTER_S)

    def _is_renewed(self, pid: int, rank: int, ranks: dict[int, int]) -> bool:
        """Wait for torchrun's thread to decide; where it has reaped the child meanwhile, the death ends all."""
        while (found := self._renewed.get(pid)) is None:
            if pid not in self._renewed and (
                ranks is not self._ranks or self._requested or self._killed_s is not None
                or not self._renewals.is_offered(rank, self._round - 1) or _waited(os.P_PID, pid, os.WNOHANG) is None
            ):  # fmt: skip
                self._decide(pid, False)
            else:
                self._guard.wait(REAPED_S)
        return found

    def _publish(self) -> None:
        with self._publishing:
            with self._guard:
                number, ranks = self._round, sorted(self._ranks.values())
                alive = sorted(rank for pid, rank in self._ranks.items() if pid not in self._ends)
                ends = list(self._ends.values())
            finished = bool(ranks) and sum(end.code == 0 for end in ends) == len(ranks)
            failed = next((end for end in ends if not end.asked and (end.code or end.signal)), None)
            self._changed(number, {
                "ranks": ranks, "alive": alive, "finished": finished,
                "failure": None if failed is None else {"rank": failed.rank, "how": failed.how},
            })  # fmt: skip


def _end_of(pid: int) -> tuple[int | None, str | None]:
    """How the child `pid` ended: its code, or the signal's name; it stays to be reaped."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None, None  # reaped already
    except OSError:  # no descriptor is left, or the kernel's rules forbid these: the rank lives all the same
        return _waited(os.P_PID, pid) or (None, None)
    try:
        return _waited(os.P_PIDFD, pidfd) or _remembered(pidfd)
    finally:
        os.close(pidfd)


def _waited(kind: int, number: int, more: int = 0) -> tuple[int | None, str | None] | None:
    """Wait for the end of a child; None where torchrun was quicker."""
    try:
        found = os.waitid(kind, number, os.WEXITED | os.WNOWAIT | more)
    except OSError:
        return None
    if found is None:
        return None
    return (found.si_status, None) if found.si_code == os.CLD_EXITED else (None, _name(found.si_status))


def _remembered(pidfd: int) -> tuple[int | None, str | None]:
    """What the kernel (6.15 and newer) still knows of a process that was reaped."""
    buffer = bytearray(_INFO.size)
    _INFO.pack_into(buffer, 0, _INFO_EXIT, *[0] * 13)
    try:
        fcntl.ioctl(pidfd, _GET_INFO, buffer)
    except OSError:
        return None, None
    told, *_, status = _INFO.unpack(buffer)
    if not told & _INFO_EXIT:
        return None, None
    code = os.waitstatus_to_exitcode(status)
    return (code, None) if code >= 0 else (None, _name(-code))


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"  # real-time signals have no names
