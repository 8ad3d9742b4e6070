"""What py-spy says of a process, and the one sentence that matters of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

import msgspec

from trainwarden.errors import DataError

MAX_FRAMES: Final = 24  # innermost ones that are told
_MAX_NAME: Final = 80
_LIBRARIES: Final = ("/site-packages/", "/dist-packages/", "/lib/python3")
_FROZEN: Final = "<frozen "  # the interpreter's own, and our hook, which stands between a job and torch


class Frame(msgspec.Struct):
    """One call, `line` 0 if it is not known."""

    name: str
    filename: str
    line: int = 0


class Thread(msgspec.Struct):
    """A thread of Python's, innermost frame first."""

    pid: int
    frames: list[Frame]
    os_thread_id: int | None = None
    thread_name: str | None = None


_DECODER: Final = msgspec.json.Decoder(list[Thread])


def main_thread(said: bytes) -> Thread:
    """The main thread of what ``py-spy dump --json`` has printed.

    Raises
    ------
    DataError
        If it is nothing of the kind, or no thread has frames.
    """
    try:
        threads = [thread for thread in _DECODER.decode(said) if thread.frames]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"py-spy's answer cannot be read: {error}") from error
    for thread in threads:
        if thread.thread_name == "MainThread" or thread.os_thread_id == thread.pid:
            return thread
    if not threads:
        raise DataError("py-spy has found no thread of Python's")
    return threads[0]


def where(frames: Sequence[Frame]) -> str:
    """Where it stands: its innermost call, and the innermost of a file that is no library's.

    Examples
    --------
    >>> wait = Frame("wait", "/usr/lib/python3.11/site-packages/torch/distributed/c10d.py", 31)
    >>> step = Frame("train_step", "/job/train.py", 88)
    >>> where([wait, step])
    'wait (distributed/c10d.py:31), called by train_step (job/train.py:88)'
    >>> where([step])
    'train_step (job/train.py:88)'
    """
    calls = [frame for frame in frames if not frame.filename.startswith(_FROZEN)] or frames
    own = next((frame for frame in calls if not any(part in frame.filename for part in _LIBRARIES)), None)
    inner = said(calls[0])
    return inner if own is None or own is calls[0] else f"{inner}, called by {said(own)}"


def said(frame: Frame) -> str:
    """One frame in words; of its path the last two parts."""
    path = "/".join(PurePosixPath(frame.filename).parts[-2:]).lstrip("/")
    return (
        f"{_plain(frame.name)} ({_plain(path)}:{frame.line})"
        if frame.line > 0
        else f"{_plain(frame.name)} ({_plain(path)})"
    )


def _plain(text: str) -> str:
    """Names of a job's code are its own to choose."""
    return "".join(sign if sign.isprintable() else "?" for sign in text[-_MAX_NAME:])
