"""The table: what happens, how it is started, and the answer that is due."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

TRAIN: Final = Path(__file__).with_name("train.py")
WATCH: Final = [sys.executable, "-m", "trainwarden.cli.main", "watch"]
LIMIT_S: Final = 240.0
BEGUN_S: Final = 6.0  # of what is stopped or blinded on the way


@dataclass(frozen=True)
class Situation:
    """One row.

    `codes` are exit codes that are right (None: any but 0); `kinds` the kinds that the one incident may have, none
    where there is to be no incident; `meddle` is done to the running watch.
    """

    name: str
    answer: str
    kinds: frozenset[str] = frozenset()
    codes: tuple[int, ...] | None = None
    names_rank: bool = False
    meddle: Callable[[psutil.Process], None] | None = None
    shell: str | None = None


def interrupt(watch: psutil.Process) -> None:
    os.killpg(watch.pid, signal.SIGINT)


def terminate(watch: psutil.Process) -> None:
    watch.terminate()


def kill_detector(watch: psutil.Process) -> None:
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
    Situation("clean", "healthy", codes=(0,)),
    Situation("ctrl-c", "healthy", meddle=interrupt),
    Situation("sigterm", "healthy", meddle=terminate),
    Situation("detector-killed", "not judged", codes=(0,), meddle=kill_detector),
)
SHELL: Final = (
    Situation("shell-script", "incident", frozenset({"user_error"}), (127,), shell="no-such-command-of-mine"),
    Situation("shell-exit", "incident", frozenset({"crash"}), (7,), shell="echo working; exit 7"),
    Situation("no-steps", "not judged", codes=(0,), shell="sleep 1"),
)
HOWS: Final[dict[str, list[str]]] = {
    "python": [sys.executable, str(TRAIN)],
    "torchrun 2": [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1",
        "--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", str(TRAIN),
    ],
}  # fmt: skip


@dataclass
class Cell:
    """What was answered, and whether that is right."""

    situation: Situation
    how: str
    code: int
    made: dict[str, Any] = field(default_factory=dict)
    wall_s: float = 0.0
    log: str = ""

    @property
    def wrong(self) -> str | None:
        """What is wrong; None if all is right."""
        due, found = self.situation, self.made.get("incidents", [])
        kinds = [one["kind"] for one in found]
        if self.made.get("answer") != due.answer and not (due.meddle in (interrupt, terminate) and not kinds):
            return f"answer {self.made.get('answer')!r}"
        if due.kinds and (len(kinds) != 1 or kinds[0] not in due.kinds):
            return f"incidents {kinds}"
        if not due.kinds and kinds:
            return f"false incidents {kinds}"
        if due.codes is not None and self.code not in due.codes:
            return f"exit code {self.code}"
        rank = 0 if self.how == "python" else 1
        if due.names_rank and (named := [one["rank"] for one in found[0]["suspects"][:1]]) != [rank]:
            return f"suspects {named}"
        if due.meddle in (interrupt, terminate) and self.made.get("interrupted") is None:
            return "not said to be interrupted"
        return None


def run(situation: Situation, how: str, folder: Path) -> Cell:
    """Watch one situation to its end."""
    folder.mkdir(parents=True)
    command = ["sh", "-c", situation.shell] if situation.shell else [*HOWS[how], situation.name]
    out = folder / "out.json"
    environ = {**os.environ, "XDG_STATE_HOME": str(folder), "OMP_NUM_THREADS": "1"}
    began_s = time.monotonic()
    with (folder / "log").open("wb") as log:
        watch = psutil.Popen(
            [*WATCH, "--json", str(out), "--", *command], env=environ, stdout=log, stderr=log, start_new_session=True
        )
        try:
            if situation.meddle is not None:
                _wait_for_steps(folder, watch)
                situation.meddle(watch)
            code = watch.wait(LIMIT_S)
        except (psutil.TimeoutExpired, subprocess.TimeoutExpired):
            os.killpg(watch.pid, signal.SIGKILL)
            code = watch.wait()
    made = json.loads(out.read_text()) if out.exists() else {}
    text = (folder / "log").read_text(errors="replace")
    return Cell(situation, how, code, made, time.monotonic() - began_s, text[-3_000:])


def _wait_for_steps(folder: Path, watch: psutil.Process) -> None:
    """Until a rank has a hook file, and then some steps more."""
    until_s = time.monotonic() + LIMIT_S / 2
    while time.monotonic() < until_s and watch.is_running():
        if any(folder.glob("trainwarden/runs/*/hook/*.hook")):
            time.sleep(BEGUN_S / 2)
            return
        time.sleep(0.1)
