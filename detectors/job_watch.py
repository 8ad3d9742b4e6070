"""One job in the detection service: its memory, its detectors, its incidents; windows go through all of them."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from detectors.collectives.live import LiveCollectives
from detectors.job.state import JobState
from detectors.job.window import Window
from detectors.metrics.bundle.bundle import ModelBundle
from detectors.metrics.scores import MetricScorer
from detectors.metrics.shadow import Shadow
from detectors.protocol import Detector, abstain
from detectors.verdict.ensemble import EnsembleConfig, candidates, judge
from detectors.verdict.incidents import Joiner
from trainwarden.errors import DetectorError
from trainwarden.records import Record, VerdictRecord, Vote
from trainwarden.self_metrics import SelfMetrics

log = logging.getLogger("trainwarden.detection")

MAX_ROUNDS: Final = 8  # findings of different kinds that one window may show


class JobWatch:
    """One job: its memory, its detectors, its incidents."""

    def __init__(
        self,
        job: str,
        detectors: dict[str, Detector],
        config: EnsembleConfig,
        metrics: SelfMetrics,
        bundle: ModelBundle | None = None,
    ) -> None:
        self.state = JobState(job)
        self.scorer = MetricScorer(bundle)
        self.shadow = Shadow(job, metrics)
        self.joiner = Joiner(job, config)
        self.collectives = LiveCollectives(job)
        self.attentive_until_s = 0.0
        self.last_window_s = 0.0
        self.heard_s = 0.0
        self._detectors = detectors
        self._config = config
        self._metrics = metrics
        self._told: VerdictRecord | None = None

    def score(self, now_s: float, *, live: bool = True, last: bool = False) -> list[Record]:
        """One window: every detector's vote, the verdict if it is news, and the revisions of incidents."""
        self.last_window_s = now_s
        with_samples = self.scorer.bundle is not None
        window = self._scored(self.state.window(now_s, with_samples=with_samples, last=last))
        if found := self.collectives.follow(window):
            window = replace(window, events=(*window.events, *found))
        out: list[Record] = []
        for turn in range(MAX_ROUNDS):
            votes = {name: self._vote(name, detector, window) for name, detector in self._detectors.items()}
            if "hard_event" in votes and (told := self.collectives.explain(votes)):
                explained = replace(seen(window), events=told)
                votes["hard_event"] = self._vote("hard_event", self._detectors["hard_event"], explained)
            verdict = judge(window, votes, self._config)
            out.extend(self.joiner.join(candidates(window, votes, self._config), votes, window, live=live))
            if live and self._is_news(verdict):
                self._told = verdict
                out.append(verdict)
            if turn + 1 == MAX_ROUNDS or not any(detector.more for detector in self._detectors.values()):
                break
            window = seen(window)
        self._metrics.count("windows_total", "Windows scored.")
        for kind, number in self.state.take_counts().items():
            self._metrics.count("records_odd_total", "Records that were late, doubled or odd.", number, kind=kind)
        return out

    def _scored(self, window: Window) -> Window:
        """The window with what the trained models make of its new metric samples."""
        bundle = self.scorer.bundle
        if bundle is None:
            return window
        try:
            scored = self.scorer.score(window.samples)
        except DetectorError as error:
            self._metrics.count("detector_errors_total", "Windows that a detector could not score.", detector="models")
            log.warning("models failed", extra={"fields": {"job": window.job, "error": str(error)}})
            return replace(window, unscored={one.family: f"failed: {error}" for one in window.samples})
        self.shadow.compare(window.samples, scored)
        return replace(window, scored=scored, unscored=self.scorer.abstained, model_versions=bundle.versions)

    def _vote(self, name: str, detector: Detector, window: Window) -> Vote:
        """One detector's vote. The one place where a failing detector becomes an abstention."""
        try:
            detector.update(window)
            vote = detector.score(window)
        except DetectorError as error:
            self._metrics.count("detector_errors_total", "Windows that a detector could not score.", detector=name)
            fields = {"job": window.job, "detector": name, "error": str(error)}
            log.warning("detector failed", extra={"fields": fields})
            return abstain(f"failed: {error}")
        if vote.opinion == "abstain":
            self._metrics.count("abstentions_total", "Votes that were neither yes nor no.", detector=name)
        return vote

    def _is_news(self, verdict: VerdictRecord) -> bool:
        told = self._told
        if told is None or verdict.time_s - told.time_s >= self._config.verdict_every_s:
            return True
        ended = verdict.phase == "ended" and told.phase != "ended"
        return ended or (verdict.anomalous, verdict.kind) != (told.anomalous, told.kind)


def seen(window: Window) -> Window:
    """The same window without what the first round has taken in."""
    return replace(window, logs=(), events=(), metrics=(), samples=(), scored=())
