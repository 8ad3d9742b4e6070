"""``/openapi.json``: OpenAPI 3.1, from the types by which requests are read."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec

from trainwarden import __version__
from trainwarden.dashboards.web.openapi.answers import Refusal
from trainwarden.dashboards.web.openapi.operations import OPERATIONS, Operation
from trainwarden.dashboards.web.request_model import Name, Nothing

_REF: Final = "#/components/schemas/{name}"


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
