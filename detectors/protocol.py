"""What the detection service asks of a detector.

A detector is built as ``Class(config)``. Once for every window the service calls `update`, which
advances the detector's memory, and then `score`, which has no side effects. What its votes may do is
its `role`: nobody else knows detectors by name. Detectors that learn offline (the model-based ones) add
``fit``; nothing here depends on it.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Protocol

import msgspec

from trainwarden.detectors.job.window import Window
from trainwarden.records import Vote

SURVIVED: Final = "survived"  # evidence of a failure: sentences on how the other ranks went on without one
WENT_ON: Final = "went_on_s"  # evidence: when all of them had, by the clock of the one that reports
Reads = Literal["logs", "events", "steps", "scores", "samples", "calls"]
Alone = Literal["hard", "verified", "any"]
# Of the weight of a vote whose models had too little to be judged by. What two minutes of a demo taught opened two
# incidents in 75 s of a healthy one at a half, and one at a quarter, beside `iteration_threshold`.
PROVISIONAL_SHARE: Final = 0.15
# Of what is enough for an incident, for all such votes together, whatever weights are set: what half a minute of a job
# taught is often strange later, and with half of what is enough it made incidents of busy machines.
PROVISIONAL_TOGETHER: Final = 0.25


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """What a detector's votes may do. An anomalous vote that may do nothing is shown, as evidence, and that is all.

    Attributes
    ----------
    reads : str
        What it judges: log lines, events, steps (of iterations), scores (what trained models make of metrics),
        samples (metrics as they were measured, `Window.samples`, which are gathered only where somebody reads them) or
        calls (collective calls, joined over the ranks).
        Where nothing of this was recorded it abstains; new events are shown to those that read events.
    opens : tuple of str
        Which of its anomalous votes open an incident alone: ``hard`` (facts), ``verified`` ones, or ``any``.
    weight : float
        What the others weigh among the votes that need company (`EnsembleConfig.metric_votes`); 0 supports nobody.
    metrics : tuple of str
        Of one that reads samples: the only metrics it looks at, new samples alone; empty = all, with what came before.
    past : bool
        Of one that reads samples of all metrics: whether it wants what came before; one that does not takes of a
        Prometheus what others have asked for.
    transom : bool
        Whether it is one of those that TRANSOM decides by: its log window, or one of the three models of which two have
        to agree. Others support nobody where `EnsembleConfig.rule` is ``transom``.
    """

    reads: Reads
    opens: tuple[Alone, ...] = ()
    weight: Annotated[float, msgspec.Meta(ge=0.0, le=10.0)] = 1.0
    metrics: tuple[str, ...] = ()
    past: bool = True
    transom: bool = False


class Detector(Protocol):
    """One opinion about a job."""

    @property
    def role(self) -> Role:
        """What its votes may do; a class attribute."""
        ...

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
