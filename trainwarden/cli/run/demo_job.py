"""The demo's training job and its fault, from the first step to the last record."""

from __future__ import annotations

import shutil
import sys
import sysconfig
import time
from pathlib import Path

from trainwarden.cli.run.demo_fault import Fault
from trainwarden.cli.run.demo_live import LiveView
from trainwarden.cli.run.demo_plan import DemoPlan
from trainwarden.cli.run.job_here import JobHere
from trainwarden.cli.run.job_run import JobRun
from trainwarden.cli.run.torchrun_here import Torchrun
from trainwarden.cli.shared.machine import CHECKOUT
from trainwarden.cli.shared.output import Voice
from trainwarden.errors import ConfigError

LOOK_S = 0.05
OBSERVED_S = 12.0  # without permission to act a dead or hung job is ended this long after the fault


def example_script() -> Path:
    """The training script that the demo runs: beside the packages in a checkout, under share/ when installed.

    Raises
    ------
    ConfigError
        If it is in neither place.
    """
    places = (
        CHECKOUT / "examples" / "train_gpt.py",
        Path(sysconfig.get_path("data")) / "share" / "trainwarden" / "examples" / "train_gpt.py",
    )
    for place in places:
        if place.is_file():
            return place
    raise ConfigError("demo: the training script train_gpt.py is not installed; install trainwarden[example]")


class Demo:
    """One demo run."""

    def __init__(self, plan: DemoPlan, run: JobRun, job: JobHere, voice: Voice, live: LiveView) -> None:
        self.plan = plan
        self.run = run
        self.voice = voice
        self.live = live
        self._job = job
        fault_file = run.run_dir / "fault.json"
        self.fault = Fault(plan.fault, plan.rank, plan.slowdown, run.run_dir, fault_file)
        self._command = [
            sys.executable, str(example_script()),
            "--steps", str(plan.steps), "--micro-batches", str(6 * plan.ranks), "--seed", str(plan.seed),
            "--checkpoint-dir", str(run.run_dir / "checkpoints"), "--checkpoint-every", "10",
            "--fault-file", str(fault_file), *(["--resilient"] if plan.goes_on else []),
        ]  # fmt: skip

    def carry_out(self) -> int | None:
        """Run the job to its end; the job's exit code, None if it had to be ended."""
        run, plan = self.run, self.plan
        run.tell("job_start", world_size=plan.ranks)
        torchrun = self._job.start(run, self._command, lambda sentence: None, checkpoints=run.run_dir / "checkpoints")
        deadline = time.monotonic() + plan.within_s
        code: int | None = None
        try:
            while torchrun.runs and time.monotonic() < deadline:
                run.follower.poll(0.05)
                self._job.tend()
                self._maybe_inject()
                self.live.update(run.follower.view, self.fault)
                if self._nothing_more_can_happen():
                    break
                run.stack.check(("agent", "detector", "engine"))
            code = None if torchrun.runs else self._job.end(run.run_dir)
        finally:
            self.fault.end()
            self._end(torchrun)
        shutil.rmtree(run.run_dir / "checkpoints", ignore_errors=True)  # the run is kept, its model is not
        run.tell("job_end", exit_code=code)
        run.drain(self.voice)
        return code

    def _end(self, torchrun: Torchrun) -> None:
        """End what still runs."""
        while torchrun.runs:
            torchrun.stop()
            torchrun.tend()
            time.sleep(LOOK_S)
        self._job.close()

    def _maybe_inject(self) -> None:
        if self.plan.fault == "none" or self.fault.injected_at_s is not None:
            return
        step = self.run.follower.view.last_step()
        if step is not None and step >= self.plan.at_step and self.fault.inject(step):
            self.voice.say(f"[fault] {self.plan.fault} on rank {self.plan.rank} at step {step}")

    def _nothing_more_can_happen(self) -> bool:
        """Without permission to act, a job that was stopped by its fault is ended after a while."""
        plan = self.plan
        stopped_by = plan.fault in ("hang", "crash", "exception") and plan.mode != "auto" and not plan.goes_on
        injected_at_s = self.fault.injected_at_s
        return stopped_by and injected_at_s is not None and time.time() - injected_at_s > OBSERVED_S
