"""Everything that can be asked of the API, in the types by which it is read and answered."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from trainwarden.dashboards.explain.explanation import Explanation
from trainwarden.dashboards.web.alerts import Alerts
from trainwarden.dashboards.web.openapi.answers import (
    Actions,
    Command,
    Detected,
    Form,
    Incident,
    Incidents,
    Jobs,
    Nodes,
    Outcomes,
    Reply,
    Silence,
    Silences,
    Status,
    Verdicts,
)
from trainwarden.dashboards.web.request_model import (
    ActionsAsked,
    CordonAsked,
    DetectAsked,
    HealthyAsked,
    IncidentsAsked,
    JobAsked,
    Nothing,
    SilenceAsked,
    VerdictsAsked,
    WordAsked,
)


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that can be asked.

    `answer` None means text; `may` are the refusals of its own, besides those that any request may meet.
    """

    method: str
    path: str
    does: str
    answer: Any = None
    asked: type[msgspec.Struct] = Nothing
    body: type[msgspec.Struct] | None = None
    status: int = 200
    may: tuple[int, ...] = ()
    open: bool = False
    media: str = "application/json"


OPERATIONS: Final = (
    Operation(method="get", path="/healthz", does="This process answers.", answer=Status, open=True),
    Operation(method="get", path="/readyz", does="The bus was read and answers.", answer=Status, may=(503,), open=True),
    Operation(method="get", path="/metrics", does="For Prometheus.", open=True),
    Operation(method="get", path="/openapi.json", does="This page.", answer=dict[str, Any], open=True),
    Operation(method="get", path="/api/v1/jobs", does="Every job.", answer=Jobs),
    Operation(
        method="get", path="/api/v1/incidents", does="Incidents, newest first.", answer=Incidents, asked=IncidentsAsked
    ),
    Operation(method="get", path="/api/v1/incidents/{id}", does="One incident.", answer=Incident, may=(404,)),
    Operation(
        method="get", path="/api/v1/incidents/{id}/explain", does="In plain words.", answer=Explanation, may=(404,)
    ),
    Operation(
        method="get",
        path="/api/v1/verdicts",
        does="The newest verdict of each job, or all that are kept since then.",
        answer=Verdicts,
        asked=VerdictsAsked,
        may=(404,),
    ),
    Operation(method="get", path="/api/v1/actions", does="Actions as they are.", answer=Actions, asked=ActionsAsked),
    Operation(method="get", path="/api/v1/nodes", does="Nodes: their state, since when and why.", answer=Nodes),
    Operation(method="get", path="/api/v1/silences", does="The silences that stand.", answer=Silences),
    Operation(
        method="post",
        path="/api/v1/detect",
        does="Judge a range of a job, or say what is known now.",
        answer=Detected,
        body=DetectAsked,
        may=(404, 422, 429, 500, 504),
    ),
    *(
        Operation(
            method="post",
            path=f"/api/v1/actions/{{id}}/{word}",
            does=f"{word.capitalize()} an action by the plan that was shown.",
            answer=Command,
            body=WordAsked,
            status=202,
            may=(404, 409, 503),
        )
        for word in ("approve", "deny")
    ),
    *(
        Operation(
            method="post",
            path=f"/api/v1/{word}",
            does=does,
            answer=Command,
            body=JobAsked,
            status=202,
            may=(503,),
        )
        for word, does in (
            ("stop", "Stop all acting, on one job or on all."),
            ("resume", "Resume all acting, on one job or on all."),
            ("reset", "Reset the brake on nodes taken out, of one job or of all."),
        )
    ),
    *(
        Operation(
            method="post",
            path=f"/api/v1/nodes/{{id}}/{word}",
            does=does,
            answer=Command,
            body=asked,
            status=202,
            may=(404, 422, 503),  # 404: what is no part of a path, such as a line break
        )
        for word, does, asked in (
            ("set-healthy", "Say that a node is well.", HealthyAsked),
            ("cordon", "Have a node taken out of use.", CordonAsked),
            ("uncordon", "Have a node put back.", CordonAsked),
        )
    ),
    Operation(
        method="post",
        path="/api/v1/silences",
        does="Until a moment do nothing about some incidents, and tell nobody of them.",
        answer=Silence,
        body=SilenceAsked,
        status=202,
        may=(422, 503),
    ),
    Operation(method="post", path="/hooks/alertmanager", does="Alerts.", answer=Outcomes, body=Alerts, may=(503,)),
    Operation(method="post", path="/hooks/grafana", does="Alerts, signed.", answer=Outcomes, body=Alerts, may=(503,)),
    Operation(
        method="post",
        path="/hooks/slack",
        does="A button, signed.",
        answer=Reply,
        body=Form,
        media="application/x-www-form-urlencoded",
        may=(503,),
    ),
)
