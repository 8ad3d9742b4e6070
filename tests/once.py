"""Work that several test files share, done once for all processes of one test run."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """The folder that `make` has filled; whoever comes second waits for it. It is for reading: take a copy to write.

    A `make` that fails leaves nothing, so the next one who asks sees the failure as well.
    """
    own = factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own  # each process of xdist has a folder in one
    folder, done = shared / f"once-{name}", shared / f"once-{name}.done"
    with (shared / f"once-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.touch()
    return folder
