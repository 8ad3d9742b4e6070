"""What is wrong now: the suspects, who votes for it, and what was done since."""

from __future__ import annotations

from typing import Final

from trainwarden.dashboards.grafana_code.frame import JOB, Line, Variable, framed
from trainwarden.dashboards.grafana_code.panels import graph, number, rows, states

_KIND: Variable = ("kind", "trainwarden_incidents_open", "kind")
_JOB = '{training_job=~"$job"}'
_SEV1 = '{training_job=~"$job",kind=~"$kind",severity="sev1"}'
_BOTH = '{training_job=~"$job",kind=~"$kind"}'


_LINES: Final[list[Line]] = [
    (
        4,
        [
            number("Open", "none", f"sum(trainwarden_incidents_open{_BOTH}) or vector(0)", bad_from=1),
            number(
                "sev1",
                "none",
                f"sum(trainwarden_incidents_open{_SEV1}) or vector(0)",
                bad_from=1,
            ),
            number("Slower than healthy", "percentunit", f"max(trainwarden:iteration_slowdown:ratio{_JOB}) - 1"),
            number("Actions that wait", "none", f"sum(trainwarden_actions_waiting{_JOB})", bad_from=1),
        ],
    ),
    (
        9,
        [
            graph(
                "Suspects",
                "percentunit",
                (f"trainwarden_suspect_score{_BOTH}", "{{kind}}: rank {{rank}} {{node}} {{device}}"),
            ),
            rows("Suspects now", "percentunit", f"sort_desc(trainwarden_suspect_score{_BOTH})"),
        ],
    ),
    (
        9,
        [
            graph(
                "Open by kind and severity",
                "none",
                (f"trainwarden_incidents_open{_BOTH}", "{{kind}} {{severity}}"),
                stacked=True,
            ),
            graph(
                "Iteration time",
                "s",
                (f"trainwarden_iteration_seconds{_JOB}", "{{training_job}}"),
                (f"trainwarden_iteration_healthy_seconds{_JOB}", "{{training_job}} when healthy"),
            ),
        ],
    ),
    (
        9,
        [
            states(
                "Votes",
                (f"trainwarden_verdict_anomalous{_JOB}", "verdict"),
                (f"trainwarden_detector_anomalous{_JOB}", "{{detector}}"),
            ),
            rows("Actions", "none", f"sum by (training_job, kind, outcome) (trainwarden_actions_total{_JOB}) > 0"),
        ],
    ),
]


def incident() -> str:
    """The dashboard as JSON."""
    return framed(
        "incident",
        "trainwarden / incident",
        "What is wrong now: the suspects, who votes for it, and what was done since.",
        [JOB, _KIND],
        _LINES,
    )
