"""Which ranks take part in an epoch: they agree on it through a store that outlives each of them.

A member beats in the store. When a collective call fails, its members come to the next epoch. Once every member of the
last one has come or is dead, the first to look proposes those who came; the store accepts one proposal.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import threading
import time
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

from torch.distributed import PrefixStore, TCPStore

BEAT_S: Final = 0.25
DEAD_S: Final = 10.0
"""A member on another machine is dead once its beat has stood still for so long; one here, once its process is gone."""
WATCH_S: Final = 0.1
END_S: Final = 10.0
_LOOK_S: Final = 0.01
_STORE_S: Final = 60.0
NOBODY_TO_JOIN: Final = 75  # EX_TEMPFAIL of sysexits.h: the launcher has to start all ranks anew


class TransitionError(Exception):
    """The step cannot go on in these processes: the job has to restart from its newest checkpoint."""


class TooFewMembers(TransitionError):
    """Fewer ranks are left than the job needs."""


class Excluded(TransitionError):
    """The others took this rank for dead, and went on without it."""


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
    host, port : str, int
        Where the store listens; its server must not be one of the ranks.
    least : int
        Members without whom the job does not go on.

    Raises
    ------
    TransitionError
        If not all ranks have come in the time that the store waits (60 s), or no member is left to join.
    """

    def __init__(self, rank: int, world: int, host: str, port: int, least: int = 1) -> None:
        self.rank, self.least = rank, least
        self.name = f"{rank}:{uuid.uuid4().hex[:12]}"
        self._where = host, port
        self.store = self.client()
        self._beats: dict[str, tuple[str, float]] = {}
        self._closed = threading.Event()
        self.history: dict[int, tuple[str, ...]] = {}
        self.epoch = Epoch(-1, (), 0)
        self.store.set(f"who/{self.name}", json.dumps(_here()))
        self._beat_once(self.store, 0)
        self._beating = threading.Thread(target=self._beat, name="trainwarden-beat", daemon=True)
        self._beating.start()
        atexit.register(self._stop)
        self.is_newcomer = self.store.compare_set(f"first/{rank}", "", self.name).decode() != self.name
        if self.is_newcomer:
            self.store.set(f"join/{self.store.add('joins', 1)}", self.name)
        else:
            names = tuple(self._get(f"first/{one}") for one in range(world))
            self._accept(Epoch(0, names, 0))

    def client(self, timeout_s: float = _STORE_S) -> Any:
        """A connection of its own to the store."""
        try:
            plain = TCPStore(*self._where, is_master=False, timeout=timedelta(seconds=timeout_s))
        except RuntimeError as error:
            raise TransitionError(f"the ranks' store does not answer: {error}") from error
        return PrefixStore("trainwarden-transition/", plain)

    @property
    def place(self) -> int:
        """This rank's place among the members."""
        return self.epoch.members.index(self.name)

    def joins(self) -> int:
        """How many newcomers have asked to join since the job began."""
        try:
            return int(self.store.add("joins", 0))
        except RuntimeError as error:
            raise TransitionError(f"the ranks' store does not answer: {error}") from error

    def next_epoch(self, *, admit: bool) -> Epoch:
        """Come to the next epoch, and return it; with `admit`, newcomers may be among its members.

        Raises
        ------
        TooFewMembers
            If fewer than `least` are left.
        Excluded
            If the others went on without this rank.
        """
        number = self.epoch.number + 1
        self.store.set(f"epoch/{number}/{self.name}", "")
        self.store.set(f"left/{number - 1}", "")
        key = f"epoch/{number}"
        everybody = [f"epoch/{number}/{one}" for one in self.epoch.members]
        looked_s = time.monotonic()
        while not self.store.check([key]):
            complete = self.store.check(everybody)
            if not complete and time.monotonic() - looked_s >= WATCH_S:  # a call to the store for each member
                looked_s = time.monotonic()
                complete = all(self._came(one, number) or self._is_dead(one) for one in self.epoch.members)
            if complete:
                self.store.compare_set(key, "", json.dumps(self._proposal(number, admit=admit)))
                break
            time.sleep(_LOOK_S)
        members, joins = json.loads(self._get(key))
        self._accept(Epoch(number, tuple(members), joins))
        return self.epoch

    def join(self) -> Epoch:
        """Wait for the epoch in which this newcomer is a member.

        Raises
        ------
        TransitionError
            If no member is left that could admit it.
        """
        number = 0
        names: tuple[str, ...] = ()
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
            if all(self._is_dead(one) for one in names or self._first()):
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

    def _first(self) -> list[str]:
        names = []
        rank = 0
        while self.store.check([f"first/{rank}"]):
            names.append(self._get(f"first/{rank}"))
            rank += 1
        return names

    def _accept(self, epoch: Epoch) -> None:
        self.history[epoch.number] = epoch.members
        if self.name not in epoch.members:
            raise Excluded(f"the other ranks went on without rank {self.rank}, which they took for dead")
        self.epoch = epoch
        if len(epoch.members) < self.least:
            raise TooFewMembers(f"{len(epoch.members)} ranks are left, and {self.least} are needed")

    def _proposal(self, number: int, *, admit: bool) -> tuple[list[str], int]:
        members = [one for one in self.epoch.members if self._came(one, number)]
        joins = self.epoch.joins
        if admit:
            newest = self.joins()
            names = [self._get(f"join/{one}") for one in range(joins + 1, newest + 1)]
            members += [one for one in names if not self._is_dead(one)]
            joins = newest
        return members, joins

    def _came(self, name: str, number: int) -> bool:
        return bool(self.store.check([f"epoch/{number}/{name}"]))

    def _get(self, key: str) -> str:
        try:
            return str(self.store.get(key).decode())
        except RuntimeError as error:
            raise TransitionError(f"the ranks' store does not have {key}: {error}") from error

    def _is_dead(self, name: str) -> bool:
        """Whether the process is gone, or its beat has stood still since we first looked and for `DEAD_S`."""
        who = json.loads(self._get(f"who/{name}"))
        if who["space"] == _here()["space"]:
            return _started(who["pid"]) != str(who["started"])
        beat, now_s = self._get(f"beat/{name}"), time.monotonic()
        known, since_s = self._beats.get(name, ("", now_s))
        if beat != known:
            self._beats[name] = beat, now_s
            return False
        return now_s - since_s >= DEAD_S

    def _beat(self) -> None:
        with contextlib.suppress(Exception):  # the store is gone, which the next transition finds
            store, count = self.client(), 0
            while not self._closed.wait(BEAT_S):
                count += 1
                self._beat_once(store, count)

    def _beat_once(self, store: Any, count: int) -> None:
        store.set(f"beat/{self.name}", str(count))


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
