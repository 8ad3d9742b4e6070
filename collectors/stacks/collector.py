"""The stacks of this node's ranks when none of them has moved for long, by py-spy from outside.

What py-spy says of a process, and the one sentence that matters of it.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Final

import msgspec

from trainwarden import rundir
from trainwarden.clock import Clock
from trainwarden.collectors.ranks import ProcessFinder
from trainwarden.collectors.standstill import Patience, Trainer, runs, trainers
from trainwarden.errors import DataError
from trainwarden.protocols import JsonObject, Scope
from trainwarden.records import EventRecord, Record
from trainwarden.settings import Config, PositiveSeconds

MAX_FRAMES: Final = 24  # innermost ones that are told
_MAX_NAME: Final = 80
_LIBRARIES: Final = ("/site-packages/", "/dist-packages/", "/lib/python3")
_FROZEN: Final = "<frozen "  # the interpreter's own, and our hook, which stands between a job and torch


class Frame(msgspec.Struct):
    """One call, `line` 0 if it is not known."""

    name: str
    filename: str
    line: int = 0


class Thread(msgspec.Struct):
    """A thread of Python's, innermost frame first."""

    pid: int
    frames: list[Frame]
    os_thread_id: int | None = None
    thread_name: str | None = None


_DECODER: Final = msgspec.json.Decoder(list[Thread])


def main_thread(said: bytes) -> Thread:
    """The main thread of what ``py-spy dump --json`` has printed.

    Raises
    ------
    DataError
        If it is nothing of the kind, or no thread has frames.
    """
    try:
        threads = [thread for thread in _DECODER.decode(said) if thread.frames]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"py-spy's answer cannot be read: {error}") from error
    for thread in threads:
        if thread.thread_name == "MainThread" or thread.os_thread_id == thread.pid:
            return thread
    if not threads:
        raise DataError("py-spy has found no thread of Python's")
    return threads[0]


def where(frames: Sequence[Frame]) -> str:
    """Where it stands: its innermost call, and the innermost of a file that is no library's.

    Examples
    --------
    >>> wait = Frame("wait", "/usr/lib/python3.11/site-packages/torch/distributed/c10d.py", 31)
    >>> step = Frame("train_step", "/job/train.py", 88)
    >>> where([wait, step])
    'wait (distributed/c10d.py:31), called by train_step (job/train.py:88)'
    >>> where([step])
    'train_step (job/train.py:88)'
    """
    calls = [frame for frame in frames if not frame.filename.startswith(_FROZEN)] or frames
    own = next((frame for frame in calls if not any(part in frame.filename for part in _LIBRARIES)), None)
    inner = said(calls[0])
    return inner if own is None or own is calls[0] else f"{inner}, called by {said(own)}"


def said(frame: Frame) -> str:
    """One frame in words; of its path the last two parts."""
    path = "/".join(PurePosixPath(frame.filename).parts[-2:]).lstrip("/")
    return (
        f"{_plain(frame.name)} ({_plain(path)}:{frame.line})"
        if frame.line > 0
        else f"{_plain(frame.name)} ({_plain(path)})"
    )


def _plain(text: str) -> str:
    """Names of a job's code are its own to choose."""
    return "".join(sign if sign.isprintable() else "?" for sign in text[-_MAX_NAME:])


log = logging.getLogger("trainwarden.agent")

_MAX_BYTES: Final = 4 << 20  # of an answer; a hundred threads are 100 KB
_BUSY_INTERVAL_S: Final = 0.1
_AT_ONCE: Final = 2  # programs that read other processes' memory


class _Asked(msgspec.Struct):
    """A py-spy at work."""

    trainer: Trainer
    pid: int
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    since_s: float


class StacksCollector:
    """Says once in a standstill where the ranks' main threads stand: those that wait for nobody first.

    py-spy reads the memory of a process and neither stops nor enters it, so one that hangs in C answers too. It may
    look into processes of its own user where the kernel lets it (``ptrace_scope``), as root into all.

    Parameters
    ----------
    config : StacksCollector.Config
    scope : Scope
    clock : Clock
    """

    class Config(Config, frozen=True, kw_only=True):
        """When to look, and at how many.

        Attributes
        ----------
        stalled_s, stalled_steps
            Look when no rank has moved for so long, and for so many of the longest recent steps.
        first_step_s, pause_s
            Least standstill before the first step has ended, and in a checkpoint, an evaluation or data loading.
        most : int
            Ranks of this node that are looked at in one standstill.
        timeout_s : float
            A py-spy that has not answered by then is ended.
        command : str
            Where py-spy is; by its name it is looked for beside this Python, then on the path.
        """

        interval_s: Annotated[float, msgspec.Meta(ge=0.02, le=60.0)] = 0.2
        stalled_s: PositiveSeconds = 1.0
        # A hang is declared at three steps and ends with a restart: a look costs the ranks nothing, so it comes before.
        stalled_steps: Annotated[float, msgspec.Meta(ge=1.0, le=1e6)] = 2.0
        first_step_s: PositiveSeconds = 60.0
        pause_s: PositiveSeconds = 10.0
        most: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 16
        timeout_s: PositiveSeconds = 10.0
        command: str = "py-spy"
        proc: str = "/proc"

    def __init__(self, config: Config, scope: Scope, clock: Clock) -> None:
        self._config = config
        self._scope = scope
        self._clock = clock
        self._run_dir = Path(scope.run_dir)
        self._lookout = ProcessFinder(config.proc)
        self._patience = Patience(config.stalled_s, config.stalled_steps, config.first_step_s, config.pause_s)
        self._since_s = 0.0  # of this standstill
        self._looked_at: set[str] = set()  # in this standstill, by rank and incarnation
        self._asked: list[_Asked] = []
        self._ended: list[subprocess.Popen[bytes]] = []  # killed, and perhaps held by the kernel still
        self._said: set[str] = set()

    @property
    def interval_s(self) -> float:
        return min(_BUSY_INTERVAL_S, self._config.interval_s) if self._asked else self._config.interval_s

    def supported(self) -> str | None:
        if not (self._run_dir / rundir.HOOK).is_dir():
            return f"no rank can be known here: there is no folder {self._run_dir / rundir.HOOK}"
        if self._command() is None:
            return f"{self._config.command} is not installed: pip install 'trainwarden[stacks]'"
        return None

    def collect(self, now_s: float) -> Iterable[Record]:
        yield from self._answers(now_s)
        alive = [one for one in trainers(self._run_dir, self._lookout) if runs(one.header, self._lookout)]
        if not alive:
            return
        since_s = max(one.moved_s for one in alive)
        if since_s != self._since_s:
            self._since_s, self._looked_at = since_s, set()
        still_s = now_s - since_s
        if still_s > self._config.stalled_s and still_s > self._patience.of(alive):
            self._ask(alive)

    def wake_fds(self) -> Sequence[int]:
        return ()

    def position(self) -> JsonObject:
        return {"since_s": self._since_s, "looked_at": sorted(self._looked_at)}

    def restore(self, position: JsonObject) -> None:
        self._since_s = float(position.get("since_s", 0.0))
        self._looked_at = {str(one) for one in position.get("looked_at", ())}

    def close(self) -> None:
        for one in self._asked:
            self._end(one)
        self._asked.clear()

    # -- internals -------------------------------------------------------------------------------------------

    def _command(self) -> str | None:
        beside = Path(sys.executable).parent / self._config.command
        return str(beside) if beside.is_file() else shutil.which(self._config.command)

    def _ask(self, alive: Sequence[Trainer]) -> None:
        """Begin to look at ranks that have not been looked at, as many as may be at once."""
        # Who waits in a collective waits for another: what that one does is the news.
        order = sorted(alive, key=lambda one: (one.header.phase == "wait", one.header.rank))
        for one in order:
            if len(self._asked) + len(self._ended) >= _AT_ONCE or len(self._looked_at) >= self._config.most:
                return
            who = f"{one.header.rank}/{one.header.incarnation}"
            pid, command = self._lookout.look(one.header).pid, self._command()
            if who in self._looked_at or pid is None or command is None:
                continue
            self._looked_at.add(who)
            try:
                self._asked.append(self._begin(one, pid, command))
            except OSError as error:
                self._say(f"{command} cannot be started: {error}", one.header.rank)

    def _begin(self, trainer: Trainer, pid: int, command: str) -> _Asked:
        output = tempfile.TemporaryFile()  # a pipe that nobody reads would hold it up  # noqa: SIM115
        try:
            process = subprocess.Popen(
                [command, "dump", "--json", "--nonblocking", "--pid", str(pid)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        except OSError:
            output.close()
            raise
        return _Asked(trainer, pid, process, output, self._clock.monotonic_s())

    def _answers(self, now_s: float) -> Iterator[EventRecord]:
        """The stacks that have come."""
        self._ended = [process for process in self._ended if process.poll() is None]
        for one in list(self._asked):
            late = self._clock.monotonic_s() - one.since_s > self._config.timeout_s
            code = one.process.poll()
            if code is None and not late:
                continue
            self._asked.remove(one)
            one.output.seek(0)
            text = one.output.read(_MAX_BYTES)
            self._end(one)
            header = one.trainer.header
            if self._lookout.look(header).pid != one.pid:
                continue  # the number may have been another's by then
            try:
                if code != 0:
                    why = text.decode(errors="replace").strip().partition("\n")[0][:200]
                    raise DataError(f"py-spy has not answered in {self._config.timeout_s:g} s" if code is None else why)
                yield self._event(one.trainer, text, now_s)
            except DataError as error:
                self._say(f"the stack of a rank cannot be read: {error}", header.rank)

    def _event(self, trainer: Trainer, text: bytes, now_s: float) -> EventRecord:
        header, thread = trainer.header, main_thread(text)
        place = where(thread.frames)
        identity = f"{self._scope.node}/{header.incarnation}/{self._since_s}/{place}"
        return EventRecord(
            id=f"stack/{hashlib.sha256(identity.encode()).hexdigest()[:16]}", job=self._scope.job,
            node=self._scope.node, time_s=now_s, kind="stack", rank=header.rank,
            message=f"rank {header.rank} stands in {place}",
            fields={
                "where": place,
                "stack": "\n".join(said(frame) for frame in thread.frames[:MAX_FRAMES]),
                "incarnation": header.incarnation,
                "since_s": self._since_s,
            },
        )  # fmt: skip

    def _say(self, words: str, rank: int) -> None:
        """Each once."""
        if words not in self._said and len(self._said) < 100:
            self._said.add(words)
            log.warning(words, extra={"fields": {"rank": rank}})

    def _end(self, one: _Asked) -> None:
        """Nobody waits for it: who reads the memory of a process that waits for a disk may wait as long."""
        if one.process.poll() is None:
            one.process.kill()
            self._ended.append(one.process)
        one.output.close()
