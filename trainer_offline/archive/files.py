"""Where the archive's files lie, and the steps by which they change without ever being half there.

::

    ARCHIVE/
    ├── <topic>/job=<job>/day=<YYYY-MM-DD>/part-<partition>-<first offset>-<last offset>.parquet
    ├── annotations.csv
    ├── .locks/      empty files that processes lock while they write
    └── .staging/    files that are being written; nothing in it counts

A data folder only ever holds finished files: they are written and synced under `.staging` and renamed in. A compacted
day replaces the old one in one step (``renameat2`` with ``RENAME_EXCHANGE``).
"""

from __future__ import annotations

import ctypes
import datetime
import errno
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from trainwarden.errors import DataError
from trainwarden.records import (
    ACTIONS,
    EVENTS,
    INCIDENTS,
    ITERATIONS,
    LOGS,
    METRICS,
    VERDICTS,
    Topic,
)

ARCHIVED: tuple[Topic[Any], ...] = (METRICS, ITERATIONS, LOGS, EVENTS, VERDICTS, INCIDENTS, ACTIONS)
FOLDER_OF: dict[str, str] = {topic.name: topic.name.rpartition(".")[2] for topic in ARCHIVED}
TOPIC_FOLDERS: tuple[str, ...] = tuple(FOLDER_OF.values())
STAGING = ".staging"
LOCKS = ".locks"
COMPACTION = "compaction"

_PART = re.compile(r"^part-(\d{1,9})-(\d{1,19})-(\d{1,19})(?:-(\d{1,9}))?\.parquet$")
_DAY = re.compile(r"^day=(\d{4}-\d{2}-\d{2})$")
_JOB_BYTES = 200  # a file name may have 255 bytes
_AT_FDCWD = -100  # linux/fcntl.h
_RENAME_EXCHANGE = 2  # linux/fs.h


class Part(NamedTuple):
    """One data file by its name: records `first` to `last` of one bus partition that belong to this job and day.

    `turn` > 1 tells apart files of equal offsets, which exist if the bus was made anew and counts from 0 again.
    """

    partition: int
    first: int
    last: int
    turn: int = 1

    @property
    def name(self) -> str:
        """The file's name."""
        turn = "" if self.turn == 1 else f"-{self.turn}"
        return f"part-{self.partition}-{self.first}-{self.last}{turn}.parquet"


class Footer(msgspec.Struct, frozen=True, kw_only=True):
    """What a data file says of itself, as JSON under the key ``trainwarden`` of its Parquet metadata."""

    topic: str
    job: str
    day: str
    written_from_s: float
    written_to_s: float
    from_s: float
    to_s: float
    schema_version: int = 1


def part_of(name: str) -> Part | None:
    """The part called `name`; None if this is no data file.

    Examples
    --------
    >>> part_of("part-3-100-250.parquet")
    Part(partition=3, first=100, last=250, turn=1)
    >>> part_of("notes.txt") is None
    True
    """
    found = _PART.match(name)
    if found is None:
        return None
    partition, first, last, turn = found.groups()
    return Part(int(partition), int(first), int(last), int(turn or 1))


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


def job_of(folder: str) -> str:
    """The job whose folder is called `folder`."""
    return unquote(folder.removeprefix("job="))


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


def read_footer(path: Path) -> Footer:
    """What the data file at `path` says of itself.

    Raises
    ------
    DataError
        If it is no data file of ours or damaged.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        raw = (parquet.read_metadata(str(path)).metadata or {}).get(b"trainwarden", b"")
        return msgspec.json.decode(raw, type=Footer)
    except (pa.ArrowException, OSError, msgspec.DecodeError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise DataError(f"archive file '{path}' is damaged or none of ours ({str(error).splitlines()[0]})") from error


# -- changing the disk ---------------------------------------------------------------------------------------------


@contextmanager
def disk(root: Path) -> Iterator[None]:
    """Errors of disk and Arrow as one sentence.

    Raises
    ------
    DataError
        In place of either.
    """
    import pyarrow as pa

    try:
        yield
    except OSError as error:
        raise DataError(f"archive '{root}': {error.strerror or error} ({error.filename or 'writing'})") from error
    except pa.ArrowException as error:
        raise DataError(f"archive '{root}': {str(error).splitlines()[0]}") from error


def sync_folder(path: Path) -> None:
    """Make renames and new names in `path` survive a power cut."""
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def make_folder(path: Path) -> None:
    """Make `path` and its parents, durably."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync_folder(path.parent)


def flock(path: Path, *, wait: bool) -> int | None:
    """An open file descriptor that holds the lock of `path` (made if absent); None if another one holds it."""
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(number)
        return None
    except BaseException:
        os.close(number)
        raise
    return number


@contextmanager
def locked(root: Path, name: str) -> Iterator[None]:
    """Hold lock `name` of the archive, waiting for it; the kernel lets go of it if this process dies."""
    make_folder(root / LOCKS)
    number = flock(root / LOCKS / f"{name}.lock", wait=True)
    assert number is not None
    try:
        yield
    finally:
        os.close(number)


@cache
def _renameat2() -> Any:
    return getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


def exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step; False if kernel or file system cannot."""
    call = _renameat2()
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        return False
    raise OSError(number, os.strerror(number), str(one))


@contextmanager
def held_open(folder: Path) -> Iterator[int | None]:
    """A descriptor of `folder` whose files stay readable through it until it is closed; None if there is no folder.

    Compaction may put another folder in its place meanwhile, but removes the old one only when no reader holds it.
    """
    number: int | None = None
    while number is None:
        try:
            number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError):
            break
        fcntl.flock(number, fcntl.LOCK_SH)
        try:
            same = os.path.samestat(os.fstat(number), folder.stat())
        except FileNotFoundError:
            same = False
        if not same:  # replaced between the opening and the lock
            os.close(number)
            number = None
    try:
        yield number
    finally:
        if number is not None:
            os.close(number)


def remove_unless_read(folder: Path) -> bool:
    """Remove a folder that is out of everyone's sight; False if a reader still holds it (try again later)."""
    try:
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    except BlockingIOError:
        return False
    finally:
        os.close(number)
    return True
