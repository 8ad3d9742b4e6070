"""One archived job's metrics as a table of a recorded folder, all of it or as much as fits into memory.

Two streamed passes over the job's files: the first reads who was measured when, the second the values of the chosen
nodes and stretches; row groups outside of them are not read at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from trainer_offline.archive.atomic import disk
from trainer_offline.archive.export import write_metrics
from trainer_offline.archive.reader import batches
from trainwarden.errors import DataError
from trainwarden.recorded.job import Ints
from trainwarden.recorded.part import Part, ReadLimit, Survey

_BLOCK_ROWS = 262_144


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
