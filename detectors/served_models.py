"""The models in use: the champion that votes and the challenger that is compared with it."""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

from trainwarden.detectors.job_monitor import JobMonitor
from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
from trainwarden.detectors.metrics.shadow import show_versions
from trainwarden.detectors.metrics.source import ModelPoller
from trainwarden.detectors.own_models.learner import Learn
from trainwarden.detectors.protocol import Detector
from trainwarden.detectors.verdict.rule import EnsembleConfig
from trainwarden.errors import ConfigError, DetectorError
from trainwarden.self_metrics import SelfMetrics

log = logging.getLogger("trainwarden.detection")


class ServedModels:
    """Champion and challenger, as they are now.

    Attributes
    ----------
    learn : callable or None
        Learns models from a job's own start, while there is no champion.

    Parameters
    ----------
    models : str or None
        The folder of models that the settings name; of no account with a follower.
    follower : ModelFollower or None
        Brings models while the service runs.
    asked : frozenset of str
        Detectors that somebody has named: their models are computed, whatever they weigh.

    Raises
    ------
    ConfigError
        If the folder holds no models that can be served.
    """

    def __init__(
        self,
        models: str | None,
        follower: ModelPoller | None,
        metrics: SelfMetrics,
        asked: frozenset[str] = frozenset(),
    ) -> None:
        self._follower, self._metrics = follower, metrics
        self.learn: Learn | None = None
        self._asked = asked
        self._challenger: ModelBundle | None = None
        self.champion: ModelBundle | None = None
        if follower is None and models is not None:
            try:
                self.champion = ModelBundle.load(Path(models))
            except DetectorError as error:
                raise ConfigError(f"detection.models: {error}") from error

    def watched(self, job: str, detectors: dict[str, Detector], config: EnsembleConfig) -> JobMonitor:
        """A watch of `job` that remembers nothing yet, with the challenger beside its champion."""
        watch = JobMonitor(job, detectors, config, self._metrics, self.champion, learn=self.learn, asked=self._asked)
        watch.shadow.swap(self._challenger)
        return watch

    def swap(self, watches: Collection[JobMonitor]) -> None:
        """Serve what the follower has brought: between two windows, so that each is scored by one set of models."""
        found = None if self._follower is None else self._follower.pop_new()
        if found is None:
            return
        if self.champion is None or _who(found.champion) != _who(self.champion):
            before = {} if self.champion is None else self.champion.versions
            show_versions(self._metrics, "champion", before, found.champion.versions)
            self.champion = found.champion
            for watch in watches:
                watch.scorer.swap(found.champion)
            self._metrics.count("model_swaps_total", "Times that other models were taken into service.")
            fields = {"versions": dict(found.champion.versions), "provisional": sorted(found.champion.provisional)}
            log.info("models swapped", extra={"fields": fields})
        if found.why:
            log.warning("there is no challenger", extra={"fields": {"error": found.why}})
        before = {} if self._challenger is None else self._challenger.versions
        show_versions(
            self._metrics, "challenger", before, {} if found.challenger is None else found.challenger.versions
        )
        self._challenger = found.challenger
        for watch in watches:
            watch.shadow.swap(found.challenger)


def _who(bundle: ModelBundle) -> tuple[dict[str, str], frozenset[str]]:
    """What a set of models is known by; a version that is provisional no more weighs otherwise than it did."""
    return dict(bundle.versions), bundle.provisional
