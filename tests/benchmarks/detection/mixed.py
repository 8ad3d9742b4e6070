"""The whole product on constructed mixtures: a healthy background and one real anomaly of another kind, with each
detector left out in turn (`detection_mixed_jobs` says what is put together).

An event is found if an incident opens within it; an incident that touches no event (margin 5 samples) is false.

Run: ``python -m tests.benchmarks.detection.mixed`` (minutes).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tests.benchmarks.detection.logs import KEYWORDS
from tests.benchmarks.detection.mixed_jobs import TICK_S, Anomaly, MixedJob, mixed_jobs
from tests.benchmarks.detection.protocol import Counts, intervals, quality, rounded, spans_quality
from trainwarden.detectors.configured_detectors import chosen
from trainwarden.detectors.metrics.bundle.members import VoteConfig, by_name
from trainwarden.detectors.recorded.metrics import score_recorded
from trainwarden.detectors.recorded.processes import processes
from trainwarden.detectors.recorded.replay import replay
from trainwarden.detectors.verdict.ensemble import SLOW_KINDS
from trainwarden.records import IncidentRecord
from trainwarden.settings import DetectionSettings

Say = Callable[[str], None]
Span = tuple[float, float, str]
CONSTRUCTED: Final = "mixed, constructed"
SKIPPED: Final = "the shared data are not there: set TRAINWARDEN_SHARED or put them beside the checkout"
MARGIN_S: Final = 5 * TICK_S
SLOW_RATIO, SLOW_STEPS = 1.1, 5  # of the simple rules: so much above the running average, so many steps in a row
FAR_Z, FAR_SAMPLES = 6.0, 3
WHOLE: Final = "all_detectors"
TRANSOM: Final = "all_detectors, rule transom"
RULES: Final = "simple_rules"


@dataclass(slots=True)
class Outcome:
    """What was said of one job: spans (opened, closed, kind) by variant."""

    name: str
    anomaly: Anomaly
    event: tuple[float, float] | None
    judged_s: float
    spans: dict[str, list[Span]] = field(default_factory=dict)


def leave_out() -> list[str]:
    """Detectors that can change a verdict; one without a weight in the rule cannot."""
    return [name for name, one in chosen(DetectionSettings()).items() if one.role.weight > 0.0 or one.role.opens]


def judge(place: int) -> Outcome:
    """One job: with all detectors, without each in turn, and by simple rules."""
    mixed = mixed_jobs()[place]
    job, settings = mixed.job, DetectionSettings()
    span = job.span_s
    assert span is not None
    assert job.normal_until_s is not None
    out = Outcome(job.name, mixed.anomaly, mixed.event, span[1] - job.normal_until_s)
    scores = score_recorded(job)
    whole = replay(job, settings, scores=scores)
    out.spans[WHOLE] = spans_of(whole.incidents, span[1])
    transom = replay(job, DetectionSettings(ensemble={"rule": "transom"}), scores=scores)
    out.spans[TRANSOM] = spans_of(transom.incidents, span[1])
    for name in leave_out():
        # Without one that never had an opinion nothing can change.
        out.spans[f"without {name}"] = out.spans[WHOLE]
        if name not in whole.abstained:
            rest = [one for one in chosen(settings) if one != name]
            out.spans[f"without {name}"] = spans_of(replay(job, settings, names=rest, scores=scores).incidents, span[1])
    out.spans[RULES] = simple_rules(mixed)
    out.spans["always_off"] = []
    return out


def spans_of(incidents: Sequence[IncidentRecord], end_s: float) -> list[Span]:
    return [(one.opened_at_s, end_s if one.closed_at_s is None else one.closed_at_s, one.kind) for one in incidents]


def simple_rules(mixed: MixedJob) -> list[Span]:
    """What one would write in an afternoon: words in log lines, 1.1 x the running average, far from training."""
    job = mixed.job
    moments = [(float(time_s), "log") for log in job.logs
               for time_s, line in zip(log.times_s, log.lines, strict=True) if KEYWORDS.search(line)]  # fmt: skip
    if job.iterations is not None:
        durations = job.iterations.duration_s
        mean = np.cumsum(durations) / np.arange(1, durations.size + 1)
        slow = _in_a_row(durations[1:] > SLOW_RATIO * mean[:-1], SLOW_STEPS)
        moments += [(float(time_s), "slow_job") for time_s in job.iterations.end_s[1:][slow]]
    if job.metrics is not None and job.normal_until_s is not None:
        table = job.metrics
        for entity in range(len(table.nodes)):
            rows = np.flatnonzero(table.entity == entity)
            training = rows[table.times_s[rows] < job.normal_until_s]
            mean, spread = table.values[training].mean(axis=0), table.values[training].std(axis=0)
            judged = rows[len(training) :]
            far = (np.abs(table.values[judged] - mean) > FAR_Z * np.maximum(spread, 1e-3 * np.abs(mean) + 1e-6)).any(1)
            far = _in_a_row(far, FAR_SAMPLES)
            moments += [(float(time_s), "metric_anomaly") for time_s in table.times_s[judged][far]]
    spans: list[Span] = []
    for time_s, kind in sorted(moments):
        if spans and spans[-1][2] == kind and time_s - spans[-1][1] < MARGIN_S:
            spans[-1] = (spans[-1][0], time_s, kind)
        else:
            spans.append((time_s, time_s, kind))
    return spans


def _in_a_row(flags: npt.NDArray[np.bool_], least: int) -> npt.NDArray[np.bool_]:
    """Where so many in a row are true, the newest included.

    Examples
    --------
    >>> _in_a_row(np.array([True, True, False, True]), 2).tolist()
    [False, True, False, False]
    """
    counted = np.convolve(flags, np.ones(least), "full")[: flags.size]
    return np.asarray(counted >= least - 0.5, dtype=np.bool_)


def right_kind(anomaly: Anomaly, kind: str) -> bool:
    """Whether an incident's kind belongs to what was put in."""
    if anomaly == "metric":
        return kind == "metric_anomaly"
    return (kind in SLOW_KINDS - {"metric_anomaly"}) == (anomaly == "steps") and kind != "metric_anomaly"


def rows(say: Say = lambda text: None, workers: int = 2) -> list[dict[str, Any]]:
    """One row for each variant: ``{"table": "mixed, constructed", "row": variant, "set": anomaly, metric: value}``."""
    total = len(mixed_jobs())
    if not total:
        return [{"table": CONSTRUCTED, "row": "all", "set": "all", "skipped": SKIPPED}]
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    outcomes: list[Outcome] = []
    with processes(workers) as pool:
        for number, future in enumerate(as_completed([pool.submit(judge, place) for place in range(total)]), 1):
            outcomes.append(future.result())
            say(f"mixed: {number} of {total} jobs, {outcomes[-1].name}")
    return table(sorted(outcomes, key=lambda one: one.name))


def table(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """All variants over all jobs, and the whole product by kind of anomaly."""
    out = [figures(outcomes, variant, "all") for variant in outcomes[0].spans]
    for anomaly in ("metric", "log", "steps", "none"):
        some = [one for one in outcomes if one.anomaly == anomaly]
        out += [
            figures(some, variant, anomaly) for variant in (WHOLE, TRANSOM, RULES) if some and variant in some[0].spans
        ]
    weights, votes = by_name(VoteConfig().members), chosen(DetectionSettings())
    for row in out:
        name = row["row"].removeprefix("without ")
        if name in weights:
            row |= {"weight": weights[name], "vote_weight": votes[name].role.weight}
    return out


def figures(outcomes: Sequence[Outcome], variant: str, name: str) -> dict[str, Any]:
    """Event-wise quality of one variant over some jobs; days of normal time are counted as hours here."""
    machines, delays, kinds = [], [], []
    for one in outcomes:
        events = [] if one.event is None else [one.event]
        spans = one.spans[variant]
        said = spans_quality(events, [span[:2] for span in spans], MARGIN_S)
        normal_h = (one.judged_s - sum(last - first for first, last in events)) / 3600.0
        machines.append(Counts(said["events"], said["found"], said["episodes"], said["false"], normal_h))
        delays += said["delays_s"]
        kinds += [
            any(right_kind(one.anomaly, kind) for opened, _, kind in spans if first <= opened <= last)
            for first, last in events
        ]
    row: dict[str, Any] = {"table": CONSTRUCTED, "row": variant, "set": name, "jobs": len(outcomes)}
    row |= {"events": sum(one.events for one in machines), "found": sum(one.found for one in machines)}
    row["false"] = sum(one.false for one in machines)
    row |= {**quality(machines), **intervals(machines)}
    row["false_per_hour"], row["false_per_hour_ci"] = row.pop("false_per_day"), row.pop("false_per_day_ci", None)
    row["right_kind"] = float(np.mean(kinds)) if kinds else None
    row["delay_median_s"] = float(np.median(delays)) if delays else None
    return rounded(row)


if __name__ == "__main__":
    print(json.dumps(rows(say=lambda text: print(text, file=sys.stderr)), indent=1))
