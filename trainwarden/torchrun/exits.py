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
from pathlib import Path
from typing import Any, Final, NamedTuple

MOST_RENEWED: Final = 3  # as the service's MOST_FAILURES (actions/launchers/torchrun/table.py), and for as long
FORGIVEN_S: Final = 3600.0
EVENTS: Final = "torchelastic-events-{}"
DESTINATIONS: Final = ("null", "console")
_INFO: Final = struct.Struct("<QQ11Ii")  # linux/pidfd.h: pidfd_info, PIDFD_INFO_EXIT and PIDFD_GET_INFO
_INFO_EXIT: Final = 1 << 3
_GET_INFO: Final = (3 << 30) | (_INFO.size << 16) | (0xFF << 8) | 11
Changed = Callable[[dict[str, Any]], None]


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

    A script says so by a file of its rank (`trainwarden.transition.launcher`), and takes it back where it gives up.

    Parameters
    ----------
    folder : Path
        Where the hook's files are.
    most : int
        How many within an hour, and since the newest checkpoint. After that a death ends all ranks, as without this.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self._folder, self._most = folder, most
        self._renewed_s: list[float] = []

    def is_due(self, rank: int, attempt: int) -> bool:
        """Whether the rank is to be started again; it has to say anew that it can be, and counts."""
        now_s = time.monotonic()
        self._renewed_s = [then_s for then_s in self._renewed_s if now_s - then_s < FORGIVEN_S]
        try:
            (self._folder / f"resilient-{attempt}-{rank}").unlink()
        except OSError:
            return False
        if len(self._renewed_s) >= self._most:
            return False
        self._renewed_s.append(now_s)
        return True

    def forgive(self) -> None:
        """A newer checkpoint is complete."""
        self._renewed_s = []


class Exits(logging.Handler):
    """Hears of ranks, and says how they are.

    Parameters
    ----------
    changed : callable
        Told what has changed of ``ranks``, ``alive``, ``failure`` and ``finished`` (`words.Beat` of the service).
    ended : callable
        Told each `Exit`; it may wait for a disk.
    is_due : callable
        Whether the rank of a number, of an attempt, is started again alone; asked once for each death.
    """

    def __init__(
        self, changed: Changed, ended: Callable[[Exit], None],
        is_due: Callable[[int, int], bool] = lambda rank, attempt: False,
    ) -> None:  # fmt: skip
        super().__init__(logging.INFO)
        self._changed, self._ended, self._is_due = changed, ended, is_due
        self._renewed: dict[int, bool] = {}  # by pid, what was decided of a death
        self._guard = threading.Lock()
        self._ranks: dict[int, int] = {}  # by pid, of this round
        self._ends: dict[int, Exit] = {}
        self._round = self._size = 0
        self._requested = self._killed = False  # ranks were to end; torchrun ends what is left of them

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
        except Exception:
            logging.getLogger("trainwarden.torchrun").debug("event not understood", exc_info=True)

    def begin(self, number: int = 0) -> None:
        """Ranks of the round `number` come."""
        with self._guard:
            self._round, self._size = number, 0
            self._ranks, self._ends, self._requested, self._killed = {}, {}, False, False
            self._renewed = {}

    def end(self, *, requested: bool) -> None:
        """torchrun ends its ranks now: as that was `requested`, or as one of them has failed."""
        with self._guard:
            self._requested, self._killed = self._requested or requested, True

    def started(self, pid: int, rank: int, of: int) -> None:
        """A rank was started, one of `of` on this node; told again of it, nothing follows."""
        with self._guard:
            ranks = self._ranks
            if pid in ranks:
                return
            ranks[pid], self._size = rank, of
            whole = len(ranks) == of
        self._follow(pid, rank, ranks)
        if whole:
            self._publish()

    def _follow(self, pid: int, rank: int, ranks: dict[int, int]) -> None:
        threading.Thread(
            target=self._wait, args=(pid, rank, ranks), name=f"trainwarden-rank-{rank}", daemon=True
        ).start()

    def is_to_renew(self, pid: int) -> bool:
        """Whether the rank whose process `pid` has failed is to be started again, while the others go on."""
        with self._guard:
            return self._decided(pid, self._ranks)

    def _decided(self, pid: int, ranks: dict[int, int]) -> bool:
        if pid not in self._renewed:
            possible = ranks is self._ranks and pid in ranks and not (self._requested or self._killed)
            self._renewed[pid] = possible and self._is_due(ranks[pid], self._round - 1)
        return self._renewed[pid]

    def renewed(self, old: int, new: int) -> None:
        """The process `new` has taken the place of `old`, which has failed."""
        with self._guard:
            ranks = self._ranks
            rank = ranks[new] = ranks.pop(old)
        self._follow(new, rank, ranks)

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
        with self._guard:
            asked = self._requested or (self._killed and name in ("SIGTERM", "SIGKILL"))
            known = code is not None or name is not None
            renewed = bool(code != 0 and self._decided(pid, ranks)) if known else self._renewed.get(pid, False)
            end = Exit(rank, pid, time.time(), code, name, asked and not renewed, renewed)
            ours = ranks is self._ranks and not renewed
            if ours:
                self._ends[pid] = end
                self._killed = self._killed or bool(code or name)
        if ours:
            self._publish()
        self._ended(end)

    def _publish(self) -> None:
        with self._guard:
            ranks = sorted(self._ranks.values())
            alive = sorted(rank for pid, rank in self._ranks.items() if pid not in self._ends)
            ends = list(self._ends.values())
        finished = bool(ranks) and sum(end.code == 0 for end in ends) == len(ranks)
        failed = next((end for end in ends if not end.asked and (end.code or end.signal)), None)
        self._changed({
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


def _waited(kind: int, number: int) -> tuple[int | None, str | None] | None:
    """Wait for the end of a child; None where torchrun was quicker."""
    try:
        found = os.waitid(kind, number, os.WEXITED | os.WNOWAIT)
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
