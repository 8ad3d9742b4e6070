"""A recorded folder judged by the very path that judges live jobs: one pass in time order, window by window."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final, Protocol

import msgspec
import numpy as np

from trainwarden.detectors.configured_detectors import ConfiguredDetector, chosen, rule
from trainwarden.detectors.job.samples import FamilySamples, Floats, ScoredSamples
from trainwarden.detectors.job.window import Window
from trainwarden.detectors.job_monitor import JobMonitor
from trainwarden.detectors.logs.ends.endings import shipped_endings
from trainwarden.detectors.logs.loss_lines import goes_on, printed
from trainwarden.detectors.logs.rules import shipped_rules
from trainwarden.detectors.metrics.scores import MetricScorer
from trainwarden.detectors.metrics.vote import ModelVote
from trainwarden.detectors.pace.change_config import ChangePointConfig
from trainwarden.detectors.protocol import Detector, Role
from trainwarden.detectors.recorded.grids import RecordedSamples
from trainwarden.detectors.recorded.metrics import MetricScores, ScoredGrid
from trainwarden.detectors.recorded.stream import CUT_STEPS, Fact, ReplayStream
from trainwarden.detectors.verdict.rule import EnsembleConfig
from trainwarden.log_shapes import by_shape, unmasked
from trainwarden.log_text import behind_prefixes
from trainwarden.recorded.job import RecordedJob
from trainwarden.records import HeartbeatRecord, IncidentRecord, IterationRecord, LogRecord, Record, Vote
from trainwarden.self_metrics import SelfMetrics
from trainwarden.settings import DetectionSettings

FIRST: Final = 64  # windows of a job that is still being learnt
HOLD_S: Final = 180.0  # a finding is undecided so long, and twice
HOLD: Final = 32  # windows, where steps are long
MOST_LINES: Final = 8  # of a window; more may be a storm
THIN: Final = 2  # lines of one writer in a window, from which no storm comes while many windows pass
MOST_SKIPPED: Final = CUT_STEPS * CUT_STEPS  # steps or windows, whichever are more
KEPT: Final = 31  # steps of which the usual length is known
FEWEST: Final = 16
LIKE: Final = (0.8, 1.25)  # times the usual step
MOST_SHAPES: Final = 4_096
_DIGITS: Final = re.compile(r"[0-9]+")
_shape_of = by_shape(lambda shape: _DIGITS.sub("0", unmasked(shape)))

Progress = Callable[[float], None]
"""Called with the share of the work that is done, 0..1."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What one pass over one recorded job found.

    Attributes
    ----------
    incidents : list of IncidentRecord
        Newest revision of each, by opening.
    detectors : dict of Detector
        As they were at the end; they hold change points, episodes and log findings.
    abstained : dict of str
        Detectors that never had an opinion, with the reason.
    scores : MetricScores or None
        Calibrated scores of every row of metrics.
    rule : str
        By which votes became verdicts (`EnsembleConfig.rule`).
    """

    job: RecordedJob
    incidents: list[IncidentRecord]
    detectors: dict[str, Detector]
    abstained: dict[str, str]
    scores: MetricScores | None
    rule: str


class Samples(Protocol):
    """Stands where a live job has its board of metrics: see `trainwarden.detectors.recorded.grids.RecordedSamples`."""

    times_s: Floats
    until_s: float

    def pop_new(self) -> tuple[FamilySamples, ...]:
        """What is new since the last call, up to `until_s`."""
        ...


class _Noted:
    """A detector whose abstentions are remembered."""

    def __init__(self, detector: Detector) -> None:
        self.detector = detector
        self.role: Role = detector.role
        self.spoke = False
        self.reason = "nothing of this kind was recorded"

    @property
    def more(self) -> bool:
        return self.detector.more

    def update(self, window: Window) -> None:
        self.detector.update(window)

    def score(self, window: Window) -> Vote:
        vote = self.detector.score(window)
        if vote.opinion == "abstain":
            self.reason = vote.reason
        else:
            self.spoke = True
        return vote

    def state(self) -> bytes:
        return self.detector.state()

    def restore(self, state: bytes) -> None:
        self.detector.restore(state)


class _Prescored(MetricScorer):
    """Stands where a live job has its scorer: hands out what was scored before, up to the window's time."""

    def __init__(self, scores: MetricScores) -> None:
        super().__init__(scores.bundle)
        self.abstained, self.idle = scores.abstained, scores.idle
        self.until_s = -np.inf
        self._grids = scores.scored
        self._places = [0] * len(scores.scored)

    def score(self, samples: Sequence[FamilySamples], now_s: float | None = None) -> tuple[ScoredSamples, ...]:
        """The scored samples up to `until_s` that were not handed out yet."""
        del samples
        out = []
        for index, part in enumerate(self._grids):
            end = int(np.searchsorted(part.column_s, self.until_s, side="right"))
            out.append(part.scored.until(self._places[index], end))
            self._places[index] = end
        return tuple(out)


def replay(
    job: RecordedJob,
    settings: DetectionSettings,
    *,
    names: Sequence[str] | None = None,
    facts: Sequence[Fact] = (),
    scores: MetricScores | None = None,
    samples: Samples | None = None,
    normal_until_s: float | None = None,
    progress: Progress = lambda share: None,
) -> ReplayResult:
    """Judge `job` in one pass in time order; nothing at time t depends on later data.

    Parameters
    ----------
    job : RecordedJob
    settings : DetectionSettings
        Detectors with their settings, and the ensemble's rule.
    names : sequence of str, optional
        Detectors to ask; default those of `settings`.
    facts : sequence of Record
        Events and heartbeats kept beside the recording.
    scores : MetricScores, optional
        From `trainwarden.detectors.recorded.metrics.score_recorded`; without them the metric models abstain.
    samples : Samples, optional
        Metrics that come from elsewhere than the job's own table.
    normal_until_s : float, optional
        Metrics before it are normal; the job's own `normal_until_s` goes before it.

    Raises
    ------
    ConfigError
        If a detector does not exist or a setting is wrong.
    """
    detectors = {name: _Noted(_made(choice, job)) for name, choice in chosen(settings, names or None).items()}
    by_rule = rule(settings)
    until_s = job.normal_until_s if job.normal_until_s is not None else normal_until_s
    samples = samples or _samples(job, [one.role for one in detectors.values()], until_s)
    calm = CalmStretches(job, facts)
    turns_s = _turning_times_s([noted.detector for noted in detectors.values()], scores)
    stream = ReplayStream(job, facts, turns_s if samples is None else np.union1d(turns_s, samples.times_s))
    scorer = None if scores is None else _Prescored(scores)
    watch = _monitor(job, detectors, by_rule, scorer, samples)
    incidents: dict[str, IncidentRecord] = {}
    total = max(1, stream.count)
    now_s = 0.0
    for number, (now_s, records) in enumerate(stream.windows()):
        for record in records:
            watch.state.feed(record)
        if scorer is not None:
            scorer.until_s = now_s
        if samples is not None:
            samples.until_s = now_s
        if calm.skips(records, now_s, watch.calm):
            continue
        for found in watch.score(now_s):
            if isinstance(found, IncidentRecord):
                incidents[found.id] = found
        if number % 256 == 0:
            progress(min(1.0, number / total))
    incidents.update({one.id: one for one in watch.score(now_s, last=True) if isinstance(one, IncidentRecord)})
    progress(1.0)
    return ReplayResult(
        job=job,
        incidents=sorted(incidents.values(), key=lambda record: record.opened_at_s),
        detectors={name: noted.detector for name, noted in detectors.items()},
        abstained=_abstained(detectors, job, scores, samples is not None),
        scores=scores,
        rule=by_rule.rule,
    )


def _monitor(
    job: RecordedJob, detectors: Mapping[str, _Noted], by_rule: EnsembleConfig, scorer: _Prescored | None,
    samples: Samples | None,
) -> JobMonitor:  # fmt: skip
    """The job's monitor, with the detectors that may have anything to judge: others would cost in each window."""
    read = {"scores": scorer, "samples": samples, "calls": job.collectives}
    asked: dict[str, Detector] = {
        name: one for name, one in detectors.items() if read.get(one.role.reads, job) is not None
    }
    watch = JobMonitor(job.name, asked, by_rule, SelfMetrics("replay"))
    if samples is not None:
        watch.recorded = samples.pop_new
    if scorer is not None:
        watch.scorer = scorer
    return watch


def _turning_times_s(detectors: Sequence[Detector], scores: MetricScores | None) -> Floats:
    """When a model's vote may change; between these times a window would show nothing new."""
    found = [np.zeros(0)]
    of_family: dict[str, list[ScoredGrid]] = {}
    for part in () if scores is None else scores.scored:
        of_family.setdefault(part.scored.family, []).append(part)
    for parts in of_family.values():
        column_s = np.concatenate([part.column_s for part in parts])
        scored = ScoredSamples.joined([part.scored for part in parts])
        found += [column_s[one.turns(scored)] for one in detectors if isinstance(one, ModelVote)]
        found.append(column_s[-1:])
    return np.unique(np.concatenate(found))


def _samples(job: RecordedJob, roles: Sequence[Role], normal_until_s: float | None) -> Samples | None:
    """The recording's samples as far as anybody reads them; None where nobody does."""
    asked = [role for role in roles if role.reads == "samples"]
    if not asked or job.metrics is None:
        return None
    named = [role for role in asked if role.metrics or role.past]
    wanted = {name for role in named for name in role.metrics} if all(role.metrics for role in named) else None
    return RecordedSamples.of(job, wanted, others=len(named) < len(asked), normal_until_s=normal_until_s)


def _abstained(
    detectors: Mapping[str, _Noted], job: RecordedJob, scores: MetricScores | None, sampled: bool
) -> dict[str, str]:
    """Why detectors had no opinion: nothing to judge goes before what they say themselves."""
    reasons = {name: noted.reason for name, noted in detectors.items() if not noted.spoke}
    for name, noted in detectors.items():
        if noted.role.reads == "scores" and scores is None:
            reasons[name] = (
                "no metrics were recorded"
                if job.metrics is None
                else "nothing says what is normal: give --normal-until, --normal or --models"
            )
        elif noted.role.reads == "steps" and job.iterations is None:
            reasons[name] = "no iterations were recorded"
        elif noted.role.reads == "calls" and job.collectives is None:
            reasons[name] = "no collectives were recorded"
        elif noted.role.reads == "logs" and not job.logs:
            reasons[name] = "no log lines were recorded"
        elif noted.role.reads == "samples" and not sampled:
            reasons[name] = "no metrics were recorded"
    return reasons


def _made(choice: ConfiguredDetector, job: RecordedJob) -> Detector:
    if isinstance(choice.config, ChangePointConfig):
        planned = tuple(change.step for change in job.planned)  # of the folder, not a setting
        return replace(choice, config=msgspec.structs.replace(choice.config, planned_steps=planned)).made()
    return choice.made()


class CalmStretches:
    """Which windows of a replay need not be scored one by one.

    A window is calm while lines are of no rule, steps last as long as those before, and no detector sees anything.
    After one that is not, each is scored for a while: findings are decided by what comes next.

    Examples
    --------
    >>> from pathlib import Path
    >>> CalmStretches(RecordedJob("j", Path(".")), ()).skips([], 5.0, True)
    False
    """

    def __init__(self, job: RecordedJob, facts: Sequence[Fact]) -> None:
        beats = any(isinstance(fact, HeartbeatRecord) for fact in facts)
        self._possible = job.metrics is None and job.collectives is None and not beats
        self._rules, self._endings = shipped_rules(), shipped_endings()
        self._steps: deque[float] = deque(maxlen=KEPT)
        self._shapes: dict[str, bool] = {}  # of step lines: numbers are left out
        self._left, self._until_s = FIRST, float("-inf")
        self._skipped = 0

    def skips(self, records: Sequence[Record], now_s: float, quiet: bool) -> bool:
        """Whether the window at `now_s` waits for those that come; `quiet`: nothing was found in the last one."""
        if not self._possible:
            return False
        calm = len(records) > 0 and all([self._calm(record) for record in records])
        if not calm or not quiet:
            self._left, self._until_s = HOLD, now_s + HOLD_S
        self._left = max(0, self._left - 1)
        weight = max(map(_weight, records), default=1)
        waits = not self._left and now_s > self._until_s and self._skipped + weight < MOST_SKIPPED
        self._skipped = self._skipped + weight if waits else 0
        return waits

    def _calm(self, record: Record) -> bool:
        if isinstance(record, IterationRecord):
            return all([self._usual(duration_s) for duration_s in record.duration_s])
        if not isinstance(record, LogRecord) or len(record.lines) > MOST_LINES:
            return False
        return all(self._says_nothing(line, record.rank) for line in record.lines)

    def _usual(self, duration_s: float) -> bool:
        """Whether a step lasts as long as those before."""
        known = len(self._steps) >= FEWEST
        low, high = LIKE
        like = known and low <= duration_s / median(self._steps) <= high
        self._steps.append(duration_s)
        return like

    def _says_nothing(self, line: str, rank: int | None) -> bool:
        shape = _shape_of(line)
        known = self._shapes.get(shape)
        if known is not None:
            return known
        rest = behind_prefixes(line, rank)
        rule = self._rules.match(line) or self._rules.match(rest)
        calm = (rule is None or rule.role == "benign") and self._endings.read(rest) is None
        if goes_on(line) and len(self._shapes) < MOST_SHAPES:  # other lines mean something by their numbers
            calm = calm and all(math.isfinite(value) for _, value in printed(line))
            self._shapes[shape] = calm
        return calm


def _weight(record: Record) -> int:
    """How much of what may be skipped in a row a window with `record` is: its steps, or one of eight with many lines.

    Examples
    --------
    >>> def of(*lines): return LogRecord(job="j", node="", source="x", ends=(), lines=lines, times_s=())
    >>> _weight(of("a", "b")), _weight(of("a", "b", "c"))
    (1, 8)
    """
    if isinstance(record, IterationRecord):
        return max(1, len(record.steps))
    return CUT_STEPS if isinstance(record, LogRecord) and len(record.lines) > THIN else 1
