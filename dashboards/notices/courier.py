"""Brings notices to one target: in order, tried again with longer and longer waits, from a queue of a fixed size."""

from __future__ import annotations

import logging
import queue
from typing import Final

import httpx

from trainwarden.clock import Clock
from trainwarden.dashboards.notices.targets import Target
from trainwarden.self_metrics import SelfMetrics
from trainwarden.signing import signed_headers

log = logging.getLogger("trainwarden.serve")

MOST_WAITING: Final = 1_000
WAITS_S: Final = (1.0, 4.0, 15.0, 60.0)
AGAIN: Final = frozenset({408, 425, 429})  # of what is the asker's fault, these pass


class Courier:
    """Of one target.

    Parameters
    ----------
    client : httpx.Client
        Follows no redirect: what is sent may carry a token.
    """

    def __init__(self, target: Target, client: httpx.Client, clock: Clock, metrics: SelfMetrics) -> None:
        self.target = target
        self._client = client
        self._clock = clock
        self._metrics = metrics
        self._waiting: queue.Queue[bytes] = queue.Queue(MOST_WAITING)

    def offer(self, body: bytes) -> None:
        """Have `body` brought; where too many wait already it is dropped and counted. Never waits."""
        try:
            self._waiting.put_nowait(body)
        except queue.Full:
            self.count("dropped")

    def run(self) -> None:
        """Bring what is offered, for as long as the process lives."""
        while True:
            self.bring(self._waiting.get())

    def bring_all(self) -> None:
        """Bring what waits now."""
        while not self._waiting.empty():
            self.bring(self._waiting.get())

    def bring(self, body: bytes) -> None:
        """Bring one, however often it must be tried."""
        for wait_s in (*WAITS_S, None):
            said = self._try(body)
            if said is None:
                self.count("sent")
                return
            if wait_s is None or (said.isdigit() and int(said) < 500 and int(said) not in AGAIN):
                break
            self._clock.sleep(wait_s)
        self.count("failed")
        log.warning("notice was not taken", extra={"fields": {"host": self.target.host, "said": said}})

    def count(self, outcome: str) -> None:
        """One more notice that came to this."""
        self._metrics.count("notices_total", "Notices by what became of them.", host=self.target.host, outcome=outcome)

    def _try(self, body: bytes) -> str | None:
        """None if it was taken, else what was said instead."""
        headers = {"content-type": "application/json", "user-agent": "trainwarden"}
        if self.target.token is not None:
            headers["authorization"] = f"Bearer {self.target.token}"
        if self.target.secret is not None:
            headers |= signed_headers(self.target.secret, body, self._clock.now_s())
        try:
            # Only the head is read: nothing that is answered is of use, and it may be endless.
            with self._client.stream(
                "POST", self.target.url, content=body, headers=headers, timeout=self.target.settings.timeout_s
            ) as response:
                return None if response.is_success else str(response.status_code)
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # the last of a host that is no name
            return type(error).__name__
