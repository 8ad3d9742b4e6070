"""Files of a run folder, into which others may write as well: what they plant is neither waited for nor followed."""

from __future__ import annotations

import errno
import os
import stat
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from trainwarden.hook.memory import checked

LAST_LINE_CHARS: Final = 300
_TAIL_BYTES: Final = 8_192


def opened(path: Path | str, flags: int, mode: int = 0o600) -> int:
    """Open `path` to write, made with `mode`. Whatever lies there under that name is neither waited for nor followed.

    Raises
    ------
    OSError
        If it is no regular file, or cannot be had.
    """
    descriptor = os.open(path, flags | os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    return checked(descriptor, stat.S_IFREG, (os.fstat(descriptor).st_uid,))


def read_whole(path: Path | str, most_bytes: int) -> bytes:
    """What the regular file `path` holds. Whatever else lies there is neither waited for nor followed.

    Raises
    ------
    OSError
        If it is no such file, cannot be read, or is longer.
    """
    found = read_part(path, 0, most_bytes + 1)
    if len(found) > most_bytes:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return found


def read_part(path: Path | str, at: int, most_bytes: int) -> bytes:
    """At most so many bytes of the regular file `path`, from `at` on; if that is negative, from so far before its end.

    Raises
    ------
    OSError
        As of `read_whole`.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.fstat(descriptor)
    with open(checked(descriptor, stat.S_IFREG, (found.st_uid,), links=found.st_nlink), "rb") as file:
        file.seek(at if at >= 0 else max(0, found.st_size + at))
        return file.read(most_bytes)


def last_lines(path: Path, most_bytes: int) -> list[str]:
    """The last lines of a log, of at most so many bytes; none where it cannot be read. The first may be cut short."""
    try:
        return read_part(path, -most_bytes, most_bytes).decode("utf-8", "replace").split("\n")
    except OSError:
        return []


def last_words(path: Path) -> str:
    """The last line of a log that says anything, for one sentence; empty where none does."""
    said = "\n".join(last_lines(path, _TAIL_BYTES)).strip().splitlines()
    return said[-1].strip()[:LAST_LINE_CHARS] if said else ""


def put_whole(path: Path, text: str) -> None:
    """Have `path` hold `text`, whole or not at all.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    beside = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
    with suppress(FileNotFoundError):
        beside.unlink()
    with open(opened(beside, os.O_EXCL), "w", encoding="utf-8") as file:
        file.write(text)
    beside.replace(path)
