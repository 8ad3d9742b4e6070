"""Tables of training steps: their durations as they are written, else from the times between rows."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import numpy as np
import pandas as pd

from trainwarden.formats import names
from trainwarden.formats.building import iteration_table
from trainwarden.formats.cells import UNITS, Numbers
from trainwarden.formats.protocol import Found
from trainwarden.formats.roles import Roles
from trainwarden.formats.table import Table, ranks_of
from trainwarden.formats.tables.step_parts import NOTE as PARTS_NOTE
from trainwarden.formats.tables.step_parts import parts_of, step_of_parts
from trainwarden.formats.text.waits_of_ranks import is_save, slow_saves, waits_of_ranks
from trainwarden.recorded.job import Floats, LogTable

DERIVED: Final = "step times"  # that follow from something else, as notes of them begin
_TAKEN_MS: Final = "taken for milliseconds: rows are so far apart"
PAUSE: Final = 8.0  # times the usual distance of rows: an evaluation or a restart lies between
_CLOCKS: Final = ("_runtime", "elapsed_time")  # a run's own, in seconds or as h:mm:ss
# What trainers call the time since their own start, after a slash or a bar where they name a group of metrics.
_SINCE_START: Final = frozenset({
    "elapsed", "elapsed_s", "elapsed_sec", "elapsed_seconds", "time_elapsed", "wall", "wall_clock", "walltime",
    "wall_time", "runtime", "run_time", "train_time", "training_time", "total_time", "relative_time", "time", "seconds",
    "train_wall", "train_runtime",
})  # fmt: skip
_PASSED: Final = frozenset({"time", "seconds", "secs", "sec", "s", "ms", "duration", "per", "train"})
# Words that only a table of a run has, so that its steps are the training's.
_OF_RUNS: Final = frozenset({"lr", "learning", "acc", "accuracy", "grad", "epoch", "perplexity", "ppl", "tokens",
                             "samples", "reward", "loss"})  # fmt: skip
_FEWEST_ROWS: Final = 8
_NORMS: Final = ("grad_norm", "gnorm", "grad norm", "gradient_norm", "global_grad_norm", "total_grad_norm")
_APART: Final = re.compile(r"[^a-z0-9]+")
_NO_NUMBERS: Final = ("nan", "-nan", "inf", "-inf", "infinity", "-infinity")


def steps_found(table: Table, roles: Roles, times: Floats | None) -> Found | None:
    """The steps that a table of another tool holds; None if it is no table of steps."""
    if roles.step is None or roles.step not in table.frame.columns:
        return None
    step = Numbers(table.frame[roles.step].tolist(), comma=table.comma)
    if not step.measured:
        return None
    columns: dict[str, object] = {"step": step.values}
    if times is not None:  # MMEngine's `time` is that of one step
        columns["duration" if roles.rank is None and _wobbles(times) else "time_s"] = times
    of_run = _of_run(table, roles)
    for column in table.frame.columns:
        if column in (roles.time, roles.step, roles.date):
            continue
        passed = roles.duration is None and _passed(str(column), roles.step)
        if roles.duration == column or passed or _of_interest(str(column)):
            cells = table.frame[column].tolist()
            numbers = Numbers(_seconds(cells) if column in _CLOCKS else cells, comma=table.comma)
            values: object = _in_seconds(numbers, str(column))
            if is_loss(str(column)):
                values = losses_of(table.frame[column].tolist(), numbers.values)
            called = "duration" if roles.duration == column or (passed and _wobbles(numbers.values)) else str(column)
            columns[called] = values
            for row, text in numbers.bad:
                table.problem(row, str(column), f"{text[:60]!r} is not a number", "leave the cell empty")
    ids: dict[str, list[str | None]] = {}
    if roles.rank is not None:
        ids["rank"] = ranks_of(table, roles.rank)
    if roles.node is not None:
        ids["node"] = [None if cell is None else str(cell).strip() for cell in table.frame[roles.node].tolist()]
    frame = pd.DataFrame({**columns, **ids})
    return _noted(steps_from(frame, table.notes, of_run), table)


def _in_seconds(numbers: Numbers, column: str) -> Floats:
    """Values whose cells carry a unit of time as the column's name means them."""
    said = UNITS.get(numbers.unit.lower())
    if said is None or said[0] != "seconds":
        return numbers.values
    factor = names.duration_factor(column)
    if factor is None:
        part = names.part_factor(column)
        factor = part[1] if part is not None else None
    return np.asarray(numbers.values * (said[1] / (factor or 1.0)))


def _noted(found: Found | None, table: Table) -> Found | None:
    if found is not None and not found.iterations:
        table.notes.append("no column holds step times, and none follow from times of rows: the pace was not judged")
    return found


def _wobbles(values: Floats) -> bool:
    """Whether numbers rise and fall as durations do, and are no readings of a clock."""
    known = values[np.isfinite(values)]
    return known.size >= _FEWEST_ROWS and bool((known < 1e6).all()) and float((np.diff(known) < 0.0).mean()) > 0.2


def _rises(values: Floats) -> bool:
    """Whether numbers only grow, as readings of a clock do."""
    known = values[np.isfinite(values)]
    return known.size >= _FEWEST_ROWS and bool((np.diff(known) > 0.0).all())


def _passed(name: str, step: str) -> bool:
    """Whether a name says that a time passed, and nothing of what but the table's own step."""
    words = set(_APART.split(names.plain(name).split("/")[-1])) - {names.plain(step)}
    return bool(words) and words <= _PASSED


def _of_run(table: Table, roles: Roles) -> bool:
    """Whether nothing stands beside steps and times, or a word that only a run's table has."""
    others = [str(one) for one in table.frame.columns if one not in (roles.time, roles.step, roles.date)]
    return all(map(_since_start, others)) or any(_OF_RUNS.intersection(_APART.split(one.lower())) for one in others)


def _since_start(name: str) -> bool:
    return re.split(r"[/|]", names.plain(name))[-1].replace(" ", "_") in _SINCE_START


def losses_of(cells: list[object], values: Floats) -> list[object]:
    """Losses; one that is written as no number is a loss that is none, and no hole."""
    found: list[object] = []
    for cell, value in zip(cells, values.tolist(), strict=True):
        said = cell.strip().strip('"').lower() if isinstance(cell, str) else ""
        found.append(said if said in _NO_NUMBERS else None if np.isnan(value) else value)
    return found


def _seconds(cells: list[object]) -> list[object]:
    """Clock readings such as ``1 day, 0:03:20`` in seconds; others are left as they are."""
    found = []
    for cell in cells:
        passed = pd.to_timedelta(cell, errors="coerce") if isinstance(cell, str) and ":" in cell else pd.NaT
        found.append(cell if passed is pd.NaT else passed.total_seconds())
    return found


def _of_interest(name: str) -> bool:
    return (
        names.duration_factor(name) is not None or names.is_rate(name) or is_loss(name)
        or names.part_factor(name) is not None or names.plain(name) in ("steps", *_CLOCKS)
        or _since_start(name) or is_save(name)
    )  # fmt: skip


def is_loss(name: str) -> bool:
    """Whether a column holds the training's loss or its gradient norm.

    Examples
    --------
    >>> [is_loss(name) for name in ("train/loss", "run-1 - loss", "val/loss", "grad_norm", "lr", "train/CE loss")]
    [True, True, False, True, False, True]
    >>> [is_loss(name) for name in ("reduced_train_loss", "eval_loss", "loss_scale", "loss/train/total", "packet_loss")]
    [True, False, False, True, False]
    """
    bare = names.plain(name).rsplit(" - ", 1)[-1]
    if bare.split("/")[-1] in _NORMS:
        return True
    words = _APART.split(bare.lower().removesuffix("_step"))  # Lightning's name of what is logged each step
    told = words[-1] == "loss" or (words[0] == "loss" and "train" in words) or "crossentropyloss" in words
    return told and not names.OTHER_LOSSES.intersection(words)


def steps_from(frame: pd.DataFrame, notes: list[str], of_run: bool = False) -> Found | None:
    """Iterations and losses of a frame with `step` and columns under their own names; None if it has neither.

    Durations are believed in this order: written ones, throughput (the job's usual step is one, so only its changes
    count), the run's own clock, the times of rows. The last two only where a loss is told or `of_run` is true.
    """
    frame = frame[np.isfinite(frame["step"])].sort_values("step", kind="stable")
    found = Found(logs=[*_losses(frame), *slow_saves(frame)])
    durations, note = _durations(frame, of_run)
    if durations is not None:
        found.logs += waits_of_ranks(frame, durations)
        if note:
            notes.append(note)
        columns = {"step": frame["step"].to_numpy(), "duration_s": durations}
        for name in ("time_s", "rank", "node", "steps"):
            if name in frame.columns:
                columns[name] = frame[name].to_numpy()
        columns |= parts_of(frame, 1e-3 if note.endswith(_TAKEN_MS) else 1.0)
        if (iterations := iteration_table(pd.DataFrame(columns))) is not None:
            found.iterations.append(replace(iterations, notes=(DERIVED,) if note.startswith(DERIVED) else ()))
    return found if found.iterations or found.logs else None


def _durations(frame: pd.DataFrame, of_run: bool) -> tuple[Floats | None, str]:
    for column in frame.columns:
        factor = 1.0 if column == "duration" else names.duration_factor(str(column))
        if factor is not None and np.isfinite(frame[column]).sum() > 1 and not _rises(frame[column].to_numpy()):
            values = frame[column].to_numpy(np.float64) * factor
            if factor == 1.0 and _milliseconds(frame, values):
                return values * 1e-3, f"{column} {_TAKEN_MS}"
            return values, ""
    for column in frame.columns:
        if names.is_rate(str(column)) and np.isfinite(frame[column]).sum() > 1:
            values = frame[column].to_numpy(np.float64)
            usual = _between(frame)
            level = float(np.nanmedian(np.where(values > 0, values, np.nan)))
            if not np.isfinite(level):
                continue
            scale = float(np.nanmedian(usual)) if usual is not None and np.isfinite(usual).any() else 1.0
            with np.errstate(divide="ignore"):
                return scale * level / np.where(values > 0, values, np.nan), f"step times follow from {column}"
    if (taken := step_of_parts(frame)) is not None:
        return taken, PARTS_NOTE
    # A system metric has a count of its own samples, which are no steps: only who tells a loss tells of steps.
    told = of_run or any(is_loss(str(one)) for one in frame.columns)
    between = _between(frame) if told else None
    if between is not None:
        return between, "step times taken from the times between rows"
    return None, ""


def _milliseconds(frame: pd.DataFrame, values: Floats) -> bool:
    """Whether durations are a thousand times the distance of the rows' own times."""
    between = _between(frame)
    if between is None:
        return False
    ratio = float(np.nanmedian(values)) / max(float(np.nanmedian(between)), 1e-9)
    return 300.0 < ratio < 3_000.0


def _between(frame: pd.DataFrame) -> Floats | None:
    """Time for each step since the row before, NaN where a pause lies between; by the run's clock or the wall's."""
    own = [one for one in frame.columns if _since_start(str(one)) and _rises(frame[one].to_numpy(np.float64))]
    clock = next((one for one in (*_CLOCKS, *own, "time_s") if one in frame.columns), None)
    if clock is None or len(frame) < 3 or "rank" in frame.columns:
        return None
    passed = np.diff(frame[clock].to_numpy(np.float64), prepend=np.nan)
    steps = np.diff(frame["step"].to_numpy(np.float64), prepend=np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.where((steps > 0) & (passed > 0), passed / steps, np.nan)
    usual = float(np.nanmedian(each)) if np.isfinite(each).any() else np.nan
    return np.where(each <= PAUSE * usual, each, np.nan)


def _losses(frame: pd.DataFrame) -> list[LogTable]:
    """Losses and gradient norms as the lines that a trainer would have printed, so that they are judged alike."""
    columns = [one for one in frame.columns if is_loss(str(one))]
    if not columns:
        return []
    lines, times, ranks = [], [], []
    owners = frame["rank"].tolist() if "rank" in frame.columns else [None] * len(frame)
    clock = frame["time_s"].to_numpy(np.float64) if "time_s" in frame.columns else np.full(len(frame), np.nan)
    for row, step in enumerate(frame["step"].to_numpy()):
        told = [(names.plain(str(one)).split("/")[-1].replace("_", " ").replace("train ", "").replace("training ", ""),
                 frame[one].iloc[row]) for one in columns]  # fmt: skip
        said = [f"{name}: {value}" for name, value in told if value is not None and not _hole(value)]
        if said:
            lines.append(f"step {int(step)} | " + " | ".join(said))
            times.append(clock[row])
            ranks.append(None if (owner := owners[row]) is None or _hole(owner) else int(owner))
    if not lines:
        return []
    return [LogTable("losses", np.array(times), (None,) * len(lines), tuple(ranks), lines)]


def _hole(value: object) -> bool:
    return isinstance(value, float) and np.isnan(value)
