"""``/openapi.json``: OpenAPI 3.1, from the types by which requests are read."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec

from dashboards.explain.explanation import Explanation
from dashboards.web.alerts import Alerts
from dashboards.web.asked import (
    ActionsAsked,
    DetectAsked,
    IncidentsAsked,
    JobAsked,
    Name,
    Nothing,
    SilenceAsked,
    VerdictsAsked,
    WordAsked,
)
from trainwarden import __version__

Objects = list[dict[str, Any]]
_REF: Final = "#/components/schemas/{name}"


class Detected(msgspec.Struct):
    """What ``trainwarden detect`` says of a range, or the newest that is known of the job."""

    jobs: Objects | msgspec.UnsetType = msgspec.UNSET
    verdict: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET
    incidents: Objects | msgspec.UnsetType = msgspec.UNSET


class Status(msgspec.Struct):
    """How this process is."""

    status: str


class Jobs(msgspec.Struct):
    """Every job."""

    jobs: Objects
    stopped_by: str | None


class Incidents(msgspec.Struct):
    """A page of incidents; `next` is the cursor of the following one."""

    incidents: Objects
    next: str | None


class Incident(msgspec.Struct):
    """One incident."""

    id: str
    job: str
    kind: str
    severity: str
    state: str
    reason: str
    evidence: dict[str, Any]
    actions: Objects


class Verdicts(msgspec.Struct):
    """Verdicts, oldest first."""

    verdicts: Objects


class Actions(msgspec.Struct):
    """Actions, oldest first."""

    actions: Objects


class Nodes(msgspec.Struct):
    """Nodes by name."""

    nodes: Objects


class Silences(msgspec.Struct):
    """The silences that stand."""

    silences: Objects


class Command(msgspec.Struct):
    """What was said to the engine."""

    command: dict[str, Any]


class Silence(msgspec.Struct):
    """The silence that was said."""

    silence: dict[str, Any]


class Outcomes(msgspec.Struct):
    """How many alerts came to what."""

    outcomes: dict[str, int]
    refused: list[str] | msgspec.UnsetType = msgspec.UNSET


class Reply(msgspec.Struct):
    """What takes the place of the buttons."""

    replace_original: bool
    text: str


class Form(msgspec.Struct):
    """A button that was pressed, as the chat tells it."""

    payload: str


class Refusal(msgspec.Struct, rename={"kind": "type"}):
    """What is wrong (RFC 9457)."""

    kind: str
    title: str
    status: int
    detail: str


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
    Operation(method="get", path="/api/v1/nodes", does="Nodes that send heartbeats.", answer=Nodes),
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
            does=f"{word.capitalize()} all acting, on one job or on all.",
            answer=Command,
            body=JobAsked,
            status=202,
            may=(503,),
        )
        for word in ("stop", "resume")
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


def document(operations: Iterable[Operation] = OPERATIONS) -> dict[str, Any]:
    """The whole page.

    Examples
    --------
    >>> document()["paths"]["/api/v1/stop"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    {'$ref': '#/components/schemas/JobAsked'}
    """
    operations = tuple(operations)
    kinds: list[Any] = [Refusal, Annotated[Name, msgspec.Meta(description="It may have slashes.")]]
    for one in operations:
        kinds += [one.asked, one.body or Nothing, one.answer or str]
    found, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    for place, one in enumerate(operations):
        asked, body, answered = found[2 + 3 * place : 5 + 3 * place]
        del asked  # its members are the parameters, each of them by itself
        parameters = [*_in_path(one, found[1]), *_in_query(components[one.asked.__name__])]
        paths.setdefault(one.path, {})[one.method] = _operation(one, parameters, body, answered)
    return {
        "openapi": "3.1.0",
        "info": {"title": "trainwarden", "version": __version__, "summary": "What is known of training jobs."},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _in_path(one: Operation, schema: dict[str, Any]) -> list[dict[str, Any]]:
    if "{id}" not in one.path:
        return []
    return [{"name": "id", "in": "path", "required": True, "schema": schema}]


def _in_query(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": name, "in": "query", "schema": one} for name, one in schema["properties"].items()]


def _operation(
    one: Operation, parameters: list[dict[str, Any]], body: dict[str, Any], answered: dict[str, Any]
) -> dict[str, Any]:
    refusals = {400, 413, 421, *one.may} | (set() if one.open else {401, 403})
    refusal = {"application/problem+json": {"schema": {"$ref": _REF.format(name="Refusal")}}}
    good = {"application/json" if one.answer else "text/plain": {"schema": answered}}
    out: dict[str, Any] = {
        "summary": one.does,
        "operationId": one.method + one.path.replace("/", "_").translate({123: None, 125: None, 46: "_"}),
        "parameters": parameters,
        "responses": {
            str(one.status): {"description": one.does, "content": good},
            **{
                str(status): {"description": HTTPStatus(status).phrase, "content": refusal}
                for status in sorted(refusals)
            },
        },
    }
    if one.body is not None:
        out["requestBody"] = {"required": True, "content": {one.media: {"schema": body}}}
    if one.open:
        out["security"] = []
    return out
