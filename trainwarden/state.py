"""Small durable state: one JSON file that is either the old one or the new one, whatever is killed when."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from trainwarden.torchrun.files import opened, read_whole

_MOST_BYTES: Final = 64 * 1024 * 1024  # positions of a node with thousands of logs have 1 MB


def save_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Replace `path` by `value` as JSON in one step; with `durable` it survives a power cut too."""
    folder_name, name = os.path.split(path)
    part = os.path.join(folder_name, f".{name}.{os.getpid()}.part")  # noqa: PTH118 - five times a second in an agent
    with suppress(FileNotFoundError):
        os.unlink(part)  # noqa: PTH108 - whatever lies there
    with open(opened(part, os.O_EXCL, 0o666), "wb", buffering=0) as file:  # less the umask, as any file of a program
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
        return msgspec.json.decode(read_whole(path, _MOST_BYTES))
    except (FileNotFoundError, msgspec.DecodeError, RecursionError):
        return None
