"""Checkpoints in memory, for the training script: `save` after an optimizer step, `restore` before the first.

Standard library and torch only. Read `trainwarden.checkpoint.saving` first; `shard` and `slots` need no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwarden.checkpoint.shard import CheckpointError

if TYPE_CHECKING:
    from trainwarden.checkpoint.restoring import Restored, restore
    from trainwarden.checkpoint.saving import save, wait

__all__ = ["CheckpointError", "Restored", "restore", "save", "wait"]


def __getattr__(name: str) -> object:
    """Import torch only where a script saves or restores: the keeper uses the format alone."""
    if name in ("save", "wait"):
        from trainwarden.checkpoint import saving

        return getattr(saving, name)
    if name in ("restore", "Restored"):
        from trainwarden.checkpoint import restoring

        return getattr(restoring, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
