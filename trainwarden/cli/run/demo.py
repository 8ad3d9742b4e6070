"""`trainwarden demo`: a real training job, a real fault, detection, action, report."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from trainwarden.cli.run.demo_job import Demo, example_script
from trainwarden.cli.run.demo_live import LiveView
from trainwarden.cli.run.demo_nodes import NodesDemo
from trainwarden.cli.run.demo_plan import DEADLINE_S, DemoPlan
from trainwarden.cli.run.job_here import JobHere
from trainwarden.cli.run.job_run import JobRun
from trainwarden.cli.run.machines import why_none
from trainwarden.cli.shared.answers import EXIT_CODES, NOT_JUDGED
from trainwarden.cli.shared.extras import need
from trainwarden.cli.shared.follow import record_line
from trainwarden.cli.shared.options import BusAddress, EngineMode, Json, Keep
from trainwarden.cli.shared.output import Voice
from trainwarden.errors import ConfigError, NotJudged
from trainwarden.records import Record
from trainwarden.settings import Settings

LOST_STEP = 15  # some checkpoints old
FaultKind = Literal["slow-rank", "hang", "crash", "kill", "exception", "log-storm", "node-lost", "none"]


def demo(
    *,
    fault: Annotated[FaultKind, typer.Option(help="What goes wrong; kill is crash.")] = "slow-rank",
    rank: Annotated[int, typer.Option(min=0, help="The rank it goes wrong on.")] = 2,
    slowdown: Annotated[float, typer.Option(min=1.05, max=20.0, help="How many times slower, for slow-rank.")] = 2.0,
    at_step: Annotated[int | None, typer.Option(min=15, help="The step it goes wrong at.")] = None,
    ranks: Annotated[int, typer.Option(min=1, max=16, help="Training processes.")] = 4,
    nodes: Annotated[int, typer.Option(min=3, max=9, help="Machines, one of them a spare, for node-lost.")] = 3,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="In memory, for node-lost: the spare goes on from a neighbour's.")
    ] = False,
    goes_on: Annotated[
        bool, typer.Option("--continue", help="With kill: the other ranks finish the step, and take the rank back.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of data and model; moves the default step of the fault.")] = 0,
    steps: Annotated[int | None, typer.Option(min=30, help="Training steps.")] = None,
    within: Annotated[
        float, typer.Option(min=30.0, max=3600.0, metavar="SECONDS", help="End it after so long, on slow machines.")
    ] = DEADLINE_S,
    bus: BusAddress = None,
    mode: EngineMode = "auto",
    keep: Keep = None,
    json: Json = None,
) -> int:
    """A real multi-process training job, a fault, detection, action, report.

    Example: trainwarden demo --fault hang --rank 1
    """
    fault = "crash" if fault == "kill" else fault
    if fault == "node-lost" and not goes_on:
        at_step = at_step or LOST_STEP
        return _node_lost(Voice(json), nodes=nodes, seed=seed, at_step=at_step, in_memory=checkpoints, within_s=within)
    if checkpoints:
        raise ConfigError("--checkpoints: that is of --fault node-lost")
    plan = DemoPlan.checked(
        fault=fault, rank=rank, slowdown=slowdown, at_step=at_step, ranks=ranks, seed=seed, steps=steps, mode=mode,
        within_s=within, goes_on=goes_on,
    )  # fmt: skip
    voice = Voice(json)
    example_script()
    need("torch", "demo")
    try:
        result = _carried_out(plan, bus, keep, voice)
    except NotJudged as error:
        voice.say(f"NOT JUDGED: {error}")
        voice.answer({"ok": False, "answer": NOT_JUDGED, "why_not": str(error)})
        return EXIT_CODES[NOT_JUDGED]
    kept = "recording" if keep is None else str(keep)
    if keep is not None:
        voice.say(f"recorded folder: {keep}")
    again = f"trainwarden demo --fault none --keep {kept} && " if keep is None else ""
    voice.say(f"train the metric models on a run: {again}trainwarden train --data {kept}")
    voice.answer(result)
    return 0 if result["ok"] else 1


def _node_lost(voice: Voice, *, nodes: int, seed: int, at_step: int, in_memory: bool, within_s: float) -> int:
    """Several machines within this one, as root."""
    if (reason := why_none()) is not None:
        raise ConfigError(f"demo --fault node-lost: {reason}")
    settings = Settings(job=f"demo-{seed}-{uuid.uuid4().hex[:6]}")
    with JobRun(settings, own_services=(), command=("demo",)) as run:
        voice.say(f"job {settings.job}: {nodes - 1} nodes of one rank each, and a spare")
        result = NodesDemo(
            run, voice, nodes=nodes, seed=seed, at_step=at_step, in_memory=in_memory, within_s=within_s
        ).carry_out()
        run.result(0 if result["ok"] else 1)
    voice.say(result["summary"])
    voice.say(f"records and logs: {run.run_dir}")
    voice.answer(result)
    return 0 if result["ok"] else 1


def _carried_out(plan: DemoPlan, bus: str | None, keep: Path | None, voice: Voice) -> dict[str, Any]:
    """The demo's JSON object; its report is written and everything it started is gone."""
    from trainwarden.cli.run.demo_judge import judge

    def notice(record: Record) -> None:
        voice.say(record_line(record))

    fields: dict[str, Any] = {"job": f"demo-{plan.seed}-{uuid.uuid4().hex[:6]}"}
    if bus is not None:
        fields["bus"] = bus
    settings = Settings(**fields)
    overrides = {"TRAINWARDEN_ENGINE_MODE": plan.mode}
    services = ("agent", "detector", "engine")
    live = LiveView(plan.ranks, voice)
    job = JobHere(settings, plan.ranks, plan.mode)
    try:
        with JobRun(
            settings, own_services=services, notice=notice, overrides=overrides, command=("demo",), prepare=job.serve
        ) as run:
            voice.say(
                f"job {settings.job}: {plan.ranks} ranks, {plan.steps} steps, mode {plan.mode}, bus {run.bus_address}"
            )
            demo = Demo(plan, run, job, voice, live)
            with live:
                code = demo.carry_out()
            result = judge(plan, demo.fault, run, code)
            result["answer"] = run.result(code)["answer"]
            report = _report(run, result, keep, voice)
    finally:
        job.close()
    voice.say(result["summary"])
    voice.say(f"report: {report}")
    voice.say(f"records and logs: {run.run_dir}")
    return result


def _report(run: JobRun, result: dict[str, Any], keep: Path | None, voice: Voice) -> Path:
    from trainwarden.dashboards.overview.job import JobOverview
    from trainwarden.dashboards.overview.whole import read_whole
    from trainwarden.dashboards.page.frozen import write_report
    from trainwarden.dashboards.page.lines import metrics_of_bus, of_bus

    run.keep(keep, voice)
    path = (keep or Path.cwd()) / "trainwarden-demo-report.html"
    name = run.settings.job
    job = read_whole(run.bus, name).get(name) or JobOverview(name)
    write_report(
        path,
        job,
        of_bus(run.bus),
        read_metrics=metrics_of_bus(run.bus),
        title=f"trainwarden demo: {name}",
        summary=result["summary"],
    )
    return path
