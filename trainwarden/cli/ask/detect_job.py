"""A live or archived job as a recorded folder for the time that it is judged, for `trainwarden detect --job`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from trainwarden.cli.ask.jobs_on_bus import open_bus
from trainwarden.errors import ConfigError, DataError

DAY_S: Final = 86_400.0
SKEW_S: Final = 60.0  # a node's clock may be ahead of the bus so far
Stretch = tuple[float, float]
"""From when to when, seconds since 1970."""


@dataclass(frozen=True, slots=True)
class JobSource:
    """Where the records of a job are: on a bus, or in an archive if one is named."""

    job: str
    bus: str | None
    archive: Path | None
    config: Path | None


@contextmanager
def recorded_job(source: JobSource, span_s: Stretch | None) -> Iterator[Path]:
    """A folder with what there is of the job from the beginning of `span_s` on; gone afterwards.

    Raises
    ------
    ConfigError
        If there is no such bus.
    DataError
        If there is nothing of the job.
    """
    if source.bus is not None and source.archive is not None:
        raise ConfigError("--bus and --archive exclude each other: both say where the job's records are")
    with tempfile.TemporaryDirectory(prefix="trainwarden-detect-") as name:
        folder = Path(name) / "job"
        if source.archive is not None:
            _from_archive(source.archive, source.job, folder, span_s)
        else:
            _from_bus(source, folder, span_s)
        yield folder


def _from_bus(source: JobSource, folder: Path, span_s: Stretch | None) -> None:
    from trainwarden.recorded.writing import write_recording

    with open_bus(source.bus, source.config, source.job) as bus:
        if not write_recording(bus, source.job, folder, None if span_s is None else span_s[0] - SKEW_S):
            raise DataError(f"the bus has nothing of a job '{source.job}'" + _then(span_s))


def _from_archive(archive: Path, job: str, folder: Path, span_s: Stretch | None) -> None:
    from trainwarden.trainer_offline.archive.export import export
    from trainwarden.trainer_offline.archive.layout import TOPIC_FOLDERS, job_days, job_folder

    days = None
    if span_s is not None:
        # By the day that a record reached the bus: at the earliest the day it is of, rarely more than one later.
        first, last = _day(span_s[0]), _day(span_s[1] + DAY_S)
        there = {
            day.name.partition("=")[2] for topic in TOPIC_FOLDERS for day in job_days(archive / topic / job_folder(job))
        }
        days = sorted(day for day in there if first <= day <= last)
        if there and not days:
            raise DataError(f"archive '{archive}' has nothing of job '{job}'" + _then(span_s))
    export(archive, job, folder, days or None)


def _day(time_s: float) -> str:
    return datetime.fromtimestamp(min(time_s, 253_402_300_799.0), UTC).date().isoformat()


def _then(span_s: Stretch | None) -> str:
    return "" if span_s is None else " in that time"
