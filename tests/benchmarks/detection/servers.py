"""Labelled server metrics (SMD, ASD, NAB) as cases: a training part, a part to be judged, and what is right there.

Halves are fixed: parameters and thresholds come from ``choose``, numbers are given for ``report``.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from tests.places import shared_data

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Half = Literal["choose", "report"]
DATASETS: Final = ("smd", "asd", "nab")
SMD: Final[dict[str, Half]] = {
    "1-2": "choose", "1-4": "choose", "1-6": "choose",
    "1-3": "report", "1-5": "report", "1-7": "report", "1-8": "report",
}  # fmt: skip
ASD: Final = range(1, 7)  # odd servers choose, even ones report
PROBATION: Final = 0.15
"""Share of each NAB series that is training: the benchmark's own probationary period (Lavin and Ahmad, 2015)."""
MINUTES: Final = {"smd": 1.0, "asd": 5.0}


@dataclass(frozen=True, slots=True)
class ServerCase:
    """One machine.

    Attributes
    ----------
    train, test : float arrays [t, d]
    labels : bool array [t]
        Of the test rows.
    blamed : tuple of (first, last, columns)
        Events with the columns that the labels blame, where the data set has them.
    every_s : float
        Seconds between two rows.
    """

    name: str
    dataset: str
    half: Half
    names: tuple[str, ...]
    train: Floats
    test: Floats
    labels: Flags
    every_s: float
    blamed: tuple[tuple[int, int, frozenset[int]], ...] = ()

    @property
    def per_day(self) -> float:
        """Samples a day."""
        return 86_400.0 / self.every_s


def listed(dataset: str) -> list[tuple[str, Half]]:
    """Names of a data set's machines and the half that each belongs to; empty without shared data."""
    data = shared_data()
    if data is None or not (data / dataset).is_dir():
        return []
    if dataset == "smd":
        return [(f"machine-{name}", half) for name, half in SMD.items()]
    if dataset == "asd":
        return [(f"omi-{number}", "choose" if number % 2 else "report") for number in ASD]
    files = sorted((data / "nab").glob("real*/*.csv.gz"))
    names = [f"{file.parent.name}/{file.name.removesuffix('.csv.gz')}" for file in files]
    return [(name, "report" if place % 2 else "choose") for place, name in enumerate(names)]


def load(dataset: str, name: str) -> ServerCase:
    """One machine of `listed`."""
    data = shared_data()
    if data is None:
        raise FileNotFoundError("there is no shared data on this machine")
    half = dict(listed(dataset))[name]
    return _nab(data / "nab", name, half) if dataset == "nab" else _server(data / dataset, dataset, name, half)


def _server(folder: Path, dataset: str, name: str, half: Half) -> ServerCase:
    names, train = _numbers(folder / f"{name}_train.csv.gz")
    columns, table = _numbers(folder / f"{name}_test.csv.gz")
    labels = table[:, columns.index("label")] > 0.5
    test = table[:, [place for place, column in enumerate(columns) if column != "label"]]
    text = (folder / f"{name}_interpretation.txt").read_text()
    every_s = MINUTES[dataset] * 60.0
    return ServerCase(name, dataset, half, tuple(names), train, test, labels, every_s, interpretation(text))


def interpretation(text: str) -> tuple[tuple[int, int, frozenset[int]], ...]:
    """Lines ``first-last:dims``, dims from 1, as columns from 0.

    Examples
    --------
    >>> interpretation("5-9:1,3") == ((5, 9, frozenset({0, 2})),)
    True
    """
    out = []
    for line in text.split():
        span, _, dims = line.partition(":")
        first, _, last = span.partition("-")
        out.append((int(first), int(last), frozenset(int(dim) - 1 for dim in dims.split(","))))
    return tuple(out)


def _numbers(file: Path) -> tuple[list[str], Floats]:
    with gzip.open(file, "rt") as lines:
        names = lines.readline().strip().split(",")
        return names, np.loadtxt(lines, delimiter=",", ndmin=2)


def _nab(folder: Path, name: str, half: Half) -> ServerCase:
    with gzip.open(folder / f"{name}.csv.gz", "rt") as lines:
        rows = [line.strip().split(",") for line in lines][1:]
    times_s = np.array([_time_s(row[0]) for row in rows])
    values = np.array([[float(row[1])] for row in rows])
    labels = np.zeros(len(rows), dtype=np.bool_)
    for first, last in json.loads((folder / "windows.json").read_text())[f"{name}.csv"]:
        labels |= (times_s >= _time_s(first)) & (times_s <= _time_s(last))
    split = int(PROBATION * len(rows))
    every_s = float(np.median(np.diff(times_s)))
    return ServerCase(name, "nab", half, ("value",), values[:split], values[split:], labels[split:], every_s)


def _time_s(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
