"""One node's part of a validation: starts its ranks, sees them end, checks disk and memory; leads where rank 0 is.

Where the store of a validation listens: at the ranks' address and no other.
"""

from __future__ import annotations

import ctypes
import errno
import ipaddress
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec
import torch.distributed as dist

from trainwarden.actions.validation import programme
from trainwarden.actions.validation.baseline import Baseline
from trainwarden.actions.validation.results import Finding, Validation
from trainwarden.actions.validation.running import rank
from trainwarden.actions.validation.running.node_checks import NodeChecks
from trainwarden.actions.validation.running.store import ANSWER_S, Board, Limited, StoreGone, StoreTalk, connect
from trainwarden.errors import ConfigError, NotJudged

_HERE: Final = "127.0.0.1"


def listen(address: str, port: int, *, alone: bool) -> socket.socket:
    """A socket at `address`; of this machine alone where all ranks are here.

    An address that is none of this host's, such as that of a service which forwards to it, is reached by whichever it
    is forwarded to; so is a name that this host alone takes for its loopback (Debian's 127.0.1.1).

    Raises
    ------
    ConfigError
        If its port is taken.
    """
    try:
        for family, own in [(socket.AF_INET, _HERE)] if alone else _addresses(address):
            try:
                return socket.create_server((own, port), family=family)
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
        return socket.create_server(("", port), family=socket.AF_INET)
    except OSError as error:
        raise ConfigError(f"validate: port {port} cannot be listened on ({error.strerror})") from error


def _addresses(name: str) -> list[tuple[int, str]]:
    """Families and addresses of `name`, as far as others could mean the same by it; IPv4 first."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    told = {(int(family), str(at[0])) for family, _, _, _, at in found}
    if name == "localhost":
        return sorted(told)
    return sorted(
        one for one in told if one[1] == name or not ipaddress.ip_address(one[1].partition("%")[0]).is_loopback
    )


PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LOOK_S = 0.05
_REACH_S = 2.0  # of one attempt: while torch tries to connect no signal is heard
_DISK_S = 10.0  # a disk that hangs this long is one that jobs hang on
_LEADER_S = 60.0  # between the limit of an order and the next one, or the result
_BROKEN = 70  # EX_SOFTWARE of sysexits.h


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Which ranks this process starts, of how many, and where the others are met.

    `first_rank` to `first_rank + ranks - 1` are here, each with its number on this node from `first_local_rank`.
    `number` of `nodes` is this process's among those that report disk and memory; None if another one does for this
    node; `processes` like this one there are in all. `join_s` is how long ranks may take to come.
    """

    node: str
    ranks: int
    first_rank: int = 0
    first_local_rank: int = 0
    world_size: int
    number: int | None = 0
    nodes: int = 1
    processes: int = 1
    address: str = "127.0.0.1"
    port: int = 0
    checkpoints: Path | None = None
    join_s: float = 60.0


class Stopped(Exception):
    """A signal asked for the end."""


class Node:
    """The processes of one place, for the time of one validation."""

    def __init__(self, place: Place, wanted: programme.Wanted, stop: Callable[[], bool]) -> None:
        self._place, self._wanted, self._stop = place, wanted, stop
        self._pids: dict[int, int] = {}
        self._checks: NodeChecks | None = None
        self._board: Board | None = None

    def run(self, baseline: Baseline) -> Validation:
        """Start all, lead or wait for the leader's result, and leave no process behind.

        Raises
        ------
        ConfigError
            If the port of the store is taken, or its address is not this host's.
        NotJudged
            If no leader answers.
        Stopped
            If a signal asked for the end.
        """
        place = self._place
        leads = place.first_rank == 0
        listening = listen(place.address, place.port, alone=place.world_size == place.ranks) if leads else None
        try:
            if place.number is not None:
                self._checks = NodeChecks(place.node, self._wanted.checks, place.checkpoints, _DISK_S)
            self._fork(listening)
            if listening is not None:
                return self._lead(listening, baseline)
            return self._follow()
        finally:
            self._end_all()

    # --- processes ---------------------------------------------------------------------------------------------------

    def _fork(self, listening: socket.socket | None) -> None:
        """The ranks, as forks of a process that has imported torch and begun no thread: the import takes seconds."""
        place = self._place
        port = place.port if listening is None else listening.getsockname()[1]
        own = os.getpid()
        for local in range(place.ranks):
            number = place.first_rank + local
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
            if pid == 0:
                code = _BROKEN
                try:
                    if listening is not None:
                        listening.close()
                    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                    for word in (signal.SIGTERM, signal.SIGINT):
                        signal.signal(word, signal.SIG_DFL)
                    if os.getppid() == own:
                        address = (place.address, port)
                        code = rank.serve(number, place.node, place.first_local_rank + local, address, place.join_s)
                except BaseException:  # noqa: BLE001 - a fork ends here, whatever happens: it must not go on as its parent
                    traceback.print_exc()
                finally:
                    os._exit(code)
            self._pids[number] = pid

    def _pump(self) -> None:
        """Tell of ranks that have ended and of checks that are done."""
        if self._stop():
            raise Stopped
        assert self._board is not None
        for number, pid in [*self._pids.items()]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._pids[number]
                self._board.tell_end(number, _how(os.waitstatus_to_exitcode(status)))
        if self._checks is not None and (report := self._checks.poll()) is not None:
            assert self._place.number is not None
            self._board.tell_node(self._place.number, report)
            self._checks = None

    def _end_all(self) -> None:
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)
        for pid in self._pids.values():
            os.waitpid(pid, 0)
        self._pids.clear()
        if self._checks is not None:
            self._checks.close()

    # --- the two parts -----------------------------------------------------------------------------------------------

    def _lead(self, listening: socket.socket, baseline: Baseline) -> Validation:
        place = self._place
        port = listening.getsockname()[1]
        try:
            store = dist.TCPStore(
                place.address, port, None, True, timedelta(seconds=ANSWER_S),
                wait_for_workers=False, master_listen_fd=listening.detach(),
            )  # fmt: skip
        except dist.DistError as error:
            raise ConfigError(f"validate: rank 0 is here, but this host is not at {place.address}") from error
        self._meet(Board(store))
        assert self._board is not None
        talk = StoreTalk(
            self._board, place.world_size, place.nodes, self._pump, join_s=place.join_s, nodes_s=_DISK_S + 2.0
        )
        result = programme.validate(talk, place.world_size, self._wanted, baseline)
        self._board.tell_result(result)
        self._wait_for_the_others()
        return result

    def _meet(self, board: Board) -> None:
        self._board = board
        for number in self._pids:
            board.tell_start(number, self._place.node)

    def _wait_for_the_others(self) -> None:
        """The store is ours: what the others have not read yet would be lost with it.

        The others are all that have come, a process that was started twice included.
        """
        until_s = time.monotonic() + 2.0
        assert self._board is not None
        count = self._board.store.add
        while time.monotonic() < until_s and count("read", 0) < max(self._place.processes - 1, count("met", 0)):
            time.sleep(_LOOK_S)

    def _follow(self) -> Validation:
        place = self._place
        try:
            self._meet(self._reach())
            assert self._board is not None
            self._board.store.add("met", 1)
            number, until_s = 1, time.monotonic() + place.join_s + _LEADER_S
            while time.monotonic() < until_s:
                self._pump()
                if (result := self._board.result()) is not None:
                    self._board.store.add("read", 1)
                    return result
                if (order := self._board.order(number)) is not None:
                    number, until_s = number + 1, time.monotonic() + order.limit_s + _LEADER_S
                time.sleep(_LOOK_S)
            why = "gives no more orders, and no result"
        except (StoreGone, dist.DistError) as error:
            if self._stop():
                raise Stopped from None
            why = f"is gone ({str(error).splitlines()[0][:200]})"
        text = f"rank 0, which leads the validation at {place.address}:{place.port}, {why}"
        return Validation(ranks=place.world_size, accused=(Finding(kind="node_lost", text=text, ranks=(0,)),))

    def _reach(self) -> Board:
        """The leader's board, which may come up to `join_s` later than we; a signal is heard between attempts.

        Raises
        ------
        NotJudged
            If no leader answers in time. Whether it is lost cannot be seen from here: the validation may be over.
        """
        until_s = time.monotonic() + self._place.join_s
        while True:
            try:
                return Board(Limited(connect(self._place.address, self._place.port, within_s=_REACH_S).store))
            except StoreGone as error:
                if time.monotonic() > until_s:
                    raise NotJudged(
                        f"{error} within {self._place.join_s:.0f} s: rank 0, which leads the validation, has not "
                        "started, cannot be reached, or has ended already, where this rank was started twice or late"
                    ) from None
            if self._stop():
                raise Stopped


def _how(code: int) -> str:
    """The end of a rank's process in words."""
    if code == rank.TWICE:
        return "was started twice: two processes say that they are this rank"
    if code < 0:
        try:
            return f"was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"was ended by signal {-code}"
    return f"ended with code {code}"
