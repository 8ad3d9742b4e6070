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


def table_of_versions(voice: Voice, answers: Sequence[dict[str, Any]]) -> None:
    """One row for each version, as wide as the terminal; below it, in whole lines, why a version did not pass.

    Below that is from what each weight was measured.

    Parameters
    ----------
    answers : sequence of dict
        The objects of ``models`` in the JSON of ``trainwarden train``.
    """
    from rich.console import Console
    from rich.text import Text

    if not answers:
        voice.say("there are no models yet: run trainwarden train")
        return
    table = _columns()
    for one in answers:
        table.add_row(*map(Text, _row(one)))
    # A file or a pipe has no width of its own: nothing may be folded there.
    console = Console(file=voice.stream) if voice.stream.isatty() else Console(file=voice.stream, width=200)
    console.print(table)
    for text in _reasons(answers):
        console.print(text, markup=False, highlight=False)


def _columns() -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("detector", no_wrap=True)
    for name, side in (("weight", "right"), ("version", "right"), ("aliases", "left"), ("gate", "left"),
                       ("recall", "right"), ("false/day", "right")):  # fmt: skip
        table.add_column(name, justify="right" if side == "right" else "left", no_wrap=name != "aliases")
    return table


def _row(one: Mapping[str, Any]) -> list[str]:
    metrics = one["gate"]["metrics"]
    return [
        one["detector"],
        _weight(one),
        one["version"],
        ", ".join(one["aliases"]),
        _result(one),
        _number(metrics.get("recall")),
        _number(metrics.get("false_alarms_per_machine_day") if metrics.get("machine_days", 1.0) >= RATE_DAYS else None),
    ]


def _weight(one: Mapping[str, Any]) -> str:
    """What its votes weigh, about whichever family; nothing of versions from before that was measured."""
    found = sorted({part["weight"] for part in one.get("weights", {}).values()})
    return " to ".join(_number(weight) for weight in dict.fromkeys((*found[:1], *found[-1:])))


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
    told += [f"{one['detector']} {one['version']} weighs {part['weight']:g}{f' of {family}' if family else ''}: {why}"
             for one in answers for family, part in one.get("weights", {}).items()
             if (why := part.get("why", "")).startswith("right")]  # fmt: skip
    if any(one["gate"]["metrics"].get("injected") for one in answers):
        told.append("recall is that of injected anomalies of known size: the test jobs have no annotated faults")
    return told


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
