"""The web application over an overview that a test fills, asked without a network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import httpx

from tests.doubles import ManualClock
from trainwarden.dashboards.overview.overview import Overview
from trainwarden.dashboards.web.app import Parts, build
from trainwarden.errors import BusUnavailable, ConfigError
from trainwarden.metrics_http.access import Person, Tokens, digest_of
from trainwarden.protocols import Message
from trainwarden.records import (
    ActionRecord,
    CommandRecord,
    HeartbeatRecord,
    IncidentRecord,
    Record,
    VerdictRecord,
    Vote,
)
from trainwarden.self_metrics import SelfMetrics
from trainwarden.topics import topic_of

NOW_S = 1_000_000.0
OBSERVE, APPROVE, ACT = "observing-token-of-a-test", "approving-token-of-a-test", "acting-token-of-a-test"
TOKENS = Tokens({
    digest_of(OBSERVE): Person("looker", "observe"), digest_of(APPROVE): Person("pager", "approve"),
    digest_of(ACT): Person("on-call", "act"),
})  # fmt: skip


def bearer(token: str) -> dict[str, str]:
    """The header of a request with `token`."""
    return {"authorization": f"Bearer {token}"}


class Client:
    """A client of an ASGI application; each request has an event loop of its own."""

    def __init__(self, app: Any, base_url: str = "http://localhost:8760") -> None:
        self._app = app
        self._base_url = base_url

    def get(self, path: str, **asked: Any) -> httpx.Response:
        return self.request("GET", path, **asked)

    def post(self, path: str, **asked: Any) -> httpx.Response:
        return self.request("POST", path, **asked)

    def request(self, method: str, path: str, **asked: Any) -> httpx.Response:
        return asyncio.run(self._request(method, path, asked))

    async def _request(self, method: str, path: str, asked: dict[str, Any]) -> httpx.Response:
        if isinstance(asked.get("content"), Iterator):
            asked["content"] = _pieces(asked["content"])
        transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=self._base_url) as client:
            return await client.request(method, path, **asked)


async def _pieces(content: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in content:
        yield piece


class Web:
    """An application; `tell` puts records into what it knows, `ask` and `act` are requests with a token."""

    def __init__(self, **parts: Any) -> None:
        self.clock = ManualClock(NOW_S)
        self.overview = Overview(self.clock)
        self.metrics = SelfMetrics("serve")
        self.published: list[CommandRecord] = []
        self.away = False
        self.refused: str | None = None
        self.app = build(Parts(self.overview, TOKENS, self.metrics, self.clock, self._publish, **parts))
        self.client = Client(self.app)
        self._offsets = 0

    def _publish(self, command: CommandRecord) -> None:
        if self.away:
            raise BusUnavailable("away by the test")
        if self.refused is not None:
            raise ConfigError(self.refused)
        self.published.append(command)

    def tell(self, *records: Record) -> None:
        """`records` come from the bus, now."""
        self.tell_of(*records)
        self.overview.tick(self.clock.now_s())

    def tell_of(self, *records: Record) -> None:
        """`records` come from the bus in the midst of a round."""
        messages = []
        for record in records:
            messages.append(Message(topic_of(record).name, 0, self._offsets, self.clock.now_s(), "j", record))
            self._offsets += 1
        self.overview.handle(messages)

    def ask(self, path: str, token: str = OBSERVE, **query: Any) -> Any:
        """The answer to a GET that must succeed."""
        answer = self.client.get(path, params=query, headers=bearer(token))
        assert answer.status_code == 200, answer.text
        return answer.json()

    def act(self, path: str, body: Any = None, token: str = ACT) -> Any:
        """The response to a POST."""
        return self.client.post(path, json=body, headers=bearer(token))


def incident(name: str = "i1", **more: Any) -> IncidentRecord:
    """An open incident."""
    fields: dict[str, Any] = {
        "job": "j", "kind": "hang", "severity": "sev2", "state": "opened", "revision": 0, "opened_at_s": NOW_S,
        "updated_at_s": NOW_S, "reason": "rank 2 does not move", **more,
    }  # fmt: skip
    return IncidentRecord(id=name, **fields)


def action(name: str = "i1/restart_process/1", **more: Any) -> ActionRecord:
    """An action that waits for a word."""
    fields: dict[str, Any] = {
        "job": "j", "incident": "i1", "kind": "restart_process", "outcome": "proposed", "at_s": NOW_S,
        "why": "rank 2 does not move", "plan_digest": "d1", "generation": 1, **more,
    }  # fmt: skip
    return ActionRecord(id=name, **fields)


def verdict(time_s: float = NOW_S, votes: dict[str, Vote] | None = None, **more: Any) -> VerdictRecord:
    """A verdict of normal times."""
    fields: dict[str, Any] = {"job": "j", "window_s": 60.0, "anomalous": False, "reason": "nothing", **more}
    return VerdictRecord(id=f"v{time_s}", time_s=time_s, votes=votes or {}, **fields)


def heartbeat(node: str = "n0", ranks: Sequence[int] = (0, 1), **more: Any) -> HeartbeatRecord:
    """A node that is alive."""
    return HeartbeatRecord(job=more.pop("job", "j"), node=node, time_s=more.pop("time_s", NOW_S), ranks=tuple(ranks))
