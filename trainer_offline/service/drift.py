"""Whether a detector's normal scores are still what they were when its version began to serve."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from trainwarden.records import VerdictRecord

TAILS: Final = (0.01, 0.99)  # of the first scores: a later median outside has left their middle 98 %


@dataclass(slots=True)
class _Scores:
    version: str
    first: list[float] = field(default_factory=list)
    last: deque[float] = field(default_factory=deque)


class DriftWatch:
    """Follows the normal votes of every detector with a model version; any job's count alike.

    Only normal votes of normal verdicts are looked at, so an incident is no drift. New ground is seen in the median,
    which single strange windows do not move.

    Examples
    --------
    >>> from trainwarden.records import Vote
    >>> watch = DriftWatch(verdicts=20)
    >>> for number in range(60):
    ...     vote = Vote(opinion="normal", score=0.1 + 0.001 * (number % 7) + (0.2 if number > 30 else 0.0))
    ...     watch.apply(VerdictRecord(id=str(number), job="j", time_s=0.0, window_s=1.0, anomalous=False, reason="",
    ...                              votes={"lof": vote}, model_versions={"lof": "3"}))
    >>> watch.drifted()
    {'lof': 'median normal score of version 3 went from 0.103 to 0.303'}
    """

    def __init__(self, verdicts: int) -> None:
        self._verdicts = verdicts
        self._scores: dict[str, _Scores] = {}

    def apply(self, verdict: VerdictRecord) -> None:
        """Remember the scores of one verdict."""
        if verdict.anomalous:
            return
        for name, version in verdict.model_versions.items():
            vote = verdict.votes.get(name)
            if vote is None or vote.opinion != "normal":
                continue
            scores = self._scores.get(name)
            if scores is None or scores.version != version:
                scores = self._scores[name] = _Scores(version, [], deque(maxlen=self._verdicts))
            if len(scores.first) < self._verdicts:
                scores.first.append(vote.score)
            else:
                scores.last.append(vote.score)

    def drifted(self) -> dict[str, str]:
        """A sentence for each detector whose scores have left their range."""
        found = {}
        for name, scores in self._scores.items():
            if len(scores.last) < self._verdicts:
                continue
            low, high = np.quantile(scores.first, TAILS)
            now = float(np.median(scores.last))
            if not low <= now <= high:
                before = float(np.median(scores.first))
                found[name] = f"median normal score of version {scores.version} went from {before:.3g} to {now:.3g}"
        return found

    def forget(self) -> None:
        """Begin anew, after a training."""
        self._scores.clear()
