"""Whether a restarted job goes on from its newest whole checkpoint, judged by the first steps that its ranks number."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

import msgspec

from trainwarden.checkpoints.newest import Checkpoint, Search, words
from trainwarden.clock import Clock

SEARCH_S: Final = 10.0  # a file system that says nothing for so long must not keep a job down
NOT_LOOKED_AT: Final = "the checkpoint folder does not answer, so the restart is not verified"
UNNUMBERED: Final = (
    "the script gives its steps no numbers (trainwarden.hook.set_step), "
    "so nobody can say whether the restart went on from the newest checkpoint"
)


class Outcome(msgspec.Struct, frozen=True):
    """What became of a restart: `wrong`: the job started over; `note`: nobody can tell; neither: it goes on."""

    wrong: str | None = None
    note: str | None = None


class Resumption:
    """One job's folder of checkpoints over its attempts.

    Parameters
    ----------
    folder : Path or None
        None: nothing is looked for and nothing is verified.
    patience_s : float
        How long a restart waits to be proved; a proof to the contrary counts later too.
    say : callable
        Takes a sentence about checkpoints that a start passes over.
    """

    def __init__(
        self, folder: Path | None, clock: Clock, patience_s: float, *, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._folder, self._clock, self._patience_s, self._say = folder, clock, patience_s, say
        self._search: Search | None = None
        self._since_s = 0.0
        self._expected: Checkpoint | None = None
        self._ranks: frozenset[int] = frozenset()
        self._patient = False  # somebody waits for the outcome
        self._note: str | None = None

    def ready(self) -> bool:
        """Whether it is known what the next start goes on from, or no longer waited for. Looks if nobody does yet."""
        if self._folder is None:
            return True
        if self._search is None:
            self._search, self._since_s = Search(self._folder), self._clock.monotonic_s()
        return self._search.done or self._clock.monotonic_s() - self._since_s >= SEARCH_S

    def wait(self) -> None:
        """Wait for `ready`."""
        if not self.ready() and self._search is not None:
            self._search.wait(SEARCH_S)

    def begin(self, ranks: Collection[int], attempt: int) -> Path | None:
        """`ranks` start now: from which checkpoint. Only a start after the first can be a restart that began anew."""
        search, self._search = self._search, None
        found = search.found if search is not None and search.done else None
        self._note = NOT_LOOKED_AT if search is not None and not search.done else None
        self._expected = found if attempt > 0 else None
        self._ranks, self._since_s = frozenset(ranks), self._clock.monotonic_s()
        self._patient = attempt > 0 and (self._expected is not None or self._note is not None)
        if found is not None and found.beside:
            self._say(found.beside)
        return found.path if found is not None else None

    @property
    def watches(self) -> bool:
        """Whether first steps are still looked at."""
        return self._expected is not None or self._note is not None

    @property
    def awaited(self) -> bool:
        """Whether the start that was begun last is still to be proved."""
        return self._patient

    def outcome(self, first_steps: Mapping[int, int | None]) -> Outcome | None:
        """What became of the last start, once it can be said; a proof that the job started over may come later still.

        Parameters
        ----------
        first_steps : mapping
            Of the ranks that have finished one; None where the script gives it no number.
        """
        if self._note is not None:
            note, self._note, self._patient = self._note, None, False
            return Outcome(note=note)
        if self._expected is None:
            return None
        early = [(step, rank) for rank in self._ranks if (step := first_steps.get(rank)) is not None]
        if early and min(early)[0] < self._expected.step:
            return self._end(Outcome(wrong=_wrong(self._expected, *min(early))))
        if all(rank in first_steps for rank in self._ranks):
            known = len(early) == len(self._ranks)
            return self._end(Outcome(note=None if known else UNNUMBERED))
        if self._patient and self._clock.monotonic_s() - self._since_s >= self._patience_s:
            self._patient = False
            return Outcome(note=f"no first step of all ranks within {self._patience_s:.0f} s of the restart")
        return None

    def _end(self, outcome: Outcome) -> Outcome:
        self._expected, self._patient = None, False
        return outcome


def _wrong(expected: Checkpoint, step: int, rank: int) -> str:
    return (
        f"rank {rank} started over at step {step} although the checkpoint {words(expected.path)} of step "
        f"{expected.step} is whole; the script must go on from it (docs/checkpoints.md), so the job is stopped"
    )
