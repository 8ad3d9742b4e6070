"""The ranks' own records of their collective calls: asked for when the job stands still, or left by PyTorch."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec

from trainwarden import hook
from trainwarden.clock import Clock
from trainwarden.collectors.collectives.call_records import pack, read_record
from trainwarden.collectors.ranks import ProcessFinder, RankProcess
from trainwarden.collectors.standstill import Patience, Trainer, runs, trainers
from trainwarden.errors import DataError
from trainwarden.protocols import JsonObject, Scope
from trainwarden.records import EventRecord, Record
from trainwarden.settings import Config, PositiveSeconds

# PyTorch's names for the start of the dump files' path, the newer one first, and where they lie by default.
_VARIABLES: Final = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_DEFAULTS: Final = (".cache/torch/comm_lib_trace_rank_", "/tmp/nccl_trace_rank_")
_MAX_ENVIRON_BYTES: Final = 1 << 20
_START_SLACK_S: Final = 2.0  # the kernel's boot time is whole seconds
_FILES_EVERY_S: Final = 1.0
_ANSWER_INTERVAL_S: Final = 0.05
_ASKS: Final = 2  # per standstill


class _Watched(msgspec.Struct):
    """A process of a rank, where its dumps would be, and whose they are."""

    process: RankProcess
    prefixes: tuple[str, ...]
    owner: int
    header: hook.Header | None = None


class CollectiveDumpsCollector:
    """Sends every new record of collective calls of this node's ranks, cut down to what tells who broke one.

    Where no rank of this node has moved for long, it asks the hooks for their records (a byte into a pipe; the
    answer is a file beside the hook's). What PyTorch writes by itself, e.g. when its watchdog gives up, is found by
    the path that the ranks' environment names.

    Parameters
    ----------
    config : CollectiveDumpsCollector.Config
    scope : Scope
    clock : Clock
    """

    class Config(Config, frozen=True, kw_only=True):
        """When to ask, and how much to take.

        Attributes
        ----------
        stalled_s, stalled_steps
            Ask when no rank has moved for so long, and for so many of the longest recent steps; 0 steps: never ask.
        first_step_s, pause_s
            Least standstill before the first step has ended, and in a checkpoint, an evaluation or data loading.
        again_s : float
            Ask a second time so long after the first.
        calls : int
            Calls that are kept of each process group.
        max_bytes : int
            Larger files are left alone; PyTorch's default of 2,000 calls takes about 5 MB with stacks.
        prefix : str, optional
            Start of the dump files' path, before the rank, instead of what the environment of the ranks says.
        """

        interval_s: Annotated[float, msgspec.Meta(ge=0.02, le=60.0)] = 0.2
        stalled_s: PositiveSeconds = 1.0
        stalled_steps: Annotated[float, msgspec.Meta(ge=0.0, le=1e6)] = 3.0
        first_step_s: PositiveSeconds = 60.0
        pause_s: PositiveSeconds = 60.0
        again_s: PositiveSeconds = 30.0
        calls: Annotated[int, msgspec.Meta(ge=1, le=2_000)] = 16
        max_bytes: Annotated[int, msgspec.Meta(ge=1_024, le=1 << 30)] = 64 << 20
        prefix: str | None = None
        proc: str = "/proc"

    def __init__(self, config: Config, scope: Scope, clock: Clock) -> None:
        self._config = config
        self._scope = scope
        self._run_dir = Path(scope.run_dir)
        self._lookout = ProcessFinder(config.proc)
        self._watched: dict[str, _Watched] = {}  # by hook file
        self._told: dict[str, list[int]] = {}  # path -> time (ns) and size of the dump that was sent last
        self._growing: dict[str, list[int]] = {}  # files seen, not yet known to be whole
        self._asked: list[float] = []  # when in this standstill
        self._still_since_s = 0.0
        self._awaited: set[str] = set()  # answers that have not come
        self._files_at_s = float("-inf")

    @property
    def interval_s(self) -> float:
        return min(self._config.interval_s, _ANSWER_INTERVAL_S) if self._awaited else self._config.interval_s

    def supported(self) -> str | None:
        if not (self._run_dir / "hook").is_dir():
            return f"no rank can be known here: there is no folder {self._run_dir}/hook"
        return None

    def collect(self, now_s: float) -> Iterable[Record]:
        self._look()
        yield from self._answers(now_s)
        self._ask(now_s)
        if not 0.0 <= now_s - self._files_at_s < _FILES_EVERY_S:
            self._files_at_s = now_s
            yield from self._left_by_torch(now_s)

    def wake_fds(self) -> Sequence[int]:
        return ()

    def position(self) -> JsonObject:
        return {"told": {path: list(what) for path, what in self._told.items()}}

    def restore(self, position: JsonObject) -> None:
        told = position.get("told", {})
        self._told = {str(path): [int(one) for one in what] for path, what in dict(told).items()}

    def close(self) -> None:
        self._watched.clear()
        self._awaited.clear()

    # -- whom to watch

    def _look(self) -> None:
        """The trainer of each rank, with its header; what a process that is forgotten has left is deleted."""
        found = trainers(self._run_dir, self._lookout)
        wanted = {one.process.path for one in found}
        for path in [path for path in self._watched if path not in wanted]:
            del self._watched[path]
            self._awaited.discard(path)
            if not os.path.exists(path):  # noqa: PTH110 - plain strings, several times a second
                for kind in ("ask", "calls", "calls.tmp"):
                    Path(f"{path.removesuffix('hook')}{kind}").unlink(missing_ok=True)
        for header, process in ((one.header, one.process) for one in found):
            if process.path not in self._watched:
                try:
                    owner = os.stat(process.path).st_uid  # noqa: PTH116 - as above
                except OSError:
                    continue
                self._watched[process.path] = _Watched(process, self._prefixes(self._lookout.look(header).pid), owner)
            self._watched[process.path].header = header

    def _prefixes(self, pid: int | None) -> tuple[str, ...]:
        """Where the dump files of a process begin, by its environment as the kernel keeps it; None: unseen."""
        if self._config.prefix is not None:
            return (self._config.prefix,)
        said: dict[str, str] = {}
        try:
            with open(f"{self._config.proc}/{pid}/environ", "rb") as file:
                for pair in file.read(_MAX_ENVIRON_BYTES).split(b"\0"):
                    name, _, value = os.fsdecode(pair).partition("=")
                    if name in _VARIABLES or name == "HOME":
                        said[name] = value
        except OSError:  # gone, or another user's: then only the usual places are left
            said = {}
        named = [said[name] for name in _VARIABLES if said.get(name)]
        if named:
            return (named[0],)
        home = said.get("HOME") or os.environ.get("HOME", "/")
        return tuple(str(Path(home, place)) for place in _DEFAULTS)

    # -- asking the hooks

    def _ask(self, now_s: float) -> None:
        """Ask every hook of this node if none of its ranks has moved for long."""
        alive = [
            Trainer(one.process, one.header)
            for one in self._watched.values()
            if one.header is not None and runs(one.header, self._lookout)
        ]
        if not alive or self._config.stalled_steps == 0.0:
            return
        since_s = max(one.moved_s for one in alive)
        if since_s != self._still_since_s:
            self._still_since_s, self._asked = since_s, []
            self._awaited.clear()
        still_s, config = now_s - since_s, self._config
        if len(self._asked) >= _ASKS or still_s <= config.stalled_s:
            return
        if self._asked and now_s - self._asked[-1] < config.again_s:
            return
        patience = Patience(config.stalled_s, config.stalled_steps, config.first_step_s, config.pause_s)
        if still_s <= patience.of(alive):
            return
        self._asked.append(now_s)
        for path in [one.process.path for one in alive]:
            if hook.ask_hook(path, self._watched[path].owner):
                self._awaited.add(path)

    def _answers(self, now_s: float) -> Iterator[Record]:
        for path, one in self._watched.items():
            calls = f"{path.removesuffix('hook')}calls"
            if (found := _signature(calls, one.owner)) is not None and found != self._told.get(calls):
                self._awaited.discard(path)
                yield self._record(calls, found, one, now_s, asked=True)

    # -- files that PyTorch leaves

    def _left_by_torch(self, now_s: float) -> Iterator[Record]:
        """Dump files that were written in the life of their rank's process and have stopped growing."""
        for one in self._watched.values():
            begun_s = one.header.start_s - _START_SLACK_S if one.header is not None else now_s
            for prefix in one.prefixes:
                path = f"{prefix}{one.process.rank}"
                found = _signature(path, one.owner)
                if found is None or found[0] / 1e9 < begun_s or found == self._told.get(path):
                    continue
                if self._growing.get(path) != found:
                    self._growing[path] = found
                    continue
                del self._growing[path]
                yield self._record(path, found, one, now_s, asked=False)

    def _record(self, path: str, found: list[int], one: _Watched, now_s: float, *, asked: bool) -> EventRecord:
        """The event that carries the dump at `path`, or says why it cannot."""
        self._told[path] = found
        rank = one.process.rank
        fields: dict[str, str | int | float | bool | None] = {"file": Path(path).name, "asked": asked}
        if one.header is not None:
            fields["incarnation"] = one.header.incarnation
        message = f"rank {rank} has left its record of collective calls"
        try:
            fields["dump"] = pack(read_record(_whole(path, self._config.max_bytes)), self._config.calls)
        except DataError as error:
            message = f"rank {rank} has left a record of collective calls that cannot be used: {error}"
        identity = hashlib.sha256(f"{path}/{found}/{fields.get('dump')}".encode()).hexdigest()[:16]
        return EventRecord(
            id=f"flight_dump/{self._scope.node}/{rank}/{identity}", job=self._scope.job, node=self._scope.node,
            time_s=min(now_s, found[0] / 1e9), kind="flight_recorder", rank=rank, message=message[:500], fields=fields,
        )  # fmt: skip


def _signature(path: str, owner: int) -> list[int] | None:
    """Time (ns) and size of the file; None if it is none, empty, or not its rank's own: anybody may write in /tmp."""
    try:
        found = os.stat(path)  # noqa: PTH116 - several times a second for every rank
    except OSError:
        return None
    own = stat.S_ISREG(found.st_mode) and found.st_uid == owner
    return [found.st_mtime_ns, found.st_size] if own and found.st_size else None


def _whole(path: str, most: int) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise DataError(f"it cannot be read ({error.strerror})") from error
    if len(data) > most:
        raise DataError(f"it has more than {most} bytes")
    return data
