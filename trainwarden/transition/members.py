"""Which ranks take part in an epoch: they agree on it through a store that outlives each of them.

A member beats in the store. When a collective call fails, its members come to the next epoch, and count themselves. The
last to come proposes all of them. If some are gone, the first living one sees it, and proposes those who came. The
store accepts one proposal.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

from torch.distributed import PrefixStore, TCPStore

log = logging.getLogger("trainwarden.transition")

BEAT_S: Final = 0.25
DEAD_S: Final = 10.0
"""A member on another machine is dead once its beat has stood still for so long; one here, once its process is gone."""
WATCH_S: Final = 0.1
SAY_S: Final = 5.0
"""Whoever waits so long for others names them in a warning."""
PATIENCE_S: Final = 600.0
END_S: Final = 10.0
_LOOK_S: Final = 0.01
_STORE_S: Final = 60.0


class TransitionError(Exception):
    """The step cannot go on in these processes: the job has to restart from its newest checkpoint."""


class TooFewMembers(TransitionError):
    """Fewer ranks are left than the job needs."""


class Excluded(TransitionError):
    """The others took this rank for dead, and went on without it."""


class Finished(SystemExit):
    """The job has come to its end without this rank, which has nothing to do: its process ends with code 0."""

    def __init__(self, why: str) -> None:
        log.warning("trainwarden: %s", why)
        super().__init__(0)


class Epoch(NamedTuple):
    """The members of an epoch in the order of their places, and how many newcomers were dealt with by then."""

    number: int
    members: tuple[str, ...]
    joins: int


class Members:
    """This rank among the members of its job.

    Parameters
    ----------
    rank, world : int
        As the launcher has them.
    where : tuple
        Host and port at which the store listens; its server must not be one of the ranks.
    least : int
        Members without whom the job does not go on.
    patience_s : float
        Longest wait for members who live and do not come to the next epoch.

    Raises
    ------
    TransitionError
        If not all ranks have come in the time that the store waits (60 s), or no member is left to join.
    """

    def __init__(
        self, rank: int, world: int, where: tuple[str, int], least: int = 1, patience_s: float = PATIENCE_S
    ) -> None:
        self.rank, self.least, self._world, self._patience_s = rank, least, world, patience_s
        self.name = f"{rank}:{uuid.uuid4().hex[:12]}"
        self._where = where
        # Where the launcher starts all ranks anew over the same store, those of the last attempt are no members.
        # torch counts attempts on each node by itself, so that nodes may differ; our launchers give all one number.
        environ = os.environ
        attempt = environ.get("TRAINWARDEN_ATTEMPT") or environ.get("TORCHELASTIC_RESTART_COUNT") or "0"
        self._prefix = f"trainwarden-transition/{attempt}/"
        self._fixed: dict[str, str] = {}
        self._here = _here()
        self.store = self.client()
        self._beats: dict[str, tuple[str, float]] = {}
        self._moved: set[str] = set()
        self._closed = threading.Event()
        self.history: dict[int, tuple[str, ...]] = {}
        self.epoch = Epoch(-1, (), 0)
        self.store.set(f"who/{self.name}", json.dumps(self._here))
        self._beat_once(self.store, 0)
        self._beating = threading.Thread(target=self._beat, name="trainwarden-beat", daemon=True)
        self._beating.start()
        atexit.register(self._stop)
        self.is_newcomer = self.store.compare_set(f"first/{rank}", "", self.name).decode() != self.name
        if self.is_newcomer:
            self.store.set(f"join/{self.store.add('joins', 1)}", self.name)
        else:
            self._accept(Epoch(0, self._first(), 0))

    def client(self, timeout_s: float = _STORE_S) -> Any:
        """A connection of its own to the store."""
        try:
            plain = TCPStore(*self._where, is_master=False, timeout=timedelta(seconds=timeout_s))
        except RuntimeError as error:
            raise TransitionError(f"the ranks' store does not answer: {error}") from error
        return PrefixStore(self._prefix, plain)

    @property
    def place(self) -> int:
        """This rank's place among the members."""
        return self.epoch.members.index(self.name)

    def joins(self) -> int:
        """How many newcomers have asked to join since the job began, up to the last who can be admitted now."""
        try:
            names, joins = self._newcomers()
        except RuntimeError as error:
            raise TransitionError(f"the ranks' store does not answer: {error}") from error
        return joins if names else self.epoch.joins

    def next_epoch(self, *, admit: bool) -> Epoch:
        """Come to the next epoch, and return it; with `admit`, newcomers may be among its members.

        Raises
        ------
        TooFewMembers
            If fewer than `least` are left.
        Excluded
            If the others went on without this rank.
        TransitionError
            If a member lives, and has not come in `patience_s`.
        """
        number = self.epoch.number + 1
        key = f"epoch/{number}"
        self.store.set(f"{key}/{self.name}", "")
        arrived = self.store.add(f"came/{number}", 1)
        self.store.set(f"left/{number - 1}", "")
        if arrived == len(self.epoch.members):
            self._propose(number, self.epoch.members, admit=admit)
        elif not self.store.check([key]):
            self._watch(number, admit=admit)
        members, joins = json.loads(self._get(key))
        self._accept(Epoch(number, tuple(members), joins))
        return self.epoch

    def _watch(self, number: int, *, admit: bool) -> None:
        """Wait until the epoch is proposed; propose it if this is the first living member, and all others are gone."""
        key, began_s, looked_s, said = f"epoch/{number}", time.monotonic(), time.monotonic(), False
        came = {self.name}
        while not self.store.check([key]):
            time.sleep(_LOOK_S)
            now_s = time.monotonic()
            if now_s - looked_s < WATCH_S:
                continue
            looked_s = now_s
            late = now_s - began_s >= self._patience_s
            if late or self._is_first_living():
                came |= {one for one in self.epoch.members if one not in came and self._came(one, number)}
                missing = [one for one in self.epoch.members if one not in came and not self._is_gone(one)]
                if not missing:
                    self._propose(number, [one for one in self.epoch.members if one in came], admit=admit)
                elif late:
                    raise TransitionError(f"rank {ranks(missing)} lives, and has not come in {self._patience_s:g} s")
                elif not said and now_s - began_s >= SAY_S:
                    said = True
                    log.warning("trainwarden: waiting for rank %s, which lives and has not come", ranks(missing))

    def join(self) -> Epoch:
        """Wait for the epoch in which this newcomer is a member.

        Raises
        ------
        Finished
            If the job has come to its end meanwhile.
        TransitionError
            If no member is left that could admit it.
        """
        number, names = 0, self._first()
        self.history[0] = names  # the step may have begun there
        while True:
            key = f"epoch/{number + 1}"
            if self.store.check([key]):
                members, joins = json.loads(self._get(key))
                number, names = number + 1, tuple(members)
                self.history[number] = names
                if self.name in names:
                    self.epoch = Epoch(number, names, joins)
                    return self.epoch
                continue
            if all(self._is_gone(one) for one in names):
                if any(self.store.check([f"end/{one}"]) for one in names):
                    raise Finished("the job has come to its end without this rank")
                raise TransitionError("no rank is left whose job could be joined")
            time.sleep(_LOOK_S)

    def is_over(self) -> bool:
        """Whether a member has left this epoch, or the one after this one is dead: each watches another."""
        if self.store.check([f"left/{self.epoch.number}"]):
            return True
        members = self.epoch.members
        after = members[(self.place + 1) % len(members)]
        return after != self.name and self._is_dead(after)

    def close(self) -> None:
        """Wait until all members are at their end, or one is gone, and beat no more. Safe twice."""
        if self._closed.is_set():
            return
        with contextlib.suppress(RuntimeError, TransitionError):
            self.store.set(f"end/{self.name}", "")
            ends_s = time.monotonic() + END_S
            while not self.store.check([f"end/{one}" for one in self.epoch.members]):
                if self.is_over() or time.monotonic() >= ends_s:
                    break
                time.sleep(_LOOK_S)
        self._stop()

    def _stop(self) -> None:
        """Python's end aborts the process where it finds this thread in a call to the store."""
        self._closed.set()
        self._beating.join(END_S)

    def _first(self) -> tuple[str, ...]:
        """The members that the job began with; waits for them as long as the store does."""
        return tuple(self._get_fixed(f"first/{one}") for one in range(self._world))

    def _accept(self, epoch: Epoch) -> None:
        self.history[epoch.number] = epoch.members
        if self.name not in epoch.members:
            raise Excluded(f"the other ranks went on without rank {self.rank}, which they took for dead")
        self.epoch = epoch
        if len(epoch.members) < self.least:
            raise TooFewMembers(f"{len(epoch.members)} ranks are left, and {self.least} are needed")

    def _propose(self, number: int, came: Sequence[str], *, admit: bool) -> None:
        newcomers, joins = self._newcomers() if admit else ([], self.epoch.joins)
        self.store.compare_set(f"epoch/{number}", "", json.dumps([[*came, *newcomers], joins]))

    def _newcomers(self) -> tuple[list[str], int]:
        """Newcomers who live, and how many are dealt with thereby: up to the first of whom it is not known."""
        joins, found = self.epoch.joins, list[str]()
        for number in range(joins + 1, self.store.add("joins", 0) + 1):
            name = self._get_fixed(f"join/{number}")
            if not self._is_dead(name):
                if not self._is_known(name):
                    break
                found.append(name)
            joins = number
        return found, joins

    def _is_first_living(self) -> bool:
        """Whether all members before this one are gone: one rank watches for all."""
        return all(self._is_gone(one) for one in self.epoch.members[: self.place])

    def _came(self, name: str, number: int) -> bool:
        return bool(self.store.check([f"epoch/{number}/{name}"]))

    def _get(self, key: str) -> str:
        try:
            return str(self.store.get(key).decode())
        except RuntimeError as error:
            raise TransitionError(f"the ranks' store does not have {key}: {error}") from error

    def _get_fixed(self, key: str) -> str:
        """What is written once, and therefore asked for once."""
        if key not in self._fixed:
            self._fixed[key] = self._get(key)
        return self._fixed[key]

    def _is_gone(self, name: str) -> bool:
        """Whether a member comes no more: it is dead, or at its end."""
        return self._is_dead(name) or bool(self.store.check([f"end/{name}"]))

    def _is_dead(self, name: str) -> bool:
        """Whether the process is gone, or its beat has stood still since we first looked and for `DEAD_S`."""
        who = json.loads(self._get_fixed(f"who/{name}"))
        if who["space"] == self._here["space"]:
            return _started(who["pid"]) != str(who["started"])
        beat, now_s = self._get(f"beat/{name}"), time.monotonic()
        known, since_s = self._beats.setdefault(name, (beat, now_s))
        if beat != known:
            self._beats[name] = beat, now_s
            self._moved.add(name)
        return beat == known and now_s - since_s >= DEAD_S

    def _is_known(self, name: str) -> bool:
        """Whether one that is not dead is known to live: on another machine, once its beat has moved under our eyes."""
        return name in self._moved or json.loads(self._get_fixed(f"who/{name}"))["space"] == self._here["space"]

    def _beat(self) -> None:
        with contextlib.suppress(Exception):  # the store is gone, which the next transition finds
            store, count = self.client(), 0
            while not self._closed.wait(BEAT_S):
                count += 1
                self._beat_once(store, count)

    def _beat_once(self, store: Any, count: int) -> None:
        store.set(f"beat/{self.name}", str(count))


def ranks(names: Iterable[str]) -> str:
    """The ranks of members, for a message.

    Examples
    --------
    >>> ranks(["2:aa", "1:bb"])
    '1, 2'
    """
    return ", ".join(sorted(name.partition(":")[0] for name in names))


def _here() -> dict[str, object]:
    """This process, and the space in which its pid means something."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116 - a link that leads nowhere
    except OSError:
        space = f"{socket.gethostname()} {uuid.getnode()}"
    return {"space": space, "pid": os.getpid(), "started": _started(os.getpid())}


def _started(pid: object) -> str | None:
    """When the process began, in the kernel's ticks (proc(5), stat, field 22); None if it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return None if fields[0] in "ZX" else fields[19]
