"""A launcher's way to the lease service, and the thread that asks: nobody else waits for a network."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from actions.launchers.leases.elector import LeaderElector, retry_s
from actions.launchers.leases.questions import Asker
from actions.launchers.leases.words import DURATION_S, Answer, Ask, Lease
from trainwarden.clock import Clock
from trainwarden.errors import LauncherError
from trainwarden.metrics_http.tls import PeerTls

log = logging.getLogger("trainwarden.lease")

MAX_BYTES: Final = 65_536
LEAST_WAIT_S: Final = 0.05
TIMEOUT_S: Final = 1.0
"""For one question: two fit into the time between the last renewal that arrived and the end of leading."""


class LeaseClient:
    """Asks the service at `address` (``HOST:PORT``).

    Parameters
    ----------
    token : str, optional
        Its token, where it wants one.
    timeout_s : float
        For a connection, and for each part of an answer, in seconds.
    tls : PeerTls, optional
        With our certificate, where the service speaks TLS.
    """

    def __init__(
        self, address: str, token: str | None = None, timeout_s: float = TIMEOUT_S, *, tls: PeerTls | None = None
    ) -> None:
        self._address, self._asker = address, Asker("lease service", token, timeout_s, MAX_BYTES, tls=tls)

    def ask(self, ask: Ask) -> Answer:
        """What the service says to `ask`.

        Raises
        ------
        LauncherUnavailable
            If it cannot be reached, or what answers is no lease service.
        LauncherError
            If it refuses to answer.
        """
        return self._asker.ask(self._address, "/v1/lease", ask, Answer)

    def look(self, ask: Ask) -> Answer:
        """The same for a person who only looks on."""
        return self._asker.ask(self._address, "/v1/look", ask, Answer)


class LeaseKeeper:
    """Asks again and again, so that the lease stays, or comes here when its holder is gone.

    Parameters
    ----------
    ask : callable
        `LeaseClient.ask`, or another way to a service.
    clock : Clock
        Its monotonic seconds go on while the machine sleeps (`trainwarden.clock.BootClock`).
    stand : callable
        Whether this launcher would lead now; who does not only learns who does.
    """

    def __init__(
        self,
        elector: LeaderElector,
        ask: Callable[[Ask], Answer],
        clock: Clock,
        *,
        stand: Callable[[], bool] = lambda: True,
    ) -> None:
        self._elector, self._ask, self._clock, self._stand = elector, ask, clock, stand
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        self._trouble: str | None = None
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def leads(self) -> Lease | None:
        """The lease under which this launcher may act now; to be asked before each act."""
        with self._lock:
            return self._elector.newest if self._elector.leads(self._clock.monotonic_s()) else None

    def left_s(self) -> float:
        """For how long this launcher may still lead, in seconds."""
        with self._lock:
            return self._elector.left_s(self._clock.monotonic_s())

    @property
    def newest(self) -> Lease | None:
        """The newest lease that was heard of, whoever's."""
        with self._lock:
            return self._elector.newest

    @property
    def trouble(self) -> str | None:
        """Why the last question had no answer; None if it had one."""
        return self._trouble

    def fenced(self, epoch: int) -> None:
        """A node obeys a leader of `epoch`."""
        with self._lock:
            self._elector.fenced(epoch)
        self._wake.set()

    def wake(self) -> None:
        """Ask now: the leader has gone."""
        self._wake.set()

    def close(self) -> None:
        """Ask no more; a leader resigns, if the service can be reached."""
        self._closed = True
        self._wake.set()
        self._thread.join()
        with self._lock:
            said = self._elector.resign(self._clock.monotonic_s())
        if said is not None:
            self._answer(said)

    def _keep(self) -> None:
        while not self._closed:
            self._wake.wait(self.once())
            self._wake.clear()

    def once(self) -> float:
        """Ask once; for how long to wait before the next question, in seconds."""
        sent_s = self._clock.monotonic_s()
        with self._lock:
            ask = self._elector.ask(sent_s, stand=self._stand())
        answer = self._answer(ask)
        with self._lock:
            newest = self._elector.newest
            between_s = retry_s(newest.duration_s if newest is not None else DURATION_S)
            if answer is None:
                return between_s
            now_s = self._clock.monotonic_s()
            self._elector.hear(answer, sent_s=sent_s, now_s=now_s)
            if self._elector.leads(now_s):
                return between_s
        return max(answer.wait_s, LEAST_WAIT_S) if answer.wait_s > 0 else between_s

    def _answer(self, ask: Ask) -> Answer | None:
        try:
            answer = self._ask(ask)
        except LauncherError as error:
            if self._trouble is None:
                log.warning("no word of the lease", extra={"fields": {"reason": str(error)}})
            self._trouble = str(error)
            return None
        if self._trouble is not None:
            log.info("the lease service answers again")
        self._trouble = None
        return answer
