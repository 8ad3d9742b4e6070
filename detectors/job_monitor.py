"""Monitors one job in the detection service: its state, detectors and incidents.

Decides when to sample a job's collective calls more densely: something is slow and no rank is named.

Stragglers and slow links are told by calls of sampled steps, one step in 64 or so; of a job that has become slow the
first verdict would take minutes. So the agents are asked, once in a while and for a few steps that lie ahead, to have
the calls of every step stamped, the same steps in all ranks (`trainwarden.records.SamplingRecord`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec
import numpy as np

from trainwarden.detectors.calls.links import StepTraffic, TrafficTable
from trainwarden.detectors.collectives.live import Dump, LiveCollectives
from trainwarden.detectors.collectives.watchdog import WatchdogTimeout
from trainwarden.detectors.detector_runner import DetectorRunner
from trainwarden.detectors.job.board import HISTORY
from trainwarden.detectors.job.common_mode import quiet_median
from trainwarden.detectors.job.object_codec import ObjectCodec
from trainwarden.detectors.job.packed import pack, unpack
from trainwarden.detectors.job.samples import FamilySamples
from trainwarden.detectors.job.state import JobState
from trainwarden.detectors.job.step_assembly import Pending
from trainwarden.detectors.job.window import LogLine, Window, job_duration_s
from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
from trainwarden.detectors.metrics.scores import MetricScorer
from trainwarden.detectors.metrics.shadow import Shadow
from trainwarden.detectors.own_models.learner import Learn
from trainwarden.detectors.own_models.own_models import OwnModels
from trainwarden.detectors.protocol import Detector
from trainwarden.detectors.verdict.contention import excused
from trainwarden.detectors.verdict.ensemble import SLOW_PHASES, Ensemble
from trainwarden.detectors.verdict.incidents import IncidentTracker, OpenIncident
from trainwarden.detectors.verdict.rule import EnsembleConfig
from trainwarden.detectors.verdict.stacks import Stack, StackBoard
from trainwarden.errors import DetectorError
from trainwarden.records import Record, SamplingRecord, VerdictRecord, Vote
from trainwarden.self_metrics import SelfMetrics

STEPS: Final = 32  # sampled in a row; the detectors of calls need three at least, and dozens where much varies
EVERY_S: Final = 600.0  # between two requests: with 32 steps of 1 s, a twentieth of all
LEAD_S: Final = 5.0  # until every agent has heard of it: a window, the bus, and a second each to listen and to look
_LEAST_LEAD: Final = 3  # steps
_RECENT: Final = 16  # steps whose usual time counts
_SLOW: Final = frozenset({"slow_job", "slow_compute", "slow_link", "congestion"})
_NOT_YET: Final = frozenset({"start", "restart", "ended"})


class SamplingRequester:
    """Asks for denser samples of one job.

    Parameters
    ----------
    job : str
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self._asked_s = float("-inf")

    def ask(self, window: Window, votes: Mapping[str, Vote]) -> SamplingRecord | None:
        """A request, if these votes call for one and none was made lately."""
        slow = [vote for vote in votes.values() if vote.opinion == "anomalous" and vote.kind in _SLOW]
        named = any(vote.verified and vote.suspects for vote in slow)
        lately = 0.0 <= window.now_s - self._asked_s < EVERY_S
        if not slow or named or lately or window.phase in _NOT_YET:
            return None
        if window.counts is None or not window.counts.comm.size or not len(window.steps):
            return None  # no rank tells of calls
        step_s = float(quiet_median(job_duration_s(window, slice(-_RECENT, None))))
        if not np.isfinite(step_s) or step_s <= 0.0:
            return None
        self._asked_s = window.now_s
        first = int(window.steps[-1]) + max(_LEAST_LEAD, 1 + math.ceil(LEAD_S / step_s))
        return SamplingRecord(
            job=self._job, time_s=window.now_s, from_step=first, until_step=first + STEPS, why=slow[0].reason
        )


log = logging.getLogger("trainwarden.detection")

MAX_ROUNDS: Final = 8  # findings of different kinds that one window may show
_PLAIN: Final = ObjectCodec(StepTraffic, Dump, WatchdogTimeout, TrafficTable, LogLine, OpenIncident, Pending, Stack)
_KIND: Final = "job"
_SETTINGS: Final = ("_config",)  # of the joiner: these come from the settings, not from memory


class JobMonitor:
    """One job: its memory, its detectors, its incidents.

    Attributes
    ----------
    partition : int
        Of the bus, that the job's records lie in.
    calm : bool
        Whether no vote of the last window was anomalous and no incident is open.
    own_models : OwnModels
        What the job teaches by its healthy start, where something learns it and no trained models are there.
    recorded : callable or None
        Where new metric samples come from instead of the job's memory: a recording has them all beforehand.
    """

    def __init__(
        self,
        job: str,
        detectors: dict[str, Detector],
        config: EnsembleConfig,
        metrics: SelfMetrics,
        bundle: ModelBundle | None = None,
        *,
        learn: Learn | None = None,
        asked: Collection[str] = (),
    ) -> None:
        self.state = JobState(job)
        self.own_models = OwnModels(learn)
        self._asked = frozenset(asked)
        self._ensemble = Ensemble(config, {name: detector.role for name, detector in detectors.items()})
        self.scorer = MetricScorer(bundle, self._idle)
        self.shadow = Shadow(job, metrics, self._idle)
        self.joiner = IncidentTracker(job, config)
        self.collectives = LiveCollectives(job)
        self.stacks = StackBoard()
        self.attentive_until_s = 0.0
        self.last_window_s = 0.0
        self.heard_s = 0.0
        self.calm = False
        self.partition = 0
        self.recorded: Callable[[], tuple[FamilySamples, ...]] | None = None
        self._detectors = detectors
        self._of_events = [name for name, detector in detectors.items() if detector.role.reads == "events"]
        of_samples = [detector.role for detector in detectors.values() if detector.role.reads == "samples"]
        self._of_samples = bool(of_samples)
        self._of_history = any(role.past and not role.metrics for role in of_samples)
        self._metrics = metrics
        self._barrier = DetectorRunner(job, metrics)
        self._told: VerdictRecord | None = None
        self._suspicion = SamplingRequester(job)

    def score(self, now_s: float, *, live: bool = True, last: bool = False) -> list[Record]:
        """One window: every detector's vote, the verdict if it is news, and the revisions of incidents."""
        self.last_window_s = now_s
        window = self._window(now_s, last)
        if live:
            self._follow_own_models(window)
        window = self._scored(window)
        self.stacks.apply(window.events, now_s, self.state.quiet_s)
        window = replace(window, stacks=self.stacks.where())
        if found := self.collectives.follow(window):
            window = replace(window, events=(*window.events, *found))
        out: list[Record] = []
        for turn in range(MAX_ROUNDS):
            votes = {name: self._barrier.vote(name, detector, window) for name, detector in self._detectors.items()}
            if self._of_events and (told := self.collectives.explain(votes)):
                explained = replace(seen(window), events=told)
                votes |= {name: self._barrier.vote(name, self._detectors[name], explained) for name in self._of_events}
            votes = excused(votes, window, self.joiner.open)
            verdict = self._ensemble.judge(window, votes)
            out.extend(self.joiner.join(self._ensemble.candidates(window, votes), votes, window, live=live, ends=False))
            if live and self._is_news(verdict):
                self._told = verdict
                out.append(verdict)
            if live and (request := self._suspicion.ask(window, votes)) is not None:
                out.append(request)
            if turn + 1 == MAX_ROUNDS or not any(self._barrier.more(*one) for one in self._detectors.items()):
                break
            window = seen(window)
        out.extend(self.joiner.relieved(window, live=live))
        self.calm = not self.joiner.open and all(vote.opinion != "anomalous" for vote in votes.values())
        for incident in self._barrier.pop_incidents() if live else ():
            if not self.joiner.tells(incident):
                self.joiner.hold(incident)
                out.append(incident)
        self._metrics.count("windows_total", "Windows scored.")
        for kind, number in self.state.take_counts().items():
            self._metrics.count("records_odd_total", "Records that were late, doubled or odd.", number, kind=kind)
        return out

    def snapshot(self) -> bytes:
        """Everything that `restore` needs to go on as if nothing had happened. Data only, nothing executable.

        Raises
        ------
        DetectorError
            If a detector's memory cannot be kept.
        """
        plain = {
            "state": _PLAIN.dump(self.state),
            "joiner": _PLAIN.dump(self.joiner, _SETTINGS),
            "collectives": _PLAIN.dump(self.collectives),
            "stacks": _PLAIN.dump(self.stacks),
            "detectors": {name: detector.state() for name, detector in self._detectors.items()},
            "scorer": self.scorer.state(),
            "own_models": [self.own_models.snapshot(), self.own_models.stage],
            "aside": self._barrier.aside,
            "told": None if self._told is None else msgspec.to_builtins(self._told),
            "last_window_s": self.last_window_s,
            "attentive_until_s": self.attentive_until_s,
            "heard_s": self.heard_s,
        }
        try:
            return pack(_KIND, plain)
        except (TypeError, OverflowError) as error:
            raise DetectorError(f"the memory of this job cannot be kept: {error}") from error

    def restore(self, kept: bytes) -> None:
        """Go on from what `snapshot` gave; this job is in no sound state if it fails.

        Raises
        ------
        DetectorError
            If it is damaged, of another version, or of other detectors.
        """
        plain: dict[str, Any]
        plain, _ = unpack(_KIND, kept)
        try:
            if plain["detectors"].keys() != self._detectors.keys():
                raise DetectorError("this is the memory of other detectors")
            for name, detector in self._detectors.items():
                detector.restore(plain["detectors"][name])
            _PLAIN.load(self.state, plain["state"])
            _PLAIN.load(self.joiner, plain["joiner"], _SETTINGS)
            _PLAIN.load(self.collectives, plain["collectives"])
            if "stacks" in plain:  # memories of before are without
                _PLAIN.load(self.stacks, plain["stacks"])
            self.own_models.restore(*plain.get("own_models", (b"", 0)))
            if self.scorer.bundle is None:
                self.scorer.swap(self.own_models.bundle)
            self.scorer.restore(plain["scorer"])
            self._barrier.aside = {str(name): str(why) for name, why in plain["aside"].items()}
            self._told = None if plain["told"] is None else msgspec.convert(plain["told"], VerdictRecord)
            self.last_window_s, self.heard_s = float(plain["last_window_s"]), float(plain["heard_s"])
            self.attentive_until_s = float(plain["attentive_until_s"])
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise DetectorError(f"the memory of a job is damaged: {error}") from error

    def _window(self, now_s: float, last: bool) -> Window:
        """The job's window, with its new metric samples where a model or a detector looks at them."""
        with_samples = self._of_samples or self.scorer.bundle is not None
        history = HISTORY if self._of_history or self.scorer.bundle is not None else 0
        window = self.state.window(now_s, with_samples=with_samples, history=history, last=last)
        return window if self.recorded is None else replace(window, samples=self.recorded())

    def _follow_own_models(self, window: Window) -> None:
        """Learn from the job's healthy start while there are no trained models; never waits."""
        if self.scorer.bundle is not self.own_models.bundle:
            return  # trained ones are there
        calm = window.phase not in SLOW_PHASES and not self.joiner.open
        learnt = self.own_models.follow(window.board, calm)
        if learnt is not None:
            self.scorer.swap(learnt)
            log.info("own models learnt", extra={"fields": {"job": window.job, "families": list(learnt.votes)}})

    def _scored(self, window: Window) -> Window:
        """The window with what the trained models make of its new metric samples."""
        bundle = self.scorer.bundle
        if bundle is None:
            return replace(window, unscored={"": self.own_models.why}) if self.own_models.why else window
        try:
            scored = self.scorer.score(window.samples, window.end_s)
        except DetectorError as error:
            self._metrics.count("detector_errors_total", "Windows that a detector could not score.", detector="models")
            log.warning("models failed", extra={"fields": {"job": window.job, "error": str(error)}})
            return replace(window, unscored={one.family: f"failed: {error}" for one in window.samples})
        self.shadow.compare(window.samples, scored, window.end_s)
        return replace(
            window, scored=scored, unscored=self.scorer.abstained, model_versions=bundle.versions,
            provisional=bundle.provisional, weights=bundle.weights, idle=self.scorer.idle,
        )  # fmt: skip

    def _idle(self, bundle: ModelBundle) -> frozenset[str]:
        """Members that are not computed. A job's own models are evidence alone, and bounded: of these all are."""
        if bundle is self.own_models.bundle:
            return frozenset()
        return self._ensemble.idle(bundle.members, bundle.weights, self._asked)

    def _is_news(self, verdict: VerdictRecord) -> bool:
        told = self._told
        if told is None or verdict.time_s - told.time_s >= self._ensemble.config.verdict_every_s:
            return True
        ended = verdict.phase == "ended" and told.phase != "ended"
        return ended or (verdict.anomalous, verdict.kind) != (told.anomalous, told.kind)


def seen(window: Window) -> Window:
    """The same window without what the first round has taken in."""
    return replace(window, logs=(), events=(), metrics=(), calls=(), samples=(), scored=())
