"""What an alert asks for: a word on an action, a silence, or nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Final, Literal, get_args

import msgspec

from trainwarden.dashboards.web.request_model import SilenceAsked
from trainwarden.records import IncidentKind

MOST: Final = 1_000
PREFIX: Final = "trainwarden_"
DAY_S: Final = 86_400.0


class Alert(msgspec.Struct, frozen=True, kw_only=True, rename={"starts_at": "startsAt"}):
    """One alert as Alertmanager and Grafana tell it; what else they tell is passed over."""

    status: Literal["firing", "resolved"]
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    starts_at: str = ""
    fingerprint: str = ""


class Alerts(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a webhook: version 4 of Alertmanager's, or Grafana's, which has the same members."""

    alerts: Annotated[tuple[Alert, ...], msgspec.Meta(max_length=MOST)]


class WordOnAction(msgspec.Struct, frozen=True):
    """Approve or deny an action by its plan."""

    word: Literal["approve", "deny"]
    action: str
    plan_digest: str


class Useless(Exception):
    """An alert that asks for something but does not say of what."""


def asks_for(alert: Alert, now_s: float) -> WordOnAction | SilenceAsked | None:
    """What `alert` asks for; annotations stand before labels. An alert that has ended asks for nothing.

    Raises
    ------
    Useless
        If what it asks for lacks something: without a plan_digest nothing is approved.

    Examples
    --------
    >>> asks_for(Alert(status="firing", labels={"alertname": "TrainwardenIncident"}), 0.0) is None
    True
    """
    said = {**alert.labels, **alert.annotations}
    word = said.get(f"{PREFIX}action")
    if alert.status != "firing" or word is None:
        return None
    if word in ("approve", "deny"):
        action, digest = said.get(f"{PREFIX}action_id", ""), said.get(f"{PREFIX}plan_digest", "")
        if not action or not digest:
            raise Useless(f"{word} without {PREFIX}action_id and {PREFIX}plan_digest does nothing")
        return WordOnAction("approve" if word == "approve" else "deny", action, digest)
    if word in ("silence", "maintenance"):
        return _silence(word, said, began_s(alert, now_s), now_s)
    raise Useless(f"{PREFIX}action is approve, deny, silence or maintenance, not '{word[:40]}'")


def began_s(alert: Alert, now_s: float) -> float:
    """When `alert` began; now where it does not say so, or speaks of the future.

    Examples
    --------
    >>> began_s(Alert(status="firing", starts_at="1970-01-01T00:01:40.123456789Z"), 200.0)
    100.123456
    """
    try:
        moment = datetime.fromisoformat(alert.starts_at)
    except ValueError:
        return now_s
    moment_s = moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
    return min(moment_s, now_s) if moment_s > 0.0 else now_s


def _silence(word: str, said: Mapping[str, str], from_s: float, now_s: float) -> SilenceAsked | None:
    """A silence that begins with its alert: whoever is told of it again, and when, makes it no longer."""
    try:
        for_s = float(said.get(f"{PREFIX}for_s", "nan"))
    except ValueError:
        for_s = math.nan
    if not 0.0 <= for_s <= 30 * DAY_S:
        raise Useless(f"{word}: {PREFIX}for_s says for how many seconds, 30 days at most")
    kind = said.get("kind") if word == "silence" else None  # maintenance is of all that goes wrong there
    if kind is not None and kind not in get_args(IncidentKind):
        raise Useless(f"{word}: there is no kind '{kind[:40]}'")
    job, node = said.get("training_job"), said.get("node")
    if not (kind or job or node):
        raise Useless(f"{word}: of which training_job, node or kind?")
    if from_s + for_s <= now_s:
        return None
    asked = {"until_s": from_s + for_s, "job": job or None, "kind": kind, "node": node or None}
    try:
        return msgspec.convert(asked, SilenceAsked)
    except msgspec.ValidationError as error:
        raise Useless(f"{word}: {str(error)[:100]}") from None
