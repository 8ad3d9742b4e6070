"""What may be asked: typed, so that what is taken and what ``/openapi.json`` says are one."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request

from trainwarden.dashboards.web.problems import Problem
from trainwarden.records import IncidentKind
from trainwarden.settings import sentence_of

S = TypeVar("S", bound=msgspec.Struct)
Time = Annotated[float, Meta(ge=0.0, le=1e11, description="Seconds since the epoch, UTC.")]
Limit = Annotated[int, Meta(ge=1, le=1_000, description="Objects in one answer.")]
Name = Annotated[str, Meta(min_length=1, max_length=512)]
_OURS = r"^-?[0-9]{1,20}(\.[0-9]{1,20})?(e[+-]?[0-9]{1,3})?_"
Cursor = Annotated[str, Meta(max_length=1_024, pattern=_OURS, description="`next` of the page before.")]


class RequestModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Root of all: a misspelt name must not mean all."""


class Nothing(RequestModel, frozen=True, kw_only=True):
    """No parameter."""


class IncidentsAsked(RequestModel, frozen=True, kw_only=True):
    """Which incidents."""

    job: Name | UnsetType = UNSET
    open: Literal["true", "false"] | UnsetType = UNSET
    since_s: Time | UnsetType = UNSET
    limit: Limit = 100
    cursor: Cursor | UnsetType = UNSET


class VerdictsAsked(RequestModel, frozen=True, kw_only=True):
    """Which verdicts: the newest of each job, or all that are kept since then."""

    job: Name | UnsetType = UNSET
    since_s: Time | UnsetType = UNSET
    limit: Limit = 100


class ActionsAsked(RequestModel, frozen=True, kw_only=True):
    """Which actions."""

    job: Name | UnsetType = UNSET
    limit: Limit = 100


class WordAsked(RequestModel, frozen=True, kw_only=True):
    """A word on the plan that a person was shown."""

    plan_digest: Annotated[str, Meta(min_length=1, max_length=128)]


class JobAsked(RequestModel, frozen=True, kw_only=True):
    """For one job, or for all."""

    job: Name | None = None


class SilenceAsked(RequestModel, frozen=True, kw_only=True):
    """Until when, and of which incidents: at least one of job, kind and node; a moment that is past ends a silence."""

    until_s: Time
    job: Name | None = None
    kind: IncidentKind | None = None
    node: Name | None = None


class HealthyAsked(RequestModel, frozen=True, kw_only=True):
    """For the log: what it passed, what was mended."""

    why: Annotated[str, Meta(max_length=2_000)] = ""


class CordonAsked(HealthyAsked, frozen=True, kw_only=True):
    """Through the launcher of which job; without one, of that which was last heard of on the node."""

    job: Name | None = None


class DetectAsked(RequestModel, frozen=True, kw_only=True):
    """A job, and the range that is to be judged; without one, what is known now."""

    job: Name
    from_s: Time | None = None
    to_s: Time | None = None


async def body(request: Request, kind: type[S]) -> S:
    """What `request` carries.

    Raises
    ------
    Problem
        400 where it is no JSON of that kind, 413 where it is too large.
    """
    query(request, Nothing)
    return parsed(await request.body() or b"{}", kind)


def parsed(text: bytes, kind: type[S]) -> S:
    """`text`, JSON, as `kind`.

    Raises
    ------
    Problem
        400 where it is none.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        raise Problem(400, sentence_of(str(error))[:300]) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(400, f"the body is no JSON ({str(error)[:200]})") from None


def query(request: Request, kind: type[S]) -> S:
    """The parameters of `request`.

    Raises
    ------
    Problem
        400 where one is unknown, twice there or wrong.
    """
    named = request.query_params
    if len(named.multi_items()) != len(named):
        raise Problem(400, "a parameter is there twice")
    try:
        return msgspec.convert(dict(named), kind, strict=False)
    except msgspec.ValidationError as error:
        known = ", ".join(kind.__struct_fields__) or "none"
        raise Problem(400, f"{sentence_of(str(error))[:200]}; parameters: {known}") from None
