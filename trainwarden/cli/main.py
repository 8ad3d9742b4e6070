"""The command line: thin, lazy; every command imports what it needs when it is called."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from trainwarden import __version__
from trainwarden.cli import data_commands
from trainwarden.cli.options import BusAddress, Command, ConfigFile, JobName, Json, Keep, Mode, RunDir, WithParent
from trainwarden.cli.output import with_json_target
from trainwarden.errors import ConfigError, DataError, WardenError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Watches LLM training, says which rank, node, GPU or link is at fault and why, and does the cheapest thing "
    "that works. Exit codes: 0 fine, 1 anomaly or failure found, 2 wrong use. Begin with: trainwarden demo",
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"trainwarden {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Say it.")] = False,
) -> None:
    pass


@app.command()
def demo(
    fault: Annotated[
        Literal["slow-rank", "hang", "crash", "exception", "log-storm", "none"], typer.Option(help="What goes wrong.")
    ] = "slow-rank",
    rank: Annotated[int, typer.Option(min=0, help="The rank it goes wrong on.")] = 2,
    slowdown: Annotated[float, typer.Option(min=1.05, max=20.0, help="How many times slower, for slow-rank.")] = 2.0,
    at_step: Annotated[int | None, typer.Option(min=15, help="The step it goes wrong at.")] = None,
    ranks: Annotated[int, typer.Option(min=1, max=16, help="Training processes.")] = 4,
    seed: Annotated[int, typer.Option(min=0, help="Seed of data and model; moves the default step of the fault.")] = 0,
    steps: Annotated[int | None, typer.Option(min=30, help="Training steps.")] = None,
    bus: BusAddress = None,
    mode: Annotated[Mode, typer.Option(help="What the engine may do.")] = "auto",
    keep: Keep = None,
    json: Json = None,
) -> None:
    """A real multi-process training job, a fault, detection, action, report.

    Example: trainwarden demo --fault hang --rank 1
    """
    from trainwarden.cli.demo import DemoPlan, run_demo

    plan = DemoPlan.checked(fault, rank, slowdown, at_step, ranks, seed, steps, mode)
    raise typer.Exit(run_demo(plan, bus=bus, keep=keep, json=json))


@app.command()
def watch(
    command: Command, job: JobName = None, json: Json = None, keep: Keep = None, config: ConfigFile = None
) -> None:
    """Watch someone else's training command; print incidents as they happen; never touch it.

    Example: trainwarden watch -- torchrun --nproc-per-node 4 train.py
    """
    from trainwarden.cli.jobs import watch as run_watch

    raise typer.Exit(run_watch(command, job=job, json=json, keep=keep, config=config))


@app.command()
def launch(
    command: Command,
    nproc: Annotated[int, typer.Option("--nproc", min=1, max=1024, help="Training processes to start.")],
    mode: Annotated[Mode, typer.Option(help="What the engine may do.")] = "observe",
    job: JobName = None,
    json: Json = None,
    keep: Keep = None,
    config: ConfigFile = None,
) -> None:
    """Start the ranks of a training command under the local launcher, watched, and acted on if allowed.

    Example: trainwarden launch --nproc 4 --mode auto -- python train.py
    """
    from trainwarden.cli.jobs import launch as run_launch

    raise typer.Exit(run_launch(command, nproc=nproc, mode=mode, job=job, json=json, keep=keep, config=config))


@app.command()
def agent(run_dir: RunDir = None, config: ConfigFile = None, with_parent: WithParent = False) -> None:
    """The node agent: collects and streams until stopped.

    Example: trainwarden agent --config trainwarden.toml
    """
    _serve("agent", run_dir, config, with_parent)


@app.command()
def detector(run_dir: RunDir = None, config: ConfigFile = None, with_parent: WithParent = False) -> None:
    """The detection service: votes on every window of every job until stopped.

    Example: TRAINWARDEN_BUS=kafka://broker:9092 trainwarden detector
    """
    _serve("detector", run_dir, config, with_parent)


@app.command()
def engine(run_dir: RunDir = None, config: ConfigFile = None, with_parent: WithParent = False) -> None:
    """The action engine: turns incidents into the cheapest action that works, until stopped.

    Example: TRAINWARDEN_ENGINE_MODE=confirm trainwarden engine
    """
    _serve("engine", run_dir, config, with_parent)


@app.command()
def trainer(run_dir: RunDir = None, config: ConfigFile = None, with_parent: WithParent = False) -> None:
    """The trainer: retrains on schedule, on drift and on request; audits who serves, until stopped.

    Example: trainwarden trainer --config trainwarden.toml
    """
    _serve("trainer", run_dir, config, with_parent)


def _serve(name: str, run_dir: Path | None, config: Path | None, with_parent: bool) -> None:
    from trainwarden.cli.services import serve

    raise typer.Exit(serve(name, run_dir=run_dir, config=config, with_parent=with_parent))


@app.command(hidden=True)
def supervise(
    command: Command,
    nproc: Annotated[int, typer.Option("--nproc", min=1, max=1024)],
    mode: Annotated[Mode, typer.Option()] = "observe",
    run_dir: RunDir = None,
    config: ConfigFile = None,
    with_parent: WithParent = False,
) -> None:
    """The local launcher alone (started by launch and demo)."""
    from trainwarden.cli.services import supervise as run_supervise

    code = run_supervise(command, nproc=nproc, mode=mode, run_dir=run_dir, config=config, with_parent=with_parent)
    raise typer.Exit(code)


@app.command()
def up(config: ConfigFile = None, run_dir: RunDir = None) -> None:
    """Agent, detector and engine on this machine with the embedded bus, until Ctrl-C.

    Example: trainwarden up --config trainwarden.toml
    """
    from trainwarden.cli.services import up as run_up

    raise typer.Exit(run_up(config, run_dir))


@app.command()
def status(bus: BusAddress = None, config: ConfigFile = None, json: Json = None) -> None:
    """What every job on the bus is doing; exit code 1 while an incident is open.

    Example: trainwarden status --bus kafka://broker:9092 --json
    """
    from trainwarden.cli.look import status as run_status

    raise typer.Exit(run_status(bus=bus, config=config, json=json))


@app.command()
def incidents(bus: BusAddress = None, job: JobName = None, config: ConfigFile = None, json: Json = None) -> None:
    """Incidents, oldest first; exit code 1 if there is any.

    Example: trainwarden incidents --job llama-70b --json
    """
    from trainwarden.cli.look import incidents as run_incidents

    raise typer.Exit(run_incidents(bus=bus, config=config, job=job, json=json))


@app.command()
def actions(
    word: Annotated[Literal["list", "approve", "deny", "stop", "resume"], typer.Argument()] = "list",
    action: Annotated[str | None, typer.Argument(metavar="[ACTION]", help="For approve and deny: its id.")] = None,
    bus: BusAddress = None,
    job: JobName = None,
    config: ConfigFile = None,
    json: Json = None,
) -> None:
    """List actions; approve or deny one; stop or resume all acting.

    Example: trainwarden actions approve ID
    """
    from trainwarden.cli.look import actions as run_actions

    raise typer.Exit(run_actions(word, action, bus=bus, config=config, job=job, json=json))


app.registered_commands += data_commands.app.registered_commands


@app.command()
def report(
    out: Annotated[Path, typer.Option("--out", help="The HTML file to write.")] = Path("trainwarden-report.html"),
    bus: BusAddress = None,
    job: JobName = None,
    config: ConfigFile = None,
) -> None:
    """One HTML file of a job: iteration times, rank heat map, votes, incidents, actions.

    Example: trainwarden report --job llama-70b --out report.html
    """
    from trainwarden.cli.look import report as run_report

    raise typer.Exit(run_report(bus=bus, config=config, job=job, out=out))


@app.command()
def plan(
    what: Annotated[Literal["microbatches"], typer.Argument(help="Which planner.")],
    source: Annotated[str, typer.Argument(metavar="[FILE]", help="JSON input; - is standard input.")] = "-",
    json: Json = None,
) -> None:
    """Ask a planner.

    Example: echo '{"micro_batch_s": [1, 1, 2], "total": 12}' | trainwarden plan microbatches
    """
    from trainwarden.cli.check import plan_microbatches

    del what  # one planner so far; the word keeps the command line stable as others come
    raise typer.Exit(plan_microbatches(source, json))


@app.command()
def bench(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Parts of names.")] = None,
    json: Json = None,
    table: Annotated[Path | None, typer.Option(metavar="FILE.md", help="Write the tables as Markdown.")] = None,
) -> None:
    """Measure speed, overhead and quality of detection, each beside a named peer where there is one.

    Example: trainwarden bench hook codec
    """
    from trainwarden.cli.check import bench as run_bench

    raise typer.Exit(run_bench(names or [], json, table))


@app.command()
def doctor(config: ConfigFile = None, json: Json = None) -> None:
    """Is everything reachable, permitted and in time?

    Example: trainwarden doctor --config trainwarden.toml
    """
    from trainwarden.cli.check import doctor as run_doctor

    raise typer.Exit(run_doctor(config=config, json=json))


@app.command(name="check-config")
def check_config(path: Annotated[Path, typer.Argument(metavar="FILE")]) -> None:
    """One clear sentence per mistake in a settings file.

    Example: trainwarden check-config trainwarden.toml
    """
    from trainwarden.cli.check import check_config as run_check

    raise typer.Exit(run_check(path))


def run() -> None:
    """The console script: errors of use are one sentence and exit code 2."""
    sys.argv[1:] = with_json_target(sys.argv[1:])
    try:
        app()
    except (ConfigError, DataError) as error:
        typer.echo(f"trainwarden: {error}", err=True)
        sys.exit(2)
    except WardenError as error:
        typer.echo(f"trainwarden: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    run()
