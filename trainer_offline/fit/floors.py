"""What the gate asks of a detector: floors and the champion, each judged by what the counts leave open.

A number is below its floor only where its bound is (95 %, `bounds`): then the version is rejected. Where the floor lies
between both bounds there is too little to tell, and the version is provisional.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec

from trainwarden.detectors.metrics.hysteresis import ModelVoteConfig
from trainwarden.settings import Config
from trainwarden.trainer_offline.fit.bounds import count_bounds, most_by_chance, share_bounds
from trainwarden.trainer_offline.fit.judge import Quality
from trainwarden.trainer_offline.fit.weights import Weight

Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
ALERT_SAMPLES: Final = ModelVoteConfig().close_samples  # an alert lasts as long at least: so many samples are one trial


class GateConfig(Config, frozen=True, kw_only=True):
    """Absolute floors. They catch what is broken; what is worse than the champion fails against it.

    Attributes
    ----------
    accuracy : float
        Share of the time in which a vote is not wrongly open. One that is for a fifth of the time agrees with another
        such one for 4 % of it by accident: an hour a day. What it misses is the recall's: where faults take a third of
        the time, whoever finds one in ten by their beginnings is right for little more than two thirds of it.
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
        For the ensemble, which opens incidents by itself: one in twelve hours.
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
    """`passed`, why (not), and the numbers; `beats` is None where there is no champion to beat.

    `provisional`: it has not passed, but nothing says that it would not with more to judge by. `stand_in`: what is
    found now of the provisional version that serves meanwhile, on what it has not learnt from. `weights`: what
    its votes weigh, by family.
    """

    passed: bool
    provisional: bool = False
    reasons: list[str]
    metrics: dict[str, float | int | bool | None]
    beats: bool | None = None
    stand_in: GateResult | None = None
    weights: dict[str, Weight] = {}


@dataclass(frozen=True, slots=True)
class _Doubt:
    """Something that keeps a version from passing; `sure` where chance cannot be why."""

    said: str
    sure: bool


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
    >>> good = Quality(events=40, found=40, judged=900, recall=1.0, accuracy=1.0, precision=1.0, machine_days=1.0,
    ...                false_alarms_per_machine_day=0.0)
    >>> decide(good, None, GateConfig()).passed
    True
    >>> little = decide(msgspec.structs.replace(good, machine_days=0.1), None, GateConfig())
    >>> little.provisional, little.reasons[0]
    (True, 'too little to tell: 0 false alarms in 0.1 machine-days may be 0 to 30 a day, the limit is 6')
    """
    if ours is None or not ours.judged:
        return GateResult(
            passed=False, provisional=True, reasons=["the test jobs gave it nothing to judge"], metrics={}
        )
    metrics: Mapping[str, Any] = msgspec.to_builtins(ours)
    doubts = list(_floors(ours, config, alone))
    facts = [_basis(ours)]
    beats = None
    if champion is not None and champion.judged:
        worse = list(_worse(beside or ours, champion, config))
        doubts += worse
        beats = not worse
        facts.append(
            f"champion on the same jobs: recall {_said(champion.recall)}, {champion.false_episodes} false alarms"
        )
    failures = [one.said for one in doubts if one.sure]
    failures += [f"too little to tell: {one.said}" for one in doubts if not one.sure]
    return GateResult(
        passed=not doubts,
        provisional=bool(doubts) and not any(one.sure for one in doubts),
        reasons=[*failures, *facts],
        metrics=dict(metrics),
        beats=beats,
    )


def needed(hours: float, tested_days: float, config: GateConfig) -> str | None:
    """What is said before a training of data that can at best make provisional versions; None where there is enough.

    Parameters
    ----------
    hours : float
        How long the recordings are.
    tested_days : float
        Machine-days of them that versions will be judged on.

    Examples
    --------
    >>> needed(2 / 60, 0.0025, GateConfig())
    'too little for the gate: 2 minutes; 7 hours of as many machines are needed for a model, 20 hours for the ensemble'
    >>> needed(240.0, 7.0, GateConfig()) is None
    True
    """
    limits = {"a model": config.false_alarms_per_machine_day, "the ensemble": config.alone_false_alarms_per_machine_day}
    # A test without a single false alarm is the shortest that shows their rate to be below its limit.
    days = {name: count_bounds(0)[1] / limit for name, limit in limits.items() if limit}
    short = {name: one for name, one in days.items() if tested_days < one}
    if not short or not tested_days:
        return None
    first, *others = (f"for {name}" for name in short)
    times = [_length(hours * one / tested_days) for one in short.values()]
    said = [f"{times[0]} of as many machines are needed {first}"]
    said += [f"{time} {name}" for time, name in zip(times[1:], others, strict=True)]
    return f"too little for the gate: {_length(hours)}; {', '.join(said)}"


def _length(hours: float) -> str:
    """A time in words, rounded up.

    Examples
    --------
    >>> _length(0.02), _length(6.7), _length(100.0)
    ('2 minutes', '7 hours', '5 days')
    """
    unit, of = ("minutes", 1 / 60) if hours < 2.0 else ("hours", 1.0) if hours < 48.0 else ("days", 24.0)
    return f"{math.ceil(hours / of - 1e-9)} {unit}"


def _floors(ours: Quality, config: GateConfig, alone: bool) -> Iterator[_Doubt]:
    what = "injected anomalies" if ours.injected else "annotated faults"
    found_of = config.injected_recall if ours.injected else config.recall
    for name, value, of, floor in (
        ("recall {} of " + what, ours.recall, ours.events, found_of),
        (_what_accuracy(ours), *_not_wrongly_open(ours), config.accuracy),
        ("precision {}", None if ours.injected else ours.precision, ours.found + _spells(ours), config.precision),
    ):
        if value is None:
            continue
        said = name.format(f"{value:g}")
        low, high = share_bounds(value * of, of)
        if high < floor:
            yield _Doubt(f"{said} is below the floor of {floor:g}", True)
        elif low < floor:
            yield _Doubt(f"{said} may be {low:.2g} to {high:.2g}, the floor is {floor:g}", False)
    yield from _by_chance(ours, what)
    limit = config.alone_false_alarms_per_machine_day if alone else config.false_alarms_per_machine_day
    low, high = (bound / ours.machine_days for bound in _false_alarms(ours)) if ours.machine_days else (0.0, math.inf)
    if low > limit:
        yield _Doubt(f"{ours.false_alarms_per_machine_day:g} false alarms per machine-day are above {limit:g}", True)
    elif high > limit:
        seen = f"{ours.false_episodes} false alarms in {ours.machine_days:.2g} machine-days"
        yield _Doubt(f"{seen} may be {low:.2g} to {high:.2g} a day, the limit is {limit:g}", False)


def _by_chance(ours: Quality, what: str) -> Iterator[_Doubt]:
    """Whoever raises many alarms finds something by accident."""
    if not ours.found or ours.by_chance is None:
        return
    low, high = share_bounds(ours.found, ours.events)
    if low <= ours.by_chance:
        yield _Doubt(
            f"recall {_said(ours.recall)} of {what} is no more than the {ours.by_chance:g} that as many alarms at "
            "random moments would find",
            high <= ours.by_chance,
        )


def _worse(ours: Quality, champion: Quality, config: GateConfig) -> Iterator[_Doubt]:
    for name, value, best, of in (
        ("recall", ours.recall, champion.recall, float(ours.events)),
        ("accuracy", ours.accuracy, champion.accuracy, _trials(ours)),
        ("precision", *_precisions(ours, champion), float(ours.found + _spells(ours))),
    ):
        least = (best or 0.0) - config.recall_slack
        if (value or 0.0) < least:
            said = f"worse than the champion: {name} {_said(value)} against {_said(best)}"
            yield _Doubt(said, share_bounds((value or 0.0) * of, of)[1] < least)
    if ours.false_episodes > most_by_chance(max(champion.false_episodes, 1)):
        said = f"worse than the champion: {ours.false_episodes} false alarms against {champion.false_episodes}"
        yield _Doubt(said, _false_alarms(ours)[0] > champion.false_episodes)


def _precisions(ours: Quality, champion: Quality) -> tuple[float | None, float | None]:
    """Both shares of alarms that are right, where they can be compared: one more false alarm is not less precise."""
    if ours.injected or ours.precision is None or ours.false_episodes <= champion.false_episodes + 1:
        return None, None
    return ours.precision, champion.precision


def _spells(ours: Quality) -> int:
    """Hours with false alarms; each alarm by itself where hours were not counted."""
    return ours.false_episodes if ours.false_spells is None else ours.false_spells


def _trials(ours: Quality) -> float:
    """How many independent samples the accuracy stands on: all wrong time of one spell, or of one missed fault, is one.

    What is right comes in pieces of the same length then, and of none shorter than an alert.
    """
    most = ours.judged / ALERT_SAMPLES
    wrong = 1.0 - (ours.accuracy or 0.0)
    causes = _spells(ours) + (0 if ours.injected else ours.events - ours.found)
    return min(most, max(causes, 1) / wrong) if wrong > 0.0 else most


def _what_accuracy(ours: Quality) -> str:
    return "accuracy {}, but for what was missed," if ours.missed_share else "accuracy {}"


def _not_wrongly_open(ours: Quality) -> tuple[float | None, float]:
    """The accuracy as if nothing were missed, and how many independent samples it stands on."""
    if ours.accuracy is None or not ours.missed_share:
        return ours.accuracy, _trials(ours)
    open_wrongly = max(1.0 - ours.accuracy - ours.missed_share, 0.0)
    most = ours.judged / ALERT_SAMPLES
    return round(1.0 - open_wrongly, 4), min(most, max(_spells(ours), 1) / open_wrongly) if open_wrongly else most


def _false_alarms(ours: Quality) -> tuple[float, float]:
    """How many false alarms are to be expected in time like this, at least and at most.

    They come in spells, so it is hours with alarms that are counted, each of which stands for as many as were seen in
    one. One spell alone says nothing of how often there are any: a test of ten minutes tells no rate per day.
    """
    spells = _spells(ours)
    low, high = count_bounds(spells)
    of_one = ours.false_episodes / spells if spells else 1.0
    return (low * of_one if spells > 1 else 0.0), high * of_one


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
