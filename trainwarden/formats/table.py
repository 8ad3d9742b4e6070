"""A data frame of another tool with what is known about it, and its columns as values, times and owners."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pandas as pd

from trainwarden.formats import names
from trainwarden.formats.cells import NOT_MEASURED, UNITS, Numbers, rank_of_cell
from trainwarden.formats.protocol import Problem
from trainwarden.formats.roles import Roles, device_name
from trainwarden.prometheus.exporters import without_port
from trainwarden.recorded.files import shown
from trainwarden.recorded.job import Floats

SIGNS_OF_TEXT: Final = 0.5  # a column of which more is no number holds words
COLUMNS_HELP: Final = "say which columns are what: --columns time=COLUMN,device=COLUMN,METRIC=COLUMN (docs/data.md)"
MAX_SHOWN: Final = 5
_RATIO: Final = re.compile(r"_ratio$")


@dataclass(slots=True)
class Table:
    """A data frame with what is known about where it comes from.

    Attributes
    ----------
    lines : sequence of int or None
        The line of each row; None where the file has no lines.
    time_s : float or None
        The time of all rows where no column holds one.
    """

    file: str
    frame: pd.DataFrame
    said: Mapping[str, str] = field(default_factory=dict)
    lines: Sequence[int] | None = None
    comma: bool = False
    time_s: float | None = None
    gpus: bool = False
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def line(self, row: int) -> int | None:
        """Where a row stands."""
        return None if self.lines is None else self.lines[row]

    def problem(self, row: int | None, column: str, what: str, remedy: str = "") -> None:
        """Note what is wrong with a cell or, without `row`, with the whole table."""
        self.problems.append(Problem(None if row is None else self.line(row), column, what, remedy))


def column_values(table: Table, column: str, heading: names.Heading | None) -> Floats | None:
    """Values of a column in the catalogue's unit; None if it holds words. What is neither is a problem."""
    numbers = Numbers(table.frame[column].tolist(), comma=table.comma)
    total = numbers.bad_count + numbers.measured
    if numbers.bad_count and (not numbers.measured or numbers.bad_count > SIGNS_OF_TEXT * total):
        return None
    for row, text in numbers.bad:
        table.problem(row, column, f"{shown(text)} is not a number", "leave the cell empty where nothing was measured")
    if numbers.bad_count > len(numbers.bad):
        table.problem(None, column, f"{numbers.bad_count - len(numbers.bad)} more cells are no numbers")
    return in_unit(numbers.values, numbers.unit, heading)


def in_unit(values: Floats, unit: str, heading: names.Heading | None) -> Floats:
    """Values with the unit of their cells ("" for none) in that of the catalogue.

    A share of one where percents are usual is seen by its fractions.
    """
    said = UNITS.get(unit.lower())
    if heading is None:
        return values * (said[1] if said is not None else 1.0)
    if said is not None and said[0] == heading.unit:
        return values * said[1]
    if _RATIO.search(heading.name) and heading.factor == 0.01 and not heading.percent and np.isfinite(values).any():
        largest = float(np.nanmax(values))
        if largest <= 1.0 and bool((np.nan_to_num(values) % 1.0 > 0.0).any()):
            return values
    return values * heading.factor


def owners(table: Table, roles: Roles, gpus: bool) -> dict[str, list[str | None]]:
    """Columns `node`, `rank`, `device` and `model` as far as the table says."""
    frame, found = table.frame, dict[str, list[str | None]]()
    if roles.node is not None:
        found["node"] = [_host(cell) for cell in frame[roles.node].tolist()]
    if roles.rank is not None:
        found["rank"] = ranks_of(table, roles.rank)
    if roles.device is not None:
        found["device"] = [device_name(cell, gpus) for cell in frame[roles.device].tolist()]
    if roles.model is not None and roles.model != roles.device:
        found["model"] = [str(cell or "").strip() for cell in frame[roles.model].tolist()]
    return found


def ranks_of(table: Table, column: str) -> list[str | None]:
    """The ranks of rows; what names none is a problem, what is blank none."""
    cells = table.frame[column].tolist()
    ranks = [rank_of_cell(cell) for cell in cells]
    wrong = [row for row, rank in enumerate(ranks) if rank is None and not _blank(cells[row])]
    for row in wrong[:MAX_SHOWN]:
        table.problem(row, column, f"{shown(str(cells[row]))} is not a rank (a whole number from 0)")
    return [None if rank is None else str(rank) for rank in ranks]


def _blank(cell: object) -> bool:
    return cell is None or str(cell).strip().strip('"').lower() in NOT_MEASURED


def _host(cell: object) -> str | None:
    text = "" if cell is None else str(cell).strip().strip('"')
    return without_port(text) or None


def tag_of(file: str) -> str:
    """The name of a series that only the file's name tells; the longest end of it that is known.

    Examples
    --------
    >>> tag_of("mlruns/0/ab/metrics/train/step_time"), tag_of("run-x-tag-perf_step_time.csv"), tag_of("train_loss.csv")
    ('train/step_time', 'perf_step_time', 'train_loss')
    >>> tag_of("metrics/system/gpu_0_power_usage_watts")
    'system/gpu_0_power_usage_watts'
    """
    name = re.sub(r"(?i)\.(?:csv|json|txt|tsv)(?:\.gz)?$", "", file.rsplit("metrics/", maxsplit=1)[-1])
    if "/metrics/" not in f"/{file}":
        name = name.rsplit("/", 1)[-1]
    name = name.split("-tag-")[-1]
    words = name.split("_")
    for start in range(len(words)):
        end = "_".join(words[start:])
        if names.duration_factor(end) is not None or names.is_rate(end):
            return name if "/" in name and start == 0 else end
    return name
