"""Small durable state: one JSON file that is either the old one or the new one, whatever is killed when."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from trainwarden.hook.memory import checked


def save_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Replace `path` by `value` as JSON in one step; with `durable` it survives a power cut too."""
    folder_name, name = os.path.split(path)
    part = os.path.join(folder_name, f".{name}.{os.getpid()}.part")  # noqa: PTH118 - five times a second in an agent
    with suppress(FileNotFoundError):
        os.unlink(part)  # noqa: PTH108 - whatever lies there
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)  # less umask
    with open(descriptor, "wb", buffering=0) as file:
        left = memoryview(msgspec.json.encode(value))
        while left:
            left = left[file.write(left) :]
        if durable:
            os.fsync(file.fileno())
    os.replace(part, path)  # noqa: PTH105
    if durable:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def load_json(path: Path) -> Any | None:
    """What `save_json` kept; None if there is nothing or it is damaged (then the caller starts afresh).

    Raises
    ------
    OSError
        If what lies there is no such file, or cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        found = os.fstat(descriptor)
        with open(checked(descriptor, stat.S_IFREG, (found.st_uid,), links=found.st_nlink), "rb") as file:
            return msgspec.json.decode(file.read())
    except (FileNotFoundError, msgspec.DecodeError, RecursionError):
        return None
