"""`trainwarden plan`: a planner's answer to one question."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from trainwarden.cli.shared.options import Json
from trainwarden.cli.shared.output import Voice
from trainwarden.errors import ConfigError


class Question(msgspec.Struct, forbid_unknown_fields=True):
    """What is asked of the planner of micro-batches: ``{"micro_batch_s": [...], "total": M}``."""

    micro_batch_s: list[float]
    total: int


def plan(
    what: Annotated[Literal["microbatches"], typer.Argument(help="Which planner.")],
    source: Annotated[str, typer.Argument(metavar="[FILE]", help="JSON input; - is standard input.")] = "-",
    *,
    json: Json = None,
) -> int:
    """Ask a planner.

    Example: echo '{"micro_batch_s": [1, 1, 2], "total": 12}' | trainwarden plan microbatches
    """
    from actions.planners.microbatches import solve

    del what  # one planner so far; the word keeps the command line stable as others come
    voice = Voice(json)
    question = _question(source)
    counts = solve(question.micro_batch_s, question.total)
    slowest_s = max(m * t for m, t in zip(counts, question.micro_batch_s, strict=True))
    voice.say(f"{' '.join(map(str, counts))}  (slowest rank {slowest_s:.4f} s)")
    voice.answer({"micro_batches": list(counts), "iteration_s": slowest_s})
    return 0


def _question(source: str) -> Question:
    """What `source` (a file, or ``-`` for standard input) asks.

    Raises
    ------
    ConfigError
        If the input is not that object.
    """
    try:
        raw = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        return msgspec.json.decode(raw, type=Question)
    except OSError as error:
        raise ConfigError(f"plan: '{source}' cannot be read ({error.strerror})") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"plan: input must be {{'micro_batch_s': [...], 'total': M}}: {error}") from error
