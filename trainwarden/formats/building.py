"""Our own tables from data frames, and several tables of one kind as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from trainwarden.prometheus.exporters import REASONS
from trainwarden.prometheus.values import possible, states_of, without_blanks
from trainwarden.recorded.iterations import counted_s
from trainwarden.recorded.job import Floats, Ints, IterationTable, MetricTable

IDS: Final = ("node", "rank", "device")
SPLITS: Final = ("compute_s", "wait_s", "pause_s", "micro_batches")
FEW_SHARE: Final = 0.1  # of the rows may be written again with other values: a correction
LEAST_ROWS: Final = 8


def metric_table(frame: pd.DataFrame) -> MetricTable | None:
    """A table of metrics.

    Parameters
    ----------
    frame : DataFrame
        `time_s`, optional `node`, `rank`, `device` and `model`, and a column of floats for each metric.
    """
    from trainwarden.catalogue import CATALOGUE

    names = [name for name in frame.columns if name not in ("time_s", *IDS, "model")]
    frame = frame[np.isfinite(frame["time_s"])]
    frame = frame.dropna(axis=0, how="all", subset=names) if names else frame.iloc[:0]
    if not len(frame):
        return None
    frame = frame.sort_values("time_s", kind="stable")
    ids = [name for name in IDS if name in frame.columns]
    entity = frame.groupby(ids, dropna=False, sort=False).ngroup() if ids else pd.Series(0, frame.index)
    first = np.unique(entity.to_numpy(), return_index=True)[1]
    owners = {name: [_word(one) for one in frame[name].iloc[first]] if name in ids else [None] * len(first)
              for name in IDS}  # fmt: skip
    models = tuple(str(one or "") for one in frame["model"].iloc[first]) if "model" in frame.columns else ()
    joined = frame[names].assign(_time=frame["time_s"].to_numpy(), _entity=entity.to_numpy())
    once = joined.groupby(["_time", "_entity"], sort=True).last()
    values = once[names].to_numpy(dtype=np.float64, copy=True)
    for place, name in enumerate(names):
        if name in CATALOGUE:
            values[:, place] = possible(name, without_blanks(values[:, place]))
    table_names = tuple(names)
    if REASONS in names:
        told = {one: column for one, column in states_of(values[:, names.index(REASONS)]).items() if one not in names}
        table_names, values = (*names, *told), np.column_stack([values, *told.values()])
    times_s = once.index.get_level_values(0).to_numpy(dtype=np.float64)
    ranks = tuple(None if one is None else int(float(one)) for one in owners["rank"])
    return MetricTable(
        times_s=times_s, entity=once.index.get_level_values(1).to_numpy(dtype=np.int64), nodes=tuple(owners["node"]),
        ranks=ranks, devices=tuple(owners["device"]), names=table_names, values=values,
        replaced=contradicted(frame) if len(once) < len(frame) else 0, models=models if any(models) else (),
        last_rank=max((rank for rank in ranks if rank is not None), default=None),
    )  # fmt: skip


def contradicted(frame: pd.DataFrame) -> int:
    """Rows that say something else about a moment and an entity than another row does."""
    names = [name for name in frame.columns if name not in ("time_s", *IDS, "model")]
    keys = ["time_s", *(name for name in IDS if name in frame.columns)]
    again = frame.duplicated(keys, keep=False)
    if not names or not again.any():
        return 0
    part = frame[again]
    differ = (part.groupby(keys, dropna=False)[names].nunique() > 1).any(axis=1)
    sizes = part.groupby(keys, dropna=False).size()
    return int((sizes[differ] - 1).sum())


def too_many(replaced: int, rows: int) -> bool:
    """Whether so many rows contradict others that a column which says whose they are must be missing."""
    return rows >= LEAST_ROWS and replaced > max(2, FEW_SHARE * rows)


def iteration_table(frame: pd.DataFrame) -> IterationTable | None:
    """A table of iterations.

    Parameters
    ----------
    frame : DataFrame
        `step`, `duration_s`, optional `time_s` (end of the step), `rank`, `node`, `steps` and the parts of a step.
    """
    frame = frame[np.isfinite(frame["step"]) & (frame["duration_s"] > 0.0) & np.isfinite(frame["duration_s"])]
    if not len(frame):
        return None
    ids = [name for name in ("node", "rank") if name in frame.columns]
    entity = frame.groupby(ids, dropna=False, sort=False).ngroup() if ids else pd.Series(0, frame.index)
    code: Ints = np.asarray(entity.to_numpy(), dtype=np.int64)
    first = np.unique(code, return_index=True)[1]
    step, duration_s = frame["step"].to_numpy(np.int64), frame["duration_s"].to_numpy(np.float64)
    steps: Ints = np.ones(len(frame), np.int64)
    if "steps" in frame:
        steps = np.asarray(frame["steps"].fillna(1).to_numpy(), dtype=np.int64)
    timed = "time_s" in frame.columns and bool(np.isfinite(frame["time_s"]).all())
    end_s = frame["time_s"].to_numpy(np.float64) if timed else counted_s(code, step, duration_s, steps)
    order = np.argsort(end_s, kind="stable")
    nothing = np.full(len(frame), np.nan)
    splits = {name: (frame[name].to_numpy(np.float64) if name in frame else nothing)[order] for name in SPLITS}
    ranks = [_word(one) for one in frame["rank"].iloc[first]] if "rank" in ids else [None] * len(first)
    nodes = [_word(one) for one in frame["node"].iloc[first]] if "node" in ids else [None] * len(first)
    return IterationTable(
        rank=code[order], nodes=tuple(nodes),
        ranks=tuple(None if one in (None, "nan") else int(float(one)) for one in ranks),  # records may name none
        step=step[order], end_s=end_s[order], duration_s=duration_s[order], compute_s=splits["compute_s"],
        wait_s=splits["wait_s"], pause_s=splits["pause_s"], micro_batches=splits["micro_batches"],
        steps=steps[order], timed=timed,
    )  # fmt: skip


def metric_frame(table: MetricTable) -> pd.DataFrame:
    """The inverse of `metric_table`."""
    columns: dict[str, object] = {"time_s": table.times_s}
    for name, words in zip(IDS, (table.nodes, table.ranks, table.devices), strict=True):
        if any(word is not None for word in words):
            columns[name] = np.array([None if word is None else str(word) for word in words], object)[table.entity]
    if table.models:
        columns["model"] = np.array(table.models, object)[table.entity]
    columns |= {name: table.values[:, place] for place, name in enumerate(table.names)}
    return pd.DataFrame(columns)


def joined_metrics(tables: Sequence[MetricTable]) -> MetricTable | None:
    """Several tables as one; of the same moment and entity each fills the holes of those before it."""
    if len(tables) <= 1:
        return tables[0] if tables else None
    return metric_table(pd.concat([metric_frame(table) for table in tables], ignore_index=True))


def joined_iterations(tables: Sequence[IterationTable]) -> IterationTable | None:
    """Several tables as one."""
    if len(tables) <= 1:
        return tables[0] if tables else None
    frames = []
    for table in tables:
        columns: dict[str, object] = {"step": table.step, "duration_s": table.duration_s, "steps": table.steps}
        columns |= {name: getattr(table, name) for name in SPLITS}
        if all(one.timed for one in tables):
            columns["time_s"] = table.end_s
        for name, words in (("node", table.nodes), ("rank", table.ranks)):
            columns[name] = np.array([None if word is None else str(word) for word in words], object)[table.rank]
        frames.append(pd.DataFrame(columns))
    return iteration_table(pd.concat(frames, ignore_index=True))


def _word(cell: object) -> str | None:
    return None if cell is None or cell == "" or (isinstance(cell, float) and np.isnan(cell)) else str(cell)


def spaced(times_s: Floats) -> float:
    """The usual distance of two different times; NaN if there is one time only."""
    distinct = np.unique(times_s[np.isfinite(times_s)])
    return float(np.median(np.diff(distinct))) if distinct.size > 1 else float("nan")
