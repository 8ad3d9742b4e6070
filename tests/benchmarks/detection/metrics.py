"""Anomalies in server metrics (SMD, ASD, NAB): the product, its vote, each member alone and plain baselines.

One pass, no label, no future, no point adjustment. Everything learns from the training part of a machine alone;
parameters and thresholds are those of the choosing half, figures those of the report half. The models and the
incidents come from the path of ``trainwarden detect``.

Run: ``python -m tests.benchmarks.detection.metrics [smd] [asd] [nab]`` (minutes).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from sklearn.metrics import average_precision_score

from tests.benchmarks.detection.baselines import BASELINES, baselines
from tests.benchmarks.detection.measures import blamed_share, bootstrap, vus_pr
from tests.benchmarks.detection.protocol import (
    ALARM_RATES,
    FROZEN_RATE,
    Series,
    blamed_by_chance,
    counts,
    curve,
    rounded,
    summary,
)
from tests.benchmarks.detection.servers import DATASETS, Half, ServerCase, listed, load
from tests.benchmarks.detection.voices import WEIGHTED, WHOLE, by_votes, measured, opened, plain
from trainwarden.detectors import configured_detectors
from trainwarden.detectors.metrics.bundle.members import ROW_MODELS, VoteConfig, by_name
from trainwarden.detectors.metrics.bundle.metric_vote import MetricVote
from trainwarden.detectors.recorded.metrics import MetricScores, score_recorded
from trainwarden.detectors.recorded.processes import processes
from trainwarden.detectors.recorded.replay import replay
from trainwarden.recorded.job import MetricTable, RecordedJob
from trainwarden.records import IncidentRecord
from trainwarden.settings import DetectionSettings

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Say = Callable[[str], None]
SKIPPED: Final = "the shared data are not there: set TRAINWARDEN_SHARED or put them beside the checkout"
PRODUCT: Final = "incidents"
TRANSOM: Final = "incidents_transom"  # by rule transom
CHANCE: Final = "three_at_random"
BLAMED: Final = 3
LEARNT_ROWS: Final = {"smd": (500, 2_000, 6_000), "asd": (500, 2_000, 6_000), "nab": (500,)}
"""Normal rows that the vote is also learnt from alone, the first ones: a cluster that has only begun."""
ALONE: Final = "abstains: every machine is alone; it compares ranks (tables peers and mixed)"


@dataclass(slots=True)
class Judged:
    """What every method made of one machine's test rows."""

    name: str
    dataset: str
    half: Half
    every_s: float
    labels: Flags
    scores: dict[str, Floats] = field(default_factory=dict)
    alerts: dict[str, Flags] = field(default_factory=dict)
    votes: dict[str, Flags] = field(default_factory=dict)  # when each model's vote is anomalous
    blamed: dict[str, float] = field(default_factory=dict)
    vus: dict[str, float] = field(default_factory=dict)
    precision: dict[str, float] = field(default_factory=dict)

    @property
    def per_day(self) -> float:
        return 86_400.0 / self.every_s


def recorded(case: ServerCase) -> RecordedJob:
    """The machine as a recorded folder would give it: training rows, then the others, on one clock."""
    values = np.concatenate([case.train, case.test])
    rows = len(values)
    table = MetricTable(
        times_s=case.every_s * np.arange(rows, dtype=np.float64),
        entity=np.zeros(rows, dtype=np.int64),
        nodes=(case.name,),
        ranks=(None,),
        devices=(None,),
        names=case.names,
        values=values,
    )
    until_s = len(case.train) * case.every_s
    return RecordedJob(case.name, Path(case.name), metrics=table, normal_until_s=until_s)


def judge(dataset: str, name: str) -> Judged:
    """All methods on one machine, each trained once on its training rows."""
    case = load(dataset, name)
    job = recorded(case)
    out = Judged(case.name, case.dataset, case.half, case.every_s, case.labels)
    scored = score_recorded(job)
    assert scored is not None
    start = len(case.train)
    for member, column in scored.by_model.items():
        out.scores[member] = np.nan_to_num(column[start:])
    out.scores["ensemble"] = np.nan_to_num(scored.mean[start:])
    out.votes = {method: opened(column, case.every_s) for method, column in out.scores.items()}
    out.scores |= {"ensemble": np.nan_to_num(scored.ensemble[start:]), WHOLE: np.nan_to_num(scored.mean[start:])}
    incidents = replay(job, DetectionSettings(), scores=scored).incidents
    out.alerts[PRODUCT] = alerts_of(incidents, case, start)
    transom = replay(job, DetectionSettings(ensemble={"rule": "transom"}), scores=scored).incidents
    out.alerts[TRANSOM] = alerts_of(transom, case, start)
    if case.blamed:
        _blame_of_models(out, case, scored)
        out.blamed[PRODUCT] = _blamed_by(incidents, case, start)
        out.blamed[CHANCE] = blamed_by_chance(case.blamed, len(case.names), BLAMED)
    for method, baseline in baselines(case.train, case.test).items():
        out.scores[method] = baseline.scores
        if baseline.blame is not None and case.blamed:
            out.blamed[method] = blamed_share(case.blamed, baseline.blame, BLAMED)
    if case.half == "report":
        out.scores |= {of_first(rows): learnt_less(case, rows) for rows in LEARNT_ROWS[dataset]}
    out.alerts["always_off"] = np.zeros(len(case.test), dtype=np.bool_)
    if case.labels.any():
        for method, scores in out.scores.items():
            out.vus[method] = vus_pr(case.labels, scores)
            out.precision[method] = float(average_precision_score(case.labels, scores))
    return out


def of_first(rows: int) -> str:
    """The row of the table for the vote that has learnt so many rows."""
    return f"ensemble of the first {rows} rows"


def learnt_less(case: ServerCase, rows: int) -> Floats:
    """Scores of the vote ``[t]`` that has learnt the first `rows` training rows alone (all where there are fewer)."""
    few = replace(case, train=case.train[:rows])
    counting = VoteConfig(members={name: weight for name, weight in VoteConfig().members.items() if weight})
    scored = score_recorded(recorded(few), config=counting)
    assert scored is not None
    return np.nan_to_num(scored.ensemble[len(few.train) :])


def alerts_of(incidents: Sequence[IncidentRecord], case: ServerCase, start: int) -> Flags:
    """Test rows at which an incident of kind metric_anomaly is open."""
    alerts = np.zeros(len(case.test), dtype=np.bool_)
    for one in incidents:
        if one.kind == "metric_anomaly":
            first = round(one.opened_at_s / case.every_s) - start
            last = len(alerts) if one.closed_at_s is None else round(one.closed_at_s / case.every_s) - start
            alerts[max(first, 0) : max(last, first + 1)] = True
    return alerts


def _blamed_by(incidents: Sequence[IncidentRecord], case: ServerCase, start: int) -> float:
    """Share of events in which an incident opened that names a labelled metric among its first three."""
    hits = 0
    for first, last, named in case.blamed:
        wanted = {case.names[column] for column in named}
        hits += any(
            wanted & set(one.metrics[:BLAMED])
            for one in incidents
            if first <= round(one.opened_at_s / case.every_s) - start <= last
        )
    return hits / len(case.blamed)


def _blame_of_models(out: Judged, case: ServerCase, scored: MetricScores) -> None:
    """Blame of the vote and of each member that can say for every row, averaged over each event's rows."""
    vote = scored.bundle.votes[""]
    out.blamed["ensemble"] = _hits(vote, case)
    for name, model in vote.models.items():
        alone = vote.config.__class__(members={name: 1.0})  # type: ignore[dict-item]
        if name in ROW_MODELS:
            out.blamed[name] = _hits(MetricVote(alone, vote.preparation, {name: model}, vote.calibrations), case)


def _hits(vote: MetricVote, case: ServerCase) -> float:
    """Near-duplicates that training dropped follow the metric that stands for them; three names in all count."""
    shares = vote.blame_series(case.test)
    hits = 0
    for first, last, named in case.blamed:
        order = np.argsort(-shares[first : last + 1].mean(axis=0), kind="stable")[:BLAMED]
        names = [twin for place in order for twin in vote.preparation.with_twins(vote.preparation.names[place])]
        hits += bool({case.names[column] for column in named} & set(names[:BLAMED]))
    return hits / len(case.blamed)


def judge_all(datasets: Sequence[str] = DATASETS, say: Say = lambda text: None, workers: int = 2) -> list[Judged]:
    """Every machine of `datasets`, some at a time in processes of their own."""
    works = [(dataset, name) for dataset in datasets for name, _ in listed(dataset)]
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if workers <= 1:
        return [judge(*work) for work in works]
    found: dict[tuple[str, str], Judged] = {}
    with processes(workers) as pool:
        futures = {pool.submit(judge, *work): work for work in works}
        for future in as_completed(futures):
            work = futures[future]
            found[work] = future.result()
            say(f"metrics: {len(found)} of {len(works)} machines, {work[0]} {work[1]}")
    return [found[work] for work in works]


def rows(datasets: Sequence[str] = DATASETS, say: Say = lambda text: None, workers: int = 2) -> list[dict[str, Any]]:
    """One row for each method and data set: ``{"table": "metrics", "row": method, "set": data set, metric: value}``."""
    if not listed("smd"):
        return [{"table": "metrics", "row": "all", "set": name, "skipped": SKIPPED} for name in datasets]
    judged = judge_all(datasets, say, workers)
    out = []
    for dataset in datasets:
        members = [one for one in judged if one.dataset == dataset]
        out += table(members, dataset)
    return out


def table(judged: Sequence[Judged], dataset: str) -> list[dict[str, Any]]:
    """The rows of one data set."""
    chosen, report = ([one for one in judged if one.half == half] for half in ("choose", "report"))
    weights, votes = by_name(VoteConfig().members), configured_detectors.chosen(DetectionSettings())
    by_rule = by_votes(chosen, report)
    methods = [PRODUCT, TRANSOM, *by_rule, "ensemble", WHOLE, *weights, *BASELINES]
    for variant, found in by_rule.items():
        for one, alerts in zip(report, found, strict=True):
            one.alerts[variant] = alerts
    out = []
    for method in methods:
        row: dict[str, Any] = {"table": "metrics", "row": method, "set": dataset, "machines": len(report)}
        if method in weights:
            row |= {"weight": weights[method], "vote_weight": votes[method].role.weight}
        if method == WEIGHTED:
            row["measured"] = plain(measured(chosen))
        if method in report[0].alerts or method in report[0].scores:
            row |= _figures(method, chosen, report)
        else:
            row["skipped"] = ALONE
        out.append(rounded(row))
    best_plain = max(row["vus_pr"] for row in out if row["row"] in BASELINES)
    for row in out:
        if "weight" in row and "vus_pr" in row:
            row["beats_plain"] = "yes" if row["vus_pr"] > best_plain else "no"
    few = [of_first(rows) for rows in LEARNT_ROWS[dataset]]
    less = [rounded(_less(method, report, dataset)) for method in few if method in report[0].vus]
    return [*out, *less, *_chance(report, dataset)]


def _less(method: str, report: Sequence[Judged], dataset: str) -> dict[str, Any]:
    """How the vote ranks when it has learnt less."""
    row: dict[str, Any] = {"table": "metrics", "row": method, "set": dataset, "machines": len(report)}
    for name, values in (("vus_pr", "vus"), ("auprc", "precision")):
        interval = bootstrap([getattr(one, values)[method] for one in report if method in getattr(one, values)])
        row |= {name: interval.mean, f"{name}_ci": [interval.low, interval.high]}
    return row


def _figures(method: str, chosen: Sequence[Judged], report: Sequence[Judged]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    if method in report[0].alerts:
        alerts = [one.alerts[method] for one in report]
    else:
        cut = curve([Series(one.labels, one.scores[method], one.per_day) for one in chosen]).at(FROZEN_RATE)[1]
        row["threshold"] = cut
        alerts = [one.scores[method] >= cut for one in report]
    machines = [counts(one.labels, alert, one.per_day) for one, alert in zip(report, alerts, strict=True)]
    row |= summary(machines, report[0].every_s / 60.0)
    if method in report[0].scores:
        swept = curve([Series(one.labels, one.scores[method], one.per_day) for one in report])
        row |= {f"recall_at_{rate:g}": swept.at(rate)[0] for rate in ALARM_RATES}
        for name, values in (("vus_pr", "vus"), ("auprc", "precision")):
            known = [getattr(one, values)[method] for one in report if method in getattr(one, values)]
            interval = bootstrap(known)
            row |= {name: interval.mean, f"{name}_ci": [interval.low, interval.high]}
        row["vus_pr_by_machine"] = [one.vus[method] for one in report if method in one.vus]
        row["vus_pr_choosing"] = float(np.mean([one.vus[method] for one in chosen if method in one.vus]))
    known = [one.blamed[method] for one in report if method in one.blamed]
    if known:
        interval = bootstrap(known)
        row |= {"blamed_top3": interval.mean, "blamed_top3_ci": [interval.low, interval.high]}
    return row


def _chance(report: Sequence[Judged], dataset: str) -> list[dict[str, Any]]:
    """What naming three metrics at random would reach, beside the blame of the others."""
    shares = [one.blamed[CHANCE] for one in report if CHANCE in one.blamed]
    if not shares:
        return []
    row = {"table": "metrics", "row": CHANCE, "set": dataset, "machines": len(report)}
    return [rounded({**row, "blamed_top3": float(np.mean(shares))})]


if __name__ == "__main__":
    print(json.dumps(rows(tuple(sys.argv[1:]) or DATASETS, say=lambda text: print(text, file=sys.stderr)), indent=1))
