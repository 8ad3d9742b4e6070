"""A watched command: its process, its output, and the signals that are its own.

The command stays in the process group of `watch`, so a terminal works as it would without us. A signal to the whole
group reaches the command by itself, one to `watch` alone does not. Nothing that a handler is told tells the two apart.
The relay of the output (`trainwarden.launching.job_relay`) does: it is of the same group and blocks all signals, so
what was sent to the group waits there too.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from trainwarden.cli.shared.stop_signals import stop_signals
from trainwarden.launching.job_output import LogWriter, OutputSink, PipeReader, join_all
from trainwarden.launching.job_relay import END, LAST_OUTPUT_S
from trainwarden.torchrun.signals import foreign_signals, held_back

SETTLED_S: Final = 0.05  # a signal to all processes of a group or a cgroup is with each of them after so long
ANSWER_S: Final = 2.0  # that the relay may take, on a machine with more work than processors
_END_S: Final = 3.0 * LAST_OUTPUT_S
_BEGUN: Final = b"\0"  # among numbers of signals: the command is there


class PassedOn:
    """Signals to this process, given to the command from a thread of its own, whatever else holds us up.

    Until there is a command they wait; those that ask to end are its first then. The relay is older than the command:
    what it had heard by then says nothing about what the command has.
    """

    def __init__(self) -> None:
        self._stops = {int(number) for number in stop_signals() if signal.getsignal(number) is not signal.SIG_IGN}
        self._source, self._wakeup = os.pipe()
        os.set_blocking(self._wakeup, False)
        self._stopped: list[int] = []
        self._stopped_by: Callable[[int], None] | None = None
        self._job: tuple[subprocess.Popen[bytes], JobOutput] | None = None
        numbers = (*self._stops, *foreign_signals())
        self._before = {number: signal.signal(number, self._come) for number in numbers}
        self._wakeup_before = signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)  # held back while we were imported
        threading.Thread(target=self._run, name="signals", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self._wakeup_before)
        for number, before in self._before.items():
            signal.signal(number, before)
        os.close(self._wakeup)

    def begin(self, child: subprocess.Popen[bytes], output: JobOutput, stopped_by: Callable[[int], None]) -> None:
        """From now on signals are for `child`; `stopped_by` hears of each that asks to end."""
        self._stopped_by = stopped_by
        for number in self._stopped:
            stopped_by(number)
        self._job = child, output
        os.write(self._wakeup, _BEGUN)

    def _come(self, number: int, _frame: object) -> None:
        if number in self._stops:
            self._stopped.append(number)
            if self._stopped_by is not None:
                self._stopped_by(number)

    def _run(self) -> None:
        early, begun = b"", b""
        while come := os.read(self._source, 1):
            time.sleep(SETTLED_S)
            come += _at_once(self._source)
            if not begun:
                before, begun, come = come.partition(_BEGUN)
                early += before
                if begun:
                    self._pass(early, are_first=True)
            self._pass(come)
        os.close(self._source)

    def _pass(self, numbers: bytes, *, are_first: bool = False) -> None:
        if self._job is None:
            return
        child, output = self._job
        for number in dict.fromkeys(numbers):
            if number not in (self._stops if are_first else self._before) or child.poll() is not None:
                continue
            if are_first:
                child.send_signal(number)
                output.has_come_there(number)  # and is forgotten there
            elif not output.has_come_there(number):
                child.send_signal(number)


def _at_once(source: int) -> bytes:
    """What lies in the pipe `source` now."""
    os.set_blocking(source, False)
    try:
        return os.read(source, 4096)
    except BlockingIOError:
        return b""
    finally:
        os.set_blocking(source, True)


class JobOutput:
    """The command's two streams, read by the relay; by threads of ours where there is none any more.

    Parameters
    ----------
    log : Path
        Where both are kept.
    limit_bytes : int
        Most bytes of that log.
    shown : int
        The descriptor that the command's standard output is passed on to; its standard error goes to ours.
    environ : mapping
        Environment of the relay.
    """

    def __init__(self, log: Path, limit_bytes: int, shown: int, environ: Mapping[str, str]) -> None:
        self._log, self._limit_bytes, self._shown = log, limit_bytes, shown
        pipes = (os.pipe(), os.pipe())
        self._sources = tuple(source for source, _ in pipes)
        self.ends = tuple(end for _, end in pipes)
        self._control, far = socket.socketpair()
        self._asking = threading.Lock()
        self._drains: list[PipeReader] = []
        self._logs: LogWriter | None = None
        self._relay = self._start(far, environ)
        far.close()

    def _start(self, far: socket.socket, environ: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
        command = [sys.executable, "-P", "-m", "trainwarden.launching.job_relay"]
        passed = (far.fileno(), *self._sources)
        words = [*map(str, passed), str(self._log), str(self._limit_bytes)]
        try:
            with held_back(tuple(map(int, signal.valid_signals()))):
                return subprocess.Popen(
                    [*command, *words], env=dict(environ), stdin=subprocess.DEVNULL, stdout=self._shown,
                    stderr=sys.stderr, pass_fds=passed,
                )  # fmt: skip
        except OSError:
            return None

    @property
    def pid(self) -> int | None:
        """Process id of the relay."""
        return None if self._relay is None else self._relay.pid

    def begun(self) -> None:
        """The command holds its ends of the pipes."""
        for end in self.ends:
            os.close(end)
        self.tend()

    def tend(self) -> list[str]:
        """Read by ourselves where the relay has gone; sentences about what is not kept then, each once."""
        if not self._drains and (self._relay is None or self._relay.poll() is not None):
            self._logs = LogWriter(self._limit_bytes)
            keep = partial(self._logs.keep, self._log)
            targets = (self._shown, sys.stderr.fileno())
            self._drains = [
                PipeReader(source, OutputSink(target), keep)
                for source, target in zip(self._sources, targets, strict=True)
            ]
        return [] if self._logs is None else self._logs.news()

    def has_come_there(self, number: int) -> bool:
        """Whether signal `number`, which has come to us, was sent to the whole group.

        Without a relay nobody knows: only Ctrl-C is taken for one that was.
        """
        answer = self._ask(number, ANSWER_S)
        return number == signal.SIGINT if answer is None else answer == number

    def end(self) -> None:
        """The command has ended: wait a little for its last words."""
        self._ask(END, _END_S)
        if self._drains and self._logs is not None:
            join_all(self._drains, LAST_OUTPUT_S)
            self._logs.close()

    def _ask(self, word: int, timeout_s: float) -> int | None:
        with self._asking:
            try:
                self._control.settimeout(timeout_s)
                self._control.send(bytes((word,)))
                answer = self._control.recv(1)
            except OSError:
                return None
            return answer[0] if answer else None


def start(command: Sequence[str], environ: Mapping[str, str], output: JobOutput) -> subprocess.Popen[bytes]:
    """Start `command`, which writes to `output`.

    Raises
    ------
    OSError
        If it cannot be started.
    """
    stdout, stderr = output.ends
    return subprocess.Popen(list(command), env=dict(environ), stdout=stdout, stderr=stderr)
