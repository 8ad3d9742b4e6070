"""Runs one job's detectors and disables any that crashes."""

from __future__ import annotations

import logging

from trainwarden.detectors.job.window import Window
from trainwarden.detectors.protocol import Detector, abstain
from trainwarden.errors import DetectorError
from trainwarden.records import IncidentRecord, Vote
from trainwarden.self_metrics import SelfMetrics

log = logging.getLogger("trainwarden.detection")

MAX_WHY_CHARS = 300


class DetectorRunner:
    """Asks the detectors of one job for their votes.

    A `DetectorError` is a detector's own word that it cannot judge this window: it abstains and is asked again. Any
    other error is a defect, after which its memory may be anything: it is not asked again while the job is watched.
    """

    def __init__(self, job: str, metrics: SelfMetrics) -> None:
        self._job, self._metrics = job, metrics
        self.aside: dict[str, str] = {}
        self._untold: list[IncidentRecord] = []

    def vote(self, name: str, detector: Detector, window: Window) -> Vote:
        """One detector's vote. The one place where a failing detector becomes an abstention."""
        if name in self.aside:
            return abstain(self.aside[name])
        try:
            detector.update(window)
            vote = detector.score(window)
        except DetectorError as error:
            self._metrics.count("detector_errors_total", "Windows that a detector could not score.", detector=name)
            fields = {"job": window.job, "detector": name, "error": str(error)}
            log.warning("detector failed", extra={"fields": fields})
            return abstain(f"failed: {error}")
        except Exception as error:
            log.exception("detector set aside", extra={"fields": {"job": self._job, "detector": name}})
            self._set_aside(name, error, window.now_s)
            return abstain(self.aside[name])
        if vote.opinion == "abstain":
            self._metrics.count("abstentions_total", "Votes that were neither yes nor no.", detector=name)
        return vote

    def more(self, name: str, detector: Detector) -> bool:
        """Whether `detector` has another finding to show."""
        return name not in self.aside and detector.more

    def pop_incidents(self) -> list[IncidentRecord]:
        """What nobody has been told yet; it counts as told from now on."""
        untold, self._untold = self._untold, []
        return untold

    def _set_aside(self, name: str, error: Exception, now_s: float) -> None:
        why = f"set aside: {type(error).__name__}: {error}"[:MAX_WHY_CHARS]
        self.aside[name] = why
        self._metrics.count("set_aside_total", "Detectors and jobs set aside after a defect.", what=name)
        self._untold.append(pipeline_incident(self._job, name, now_s, f"detector {name} was {why}"))


def pipeline_incident(job: str, what: str, now_s: float, reason: str) -> IncidentRecord:
    """The incident that says that we ourselves, not the job, are in trouble."""
    return IncidentRecord(
        id=f"pipeline/{job}/{what}/{now_s:.0f}",
        job=job,
        kind="pipeline",
        severity="sev3",
        state="opened",
        revision=0,
        opened_at_s=now_s,
        updated_at_s=now_s,
        reason=reason,
    )
