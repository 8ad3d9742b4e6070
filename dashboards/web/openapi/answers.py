"""What is answered, as types: from them the page of the API is made."""

from __future__ import annotations

from typing import Any

import msgspec

Objects = list[dict[str, Any]]


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
    unresolved: bool
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
