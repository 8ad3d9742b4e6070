"""What tables of steps tell beside the pace: ranks that wait for data longer than the others, saves that grew long."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from trainwarden.formats import names
from trainwarden.formats.cells import UNITS
from trainwarden.formats.tables.step_parts import DATA, parts_of
from trainwarden.formats.verdicts import LEAST_RANKS, Verdict, verdict_tables
from trainwarden.recorded.job import Floats, LogTable

LEAST_STEPS: Final = 20
LONGER: Final = 3.0  # times the usual mean wait of ranks
APART: Final = 2.0  # times the longest mean wait of the others
LEAST_SHARE: Final = 0.05  # of the usual step, that the mean wait must be longer
LEAST_LONG: Final = 8  # steps that are so much longer: a single wait is an epoch's begin
MOST_RANKS: Final = 0.25  # of all that may stand apart
MOST_SHOWN: Final = 8
LEAST_SAVES: Final = 3  # before and after
SAVES_LONGER: Final = 3.0
_SAVES: Final = frozenset({"checkpoint", "checkpointing", "ckpt", "save", "saving"})
_LASTS: Final = frozenset({"time", "duration", "seconds", "sec", "secs", "s", "ms", "latency", "took", "elapsed"})
_OTHERS: Final = frozenset({"step", "size", "bytes", "gb", "mb", "count", "load", "restore", "interval", "id", "last",
                            "since", "age", "ago", "total", "next", "per", "path"})  # fmt: skip
_WORD: Final = re.compile(r"[^a-z0-9]+")


def waits_of_ranks(frame: pd.DataFrame, duration_s: Floats) -> list[LogTable]:
    """Lines about the few ranks that wait much longer for data than the others, mean over all steps.

    Parameters
    ----------
    frame : DataFrame
        `step`, `rank`, optional `time_s`, and columns of waits under their own names.
    duration_s : float array
        How long the steps of its rows took.
    """
    waits = parts_of(frame).get(DATA)
    if waits is None or "rank" not in frame.columns or not np.isfinite(duration_s).any():
        return []
    tall = pd.DataFrame({"step": frame["step"].to_numpy(), "rank": frame["rank"].to_numpy(), "wait": waits})
    table = tall[tall["rank"].notna()].groupby(["step", "rank"])["wait"].first().unstack("rank")
    known = table.notna().sum(axis=0)
    table = table[[rank for rank in table.columns if known[rank] >= LEAST_STEPS]]
    if table.shape[1] < LEAST_RANKS:
        return []
    means = table.mean(axis=0).to_numpy(np.float64)
    usual, step_s = float(np.median(means)), float(np.nanmedian(duration_s))
    late = (means >= LONGER * usual) & (means - usual >= LEAST_SHARE * step_s)
    if not late.any() or late.sum() > max(1, int(MOST_RANKS * late.size)):
        return []
    if means[late].min() < APART * means[~late].max():
        return []
    found = []
    for place in np.flatnonzero(late)[:MOST_SHOWN].tolist():
        told = _stalled(table, place, LEAST_SHARE * step_s)
        if told is not None:
            rank, step, count = told
            words = (
                f"it waits {means[place]:.2g} s for data a step, the other ranks {usual:.2g} s, of a step of "
                f"{step_s:.3g} s; {count} of {len(table)} steps from step {step} on"
            )
            found.append(Verdict(f"rank{rank}", "data", words, None, _time_s(frame, step), rank))
    return verdict_tables("data waits", found, np.nan)


def _stalled(table: pd.DataFrame, place: int, longer_s: float) -> tuple[int, int, int] | None:
    """The rank of a column of waits, the first step that it held up, and how many; None if these are few."""
    others = np.nanmedian(np.delete(table.to_numpy(np.float64), place, axis=1), axis=1)
    long = np.flatnonzero(table.iloc[:, place].to_numpy(np.float64) - others >= longer_s)
    if long.size < LEAST_LONG:
        return None
    return int(float(table.columns[place])), int(table.index[int(long[0])]), int(long.size)


def slow_saves(frame: pd.DataFrame) -> list[LogTable]:
    """A line about checkpoints whose saves take several times as long as they did, and stay so.

    Parameters
    ----------
    frame : DataFrame
        In the order of time; optional `step` and `time_s`, and columns under their own names.
    """
    for column in frame.columns:
        if not is_save(str(column)):
            continue
        said = UNITS.get(names.unit_of(str(column)))
        values = pd.to_numeric(frame[column], errors="coerce").to_numpy(np.float64)
        rows = np.flatnonzero(np.isfinite(values) & (values > 0.0))
        keys = frame["step"].to_numpy()[rows] if "step" in frame.columns else rows
        longest = pd.Series(values[rows]).groupby(keys).max()  # of all ranks that save
        place = grown(longest.tolist())
        if place is None:
            continue
        scale = said[1] if said is not None and said[0] == "seconds" else 1.0
        before, after = (float(np.median(part)) * scale for part in (longest[:place], longest[place:]))
        key = longest.index[place]
        at = f"step {int(key)}" if "step" in frame.columns else f"row {int(key) + 1}"
        words = f"saves take {after:.3g} s since {at}, {after / before:.1f} times the {before:.3g} s before"
        time_s = _time_s(frame, key) if "step" in frame.columns else _row_time_s(frame, int(key))
        return verdict_tables("saves", [Verdict("checkpoint", "storage", words)], time_s)
    return []


def grown(saves: Sequence[float]) -> int | None:
    """Where saves become several times as long for good, by a jump or bit by bit; None where they do not.

    Examples
    --------
    >>> grown([11.0, 12.0, 11.5, 90.0, 92.0, 95.0]), grown([11.0, 12.0, 90.0, 11.0, 12.0, 11.5])
    (3, None)
    >>> grown([10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0]), grown([40.0, 12.0, 12.0, 11.0, 12.0, 12.0])
    (3, None)
    """
    values = np.array(saves)
    if values.size < 2 * LEAST_SAVES:
        return None
    for place in range(LEAST_SAVES, values.size - LEAST_SAVES + 1):
        before, after = values[:place], values[place:]
        if after.min() >= 2.0 * before.max() and np.median(after) >= SAVES_LONGER * np.median(before):
            return place
    rises = bool((np.diff(values) > 0.0).mean() >= 0.8)
    first, last = float(np.median(values[:LEAST_SAVES])), float(np.median(values[-LEAST_SAVES:]))
    return LEAST_SAVES if rises and last >= SAVES_LONGER * first else None


def is_save(name: str) -> bool:
    """Whether a column tells how long saving a checkpoint took.

    Examples
    --------
    >>> [is_save(name) for name in ("checkpoint_save_s", "ckpt/save_time", "save_duration_ms", "checkpoint_size_s")]
    [True, True, True, False]
    >>> [is_save(name) for name in ("checkpoint_step", "save", "loss", "time_since_checkpoint_s")]
    [False, False, False, False]
    """
    words = set(_WORD.split(name.lower()))
    return bool(words & _SAVES and words & _LASTS) and not words & _OTHERS


def _time_s(frame: pd.DataFrame, step: float) -> float:
    rows = np.flatnonzero(frame["step"].to_numpy() == step)
    return _row_time_s(frame, int(rows[0])) if rows.size else float("nan")


def _row_time_s(frame: pd.DataFrame, row: int) -> float:
    return float(frame["time_s"].iloc[row]) if "time_s" in frame.columns else float("nan")
