"""The table: what happens, how it is started, and the answer that is due."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

TRAIN: Final = Path(__file__).with_name("train.py")
WATCH: Final = [sys.executable, "-m", "trainwarden.cli.main", "watch"]
TORCHRUN: Final = [
    sys.executable, "-m", "torch.distributed.run", "--master-addr", "127.0.0.1", "--master-port", "0",
    "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--nproc-per-node",
]  # fmt: skip
LIMIT_S: Final = 420.0
SETTLING_S: Final = 3.0  # steps that a job has done before it is stopped or blinded
BUSY_LOOPS: Final = 8
_BUSY: Final = "while True: pass"


@dataclass(frozen=True)
class Situation:
    """One row.

    `codes` are exit codes that are right (None: any but 0); `kinds` the kinds that the one incident may have, none
    where there is to be no incident; `meddle` is done to the running watch; `wants_torch` says that also the plain loop
    trains with torch; `busy_loops` run beside the job.
    """

    name: str
    answer: str
    kinds: frozenset[str] = frozenset()
    codes: tuple[int, ...] | None = None
    names_rank: bool = False
    meddle: Callable[[psutil.Process, Path], None] | None = None
    shell: str | None = None
    wants_torch: bool = False
    busy_loops: int = 0

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is wrong with the job, so that each incident is a false one."""
        return not self.kinds


def interrupt(watch: psutil.Process, _folder: Path) -> None:
    os.killpg(watch.pid, signal.SIGINT)


def terminate(watch: psutil.Process, _folder: Path) -> None:
    watch.terminate()


def terminate_once_told(watch: psutil.Process, folder: Path) -> None:
    """End a job that would not end by itself, once the incident is on the screen."""
    until_s = time.monotonic() + LIMIT_S / 2
    while time.monotonic() < until_s and b"[incident opened]" not in (folder / "log").read_bytes():
        time.sleep(0.2)
    watch.terminate()


def kill_detector(watch: psutil.Process, _folder: Path) -> None:
    for child in watch.children(recursive=True):
        if "detector" in child.cmdline():
            child.kill()


def _fails(name: str, *kinds: str, **more: Any) -> Situation:
    return Situation(name, "incident", frozenset(kinds), names_rank=True, **more)


SITUATIONS: Final = (
    _fails("missing-import", "user_error"),
    _fails("bad-argument", "user_error", "crash"),
    _fails("division", "exception"),
    _fails("missing-file", "user_error"),
    _fails("port-in-use", "user_error"),
    _fails("out-of-memory", "out_of_memory"),
    _fails("child-fails", "exception", "crash"),
    _fails("exception", "exception"),
    _fails("killed", "crash"),
    _fails("hang", "hang", meddle=terminate_once_told),
    _fails("loader-20", "data_stall", codes=(0,), wants_torch=True),
    _fails("loader-60", "data_stall", codes=(0,), wants_torch=True),
    Situation(  # one rank has no peers: that the job has become slower is all that can be known
        "slow-rank", "incident", frozenset({"slow_compute", "slow_job"}), (0,), names_rank=True
    ),
    _fails("leak", "memory_leak", codes=(0,), wants_torch=True),
    _fails("leak-to-end", "memory_leak", wants_torch=True),
    _fails("disk-full", "storage", "checkpoint", wants_torch=True),
    Situation("nan-loss", "incident", frozenset({"silent_corruption", "exception"}), (0,), wants_torch=True),
    Situation("clean", "healthy", codes=(0,)),
    Situation("pauses", "healthy", codes=(0,), wants_torch=True),
    Situation("load-8", "healthy", codes=(0,), wants_torch=True, busy_loops=BUSY_LOOPS),
    Situation("ctrl-c", "healthy", meddle=interrupt),
    Situation("sigterm", "healthy", meddle=terminate),
    Situation("detector-killed", "not judged", codes=(0,), meddle=kill_detector),
)
SHELL: Final = (
    Situation("shell-script", "incident", frozenset({"user_error"}), (127,), shell="no-such-command-of-mine"),
    Situation("shell-exit", "incident", frozenset({"crash"}), (7,), shell="echo working; exit 7"),
    Situation("no-steps", "not judged", codes=(0,), shell="sleep 1"),
)
RANKS: Final = {"python": 1, "torchrun 2": 2, "torchrun 4": 4, "HF Trainer": 1}


def command_of(situation: Situation, how: str) -> list[str]:
    """What is watched."""
    if situation.shell is not None:
        return ["sh", "-c", situation.shell]
    if how == "HF Trainer":
        return [sys.executable, str(TRAIN), situation.name, "trainer"]
    if how == "python":
        return [sys.executable, str(TRAIN), situation.name, "torch" if situation.wants_torch else "alone"]
    return [*TORCHRUN, str(RANKS[how]), str(TRAIN), situation.name, "torch"]


@dataclass
class Cell:
    """What was answered, and whether that is right."""

    situation: Situation
    how: str
    code: int
    made: dict[str, Any] = field(default_factory=dict)
    wall_s: float = 0.0
    log: str = ""
    fault_at_s: float | None = None

    @property
    def incidents(self) -> list[dict[str, Any]]:
        """Those that count: that the host is contended is said of the node, and is right where busy loops run."""
        found: list[dict[str, Any]] = self.made.get("incidents", [])
        if not self.situation.busy_loops:
            return found
        return [one for one in found if one["kind"] != "host_contention" or self._ranks_of(one)]

    @property
    def answered_after_s(self) -> float | None:
        """From the fault to the incident; None without one, or where nobody noted when the fault was."""
        if self.situation.is_healthy or not self.incidents or self.fault_at_s is None:
            return None
        return float(self.incidents[0]["opened_at_s"]) - self.fault_at_s

    @property
    def wrong(self) -> str | None:
        """What is wrong; None if all is right."""
        due, found = self.situation, self.incidents
        kinds = [one["kind"] for one in found]
        if not due.kinds and kinds:
            return f"false incidents {kinds}"
        if due.kinds and (len(kinds) != 1 or kinds[0] not in due.kinds):
            return f"incidents {kinds}"
        is_stopped = due.meddle in (interrupt, terminate)
        if self.made.get("answer") != due.answer and not (is_stopped or due.busy_loops):
            return f"answer {self.made.get('answer')!r}"
        if due.codes is not None and self.code not in due.codes:
            return f"exit code {self.code}"
        if is_stopped and self.made.get("interrupted") is None:
            return "not said to be interrupted"
        return self._wrong_rank() if due.names_rank else None

    def _wrong_rank(self) -> str | None:
        last = RANKS.get(self.how, 1) - 1
        named = self._ranks_of(self.incidents[0])[:1]
        if named == [last] or (self.incidents[0]["kind"] == "slow_job" and last == 0):
            return None
        return f"suspects {named}"

    @staticmethod
    def _ranks_of(incident: dict[str, Any]) -> list[int | None]:
        return [one["rank"] for one in incident["suspects"] if one["rank"] is not None]


def run(situation: Situation, how: str, folder: Path, packages: Path | None = None) -> Cell:
    """Watch one situation to its end; `packages` is where Hugging Face's are, if not installed."""
    folder.mkdir(parents=True)
    out = folder / "out.json"
    environ = {**os.environ, "XDG_STATE_HOME": str(folder), "FIRST_HOUR_FOLDER": str(folder), "OMP_NUM_THREADS": "1"}
    if packages is not None:
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(packages), environ.get("PYTHONPATH", ""))))
    command = [*WATCH, "--json", str(out), "--", *command_of(situation, how)]
    began_s = time.monotonic()
    with busy_loops(situation.busy_loops), (folder / "log").open("wb") as log:
        watch = psutil.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)
        code = _wait(watch, situation, folder)
    made = json.loads(out.read_text()) if out.exists() else {}
    text = (folder / "log").read_text(errors="replace")
    fault = folder / "fault_at"
    fault_at_s = float(fault.read_text()) if fault.exists() else None
    return Cell(situation, how, code, made, time.monotonic() - began_s, text[-3_000:], fault_at_s)


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """`count` processes that compute and compute."""
    busy = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for one in busy:
            one.kill()
            one.wait()


def _wait(watch: psutil.Popen, situation: Situation, folder: Path) -> int:
    """Meddle, and wait for the end; the exit code."""
    try:
        if situation.meddle is not None:
            wait_for_steps(folder, watch)
            situation.meddle(watch, folder)
        return int(watch.wait(LIMIT_S))
    except (psutil.TimeoutExpired, subprocess.TimeoutExpired):
        os.killpg(watch.pid, signal.SIGKILL)
        return int(watch.wait())


def wait_for_steps(folder: Path, watch: psutil.Process) -> None:
    """Until a rank has a hook file, and then some steps more."""
    until_s = time.monotonic() + LIMIT_S / 2
    while time.monotonic() < until_s and watch.is_running():
        if any(folder.glob("trainwarden/runs/*/hook/*.hook")):
            time.sleep(SETTLING_S)
            return
        time.sleep(0.1)
