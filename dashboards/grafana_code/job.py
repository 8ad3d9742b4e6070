"""One job: how fast it goes, who is slow, what the detectors say, what was done."""

from __future__ import annotations

from typing import Final

from trainwarden.dashboards.grafana_code.frame import JOB, Line, framed
from trainwarden.dashboards.grafana_code.panels import graph, number, rows, states

_OF = '{training_job=~"$job"}'
_KEPT = '{training_job=~"($job)(/files)?"}'  # a script that is not changed has a keeper of its own


_LINES: Final[list[Line]] = [
    (
        4,
        [
            number("Open incidents", "none", f"sum(trainwarden_incidents_open{_OF}) or vector(0)", bad_from=1),
            number("Slower than healthy", "percentunit", f"max(trainwarden:iteration_slowdown:ratio{_OF}) - 1"),
            number("Step", "none", f"max(trainwarden_job_step{_OF})"),
            number("Ranks", "none", f"sum(trainwarden_job_ranks{_OF})"),
            number("Nodes", "none", f"sum(trainwarden_job_nodes{_OF})"),
            number("Actions that wait", "none", f"sum(trainwarden_actions_waiting{_OF})", bad_from=1),
        ],
    ),
    (
        9,
        [
            graph(
                "Iteration time",
                "s",
                (f"trainwarden_iteration_seconds{_OF}", "{{training_job}}"),
                (f"trainwarden_iteration_healthy_seconds{_OF}", "{{training_job}} when healthy"),
                about="Median over ranks, beside the median while no incident was open.",
            ),
            rows(
                "Suspects",
                "percentunit",
                f"sort_desc(max by (training_job, kind, rank, node, device) (trainwarden_suspect_score{_OF}))",
                about="Of open incidents, the most likely first.",
            ),
        ],
    ),
    (
        9,
        [
            graph("Compute by rank", "s", (f"trainwarden_rank_compute_seconds{_OF}", "rank {{rank}}")),
            graph("Wait by rank", "s", (f"trainwarden_rank_wait_seconds{_OF}", "rank {{rank}}")),
            graph(
                "Share of waiting",
                "percentunit",
                (f"trainwarden:rank_wait:ratio{_OF}", "rank {{rank}}"),
                about="The one that waits least is the one that others wait for.",
            ),
        ],
    ),
    (
        9,
        [
            graph("Scores by detector", "percentunit", (f"trainwarden_detector_score{_OF}", "{{detector}}")),
            states(
                "Votes",
                (f"trainwarden_verdict_anomalous{_OF}", "verdict"),
                (f"trainwarden_detector_anomalous{_OF}", "{{detector}}"),
            ),
        ],
    ),
    (
        8,
        [
            graph(
                "Open incidents by kind",
                "none",
                (f"sum by (kind) (trainwarden_incidents_open{_OF})", "{{kind}}"),
                stacked=True,
            ),
            graph(
                "Actions by outcome",
                "none",
                (f"sum by (kind, outcome) (trainwarden_actions_total{_OF}) > 0", "{{kind}} {{outcome}}"),
            ),
            graph(
                "Age of the newest checkpoint",
                "s",
                (f"time() - max(trainwarden_keeper_replicated_timestamp_seconds{_KEPT})", "in two nodes' memory"),
                (f"time() - max(trainwarden_keeper_durable_timestamp_seconds{_KEPT})", "in the store"),
                about="What would be computed again if a node, or all nodes, were lost now.",
            ),
        ],
    ),
]


def job() -> str:
    """The dashboard as JSON."""
    return framed(
        "job",
        "trainwarden / job",
        "How fast a job goes, who is slow, what the detectors say, what was done.",
        [JOB],
        _LINES,
    )
