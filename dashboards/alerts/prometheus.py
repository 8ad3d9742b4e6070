"""The table as Prometheus' rule file.

Recording rules: what alerts and dashboards ask for again and again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from trainwarden.dashboards.alerts.alert import RUNBOOKS, Alert, Recording, duration
from trainwarden.dashboards.alerts.table import OF_JOBS, OF_SERVICES

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


def rules(runbooks: str = RUNBOOKS) -> dict[str, Any]:
    """The rule file's content; `runbooks` is the address that runbook pages lie under."""
    recordings = [{"record": one.name, "expr": one.expr} for one in RECORDINGS]
    return {
        "groups": [
            {"name": "trainwarden-jobs", "interval": "5s", "rules": [*recordings, *_rules(OF_JOBS, runbooks)]},
            {"name": "trainwarden-services", "interval": "15s", "rules": _rules(OF_SERVICES, runbooks)},
        ]
    }


def _rules(alerts: Iterable[Alert], runbooks: str) -> list[dict[str, Any]]:
    return [_rule(alert, runbooks) for alert in alerts]


def _rule(alert: Alert, runbooks: str) -> dict[str, Any]:
    rule: dict[str, Any] = {"alert": alert.name, "expr": alert.expr}
    if alert.for_s:
        rule["for"] = duration(alert.for_s)
    if alert.severity:
        rule["labels"] = {"severity": alert.severity}
    rule["annotations"] = alert.annotations(runbooks)
    if alert.details:
        rule["annotations"]["suspects"] = alert.details
    return rule
