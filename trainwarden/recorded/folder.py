"""Recorded folders: what `train --data` and `detect --data` read, and `demo --keep` writes.

The layout is fixed by contract and described in docs/data.md.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from trainwarden.errors import DataError
from trainwarden.parallelism.groups import ranks_of
from trainwarden.recorded.files import mistake, reading, shown, whole
from trainwarden.recorded.iterations import read_collectives, read_iterations
from trainwarden.recorded.job import IterationTable, LogTable, MetricTable, PlannedChange, RecordedJob
from trainwarden.recorded.joining.read_log import ReadLog, of_one_node, settled
from trainwarden.recorded.logs import is_epoch, read_logs
from trainwarden.recorded.metrics import read_metrics
from trainwarden.recorded.part import ReadLimit
from trainwarden.recorded.rows import MAX_RANK

_TABLES = ("metrics", "iterations", "collectives")
_TABLE_ENDINGS = (".csv", ".csv.gz", ".parquet")
_LOG_ENDINGS = (".txt", ".txt.gz", ".jsonl", ".jsonl.gz")
_OWN_FILES = ("job.toml", "events.jsonl", "events.jsonl.gz", "heartbeats.jsonl", "heartbeats.jsonl.gz",
              "incidents.jsonl", "actions.jsonl")  # fmt: skip
_FLIGHT = "flight_recorder"
_FLIGHT_NAME = re.compile(r"rank_([0-9]{1,6})\.json")
MAX_DUMP_BYTES = 256 * 1024 * 1024  # a flight-recorder dump of 2,000 entries has about 5 MB
_MAX_JOB_BYTES = 1024 * 1024

T = TypeVar("T")


class _Parallel(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    tp: Annotated[int, msgspec.Meta(ge=1)] | None = None
    dp: Annotated[int, msgspec.Meta(ge=1)] | None = None
    pp: Annotated[int, msgspec.Meta(ge=1)] | None = None
    cp: Annotated[int, msgspec.Meta(ge=1)] | None = None
    ep: Annotated[int, msgspec.Meta(ge=1)] | None = None


class _Planned(msgspec.Struct, forbid_unknown_fields=True):
    step: Annotated[int, msgspec.Meta(ge=0)]
    what: str


class _Job(msgspec.Struct, forbid_unknown_fields=True):
    """job.toml."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None
    normal_until_s: float | None = None
    parallel: _Parallel = msgspec.field(default_factory=_Parallel)
    roles: dict[Annotated[str, msgspec.Meta(min_length=1, max_length=64)], str] = {}
    planned_change: tuple[_Planned, ...] = ()


def jobs_in(folder: Path) -> list[Path]:
    """Folders of the jobs that `folder` holds: itself, or of a batch its subfolders, by name.

    Raises
    ------
    DataError
        If neither it nor a direct subfolder holds metrics, iterations, collectives, logs or flight-recorder dumps.
    """
    if not folder.is_dir():
        raise DataError(f"'{folder}' is no folder" if folder.exists() else f"there is no folder '{folder}'")
    if _is_job(folder):
        return [folder]
    jobs = [path for path in _entries(folder) if path.is_dir() and _may_be_job(path)]
    if not jobs:
        raise DataError(
            f"neither '{folder}' nor a folder in it holds metrics, iterations, collectives, logs or {_FLIGHT} files "
            "(the layout is described in docs/data.md)"
        )
    return jobs


def is_batch(folder: Path) -> bool:
    """Whether `folder` is no job itself; its subfolders may be.

    Raises
    ------
    DataError
        If it cannot be read.
    """
    return not _is_job(folder)


def read_folder(folder: Path, name: str | None = None, but: Container[str] = ()) -> RecordedJob:
    """Read one job's folder.

    Parameters
    ----------
    folder : Path
    name : str, optional
        Name of the job; else job.toml's, else the folder's.
    but : container of str
        Files that are left out.

    Raises
    ------
    DataError
        One sentence with the file (relative to `folder`), line and column of the first mistake.
    """
    if not folder.is_dir():
        raise DataError(f"there is no folder '{folder}'")
    names = [path.name for path in _entries(folder) if path.is_file() and path.name not in but]
    job = _read_job(folder) if "job.toml" in names else _Job()
    metrics = _read_table(folder, names, "metrics", read_metrics)
    iterations = _read_table(folder, names, "iterations", read_iterations)
    collectives = _read_table(folder, names, "collectives", read_collectives)
    reference_s = _reference_s(metrics, iterations)
    read = read_logs(folder, _log_names(names), reference_s)
    logs = _settled(read, reference_s, _nodes(metrics, iterations, read))
    flight, broken = _read_flight(folder)
    return RecordedJob(
        name=name or job.name or folder.resolve().name,
        folder=folder,
        metrics=metrics,
        iterations=iterations,
        collectives=collectives,
        logs=logs,
        flight=flight,
        broken=broken,
        normal_until_s=job.normal_until_s,
        parallel=_parallel(job),
        roles=_roles(job),
        planned=tuple(PlannedChange(change.step, change.what) for change in job.planned_change),
    )


def read_metrics_of(folder: Path, name: str | None = None, limit: ReadLimit | None = None) -> RecordedJob:
    """Read what models are trained on and nothing else: one job's metrics, as far as `limit` allows, and its job.toml.

    Raises
    ------
    DataError
        As `read_folder`.
    """
    if not folder.is_dir():
        raise DataError(f"there is no folder '{folder}'")
    names = [path.name for path in _entries(folder) if path.is_file()]
    job = _read_job(folder) if "job.toml" in names else _Job()
    return RecordedJob(
        name=name or job.name or folder.resolve().name,
        folder=folder,
        metrics=_read_table(folder, names, "metrics", lambda path, file: read_metrics(path, file, limit)),
        normal_until_s=job.normal_until_s,
        parallel=_parallel(job),
        roles=_roles(job),
    )


def read_levels_of(folder: Path, name: str | None = None, limit: ReadLimit | None = None) -> RecordedJob:
    """The same with its iterations, without logs, calls and dumps.

    Raises
    ------
    DataError
        As `read_folder`.
    """
    job = read_metrics_of(folder, name, limit)
    names = [path.name for path in _entries(folder) if path.is_file()]
    return replace(job, iterations=_read_table(folder, names, "iterations", read_iterations))


def _parallel(job: _Job) -> dict[str, int]:
    return {key: size for key, size in msgspec.structs.asdict(job.parallel).items() if size is not None}


def _roles(job: _Job) -> dict[int, str]:
    """Role by rank.

    Raises
    ------
    DataError
        If what stands there are no ranks, or one has two roles.
    """
    found: dict[int, str] = {}
    for role, text in job.roles.items():
        try:
            ranks = ranks_of(text)
        except ValueError as error:
            raise DataError(f"job.toml, key roles.{shown(role)[1:-1]}: {error}") from error
        twice = next((rank for rank in ranks if found.setdefault(rank, role) != role), None)
        if twice is not None:
            raise DataError(f"job.toml, key roles: rank {twice} is both {found[twice]} and {role}")
    return found


def _entries(folder: Path) -> list[Path]:
    with reading(f"folder '{folder.name}'"):
        return sorted(folder.iterdir(), key=lambda path: path.name)


def _is_job(folder: Path) -> bool:
    names = [path.name for path in _entries(folder) if path.is_file()]
    tables = any(f"{stem}{ending}" in names for stem in _TABLES for ending in _TABLE_ENDINGS)
    return tables or any(_is_log(name) for name in names) or bool(_flight_files(folder))


def _may_be_job(folder: Path) -> bool:
    """Of a batch: a folder that cannot be looked into counts, so that its job says so and the others go on."""
    try:
        return _is_job(folder)
    except DataError:
        return True


def _is_log(name: str) -> bool:
    return name.startswith("logs") and name.endswith(_LOG_ENDINGS)


def _log_names(names: Sequence[str]) -> list[str]:
    logs = [name for name in names if _is_log(name)]
    for name in logs:
        if f"{name}.gz" in logs:
            raise DataError(f"{name} and {name}.gz are both there; keep one of them")
    return logs


def _read_table(folder: Path, names: Sequence[str], stem: str, read: Callable[[Path, str], T]) -> T | None:
    found = [f"{stem}{ending}" for ending in _TABLE_ENDINGS if f"{stem}{ending}" in names]
    if len(found) > 1:
        raise DataError(f"{found[0]} and {found[1]} are both there; keep one of them")
    return read(folder / found[0], found[0]) if found else None


def _reference_s(metrics: MetricTable | None, iterations: IterationTable | None) -> float | None:
    """A time of the job on its own clock: the first of metrics, else of iterations with times."""
    if metrics is not None:
        return float(metrics.times_s[0])
    return float(iterations.end_s[0]) if iterations is not None and iterations.timed else None


def _nodes(metrics: MetricTable | None, iterations: IterationTable | None, logs: Sequence[ReadLog]) -> set[str]:
    """All nodes that the folder names."""
    nodes = [*(metrics.nodes if metrics else ()), *(iterations.nodes if iterations else ())]
    return {node for table in (nodes, *(log.table.nodes for log in logs)) for node in table if node is not None}


def _settled(read: Sequence[ReadLog], reference_s: float | None, nodes: set[str]) -> tuple[LogTable, ...]:
    if reference_s is None:
        # No table says on which clock the job runs; one wall time in any log does.
        latest = [float(np.nanmax(log.table.times_s)) for log in read if np.isfinite(log.table.times_s).any()]
        reference_s = max(latest, default=0.0)
    # Of torchrun's only log, without a node, local ranks are those of the job as far as anybody can tell.
    return settled(read, epoch=is_epoch(reference_s), single_node=of_one_node(read, nodes))


def _read_job(folder: Path) -> _Job:
    try:
        text = whole(folder / "job.toml", "job.toml", _MAX_JOB_BYTES).decode()
        job = msgspec.convert(tomllib.loads(text), _Job)
    except UnicodeDecodeError as error:
        raise DataError(f"job.toml is not UTF-8 text at byte {error.start + 1}") from error
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"job.toml is not TOML: {str(error).rstrip('.')}") from error
    except (msgspec.ValidationError, RecursionError, OverflowError) as error:
        what, key = mistake(error)
        raise DataError(f"job.toml, key {key}: {what}" if key else f"job.toml: {what}") from error
    if job.normal_until_s is not None and not math.isfinite(job.normal_until_s):
        raise DataError("job.toml, key normal_until_s: the time is not finite")
    return job


def _flight_files(folder: Path) -> list[Path]:
    dumps = folder / _FLIGHT
    if not dumps.is_dir():
        return []
    return [path for path in _entries(dumps) if _FLIGHT_NAME.fullmatch(path.name) and path.is_file()]


def documented(folder: Path) -> dict[str, str]:
    """What each file is that `read_folder` and those who read facts beside it read, by its name in `folder`."""
    names = [path.name for path in _entries(folder) if path.is_file()]
    found = {f"{stem}{ending}": stem for stem in _TABLES for ending in _TABLE_ENDINGS}
    found |= dict.fromkeys(_OWN_FILES, "record")
    told = {name: found[name] for name in names if name in found}
    told |= {name: "log" for name in names if _is_log(name)}
    return told | {f"{_FLIGHT}/{path.name}": "dump" for path in _flight_files(folder)}


def is_job(folder: Path) -> bool:
    """Whether `folder` itself holds files of the documented layout.

    Raises
    ------
    DataError
        If it cannot be read.
    """
    return _is_job(folder)


def _read_flight(folder: Path) -> tuple[dict[int, Any], dict[int, str]]:
    """Dumps by rank, and why others cannot be read; all of them broken is an error.

    A process that is killed while it dumps leaves a file that is cut short.
    """
    flight: dict[int, Any] = {}
    broken: dict[int, str] = {}
    for path in _flight_files(folder):
        file = f"{_FLIGHT}/{path.name}"
        match = _FLIGHT_NAME.fullmatch(path.name)
        rank = int(match[1]) if match else MAX_RANK
        if rank in flight:
            raise DataError(f"{file}: rank {rank} has a second dump")
        data = whole(path, file, MAX_DUMP_BYTES)
        if not data:
            broken[rank] = f"{file} is empty"
            continue
        try:
            flight[rank] = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            broken[rank] = f"{file} is not JSON: {shown(error)[1:-1]}"
    if broken and not flight:
        raise DataError(next(iter(broken.values())))
    return dict(sorted(flight.items())), broken
