"""The collective calls of this node's ranks, from the files of NCCL's profiler plug-in.

What a rank's file of calls tells, as records of bounded size.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import msgspec

from trainwarden import hook, rundir
from trainwarden.clock import Clock
from trainwarden.collectors.nccl_profiler.build import LIBRARY
from trainwarden.collectors.nccl_profiler.dense import Requests
from trainwarden.collectors.nccl_profiler.read import Call, Comm
from trainwarden.collectors.nccl_profiler.source import CallsFile, Taken, Who, who_of
from trainwarden.collectors.ranks import ProcessFinder, hook_files, rank_processes
from trainwarden.protocols import JsonObject, Scope
from trainwarden.records import CollectivesRecord, Record, SamplingRecord
from trainwarden.settings import Config, PositiveSeconds

_MOST_CALLS = 4000  # of a record, which is far below the bus's limit then


class CallRecords:
    """Makes the records of one job on one node.

    Parameters
    ----------
    scope : Scope
    boot : str
    """

    def __init__(self, scope: Scope, boot: str) -> None:
        self._scope = scope
        self._boot = boot

    def of(self, rank: hook.Header, taken: Taken, now_s: float, monotonic_s: float) -> Iterator[CollectivesRecord]:
        """The calls of `taken`, with the counts of their communicators; the counts of all where they are to be told."""
        comms = {(comm.place, comm.generation & 0xFFFFFF): comm for comm in taken.comms}
        calls = [call for call in taken.calls if (call.place, call.generation) in comms]
        lost = taken.lost + len(taken.calls) - len(calls)
        for first in range(0, len(calls), _MOST_CALLS):
            part = calls[first : first + _MOST_CALLS]
            used = dict.fromkeys((call.place, call.generation) for call in part)
            yield self._record(rank, [comms[place] for place in used], part, lost, (now_s, monotonic_s))
            lost = 0
        if taken.counts or lost:
            alive = [comm for comm in taken.comms if not comm.closed]
            yield self._record(rank, alive, [], lost, (now_s, monotonic_s))

    def _record(
        self, rank: hook.Header, comms: Sequence[Comm], calls: Sequence[Call], lost: int, times: tuple[float, float]
    ) -> CollectivesRecord:
        at = {(comm.place, comm.generation & 0xFFFFFF): number for number, comm in enumerate(comms)}
        sizes, nodes = [comm.ranks for comm in comms], [comm.nodes for comm in comms]
        return CollectivesRecord(
            job=self._scope.job,
            node=self._scope.node,
            rank=rank.rank,
            incarnation=rank.incarnation,
            time_s=times[0],
            monotonic_s=times[1],
            boot=self._boot,
            comms=tuple(comm.id for comm in comms),
            groups=tuple(comm.name for comm in comms),
            # NCCL 2.26 tells neither.
            sizes=tuple(size for size in sizes if size) if all(sizes) else (),
            places=tuple(comm.rank for comm in comms),
            node_counts=tuple(count for count in nodes if count) if all(nodes) else (),
            enqueued=tuple(comm.enqueued for comm in comms),
            started=tuple(comm.started for comm in comms),
            finished=tuple(comm.finished for comm in comms),
            moved_s=tuple(comm.moved_ns / 1e9 if comm.moved_ns else None for comm in comms),
            of=tuple(at[call.place, call.generation] for call in calls),
            functions=tuple(call.function for call in calls),
            seqs=tuple(call.seq for call in calls),
            steps=tuple(call.step for call in calls if call.step is not None),
            call_bytes=tuple(call.size_bytes for call in calls),
            device_s=tuple(_device_s(call, comms[at[call.place, call.generation]]) for call in calls),
            enqueued_s=tuple(call.enqueued_ns / 1e9 for call in calls),
            peers=tuple(call.peer for call in calls),
            lost=lost,
        )


def _device_s(call: Call, comm: Comm) -> float | None:
    return call.device_ns / 1e9 if call.device_ns is not None and comm.trusted else None


log = logging.getLogger("trainwarden.agent")

_SUFFIX: Final = ".nccl"
_GARBAGE_AFTER_LOOKS: Final = 10  # a file that is being made is whole within milliseconds
_ALONE_S: Final = 3600.0  # who calls NCCL past torch never has a hook's file, and /dev/shm is small
_VARIABLE: Final = b"NCCL_PROFILER_PLUGIN="
_INSPECTOR: Final = (b"libnccl-profiler-inspector.so", b"=inspector")  # NVIDIA's, which `nccl_inspector` reads
_MAX_ENVIRON_BYTES: Final = 1 << 20


class NcclCallsCollector:
    """Sends the stamped calls of sampled steps, and how far each communicator is where a rank's calls stand still.

    Silent where no rank uses NCCL with the plug-in. A rank is told of under the name that its hook has.

    Parameters
    ----------
    config : NcclCallsCollector.Config
    scope : Scope
    clock : Clock
    """

    class Config(Config, frozen=True, kw_only=True):
        """`interval_s`: time between looks; `still_s`: counts go out when a rank's calls and steps have stood still for
        so long; `again_s`: and again so long after, while they stand; `proc`: the kernel's process folder;
        `dense_steps`: as many steps in a row are sampled if a detector asks, 0 for none; `dense_every_s`: and that no
        more often.
        """

        interval_s: Annotated[float, msgspec.Meta(ge=0.02, le=60.0)] = 1.0
        still_s: PositiveSeconds = 2.0
        again_s: PositiveSeconds = 10.0
        proc: str = "/proc"
        dense_steps: Annotated[int, msgspec.Meta(ge=0, le=256)] = 32
        dense_every_s: PositiveSeconds = 300.0

    def __init__(self, config: Config, scope: Scope, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._run_dir = Path(scope.run_dir)
        self._lookout = ProcessFinder(config.proc)
        self._records = CallRecords(scope, _boot(Path(config.proc)))
        self._files: dict[str, CallsFile] = {}
        self._ranks: dict[str, hook.Header] = {}  # whose file it is, once its hook has told
        self._looks: dict[str, int] = {}  # of files that are none of ours, up to now
        self._garbage: dict[str, int] = {}  # file name -> size when it was given up
        self._resume: dict[str, JsonObject] = {}
        self.requests = Requests(config.dense_steps, config.dense_every_s)
        """How often samples were asked for, and what became of it."""
        self._asked: set[str] = set()  # hook files whose process has been asked for its plug-in
        self.junk = 0
        """Files that were not of our making."""

    @property
    def interval_s(self) -> float:
        return self._config.interval_s

    def supported(self) -> str | None:
        folder = self._run_dir / rundir.HOOK
        return None if folder.is_dir() else f"no rank can be known here: there is no folder {folder}"

    @property
    def listens(self) -> bool:
        """Whether a request would find a rank here whose calls the device stamps."""
        return self._config.dense_steps > 0 and any(file.sampled for file in list(self._files.values()))

    def ask(self, request: SamplingRecord) -> None:
        """A detector wants denser samples; seen to at the next look. From any thread."""
        self.requests.put(request)

    def collect(self, now_s: float) -> Iterable[Record]:
        self.requests.see_to(self._files.values(), self._clock.monotonic_s())
        hooks = self._hooks()
        self._scan()
        for name, file in list(self._files.items()):
            if not file.look():
                self._give_up_later(name)
                continue
            rank = hooks.get(file.who) or self._ranks.get(name)
            monotonic_s = self._clock.monotonic_s()
            if rank is None:  # its hook has not begun yet, and only that knows which rank it is
                file.alone_since_s = monotonic_s if file.alone_since_s is None else file.alone_since_s
                if monotonic_s - file.alone_since_s > _ALONE_S:
                    self._remove(name)
                continue
            self._ranks[name] = rank
            if file.who not in hooks:  # its hook's file is forgotten
                self._remove(name)
                continue
            gone = self._lookout.look(rank).gone
            taken = file.poll(monotonic_s, self._config.still_s, self._config.again_s, gone=gone)
            if taken is not None:
                yield from self._records.of(rank, taken, now_s, monotonic_s)

    def wake_fds(self) -> Sequence[int]:
        return ()

    def position(self) -> JsonObject:
        return {"files": {**self._resume, **{name: file.position() for name, file in self._files.items()}}}

    def restore(self, position: JsonObject) -> None:
        files = position.get("files", {})
        self._resume = dict(files) if isinstance(files, dict) else {}
        self.close()

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    # -- whose files

    def _hooks(self) -> dict[Who | None, hook.Header]:
        """Every process that has a hook's file; of new ones, whose plug-in NCCL has been given."""
        found: dict[Who | None, hook.Header] = {}
        for process in rank_processes(self._run_dir):
            header = hook.read_header(process.path)
            if header is not None:
                found[who_of(header)] = header
                if process.path not in self._asked and self._ask(header):
                    self._asked.add(process.path)
        return found

    def _ask(self, header: hook.Header) -> bool:
        """Say it where a rank was started with a plug-in of somebody else's; whether that could be seen.

        A process that has just begun may not be found yet, and while it begins a program the kernel shows no
        environment. Both are asked again at the next look.
        """
        sight = self._lookout.look(header)
        if sight.gone:
            return True
        if sight.pid is None:
            return False
        try:
            with open(f"{self._config.proc}/{sight.pid}/environ", "rb") as file:
                environ = file.read(_MAX_ENVIRON_BYTES)
        except OSError:  # gone meanwhile, or another user's
            return True
        pairs = environ.split(b"\0")
        said = next((pair for pair in pairs if pair.startswith(_VARIABLE)), b"")
        named = said.removeprefix(_VARIABLE)
        if named and not said.endswith((LIBRARY.name.encode(), *_INSPECTOR)):
            fields = {"rank": header.rank, "plugin": named.decode(errors="replace")[:300]}
            log.warning("NCCL has another profiler plug-in: calls of this rank are not told", extra={"fields": fields})
        return bool(environ)

    # -- finding files

    def _scan(self) -> None:
        found: set[str] = set()
        for entry in hook_files(self._run_dir, _SUFFIX):
            found.add(entry.name)
            known = self._files.get(entry.name)
            if known is not None and known.inode == entry.inode():
                continue
            if known is not None:  # its process has run another program, with another file
                self._files.pop(entry.name).close()
            with suppress(OSError):  # it went, or is not ours to read; the next scan sees
                if self._garbage.get(entry.name) != entry.stat(follow_symlinks=False).st_size:
                    file = CallsFile(entry.path)
                    file.restore(self._resume.pop(entry.name, {}))
                    self._files[entry.name] = file
        for name in self._files.keys() - found:
            self._files.pop(name).close()
            self._ranks.pop(name, None)
        self._resume = {name: position for name, position in self._resume.items() if name in found}

    def _give_up_later(self, name: str) -> None:
        self._looks[name] = self._looks.get(name, 0) + 1
        if self._looks[name] < _GARBAGE_AFTER_LOOKS:
            return
        del self._looks[name]
        self.junk += 1
        file = self._files.pop(name)
        file.close()
        with suppress(OSError):
            self._garbage[name] = os.stat(file.path, follow_symlinks=False).st_size  # noqa: PTH116 - a plain string
        log.warning("not a file of NCCL's calls, or of another version: left alone", extra={"fields": {"file": name}})

    def _remove(self, name: str) -> None:
        """Delete what nobody will be told of; a process that still writes there does not notice."""
        file = self._files.pop(name)
        file.close()
        self._ranks.pop(name, None)
        with suppress(OSError):  # another user's
            Path(file.path).unlink(missing_ok=True)


def _boot(proc: Path) -> str:
    """Name of the present boot; empty if `proc` does not say."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:64]
    except (OSError, UnicodeDecodeError):
        return ""
