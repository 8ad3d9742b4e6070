"""`trainwarden demo`: a real training job, a real fault, detection, action, report."""

from __future__ import annotations

import sys
import sysconfig
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import msgspec

from trainwarden.cli.demo_judge import judge
from trainwarden.cli.faults import Fault
from trainwarden.cli.follow import record_line
from trainwarden.cli.live import LiveView
from trainwarden.cli.output import Voice, check_json_target, write_json
from trainwarden.cli.run import JobRun
from trainwarden.errors import ConfigError
from trainwarden.settings import Settings

DEADLINE_S = 170.0  # the demo ends within three minutes, whatever happens
OBSERVED_S = 12.0  # without permission to act a dead or hung job is ended this long after the fault


class DemoPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the demo does; see ``trainwarden demo --help``."""

    fault: str
    rank: int
    slowdown: float
    at_step: int
    ranks: int
    seed: int
    steps: int
    mode: str

    @classmethod
    def checked(
        cls,
        fault: str,
        rank: int,
        slowdown: float,
        at_step: int | None,
        ranks: int,
        seed: int,
        steps: int | None,
        mode: str,
    ) -> Self:
        """A plan that can be carried out.

        Raises
        ------
        ConfigError
            If it cannot.
        """
        if rank >= ranks and fault != "none":
            raise ConfigError(f"--rank {rank}: ranks are 0 to {ranks - 1}")
        if fault in ("slow-rank", "hang") and ranks < 2:
            raise ConfigError(
                f"--ranks {ranks}: a {fault} is told from a busy rank by its peers, so it needs at least 2"
            )
        at_step = at_step if at_step is not None else 35 + seed % 7
        steps = steps if steps is not None else at_step + 60
        if at_step + 25 > steps and fault != "none":
            raise ConfigError(f"--steps {steps}: leave at least 25 steps after the fault at step {at_step}")
        return cls(
            fault=fault, rank=rank, slowdown=slowdown, at_step=at_step, ranks=ranks, seed=seed, steps=steps, mode=mode
        )


def example_script() -> Path:
    """The training script that the demo runs: beside the packages in a checkout, under share/ when installed.

    Raises
    ------
    ConfigError
        If it is in neither place.
    """
    places = (
        Path(__file__).resolve().parents[2] / "examples" / "train_gpt.py",
        Path(sysconfig.get_path("data")) / "share" / "trainwarden" / "examples" / "train_gpt.py",
    )
    for place in places:
        if place.is_file():
            return place
    raise ConfigError("demo: the training script train_gpt.py is not installed; install trainwarden[example]")


class Demo:
    """One demo run."""

    def __init__(self, plan: DemoPlan, run: JobRun, voice: Voice, live: LiveView) -> None:
        self.plan = plan
        self.run = run
        self.voice = voice
        self.live = live
        fault_file = run.run_dir / "fault.json"
        self.fault = Fault(plan.fault, plan.rank, plan.slowdown, run.run_dir, fault_file)
        self._command = [
            sys.executable, str(example_script()),
            "--steps", str(plan.steps), "--micro-batches", str(6 * plan.ranks), "--seed", str(plan.seed),
            "--checkpoint-dir", str(run.run_dir / "checkpoints"), "--checkpoint-every", "10",
            "--fault-file", str(fault_file),
        ]  # fmt: skip

    def carry_out(self) -> int | None:
        """Run the job to its end; the job's exit code, None if it had to be ended."""
        run, plan = self.run, self.plan
        run.tell("job_start", world_size=plan.ranks)
        run.stack.start("supervise", "--nproc", str(plan.ranks), "--mode", plan.mode, "--", *self._command)
        deadline = time.monotonic() + DEADLINE_S
        code: int | None = None
        try:
            while (code := run.stack.returncode("supervise")) is None and time.monotonic() < deadline:
                run.follower.poll(0.05)
                self._maybe_inject()
                self.live.update(run.follower.view, self.fault)
                if self._nothing_more_can_happen():
                    break
                run.stack.check(("agent", "detector", "engine"))
        finally:
            self.fault.end()
            run.stack.stop("supervise")
        run.tell("job_end", exit_code=code)
        run.drain()
        return code

    def _maybe_inject(self) -> None:
        if self.plan.fault == "none" or self.fault.injected_at_s is not None:
            return
        step = self.run.follower.view.last_step()
        if step is not None and step >= self.plan.at_step and self.fault.inject(step):
            self.voice.say(f"[fault] {self.plan.fault} on rank {self.plan.rank} at step {step}")

    def _nothing_more_can_happen(self) -> bool:
        """Without permission to act, a job that was stopped by its fault is ended after a while."""
        stopped_by = self.plan.fault in ("hang", "crash", "exception") and self.plan.mode != "auto"
        injected_at_s = self.fault.injected_at_s
        return stopped_by and injected_at_s is not None and time.time() - injected_at_s > OBSERVED_S


def run_demo(plan: DemoPlan, *, bus: str | None, keep: Path | None, json: str | None) -> int:
    """The whole command; exit code 0 if everything happened as it should, 1 if not."""
    check_json_target(json)
    example_script()
    voice = Voice(json)
    fields: dict[str, Any] = {"job": f"demo-{plan.seed}-{uuid.uuid4().hex[:6]}"}
    if bus is not None:
        fields["bus"] = bus
    settings = Settings(**fields)
    overrides = {"TRAINWARDEN_ENGINE_MODE": plan.mode}
    services = ("agent", "detector", "engine")
    live = LiveView(plan.ranks, voice)
    notice: Callable[[Any], None] = lambda record: voice.say(record_line(record))  # noqa: E731 - one expression
    with JobRun(settings, own_services=services, notice=notice, overrides=overrides) as run:
        voice.say(
            f"job {settings.job}: {plan.ranks} ranks, {plan.steps} steps, mode {plan.mode}, bus {run.bus_address}"
        )
        demo = Demo(plan, run, voice, live)
        with live:
            code = demo.carry_out()
        result = judge(plan, demo.fault, run, code)
        report = _report(run, result, keep)
    voice.say(result["summary"])
    voice.say(f"report: {report}")
    kept = "recording" if keep is None else str(keep)
    if keep is not None:
        voice.say(f"recorded folder: {keep}")
    again = f"trainwarden demo --fault none --keep {kept} && " if keep is None else ""
    voice.say(f"train the metric models on a run: {again}trainwarden train --data {kept}")
    write_json(result, json)
    return 0 if result["ok"] else 1


def _report(run: JobRun, result: dict[str, Any], keep: Path | None) -> Path:
    from trainwarden.cli.report_html import write_report
    from trainwarden.recorded.writing import write_recording

    if keep is not None:
        write_recording(run.bus, run.settings.job, keep)
    path = (keep or Path.cwd()) / "trainwarden-demo-report.html"
    write_report(path, run.follower.view, title=f"trainwarden demo: {result['job']}", summary=result["summary"])
    return path
