"""One row of ``annotations.csv``: what it says, what is wrong with it, and how it is written."""

from __future__ import annotations

import csv
import datetime
import io
import math
from collections.abc import Sequence
from typing import Final, Literal, get_args

import msgspec

from trainwarden.detectors.job.samples import Entity
from trainwarden.errors import DataError
from trainwarden.records import IncidentKind

FILE: Final = "annotations.csv"
COLUMNS: Final = ("job", "from_s", "to_s", "label", "kind", "suspects", "note")

Label = Literal["normal", "fault", "initialisation", "ignore", "suggested", "refused"]
"""What a stretch was; the last two say what `annotate suggest` found and nobody has confirmed, or somebody has refused.
"""


class Culprit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who was at fault; whatever of rank, node, device is unknown is None."""

    rank: int | None = None
    node: str | None = None
    device: str | None = None

    def is_of(self, entity: Entity) -> bool:
        """Whether whatever is known of the culprit is so of `entity`.

        Examples
        --------
        >>> Culprit(node="n17").is_of(Entity("n17", "mlx5_0")), Culprit(node="n17", rank=3).is_of(Entity("n17", rank=4))
        (True, False)
        """
        pairs = ((self.rank, entity.rank), (self.node, entity.node), (self.device, entity.device))
        known = [(mine, theirs) for mine, theirs in pairs if mine is not None]
        return bool(known) and all(mine == theirs for mine, theirs in known)

    def __str__(self) -> str:
        found = (("rank", self.rank), ("node", self.node), ("device", self.device))
        return " ".join(f"{name}={value}" for name, value in found if value is not None)


class Annotation(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of one job; `from_s` None means from the beginning, `to_s` None to the end."""

    job: str
    label: Label
    from_s: float | None = None
    to_s: float | None = None
    kind: str | None = None
    suspects: tuple[Culprit, ...] = ()
    note: str = ""


def parse_suspects(text: str) -> tuple[Culprit, ...]:
    """Suspects as they stand in the file.

    Raises
    ------
    ValueError
        One clause on what is wrong.

    Examples
    --------
    >>> [str(one) for one in parse_suspects("device=mlx5_0 node=n17; rank=136")]
    ['node=n17 device=mlx5_0', 'rank=136']
    """
    found = []
    for word in text.split(";"):
        parts: dict[str, str] = {}
        for pair in word.split():
            name, equals, value = pair.partition("=")
            if name not in ("rank", "node", "device") or not equals or not value or name in parts:
                raise ValueError(f"suspects has '{pair[:80]}' where rank=, node= or device= belongs")
            parts[name] = value
        if not parts:
            continue
        rank = parts.pop("rank", None)
        if rank is not None and not (rank.isascii() and rank.isdigit() and len(rank) <= 6):
            raise ValueError(f"suspects has a rank '{rank[:80]}' that is no rank")
        found.append(Culprit(rank=None if rank is None else int(rank), **parts))
    return tuple(found)


def parse_time(text: str) -> float | None:
    """Unix seconds of a number or an ISO 8601 time; None if empty.

    Raises
    ------
    ValueError
        If it is neither.

    Examples
    --------
    >>> parse_time("2026-01-01T00:00:00")
    1767225600.0
    """
    if not text.strip():
        return None
    try:
        value = float(text)
    except ValueError:
        try:
            at = datetime.datetime.fromisoformat(text.strip())
        except ValueError as error:
            raise ValueError(f"'{text[:80]}' is neither seconds nor an ISO 8601 time") from error
        value = (at if at.tzinfo else at.replace(tzinfo=datetime.UTC)).timestamp()
    if not math.isfinite(value):
        raise ValueError(f"'{text[:80]}' is no time")
    return value


def checked(cells: dict[str, str]) -> tuple[Annotation | None, list[str]]:
    """The annotation of one row, or what is wrong with it, one clause each."""
    cells = {name: cell.strip() for name, cell in cells.items()}
    mistakes = []
    times: dict[str, float | None] = {}
    if not cells["job"]:
        mistakes.append("job is empty")
    for name in ("from_s", "to_s"):
        try:
            times[name] = parse_time(cells[name])
        except ValueError:
            mistakes.append(f"{name} '{cells[name][:80]}' is neither seconds nor an ISO 8601 time")
    from_s, to_s = times.get("from_s"), times.get("to_s")
    if from_s is not None and to_s is not None and from_s >= to_s:
        mistakes.append("from_s is not before to_s")
    label, kind = cells["label"], cells.get("kind", "")
    if label not in get_args(Label):
        mistakes.append(f"label '{label[:80]}' is none of {', '.join(get_args(Label))}")
    elif label == "fault" and not kind:
        mistakes.append("a fault needs a kind")
    elif label != "fault" and kind:
        mistakes.append(f"kind belongs to label fault, not to {label}")
    if kind and kind not in get_args(IncidentKind):
        mistakes.append(f"kind '{kind[:80]}' is none of {', '.join(get_args(IncidentKind))}")
    suspects: tuple[Culprit, ...] = ()
    try:
        suspects = parse_suspects(cells.get("suspects", ""))
    except ValueError as error:
        mistakes.append(str(error))
    if mistakes:
        return None, mistakes
    row = {**cells, "from_s": from_s, "to_s": to_s, "kind": kind or None, "suspects": suspects}
    return msgspec.convert(row, Annotation), []


def row_of(annotation: Annotation) -> list[str]:
    times = ["" if one is None else repr(one) for one in (annotation.from_s, annotation.to_s)]
    suspects = "; ".join(str(one) for one in annotation.suspects)
    note = " ".join(annotation.note.split())
    return [annotation.job, *times, annotation.label, annotation.kind or "", suspects, note]


def line_of(row: Sequence[str], header: Sequence[str]) -> str:
    """`row` in the order of the file's own columns."""
    cells = dict(zip(COLUMNS, row, strict=True))
    lost = [name for name, cell in cells.items() if cell and name not in header]
    if lost:
        raise DataError(f"{FILE} has no column {', '.join(lost)}; add it to the first line")
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow([cells[name] for name in header])
    return out.getvalue()
