"""Recording rules: what alerts and dashboards ask for again and again."""

from __future__ import annotations

from typing import Final

from trainwarden.dashboards.alerts.alert import Recording

RECORDINGS: Final = (
    Recording("trainwarden:incidents_open:sum", "sum by (training_job) (trainwarden_incidents_open)"),
    Recording(
        "trainwarden:iteration_slowdown:ratio",
        "max by (training_job) (trainwarden_iteration_seconds) / "
        "max by (training_job) (trainwarden_iteration_healthy_seconds)",
    ),
    Recording(
        "trainwarden:rank_wait:ratio",
        "max by (training_job, rank) (trainwarden_rank_wait_seconds) / "
        "(max by (training_job, rank) (trainwarden_rank_wait_seconds) + "
        "max by (training_job, rank) (trainwarden_rank_compute_seconds))",
    ),
    Recording(
        "trainwarden:heartbeat_age:seconds",
        "time() - max by (service, instance) (trainwarden_heartbeat_timestamp_seconds)",
    ),
)
