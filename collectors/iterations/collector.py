"""Training iterations, heartbeats and last words of the ranks of this node, from the hook's files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

from trainwarden import rundir
from trainwarden.clock import Clock
from trainwarden.collectors.iterations.agent_socket import AgentSocket
from trainwarden.collectors.iterations.hook_source import HookSource, boot_id
from trainwarden.collectors.iterations.records import HookRecords
from trainwarden.collectors.iterations.trainers import Trainers
from trainwarden.collectors.ranks import ProcessFinder, hook_files
from trainwarden.protocols import JsonObject, Scope
from trainwarden.records import Record
from trainwarden.settings import Config, PositiveSeconds

_GARBAGE_AFTER_LOOKS = 25  # a file that is being made is whole within milliseconds
_GONE_ROWS_S = 30.0  # how long heartbeats go on telling of a process that is gone
_OVERHEAD_INTERVAL_S = 5.0


class IterationsCollector:
    """Reads what the hooks of this node's ranks tell.

    Yields one `IterationRecord` per rank with new steps, one `HeartbeatRecord` per turn over all ranks, and
    events for what is rare: a process began, an exception, a fatal signal, a long pause, a plan adopted.

    Parameters
    ----------
    config : IterationsCollector.Config
    scope : Scope
    clock : Clock
    """

    class Config(Config, frozen=True, kw_only=True):
        """`interval_s`: time between looks; `forget_after_s`: files of dead processes are deleted so long after
        their end; `proc`: the kernel's process folder.
        """

        interval_s: Annotated[float, msgspec.Meta(ge=0.02, le=60.0)] = 0.2
        forget_after_s: PositiveSeconds = 3600.0
        proc: str = "/proc"

    heartbeats = True  # a thread of its own

    def __init__(self, config: Config, scope: Scope, clock: Clock) -> None:
        self._config = config
        self._records = HookRecords(scope)
        self._clock = clock
        self._run_dir = Path(scope.run_dir)
        self._folder = self._run_dir / rundir.HOOK
        self._boot = boot_id(Path(config.proc))
        self._lookout = ProcessFinder(config.proc)
        self._sources: dict[str, HookSource] = {}
        self._garbage: dict[str, int] = {}  # file name -> size when it was given up
        self._resume: dict[str, JsonObject] = {}
        self._trainers = Trainers(Path(config.proc))
        self._socket = AgentSocket(self._folder)
        self._scanned: tuple[int, float] = (0, float("-inf"))
        self._overhead_at_s = 0.0
        self.junk = 0
        """Files, lines and datagrams that were not of our making."""

    @property
    def interval_s(self) -> float:
        return self._config.interval_s

    def supported(self) -> str | None:
        if not self._folder.is_dir():
            return f"no training process can report here: there is no folder {self._folder}"
        return None

    def collect(self, now_s: float) -> Iterable[Record]:
        self._socket.open()
        self._scan(now_s)
        looked = []
        for source in list(self._sources.values()):
            if source.look(self._lookout, now_s):
                looked.append(source)
            elif source.failed_looks >= _GARBAGE_AFTER_LOOKS:
                self._give_up(source)
        # A trainer's last steps come before its follower's first, and who trains before what others say of themselves.
        for source in [source for source in looked if source.trains]:
            yield from self._training(source)
        for source in self._trainers.update(self._sources.values()):
            yield from self._training(source)
        for source in looked:
            yield from self._words(source)
            self._forget_if_old(source, now_s)
        yield from self._told_at_once()
        yield from self._heartbeat(now_s)
        yield from self._overhead(now_s)

    def wake_fds(self) -> Sequence[int]:
        return self._socket.fds

    def position(self) -> JsonObject:
        return {"files": {**self._resume, **{name: source.position() for name, source in self._sources.items()}}}

    def restore(self, position: JsonObject) -> None:
        files = position.get("files", {})
        self._resume = dict(files) if isinstance(files, dict) else {}
        for source in self._sources.values():
            source.close()
        self._sources.clear()
        self._scanned = (0, float("-inf"))

    def close(self) -> None:
        for source in self._sources.values():
            source.close()
        self._sources.clear()
        self._socket.close()

    # -- finding files

    def _scan(self, now_s: float) -> None:
        """Apply new hook files; the folder is read only if it changed, and now and then anyway."""
        try:
            changed = os.stat(self._folder).st_mtime_ns  # noqa: PTH116 - every turn
        except OSError:
            return
        recently = abs(now_s - changed / 1e9) < 1.0  # time stamps of folders are coarse
        if changed == self._scanned[0] and not recently and now_s - self._scanned[1] < 5.0:
            return
        self._scanned = (changed, now_s)
        found: set[str] = set()
        for entry in hook_files(self._run_dir):
            found.add(entry.name)
            if entry.name not in self._sources and self._garbage.get(entry.name) != entry.stat().st_size:
                self._take_in(entry.name, now_s)
        for name in self._sources.keys() - found:
            self._sources.pop(name).close()
        self._resume = {name: position for name, position in self._resume.items() if name in found}

    def _take_in(self, name: str, now_s: float) -> None:
        try:
            source = HookSource(self._folder / name, now_s)
        except OSError:
            return  # it went, or is not ours to read; the next scan sees
        source.restore(self._resume.pop(name, {}))
        self._sources[name] = source

    def _give_up(self, source: HookSource) -> None:
        name = f"{source.name}.hook"
        self.junk += 1
        self._sources.pop(name).close()
        with suppress(FileNotFoundError):  # then there is nothing to remember
            self._garbage[name] = (self._folder / name).stat().st_size

    def _forget_if_old(self, source: HookSource, now_s: float) -> None:
        if source.gone_since_s is not None and now_s - source.gone_since_s > self._config.forget_after_s:
            name = f"{source.name}.hook"
            self._sources.pop(name)
            try:
                source.remove()
            except OSError:  # another user's: not to be taken in again
                self._garbage[name] = (self._folder / name).stat().st_size

    # -- what a process tells

    def _training(self, source: HookSource) -> Iterable[Record]:
        """What the trainer of a rank has done; of others, nothing of this is read."""
        header = source.header
        if header is None:
            return
        if not source.started:
            source.started = True
            yield self._records.started(header)
        yield from self._records.iterations(header, source.new_steps())
        for pause in source.new_pauses():
            yield self._records.pause(header, pause)

    def _words(self, source: HookSource) -> Iterable[Record]:
        """What any process says of itself, and of one that has never trained that it is there."""
        header = source.header
        if header is None:
            return
        trainer = self._trainers.of_rank(header.rank).header
        if not (source.started or source.beside_told) and trainer is not None:
            source.beside_told = True
            yield self._records.beside(header, trainer)
        for note in source.new_notes():
            if note is None:
                self.junk += 1
            elif note.number not in source.notes_told:
                source.notes_told.add(note.number)
                yield self._records.note(note)
        fatal = source.fatal_signal()
        if fatal is not None:
            signal, frame = fatal
            yield self._records.fatal_signal(header, signal, frame, self._clock.now_s())

    def _told_at_once(self) -> Iterable[Record]:
        """Facts that came by datagram; the same fact in a notes file is not told again."""
        for note in self._socket.notes():
            if note is None:
                self.junk += 1
                continue
            source = self._sources.get(f"{note.file}.hook")
            if source is not None:
                if note.number in source.notes_told:
                    continue
                source.notes_told.add(note.number)
            yield self._records.note(note)

    # -- what all processes are doing

    def _heartbeat(self, now_s: float) -> Iterable[Record]:
        """One row per rank: its trainer, for a while also when that is gone."""
        rows = {
            source.header.rank: (source.header, source.kernel)
            for source in self._sources.values()
            if source.header is not None
            and source.trains
            and (source.gone_since_s is None or now_s - source.gone_since_s <= _GONE_ROWS_S)
        }
        if rows:
            ordered = [rows[rank] for rank in sorted(rows)]
            yield self._records.heartbeat(ordered, now_s, self._clock.monotonic_s(), self._boot)

    def _overhead(self, now_s: float) -> Iterable[Record]:
        if now_s - self._overhead_at_s < _OVERHEAD_INTERVAL_S:
            return
        headers = [source.header for source in self._sources.values() if source.header is not None]
        steps = sum(header.recorded for header in headers)
        if steps:
            self._overhead_at_s = now_s
            yield self._records.overhead(sum(header.own_s for header in headers) / steps, now_s)
