"""The command line of a training process, and the files that it names, as that process sees them."""

from __future__ import annotations

import os
from typing import Final

_MOST_BYTES: Final = 1 << 20  # of a command line, or a file of settings


def command_of(proc: str, pid: int) -> list[str]:
    """The words of process `pid`; empty if they are not ours to read."""
    text = contents_of(f"{proc}/{pid}/cmdline")
    return [word.decode(errors="replace") for word in (text or b"").split(b"\0")[:-1]]


def file_of(proc: str, pid: int, path: str) -> bytes | None:
    """What process `pid` finds under `path`, by its own root and working folder; None if it cannot be read from here.

    Whoever may write a link within that root can lead out of it only to what the agent may read, and of what is read
    only sizes go on.
    """
    try:
        place = os.path.join(os.readlink(f"{proc}/{pid}/cwd"), path)  # noqa: PTH115, PTH118 - kernel's names
    except OSError:
        return None
    return contents_of(f"{proc}/{pid}/root{place}")


def contents_of(path: str) -> bytes | None:
    """The first of what lies at `path`; None if it cannot be read."""
    try:
        # Whatever lies there, a pipe too: opening it must not wait.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        with open(descriptor, "rb") as file:
            return file.read(_MOST_BYTES)
    except OSError:
        return None
