"""NCCL's profiler plug-in: named to NCCL before its first communicator, and told the number of every step.

NCCL loads one plug-in a process: where anything speaks for another one, ours stays away.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import stat
import sys
from typing import Any

from ..layout import (
    NCCL_ABI,
    NCCL_AT_ABI,
    NCCL_AT_MAGIC,
    NCCL_AT_PID,
    NCCL_AT_START_TICKS,
    NCCL_AT_STEP,
    NCCL_CONTROL_BYTES,
    NCCL_MAGIC,
)
from ..memory import Memory, checked, off_streams
from ..steps import Steps
from . import loaded

_OURS = "TRAINWARDEN_NCCL_PROFILER"  # path of the library
_NCCLS = "NCCL_PROFILER_PLUGIN"
_OLDEST_TORCH = (2, 7)  # comes with NCCL 2.26, the first with an interface that ours knows
_LONGEST_PATH = 254  # NCCL cuts longer ones
_DEFAULT = "libnccl-profiler.so"  # what NCCL loads unasked
_PROFILER = b"ncclProfiler_v"  # in the plug-in of the network it stands in for a missing one
_PASSWD, _CACHE = "/etc/passwd", "/etc/ld.so.cache"
_MOST_BYTES = 1 << 26
_FOLDERS = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu")


def watch_profiler(memory: Memory, steps: Steps) -> bool:
    """Offer the plug-in to NCCL; once it has made its file, tell it the steps."""
    torch = loaded("torch")
    if torch is None:
        return False
    library = os.environ.get(_OURS, "")
    if os.environ.get(_NCCLS) != library:
        if not _may_be_offered(torch, library):
            return True
        os.environ[_NCCLS] = library
    return bool(library) and _tell(memory, steps)


def tell_capture(is_open: bool) -> None:
    """Say to the plug-in that a graph is being captured, or none any more; never raises.

    NCCL asks it what is to be stamped before it tells it of a call, and waits for ever for the stamps of a graph that
    was captured in part with them.
    """
    ctypes = sys.modules.get("ctypes")  # torch has imported it
    library = os.environ.get(_OURS, "")
    if ctypes is None or not library or os.environ.get(_NCCLS) != library:
        return
    with contextlib.suppress(Exception):  # NCCL has not loaded it, or it is of an older version
        ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_NOW).trainwarden_nccl_capture(int(is_open))


def _may_be_offered(torch: Any, library: str) -> bool:
    version = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
    if version is None or (int(version[1]), int(version[2])) < _OLDEST_TORCH or torch.version.cuda is None:
        return False
    usable = library.startswith("/") and len(library) <= _LONGEST_PATH and os.path.isfile(library)
    return usable and not os.environ.get(_NCCLS) and not _has_another()


def _has_another() -> bool:
    """Whether NCCL would load some other plug-in: by its settings, by the default name, or that of the network."""
    named = os.environ.get("NCCL_CONF_FILE")
    settings = [named] if named else [f"{home}/.nccl.conf" for home in (os.environ.get("HOME", ""), _home())]
    if any(_NCCLS.encode() in _contents(path) for path in ("/etc/nccl.conf", *settings)) or _places(_DEFAULT):
        return True
    network = os.environ.get("NCCL_NET_PLUGIN")
    names = [network, f"libnccl-net-{network}.so"] if network else ["libnccl-net.so"]
    return any(_PROFILER in _contents(path) for name in names for path in _places(name))


def _home() -> str:
    """Where NCCL looks for settings, which does not go by HOME; a server of names is not waited for."""
    for line in _contents(_PASSWD).decode(errors="replace").split("\n"):
        fields = line.split(":")
        if len(fields) > 5 and fields[2] == str(os.getuid()):
            return fields[5]
    return ""


def _places(name: str) -> list[str]:
    """Files that the loader would take for the library `name`, or the one of that path."""
    if "/" in name:
        return [name]
    folders = (*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *_FOLDERS)
    listed = (os.fsdecode(path) for path in _contents(_CACHE).split(b"\0") if path.endswith(b"/" + name.encode()))
    return [path for path in (*(f"{folder}/{name}" for folder in folders if folder), *listed) if os.path.exists(path)]


def _contents(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_MOST_BYTES)
    except OSError:
        return b""


def _tell(memory: Memory, steps: Steps) -> bool:
    """Map the control words of this process's file, if it is there by now."""
    own = f"-{os.getpid()}-{memory.ticks}.nccl"
    for name in os.listdir(memory.folder):
        if not name.endswith(own):
            continue
        try:
            words = _control(os.path.join(memory.folder, name), memory.owner)
        except (OSError, ValueError):
            continue  # it is being made, and too short yet, or none of ours
        who = (words[NCCL_AT_MAGIC], words[NCCL_AT_ABI], words[NCCL_AT_PID], words[NCCL_AT_START_TICKS])
        if who == (NCCL_MAGIC, NCCL_ABI, os.getpid(), memory.ticks):
            words[NCCL_AT_STEP] = steps.step + 1
            steps.control = words
            return True
    return False


def _control(path: str, owner: int) -> Any:
    # Of somebody else's file the end may be cut off, and the next store into it would end this process.
    flags = os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = checked(os.open(path, flags), stat.S_IFREG, (owner,))
    try:
        with off_streams():
            return memoryview(mmap.mmap(descriptor, NCCL_CONTROL_BYTES)).cast("q")
    finally:
        os.close(descriptor)
