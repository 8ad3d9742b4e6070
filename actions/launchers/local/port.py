"""The port at which the ranks of an attempt meet: chosen free, and known to have been taken by somebody since.

Between the choice and rank 0's bind others may take it. A trainer says so in its own words, so these are looked for in
the rank's log; a port of the script's own that is in use is no reason to try another one for the ranks.
"""

from __future__ import annotations

import errno
import re
import socket
from pathlib import Path
from typing import Final

_TAIL_BYTES: Final = 256 * 1024
_IN_USE: Final = re.compile(rb"EADDRINUSE|address already in use|\[Errno 98\]", re.IGNORECASE)


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def stolen(log: Path, since_bytes: int, port: int) -> bool:
    """Whether the rank whose `log` it is could not have `port`, by what it wrote after `since_bytes`."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(since_bytes if size >= since_bytes else 0, size - _TAIL_BYTES))
            lines = [line for line in file.read(_TAIL_BYTES).splitlines() if _IN_USE.search(line)]
    except OSError:
        return False
    named = re.compile(rb"(?<![0-9])%d(?![0-9])" % port)
    return any(named.search(line) for line in lines) or (bool(lines) and _taken(port))


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that have ended take no port
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def size_of(log: Path) -> int:
    """Bytes in `log`; 0 if there is none."""
    try:
        return log.stat().st_size
    except OSError:
        return 0
