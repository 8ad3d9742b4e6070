"""Webhooks of others that reach the engine: Alertmanager's and Grafana's alerts, Slack's buttons.

Requests that are signed in place of carrying a token: Grafana's webhooks and Slack's buttons.
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Literal
from urllib.parse import parse_qs

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trainwarden.clock import Clock
from trainwarden.dashboards.web.acts import CommandRoutes
from trainwarden.dashboards.web.alerts import Alert, Alerts, Useless, WordOnAction, asks_for
from trainwarden.dashboards.web.problems import Problem, answer
from trainwarden.dashboards.web.request_model import SilenceAsked, parsed
from trainwarden.metrics_http.access import Person
from trainwarden.self_metrics import SelfMetrics
from trainwarden.signing import signature

WINDOW_S: Final = 300.0
GRAFANA_SIGNATURE: Final = "x-grafana-alerting-signature"
GRAFANA_TIMESTAMP: Final = "x-grafana-alerting-timestamp"


def check_grafana(headers: Mapping[str, str], body: bytes, secret: bytes | None, now_s: float) -> None:
    """Grafana's signature: HMAC-SHA256 over the body, or over ``timestamp:body`` where it sends a timestamp.

    Raises
    ------
    Problem
        401 if there is none, it is another's, or it is old.
    """
    stamp = headers.get(GRAFANA_TIMESTAMP)
    if stamp is not None:
        _fresh(stamp, now_s)
        body = stamp.encode() + b":" + body
    _same(headers.get(GRAFANA_SIGNATURE, ""), body, secret)


def check_slack(headers: Mapping[str, str], body: bytes, secret: bytes | None, now_s: float) -> None:
    """Slack's signature: HMAC-SHA256 over ``v0:timestamp:body``, at most five minutes old.

    Raises
    ------
    Problem
        401 if there is none, it is another's, or it is old.
    """
    stamp = headers.get("x-slack-request-timestamp", "")
    _fresh(stamp, now_s)
    version, _, given = headers.get("x-slack-signature", "").partition("=")
    _same(given if version == "v0" else "", b"v0:" + stamp.encode() + b":" + body, secret)


def _same(given: str, text: bytes, secret: bytes | None) -> None:
    if secret is None or not hmac.compare_digest(given.lower().encode(), signature(secret, text).encode()):
        raise Problem(401, "a token or a signature by the secret of this hook is needed")


def _fresh(stamp: str, now_s: float) -> None:
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) < 16 and abs(now_s - int(stamp)) <= WINDOW_S):
        raise Problem(401, "the time stamp of this request is missing or more than five minutes off")


MAX_DONE: Final = 10_000
MAX_TOLD: Final = 20

Done = tuple[str, ...]


class HookSecrets(msgspec.Struct, frozen=True, kw_only=True):
    """What signed requests are checked by, and which members of the chat may act."""

    grafana: bytes | None = None
    slack: bytes | None = None
    slack_users: tuple[str, ...] = ()


class Value(msgspec.Struct):
    """What a button carries."""

    action: str
    plan_digest: str


class Button(msgspec.Struct):
    """A button that was pressed."""

    action_id: Literal["approve", "deny"]
    value: str


class SlackUser(msgspec.Struct):
    """Who has pressed it."""

    id: str
    username: str = ""


class Pressed(msgspec.Struct):
    """What Slack sends of it, of which we read these."""

    user: SlackUser
    actions: tuple[Button, ...]


class Hooks:
    """Alerts are done once by (fingerprint, startsAt, status) and what they ask for; our own trouble is a 5xx."""

    def __init__(self, acts: CommandRoutes, clock: Clock, metrics: SelfMetrics, secrets: HookSecrets) -> None:
        self._acts = acts
        self._clock = clock
        self._metrics = metrics
        self._secrets = secrets
        self._done: dict[Done, None] = {}

    def routes(self) -> list[Route]:
        """Where they hang."""
        return [
            Route("/hooks/alertmanager", self.alertmanager, methods=["POST"]),
            Route("/hooks/grafana", self.grafana, methods=["POST"]),
            Route("/hooks/slack", self.slack, methods=["POST"]),
        ]

    async def alertmanager(self, request: Request) -> Response:
        """Alertmanager's webhook, version 4, with a token."""
        return await self._alerts("alertmanager", await request.body(), request.state.person)

    async def grafana(self, request: Request) -> Response:
        """Grafana's webhook, signed or with a token."""
        body = await request.body()
        person: Person | None = getattr(request.state, "person", None)
        if person is None:
            check_grafana(request.headers, body, self._secrets.grafana, self._clock.now_s())
        return await self._alerts("grafana", body, person or Person("signed", "act"))

    async def slack(self, request: Request) -> Response:
        """A button that a member of the chat has pressed; the answer takes the place of the buttons."""
        body = await request.body()
        check_slack(request.headers, body, self._secrets.slack, self._clock.now_s())
        try:
            form = parse_qs(body.decode(), max_num_fields=10)
        except (UnicodeDecodeError, ValueError):
            raise Problem(400, "the body is no form") from None
        pressed = parsed(form.get("payload", ["{}"])[0].encode(), Pressed)
        if pressed.user.id not in self._secrets.slack_users:
            raise Problem(403, "serve.slack_users does not name this member")
        if len(pressed.actions) != 1:
            raise Problem(400, "one button is pressed at a time")
        button = pressed.actions[0]
        value = parsed(button.value.encode(), Value)
        who = f"{pressed.user.username or pressed.user.id} (slack)"
        try:
            said = await self._acts.on_action(button.action_id, value.action, value.plan_digest, who)
            text = f"{button.action_id}: {value.action}, said by {said.by}"
        except Problem as refused:
            if refused.status >= 500:
                raise
            text = f"{button.action_id}: nothing was done; {refused.detail}"
        self._count("slack", button.action_id)
        return answer({"replace_original": True, "text": _plain(text)})

    async def _alerts(self, hook: str, body: bytes, person: Person) -> Response:
        counts: Counter[str] = Counter()
        told: list[str] = []
        for alert in parsed(body, Alerts).alerts:
            try:
                outcome = await self._alert(alert, person, f"{person.name} ({hook})")
            except Useless as error:
                outcome = "refused"
                told.append(str(error))
            except Problem as refused:
                if refused.status >= 500:
                    raise  # it will be sent again; what was done of it is done once
                outcome = "refused"
                told.append(refused.detail)
            counts[outcome] += 1
            self._count(hook, outcome)
        said: dict[str, Any] = {"outcomes": dict(counts)}
        return answer(said | ({"refused": told[:MAX_TOLD]} if told else {}))

    async def _alert(self, alert: Alert, person: Person, by: str) -> str:
        """What became of one alert."""
        asked = asks_for(alert, self._clock.now_s())
        if asked is None:
            return "nothing to do"
        of = (asked.word, asked.action, asked.plan_digest) if isinstance(asked, WordOnAction) else ("silence",)
        done: Done = (alert.fingerprint, alert.starts_at, alert.status, *of)
        if done in self._done:
            return "repeated"
        if isinstance(asked, SilenceAsked):
            if not person.may("act"):
                raise Problem(403, f"a silence takes the role 'act'; this token's is '{person.role}'")
            await self._acts.on_silence(asked, by)
        else:
            await self._acts.on_action(asked.word, asked.action, asked.plan_digest, by)
        if alert.fingerprint:
            self._done[done] = None
            if len(self._done) > MAX_DONE:
                del self._done[next(iter(self._done))]
        return of[0]

    def _count(self, hook: str, outcome: str) -> None:
        self._metrics.count(
            "hook_alerts_total", "Alerts and buttons by what became of them.", hook=hook, outcome=outcome
        )


def _plain(text: str) -> str:
    """`text` as Slack shows it and does not obey it."""
    return text[:1_000].replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
