"""The page frozen into one file that can be mailed: nothing in it is fetched, and nothing but its own script runs."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup

from trainwarden.dashboards.overview.job import SEVERITIES, JobOverview
from trainwarden.dashboards.page import views
from trainwarden.dashboards.page.charts import Series
from trainwarden.dashboards.page.lines import Found, ReadLogs, around
from trainwarden.dashboards.page.panels import RANGES_S, panels, wanted_span
from trainwarden.dashboards.page.render import asset, render
from trainwarden.errors import BusUnavailable, DataError
from trainwarden.records import IncidentRecord

SHOWN_INCIDENTS: Final = 200
TOLD_IN_FULL: Final = 30  # the gravest of them
WITH_LOGS: Final = 10
WITH_NUMBERS: Final = 5


def write_report(
    path: Path,
    job: JobOverview,
    read_logs: ReadLogs,
    *,
    read_metrics: ReadLogs = lambda _from_s: (),
    title: str,
    summary: str,
    incident: IncidentRecord | None = None,
) -> None:
    """Write the report of `job`, or of one `incident` of it, to `path`.

    Raises
    ------
    DataError
        If the file cannot be written.
    """
    context = views.JobShown.of(job, job.seen_s or 0.0, most=SHOWN_INCIDENTS).context()
    if incident is not None:
        context |= {
            "incidents": [incident],
            "incidents_in_all": 1,
            "actions": [one for one in context["actions"] if one.incident == incident.id],
        }
    grave = sorted(context["incidents"], key=lambda one: (SEVERITIES.index(one.severity), -one.opened_at_s))
    told = [
        views.incident(job, one)
        | {
            "found": _found(one, read_logs) if place < WITH_LOGS else None,
            "numbers": _numbers(job, one, read_metrics, read_logs) if place < WITH_NUMBERS else None,
        }
        for place, one in enumerate(grave[:TOLD_IN_FULL])
    ]
    anchors = {one["incident"].id for one in told}
    text = render(
        "report.html", **context, **_inlined(), title=title, summary=summary, told=told, anchors=anchors,
        frozen=True, live="", person=None, may_act=False, may_approve=False, stopped_by=None,
    )  # fmt: skip
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(f"report '{path}' cannot be written ({error.strerror})") from error


def _inlined() -> dict[str, Any]:
    """Our own style and script, and the policy that lets these two in and nothing else."""
    style, script = asset("page.css"), asset("page.js")
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return {"style": Markup(style), "script": Markup(script), "csp": policy}  # noqa: S704 - files of our own


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _found(incident: IncidentRecord, read_logs: ReadLogs) -> Found | None:
    try:
        return around(incident, read_logs)
    except BusUnavailable:
        return None


def _numbers(
    job: JobOverview, incident: IncidentRecord, read_metrics: ReadLogs, read_logs: ReadLogs
) -> dict[str, Any] | None:
    span = wanted_span(incident, RANGES_S[0], job.seen_s or incident.updated_at_s)
    try:
        return panels(incident, span, read_metrics, read_logs, Series.of(job.pace, "duration"))
    except BusUnavailable:
        return None
