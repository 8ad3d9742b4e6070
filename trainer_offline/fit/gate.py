"""Who may serve: each detector's quality on the test jobs against absolute floors and against today's champion."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

import msgspec
from scipy.special import pdtr, pdtrik

from detectors.metrics.bundle.bundle import ModelBundle
from trainer_offline.data.card import DIGEST
from trainer_offline.data.prepare_job import PreparedJob
from trainer_offline.fit.judge import Quality, Tally, judge
from trainer_offline.progress import Tell, silent
from trainwarden.settings import Config

Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
CONFIDENCE: Final = 0.95
FEWEST_NEW: Final = 60  # samples: the models' look-back; of less there is nothing to compare by


class GateConfig(Config, frozen=True, kw_only=True):
    """Absolute floors. They catch what is broken; what is worse than the champion fails against it.

    Attributes
    ----------
    accuracy : float
        Share of the time that is judged rightly. A vote that is wrongly open for a fifth of the time agrees with
        another such one for 4 % of it by accident: an hour a day.
    precision : float
        Alarms of one model are no incidents yet, since others have to agree: one in fifty right is enough to be of use.
    recall : float
        Of annotated faults; and above what as many alarms at random moments would find, whatever the floor says.
    injected_recall, injected_sigma : float
        Without annotated faults, of anomalies that are added: steps of so many spreads, which no sound model misses
        half of.
    false_alarms_per_machine_day : float
        For one model. Two models, open for about 20 samples after each of 6 alarms a day, agree by accident once a day
        where samples come once a minute; at more the vote would be theirs.
    alone_false_alarms_per_machine_day : float
        For the ensemble, which opens incidents by itself: one in twelve hours. A rate above its limit counts only where
        so many false alarms cannot be chance (Poisson, 95 %), and one alone never does: a test of ten minutes says
        nothing of rates per day.
    recall_slack : float
        How much less recall, accuracy or precision than the champion still counts as equal; one false alarm more is not
        less precise.
    """

    accuracy: Share = 0.8
    precision: Share = 0.02
    recall: Share = 0.05
    injected_recall: Share = 0.5
    injected_sigma: Annotated[float, msgspec.Meta(gt=0.0)] = 8.0
    false_alarms_per_machine_day: Annotated[float, msgspec.Meta(ge=0.0)] = 6.0
    alone_false_alarms_per_machine_day: Annotated[float, msgspec.Meta(ge=0.0)] = 2.0
    recall_slack: Share = 0.05


class GateResult(msgspec.Struct, kw_only=True):
    """`passed`, why (not), and the numbers; `beats` is None where there is no champion to beat."""

    passed: bool
    reasons: list[str]
    metrics: dict[str, float | int | bool | None]
    beats: bool | None = None


@dataclass(frozen=True, slots=True)
class Champion:
    """Who serves today, and what it was trained on, as its data card says.

    Attributes
    ----------
    bundle : ModelBundle
    jobs, digests : frozenset of str
        Names, and the first `data.card.DIGEST` digits of the hashes of the jobs' content.
    before : frozenset of str
        Hashes of single jobs of which it was trained on the first part, and that are cut at the same place now: it is
        judged on what lies after.
    until_s : mapping of str to float
        The last time of each job that it has learnt from; jobs that are not in it it may have learnt to the end. A job
        that has grown since is judged on what lies after.

    Examples
    --------
    >>> one, nothing = PreparedJob("a", [], digest="f" * 64), ModelBundle({}, {})
    >>> Champion(nothing, frozenset({"a"})).covers(one), Champion(nothing, frozenset({"b"})).covers(one)
    (True, False)
    """

    bundle: ModelBundle
    jobs: frozenset[str] = frozenset()
    digests: frozenset[str] = frozenset()
    before: frozenset[str] = frozenset()
    until_s: Mapping[str, float] = field(default_factory=dict)

    def covers(self, job: PreparedJob) -> bool:
        """Whether there is nothing in a test job that is new to it."""
        return self.unseen(job) is None

    def unseen(self, job: PreparedJob) -> PreparedJob | None:
        """What of a test job it has not learnt from: all, what lies after, or nothing worth a comparison."""
        digest = job.digest[:DIGEST]
        if digest in self.before or not (digest in self.digests or job.name in self.jobs):
            return job
        until_s = self.until_s.get(job.name)
        if digest in self.digests or until_s is None:
            return None
        if all(until_s < grid.times_s[0] for grid in job.grids if grid.times_s.size):
            return job
        grids = [grid.part(grid.times_s > until_s) for grid in job.grids]
        grids = [grid for grid in grids if grid.times_s.size >= FEWEST_NEW]
        return replace(job, grids=grids) if grids else None


def gate(
    bundle: ModelBundle,
    champion: Champion | None,
    jobs: Sequence[PreparedJob],
    config: GateConfig,
    *,
    seed: int,
    tell: Tell = silent,
) -> tuple[dict[str, GateResult], dict[str, Tally]]:
    """Result for each detector of `bundle` and for the ``ensemble``, and what was counted (for plots).

    The champion is compared on test jobs that it was not trained on alone: on rows that it has learnt from it would
    seem better than it is. `tell` hears of every job that has been judged.
    """
    unseen = [(job, job if champion is None else champion.unseen(job)) for job in jobs]
    fair = [part for _, part in unseen if part is not None]
    rounds = len(jobs) if champion is None else len(jobs) + len(fair)
    ours = judge(bundle, jobs, config.injected_sigma, seed, lambda job, done: tell(f"judged on {job}", done, rounds))
    theirs: dict[str, Tally] = {}
    if champion is not None and fair:
        theirs = judge(
            champion.bundle, fair, config.injected_sigma, seed,
            lambda job, done: tell(f"champion judged on {job}", len(jobs) + done, rounds),
        )  # fmt: skip
    # The floors are for all test jobs; the comparison is made on those that neither side has learnt from.
    whole = all(part is job for job, part in unseen)
    beside = ours if whole or not theirs else judge(bundle, fair, config.injected_sigma, seed)
    names = [*dict.fromkeys(name for vote in bundle.votes.values() for name in vote.models), "ensemble"]
    results = {}
    for name in names:
        own, other, same = (one.quality if (one := part.get(name)) else None for part in (ours, theirs, beside))
        results[name] = decide(own, other, config, same, alone=name == "ensemble")
        results[name].reasons.extend(_left_out(unseen, champion))
    return results, ours


def _left_out(unseen: Sequence[tuple[PreparedJob, PreparedJob | None]], champion: Champion | None) -> list[str]:
    """What the champion was not compared on, since it was trained on it."""
    if champion is None:
        return []
    grown = [job.name for job, part in unseen if part is not None and part is not job]
    said = [
        f"compared with the champion on {name} after {champion.until_s[name]:.0f} s, up to which it was trained on it"
        for name in grown
    ]
    left_out = ", ".join(job.name for job, part in unseen if part is None)
    if left_out and all(part is None for _, part in unseen):
        said.append(f"not compared with the champion: it was trained on all test jobs ({left_out})")
    elif left_out:
        said.append(f"compared with the champion without {left_out}, which it was trained on")
    return said


def decide(
    ours: Quality | None,
    champion: Quality | None,
    config: GateConfig,
    beside: Quality | None = None,
    alone: bool = False,
) -> GateResult:
    """One detector's result; `beside` is its quality on the jobs that the champion was judged on, if those are fewer.

    `alone`: it opens incidents without others that agree.

    Examples
    --------
    >>> good = Quality(events=4, found=4, judged=9, recall=1.0, accuracy=0.9, precision=1.0, machine_days=1.0,
    ...                false_alarms_per_machine_day=0.0)
    >>> decide(good, None, GateConfig()).passed
    True
    >>> decide(Quality(events=4, judged=9, recall=0.0, accuracy=0.9, machine_days=1.0), good, GateConfig()).reasons[0]
    'recall 0 of annotated faults is below the floor of 0.05'
    """
    if ours is None or not ours.judged:
        return GateResult(passed=False, reasons=["the test jobs gave it nothing to judge"], metrics={})
    metrics: Mapping[str, Any] = msgspec.to_builtins(ours)
    failures = _floors(ours, config, alone)
    facts = [_basis(ours)]
    beats = None
    if champion is not None and champion.judged:
        worse = _worse(beside or ours, champion, config)
        failures += worse
        beats = not worse
        facts.append(
            f"champion on the same jobs: recall {_said(champion.recall)}, {champion.false_episodes} false alarms"
        )
    return GateResult(passed=not failures, reasons=[*failures, *facts], metrics=dict(metrics), beats=beats)


def _floors(ours: Quality, config: GateConfig, alone: bool) -> list[str]:
    failures = []
    recall = config.injected_recall if ours.injected else config.recall
    what = "injected anomalies" if ours.injected else "annotated faults"
    if ours.recall is not None and ours.recall < recall:
        failures.append(f"recall {ours.recall:g} of {what} is below the floor of {recall:g}")
    for name, value, floor in (
        ("accuracy", ours.accuracy, config.accuracy),
        ("precision", None if ours.injected else ours.precision, config.precision),
    ):
        if value is not None and value < floor:
            failures.append(f"{name} {value:g} is below the floor of {floor:g}")
    if ours.found and ours.recall is not None and ours.by_chance is not None and ours.recall <= ours.by_chance:
        failures.append(
            f"recall {ours.recall:g} of {what} is no more than the {ours.by_chance:g} that as many alarms at random "
            "moments would find"
        )
    limit = config.alone_false_alarms_per_machine_day if alone else config.false_alarms_per_machine_day
    if ours.false_episodes > max(1, most_by_chance(limit * ours.machine_days)):
        failures.append(f"{ours.false_alarms_per_machine_day:g} false alarms per machine-day are above {limit:g}")
    return failures


def _worse(ours: Quality, champion: Quality, config: GateConfig) -> list[str]:
    worse = []
    if (ours.recall or 0.0) < (champion.recall or 0.0) - config.recall_slack:
        worse.append(f"worse than the champion: recall {_said(ours.recall)} against {_said(champion.recall)}")
    if (ours.accuracy or 0.0) < (champion.accuracy or 0.0) - config.recall_slack:
        worse.append(f"worse than the champion: accuracy {_said(ours.accuracy)} against {_said(champion.accuracy)}")
    if _less_precise(ours, champion, config):
        worse.append(f"worse than the champion: precision {_said(ours.precision)} against {_said(champion.precision)}")
    if ours.false_episodes > most_by_chance(max(champion.false_episodes, 1)):
        worse.append(f"worse than the champion: {ours.false_episodes} false alarms against {champion.false_episodes}")
    return worse


def _less_precise(ours: Quality, champion: Quality, config: GateConfig) -> bool:
    """Whether a larger share of the alarms is false; one more false alarm alone is not."""
    if ours.injected or ours.precision is None or champion.precision is None:
        return False
    fewer = ours.precision < champion.precision - config.recall_slack
    return fewer and ours.false_episodes > champion.false_episodes + 1


def most_by_chance(expected: float) -> int:
    """As many as chance gives where `expected` are to be expected.

    It is ``scipy.stats.poisson.ppf`` by its own formula: importing all distributions takes a second of each training.
    """
    if expected <= 0.0:
        return 0
    most: int = math.ceil(pdtrik(CONFIDENCE, expected))
    return most - 1 if most > 0 and pdtr(most - 1, expected) >= CONFIDENCE else most


def _basis(ours: Quality) -> str:
    """What was judged, said plainly."""
    days = f"{ours.false_episodes} false alarms in {ours.machine_days:.3g} machine-days"
    if ours.injected:
        return (
            f"no annotated faults in the test jobs: recall is that of {ours.events} injected anomalies of known size, "
            f"{days}"
        )
    if ours.events:
        return f"{ours.found} of {ours.events} annotated faults found, {days}"
    return f"nothing to find in the test jobs, only false alarms counted: {days}"


def _said(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g}"
