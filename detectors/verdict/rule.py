"""The settings by which votes become a verdict: which rule, what weighs how much, how long things last."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from trainwarden.settings import Config

TRANSOM_VOTES: Final = 2.0  # "at least two of the models", Wu et al. 2023, section V-B


class EnsembleConfig(Config, frozen=True, kw_only=True):
    """The rule, its weights, and how often the service asks.

    Attributes
    ----------
    rule : str
        ``weighted``, or ``transom``: two of three models, one vote each; there a weight can only be 0.
    window_every_s : float
        Seconds between two windows of a job; hard events are judged at once.
    verdict_every_s : float
        An unchanged opinion is published at most this often.
    metric_votes : float
        Weight of the metric votes that must agree on one entity.
    weights : dict
        Weights that differ from the detectors' own (`Role.weight`), by name; 0 silences a detector altogether.
    log_opens, verified_opens, hard_opens : bool
        What may open an incident alone.
    fade_s : float
        In a job that tells no steps, a failure that nothing has supported for so long is over.
    forget_s : float
        A job that has ended, or has sent nothing, is forgotten after this time.
    """

    rule: Literal["weighted", "transom"] = "weighted"
    window_every_s: Annotated[float, msgspec.Meta(gt=0.0, le=3600.0)] = 0.5
    verdict_every_s: Annotated[float, msgspec.Meta(gt=0.0, le=3600.0)] = 1.0
    metric_votes: Annotated[float, msgspec.Meta(gt=0.0, le=20.0)] = 2.0
    weights: dict[str, Annotated[float, msgspec.Meta(ge=0.0, le=10.0)]] = msgspec.field(default_factory=dict)
    log_opens: bool = True
    verified_opens: bool = True
    hard_opens: bool = True
    close_after_s: Annotated[float, msgspec.Meta(ge=0.0, le=3600.0)] = 2.0
    fade_s: Annotated[float, msgspec.Meta(ge=0.0)] = 300.0
    forget_s: Annotated[float, msgspec.Meta(gt=0.0)] = 600.0

    def __post_init__(self) -> None:
        if self.rule == "transom" and (heavy := [name for name, weight in self.weights.items() if weight]):
            raise ValueError(f"by rule transom every model has one vote; the weight of {heavy[0]} can only be 0 there")

    @property
    def enough(self) -> float:
        """Weight of the votes that must agree on one entity."""
        return TRANSOM_VOTES if self.rule == "transom" else self.metric_votes
