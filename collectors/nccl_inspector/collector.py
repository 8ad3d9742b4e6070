"""The collective calls of this node's ranks, from the files of NVIDIA's inspector.

Where the inspector of a process writes, and what it must be told so that its lines can be used.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import msgspec

from trainwarden import hook, rundir
from trainwarden.clock import Clock
from trainwarden.collectors.nccl_inspector.growing_file import GrowingFile
from trainwarden.collectors.nccl_inspector.lines import Call, Comm
from trainwarden.collectors.nccl_inspector.rank_calls import RankCalls
from trainwarden.collectors.ranks import ProcessFinder, rank_processes
from trainwarden.protocols import JsonObject, Scope
from trainwarden.records import CollectivesRecord, Record
from trainwarden.settings import Config

_ENABLE = "NCCL_INSPECTOR_ENABLE"
_FOLDER = "NCCL_INSPECTOR_DUMP_DIR"
_JOB = "SLURM_JOBID"
_EVERY_US = "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS"
_VERBOSE = "NCCL_INSPECTOR_DUMP_VERBOSE"
_PROMETHEUS = "NCCL_INSPECTOR_PROM_DUMP"
_MOST_US = (
    2_000_000  # steps of ranks that are told further apart are not joined (trainwarden.detectors.calls.board.LATE_S)
)
_MAX_ENVIRON_BYTES = 1 << 20


def environment(proc: str, pid: int) -> dict[str, str]:
    """The inspector's variables with which process `pid` was started; empty if they may not be read.

    Raises
    ------
    OSError
        If the process cannot be looked into.
    """
    with open(f"{proc}/{pid}/environ", "rb") as file:
        pairs = file.read(_MAX_ENVIRON_BYTES).split(b"\0")
    found = (
        os.fsdecode(pair).partition("=") for pair in pairs if pair.startswith((b"NCCL_INSPECTOR_", b"SLURM_JOBID="))
    )
    return {name: value for name, _, value in found}


def is_on(variables: Mapping[str, str]) -> bool:
    """Whether the inspector was asked for."""
    return _number(variables.get(_ENABLE)) not in (None, 0)


def wanting(variables: Mapping[str, str]) -> str | None:
    """What must be set for its lines to be of use; None if nothing.

    Examples
    --------
    >>> wanting({"NCCL_INSPECTOR_DUMP_VERBOSE": "1", "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "500000"})
    >>> wanting({"NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "500000"})
    'NCCL_INSPECTOR_DUMP_VERBOSE=1'
    """
    if _number(variables.get(_PROMETHEUS)):
        return f"{_PROMETHEUS}=0"
    if not _number(variables.get(_VERBOSE)):
        return f"{_VERBOSE}=1"
    every_us = _number(variables.get(_EVERY_US))
    if every_us is None or not 0 <= every_us <= _MOST_US:
        return f"{_EVERY_US}=500000"
    return None


def paths(variables: Mapping[str, str], folder: str, own_pid: int, here: tuple[str, int]) -> Iterator[str]:
    """Where the file of a process may lie, by its own `own_pid` and by proc folder and pid as seen from here.

    ``gethostname`` of a container is what its ``/etc/hostname`` says.
    """
    proc, pid = here
    root = f"{proc}/{pid}/root"
    hosts = [os.uname().nodename]
    with suppress(OSError, UnicodeDecodeError):
        hosts.insert(0, Path(f"{root}/etc/hostname").read_text(encoding="utf-8")[:255].strip())
    job = _number(variables.get(_JOB))
    folder = folder or variables.get(_FOLDER) or f"nccl-inspector-{'unknown-jobid' if job is None else job}"
    with suppress(OSError):
        folder = str(Path(os.readlink(f"{proc}/{pid}/cwd"), folder))  # noqa: PTH115 - a kernel's name
    for host in dict.fromkeys(hosts):
        if host and "/" not in host:
            for top in (root, ""):
                yield f"{top}{folder}/{host}-pid{own_pid}.log"


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text[:20])
    except ValueError:
        return None


log = logging.getLogger("trainwarden.agent")

_MOST_CALLS: Final = 4000  # of a record, which is far below the bus's limit then
_AGAIN_S: Final = 10.0  # the file comes with the first call, and may never come
_WORDS: Final = {
    "junk": "lines that are none of the inspector's: passed over",
    "untimed": "calls without the time at which they were asked for: set NCCL_INSPECTOR_DUMP_VERBOSE=1",
}


class NcclInspectorCollector:
    """Sends the calls of some steps as NVIDIA's inspector times them, for jobs that have it in place of our plug-in.

    Silent where no rank has it. Of counts it says nothing: what is not over is not in its files.

    Parameters
    ----------
    config : NcclInspectorCollector.Config
    scope : Scope
    clock : Clock
    """

    class Config(Config, frozen=True, kw_only=True):
        """`every_steps`: calls of steps whose number it divides are sent; `folder`: where all ranks' files lie, empty:
        where their variables say; `proc`: the kernel's process folder.
        """

        interval_s: Annotated[float, msgspec.Meta(ge=0.1, le=60.0)] = 1.0
        every_steps: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 16
        folder: str = ""
        proc: str = "/proc"

    def __init__(self, config: Config, scope: Scope, clock: Clock) -> None:
        self._config = config
        self._scope = scope
        self._clock = clock
        self._run_dir = Path(scope.run_dir)
        self._lookout = ProcessFinder(config.proc)
        self._ranks: dict[str, RankCalls] = {}  # by hook file
        self._again_s: dict[str, float] = {}  # by hook file without one: when to look for it again
        self._resume: dict[str, JsonObject] = {}
        self._said: set[tuple[str, str]] = set()

    @property
    def interval_s(self) -> float:
        return self._config.interval_s

    def supported(self) -> str | None:
        folder = self._run_dir / rundir.HOOK
        return None if folder.is_dir() else f"no rank can be known here: there is no folder {folder}"

    def collect(self, now_s: float) -> Iterable[Record]:
        monotonic_s = self._clock.monotonic_s()
        there = set()
        for process in rank_processes(self._run_dir):
            header = hook.read_header(process.path)
            if header is None:
                continue
            there.add(process.path)
            one = self._ranks.get(process.path) or self._found(process.path, header, monotonic_s)
            if one is None:
                continue
            try:
                gone = self._lookout.look(header).gone
                calls, lost = one.read(process.path, header, now_s, gone=gone)
            except OSError as error:  # its file system went away
                self._say(process.path, f"the inspector's file cannot be read: {error}", header)
                continue
            for name, words in _WORDS.items():
                if getattr(one, name):
                    self._say(process.path, words, header)
            yield from self._records(header, calls, lost, (now_s, monotonic_s))
        self._forget(there)

    def wake_fds(self) -> Sequence[int]:
        return ()

    def position(self) -> JsonObject:
        return {"ranks": {**self._resume, **{path: one.position() for path, one in self._ranks.items()}}}

    def restore(self, position: JsonObject) -> None:
        self.close()
        self._resume = dict(position.get("ranks", {}))

    def close(self) -> None:
        for one in self._ranks.values():
            one.file.close()
        self._ranks.clear()

    # -- internals -------------------------------------------------------------------------------------------

    def _found(self, path: str, header: hook.Header, monotonic_s: float) -> RankCalls | None:
        """The calls of a process whose file has come; None if it has none, or not yet."""
        if monotonic_s < self._again_s.get(path, monotonic_s):
            return None
        self._again_s[path] = monotonic_s + _AGAIN_S
        sight = self._lookout.look(header)
        if sight.pid is None or sight.gone:
            return None
        variables: dict[str, str] = {}
        with suppress(OSError):  # another user's
            variables = environment(self._config.proc, sight.pid)
        if not self._config.folder:
            if not is_on(variables):
                return None
            if (missing := wanting(variables)) is not None:
                self._say(path, f"NVIDIA's inspector is on, but its calls can be used only with {missing}", header)
                return None
        for place in paths(variables, self._config.folder, header.pid, (self._config.proc, sight.pid)):
            with suppress(OSError):  # not there, or not here
                one = RankCalls(GrowingFile(place), self._config.every_steps)
                one.restore(self._resume.pop(path, {}))
                self._ranks[path] = one
                del self._again_s[path]
                return one
        return None

    def _records(
        self, rank: hook.Header, calls: list[tuple[int, Call]], lost: int, times: tuple[float, float]
    ) -> Iterator[CollectivesRecord]:
        now_s, monotonic_s = times
        for first in range(0, len(calls), _MOST_CALLS):
            part = calls[first : first + _MOST_CALLS]
            at: dict[Comm, int] = {}
            for _, call in part:
                at.setdefault(call.comm, len(at))
            yield CollectivesRecord(
                job=self._scope.job,
                node=self._scope.node,
                rank=rank.rank,
                incarnation=rank.incarnation,
                time_s=now_s,
                monotonic_s=monotonic_s,
                comms=tuple(comm.id for comm in at),
                groups=tuple(comm.name for comm in at),
                sizes=tuple(comm.ranks for comm in at),
                places=tuple(comm.place for comm in at),
                node_counts=tuple(comm.nodes for comm in at) if all(comm.nodes for comm in at) else (),
                of=tuple(at[call.comm] for _, call in part),
                functions=tuple(call.function for _, call in part),
                seqs=tuple(call.seq for _, call in part),
                steps=tuple(step for step, _ in part),
                call_bytes=tuple(call.size_bytes for _, call in part),
                device_s=tuple(call.device_s for _, call in part),
                enqueued_s=tuple(call.began_s - now_s + monotonic_s for _, call in part),
                peers=(None,) * len(part),
                lost=lost if first == 0 else 0,
            )

    def _say(self, path: str, words: str, header: hook.Header) -> None:
        """Once of each process."""
        if (path, words) not in self._said:
            self._said.add((path, words))
            log.warning(words, extra={"fields": {"rank": header.rank, "pid": header.pid}})

    def _forget(self, there: set[str]) -> None:
        """Let go of processes whose hook's file is gone."""
        for path in self._ranks.keys() - there:
            self._ranks.pop(path).file.close()
        self._again_s = {path: again_s for path, again_s in self._again_s.items() if path in there}
        self._resume = {path: position for path, position in self._resume.items() if path in there}
        self._said = {(path, words) for path, words in self._said if path in there}
