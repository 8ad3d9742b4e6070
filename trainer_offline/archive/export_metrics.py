"""One archived job's metrics as a table of a recorded folder, all of it or as much as fits into memory.

A part is read in two streamed passes over the job's files: the first reads who was measured when, the second the values
of the chosen nodes and stretches; row groups outside of them are not read at all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from trainwarden.errors import DataError
from trainwarden.recorded.job import Ints
from trainwarden.recorded.part import Part, ReadLimit, Survey
from trainwarden.trainer_offline.archive.atomic import disk, whole_file
from trainwarden.trainer_offline.archive.reader import batches

_BLOCK_ROWS = 262_144
_MAX_CELLS = 4_000_000  # of a wide block in memory: 32 MB
_SEEN_ROWS = 262_144  # metrics rows remembered to know one that comes twice: minutes of a large job
_WORDS = ("node", "device", "model")


def export_metrics(folder: Path, job: str, path: Path, days: Sequence[str] | None) -> int:
    """One row for each record and device, one column for each metric that the job has anywhere.

    A device that was one rank's all the time is that rank's in every row, as in a recording straight from the bus.
    """
    names: dict[str, int] = {}
    ranks: dict[tuple[str, str], set[int]] = {}
    for batch in batches(folder, "metrics", job, days=days, columns=["node", "device", "rank", "name"]):
        for name in batch.column("name").dictionary_decode().unique().to_pylist():
            names.setdefault(name, len(names))
        told = batch.filter(batch.column("rank").is_valid()).to_pandas()[["node", "device", "rank"]].drop_duplicates()
        for node, device, rank in told.itertuples(index=False):
            ranks.setdefault((node, device), set()).add(int(rank))
    of_one = {who: min(found) for who, found in ranks.items() if len(found) == 1}
    found = batches(folder, "metrics", job, days=days)
    return write_metrics(found, list(names), path, of_one) if names else 0


def write_metrics(
    found: Iterator[Any], metrics: Sequence[str], path: Path, of_one: Mapping[tuple[str, str], int] | None = None
) -> int:
    """Write rows of the archive's metrics, in the order of the bus, as a table with a column for each of `metrics`.

    Parameters
    ----------
    of_one : mapping, optional
        The rank whose a device of a node is, for a column ``rank``; without any there is none.

    Returns
    -------
    int
        Rows written.
    """
    names = {name: place for place, name in enumerate(metrics)}
    ids = [("time_s", pa.float64()), *((name, pa.string()) for name in _WORDS)]
    whose = [("rank", pa.int32())] if of_one else []
    schema = pa.schema([*ids, *((name, pa.float64()) for name in names)])
    written = pa.schema([*ids, *whose, *((name, pa.float64()) for name in names)])
    seen: OrderedDict[int, None] = OrderedDict()
    rows = 0
    with whole_file(path) as file, parquet.ParquetWriter(file, written, compression="zstd") as writer:
        for table in _whole_records(found):
            for wide in _wide(table, names, schema, seen):
                writer.write_table(_owned(wide, of_one) if of_one else wide)
                rows += wide.num_rows
    return rows


def _owned(wide: Any, of_one: Mapping[tuple[str, str], int]) -> Any:
    """With a column of the rank that each row's device is of."""
    who = zip(wide.column("node").to_pylist(), wide.column("device").to_pylist(), strict=True)
    return wide.add_column(1 + len(_WORDS), "rank", pa.array([of_one.get(one) for one in who], pa.int32()))


def _whole_records(found: Iterator[Any]) -> Iterator[Any]:
    """Tables that end where a record ends: the cells of one record lie together, but batches cut anywhere."""
    held: Any | None = None
    for batch in found:
        table = pa.Table.from_batches([batch])
        if held is not None:
            table = pa.concat_tables([held, table])
        offsets = table.column("bus_offset").to_numpy()
        last = int(np.searchsorted(offsets[::-1] != offsets[-1], True)) if len(offsets) else 0
        cut = len(offsets) - last
        if cut:
            yield table.slice(0, cut)
        held = table.slice(cut)
    if held is not None and held.num_rows:
        yield held


def _wide(table: Any, names: dict[str, int], schema: Any, seen: OrderedDict[int, None]) -> Iterator[Any]:
    table = table.unify_dictionaries().combine_chunks()
    offsets = table.column("bus_offset").to_numpy()
    partitions = table.column("bus_partition").to_numpy()
    record = np.concatenate([[0], np.cumsum((np.diff(offsets) != 0) | (np.diff(partitions) != 0))])
    words = {name: table.column(name).chunk(0) for name in (*_WORDS, "name")}
    devices, metrics = words["device"], words["name"]
    device = devices.indices.to_numpy()
    key = record * len(devices.dictionary) + device
    row, first = pd.factorize(key)[0], np.flatnonzero(~pd.Series(key).duplicated())
    code = np.array([names[name] for name in metrics.dictionary.to_pylist()], np.int64)[metrics.indices.to_numpy()]
    values = table.column("value").to_numpy()
    times = table.column("time_s").to_numpy()[first]
    heads = [words[name].take(pa.array(first)) for name in _WORDS]
    by_row = np.argsort(row, kind="stable")
    bounds = np.searchsorted(row[by_row], np.arange(len(first) + 1))
    step = max(1, _MAX_CELLS // len(names))
    for start in range(0, len(first), step):
        end = min(start + step, len(first))
        cells = by_row[bounds[start] : bounds[end]]
        block = np.full((end - start, len(names)), np.nan)
        block[row[cells] - start, code[cells]] = values[cells]
        ids = [pa.array(times[start:end]), *(head.slice(start, end - start).dictionary_decode() for head in heads)]
        new = _unseen(block, ids, seen)
        columns = [pa.array(block[:, index], mask=np.isnan(block[:, index])) for index in range(len(names))]
        yield pa.Table.from_arrays([*ids, *columns], schema=schema).filter(pa.array(new))


def _unseen(block: Any, ids: Sequence[Any], seen: OrderedDict[int, None]) -> Any:
    """Which rows were not written lately with the same values."""
    new = np.ones(len(block), bool)
    for index, head in enumerate(zip(*(one.to_pylist() for one in ids), strict=True)):
        key = hash((head, block[index].tobytes()))
        if key in seen:
            new[index] = False
            continue
        seen[key] = None
        if len(seen) > _SEEN_ROWS:
            seen.popitem(last=False)
    return new


def export_part(archive: Path, job: str, path: Path, limit: ReadLimit) -> tuple[Part | None, Survey]:
    """Write the metrics of `job`, as far as `limit` allows, to `path` as ``metrics.parquet`` of a recorded folder.

    Returns
    -------
    part : Part or None
        What was chosen; None if it is everything.
    survey : Survey
        What there is.

    Raises
    ------
    DataError
        If the job has no metrics, or a file is damaged.
    """
    survey, names = surveyed(archive, job, limit)
    if not survey.cells:
        raise DataError("there are no metrics")
    part = survey.part(replace(limit, cells=max(1, int(limit.cells / _width(survey, len(names))))))
    with disk(path.parent):
        write_metrics(_rows(archive, job, part), names, path)
    return part, survey


def surveyed(archive: Path, job: str, limit: ReadLimit) -> tuple[Survey, list[str]]:
    """Who of `job` was measured when, by node, and every metric that it has."""
    survey = Survey()
    metrics: dict[str, int] = {}
    devices: dict[str, int] = {}
    columns = ["time_s", "node", "device", "name", *(["rank"] if limit.named else [])]
    for batch in batches(archive, "metrics", job, columns=columns, rows=_BLOCK_ROWS):
        group = _places(batch.column("node"), survey.groups)
        if limit.named:
            survey.named |= limit.places(group, _ids(batch))
        name = _places(batch.column("name"), metrics)
        pair = _places(batch.column("device"), devices) * len(metrics) + name
        there = np.flatnonzero(np.bincount(pair, minlength=len(devices) * len(metrics)))
        column = np.zeros(len(devices) * len(metrics), np.int64)
        for one in there.tolist():
            # By numbers that stay the same when more metrics come.
            key = (one // len(metrics), one % len(metrics))
            column[one] = survey.columns.setdefault(key, len(survey.columns))
        survey.add(batch.column("time_s").to_numpy(), group, column[pair], batch.num_rows)
    return survey, list(metrics)


def _ids(batch: Any) -> dict[str, tuple[Ints, list[str]]]:
    """Who each row is about, as codes and words."""
    ranks, codes = np.unique(batch.column("rank").fill_null(-1).to_numpy(), return_inverse=True)
    found = {"rank": (codes.astype(np.int64), [str(rank) for rank in ranks.tolist()])}
    for name in ("node", "device"):
        words = batch.column(name)
        found[name] = (words.indices.to_numpy().astype(np.int64), words.dictionary.to_pylist())
    return found


def _width(survey: Survey, metrics: int) -> float:
    """Cells of the wide table for each value: a GPU's row has a column for every metric of a host too."""
    columns: dict[Any, list[int]] = {}
    for key, place in survey.columns.items():
        assert isinstance(key, tuple)
        columns.setdefault(key[0], []).append(place)
    return max(1.0, sum(survey.samples(places) for places in columns.values()) * metrics / survey.cells)


def _places(words: Any, known: dict[Any, int]) -> Ints:
    """Place in `known` of each row's word; new words are entered."""
    of_word = [known.setdefault(word, len(known)) for word in words.dictionary.to_pylist()]
    places: Ints = np.array(of_word or [0], np.int64)[words.indices.to_numpy()]
    return places


def _rows(archive: Path, job: str, part: Part | None) -> Iterator[Any]:
    if part is None:
        yield from batches(archive, "metrics", job)
        return
    for from_s, to_s in part.spans:
        for batch in batches(archive, "metrics", job, from_s=from_s, to_s=to_s):
            if part.groups is None:
                yield batch
                continue
            words = batch.column("node")
            kept = np.array([word in part.groups for word in words.dictionary.to_pylist()], np.bool_)
            chosen = batch.filter(pa.array(kept[words.indices.to_numpy()]))
            if chosen.num_rows:
                yield chosen
