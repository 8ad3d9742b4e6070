"""A data frame of another tool as our tables: metrics of entities, or steps of ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pandas as pd

from trainwarden.errors import DataError
from trainwarden.formats import names
from trainwarden.formats.building import contradicted, metric_table, too_many
from trainwarden.formats.exporters.datadog_tables import plainly_named
from trainwarden.formats.protocol import Found, Misfit
from trainwarden.formats.roles import Roles, heading_of, of_gpus, roles_of
from trainwarden.formats.series import by_series, numbered, panel_metric, written_unit
from trainwarden.formats.stamps import Times
from trainwarden.formats.steps import is_loss, steps_found
from trainwarden.formats.table import COLUMNS_HELP, Table, column_values, owners, tag_of
from trainwarden.formats.tables.rank_tables import number_ranks, number_samples, quantity_of, reshaped
from trainwarden.recorded.files import shown
from trainwarden.recorded.job import Floats

MAX_TEXT: Final = 8
MOST_GPUS: Final = 64  # of a node
MIN_EPOCH_S: Final = 1e8  # 1973: what counts less is no time since 1970
_OWNERS: Final = (*names.NODE, *names.DEVICE, *names.RANK, *names.MODEL)
_TAGS: Final = ("tags", "tag", "scope", "group", "tag_set")
_PANEL: Final = "-data-"  # what Grafana puts between a panel's title and the time in the name of its download
ROUND_S: Final = 1.0  # between samples that carry no time, as for `dmon`


def interpreted(table: Table) -> Found:
    """What `table` holds.

    Raises
    ------
    DataError
        With all its problems.
    """
    table.frame = _without_tags(plainly_named(table.frame, table.file))
    table.lines = table.lines if table.lines is None or len(table.lines) == len(table.frame) else None
    reshaped(table)
    frame = table.frame
    roles = roles_of(list(frame.columns), table.said)
    found = Found(rows=len(frame))
    if not len(frame):
        found.notes.append("a header and no rows")
        return found
    _count_rows(table, roles)
    times = _times(table, roles)
    if number_ranks(table, roles):
        roles = roles_of(list(table.frame.columns), table.said)
    if number_samples(table, roles):
        roles, times = roles_of(list(table.frame.columns), table.said), None
    if roles.series is None and roles.value is not None and roles.value not in roles.as_metric:
        tag = _value_named(table, roles.value)
        frame = table.frame = frame.rename(columns={roles.value: tag})
        roles.value = None
    if roles.series is not None and roles.value is not None:
        _into(found, by_series(table, roles, times))
    elif (steps := steps_found(table, roles, times)) is not None:
        _into(found, steps)
        _more_metrics(table, roles, times, found)
    else:
        wide = numbered(table, roles, times)
        if wide is not None:
            _into(found, wide)
        else:
            one = _metrics(table, roles, times)
            _into(found, one)
    if table.problems:
        raise Misfit(table.file, table.problems)
    found.notes = [*table.notes, *found.notes]
    return found


def _value_named(table: Table, column: str) -> str:
    """What the file's name calls a column of values: a metric where it names one, else the end of the name."""
    tag = tag_of(table.file)
    if names.metric_of(tag) is not None or names.duration_factor(tag) is not None or is_loss(tag):
        return tag
    if (said := quantity_of(tag)) is not None:
        return said
    heading = panel_metric(table.file, written_unit(table, [column])) if _PANEL in table.file else None
    return heading.name if heading is not None else tag


def _count_rows(table: Table, roles: Roles) -> None:
    """Take an `index` that rises from row to row for the step, where no column is that: it counts samples, no GPUs."""
    if roles.step is not None or "device" in table.said or names.plain(roles.device or "") != "index":
        return
    counts = pd.to_numeric(table.frame[roles.device], errors="coerce").to_numpy(np.float64)
    if len(counts) > MOST_GPUS and (np.diff(counts) > 0.0).all():
        roles.step, roles.device = roles.device, None


def _without_tags(frame: pd.DataFrame) -> pd.DataFrame:
    """`frame` with a column for each key where cells hold ``gpu:0,host:a1``, as Datadog exports them."""
    column = next((one for one in frame.columns if names.plain(str(one)) in _TAGS), None)
    if column is None:
        return frame
    told = [tags_of(str(cell).split(",")) for cell in frame[column]]
    # No column for each key: a key may stand in a single row, and rows times keys are too many.
    keys = dict.fromkeys(key for tags in told for key in tags if names.known(key, _OWNERS))
    kept = [key for key in keys if key not in frame.columns]
    if not kept:
        return frame
    tags = pd.DataFrame({key: [tags.get(key) for tags in told] for key in kept}, index=frame.index, dtype=object)
    return pd.concat([frame.drop(columns=column), tags], axis=1)


def tags_of(words: Iterable[str]) -> dict[str, str]:
    """Tags as Datadog writes them.

    Examples
    --------
    >>> tags_of(["gpu:0", " host:a1", "prod"])
    {'gpu': '0', 'host': 'a1'}
    """
    return {key.strip(): value for key, colon, value in (str(word).partition(":") for word in words) if colon}


def _into(found: Found, frames: Found | pd.DataFrame | None) -> None:
    if isinstance(frames, Found):
        found.iterations += frames.iterations
        found.metrics += frames.metrics
        found.logs += frames.logs
        found.notes += frames.notes
    elif frames is not None and (table := metric_table(frames)) is not None:
        found.metrics.append(table)


def _more_metrics(table: Table, roles: Roles, times: Floats | None, found: Found) -> None:
    """Metrics of devices beside the steps, as trackers record both in one table."""
    if times is not None and (wide := numbered(table, roles, times)) is not None:
        _into(found, wide)


def _times(table: Table, roles: Roles) -> Floats | None:
    """Times of the rows; None where the table has none."""
    frame = table.frame
    if roles.time is None:
        return _rounds(table, roles) if table.time_s is None else np.full(len(frame), table.time_s)
    cells = frame[roles.time].tolist()
    if roles.date is not None:
        cells = [f"{date} {time}" for date, time in zip(frame[roles.date].tolist(), cells, strict=True)]
    if pd.api.types.is_datetime64_any_dtype(frame[roles.time]):
        cells = [str(cell) for cell in cells]
    times = Times(cells)
    if names.plain(roles.time) == "epoch" and not (times.values_s >= MIN_EPOCH_S).any():
        return None  # a pass over the data, as trainers count them, and no time
    if times.note:
        table.notes.append(times.note)
    if times.bad_count == len(cells):
        table.problem(
            0, roles.time, f"{shown(times.bad[0][1])} is no time", "name the column of times: --columns time="
        )
        return None
    for row, text in times.bad:
        what = "the cell is empty" if not text.strip() else f"{shown(text)} is no time"
        table.problem(row, roles.time, what, "write seconds since 1970 or ISO 8601")
    if times.bad_count > len(times.bad):
        table.problem(None, roles.time, f"{times.bad_count - len(times.bad)} more cells hold no time")
    return times.values_s


def _rounds(table: Table, roles: Roles) -> Floats | None:
    """Times by the order of rows where a device says whose each is: one that comes again begins the next round."""
    if roles.device is None or roles.step is not None or not of_gpus(list(table.frame.columns), roles):
        return None
    devices = table.frame[roles.device].astype(str)
    found: Floats = table.frame.groupby(devices.to_numpy()).cumcount().to_numpy().astype(np.float64) * ROUND_S
    table.notes.append(f"no times: samples taken for {ROUND_S:.0f} s apart")
    return found


def _metrics(table: Table, roles: Roles, times: Floats | None) -> pd.DataFrame | None:
    """One row for each time and entity."""
    frame = table.frame
    gpus = table.gpus or of_gpus(list(frame.columns), roles)
    columns: dict[str, Any] = {}
    words: list[str] = []
    for column in frame.columns:
        if column in roles.not_metrics and column not in roles.as_metric:
            continue
        heading = heading_of(column, roles, gpus)
        values = column_values(table, column, heading)
        if values is None:
            words.append(column)
            continue
        name = heading.name if heading is not None else str(column)
        known = columns.get(name)
        columns[name] = values if known is None else np.where(np.isfinite(known), known, values)
    if words:
        more = f" and {len(words) - MAX_TEXT} more" if len(words) > MAX_TEXT else ""
        table.notes.append(f"columns of words left out: {', '.join(words[:MAX_TEXT])}{more}")
    if times is None:
        if not table.problems and roles.step is not None and not table.said:
            raise DataError(
                f"{table.file}: steps without their times, durations or losses say nothing of the run; "
                "record the step time or the loss beside each step"
            )
        if not table.problems:
            table.problem(
                None, "", "no column holds times", f"{COLUMNS_HELP}; columns: {', '.join(frame.columns[:20])}"
            )
        return None
    if not columns:
        table.problem(None, "", "no column holds numbers", COLUMNS_HELP)
        return None
    found = pd.DataFrame({"time_s": times, **owners(table, roles, gpus), **columns})
    _check_owners(table, roles, found)
    return found


def _check_owners(table: Table, roles: Roles, found: pd.DataFrame) -> None:
    """Say so where rows of one moment say different things and no column says whose they are."""
    rows = contradicted(found)
    if not too_many(rows, len(found)):
        if rows:
            table.notes.append(f"{rows} rows repeat a moment with other values; the last one counts")
        return
    candidate = identity_candidate(table.frame, found["time_s"].to_numpy(), roles)
    looks = f"; column {candidate} looks like it: --columns device={candidate}" if candidate else f"; {COLUMNS_HELP}"
    table.problem(
        None, "", f"{rows} of {len(found)} rows say something else about the same moment and entity",
        f"a column that says whose they are is missing{looks}",
    )  # fmt: skip


def identity_candidate(frame: pd.DataFrame, times_s: Floats, roles: Roles) -> str | None:
    """The column that tells the rows of a moment apart and has the same values at every moment."""
    moments = pd.factorize(times_s)[0]
    usual = int(np.median(np.bincount(moments)))
    if usual < 2:
        return None
    for column in frame.columns:
        if column in (roles.time, roles.date):
            continue
        cells = frame[column].astype(str)
        if 2 <= cells.nunique() <= 4 * usual and int(cells.groupby(moments).nunique().median()) == usual:
            return str(column)
    return None
