"""A training step that survives the death of a rank, for the training script: `ResilientStep`.

Standard library and torch only. Read `trainwarden.transition.step` first. After Unicron (He et al. 2024, section 6.2).
"""

from __future__ import annotations

from trainwarden.transition.members import Excluded, TooFewMembers, TransitionError
from trainwarden.transition.step import MicroBatch, ResilientStep

__all__ = ["Excluded", "MicroBatch", "ResilientStep", "TooFewMembers", "TransitionError"]
