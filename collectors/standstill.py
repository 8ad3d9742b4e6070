"""Detects that this node's ranks make no progress, so that costly collectors may ask them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from trainwarden import hook
from trainwarden.collectors.ranks import ProcessFinder, RankProcess, rank_processes

_RECENT_STEPS: Final = 16
_PAUSES: Final = frozenset({"checkpoint", "evaluation", "compile", "data"})


class Trainer(msgspec.Struct, frozen=True):
    """The process that trains as a rank, and what it says of itself now."""

    process: RankProcess
    header: hook.Header

    @property
    def moved_s(self) -> float:
        """When it last ended a step or began another phase."""
        return max(self.header.phase_since_s, self.header.step_end_s or 0.0)


class Patience(msgspec.Struct, frozen=True):
    """How long no rank may move.

    Attributes
    ----------
    stalled_s, stalled_steps
        So long at least, and so many of the longest recent steps.
    first_step_s, pause_s
        At least so long before the first step has ended, and in a checkpoint, an evaluation or data loading.
    """

    stalled_s: float
    stalled_steps: float
    first_step_s: float
    pause_s: float

    def of(self, alive: Sequence[Trainer]) -> float:
        """Seconds for the ranks of this node."""
        longest_s = 0.0
        for one in alive:
            steps = hook.read_steps(one.process.path, max(0, one.header.recorded - _RECENT_STEPS)) or []
            longest_s = max([longest_s, *(step.duration_s for step in steps)])
        patience_s = self.stalled_steps * longest_s if longest_s else self.first_step_s
        if any(one.header.phase in _PAUSES for one in alive):
            patience_s = max(patience_s, self.pause_s)
        return max(patience_s, self.stalled_s)


def runs(header: hook.Header, lookout: ProcessFinder) -> bool:
    """Whether a process may be alive; one that cannot be seen from here may well be."""
    return lookout.look(header).state != "X"


def trainers(run_dir: Path, lookout: ProcessFinder) -> list[Trainer]:
    """The trainer of each rank that has a hook's file in `run_dir`, dead ones too.

    Examples
    --------
    >>> import tempfile
    >>> run = Path(tempfile.mkdtemp())
    >>> (run / "hook").mkdir()
    >>> (run / "hook" / "rank-3-4711.hook").touch()  # none of the hook's making
    >>> trainers(run, ProcessFinder())
    []
    """
    found: dict[int, tuple[tuple[bool, int, float], Trainer]] = {}
    for process in rank_processes(run_dir):
        header = hook.read_header(process.path)
        if header is None:
            continue
        # That it lives, its steps, and that it began late speak for a process as its rank's trainer.
        claim = (runs(header, lookout), header.recorded, header.start_monotonic_s)
        known = found.get(process.rank)
        if known is None or claim >= known[0]:
            found[process.rank] = (claim, Trainer(process, header))
    return [trainer for _, trainer in found.values()]
