"""A torchrun with our rendezvous on this machine: its process, its place, the signals to its ranks, its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import psutil

from trainwarden import rundir
from trainwarden.cli.run.job_run import JobRun, exit_code_of
from trainwarden.cli.shared.machine import PACKAGE, user
from trainwarden.clock import SystemClock
from trainwarden.errors import LauncherError, WardenError
from trainwarden.records import EventRecord
from trainwarden.topics import EVENTS
from trainwarden.torchrun.files import last_lines, read_whole

if TYPE_CHECKING:
    from trainwarden.actions.launchers.torchrun.client import JobClient

STOPPED_CODE: Final = 143
GAVE_UP_CODE: Final = 75  # actions/launchers/torchrun/table.py
TORCHRUN_STOP_S: Final = 35.0  # torchrun itself kills its ranks after 30
STOP_WAIT_S: Final = 5.0  # for a service that is to end the job everywhere
PLACE_BYTES: Final = 1024 * 1024
EVENTS_BYTES: Final = 64 * 1024 * 1024  # the last attempt is at the end
RANK: Final = PACKAGE / "torchrun" / "rank.py"
DEVICES: Final = ("/dev/nvidiactl", "/dev/kfd")  # a process that is forked from one that knows a device cannot use it


def ranks_words(command: Sequence[str], devices: Sequence[str] = DEVICES) -> list[str]:
    """The words of torchrun that start `command` as a rank: a script is forked from a process that has torch already.

    Where that is not safe, on machines with a device and for what is no script, each rank starts by itself.

    Examples
    --------
    >>> ranks_words(["bash", "train.sh"])[0], ranks_words(["python", "-m", "train"])[0]
    ('--no-python', '--no-python')
    """
    first = sys.executable if command[0] in ("python", "python3") else command[0]
    script = command[1] if len(command) > 1 else "-"
    ours = first == sys.executable and not script.startswith("-") and Path(script).is_file()
    if ours and not any(Path(one).exists() for one in devices):
        return ["--start-method=fork", "--run-path", str(RANK), "fork", *command[1:]]
    return ["--no-python", sys.executable, "-I", "-S", str(RANK), "exec", "0", first, *command[1:]]


class Torchrun:
    """Starts torchrun with `words`, which ends with this process; `tend` is to be called again and again.

    Parameters
    ----------
    streams : tuple of two descriptors or files
        Its standard output and standard error.
    say : callable
        Called with each new place of this node in the job's rounds, for people.
    client : callable
        The way to the job's rendezvous, by which a stop goes to all nodes.
    """

    def __init__(
        self, run: JobRun, words: Sequence[str], environ: Mapping[str, str], *,
        streams: tuple[IO[bytes] | int, IO[bytes] | int], say: Callable[[str], None], client: Callable[[], JobClient],
    ) -> None:  # fmt: skip
        self._run, self._say, self._client = run, say, client
        ends_with_us = [sys.executable, "-I", "-S", str(RANK), "exec", str(os.getpid())]
        self._process = subprocess.Popen(
            [*ends_with_us, sys.executable, "-P", "-m", "torch.distributed.run", *words], env=dict(environ),
            stdout=streams[0], stderr=streams[1], stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        run.beside.add(self._process.pid)
        self._asked_s: float | None = None
        self._forced = False
        self.place: dict[str, Any] = {}

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def tend(self) -> None:
        """Say which place it has in the round, where that is new, and go on with a stop."""
        with suppress(OSError, ValueError):
            place = json.loads(read_whole(self._run.run_dir / rundir.TORCHRUN, PLACE_BYTES))
            if "attempt" in place and place != self.place:
                self.place = place
                why = f" ({place['why']})" if place["why"] else ""
                number = f"node {place['node_rank']} of {place['nodes']}"
                self._say(f"trainwarden: attempt {place['attempt'] + 1}: ranks start here, on {number}{why}")
        if self._asked_s is None:
            return
        # No service has it stopped, or torchrun does not hear.
        if time.monotonic() - self._asked_s - STOP_WAIT_S > self._run.settings.launch.stop_grace_s:
            self._process.send_signal(signal.SIGKILL if self._forced else signal.SIGTERM)
            self._forced, self._asked_s = True, time.monotonic() + TORCHRUN_STOP_S

    def pass_on(self, numbers: Sequence[int]) -> None:
        """Give signals to the ranks, which are torchrun's children; torchrun itself would end by them."""
        if numbers:
            with suppress(psutil.Error):
                for child in psutil.Process(self._process.pid).children():
                    for number in numbers:
                        child.send_signal(number)

    def stop(self) -> None:
        """Have the job end on all nodes. Safe twice."""
        if self._asked_s is None:
            self._asked_s = time.monotonic() if self._stop_everywhere() else float("-inf")

    def _stop_everywhere(self) -> bool:
        from trainwarden.actions.launchers.torchrun.client import Patient

        settings = self._run.settings
        try:
            asked = Patient(self._client(), SystemClock(), 1.0)
            report = asked.carry_out("stop", settings.job, f"{settings.node} was stopped", by=user())
        except LauncherError:
            return False
        return report.state in ("accepted", "done")

    def end(self) -> int:
        """Wait for its end; the exit code that a shell would show."""
        return exit_code_of(self._process.wait())


def failed_rank_code(run_dir: Path) -> int | None:
    """The exit code, as a shell shows it, of the first rank that failed in the last attempt; None if none has."""
    found: int | None = None
    for line in last_lines(run_dir / rundir.EVENTS, EVENTS_BYTES):
        with suppress(WardenError, ValueError):
            event = EVENTS.decode(line.encode())
            if event.kind == "restart" and event.fields.get("stage") == "started":
                found = None
            elif event.kind == "process_exit" and found is None:
                found = _code_of(event)
    return found


def _code_of(event: EventRecord) -> int | None:
    code, name = event.fields.get("code"), event.fields.get("signal")
    if event.fields.get("asked") or event.fields.get("renewed") or (not code and not name):
        return None
    if name is None:
        return int(str(code))
    try:
        return 128 + signal.Signals[str(name)].value
    except KeyError:
        return 128 + int(str(name).removeprefix("SIG") or 0)
