"""Training iterations, heartbeats and last words of the ranks of this node, from the hook's files."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from collectors.iterations.hook_source import MAX_NOTE_BYTES, HookSource, Note, boot_time_s, decode_note
from trainwarden import hook, rundir
from trainwarden.clock import Clock
from trainwarden.protocols import JsonObject, Scope
from trainwarden.records import (
    EventKind,
    EventRecord,
    HeartbeatRecord,
    IterationRecord,
    MetricsRecord,
    Phase,
    Record,
)
from trainwarden.settings import Config, PositiveSeconds

_HOOK_FILE = re.compile(r"^rank-\d{1,6}-\d{1,10}\.hook$")
_MAX_DATAGRAMS = 1000  # per turn
_GARBAGE_AFTER_LOOKS = 25  # a file that is being made is whole within milliseconds
_GONE_ROWS_S = 30.0  # how long heartbeats go on telling of a process that is gone
_OVERHEAD_INTERVAL_S = 5.0
_MOST_STEPS = 2000  # per record, far below the bus's limit


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

    def __init__(self, config: Config, scope: Scope, clock: Clock) -> None:
        self._config = config
        self._scope = scope
        self._clock = clock
        self._folder = Path(scope.run_dir) / rundir.HOOK
        self._proc = Path(config.proc)
        self._boot_s: float | None = None
        self._sources: dict[str, HookSource] = {}
        self._garbage: dict[str, int] = {}  # file name -> size when it was given up
        self._resume: dict[str, JsonObject] = {}
        self._socket: socket.socket | None = None
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
        self._open_socket()
        yield from self._datagrams()
        self._scan(now_s)
        if self._boot_s is None:
            self._boot_s = boot_time_s(self._proc)
        for source in list(self._sources.values()):
            if source.look(self._proc, self._boot_s, now_s):
                yield from self._news(source)
                self._forget_if_old(source, now_s)
            elif source.failed_looks >= _GARBAGE_AFTER_LOOKS:
                self._give_up(source)
        yield from self._heartbeat(now_s)
        yield from self._overhead(now_s)

    def wake_fds(self) -> Sequence[int]:
        return () if self._socket is None else (self._socket.fileno(),)

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
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            (self._folder / rundir.AGENT_SOCKET).unlink(missing_ok=True)

    # -- finding files

    def _scan(self, now_s: float) -> None:
        """Take in new hook files; the folder is read only if it changed, and now and then anyway."""
        try:
            changed = os.stat(self._folder).st_mtime_ns  # noqa: PTH116 - every turn
        except OSError:
            return
        recently = abs(now_s - changed / 1e9) < 1.0  # time stamps of folders are coarse
        if changed == self._scanned[0] and not recently and now_s - self._scanned[1] < 5.0:
            return
        self._scanned = (changed, now_s)
        found: set[str] = set()
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if not _HOOK_FILE.match(entry.name):
                    continue
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
        path = self._folder / name
        self._garbage[name] = path.stat().st_size if path.exists() else 0

    def _forget_if_old(self, source: HookSource, now_s: float) -> None:
        if source.gone_since_s is not None and now_s - source.gone_since_s > self._config.forget_after_s:
            self._sources.pop(f"{source.name}.hook")
            source.remove()

    # -- what a process tells

    def _news(self, source: HookSource) -> Iterable[Record]:
        header = source.header
        if header is None:
            return
        if not source.started:
            source.started = True
            text = f"rank {header.rank} trains as process {header.pid}"
            fields = {"pid": header.pid, "world_size": header.world_size, "attempt": header.attempt}
            yield self._event("process_start", "process_start", header, header.start_s, text, **fields)
        steps = source.new_steps()
        for first in range(0, len(steps), _MOST_STEPS):
            yield self._iterations(header, steps[first : first + _MOST_STEPS])
        for pause in source.new_pauses():
            kind: EventKind = "checkpoint" if pause.phase == "checkpoint" else "phase"
            end_s, took_s, step = pause.begin_s + pause.duration_s, pause.duration_s, pause.step
            text = f"rank {header.rank} spent {took_s:.1f} s in {pause.phase} during step {step}"
            name = f"{kind}/{pause.serial}"
            yield self._event(kind, name, header, end_s, text, phase=pause.phase, duration_s=took_s, step=step)
        for note in source.new_notes():
            if note is None:
                self.junk += 1
            elif note.number not in source.notes_told:
                source.notes_told.add(note.number)
                yield self._note(note)
        fatal = source.fatal_signal()
        if fatal is not None:
            signal, frame = fatal
            text = f"rank {header.rank} was ended by {signal} in {frame or 'unknown code'}"
            now_s = self._clock.now_s()
            yield self._event("fatal_signal", "fatal_signal", header, now_s, text, signal=signal, frame=frame)

    def _iterations(self, header: hook.Header, steps: Sequence[hook.Step]) -> IterationRecord:
        marks = steps[-1].source == "marks"
        # Marks of a framework whose waiting the hook cannot see: nothing is known of the split.
        split = not (marks and not header.calls and not any(step.wait_s for step in steps))
        return IterationRecord(
            job=self._scope.job,
            node=self._scope.node,
            rank=header.rank,
            incarnation=header.incarnation,
            steps=tuple(step.step for step in steps),
            end_s=tuple(step.end_s for step in steps),
            duration_s=tuple(step.duration_s for step in steps),
            compute_s=tuple(step.compute_s for step in steps) if split else (),
            wait_s=tuple(step.wait_s for step in steps) if split else (),
            pause_s=tuple(step.pause_s for step in steps),
            micro_batches=tuple(step.micro_batches for step in steps),
            basis="marks" if marks else "host",
            role=header.role,
        )

    def _event(
        self,
        kind: EventKind,
        name: str,
        header: hook.Header | Note,
        time_s: float,
        message: str,
        /,
        **fields: str | int | float | bool | None,
    ) -> EventRecord:
        first, _, rest = name.partition("/")
        return EventRecord(
            id=f"{first}/{self._scope.node}/{header.incarnation}" + (f"/{rest}" if rest else ""),
            job=self._scope.job,
            node=self._scope.node,
            time_s=time_s,
            kind=kind,
            rank=header.rank,
            message=message[:2000],
            fields={"incarnation": header.incarnation, **fields},
        )

    def _note(self, note: Note) -> EventRecord:
        if note.type == "plan":
            text = f"rank {note.rank} runs micro-batches by plan {note.plan} from step {note.step}"
            name = f"microbatch_plan/{note.plan}"
            shares = note.micro_batches
            return self._event(
                "microbatch_plan", name, note, note.time_s, text, number=note.plan, micro_batches=shares, step=note.step
            )
        kind, frame = note.exception, note.frame
        return self._event(
            "exception", "exception", note, note.time_s, note.message, type=kind, frame=frame, step=note.step
        )

    # -- the socket

    def _open_socket(self) -> None:
        """Bind the agent's socket; one that another agent left behind is replaced."""
        if self._socket is not None or not self._folder.is_dir():
            return
        path = self._folder / rundir.AGENT_SOCKET
        path.unlink(missing_ok=True)
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        # A socket's address holds 107 bytes at most; through the open folder any path is short.
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            opened.bind(f"/proc/self/fd/{folder}/{rundir.AGENT_SOCKET}")
        except OSError:
            opened.close()
            raise
        finally:
            os.close(folder)
        path.chmod(0o600)
        self._socket = opened

    def _datagrams(self) -> Iterable[Record]:
        """Facts that hooks sent at once; the same fact in a notes file is not told again."""
        for _ in range(_MAX_DATAGRAMS):
            if self._socket is None:
                return
            try:
                line = self._socket.recv(MAX_NOTE_BYTES + 1)
            except BlockingIOError:
                return
            note = decode_note(line)
            if note is None:
                self.junk += 1
                continue
            source = self._sources.get(f"{note.file}.hook")
            if source is not None:
                if note.number in source.notes_told:
                    continue
                source.notes_told.add(note.number)
            yield self._note(note)

    # -- what all processes are doing

    def _heartbeat(self, now_s: float) -> Iterable[Record]:
        """One row per rank: its youngest process, for a while also when that is gone."""
        newest: dict[int, tuple[hook.Header, HookSource]] = {}
        for source in self._sources.values():
            header = source.header
            if header is None or (source.gone_since_s is not None and now_s - source.gone_since_s > _GONE_ROWS_S):
                continue
            known = newest.get(header.rank)
            if known is None or header.start_s > known[0].start_s:
                newest[header.rank] = (header, source)
        if not newest:
            return
        rows = [newest[rank] for rank in sorted(newest)]
        headers = [header for header, _ in rows]
        phases: tuple[Phase, ...] = tuple(header.phase for header in headers)
        yield HeartbeatRecord(
            job=self._scope.job,
            node=self._scope.node,
            time_s=now_s,
            ranks=tuple(header.rank for header in headers),
            pids=tuple(header.pid for header in headers),
            incarnations=tuple(header.incarnation for header in headers),
            steps=tuple(header.step for header in headers),
            step_end_s=tuple(header.step_end_s for header in headers),
            phases=phases,
            phase_since_s=tuple(header.phase_since_s for header in headers),
            calls=tuple(header.calls for header in headers),
            states=tuple(source.kernel.state for _, source in rows),
            cpu_s=tuple(source.kernel.cpu_s for _, source in rows),
        )

    def _overhead(self, now_s: float) -> Iterable[Record]:
        """What the hooks of this node cost their training threads, per step, by their own reckoning."""
        if now_s - self._overhead_at_s < _OVERHEAD_INTERVAL_S:
            return
        headers = [source.header for source in self._sources.values() if source.header is not None]
        steps = sum(header.recorded for header in headers)
        if not steps:
            return
        self._overhead_at_s = now_s
        yield MetricsRecord(
            job=self._scope.job,
            node=self._scope.node,
            time_s=now_s,
            devices=("agent",),
            names=("agent_hook_overhead_seconds",),
            values=((sum(header.own_s for header in headers) / steps,),),
        )
