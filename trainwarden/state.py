"""Small durable state: one JSON file that is either the old one or the new one, whatever is killed when."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec


def save_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Replace `path` by `value` as JSON in one step; with `durable` it survives a power cut too."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with part.open("wb") as file:
        file.write(msgspec.json.encode(value))
        if durable:
            file.flush()
            os.fsync(file.fileno())
    part.replace(path)
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
