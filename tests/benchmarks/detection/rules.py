"""Both rules on the servers and on mixed streams, and the models' votes by constant and by measured weights.

The rows of ``trainwarden bench detection`` that the rule decides, without the plain baselines beside them: minutes on
a busy machine, where all takes an hour. The figures are the same.

Run: ``python -m tests.benchmarks.detection.rules smd|asd|mixed TABLES.json``
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.benchmarks.detection.metrics import PRODUCT, TRANSOM, Judged, alerts_of, recorded
from tests.benchmarks.detection.mixed import TRANSOM as MIXED_TRANSOM
from tests.benchmarks.detection.mixed import WHOLE as MIXED_WHOLE
from tests.benchmarks.detection.mixed import Outcome, figures, mixed_jobs, spans_of
from tests.benchmarks.detection.protocol import counts, rounded, summary
from tests.benchmarks.detection.servers import listed, load
from tests.benchmarks.detection.tables import markdown
from tests.benchmarks.detection.voices import WEIGHTED, by_votes, measured, opened, plain
from trainwarden.detectors.recorded.metrics import score_recorded
from trainwarden.detectors.recorded.replay import replay
from trainwarden.settings import DetectionSettings

RULES: Final = {"weighted": DetectionSettings(), "transom": DetectionSettings(ensemble={"rule": "transom"})}


def judged(dataset: str, name: str) -> Judged:
    """One machine: the product by both rules, and when each model's vote is anomalous."""
    case = load(dataset, name)
    job, start = recorded(case), len(case.train)
    out = Judged(case.name, case.dataset, case.half, case.every_s, case.labels)
    scores = score_recorded(job)
    assert scores is not None
    columns = {**scores.by_model, "ensemble": scores.mean}
    out.votes = {key: opened(np.nan_to_num(column[start:]), case.every_s) for key, column in columns.items()}
    for row, settings in zip((PRODUCT, TRANSOM), RULES.values(), strict=True):
        out.alerts[row] = alerts_of(replay(job, settings, scores=scores).incidents, case, start)
    return out


def of_servers(dataset: str) -> list[dict[str, Any]]:
    """Rows as those of ``detection_metrics``."""
    machines = []
    for name, _ in listed(dataset):
        machines.append(judged(dataset, name))
        sys.stderr.write(f"{dataset} {name}\n")
    choose, report = ([one for one in machines if one.half == half] for half in ("choose", "report"))
    found = {row: [one.alerts[row] for one in report] for row in (PRODUCT, TRANSOM)} | by_votes(choose, report)
    out = []
    for row, alerts in found.items():
        known = [counts(one.labels, alert, one.per_day) for one, alert in zip(report, alerts, strict=True)]
        line: dict[str, Any] = {"table": "metrics", "row": row, "set": dataset, "machines": len(report)}
        line |= {"measured": plain(measured(choose))} if row == WEIGHTED else {}
        out.append(rounded(line | summary(known, report[0].every_s / 60.0)))
    return out


def of_mixed() -> list[dict[str, Any]]:
    """Rows as those of ``detection_mixed``, all detectors running."""
    outcomes = []
    for mixed in mixed_jobs():
        job = mixed.job
        assert job.span_s is not None
        assert job.normal_until_s is not None
        out = Outcome(job.name, mixed.anomaly, mixed.event, job.span_s[1] - job.normal_until_s)
        scores = score_recorded(job)
        for row, settings in zip((MIXED_WHOLE, MIXED_TRANSOM), RULES.values(), strict=True):
            out.spans[row] = spans_of(replay(job, settings, scores=scores).incidents, job.span_s[1])
        outcomes.append(out)
        sys.stderr.write(f"mixed {job.name}\n")
    return [figures(outcomes, row, "all") for row in (MIXED_WHOLE, MIXED_TRANSOM)]


if __name__ == "__main__":
    rows = of_mixed() if sys.argv[1] == "mixed" else of_servers(sys.argv[1])
    Path(sys.argv[2]).write_text(json.dumps({"tables": rows}))
    print(markdown(rows))
