"""Vote: the loss or the gradient norm that a trainer prints is not finite, or far above what it was.

Lines of a trainer that prints its loss: as it should be, or not a number from the middle on.
"""

from __future__ import annotations

import math
import re
from statistics import median
from typing import Annotated, Final

import msgspec
import numpy as np

from trainwarden.detectors.job.object_codec import WholeMemory
from trainwarden.detectors.job.window import LogLine, Window
from trainwarden.detectors.logs.loss_lines import Quantity, printed
from trainwarden.detectors.protocol import Role
from trainwarden.records import LogRecord, Vote
from trainwarden.settings import Config

START_S = 1_000_000.0
_LINES = 60


def loss_records(sick: bool) -> list[tuple[float, LogRecord]]:
    """Pairs of (time sent, record): a line a second; if `sick` the loss is NaN from the 40th line on."""
    rng = np.random.default_rng(0)
    records = []
    for step in range(_LINES):
        time_s = START_S + step
        loss = "nan" if sick and step >= 40 else f"{4.0 - 0.01 * step + rng.normal(0.0, 0.02):.4f}"
        line = f"step {step} | loss: {loss} | grad_norm: {rng.uniform(0.8, 1.2):.3f}"
        record = LogRecord(
            job="job",
            node="node0",
            source="rank-0.log",
            rank=0,
            ends=(80 * (step + 1),),
            lines=(line,),
            times_s=(time_s,),
        )
        records.append((time_s, record))
    return records


MAX_SERIES: Final = 4_096  # sources times two; those that come later are not followed
KEPT: Final = 64  # values that the level is taken over
LEAST: Final = 32  # before which nothing is said of spikes: warm-up is wild
WIDTHS: Final = 8.0  # robust standard deviations (1.4826 times the median distance from the median)
# Megatron's: a step whose gradients were not finite has changed the weights all the same.
_NOT_SKIPPED: Final = re.compile(r"skipped iterations: {1,8}0 ")
LEAST_SHARE: Final = {"loss": 0.2, "gradient norm": 4.0}  # of the level, that a spike is above it at least
FORGET: Final = 200  # values after which a new level is the level


class Series(msgspec.Struct):
    """One quantity of one source: its newest normal values, and the row of strange ones that it is in."""

    quantity: str
    values: list[float] = []
    strange: int = 0
    finite: bool = True
    since_s: float = 0.0
    value: float = 0.0
    level: float = 0.0
    applied: bool = False  # the step was not skipped


def _unhidden(said: list[tuple[Quantity, float]]) -> list[tuple[Quantity, float]]:
    """`said`, where a loss of exactly zero beside a gradient norm that is no number is no number either.

    transformers counts a loss that is not finite as zero (its logging_nan_inf_filter).

    Examples
    --------
    >>> _unhidden([("loss", 0.0), ("gradient norm", math.nan)]), _unhidden([("loss", 2.5), ("gradient norm", math.nan)])
    ([('loss', nan), ('gradient norm', nan)], [('loss', 2.5), ('gradient norm', nan)])
    """
    told = dict(said)
    if told.get("loss") == 0.0 and math.isnan(told.get("gradient norm", 0.0)):
        told["loss"] = math.nan
    return list(told.items())


class LossWatch(WholeMemory):
    """Loss and gradient norm, as printed: `silent_corruption`, which accuses nobody and asks for validation.

    A value that is not finite counts at once for the loss if the next one is not either; mixed precision skips single
    steps of infinite gradients. A spike is so many values in a row far above the median of the newest 64.

    Parameters
    ----------
    config : LossWatch.Config

    References
    ----------
    Iglewicz and Hoaglin, How to detect and handle outliers, 1993 (robust z-scores).
    """

    class Config(Config, frozen=True, kw_only=True):
        """`not_finite` and `spike`: so many printed values in a row are told."""

        not_finite: Annotated[int, msgspec.Meta(ge=1, le=100)] = 2
        spike: Annotated[int, msgspec.Meta(ge=1, le=100)] = 5

    role = Role(reads="logs", opens=("verified",), weight=0.0)  # what a loss says is no witness of slowness
    contract_stream = staticmethod(loss_records)
    HELD = (Series,)

    def __init__(self, config: Config) -> None:
        self._config = config
        self._series: dict[tuple[str, str, str], Series] = {}
        self._life = 0

    @property
    def more(self) -> bool:
        """One finding holds all."""
        return False

    def update(self, window: Window) -> None:
        """Observe new lines."""
        if window.restarts != self._life:
            # Whoever printed what was strange may run elsewhere now and print there: nothing would ever end it here.
            self._life = window.restarts
            self._series = {key: one for key, one in self._series.items() if not one.strange}
        for line in window.logs:
            for quantity, value in _unhidden(printed(line.line)):
                self._observe(quantity, value, line)

    def score(self, window: Window) -> Vote:
        """What is strange and since when; normal if nothing is."""
        found = [one for one in self._series.values() if one.strange >= self._enough(one)]
        if any(not one.finite for one in found):  # what was no number first, however few times yet, says what began
            found = [one for one in self._series.values() if one.strange and not one.finite]
        if found:
            return self._vote(found)
        if not self._series:
            return Vote(opinion="abstain", reason="no line tells a loss or a gradient norm")
        return Vote(opinion="normal")

    # -- internals -------------------------------------------------------------------------------------------

    def _observe(self, quantity: str, value: float, line: LogLine) -> None:
        key = (line.node, line.source, quantity)
        if key not in self._series and len(self._series) >= MAX_SERIES:
            return
        one = self._series.setdefault(key, Series(quantity))
        level, bar = _bar(one, value)
        finite = math.isfinite(value)
        if (finite and not value > bar) or (one.strange >= FORGET and finite and one.finite):
            if one.strange >= FORGET:
                one.values.clear()
            one.strange, one.finite = 0, True
            one.values = [*one.values[1 - KEPT :], value]
            return
        if not one.strange or finite is not one.finite:
            one.strange, one.since_s, one.level = 0, line.time_s, level
        one.strange, one.finite, one.value = one.strange + 1, finite, value
        one.applied = _NOT_SKIPPED.search(line.line) is not None

    def _enough(self, one: Series) -> int:
        if one.finite:
            return self._config.spike
        # A loss scale that is looked for skips steps of infinite gradients by the dozen.
        return self._config.not_finite if one.quantity == "loss" or one.applied else 10 * self._config.not_finite

    def _vote(self, found: list[Series]) -> Vote:
        first = min(found, key=lambda one: (one.finite, one.since_s, one.quantity != "loss"))
        like = [one for one in self._series.values() if one.quantity == first.quantity]
        same = sum(one.quantity == first.quantity for one in found)
        what = f"spikes at {first.value:.4g} from {first.level:.4g}" if first.finite else f"is {first.value}"
        who = f", in {same} of {len(like)} sources that print it" if len(like) > 1 else ""
        return Vote(
            opinion="anomalous", score=0.9 if first.finite else 1.0, kind="silent_corruption",
            severity="sev3" if first.finite else "sev2", verified=True, onset_s=min(one.since_s for one in found),
            reason=f"the {first.quantity} {what} {first.strange} times{who}: validate the devices; nobody is accused",
            metrics=tuple(sorted({one.quantity.replace(" ", "_") for one in found}, reverse=True)),
        )  # fmt: skip


def _bar(one: Series, value: float) -> tuple[float, float]:
    """The level of a series, and what is above normal for `value`; infinite until enough is known."""
    if len(one.values) < LEAST:
        return (one.values[-1] if one.values else 0.0), math.inf
    level = median(one.values)
    least = level + LEAST_SHARE[one.quantity] * abs(level)
    if value <= least:  # normal, however narrow the values lie
        return level, least
    spread = 1.4826 * median([abs(value - level) for value in one.values])
    return level, max(least, level + WIDTHS * spread)
