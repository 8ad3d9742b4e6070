"""`trainwarden plan`: a planner's answer to one question."""

from __future__ import annotations

import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from trainwarden.cli.shared.options import ConfigFile, Json
from trainwarden.cli.shared.output import Voice
from trainwarden.errors import ConfigError
from trainwarden.records import TaskRecord


def plan(
    what: Annotated[
        Literal["microbatches", "topology", "ladder", "cluster", "interval"], typer.Argument(help="Which planner.")
    ],
    source: Annotated[str, typer.Argument(metavar="[FILE]", help="JSON input; - is standard input.")] = "-",
    *,
    json: Json = None,
    live: Annotated[bool, typer.Option("--live", help="cluster: what the coordinator plans now.")] = False,
    config: ConfigFile = None,
    example: Annotated[bool, typer.Option("--example", help="Print an input that may be asked, and end.")] = False,
) -> int:
    """Ask a planner.

    Example: trainwarden plan cluster --example | trainwarden plan cluster --json
    """
    from trainwarden.actions.planners.questions.protocol import read

    voice = Voice(json)
    if live:
        return _live(what, voice, config)
    planner = _planner(what)
    if example:
        voice.say(planner.example)
        return 0
    answer = planner.answer(read(what, planner.question, _input(source)))
    voice.say(planner.line(answer))
    voice.answer(answer)
    return 0


def _live(what: str, voice: Voice, config: Path | None) -> int:
    """What the coordinator has said last of each job; exit code 3 where it has said nothing for a minute."""
    from trainwarden.actions.coordinator.cluster_status import FRESH_S, cluster
    from trainwarden.bus.address import connect
    from trainwarden.settings import load
    from trainwarden.topics import TASKS

    if what != "cluster":
        raise ConfigError(f"plan {what}: --live is for plan cluster")
    settings = load(config)
    bus = connect(settings.bus, settings.kafka)
    try:
        newest = {record.job: (m.time_s, record) for m in bus.read(TASKS) if isinstance(record := m.record, TaskRecord)}
    finally:
        bus.close()
    said = [(time_s, task) for time_s, task in newest.values() if task.status is not None]
    tasks = [task for _, task in said if not task.finished]
    fresh = bool(said) and time.time() - max(time_s for time_s, _ in said) < FRESH_S
    answer = cluster(tasks, fresh=fresh)
    for line in _lines(answer):
        voice.say(line)
    voice.answer(answer)
    return 0 if fresh else 3


def _lines(answer: dict[str, Any]) -> list[str]:
    if not answer["answered"]:
        return ["no coordinator has said anything for a minute: start `trainwarden coordinator`"]
    lines = [f"mode {answer['mode']}, last planned after {answer['event'] or 'nothing yet'}"]
    for row in answer["tasks"]:
        has = len(row["nodes"])
        guess = "; its curve is an assumption" if row["planned"] in row["assumed"] or has in row["assumed"] else ""
        lines.append(
            f"{row['job']}: {has} nodes ({', '.join(row['nodes']) or 'none'}), planned {row['planned']}, "
            f"restart-only {row['restart_only']}; {row['phase']}{guess}"
        )
    waf = answer["waf"]
    return [*lines, f"WAF now {waf['now']:.6g}, planned {waf['planned']:.6g}, restart-only {waf['restart_only']:.6g}"]


def _planner(name: str) -> Any:
    from trainwarden.actions.planners.questions import CATALOG

    module, _, attribute = CATALOG[name].partition(":")
    try:
        return getattr(import_module(module), attribute)()
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        raise ConfigError(f"plan {name}: numpy is not installed; pip install 'trainwarden[detect]'") from error


def _input(source: str) -> bytes:
    """What `source` (a file, or ``-`` for standard input) holds.

    Raises
    ------
    ConfigError
        If it cannot be read.
    """
    if source == "-" and sys.stdin is None:  # as Python has it where it is closed
        raise ConfigError("plan -: standard input is closed; pipe or redirect something into it")
    try:
        return sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        raise ConfigError(f"plan: '{source}' cannot be read ({error.strerror})") from error
