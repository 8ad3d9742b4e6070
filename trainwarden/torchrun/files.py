"""Files of a run folder, into which others may write as well: what they plant is neither waited for nor followed."""

from __future__ import annotations

import os
import stat
import threading
from contextlib import suppress
from pathlib import Path

from trainwarden.hook.memory import checked


def opened(path: Path, flags: int) -> int:
    """Open `path` to write. Whatever lies there under that name is neither waited for nor followed.

    Raises
    ------
    OSError
        If it is no regular file, or cannot be had.
    """
    descriptor = os.open(path, flags | os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    return checked(descriptor, stat.S_IFREG, (os.fstat(descriptor).st_uid,))


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
