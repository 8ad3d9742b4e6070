"""What the detection service asks of a detector.

A detector is built as ``Class(config)``. Once for every window the service calls `update`, which
advances the detector's memory, and then `score`, which has no side effects. Detectors that learn
offline (the model-based ones) add ``fit``; nothing here depends on it.
"""

from __future__ import annotations

from typing import Protocol

from detectors.job.window import Window
from trainwarden.records import Vote


class Detector(Protocol):
    """One opinion about a job."""

    @property
    def more(self) -> bool:
        """True if another finding waits behind the one that `score` shows; the service then goes round again."""
        ...

    def update(self, window: Window) -> None:
        """Advance by one window; what was seen in an earlier window is not seen twice.

        Raises
        ------
        DetectorError
            If this window cannot be taken in.
        """
        ...

    def score(self, window: Window) -> Vote:
        """The opinion now. Never changes the detector; abstains with a reason where it cannot know."""
        ...

    def state(self) -> bytes:
        """Everything that `restore` needs to go on as if nothing had happened. Data only, nothing executable."""
        ...

    def restore(self, state: bytes) -> None:
        """Go on from `state`.

        Raises
        ------
        DetectorError
            If `state` is not one of this detector's.
        """
        ...


def abstain(reason: str) -> Vote:
    """A vote that is neither yes nor no.

    Examples
    --------
    >>> abstain("warm-up").opinion
    'abstain'
    """
    return Vote(opinion="abstain", reason=reason)
