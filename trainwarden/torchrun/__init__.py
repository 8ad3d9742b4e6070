"""The plug-in of torchrun: an unchanged ``torchrun train.py`` takes part in our rendezvous and is watched.

It runs in the users' Python: the standard library and torch alone. torch (2.6 and newer) calls `handler` in every
torchrun on a machine where trainwarden is installed, so that imports nothing; a job is ours where its
``--rdzv-backend``, or ``PET_RDZV_BACKEND``, is `NAME`.

Read `trainwarden.torchrun.rendezvous` first.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Final

NAME: Final = "trainwarden"
MAX_RESTARTS: Final = "1000000"  # the service counts failures; by default torchrun ends a node at its first


def handler() -> Callable[[Any], Any]:
    """What makes the rendezvous of a job; torch asks before it reads its options, so that they can be preset."""
    if os.environ.get("PET_RDZV_BACKEND") == NAME or any(word.endswith(NAME) for word in sys.argv[1:]):
        os.environ.setdefault("PET_MAX_RESTARTS", MAX_RESTARTS)
    return _create


def _create(parameters: Any) -> Any:
    from trainwarden.torchrun.rendezvous import Handler

    return Handler(parameters)
