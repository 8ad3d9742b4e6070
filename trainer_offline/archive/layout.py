"""Where the archive's files lie.

::

    ARCHIVE/
    ├── <topic>/job=<job>/day=<YYYY-MM-DD>/part-<partition>-<first offset>-<last offset>.parquet
    ├── annotations.csv
    ├── .locks/      empty files that processes lock while they write
    └── .staging/    files that are being written; nothing in it counts
"""

from __future__ import annotations

import datetime
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from trainwarden.topics import ACTIONS, COLLECTIVES, EVENTS, INCIDENTS, ITERATIONS, LOGS, METRICS, VERDICTS, Topic

ARCHIVED: tuple[Topic[Any], ...] = (METRICS, ITERATIONS, COLLECTIVES, LOGS, EVENTS, VERDICTS, INCIDENTS, ACTIONS)
FOLDER_OF: dict[str, str] = {topic.name: topic.name.rpartition(".")[2] for topic in ARCHIVED}
TOPIC_FOLDERS: tuple[str, ...] = tuple(FOLDER_OF.values())
STAGING = ".staging"
LOCKS = ".locks"
COMPACTION = "compaction"

_DAY = re.compile(r"^day=(\d{4}-\d{2}-\d{2})$")
_JOB_BYTES = 200  # a file name may have 255 bytes


def job_folder(job: str) -> str:
    """Name of a job's folder: percent-encoded as Hive and DuckDB read it; a very long name is cut and gets a hash.

    Examples
    --------
    >>> job_folder("llama/70b")
    'job=llama%2F70b'
    """
    name = quote(job, safe="") or "_"
    if len(name) > _JOB_BYTES:
        name = f"{name[:150]}~{hashlib.sha256(job.encode()).hexdigest()[:32]}"
    return f"job={name}"


def day_folders(root: Path, topic: str) -> Iterator[Path]:
    """Folders ``job=*/day=*`` of one topic, by name; what vanishes meanwhile is passed over."""
    for job in _listed(root / topic):
        if job.name.startswith("job="):
            yield from job_days(job)


def job_days(job: Path) -> list[Path]:
    """Day folders of one job's folder, oldest first."""
    return [day for day in _listed(job) if _DAY.match(day.name)]


def day_of(folder: Path) -> datetime.date:
    """The day that a day folder is named after; the first of all days if it is none of the calendar."""
    try:
        return datetime.date.fromisoformat(folder.name.removeprefix("day="))
    except ValueError:
        return datetime.date.min


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
