"""The metrics of a recorded folder, checked and in time order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainwarden.catalogue import lookup
from trainwarden.errors import DataError
from trainwarden.prometheus.exporters import REASONS, is_percent
from trainwarden.prometheus.values import states_of, without_blanks
from trainwarden.recorded.columns import ID_COLUMNS, TIME_COLUMNS, Columns
from trainwarden.recorded.job import Floats, Ints, MetricTable
from trainwarden.recorded.part import ReadLimit
from trainwarden.recorded.part_columns import columns_within
from trainwarden.recorded.rows import by_appearance, owners_of, rank_of, read_columns, require, time_notes, times_s_of

Flags = npt.NDArray[np.bool_]
_MODEL = "model"
_DCGM = "DCGM_"


def read_metrics(path: Path, file: str, limit: ReadLimit | None = None) -> MetricTable | None:
    """Read `metrics`, as far as `limit` allows; None if it has a header and no rows.

    A catalogue alias is renamed and scaled; DCGM's marks for "not supported" and the like are holes, and its mask of
    clock event reasons tells the throttle states too, where they have no columns of their own. Where a table has one
    metric under several of its names, the catalogue's own name is believed first, then the aliases in the order of the
    columns, cell by cell. The column ``model`` is what its maker calls a device, and no metric.

    Raises
    ------
    DataError
        One sentence with file, line and column.
    """

    def role(name: str) -> str:
        return "text" if name in ID_COLUMNS or name in ("timestamp", _MODEL) else "number"

    part = None if limit is None else columns_within(path, file, role, limit, _checked_times_s)
    columns, share, ranks = part or (read_columns(path, file, role), 1.0, set[str]())
    require(columns, TIME_COLUMNS)
    if columns.rows == 0:
        return None
    if not any(name not in TIME_COLUMNS for name in columns.numbers):
        raise DataError(f"{file} has no column with a metric")
    times_s = times_s_of(columns)
    owners = owners_of(columns, ID_COLUMNS)
    order = np.argsort(times_s, kind="stable")
    kept = order[_last_of_each(times_s[order], owners.code[order])]
    names, values = _with_states(*_metric_values(columns, kept))
    code, first = by_appearance(owners.code[kept])
    return MetricTable(
        times_s=times_s[kept],
        entity=code,
        nodes=tuple(owners.nodes[place] for place in first),
        ranks=tuple(owners.ranks[place] for place in first),
        devices=tuple(owners.devices[place] for place in first),
        names=names,
        values=values,
        replaced=columns.rows - len(kept),
        share=share,
        models=_models(columns, kept, code),
        last_rank=max((rank for rank in (*map(rank_of, ranks), *owners.ranks) if rank is not None), default=None),
        notes=time_notes(columns),
    )


def _checked_times_s(columns: Columns) -> Floats:
    require(columns, TIME_COLUMNS)
    return times_s_of(columns)


def _models(columns: Columns, kept: Ints, code: Ints) -> tuple[str, ...]:
    """The model of each entity, of several any; empty if no row tells one."""
    told = columns.texts.get(_MODEL)
    if told is None or not any(told.values):
        return ()
    models = [""] * (int(code.max()) + 1)
    for pair in np.flatnonzero(np.bincount(code * len(told.values) + told.codes[kept])).tolist():
        entity, word = divmod(pair, len(told.values))
        models[entity] = told.values[word] or models[entity]
    return tuple(models)


def _last_of_each(times_s: Floats, code: Ints) -> Ints:
    """Places of the rows that no later row of the same time and owner replaces."""
    import pandas as pd  # as in `by_appearance`

    return np.flatnonzero(~pd.DataFrame({"time_s": times_s, "owner": code}).duplicated(keep="last").to_numpy())


def _metric_values(columns: Columns, kept: Ints) -> tuple[tuple[str, ...], Floats]:
    """Metrics by catalogue name and unit; several columns of one metric are laid over one another."""
    written = [name for name in columns.numbers if name not in TIME_COLUMNS]
    sources: dict[str, list[str]] = {}
    for name in written:
        metric = lookup(name)
        sources.setdefault(metric.name if metric else name, []).append(name)
    values = np.empty((len(kept), len(sources)))
    for place, (name, columns_of) in enumerate(sources.items()):
        best = np.full(len(kept), np.nan)
        for source in sorted(columns_of, key=lambda source: source != name):
            column = _in_our_unit(columns, source, kept)
            usable = np.isnan(best) & np.isfinite(column)
            best[usable] = column[usable]
        values[:, place] = best
    return tuple(sources), values


def _in_our_unit(columns: Columns, source: str, kept: Ints) -> Floats:
    metric, column = lookup(source), columns.numbers[source][kept]
    if metric is None:
        return column
    if source.startswith(_DCGM):
        column = without_blanks(column)
        if is_percent(source, float(np.nan_to_num(column).max(initial=0.0))):
            column = np.where(_percents(columns, column, kept), 0.01 * column, column)
    return column * metric.scale_of(source)


def _percents(columns: Columns, column: Floats, kept: Ints) -> Flags:
    """Where a ratio holds percents: clusters mix versions of exporters, nodes do not."""
    node = columns.texts.get("node")
    code, size = (np.zeros(len(kept), np.int64), 1) if node is None else (node.codes[kept], len(node.values))
    largest = np.zeros(size)
    np.maximum.at(largest, code, np.nan_to_num(column))
    return np.asarray(largest[code] > 1.0)


def _with_states(names: tuple[str, ...], values: Floats) -> tuple[tuple[str, ...], Floats]:
    """And what the mask of clock event reasons tells, if there is one."""
    if REASONS not in names:
        return names, values
    told = {name: one for name, one in states_of(values[:, names.index(REASONS)]).items() if name not in names}
    return (*names, *told), np.column_stack([values, *told.values()])
