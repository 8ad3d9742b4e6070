"""The command line: a table of where each command lives; only the file of the one that was called is imported."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated, Any, Final

import typer

from trainwarden import __version__
from trainwarden.cli.lazy import Entry, LazyGroup
from trainwarden.cli.shared.output import json_target, open_streams, with_json_target, write_json
from trainwarden.errors import ConfigError, DataError, NotJudged, WardenError
from trainwarden.torchrun.signals import foreign_signals

_COMPLETES: Final = "_TRAINWARDEN_COMPLETE"
_COMMANDS: Final[dict[str, Entry]] = {
    "demo": Entry(
        "trainwarden.cli.run.demo:demo",
        "A real multi-process training job, a fault, detection, action, report.",
    ),
    "watch": Entry(
        "trainwarden.cli.run.watch:watch",
        "Watch someone else's training command; print incidents as they happen; never touch it.",
    ),
    "launch": Entry(
        "trainwarden.cli.run.launch:launch",
        "Start the ranks of a training command by torchrun, watched, and acted on if allowed.",
    ),
    "job": Entry(
        "trainwarden.cli.run.job:job",
        "What a job on several nodes does; suspend, resume, restart or stop all of it; take nodes out or back.",
    ),
    "validate": Entry(
        "trainwarden.cli.run.validate:validate",
        "Test devices, links, disk and memory of a group of ranks; exit code 1 if somebody is at fault.",
    ),
    "agent": Entry(
        "trainwarden.cli.serve.agent:agent",
        "The node agent: collects and streams until stopped.",
    ),
    "detector": Entry(
        "trainwarden.cli.serve.detector:detector",
        "The detection service: votes on every window of every job until stopped.",
    ),
    "engine": Entry(
        "trainwarden.cli.serve.engine:engine",
        "The action engine: turns incidents into the cheapest action that works, until stopped.",
    ),
    "coordinator": Entry(
        "trainwarden.cli.serve.coordinator:coordinator",
        "The coordinator: shares a cluster's nodes out among its jobs, and again whenever something changes.",
    ),
    "trainer": Entry(
        "trainwarden.cli.serve.trainer:trainer",
        "The trainer: retrains on schedule, on drift and on request; audits who serves, until stopped.",
    ),
    "serve": Entry(
        "trainwarden.cli.serve.serve:serve",
        "The page, the detection API and the metrics of all jobs, over HTTP until stopped.",
    ),
    "rendezvous": Entry(
        "trainwarden.cli.serve.rendezvous:rendezvous",
        "The rendezvous of torchrun jobs: rounds, spares, restarts; until stopped.",
    ),
    "keeper": Entry(
        "trainwarden.cli.serve.keeper:keeper",
        "The keeper of a node: copies checkpoints in memory to the next node and the store, until stopped.",
    ),
    "up": Entry(
        "trainwarden.cli.serve.up:up",
        "Agent, detector, engine, rendezvous of torchrun jobs and page on this machine, until Ctrl-C.",
    ),
    "status": Entry(
        "trainwarden.cli.ask.status:status",
        "What every job on the bus is doing; exit codes 0 healthy, 1 an incident or a failed job, 3 not judged.",
    ),
    "incidents": Entry(
        "trainwarden.cli.ask.incidents:incidents",
        "Incidents, oldest first; exit codes 0 there is none, 1 there is one, 3 no detector has judged anything.",
    ),
    "checkpoints": Entry(
        "trainwarden.cli.ask.checkpoints:checkpoints",
        "List checkpoints in memory, at the neighbour and in the store, and what would be lost now.",
    ),
    "runs": Entry(
        "trainwarden.cli.ask.runs:runs",
        "The kept runs of watch, launch, demo and detect, newest first, with their size; age and bytes limit them.",
    ),
    "check": Entry(
        "trainwarden.cli.ask.check:check",
        "A Nagios or Icinga check: open incidents, silent jobs; exit codes 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN.",
    ),
    "explain": Entry(
        "trainwarden.cli.ask.explain:explain",
        "One incident in plain words: what, where, the evidence, why not others, and what to do next.",
    ),
    "actions": Entry(
        "trainwarden.cli.ask.actions:actions",
        "The log of actions; approve or deny one; stop or resume all acting; reset the brake on nodes taken out.",
    ),
    "nodes": Entry(
        "trainwarden.cli.ask.fleet.nodes:nodes",
        "Nodes: their state, since when and why; exit code 1 if one is suspect or lost.",
    ),
    "cordon": Entry(
        "trainwarden.cli.ask.fleet.cordon:cordon",
        "Have a node taken out of use: nothing new is started there, what runs goes on; exit code 1 if not done.",
    ),
    "uncordon": Entry(
        "trainwarden.cli.ask.fleet.uncordon:uncordon",
        "Have a node put back that trainwarden took out; what was seen of it before takes it out no more.",
    ),
    "set-healthy": Entry(
        "trainwarden.cli.ask.fleet.set_healthy:set_healthy",
        "Say that a node is well: what was seen of it before takes it out no more; what comes new does.",
    ),
    "silences": Entry(
        "trainwarden.cli.ask.silences:silences",
        "List the silences that stand; add one, such as a maintenance window; end one early.",
    ),
    "archive": Entry(
        "trainwarden.cli.serve.archive:archive",
        "Archive the bus to Parquet until stopped; or compact, export, list.",
    ),
    "annotate": Entry(
        "trainwarden.cli.learn.annotate:annotate",
        "Say what a stretch of a job was: add, list, remove; suggest what to say, confirm, refuse; propose roles.",
    ),
    "detect": Entry(
        "trainwarden.cli.ask.detect:detect",
        "Judge recorded folders, a job or a range of a Prometheus in time order; exit code 1 if an incident was found.",
    ),
    "train": Entry(
        "trainwarden.cli.learn.train:train",
        "Train all detectors offline, gate them and keep them as versions; exit code 1 if all were rejected.",
    ),
    "models": Entry(
        "trainwarden.cli.learn.models:models",
        "List versions of models; make one champion; go back to the champion before.",
    ),
    "report": Entry(
        "trainwarden.cli.ask.report:report",
        "One HTML file of a job: iteration times, rank heat map, votes, incidents, log lines, actions.",
    ),
    "plan": Entry(
        "trainwarden.cli.learn.plan:plan",
        "Ask a planner.",
    ),
    "profile": Entry(
        "trainwarden.cli.learn.profile:profile",
        "Measure throughput by number of GPUs from recorded jobs, for `plan cluster`; exit code 1 if none says any.",
    ),
    "bench": Entry(
        "trainwarden.cli.setup.bench:bench",
        "Measure speed, overhead and quality of detection, each beside a named peer where there is one.",
    ),
    "simulate": Entry(
        "trainwarden.cli.setup.simulate:simulate",
        "Play a job of any size from the recording of one agent, healthy or with a fault.",
    ),
    "doctor": Entry(
        "trainwarden.cli.setup.doctor:doctor",
        "Is everything reachable, permitted and in time?",
    ),
    "key": Entry(
        "trainwarden.cli.setup.key:key",
        "Make a key that signs words to the engine, or show the line by which the engine trusts it.",
    ),
    "check-config": Entry(
        "trainwarden.cli.setup.check_config:check_config",
        "One clear sentence per mistake in a settings file.",
    ),
    "hook": Entry(
        "trainwarden.cli.setup.hook:hook",
        "Print the hook as one file that can be copied into an image: trainwarden hook > trainwarden_hook.py",
    ),
    "completion": Entry(
        "trainwarden.cli.setup.completion:completion",
        "Print what makes a shell complete commands and options; `source <(trainwarden completion bash)`.",
    ),
}


GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "Start": ("watch", "launch", "up", "demo", "job"),
    "Ask": ("status", "incidents", "explain", "report", "runs", "checkpoints", "detect", "check", "serve"),
    "Operate": ("actions", "nodes", "cordon", "uncordon", "set-healthy", "silences", "validate", "plan"),
    "Train models": ("train", "models", "trainer", "archive", "annotate", "profile"),
}
"""Commands by purpose; all others set up."""
_GROUPED: Final = tuple(name for names in GROUPS.values() for name in names)
SET_UP: Final = tuple(name for name in _COMMANDS if name not in _GROUPED)
COMMANDS: Final[dict[str, Entry]] = {name: _COMMANDS[name] for name in (*_GROUPED, *SET_UP)}


class Commands(LazyGroup):
    """The commands of the table, listed by purpose."""

    table = COMMANDS

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands, a section for each purpose."""
        formatter.write("\nCommands:\n")
        for title, names in {**GROUPS, "Set up": SET_UP}.items():
            width = formatter.width - 6 - max(map(len, names))
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(width)) for name in names])


def _end(code: int, **_options: object) -> None:
    """What a command returns is its exit code."""
    raise typer.Exit(code)


app = typer.Typer(
    cls=Commands,
    result_callback=_end,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Watches LLM training, says which rank, node, GPU or link is at fault and why, and does the cheapest thing "
    "that works. Exit codes: 0 healthy, 1 incident or failed job, 2 wrong use, 3 not judged (the words say why). Begin "
    "with: trainwarden demo",
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


def _not_judged(error: NotJudged) -> int:
    """The third of the answers in words and, where that was asked for, in JSON; its exit code."""
    typer.echo(f"trainwarden: NOT JUDGED: {error}", err=True)
    blind = {"reason": error.reason, "remedy": error.remedy}
    try:
        write_json({"answer": "not judged", "not_judged": [blind]}, json_target(sys.argv[1:]))
    except (ConfigError, OSError) as unwritten:
        typer.echo(f"trainwarden: {unwritten}", err=True)
    return 3


def run() -> None:
    """The console script: errors of use are one sentence and exit code 2."""
    if sys.argv[1:2] in (["watch"], ["launch"]):  # they pass such signals on, as soon as there is somebody to have them
        signal.pthread_sigmask(signal.SIG_BLOCK, foreign_signals())
    open_streams()
    if _COMPLETES in os.environ:  # a shell asks what may come next
        from typer._completion_classes import completion_init

        completion_init()
    sys.argv[1:] = with_json_target(sys.argv[1:])
    try:
        app(**({"prog_name": "trainwarden"} if _COMPLETES in os.environ else {}))
    except (ConfigError, DataError) as error:
        typer.echo(f"trainwarden: {error}", err=True)
        sys.exit(2)
    except NotJudged as error:
        sys.exit(_not_judged(error))
    except WardenError as error:
        typer.echo(f"trainwarden: {error}", err=True)
        sys.exit(1)
    except ModuleNotFoundError as error:
        from trainwarden.cli.shared.extras import EXTRAS, sentence

        if (error.name or "").partition(".")[0] not in EXTRAS:
            raise
        command = next((word for word in sys.argv[1:] if not word.startswith("-")), "this")
        typer.echo(f"trainwarden: {sentence(str(error.name), command)}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    run()
