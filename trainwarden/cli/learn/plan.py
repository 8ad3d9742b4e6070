"""`trainwarden plan`: a planner's answer to one question."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from trainwarden.cli.shared.options import Json
from trainwarden.cli.shared.output import Voice
from trainwarden.errors import ConfigError


def plan(
    what: Annotated[Literal["microbatches", "topology", "ladder", "cluster"], typer.Argument(help="Which planner.")],
    source: Annotated[str, typer.Argument(metavar="[FILE]", help="JSON input; - is standard input.")] = "-",
    *,
    json: Json = None,
    example: Annotated[bool, typer.Option("--example", help="Print an input that may be asked, and end.")] = False,
) -> int:
    """Ask a planner.

    Example: trainwarden plan cluster --example | trainwarden plan cluster --json
    """
    from trainwarden.actions.planners.questions.protocol import read

    planner = _planner(what)
    voice = Voice(json)
    if example:
        voice.say(planner.example)
        return 0
    answer = planner.answer(read(what, planner.question, _input(source)))
    voice.say(planner.line(answer))
    voice.answer(answer)
    return 0


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
    try:
        return sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        raise ConfigError(f"plan: '{source}' cannot be read ({error.strerror})") from error
