"""The challenger in the champion's shadow: both score every sample, only the champion votes, both are exported."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from trainwarden.detectors.job.samples import FamilySamples, ScoredSamples
from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
from trainwarden.detectors.metrics.scores import Idle, MetricScorer
from trainwarden.detectors.metrics.vote import ENSEMBLE, ModelVoteConfig
from trainwarden.errors import DetectorError
from trainwarden.self_metrics import SelfMetrics

log = logging.getLogger("trainwarden.detection")


class Shadow:
    """Scores of one job by the challenger, compared with the champion's sample by sample.

    Exported are, by detector and for the ensemble: the highest new score of each (``model_score``), how many samples
    both have judged, and on how many both were of one opinion, strange or not.
    """

    def __init__(self, job: str, metrics: SelfMetrics, idle: Idle = lambda bundle: frozenset()) -> None:
        self._job = job
        self._idle = idle
        self._metrics = metrics
        self._scorer: MetricScorer | None = None

    def swap(self, bundle: ModelBundle | None) -> None:
        """Another challenger, or none."""
        self._scorer = None if bundle is None else MetricScorer(bundle, self._idle)

    def compare(
        self, samples: Sequence[FamilySamples], champion: Sequence[ScoredSamples], now_s: float | None = None
    ) -> None:
        """Score the new samples too and export both; what fails here never reaches a vote."""
        if self._scorer is None:
            return
        try:
            found = self._scorer.score(samples, now_s)
        except DetectorError as error:
            self._metrics.count(
                "detector_errors_total", "Windows that a detector could not score.", detector="challenger"
            )
            log.warning("challenger failed", extra={"fields": {"job": self._job, "error": str(error)}})
            return
        theirs = {(one.family, one.rows.tobytes()): one for one in found}
        for one in champion:
            other = theirs.get((one.family, one.rows.tobytes()))
            if other is not None:
                self._export(one, other)

    def _export(self, champion: ScoredSamples, challenger: ScoredSamples) -> None:
        threshold = ModelVoteConfig().threshold
        ours = {**champion.scores, ENSEMBLE: champion.ensemble}
        theirs = {**challenger.scores, ENSEMBLE: challenger.ensemble}
        for name in ours.keys() & theirs.keys():
            both = ~np.isnan(ours[name]) & ~np.isnan(theirs[name])
            if not both.any():
                continue
            alike = (ours[name] >= threshold) == (theirs[name] >= threshold)
            labels = {"training_job": self._job, "detector": name}
            for role, scores in (("champion", ours[name]), ("challenger", theirs[name])):
                highest = float(scores[both].max())
                self._metrics.gauge(
                    "model_score", "Highest new score of a job's entities.", highest, role=role, **labels
                )
            self._metrics.count("shadow_samples_total", "Samples judged by both.", int(both.sum()), **labels)
            self._metrics.count("shadow_agreed_total", "... with one opinion.", int(alike[both].sum()), **labels)


def show_versions(metrics: SelfMetrics, role: str, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Gauge ``model_version_info`` is 1 for the versions in use and 0 for those that were."""
    for versions, value in ((before, 0.0), (now, 1.0)):
        for name, version in versions.items():
            metrics.gauge(
                "model_version_info", "Model versions in use.", value, role=role, detector=name, version=version
            )


def told(metrics: SelfMetrics) -> Callable[[str | None], None]:
    """What a `ModelPoller` calls after each attempt."""

    def note(error: str | None) -> None:
        away = "1 while the registry is away or refuses what it should serve."
        metrics.gauge("model_source_failing", away, 0.0 if error is None else 1.0)

    return note
