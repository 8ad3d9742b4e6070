"""Where the package lies on this machine, who speaks, and how its processes behave beside a training job."""

from __future__ import annotations

import getpass
import os
from pathlib import Path
from typing import Final

import trainwarden

PACKAGE: Final = Path(trainwarden.__file__).parent
CHECKOUT: Final = PACKAGE.resolve().parent
"""The folder beside which ``tests`` and ``examples`` lie in a clone of the repository."""


def one_blas_thread() -> None:
    """Give BLAS one thread, unless somebody said otherwise; to be called before numpy is imported.

    Arrays here are small: more threads only stall each other, and take CPU from the training job.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def user() -> str:
    """Who speaks; a container's user need not have a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
