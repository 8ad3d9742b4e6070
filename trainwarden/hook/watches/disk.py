"""Where a write failed for lack of space: the path, its file system, and how much of it is free."""

from __future__ import annotations

import errno
import os
from typing import Any

from ..memory import let_through

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
# Of torch's and Rust's writers, whose exceptions carry neither number nor path.
_NO_SPACE_WORDS = (
    "No space left on device",
    "Disk quota exceeded",
    "PytorchStreamWriter failed writing",
    "enforce fail at inline_container",
    "os error 28",
)
_MAX_PATH_CHARS = 1000
_MAX_CHAIN = 8
_MAX_MOUNT_BYTES = 1_000_000
_FULL_SHARE = 0.01  # of a file system, that is left: one nobody has named is to blame only if it is full


def path_of_save(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Where a call of ``torch.save`` or of a distributed checkpoint wrote to; empty if that is no path.

    Examples
    --------
    >>> path_of_save(({}, "/ckpt/last.pt"), {}), path_of_save(({},), {"checkpoint_id": "/ckpt/7"}), path_of_save((), {})
    ('/ckpt/last.pt', '/ckpt/7', '')
    """
    target = kwargs.get("f", kwargs.get("checkpoint_id", args[1] if len(args) > 1 else None))
    if not isinstance(target, str | os.PathLike):
        target = getattr(target, "name", "")  # of an open file
    path = os.fspath(target) if isinstance(target, str | os.PathLike) else ""
    return path if isinstance(path, str) else ""


def lack_of_space(error: BaseException, saving: str) -> dict[str, Any]:
    """The file system that was full as `error` was raised; empty if it is about something else.

    Parameters
    ----------
    error : BaseException
        What ends the process.
    saving : str
        Path of the newest checkpoint that could not be written, or empty.
    """
    named, found, one = [saving], False, error
    for _ in range(_MAX_CHAIN):
        if isinstance(one, OSError):
            found = found or one.errno in _NO_SPACE
            named += [name for name in (one.filename,) if isinstance(name, str)]
        found = found or any(words in _words(one) for words in _NO_SPACE_WORDS)
        before = one.__cause__ or one.__context__
        if before is None:
            break
        one = before
    if not found:
        return {}
    for path in named:
        if path and (known := file_system(path)):
            return known
    for path in (os.environ.get("TRAINWARDEN_CHECKPOINTS", ""), os.curdir):
        known = file_system(path) if path else {}
        if known and known["free_bytes"] <= _FULL_SHARE * known["size_bytes"]:
            return known
    return {}


def file_system(path: str) -> dict[str, Any]:
    """`path`, its mount point and kind of file system, and its bytes; empty if the system does not say.

    Examples
    --------
    >>> sorted(file_system("/proc/self/no/such/file"))
    ['file_system', 'free_bytes', 'mount', 'path', 'size_bytes']
    """
    path = os.path.abspath(path)[:_MAX_PATH_CHARS]
    there = path
    try:
        while not os.path.exists(there) and there != os.path.dirname(there):
            there = os.path.dirname(there)
        sizes = os.statvfs(there)
        while not os.path.ismount(there) and there != os.path.dirname(there):
            there = os.path.dirname(there)
        return {
            "path": path,
            "mount": there,
            "file_system": _kind_of(there),
            "free_bytes": sizes.f_bavail * sizes.f_frsize,
            "size_bytes": sizes.f_blocks * sizes.f_frsize,
        }
    except (OSError, ValueError):
        return {}


def _kind_of(mount: str) -> str:
    """What is mounted there, as ``ext4``."""
    with open("/proc/self/mounts", "rb") as file:
        lines = file.read(_MAX_MOUNT_BYTES).decode("utf-8", "replace").splitlines()
    escaped = mount.replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011")
    kinds = [parts[2] for line in lines if len(parts := line.split(" ")) > 2 and parts[1] == escaped]
    return kinds[-1][:40] if kinds else ""  # what was mounted last hides the others


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        let_through()
        return ""
