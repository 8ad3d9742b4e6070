"""All jobs at a glance: which one needs a look."""

from __future__ import annotations

from typing import Final

from trainwarden.dashboards.grafana_code.frame import Line, framed
from trainwarden.dashboards.grafana_code.panels import graph, number, rows

_TO_JOB = (("Job", "/d/trainwarden-job?var-job=${__data.fields.training_job}&${__url_time_range}"),)


_LINES: Final[list[Line]] = [
    (
        4,
        [
            number("Jobs", "none", "count(count by (training_job) (trainwarden_job_nodes))"),
            number("Nodes", "none", "sum(trainwarden_job_nodes)"),
            number("Ranks", "none", "sum(trainwarden_job_ranks)"),
            number("Incidents now", "none", "sum(trainwarden_incidents_open) or vector(0)", bad_from=1),
            number("Actions that wait", "none", "sum(trainwarden_actions_waiting)", bad_from=1),
            number("Acting stopped", "bool_yes_no", "max(trainwarden_acting_stopped)", bad_from=1),
        ],
    ),
    (
        9,
        [
            rows(
                "Open incidents",
                "none",
                "sum by (training_job, kind, severity) (trainwarden_incidents_open) > 0",
                links=_TO_JOB,
            ),
            rows(
                "Suspects",
                "percentunit",
                "sort_desc(max by (training_job, kind, rank, node, device) (trainwarden_suspect_score))",
                links=_TO_JOB,
            ),
        ],
    ),
    (
        9,
        [
            graph(
                "Iteration time against healthy",
                "percentunit",
                ("trainwarden:iteration_slowdown:ratio", "{{training_job}}"),
                about="1 is as fast as when healthy.",
            ),
            graph(
                "Steps a second",
                "ops",
                ("sum by (training_job) (deriv(trainwarden_job_step[1m])) > 0", "{{training_job}}"),
            ),
        ],
    ),
    (
        8,
        [
            graph(
                "Incidents opened",
                "none",
                ("sum by (kind) (increase(trainwarden_incidents_total[$__rate_interval])) > 0", "{{kind}}"),
                stacked=True,
            ),
            graph(
                "Actions",
                "none",
                (
                    "sum by (kind, outcome) (increase(trainwarden_actions_total[$__rate_interval])) > 0",
                    "{{kind}} {{outcome}}",
                ),
                stacked=True,
            ),
        ],
    ),
    (
        8,
        [
            rows("Models that vote", "none", "trainwarden_model_info"),
            graph(
                "Weighted throughput of all jobs",
                "none",
                ("max by (plan) (trainwarden_coordinator_waf)", "{{plan}}"),
                about="Of the coordinator: now, as planned, and if jobs were only restarted.",
            ),
        ],
    ),
]


def fleet() -> str:
    """The dashboard as JSON."""
    return framed(
        "fleet",
        "trainwarden / fleet",
        "All jobs at a glance: which one needs a look.",
        [],
        _LINES,
    )
