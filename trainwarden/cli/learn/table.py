"""What people see of versions of models: one table, and why some do not serve; for train and models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from trainwarden.cli.shared.output import Voice

if TYPE_CHECKING:
    from rich.table import Table

PROVISIONAL_SERVES: Final = (
    "provisional: too little to judge by; where there is no champion it serves with a seventh of its weight"
)
RATE_DAYS: Final = 0.5  # machine-days; five alarms of two minutes would be shown as thousands a day
NEVER_SERVED: Final = "its training run was stopped before it was complete; it is never served"


def table_of_versions(
    voice: Voice, answers: Sequence[dict[str, Any]], weights: Mapping[str, float] | None = None
) -> None:
    """One row for each version, as wide as the terminal; below it, in whole lines, why a version did not pass.

    Parameters
    ----------
    answers : sequence of dict
        The objects of ``models`` in the JSON of ``trainwarden train``.
    weights : mapping, optional
        Weight of each detector in the vote; a column of its own.
    """
    from rich.console import Console
    from rich.text import Text

    if not answers:
        voice.say("there are no models yet: run trainwarden train")
        return
    table = _columns(weights is not None)
    for one in answers:
        table.add_row(*map(Text, _row(one, weights)))
    # A file or a pipe has no width of its own: nothing may be folded there.
    console = Console(file=voice.stream) if voice.stream.isatty() else Console(file=voice.stream, width=200)
    console.print(table)
    for text in _reasons(answers):
        console.print(text, markup=False, highlight=False)


def _columns(weighted: bool) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("detector", no_wrap=True)
    if weighted:
        table.add_column("weight", justify="right")
    for name, side in (("version", "right"), ("aliases", "left"), ("gate", "left"), ("recall", "right"),
                       ("false/day", "right")):  # fmt: skip
        table.add_column(name, justify="right" if side == "right" else "left", no_wrap=name != "aliases")
    return table


def _row(one: Mapping[str, Any], weights: Mapping[str, float] | None) -> list[str]:
    metrics = one["gate"]["metrics"]
    return [
        one["detector"],
        *([] if weights is None else [_number(weights.get(one["detector"]))]),
        one["version"],
        ", ".join(one["aliases"]),
        _result(one),
        _number(metrics.get("recall")),
        _number(metrics.get("false_alarms_per_machine_day") if metrics.get("machine_days", 1.0) >= RATE_DAYS else None),
    ]


def _result(one: Mapping[str, Any]) -> str:
    """What the gate said; a version whose run was stopped before it was asked has no numbers."""
    gate = one["gate"]
    if gate["passed"]:
        return "passed"
    if gate.get("provisional"):
        return "provisional"
    return "rejected" if gate["reasons"] else "unfinished"


def _reasons(answers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why versions do not serve, or weigh less, and once what the numbers of all stand on."""
    told = [f"{one['detector']} {one['version']} {_result(one)}: {'; '.join(one['gate']['reasons']) or NEVER_SERVED}"
            for one in answers if not one["gate"]["passed"]]  # fmt: skip
    if any(one["gate"].get("provisional") for one in answers):
        told.append(PROVISIONAL_SERVES)
    if any(one["gate"]["metrics"].get("injected") for one in answers):
        told.append("recall is that of injected anomalies of known size: the test jobs have no annotated faults")
    return told


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
