"""Ranks that train, and what detection makes of their steps: numbers that begin again, and one that is nonsense."""

from __future__ import annotations

from random import Random
from typing import Final

import numpy as np

from tests.chaos.history import History
from trainwarden.detectors.job.rings import COLUMNS
from trainwarden.detectors.job.step_assembly import StepAssembly

RANKS: Final = 4
STEP_S: Final = 0.5
NONSENSE: Final = 10**12
REPEATED: Final = 0.1
KEPT: Final = 4096  # more steps than one run has


class Training:
    """A job of `RANKS` ranks, whose agents send what each rank has ended late, in parts, and some of it twice.

    Its script numbers the steps from 0 in each epoch; two numbers it got wrong.
    """

    def __init__(self, random: Random, history: History) -> None:
        self._random, self._history = random, history
        self._assembly = StepAssembly(KEPT)
        self._assembly.resize(RANKS)
        self._label = random.choice((0, 5000))
        self._ended, self._end_s, self._lives = 0, 0.0, 1
        self._wrong: int | None = None
        self._sent: list[list[tuple[int, float] | None]] = [[] for _ in range(RANKS)]  # not yet with detection
        self._cut_until_s = [0.0] * RANKS

    def begin_epoch(self) -> bool:
        """The script counts from 0 again."""
        self._label = 0
        return True

    def mistake(self) -> bool:
        """The next step bears a number of nonsense."""
        self._wrong = NONSENSE
        return True

    def restart(self) -> bool:
        """All ranks begin anew from a checkpoint; what they had ended is sent before."""
        self._label, self._lives = self._random.randrange(self._label + 1), self._lives + 1
        for sent in self._sent:
            sent.append(None)
        self._deliver(whole=True)
        return True

    def cut_half(self, seconds: float) -> None:
        """Agents of half of the ranks keep what they have until they reach the bus again."""
        for column in self._random.sample(range(RANKS), RANKS // 2):
            self._cut_until_s[column] = self._end_s + seconds

    def tick(self, seconds: float) -> None:
        """Steps end on all ranks, and some of what was sent arrives."""
        for _ in range(round(seconds / STEP_S)):
            self._end_s += STEP_S
            self._ended += 1
            label, self._wrong = self._wrong or self._label, None
            self._label += 1
            for sent in self._sent:
                sent.append((label, self._end_s))
        self._deliver(whole=False)

    def _deliver(self, *, whole: bool) -> None:
        for column in self._random.sample(range(RANKS), RANKS):
            sent = self._sent[column]
            if self._end_s < self._cut_until_s[column]:
                continue
            count = len(sent) if whole else self._random.randint(max(0, len(sent) - 2), len(sent))
            lives: list[list[tuple[int, float]]] = [[]]
            for one in sent[:count]:
                if one is None:
                    lives.append([])
                else:
                    lives[-1].append(one)
            for number, life in enumerate(lives):
                if number:
                    self._assembly.on_process_restart(column)
                again = life if self._random.random() < REPEATED else []
                for label, end_s in [*life, *again]:
                    self._assembly.feed(column, label, end_s, [STEP_S] * len(COLUMNS))
            del sent[:count]
        self._assembly.close(np.ones(RANKS, dtype=np.bool_), everyone_known=True)

    def tell_the_end(self) -> None:
        """Every step that the ranks have ended is there once, whole, whatever its number was.

        A step that was closed without the ranks that were cut off is whole once these have sent it.
        """
        self._deliver(whole=True)
        ring, counts = self._assembly.ring, self._assembly.counts
        told, whole = len(ring.steps), int(np.isfinite(ring.values[0, :, :RANKS]).all(axis=1).sum())
        if not told == whole == self._ended:
            said = f"{told} steps, {whole} whole, of {self._ended} in {self._lives} lives, {dict(counts)}"
            self._history.steps_lost.append(said)
