"""Files for Grafana's provisioning folders: data source, dashboards, alert rules, contact point, policy.

Grafana fills in ``TRAINWARDEN_PROMETHEUS_URL``, ``TRAINWARDEN_URL`` and ``TRAINWARDEN_GRAFANA_BEARER`` from its
environment; the last may be ``$__file{PATH}``, which it replaces by what is in that file.
The SDK builds what Grafana's HTTP interface takes; a file wants it grouped, and without what that interface adds.
"""

from __future__ import annotations

import json
from typing import Any, Final

from grafana_foundation_sdk.builders import alerting, expr, prometheus
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.alerting import RelativeTimeRange

from trainwarden.dashboards.alerts.alert import Alert, duration
from trainwarden.dashboards.alerts.table import OF_JOBS, OF_SERVICES

SOURCE: Final = "trainwarden-prometheus"
FOLDER: Final = "trainwarden"
DASHBOARDS: Final = "/etc/trainwarden/dashboards"
CONTACT: Final = "trainwarden"
_GROUPS: Final = (("jobs", "10s", OF_JOBS), ("services", "20s", OF_SERVICES))
_OF_THE_HTTP_INTERFACE: Final = ("orgID", "folderUID", "ruleGroup", "provenance")


def datasources() -> dict[str, Any]:
    """Where Prometheus is."""
    return {
        "apiVersion": 1,
        "datasources": [
            {
                "name": "trainwarden",
                "uid": SOURCE,
                "type": "prometheus",
                "access": "proxy",
                "url": "${TRAINWARDEN_PROMETHEUS_URL}",
                "jsonData": {"httpMethod": "POST", "timeInterval": "15s"},
            }
        ],
    }


def providers() -> dict[str, Any]:
    """Where the dashboards are."""
    options = {"path": DASHBOARDS, "foldersFromFilesStructure": False}
    provider = {"name": "trainwarden", "folder": FOLDER, "type": "file", "allowUiUpdates": False, "options": options}
    return {"apiVersion": 1, "providers": [provider]}


def rules(runbooks: str) -> dict[str, Any]:
    """The table of alerts as Grafana's own."""
    groups = [
        {
            "orgId": 1,
            "name": f"trainwarden-{name}",
            "folder": FOLDER,
            "interval": interval,
            "rules": [_rule(alert, runbooks) for alert in alerts],
        }
        for name, interval, alerts in _GROUPS
    ]
    return {"apiVersion": 1, "groups": groups}


def contact_points() -> dict[str, Any]:
    """Notices go to `trainwarden serve`, which keeps them and takes a person's answer."""
    settings = {
        "url": "${TRAINWARDEN_URL}/hooks/grafana",
        "httpMethod": "POST",
        "authorization_scheme": "Bearer",
        "authorization_credentials": "${TRAINWARDEN_GRAFANA_BEARER}",
        "maxAlerts": "100",
    }
    receiver = _plain(alerting.ContactPoint().uid("trainwarden-webhook").type("webhook").settings(settings))
    return {"apiVersion": 1, "contactPoints": [{"orgId": 1, "name": CONTACT, "receivers": [receiver]}]}


def policies() -> dict[str, Any]:
    """Our alerts go to our contact point, all others where they go by default."""
    ours = (
        alerting.NotificationPolicy()
        .receiver(CONTACT)
        .object_matchers([["alertname", "=~", "Trainwarden.*"]])
        .group_by(["alertname", "training_job", "kind"])
        .group_wait("5s")
        .group_interval("1m")
        .repeat_interval("4h")
    )
    root = alerting.NotificationPolicy().receiver("grafana-default-email").routes([ours])
    return {"apiVersion": 1, "policies": [{"orgId": 1, **_plain(root)}]}


def _rule(alert: Alert, runbooks: str) -> dict[str, Any]:
    """Fires for each series that the expression gives, whatever its value: to the power of 0 it is 1."""
    asked = prometheus.Dataquery().expr(f"({alert.expr}) ^ 0").instant().ref_id("A")
    there = expr.TypeThreshold().ref_id("B").expression("A")
    condition = expr.ExprTypeThresholdConditions().evaluator(
        expr.ExprTypeThresholdConditionsEvaluator().type("gt").params([0.0])
    )
    rule = (
        alerting.Rule(alert.name)
        .uid(alert.name)
        .condition("B")
        .for_val(duration(alert.for_s))
        .no_data_state("OK")
        .exec_err_state("Error")
        .labels({"severity": alert.severity} if alert.severity else {})
        .annotations(alert.annotations(runbooks))
        .with_query(
            alerting.Query("A").datasource_uid(SOURCE).relative_time_range(RelativeTimeRange(600, 0)).model(asked)
        )
        .with_query(alerting.Query("B").datasource_uid("__expr__").model(there.conditions([condition])))
    )
    return {key: value for key, value in _plain(rule).items() if key not in _OF_THE_HTTP_INTERFACE}


def _plain(builder: Builder[Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(JSONEncoder(sort_keys=True).encode(builder.build()))
    return plain
