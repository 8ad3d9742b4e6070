"""When a job has shown enough of its healthy start to learn models from, and what has come of it."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Final

import numpy as np

from trainwarden.detectors.job.board import MetricBuffer
from trainwarden.detectors.job.family import Rows
from trainwarden.detectors.job.samples import FamilySamples
from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
from trainwarden.detectors.metrics.downsampling import is_counter
from trainwarden.detectors.own_models.learner import Learn, from_bytes, to_bytes
from trainwarden.errors import DetectorError

log = logging.getLogger("trainwarden.detection")

# Samples of an entity: the first models, and those that stay. Rows to fit and calibrate on, whatever their interval.
STAGES: Final = (24, 120)
MAX_ENTITIES: Final = 32  # of a family that are learnt from
MOST_PER_S: Final = 4_096.0  # samples of a family that are scored: a fifth of a core or so (16,384 take 0.8 s)
MOST_THINNED: Final = STAGES[1] // STAGES[0]  # of more every second to fifth is: those that stay still have 24 rows


class OwnModels:
    """One job's models of its own.

    Parameters
    ----------
    learn : callable or None
        Begins to learn from samples elsewhere; without it nothing is ever learnt.
    """

    def __init__(self, learn: Learn | None) -> None:
        self._learn = learn
        self._since: Mapping[str, Rows] | None = None
        self._stage = 0
        self._pending: Future[ModelBundle] | None = None
        self._failed = ""
        self.bundle: ModelBundle | None = None

    @property
    def why(self) -> str:
        """Why there are none yet; empty if nobody is to learn any."""
        if self._learn is None or self.bundle is not None:
            return ""
        if self._failed:
            return f"nothing could be learnt from the job's own start: {self._failed}"
        if self._pending is not None:
            return "no trained model; the job's own start is being learnt from"
        return f"no trained model; the job's own start is learnt from after {STAGES[self._stage]} healthy samples"

    def follow(self, board: MetricBuffer, calm: bool) -> ModelBundle | None:
        """Take note of one window; new models to serve from now on.

        `calm` says that the job has started and has no incident. What was learnt counts only if the job was calm until
        it was learnt: the first seconds of a fault are told of a little later.
        """
        if self._learn is None or (self._stage == len(STAGES) and self._pending is None):
            return None
        if not calm:
            if self._pending is not None:
                self._pending, self._stage = None, self._stage - 1
            self._since = None
            return None
        if self._pending is not None:
            return self._taken() if self._pending.done() else None
        if self._since is None:
            self._since = board.counts()
        elif samples := board.after(self._since, STAGES[self._stage], STAGES[0], MAX_ENTITIES * MOST_THINNED):
            self._stage += 1
            if few := [part for one in samples if (part := shown(one)) is not None]:
                self._pending = self._learn(few)
            elif self._stage == len(STAGES):
                self._failed = "so many entities are sampled so often that scoring them would take too long"
        return None

    def snapshot(self) -> bytes:
        """The models for `restore`; empty if there are none."""
        return b"" if self.bundle is None else to_bytes(self.bundle)

    def restore(self, kept: bytes, stage: int) -> None:
        """Go on from `snapshot`; raises DetectorError if it is not one of these."""
        self.bundle = from_bytes(kept) if kept else None
        self._stage, self._since, self._pending = min(stage, len(STAGES)) if kept else 0, None, None

    @property
    def stage(self) -> int:
        """How many times models were learnt."""
        return self._stage - (self._pending is not None)

    def _taken(self) -> ModelBundle | None:
        assert self._pending is not None
        pending, self._pending = self._pending, None
        try:
            self.bundle = pending.result()
        except DetectorError as error:
            self._failed = str(error)
            log.warning("no own models", extra={"fields": {"error": str(error)}})
            return None
        self._failed = ""
        return self.bundle


def shown(one: FamilySamples) -> FamilySamples | None:
    """What of a family is learnt from: as many samples of as many entities as can be scored; None where too few are.

    Where too many come, every second to fifth is, of as many more entities. Models know the interval that they have
    learnt, so that scoring them leaves out as much (`trainwarden.detectors.metrics.downsampling`).
    """
    # Rows are spread over the whole family.
    every_s = float(np.median(np.diff(one.times_s, axis=1)))
    thin = math.ceil(float(one.rows[-1] + 1) / max(every_s, 1e-3) / MOST_PER_S)
    samples = one.times_s.shape[1] // thin
    if samples < STAGES[0]:
        return None
    rows = np.linspace(0, one.rows.size - 1, min(one.rows.size, MAX_ENTITIES * thin)).astype(np.int64)
    kept = slice(one.times_s.shape[1] - samples * thin, None)
    values = one.values[rows, :, kept].reshape(rows.size, len(one.names), samples, thin)
    # Of counters the mean rate, as they are scored.
    counters = np.array([is_counter(name) for name in one.names], dtype=np.bool_)
    newest, there = values[..., -1].copy(), ~np.isnan(values)
    mean = np.where(there, values, 0.0).sum(axis=3) / np.maximum(there.sum(axis=3), 1)
    newest[:, counters] = np.where(there.any(axis=3), mean, np.nan)[:, counters]
    return replace(
        one, rows=one.rows[rows], entities=tuple(one.entities[row] for row in rows.tolist()),
        roles=tuple(one.roles[row] for row in rows.tolist()), values=newest,
        times_s=one.times_s[rows][:, kept][:, thin - 1 :: thin],
    )  # fmt: skip
