"""When enough of an entity's samples are strange: thresholds by rarity, hysteresis, what is usual for the entity."""

from __future__ import annotations

import math
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.samples import Floats
from trainwarden.detectors.metrics.bundle.calibration import squeeze, unsqueeze
from trainwarden.settings import Config

REFERENCE_S: Final = 60.0
"""The servers that thresholds were chosen on are sampled once a minute (SMD) or every five (ASD)."""

EXPIRE_S: Final = 86_400.0
"""What has been strange for a day may teach what is usual again: a machine that has changed for good."""
BURST_S: Final = 3_600.0
"""A spell that is over sooner teaches what is usual once it is over: what comes and goes is the machine's way."""
ABSENT: Final = 10
"""Samples without a score after which nothing is said of an entity any more, as without samples (`job.silence`)."""
HIGHEST: Final = 0.99  # a calibrated score of 1 would be infinitely rare
State = dict[str, npt.NDArray[Any]]


def start(entities: int) -> State:
    """The state of entities of which nothing was seen."""
    return {
        "recent": np.zeros(entities, dtype=np.uint64),  # strange or not, newest in bit 0
        "below": np.zeros(entities, dtype=np.int64),
        "missing": np.zeros(entities, dtype=np.int64),  # samples without a score since the last one
        "opened": np.zeros(entities, dtype=np.bool_),
        "usual": np.zeros(entities),
        "learnt": np.zeros(entities),  # what `usual` will be once the entity is not anomalous
        "open_s": np.zeros(entities),  # for how long it has been
    }


def rarity(scores: Floats) -> Floats:
    """Nats of rarity of calibrated scores, as far as a float can hold them."""
    return unsqueeze(np.minimum(scores, HIGHEST))


class ModelVoteConfig(Config, frozen=True, kw_only=True):
    """When a model's scores become a vote.

    The defaults, and the weights in `ensemble`, were chosen on SMD machines 1-2, 1-4, 1-6 and the odd ASD servers.

    Attributes
    ----------
    threshold : float
        Calibrated score from which a sample is strange, at one sample a minute or fewer; 0.41 is one normal sample in
        55, 0.5 is one in 10,000. Where samples come more often, one has to be as many times rarer, so that false votes
        a day do not grow with the sampling rate.
    fleet : int
        Up to so many entities of a family the threshold is as it stands. Of more, a sample has to be as many times
        rarer as there are more entities, so that false votes do not grow with the cluster.
    open_samples : int
        An entity is anomalous when so many of its last ``2 * open_samples - 1`` samples are strange.
    close_samples : int
        It is normal again after so many samples in a row that are not; gaps count neither way.
    usual_share : float
        What is exceeded by this share of an entity's own samples is usual for it, and not strange whatever it is
        elsewhere: a machine that always looks odd is another machine, not a faulty one. 0 switches this off.
    usual_step : float
        How fast that is learnt: by so many nats of rarity a sample at most. An incident has opened long before a fault
        has taught anything, and what is learnt while the entity is anomalous does not count until it is over, if that
        is within an hour; of a longer spell nothing counts, of one of more than a day everything.
    usual_most : float
        Calibrated score from which a sample is strange however usual it may be, so that what is badly wrong stays told.
    common_share : float
        Nobody is accused of what more than this share of a family begins at once: the job does then what training has
        not shown (a checkpoint, an evaluation, its end), or what all suffer for one. 1 switches this off.
    """

    threshold: Annotated[float, msgspec.Meta(gt=0.0, lt=1.0)] = 0.41
    fleet: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 16
    open_samples: Annotated[int, msgspec.Meta(ge=1, le=16)] = 3
    close_samples: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 15
    usual_share: Annotated[float, msgspec.Meta(ge=0.0, le=0.5)] = 0.01
    usual_step: Annotated[float, msgspec.Meta(gt=0.0, le=10.0)] = 0.2
    usual_most: Annotated[float, msgspec.Meta(gt=0.0, lt=1.0)] = 0.5
    common_share: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 0.5

    def __post_init__(self) -> None:
        if self.close_samples < 2 * self.open_samples - 1:
            raise ValueError(
                f"close_samples must be at least {2 * self.open_samples - 1}, the samples that open_samples counts in"
            )

    def threshold_of(self, entities: int, every_s: float = REFERENCE_S) -> float:
        """The threshold for a family of so many entities that are sampled every `every_s` seconds.

        Examples
        --------
        >>> [round(ModelVoteConfig().threshold_of(entities), 3) for entities in (1, 16, 1024, 16384)]
        [0.41, 0.41, 0.488, 0.516]
        >>> [round(ModelVoteConfig().threshold_of(1, every_s), 3) for every_s in (300.0, 60.0, 10.0, 1.0)]
        [0.41, 0.41, 0.452, 0.488]
        """
        return float(self.thresholds_of(entities, np.array([every_s]))[0])

    def opened(self, scores: Floats, thresholds: Floats, every_s: Floats | None = None) -> npt.NDArray[np.bool_]:
        """When each entity is anomalous, for whole series: what `ModelVote` comes to sample by sample.

        Parameters
        ----------
        scores : float array [r, n]
            NaN counts neither way.
        thresholds : float array [n]
        every_s : float array [n]
            Seconds between two samples; a minute where it is not given.

        Examples
        --------
        >>> scores = np.array([[0.1, 0.9, 0.9, 0.1, 0.1, 0.1]])
        >>> ModelVoteConfig(open_samples=2, close_samples=3).opened(scores, np.full(6, 0.5)).astype(int).tolist()
        [[0, 0, 1, 1, 1, 0]]
        """
        found = np.zeros(scores.shape, dtype=np.bool_)
        every_s = np.full(scores.shape[1], REFERENCE_S) if every_s is None else every_s
        # What is usual can only raise a threshold: whoever stays below it has nothing to open for.
        rows = np.flatnonzero((scores >= thresholds).sum(axis=1) >= self.open_samples)
        for row in rows.tolist():
            found[row] = self._row(scores[row], thresholds, every_s)
        return found

    def _row(self, scores: Floats, thresholds: Floats, every_s: Floats) -> list[bool]:
        """`step` for all samples of one entity, in plain numbers: ten times as fast for one."""
        mask, most = (1 << (2 * self.open_samples - 1)) - 1, float(unsqueeze(self.usual_most))
        share, size = self.usual_share, self.usual_step if self.usual_share else 0.0
        recent, below, missing, usual, learnt, opened, open_s = 0, 0, 0, 0.0, 0.0, False, 0.0
        out = []
        rare = (scores >= thresholds).tolist()
        for nats, enough, elapsed_s in zip(rarity(scores).tolist(), rare, every_s.tolist(), strict=True):
            if math.isnan(nats):
                missing += 1
                if missing >= ABSENT:
                    recent, below, opened = 0, 0, False
            else:
                missing = 0
                strange = enough and nats >= usual
                recent = (recent << 1 | strange) & mask
                below = 0 if strange else below + 1
                if recent.bit_count() >= self.open_samples:
                    opened = True
                if opened and below >= self.close_samples:
                    opened, recent = False, 0
                if not opened and BURST_S < open_s <= EXPIRE_S:
                    learnt = usual
                open_s = open_s + elapsed_s if opened else 0.0
                learnt = min(max(learnt + size * ((nats > learnt) - share), 0.0), most)
                usual = usual if 0.0 < open_s <= EXPIRE_S else learnt
            out.append(opened)
        return out

    def step(
        self, state: State, score: Floats, threshold: float, every_s: float, there: npt.NDArray[np.bool_] | None = None
    ) -> npt.NDArray[np.bool_]:
        """Move `state` on by one sample of every entity; for whom a run of strange samples begins.

        Parameters
        ----------
        state : dict of array [r]
            Parts as `start` makes them; replaced.
        score : float array [r]
            Calibrated; NaN counts neither way, but `ABSENT` of them in a row end what was found.
        threshold : float
            Before what is usual for an entity raises it.
        every_s : float
            Seconds since the sample before.
        there : bool array [r], optional
            Who has a sample; without it all have.
        """
        nats = rarity(score)
        measured = ~np.isnan(score)
        # What is usual raises the threshold: both mean the same rarity. False where NaN.
        strange = (score >= threshold) & (nats >= state["usual"])
        mask = np.uint64((1 << (2 * self.open_samples - 1)) - 1)
        before = state["recent"]
        recent = np.where(measured, ((before << np.uint64(1)) | strange.astype(np.uint64)) & mask, before)
        # A run of strange samples begins where none of the last few was.
        begins: npt.NDArray[np.bool_] = strange & (before == 0) & ~state["opened"]
        state["below"] = np.where(strange, 0, state["below"] + measured)
        state["missing"] = np.where(measured, 0, state["missing"] + (1 if there is None else there))
        absent = state["missing"] >= ABSENT
        opened = state["opened"] | (np.bitwise_count(recent) >= self.open_samples)
        closes = opened & (state["below"] >= self.close_samples) | absent
        state["below"] = np.where(absent, 0, state["below"])
        state["opened"] = opened & ~closes
        state["recent"] = np.where(closes, np.uint64(0), recent)
        fault = measured & ~state["opened"] & (state["open_s"] > BURST_S) & (state["open_s"] <= EXPIRE_S)
        state["learnt"] = self.usual(np.where(fault, state["usual"], state["learnt"]), nats)
        lasted_s = np.where(state["opened"], state["open_s"] + every_s, 0.0)
        state["open_s"] = np.where(measured, lasted_s, state["open_s"])
        held = (state["open_s"] > 0.0) & (state["open_s"] <= EXPIRE_S)
        state["usual"] = np.where(held | ~measured, state["usual"], state["learnt"])
        return begins

    def usual(self, usual: Floats, nats: Floats) -> Floats:
        """What is usual for each entity, in nats, after one more sample ``[r]`` of each.

        A running quantile by stochastic approximation (Robbins and Monro, Annals of Mathematical Statistics 22, 1951):
        it rests where the share of samples above it is `usual_share`.
        """
        if not self.usual_share:
            return usual
        moved = usual + self.usual_step * ((nats > usual) - self.usual_share)
        return np.where(np.isnan(nats), usual, np.clip(moved, 0.0, unsqueeze(self.usual_most)))

    def thresholds_of(self, entities: int, every_s: Floats) -> Floats:
        """The same for many sampling intervals."""
        rarer = max(1.0, entities / self.fleet) * np.maximum(1.0, REFERENCE_S / every_s)
        rarest = squeeze(unsqueeze(self.threshold) + np.log(rarer))
        return np.where(rarer > 1.0, rarest, self.threshold)
