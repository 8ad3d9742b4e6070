"""Training iterations, heartbeats and last words of the ranks of this node, from the hook's files.

The agent's socket in the run folder, by which hooks tell rare facts at once.

Which process of a rank is the one that trains: a child inherits the rank's environment, and may itself run torch.

The trainer is whoever trains. A process begun after the last sign of life of a trainer that is gone follows it at
once: that is a restart. Whoever begins beside a living trainer has to make steps while that one makes none, and not a
few; a child of it has to make more than it ever made. Nothing is lost by waiting: steps stay in the hook's file until
they are read.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import msgspec

from trainwarden import hook, rundir
from trainwarden.clock import Clock
from trainwarden.collectors.iterations.hook_source import MAX_NOTE_BYTES, HookSource, Note, boot_id, decode_note
from trainwarden.collectors.iterations.records import HookRecords
from trainwarden.collectors.ranks import ProcessFinder, hook_files
from trainwarden.protocols import JsonObject, Scope
from trainwarden.records import Record
from trainwarden.settings import Config, PositiveSeconds

TAKE_OVER_STEPS: Final = 20  # of one process while the other makes none
_START_SLACK_S: Final = 2.0  # the kernel tells starts by a boot time of whole seconds
_GENERATIONS: Final = 16  # between a trainer and its furthest child that is looked for


class _Seat:
    """The trainer of one rank, and what the others had done when it last made a step."""

    def __init__(self, source: HookSource, header: hook.Header) -> None:
        self.source = source
        self.recorded = header.recorded
        self.others: dict[str, int] = {}
        source.trains = True
        source.trained = source.trained or header.recorded > 0

    def note(self, header: hook.Header) -> None:
        """A step of its own makes the others begin to count anew."""
        self.source.trained = self.source.trained or header.recorded > 0
        if header.recorded != self.recorded:
            self.recorded = header.recorded
            self.others.clear()


class Trainers:
    """One process for each rank.

    Parameters
    ----------
    proc : Path
        The kernel's process folder.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._seats: dict[int, _Seat] = {}

    def update(self, sources: Iterable[HookSource]) -> list[HookSource]:
        """Look at everybody once; those that have become trainers now, in the order in which they did."""
        by_rank: dict[int, list[tuple[hook.Header, HookSource]]] = {}
        for source in sources:
            if source.header is not None:
                by_rank.setdefault(source.header.rank, []).append((source.header, source))
        self._seats = {rank: seat for rank, seat in self._seats.items() if rank in by_rank}
        seated: list[HookSource] = []
        for rank, found in by_rank.items():
            found.sort(key=lambda one: (one[0].start_monotonic_s, one[0].pid))
            seat = self._seats.get(rank)
            if seat is None or all(source is not seat.source for _, source in found):
                # Of an earlier agent's choice, else whoever was there first.
                header, source = next((one for one in found if one[1].trains), found[0])
                seat = self._seats[rank] = _Seat(source, header)
                seated.append(source)
            assert seat.source.header is not None  # it is one of `found`
            seat.note(seat.source.header)
            for header, source in found:
                if source is not seat.source and self._takes_over(seat, source, header):
                    seat.source.trains = False
                    seat = self._seats[rank] = _Seat(source, header)
                    seated.append(source)
        return seated

    def of_rank(self, rank: int) -> HookSource:
        """The trainer of `rank`, which has one."""
        return self._seats[rank].source

    def _takes_over(self, seat: _Seat, source: HookSource, new: hook.Header) -> bool:
        old = seat.source.header
        assert old is not None  # as above
        if new.attempt != old.attempt:  # our own launcher counts them
            return new.attempt > old.attempt
        # A container that begins anew is another namespace; of the old one nothing can be seen from outside of both.
        lost = not seat.source.kernel.state and new.pid_namespace != old.pid_namespace
        if (seat.source.gone_since_s is not None or lost) and not source.trained:
            last_sign_s = max(old.phase_since_s, old.step_end_s or 0.0)
            if new.start_s + _START_SLACK_S >= last_sign_s:
                return True
        if not new.recorded:
            return False
        if not source.trained and new.start_monotonic_s < old.start_monotonic_s:
            return True  # it was there first, and begins only now
        made = new.recorded - seat.others.setdefault(source.name, new.recorded if old.recorded else 0)
        if made < TAKE_OVER_STEPS or hook.SOURCES.index(new.source) < hook.SOURCES.index(old.source):
            return False
        if new.recorded > old.recorded or seat.source.gone_since_s is not None:
            return True
        return not self._is_child(source, seat.source)

    def _is_child(self, source: HookSource, of: HookSource) -> bool:
        """Whether the one descends from the other, as far as the kernel knows."""
        pid, parent = source.kernel.pid, of.kernel.pid
        if pid is None or parent is None:
            return False
        for _ in range(_GENERATIONS):
            try:
                text = (self._proc / str(pid) / "stat").read_bytes()
                pid = int(text[text.rfind(b")") + 2 :].split()[1])
            except (OSError, ValueError, IndexError):
                return False
            if pid in (0, 1, parent):
                return pid == parent
        return False


_MAX_DATAGRAMS = 1000  # per turn


class AgentSocket:
    """Receives notes of the hooks whose files lie in `folder`; nothing while it is not open.

    Parameters
    ----------
    folder : Path
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket: socket.socket | None = None

    @property
    def fds(self) -> tuple[int, ...]:
        """Readable when there is a note."""
        return () if self._socket is None else (self._socket.fileno(),)

    def open(self) -> None:
        """Bind, once the folder exists; a socket that another agent left behind is replaced.

        Raises
        ------
        OSError
            If it cannot be bound.
        """
        if self._socket is not None or not self._folder.is_dir():
            return
        path = self._folder / rundir.AGENT_SOCKET
        try:
            path.unlink(missing_ok=True)
        except PermissionError:
            return  # a folder of another user's, which we may only read: the same facts lie in its files
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        # A socket's address holds 107 bytes at most; through the open folder any path is short.
        os.fchmod(opened.fileno(), 0o600)  # before it has a name: by its name another file might be meant
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            opened.bind(f"/proc/self/fd/{folder}/{rundir.AGENT_SOCKET}")
        except OSError as error:
            opened.close()
            if isinstance(error, PermissionError):
                return  # as above
            raise
        finally:
            os.close(folder)
        self._socket = opened

    def notes(self) -> Iterator[Note | None]:
        """Notes that have come, at most 1,000; None for each datagram that is none."""
        for _ in range(_MAX_DATAGRAMS):
            if self._socket is None:
                return
            try:
                line = self._socket.recv(MAX_NOTE_BYTES + 1)
            except BlockingIOError:
                return
            yield decode_note(line)

    def close(self) -> None:
        """Let go of the socket and its name. Safe twice."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            with suppress(PermissionError):
                (self._folder / rundir.AGENT_SOCKET).unlink(missing_ok=True)


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
