"""A captured run as a small recorded folder: Parquet of few digits, and a heartbeat every second."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

DIGITS: Final = {"metrics": 4, "iterations": 3}  # behind the point: of shares, and a millisecond of a second

BEAT_S: Final = 1.0  # between two heartbeats that say of no rank that it does something else
OF_LIVE: Final = ("kind", "severity", "opened_at_s", "closed_at_s", "onset_s", "suspects", "reason")
_RANK: Final = re.compile(r"rank-(\d+)")


def pack(raw: Path, folder: Path, labels: dict[str, Any]) -> None:
    """Write the recorded folder `raw` into `folder`, and `labels` beside it, last."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("metrics", "iterations"):
        table = csv.read_csv(raw / f"{name}.csv", convert_options=csv.ConvertOptions(strings_can_be_null=True))
        _write(_rounded(table, DIGITS[name]), folder / f"{name}.parquet")
    _gzip(folder / "logs.jsonl.gz", (raw / "logs.jsonl").read_bytes())
    _gzip(folder / "events.jsonl.gz", (raw / "events.jsonl").read_bytes().replace(sys.executable.encode(), b"python"))
    beats = (json.loads(line) for line in (raw / "heartbeats.jsonl").read_text(encoding="utf-8").splitlines())
    _gzip(folder / "heartbeats.jsonl.gz", "".join(f"{json.dumps(one)}\n" for one in _fewer(beats)).encode())
    shutil.copy(raw / "job.toml", folder / "job.toml")
    said = [json.loads(line) for line in (raw / "incidents.jsonl").read_text(encoding="utf-8").splitlines()]
    newest = {one["id"]: one for one in said}
    labels["live"] = [{name: one.get(name) for name in OF_LIVE} for one in newest.values()]
    (folder / "labels.json").write_text(json.dumps(labels, indent=1) + "\n", encoding="utf-8")


def _write(table: pa.Table, path: Path) -> None:
    """Columns of few different values by their numbers, others with their bytes sorted by weight."""
    many = [
        name
        for name in table.column_names
        if pa.types.is_floating(table.schema.field(name).type)
        and table.column(name).combine_chunks().unique().__len__() > table.num_rows // 8
    ]
    few = [name for name in table.column_names if name not in many]
    parquet.write_table(
        table, path, compression="zstd", compression_level=19, use_dictionary=few, use_byte_stream_split=many,
        write_statistics=False,
    )  # fmt: skip


def _rounded(table: pa.Table, most: int) -> pa.Table:
    """Bytes and counts to whole numbers, the rest to `most` digits."""
    for place, name in enumerate(table.column_names):
        column = table.column(name)
        if not pa.types.is_floating(column.type):
            continue
        digits = 0 if name.endswith(("_bytes", "_count")) else most
        table = table.set_column(place, name, pa.array(np.round(column.to_numpy(), digits), from_pandas=True))
    return table


def _fewer(beats: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """One heartbeat every `BEAT_S`, and each that has news of a rank's phase, state or process."""
    told_s, known = -np.inf, {}
    for beat in beats:
        now = dict(zip(beat["ranks"], zip(beat["phases"], beat["states"], beat["pids"], strict=True), strict=True))
        shown = {rank: (phase in PAUSES, state == "T", pid) for rank, (phase, state, pid) in now.items()}
        if beat["time_s"] - told_s >= BEAT_S or any(known.get(rank) != one for rank, one in shown.items()):
            told_s = beat["time_s"]
            known |= shown
            yield _short(beat)


PAUSES: Final = ("checkpoint", "evaluation", "data", "start")


def _short(value: Any) -> Any:
    """The same with times to milliseconds."""
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {name: _short(one) for name, one in value.items()}
    return [_short(one) for one in value] if isinstance(value, list) else value


def _gzip(path: Path, content: bytes) -> None:
    with path.open("wb") as file, gzip.GzipFile(fileobj=file, mode="wb", mtime=0, filename="") as packed:
        packed.write(content)
