"""The lease service of a job that brings its own: on the machine of ``--rdzv``, where nobody listens there."""

from __future__ import annotations

import logging
import threading

from actions.launchers.leases.server import LeaseServer
from trainwarden.clock import Clock
from trainwarden.errors import ConfigError
from trainwarden.metrics_http.access import Tokens
from trainwarden.metrics_http.tls import PeerTls

log = logging.getLogger("trainwarden.cluster")


class LeaseHost:
    """Serves leases at `address` as soon as that is this machine's and free; tries until then.

    Others than this machine are told nothing without `token` (`LeaseServer`), and other machines cannot listen there.
    """

    def __init__(
        self, address: str, token: str | None, clock: Clock, between_s: float = 1.0,
        *, people: Tokens | None = None, tls: PeerTls | None = None,
    ) -> None:  # fmt: skip
        self._address, self._token, self._clock, self._between_s, self._tls = address, token, clock, between_s, tls
        self._people = people
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease-host", daemon=True)

    def start(self) -> None:
        """Begin to try."""
        self._thread.start()

    def close(self) -> None:
        """Serve no more. A try that is under way may end later."""
        self._closed.set()
        self._thread.join(2 * self._between_s)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                server = LeaseServer(self._address, self._token, self._clock, people=self._people, tls=self._tls)
            except ConfigError:  # another machine's address, or somebody serves there already
                self._closed.wait(self._between_s)
                continue
            server.run(self._closed.is_set)
