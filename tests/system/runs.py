"""Running the real command line on real training jobs, and hurting one rank from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.places import ROOT
from tests.torch_forks import TorchForks
from trainwarden.cli.run.demo_fault import Fault
from trainwarden.hook import read_header

SCRIPTS = ROOT / "tests" / "scripts"
WARDEN = [sys.executable, "-m", "trainwarden.cli.main"]
SIGNALLED_S = 3.0  # SIGTERM is with every rank so long after it was sent to the command
# What a job teaches by its own start takes four seconds of a processor; test_demo and test_swap_in_demo look at it.
# The page beside a command takes two; test_page_beside looks at it, and the clean run of test_watch has it.
LEAN = {"TRAINWARDEN_DETECTION_OWN_MODELS": "false", "TRAINWARDEN_RUNS_PAGE": "false"}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def torchrun(ranks: int, script: str, *arguments: str) -> list[str]:
    """A torchrun command on this machine for `script` of tests/scripts."""
    place = [
        "--nproc-per-node",
        str(ranks),
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        "0",
        "--rdzv-backend",
        "c10d",
    ]
    place += ["--rdzv-endpoint", "127.0.0.1:0"]
    return [*TORCHRUN, *place, str(SCRIPTS / script), *arguments]


def forked(forks: TorchForks, ranks: int, script: str, *arguments: str) -> list[str]:
    """As `torchrun`, where torchrun itself is not what is looked at: nobody imports torch for it once more."""
    return forks.command(ranks, str(SCRIPTS / script), *arguments)


def steps_done(run_dir: Path, rank: int) -> int:
    """Steps that the newest process of `rank` has finished, read from its hook file; 0 before the first."""
    newest: tuple[float, int] = (0.0, 0)
    for path in (run_dir / "hook").glob(f"rank-{rank}-*.hook"):
        header = read_header(path)
        if header is not None:
            newest = max(newest, (path.stat().st_mtime, header.recorded))
    return newest[1]


class Watched:
    """``trainwarden watch`` around a training command, with one fault done to it on the way.

    Parameters
    ----------
    command : sequence of str
        What stands after ``--``.
    fault : tuple (kind, rank, step) or None
        ``slow-rank``, ``hang`` or ``crash``, once rank 0 has done `step` steps.
    page : bool
        Whether the page is there, as by default.
    """

    def __init__(
        self, tmp_path: Path, command: Sequence[str], fault: tuple[str, int, int] | None, slowdown: float, *,
        page: bool = False,
    ) -> None:  # fmt: skip
        self._environ = {**LEAN, "TRAINWARDEN_RUNS_PAGE": str(page).lower()}
        self._run_dir = tmp_path / "run"
        self._out = tmp_path / "out.json"
        self._log = tmp_path / "watch.log"
        self._command = [*WARDEN, "watch", "--json", str(self._out), "--", *command]
        self._fault = fault
        self._slowdown = slowdown

    def run(self, timeout_s: float, end_after_fault_s: float | None = None) -> dict[str, Any]:
        """Run to the end and return the JSON object, with the fault's time as ``fault_at_s``.

        With `end_after_fault_s` the command is ended (SIGTERM) that long after the fault, for hangs.
        """
        environ = {**os.environ, **self._environ, "TRAINWARDEN_RUN_DIR": str(self._run_dir), "OMP_NUM_THREADS": "1"}
        with self._log.open("wb") as log:
            process = subprocess.Popen(self._command, env=environ, stdout=log, stderr=log, cwd=ROOT)
        try:
            fault = self._drive(process, time.monotonic() + timeout_s, end_after_fault_s)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(30)
        assert self._out.exists(), self.tail()
        result: dict[str, Any] = json.loads(self._out.read_text())
        result["fault_at_s"] = fault.injected_at_s if fault is not None else None
        result["log"] = self.tail()
        return result

    def _drive(
        self, process: subprocess.Popen[bytes], deadline: float, end_after_fault_s: float | None
    ) -> Fault | None:
        fault = None
        if self._fault is not None:
            kind, rank, at_step = self._fault
            fault = Fault(kind, rank, self._slowdown, self._run_dir, self._run_dir / "fault.json")
            while process.poll() is None and steps_done(self._run_dir, 0) < at_step and time.monotonic() < deadline:
                time.sleep(0.05)
            fault.inject(at_step)
        ended = False
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
            since_s = time.time() - fault.injected_at_s if fault and fault.injected_at_s else 0.0
            if end_after_fault_s is not None and since_s > end_after_fault_s and not ended:
                ended = True
                process.terminate()
            if ended and since_s > end_after_fault_s + SIGNALLED_S:
                fault.end()  # a stopped process does not see SIGTERM, and torchrun would wait 30 s for it
        if fault is not None:
            fault.end()
        assert process.poll() is not None, f"not finished in time:\n{self.tail()}"
        return fault

    def tail(self) -> str:
        """The end of what the command and the warden wrote."""
        return self._log.read_text(errors="replace")[-4000:]


def demo(folder: Path, *arguments: str, teaches: bool = False) -> dict[str, Any]:
    """What a demo answers that was carried out from `folder` and is content with itself."""
    done = subprocess.run(
        [*WARDEN, "demo", "--json", "--within", "600", *arguments],
        capture_output=True,
        text=True,
        timeout=660,
        cwd=folder,
        env={**os.environ, **({} if teaches else LEAN)},
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["ok"] == (done.returncode == 0)
    assert result["ok"], f"{result['why_not']}\n{done.stderr[-3000:]}"
    return result
