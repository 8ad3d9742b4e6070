"""Run a program of Slurm for a limited time and a limited answer."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from trainwarden.errors import LauncherUnavailable

MOST_BYTES: Final = 64 * 1024 * 1024  # of output and errors together: ten thousand nodes in JSON take less
_PIECE_BYTES: Final = 1024 * 1024


def run(argv: Sequence[str], *, env: Mapping[str, str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run `argv` without input; where it is given up, what it has started is ended too.

    Raises
    ------
    subprocess.TimeoutExpired
        If it has not ended within `timeout_s`.
    LauncherUnavailable
        If it writes more than `MOST_BYTES`.
    OSError
        If it cannot be started.
    """
    deadline_s = time.monotonic() + timeout_s
    with subprocess.Popen(
        list(argv), env=dict(env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            said = _read(process, deadline_s)
            process.wait(max(0.0, deadline_s - time.monotonic()))
        except BaseException as error:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)  # nobody has waited for it, so that the number is its own
            if isinstance(error, subprocess.TimeoutExpired):
                raise subprocess.TimeoutExpired(list(argv), timeout_s) from None
            raise
    output, errors = (b"".join(pieces).decode(errors="replace") for pieces in said)
    return subprocess.CompletedProcess(list(argv), process.returncode, output, errors)


def _read(process: subprocess.Popen[bytes], deadline_s: float) -> tuple[list[bytes], list[bytes]]:
    """What it writes to both streams until they are closed."""
    said: tuple[list[bytes], list[bytes]] = ([], [])
    size = 0
    with selectors.DefaultSelector() as selector:
        for stream, pieces in zip((process.stdout, process.stderr), said, strict=True):
            assert stream is not None
            selector.register(stream, selectors.EVENT_READ, pieces)
        while selector.get_map():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0.0:
                raise subprocess.TimeoutExpired(process.args, 0.0)
            for key, _ in selector.select(left_s):
                piece = os.read(key.fd, _PIECE_BYTES)
                if not piece:
                    selector.unregister(key.fileobj)
                key.data.append(piece)
                size += len(piece)
            if size > MOST_BYTES:
                raise LauncherUnavailable(f"more than {MOST_BYTES // 1024**2} MiB were written by one program of Slurm")
    return said
