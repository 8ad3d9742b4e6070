"""Who may serve: each detector's quality on the test jobs against absolute floors and against today's champion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
from scipy.stats import poisson

from detectors.models.bundle import ModelBundle
from trainer_offline.judged import Quality, Tally, judge
from trainer_offline.prepare_job import PreparedJob
from trainwarden.settings import Config

Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
CONFIDENCE: Final = 0.95


class GateConfig(Config, frozen=True, kw_only=True):
    """Absolute floors. They catch what is broken; what is worse than the champion fails against it.

    A false-alarm rate above its limit counts only where so many false alarms cannot be chance (Poisson, 95 %), and one
    alone never does: a test of ten minutes says nothing of rates per day. `injected_sigma` is the size, in training
    spreads, of the anomalies added where there are no annotated faults, and `injected_recall` the floor there.
    `recall_slack` is how much less than the champion still counts as equal.
    """

    accuracy: Share = 0.6
    precision: Share = 0.02
    recall: Share = 0.05
    injected_recall: Share = 0.5
    injected_sigma: Annotated[float, msgspec.Meta(gt=0.0)] = 8.0
    false_alarms_per_machine_day: Annotated[float, msgspec.Meta(ge=0.0)] = 6.0
    recall_slack: Share = 0.05


class GateResult(msgspec.Struct, kw_only=True):
    """`passed`, why (not), and the numbers; `beats` is None where there is no champion to beat."""

    passed: bool
    reasons: list[str]
    metrics: dict[str, float | int | bool | None]
    beats: bool | None = None


def gate(
    bundle: ModelBundle,
    champion: ModelBundle | None,
    jobs: Sequence[PreparedJob],
    config: GateConfig,
    seed: int,
    known: Sequence[str] = (),
) -> tuple[dict[str, GateResult], dict[str, Tally]]:
    """Result for each detector of `bundle` and for the ``ensemble``, and what was counted (for plots).

    `known` names jobs that the champion was trained on: where they are among the test jobs, the result says so.
    """
    seen = sorted({job.name for job in jobs} & set(known))
    ours = judge(bundle, jobs, config.injected_sigma, seed)
    theirs = {} if champion is None else judge(champion, jobs, config.injected_sigma, seed)
    names = [*dict.fromkeys(name for vote in bundle.votes.values() for name in vote.models), "ensemble"]
    results = {}
    for name in names:
        tally, other = ours.get(name), theirs.get(name)
        results[name] = decide(
            None if tally is None else tally.quality, None if other is None else other.quality, config
        )
        if results[name].beats is not None and seen:
            results[name].reasons.append(f"the champion was trained on {', '.join(seen)}, which favours it")
    return results, ours


def decide(ours: Quality | None, champion: Quality | None, config: GateConfig) -> GateResult:
    """One detector's result.

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
    failures = _floors(ours, config)
    facts = [_basis(ours)]
    beats = None
    if champion is not None and champion.judged:
        worse = _worse(ours, champion, config)
        failures += worse
        beats = not worse
        facts.append(
            f"champion on the same jobs: recall {_said(champion.recall)}, {champion.false_episodes} false alarms"
        )
    return GateResult(passed=not failures, reasons=[*failures, *facts], metrics=dict(metrics), beats=beats)


def _floors(ours: Quality, config: GateConfig) -> list[str]:
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
    limit = config.false_alarms_per_machine_day
    if ours.false_episodes > max(1, _chance(limit * ours.machine_days)):
        failures.append(f"{ours.false_alarms_per_machine_day:g} false alarms per machine-day are above {limit:g}")
    return failures


def _worse(ours: Quality, champion: Quality, config: GateConfig) -> list[str]:
    worse = []
    if (ours.recall or 0.0) < (champion.recall or 0.0) - config.recall_slack:
        worse.append(f"worse than the champion: recall {_said(ours.recall)} against {_said(champion.recall)}")
    if ours.false_episodes > _chance(max(champion.false_episodes, 1)):
        worse.append(f"worse than the champion: {ours.false_episodes} false alarms against {champion.false_episodes}")
    return worse


def _chance(expected: float) -> int:
    """As many as chance gives where `expected` are to be expected."""
    return int(poisson.ppf(CONFIDENCE, expected)) if expected > 0.0 else 0


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
