"""Programs that fail before they train: which of them the job has failed by, and which have only ended.

Every Python program of a job leaves a file as it begins (`trainwarden.inject`). Most are no ranks: probes, tests,
launchers, tools. So the rule is strict:

- A process that a launcher in Python has started as a rank (torchrun) is one. Any bad end of it is reported at once.
- Of all others only the last failure counts. A program is not blamed if another program of the job has started it, if
  it has started ranks that were reported or trained, if a process trained meanwhile, or if another program begins
  within `HOLD_S` of its end: what it tried is then tried again, or done in another way.
- Of those that are left, an uncaught exception or a signal is reported. An exit code alone is reported of a script
  (``*.py``) or a launcher, and only where no command is watched: a watched command has an exit code of its own.
- Where the watched command itself fails, its end and its output say more than this (`detectors.facts.command`).

A stop by an operator or a scheduler is no failure. A program that ended badly and is not blamed is an `excused` event.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from trainwarden import rundir
from trainwarden.clock import Clock
from trainwarden.collectors.processes.exit_status import ExitStatus, exit_status
from trainwarden.collectors.ranks import ProcessFinder, hook_files, stat_fields
from trainwarden.protocols import JsonObject, Scope
from trainwarden.records import EventKind, EventRecord, Phase, Rank
from trainwarden.torchrun.files import read_part

HOLD_S: Final = 3.0  # a shell, or a person's loop, starts the next program sooner
SLACK_S: Final = 0.25  # an end is seen so much later, and the kernel gives starts in ticks of 10 ms
NOTED_S: Final = (10.0, 60.0, 300.0, 1800.0)  # a program that has run so long without training is reported
FORGET_S: Final = 60.0  # torchrun's plug-in reads the file as well
LATE_S: Final = 60.0  # what ended longer ago, unseen, is of another day
MAX_BYTES: Final = 65_536
MOST: Final = 4_096  # programs of one node that are remembered
SUFFIX: Final = ".begun"
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_STOPS: Final = frozenset({"SIGTERM", "SIGINT", "SIGHUP"})
_STOP_CODES: Final = frozenset({129, 130, 143})
_INTERRUPTS: Final = frozenset({"KeyboardInterrupt", "SystemExit", "SignalException"})
# What a launcher raises because a child has failed: the child's own words are the cause.
_OF_LAUNCHERS: Final = frozenset(
    {"ChildFailedError", "CalledProcessError", "ProcessRaisedException", "ProcessExitedException"}
)


class Raised(msgspec.Struct, frozen=True):
    """The uncaught exception of a program, as its file has it."""

    exception: str
    time_s: float
    message: str = ""
    frame: str = ""
    types: str = ""
    causes: str = ""
    path: str = ""
    mount: str = ""
    file_system: str = ""
    free_bytes: int | None = None
    size_bytes: int | None = None


class _Code(msgspec.Struct, frozen=True):
    code: int


class Begun(msgspec.Struct, frozen=True):
    """Who a program is, by the first line of its file; with the names by which `ProcessFinder` knows processes."""

    pid: int
    ticks: int
    namespace: int
    rank: Rank
    parent: int = 0  # the nearest program of the job above it
    ppid: int = 0
    is_rank: bool = False
    launched: bool = False
    script: str = ""

    @property
    def incarnation(self) -> str:
        """Its identity in records, as torchrun's plug-in has it as well."""
        return f"{self.pid}-t{self.ticks}"

    @property
    def phase(self) -> Phase:
        return "start"

    @property
    def start_ticks(self) -> int:
        return self.ticks

    @property
    def pid_namespace(self) -> int:
        return self.namespace

    @property
    def start_monotonic_s(self) -> float:
        return self.ticks / _TICKS - time.clock_gettime(time.CLOCK_BOOTTIME) + time.monotonic()


def read_begun(path: str) -> tuple[Begun, Raised | None, int | None] | None:
    r"""Who a program is, the exception and the exit code that it has left; None if the file is not (yet) one of ours.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(b'{"pid": 7, "ticks": 9, "namespace": 1, "rank": 0, "script": "a.py"}\n{"code": 3}\n')
    ...     file.flush()
    ...     begun, raised, code = read_begun(file.name)
    >>> begun.script, raised, code
    ('a.py', None, 3)
    """
    try:
        first, *rest = read_part(path, 0, MAX_BYTES).split(b"\n")
        begun = msgspec.json.decode(first, type=Begun)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    raised, code = None, None
    for line in rest:
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            if line.startswith(b'{"code"'):
                code = msgspec.json.decode(line, type=_Code).code
            elif line:
                raised = msgspec.json.decode(line, type=Raised)
    return begun, raised, code


class _Program(msgspec.Struct):
    """One program: what its file said last, and what has become of it. Times are monotonic seconds."""

    path: str
    begun: Begun
    began_s: float
    raised: Raised | None = None
    code: int | None = None
    pid: int | None = None  # here
    pidfd: int = -1
    status: ExitStatus | None = None  # of an ended one
    ended_s: float | None = None
    launched: bool = False  # a launcher's own child: a rank for sure
    trained: bool = False
    reported: bool = False  # its bad end
    noted: int = 0  # how often it was reported that it does not train
    settled_s: float | None = None

    @property
    def top(self) -> bool:
        """Whether no program of ours has started it."""
        return not self.begun.parent

    @property
    def failed(self) -> bool:
        """Whether it has ended badly, and was not stopped."""
        status = self.status
        if status is None or status.signal in _STOPS or status.code == 0:
            return False
        if self.raised is not None:
            return self.raised.exception not in _INTERRUPTS
        code = self.code if status.code is None else status.code
        return status.signal is not None or (bool(code) and code not in _STOP_CODES)

    @property
    def silent(self) -> bool:
        """Whether it ended without the end of its interpreter, and the kernel does not say how."""
        unknown = self.status is not None and self.status.code is None and self.status.signal is None
        return unknown and self.raised is None and self.code is None and os.path.lexists(self.path)

    @property
    def own_exception(self) -> Raised | None:
        """Its exception, unless that only says that a child has failed."""
        return None if self.raised is None or self.raised.exception in _OF_LAUNCHERS else self.raised

    @property
    def how(self) -> str:
        """How it ended, in words."""
        code = self.code if self.status is None or self.status.code is None else self.status.code
        if self.own_exception is not None:
            return self.own_exception.message[:200]
        if self.status is not None and self.status.signal is not None:
            return self.status.signal
        return "nobody knows how" if code is None else f"exit code {code}"


class BegunPrograms:
    """The programs of this node that have not trained, and what is to be reported of their ends.

    Parameters
    ----------
    run_dir : Path
    scope : Scope
    clock : Clock
    finder : ProcessFinder
    """

    def __init__(self, run_dir: Path, scope: Scope, clock: Clock, finder: ProcessFinder) -> None:
        self._run_dir, self._scope, self._clock, self._finder = run_dir, scope, clock, finder
        self._programs: dict[str, _Program] = {}  # by file name
        self._settled: set[str] = set()  # names whose end was dealt with before a restart
        self._alive_s: dict[str, float] = {}  # the newest trainers, by file name: when they were last seen alive
        self._names: list[str] = []  # in the hook's folder at the last look
        self._trainers: set[int] = set()  # pids, as their own hook files say, of those there
        self._command: bool | None = None  # whether a command is watched, and goes on: None: there is none
        self._exit_code: int | None = None
        self._interrupted = False  # a person or a scheduler has ended the command

    @property
    def fds(self) -> list[int]:
        """What is readable once a program has ended."""
        return [one.pidfd for one in self._programs.values() if one.pidfd >= 0]

    def position(self) -> JsonObject:
        """What has been dealt with."""
        done = {name for name, one in self._programs.items() if one.settled_s is not None}
        return {"settled": sorted(done | self._settled), "command": self._command}

    def restore(self, position: object) -> None:
        """Go on from `position`."""
        found = position if isinstance(position, dict) else {}
        self._settled = {str(name) for name in found.get("settled", ())}
        self._command = found.get("command") if isinstance(found.get("command"), bool) else None

    def close(self) -> None:
        """Let go of all processes. Safe twice."""
        for one in self._programs.values():
            _release(one)

    def look(self, names: list[str], trainers: Collection[str]) -> None:
        """Take up new programs of the hook's folder, which holds `names`; `trainers` are hook files of living ones."""
        now_s = self._clock.monotonic_s()
        self._alive_s.update(dict.fromkeys(trainers, now_s))
        for name in list(self._alive_s)[: max(0, len(self._alive_s) - MOST)]:
            del self._alive_s[name]
        if names != self._names:  # file names are anybody's, so only those of trusted owners count
            self._names = names
            self._trainers = {int(entry.name.split("-")[2].split(".")[0]) for entry in hook_files(self._run_dir)}
        there = {name for name in names if name.endswith(SUFFIX)}
        self._settled &= there
        new = there - self._programs.keys() - self._settled
        for entry in hook_files(self._run_dir, SUFFIX) if new else ():
            if entry.name in new and len(self._programs) < MOST:
                self._take_up(entry.name, entry.path, now_s)
        for one in self._programs.values():
            one.trained = one.trained or one.begun.pid in self._trainers

    def _take_up(self, name: str, path: str, now_s: float) -> None:
        found = read_begun(path)
        if found is None:
            return  # not whole yet
        begun, raised, code = found
        one = _Program(path, begun, min(now_s, begun.start_monotonic_s), raised, code)
        one.launched = begun.launched or (begun.is_rank and begun.ppid == self._torchrun())
        sight = self._finder.look(begun)
        if sight.state == "":
            return  # not to be seen from here, or not yet
        self._programs[name] = one
        pidfd = None if sight.gone else self._finder.pidfd(begun)
        if pidfd is not None:
            one.pid, one.pidfd = sight.pid, pidfd
            return
        self._end(one, ExitStatus(), now_s)
        one.settled_s = now_s if one.ended_s is None or now_s - one.ended_s > LATE_S else None

    def _torchrun(self) -> int | None:
        """The pid of the torchrun of our rendezvous, which leaves no file of a program here."""
        with suppress(OSError, ValueError, TypeError, AttributeError):
            pid = msgspec.json.decode(read_part(self._run_dir / rundir.TORCHRUN, 0, MAX_BYTES)).get("pid")
            return pid if isinstance(pid, int) and pid > 0 else None
        return None

    def ends(self) -> None:
        """See which programs have ended."""
        now_s = self._clock.monotonic_s()
        poll = select.poll()
        known = {one.pidfd: one for one in self._programs.values() if one.pidfd >= 0}
        for pidfd in known:
            poll.register(pidfd, select.POLLIN)
        for pidfd, _ in poll.poll(0) if known else ():
            one = known[pidfd]
            self._end(one, exit_status(pidfd, one.pid or 0), now_s)
            _release(one)

    def _end(self, one: _Program, status: ExitStatus, now_s: float) -> None:
        one.status, one.ended_s = status, now_s
        if (found := read_begun(one.path)) is not None:
            one.begun, one.raised, one.code = found
            with suppress(OSError):
                if one.raised is not None or one.code is not None:  # by the disk's own clock
                    one.ended_s -= max(0.0, time.time() - os.stat(one.path).st_mtime)  # noqa: PTH116

    def follow(self, event: EventRecord) -> None:
        """See the begin and the end of a watched command."""
        if event.kind == "job_start":
            self._command, self._exit_code, self._interrupted = True, None, False
        elif event.kind == "job_end":
            code = event.fields.get("exit_code")
            self._command, self._exit_code = False, code if isinstance(code, int) else None
            self._interrupted = bool(event.fields.get("interrupted"))

    def news(self, now_s: float, *, exits: bool) -> Iterator[EventRecord]:
        """What is to be reported now; `exits`: no other program reports how ranks end."""
        mono_s = self._clock.monotonic_s()
        for name, one in list(self._programs.items()):
            if one.settled_s is not None and mono_s - one.settled_s >= FORGET_S:
                self._forget(name, one)
        pending = [one for one in self._programs.values() if one.settled_s is None]
        for one in sorted(pending, key=lambda one: (not one.launched, one.began_s)):
            if one.ended_s is None:
                yield from self._note(one, now_s, mono_s - one.began_s)
            elif one.trained or not (one.failed or one.silent):
                one.settled_s = mono_s
                if one.noted and not one.trained:
                    yield self._excused(one, now_s, "it did not fail")
            elif one.launched:
                if not self._awaits_end(one, mono_s):
                    one.settled_s, one.reported = mono_s, not self._interrupted
                    yield from () if self._interrupted else self._reported(one, now_s, exits=exits)
            elif one.top or one.begun.is_rank:
                yield from self._last_word(one, now_s, mono_s)
            elif self._is_over(one):
                one.settled_s = mono_s

    def _awaits_end(self, one: _Program, mono_s: float) -> bool:
        """Whether the command's end may show that a killed rank was stopped: launchers kill the ranks that are left."""
        killed = one.status is not None and one.status.signal == "SIGKILL"
        return killed and self._command is True and mono_s - (one.ended_s or 0.0) < HOLD_S

    def _note(self, one: _Program, now_s: float, for_s: float) -> Iterator[EventRecord]:
        """Report that a program runs and does not train; its processor time says whether it works or sleeps."""
        passed = sum(for_s >= noted_s for noted_s in NOTED_S)
        if passed > one.noted and self._may_train(one):
            one.noted = passed
            used = stat_fields(f"/proc/{one.pid}/stat")
            used_s = sum(map(int, used[11:13])) / _TICKS if used else 0.0
            said = (
                f"{_who(one)} has run for {NOTED_S[passed - 1]:.0f} s and not trained yet, {used_s:.1f} s on processors"
            )
            yield self._event("process_begun", one, now_s, said, for_s=NOTED_S[passed - 1])

    def _may_train(self, one: _Program) -> bool:
        started_ranks = any(other.begun.is_rank for other in self._below(one))
        return not one.trained and not started_ranks and (one.top or one.begun.is_rank)

    def _is_over(self, one: _Program) -> bool:
        """Whether nothing needs the end of this child any more."""
        ended_s = 0.0 if one.ended_s is None else one.ended_s
        return self._command is False or self._clock.monotonic_s() - ended_s >= FORGET_S

    def _last_word(self, one: _Program, now_s: float, mono_s: float) -> Iterator[EventRecord]:
        over = self._command is False
        if not over and mono_s - (one.ended_s or 0.0) < HOLD_S:
            return
        one.settled_s = mono_s
        if over and (self._exit_code or self._interrupted):
            return  # the end of the command says more
        excuse = self._excuse(one) or ("how it ended is not known" if one.silent else "")
        if excuse:
            yield self._excused(one, now_s, excuse)
        else:
            one.reported = True
            yield from self._reported(one, now_s, exits=True)

    def _excused(self, one: _Program, now_s: float, excuse: str) -> EventRecord:
        said = f"{one.begun.script} ended before it trained: {one.how}"
        return self._event("process_exit", one, now_s, said, rank=None, excused=excuse)

    def _excuse(self, one: _Program) -> str:
        """Why a program that ended badly is not what the job has failed by; empty if it is."""
        ended_s, below = one.ended_s or 0.0, self._below(one)
        if any(other.reported or other.trained for other in below):
            return "its ranks are reported"
        whose = f"rank-{one.begun.rank}-" if one.begun.is_rank else ""
        if any(alive_s > one.began_s + SLACK_S and name.startswith(whose) for name, alive_s in self._alive_s.items()):
            return "a process trained meanwhile"
        others = [other for other in self._programs.values() if other is not one and other not in below]
        later = [other for other in others if other.top and other.began_s >= ended_s - SLACK_S]
        if any(not one.begun.is_rank or other.begun.rank == one.begun.rank for other in later):
            return "another program was started in its place"
        return "" if self._has_reason(one) else self._of_code(one, below)

    def _has_reason(self, one: _Program) -> bool:
        return self._exception(one) is not None or (one.status is not None and one.status.signal is not None)

    def _of_code(self, one: _Program, below: list[_Program]) -> str:
        launcher = any(other.begun.is_rank or other.failed for other in below)
        if self._command is not None:
            return "it gave no reason, and the command has an exit code of its own"
        if not (launcher or one.begun.script.endswith(".py")):
            return "it gave no reason, and is no script"
        return ""

    def _exception(self, one: _Program) -> Raised | None:
        """The exception that a program, or else what it has started, has ended by."""
        found = [other.own_exception for other in self._below(one) if other.failed]
        newest = max((one for one in found if one is not None), key=lambda one: one.time_s, default=None)
        return one.own_exception or newest

    def _below(self, one: _Program) -> list[_Program]:
        """All that a program has started, and what that has started."""
        found: list[_Program] = []
        pids, namespace = {one.begun.pid}, one.begun.namespace
        for other in sorted(self._programs.values(), key=lambda other: other.began_s):
            is_child = other is not one and other.begun.parent in pids and other.begun.namespace == namespace
            if is_child and other.began_s >= one.began_s - SLACK_S:
                found.append(other)
                pids.add(other.begun.pid)
        return found

    def _reported(self, one: _Program, now_s: float, *, exits: bool) -> Iterator[EventRecord]:
        raised = self._exception(one) if not one.launched else one.own_exception
        if raised is not None:
            fields = msgspec.to_builtins(raised)
            text, time_s = fields.pop("message"), fields.pop("time_s")
            fields["type"] = fields.pop("exception")
            yield self._event("exception", one, min(time_s, now_s), text, **fields)
        if exits:
            status = one.status or ExitStatus()
            code = one.code if status.code is None else status.code
            how = {"signal": status.signal} if status.signal is not None else {} if code is None else {"code": code}
            yield self._event("process_exit", one, now_s, f"{_who(one)} ended before it trained: {one.how}", **how)

    def _event(
        self, kind: EventKind, one: _Program, time_s: float, message: str, /, *, rank: int | None = -1, **fields: object
    ) -> EventRecord:
        begun = one.begun
        first = {"process_exit": "exit", "process_begun": "begun"}.get(kind, kind)
        age_s = self._clock.monotonic_s() - one.began_s
        facts = {
            "pid": begun.pid, "incarnation": begun.incarnation, "script": begun.script, "untrained": True,
            "began_s": self._clock.now_s() - age_s,
        }  # fmt: skip
        return EventRecord(
            id=f"{first}/{self._scope.node}/{begun.incarnation}" + (f"/{one.noted}" if kind == "process_begun" else ""),
            job=self._scope.job, node=self._scope.node,
            time_s=time_s, kind=kind, rank=begun.rank if rank == -1 else rank, message=message[:2000],
            fields={**facts, **fields},  # type: ignore[dict-item]
        )  # fmt: skip

    def _forget(self, name: str, one: _Program) -> None:
        del self._programs[name]
        with suppress(OSError):
            os.unlink(one.path)  # noqa: PTH108 - as everywhere in this folder


def _who(one: _Program) -> str:
    return f"rank {one.begun.rank} ({one.begun.script})"


def _release(one: _Program) -> None:
    if one.pidfd >= 0:
        os.close(one.pidfd)
        one.pidfd = -1
