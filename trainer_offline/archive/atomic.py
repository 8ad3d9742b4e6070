"""The steps by which the archive's files change without ever being half there.

A data folder only ever holds finished files: they are written and synced under `.staging` and renamed in. A compacted
day replaces the old one in one step (``renameat2`` with ``RENAME_EXCHANGE``).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Any

from trainwarden.errors import DataError
from trainwarden.trainer_offline.archive.layout import LOCKS

_AT_FDCWD = -100  # linux/fcntl.h
_RENAME_EXCHANGE = 2  # linux/fs.h


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


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears under its name only once it is complete."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
