"""The rendezvous service of a job that brings its own: on the machine of ``--rdzv``, where none is there yet."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

from trainwarden.actions.launchers.torchrun.service import RendezvousService
from trainwarden.clock import BootClock
from trainwarden.errors import ConfigError

BETWEEN_S: Final = 1.0
FAREWELL_S: Final = 10.0  # for agents that have not yet learned that the job is over


class RendezvousHost:
    """Serves at `address` as soon as that is this machine's and free; tries until then.

    Other machines cannot listen there, and without a token others than this machine are served nothing.

    Parameters
    ----------
    more : object
        Of `RendezvousService`.
    """

    def __init__(self, address: str, **more: Any) -> None:
        self._address, self._more = address, more
        self._closed = threading.Event()
        self._service: RendezvousService | None = None
        self._served = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rendezvous-host", daemon=True)
        self.why = ""
        """Why the last try served nothing."""

    def start(self) -> None:
        """Begin to try."""
        self._thread.start()

    def served(self, timeout_s: float) -> str | None:
        """The address that is served, once it is; None if that takes longer."""
        return self._address if self._served.wait(timeout_s) else None

    def close(self, farewell_s: float = FAREWELL_S) -> None:
        """Serve no more, once all agents that are connected have gone; a try that is under way may end later."""
        until_s = time.monotonic() + farewell_s
        while self._service is not None and self._service.has_agents and time.monotonic() < until_s:
            self._closed.wait(0.1)
        self._closed.set()
        self._thread.join(2 * BETWEEN_S)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._service = RendezvousService(self._address, BootClock(), **self._more)
                self._service.run(self._closed.is_set, self._ready)
            except ConfigError as error:  # another machine's address, or somebody serves there already
                self.why = str(error)
                self._closed.wait(BETWEEN_S)

    def _ready(self, address: str) -> None:
        self._address = address
        self._served.set()
