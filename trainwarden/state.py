"""Small durable state: one JSON file that is either the old one or the new one, whatever is killed when."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec


def save_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Replace `path` by `value` as JSON in one step; with `durable` it survives a power cut too."""
    folder_name, name = os.path.split(path)
    part = os.path.join(folder_name, f".{name}.{os.getpid()}.part")  # noqa: PTH118 - five times a second in an agent
    with open(part, "wb", buffering=0) as file:
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
    """What `save_json` kept; None if there is nothing or it is damaged (then the caller starts afresh)."""
    try:
        return msgspec.json.decode(path.read_bytes())
    except (FileNotFoundError, msgspec.DecodeError):
        return None
