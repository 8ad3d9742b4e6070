"""What a service is asked and what it answers, one JSON object each: the types of `docs/webhook.openapi.json`."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from trainwarden import __version__
from trainwarden.launching import Capabilities, LauncherState, Operation, OperationId, Report
from trainwarden.signing import SIGNATURE_HEADER, STAMP_HEADER


class AskCapabilities(msgspec.Struct, frozen=True, tag="capabilities", tag_field="ask"):
    """What can you do at all? Answered by a Capabilities."""


class AskState(msgspec.Struct, frozen=True, tag="state", tag_field="ask"):
    """What is true of `job` now? Answered by a LauncherState, or 404 with a Problem where there is no such job."""

    job: str


class Submit(msgspec.Struct, frozen=True, tag="submit", tag_field="ask"):
    """Begin with `operation`, once by its id however often it comes; answered at once by a Report."""

    operation: Operation


class Poll(msgspec.Struct, frozen=True, tag="poll", tag_field="ask"):
    """How far is the operation of that id? Answered by a Report: `unknown` if it was never accepted."""

    job: str
    operation: OperationId


Question = AskCapabilities | AskState | Submit | Poll


class Problem(msgspec.Struct, frozen=True):
    """Why there is no answer (RFC 9457, ``application/problem+json``); `detail` is shown to people."""

    title: str = ""
    detail: str = ""


KEY_HEADER: Final = "Idempotency-Key"
_REF: Final = "#/components/schemas/{name}"
_ASKS: Final = (AskCapabilities, AskState, Submit, Poll)
_ANSWERS: Final = (Capabilities, LauncherState, Report)
_HEADERS: Final = (
    (STAMP_HEADER, True, "Unix seconds at which it was signed; refuse what is more than five minutes off."),
    (SIGNATURE_HEADER, True, "HMAC-SHA256 over `timestamp:body` by the shared secret, in hexadecimal digits."),
    (KEY_HEADER, False, "Of `submit` alone: the id of the operation, the same at every try."),
)
_REFUSALS: Final = {"401": "The signature is another's, or old.", "404": "There is no such job.", "503": "Ask later."}


def document() -> dict[str, Any]:
    """The OpenAPI 3.1 page of the service.

    Examples
    --------
    >>> list(document()["paths"]["/"])
    ['post']
    """
    found, schemas = msgspec.json.schema_components([*_ASKS, *_ANSWERS, Problem], ref_template=_REF)
    asked, answered, problem = found[: len(_ASKS)], found[len(_ASKS) : -1], found[-1]
    mapping = {tag: ref["$ref"] for tag, ref in zip(("capabilities", "state", "submit", "poll"), asked, strict=True)}
    refusals = {
        status: {"description": why, "content": {"application/problem+json": {"schema": problem}}}
        for status, why in _REFUSALS.items()
    }
    answer = {"description": "The answer.", "content": {"application/json": {"schema": {"oneOf": answered}}}}
    question = {"oneOf": asked, "discriminator": {"propertyName": "ask", "mapping": mapping}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "trainwarden webhook launcher",
            "version": __version__,
            "summary": "What a service answers that speaks for whatever started the jobs.",
            "description": "Every request is a POST to the one URL that the settings name. See docs/webhook.md.",
        },
        "paths": {
            "/": {
                "post": {
                    "operationId": "ask",
                    "summary": "One question.",
                    "parameters": [
                        {"name": name, "in": "header", "required": always, "description": what,
                         "schema": {"type": "string"}}
                        for name, always, what in _HEADERS
                    ],
                    "requestBody": {"required": True, "content": {"application/json": {"schema": question}}},
                    "responses": {"200": answer, **refusals},
                }
            }
        },
        "components": {"schemas": schemas},
    }  # fmt: skip
