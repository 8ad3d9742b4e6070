"""Ends of training processes: exit codes and signals, and the facts that launchers write down themselves."""

from __future__ import annotations

import os
import select
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from trainwarden import hook, rundir
from trainwarden.clock import Clock
from trainwarden.collectors.processes import inotify
from trainwarden.collectors.processes.begun import BegunPrograms
from trainwarden.collectors.processes.exit_status import ExitStatus, exit_status
from trainwarden.collectors.ranks import ProcessFinder, RankProcess, rank_processes
from trainwarden.errors import RecordError
from trainwarden.protocols import JsonObject, Scope
from trainwarden.records import EventRecord, MetricsRecord, Record
from trainwarden.settings import Config
from trainwarden.topics import EVENTS, MAX_RECORD_BYTES
from trainwarden.torchrun.files import read_part

_READ_BYTES = 1_000_000
_BLIND_INTERVAL_S = 0.1  # where the kernel cannot tell of changes
_WATCH_EVERY = 10  # turns
_UNSEEN_EVERY_S = 1.0  # between two looks at hook files whose processes cannot be seen


class _Watched(msgspec.Struct):
    """A process whose end is awaited."""

    process: RankProcess
    pid: int  # here
    pidfd: int


class _Unseen(msgspec.Struct):
    """A process that cannot be seen from here, or whose hook file is not whole yet; `incarnation` if it was known."""

    process: RankProcess
    incarnation: str | None
    whole: bool


class ProcessesCollector:
    """Forwards the run folder's events and, where no launcher of ours reports them, the ends of its ranks.

    Of a process that cannot be seen from here nothing is told: it may well live.

    Parameters
    ----------
    config : ProcessesCollector.Config
    scope : Scope
    clock : Clock
    """

    class Config(Config, frozen=True, kw_only=True):
        """`interval_s`: how often new processes and events are looked for even if the kernel tells of no change."""

        interval_s: Annotated[float, msgspec.Meta(ge=0.02, le=60.0)] = 0.4

    def __init__(self, config: Config, scope: Scope, clock: Clock) -> None:
        self._config = config
        self._scope = scope
        self._clock = clock
        self._lookout = ProcessFinder()
        self._run_dir = Path(scope.run_dir)
        self._hook = str(self._run_dir / rundir.HOOK)
        self._events = str(self._run_dir / rundir.EVENTS)
        self._torchrun = str(self._run_dir / rundir.TORCHRUN)
        self._begun = BegunPrograms(self._run_dir, scope, clock, self._lookout)
        self._notify = inotify.Inotify()
        self._turn = 0
        self._offset = 0
        self._inode = 0
        self._watched: dict[str, _Watched] = {}  # by hook file name
        self._known: dict[str, str] = {}  # hook file name -> incarnation, of every process seen so far
        self._ended: set[str] = set()  # hook file names whose end has been reported
        self._unwatched: dict[str, RankProcess] = {}  # those that had ended before they could be watched
        self._unseen: dict[str, _Unseen] = {}
        self._unseen_at_s = float("-inf")
        self._names: list[str] = []  # of the hook folder at the last look
        self.junk_lines = 0
        self._junk_told = 0

    @property
    def interval_s(self) -> float:
        return self._config.interval_s if self._notify.fds else min(self._config.interval_s, _BLIND_INTERVAL_S)

    def supported(self) -> str | None:
        if not hasattr(os, "pidfd_open") or not Path("/proc/self/stat").exists():
            return "process ends need Linux with pidfd and /proc"
        return None

    def collect(self, now_s: float) -> Iterable[Record]:
        # Watched before looked at, so that no change falls in between.
        # Of whatever comes or goes within the run folder we are told; of another run folder in its place we are not.
        if self._notify.drain() or self._turn % _WATCH_EVERY == 0:
            self._notify.watch(str(self._run_dir), inotify.CREATE | inotify.MOVED_TO)
            self._notify.watch(self._hook, inotify.CREATE | inotify.MOVED_TO | inotify.DELETE)
            self._notify.watch(self._events, inotify.MODIFY)
        self._turn += 1
        forwarded = list(self._forward())
        self._look()
        self._look_again()
        ended = self._gone()
        own = not os.path.exists(self._torchrun)  # noqa: PTH110 - ten times a second
        yield from self._untrained(forwarded, {*self._watched} - {*ended}, now_s, own=own)
        yield from forwarded
        if ended or self._unwatched:
            for name in (*ended, *self._unwatched):
                if own:
                    yield self._exit(name, now_s)
                self._ended.add(name)
                self._unwatch(name)
            self._unwatched.clear()
        if self._junk_told != self.junk_lines:
            self._junk_told = self.junk_lines
            yield self._junk_record(now_s)

    def wake_fds(self) -> Sequence[int]:
        return [*self._notify.fds, *(watched.pidfd for watched in self._watched.values()), *self._begun.fds]

    def position(self) -> JsonObject:
        return {
            "offset": self._offset,
            "inode": self._inode,
            "known": dict(self._known),
            "ended": sorted(self._ended),
            "begun": self._begun.position(),
        }

    def restore(self, position: JsonObject) -> None:
        self._offset = int(position.get("offset", 0))
        self._inode = int(position.get("inode", 0))
        self._known = {}
        self._ended = set(position.get("ended", ()))
        known = {str(name): str(value) for name, value in dict(position.get("known", {})).items()}
        self._names = []
        self._begun.restore(position.get("begun"))
        self._unseen.clear()
        for process in rank_processes(self._run_dir):
            name = process.path.rpartition("/")[2]
            if name in known:
                self._watch(name, process, known[name])

    def close(self) -> None:
        for name in tuple(self._watched):
            self._unwatch(name)
        self._begun.close()
        self._notify.close()

    def _untrained(
        self, forwarded: Iterable[Record], trainers: Collection[str], now_s: float, *, own: bool
    ) -> Iterable[EventRecord]:
        """What is to be told of programs that have not trained, before the end of the command that ran them."""
        self._begun.look(self._names, trainers)
        self._begun.ends()
        for record in forwarded:
            if isinstance(record, EventRecord):
                self._begun.follow(record)
        return self._begun.news(now_s, exits=own)

    def _look(self) -> None:
        """Take up processes whose hook files have appeared, forget those whose files and selves are gone."""
        try:
            names = os.listdir(self._hook)
        except (FileNotFoundError, NotADirectoryError):
            names = []
        if names == self._names:
            return
        self._names = names
        processes = {process.path.rpartition("/")[2]: process for process in rank_processes(self._run_dir)}
        # A process may remove its hook file before it ends, so one that is watched stays known.
        for name in self._known.keys() - processes.keys() - self._watched.keys():
            del self._known[name]
            self._ended.discard(name)
        self._unseen = {name: what for name, what in self._unseen.items() if name in processes}
        for name, process in processes.items():
            if name not in self._known and name not in self._unseen:
                self._watch(name, process)

    def _look_again(self) -> None:
        """At files that were not whole, and for processes that could not be seen."""
        if not self._unseen:
            return
        now_s = self._clock.monotonic_s()
        due = now_s - self._unseen_at_s >= _UNSEEN_EVERY_S
        if due:
            self._unseen_at_s = now_s
        for name, one in tuple(self._unseen.items()):
            if due or not one.whole:
                self._watch(name, one.process, one.incarnation)

    def _gone(self) -> list[str]:
        """Hook file names of watched processes that have ended, reaped or not: their pidfds are readable."""
        if not self._watched:
            return []
        poll = select.poll()
        for watched in self._watched.values():
            poll.register(watched.pidfd, select.POLLIN)
        ended = {fd for fd, _ in poll.poll(0)}
        return [name for name, watched in self._watched.items() if watched.pidfd in ended] if ended else []

    def _watch(self, name: str, process: RankProcess, incarnation: str | None = None) -> None:
        """Begin to wait for the end of `process`; one that has ended already is known but not watched."""
        self._unseen.pop(name, None)
        header = hook.read_header(process.path)
        if header is None or (sight := self._lookout.look(header)).state == "":
            self._unseen[name] = _Unseen(process, incarnation, header is not None)
            if incarnation is not None:
                self._known[name] = incarnation
            return
        self._known[name] = incarnation or header.incarnation
        if name in self._ended:
            return
        pidfd = self._lookout.pidfd(header) if self._known[name] == header.incarnation else None
        if pidfd is not None and sight.pid is not None:
            self._watched[name] = _Watched(process, sight.pid, pidfd)
        elif sight.state == "X" or self._known[name] != header.incarnation or self._lookout.look(header).state == "X":
            self._unwatched[name] = process
        else:
            self._unseen[name] = _Unseen(process, incarnation, whole=True)

    def _unwatch(self, name: str) -> None:
        watched = self._watched.pop(name, None)
        if watched is not None:
            os.close(watched.pidfd)

    def _exit(self, name: str, now_s: float) -> EventRecord:
        watched = self._watched.get(name)
        process = watched.process if watched else self._unwatched[name]
        status = exit_status(watched.pidfd, watched.pid) if watched else _last_word(process.path)
        incarnation = self._known[name]
        fields: dict[str, str | int | float | bool | None] = {"pid": process.pid, "incarnation": incarnation}
        if status.code is not None:
            fields["code"] = status.code
        if status.signal is not None:
            fields["signal"] = status.signal
        how = status.signal or (f"exit code {status.code}" if status.code is not None else "exit code unknown")
        return EventRecord(
            id=f"exit/{self._scope.node}/{incarnation}",
            job=self._scope.job,
            node=self._scope.node,
            time_s=now_s,
            kind="process_exit",
            rank=process.rank,
            message=f"process {process.pid} of rank {process.rank} ended: {how}",
            fields=fields,
        )

    def _junk_record(self, now_s: float) -> MetricsRecord:
        return MetricsRecord(
            job=self._scope.job,
            node=self._scope.node,
            time_s=now_s,
            devices=("agent",),
            names=("agent_junk_events_count",),
            values=((float(self.junk_lines),),),
        )

    def _forward(self) -> Iterable[Record]:
        """New whole lines of the events file; what is no event of ours is counted and passed over."""
        try:
            found = os.stat(self._events)  # noqa: PTH116 - as above
        except OSError:
            return
        if found.st_ino != self._inode or found.st_size < self._offset:
            # Another file, or one begun anew: read it from its start; readers know events by their ids.
            self._inode, self._offset = found.st_ino, 0
        if found.st_size == self._offset:
            return
        try:
            data = read_part(self._events, self._offset, _READ_BYTES)
        except OSError:  # planted there, or not ours to read: processes are looked at all the same
            return
        whole = data.rfind(b"\n") + 1
        if not whole and len(data) > MAX_RECORD_BYTES:
            whole = len(data)  # no event is that long: pass over it
        for line in data[:whole].split(b"\n"):
            if not line.strip():
                continue
            try:
                yield EVENTS.decode(line)
            except RecordError:
                self.junk_lines += 1
        self._offset += whole


def _last_word(path: str) -> ExitStatus:
    """The exit code that the process itself left in its hook file before it ended."""
    header = hook.read_header(path)
    return ExitStatus(code=header.exit_code) if header is not None else ExitStatus()
