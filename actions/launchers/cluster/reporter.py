"""The thread by which a node talks to its leader, so that its ranks wait for no network."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from actions.launchers.cluster.orders import NodeOrders
from actions.launchers.cluster.words import MAX_BYTES, Order, Report
from actions.launchers.leases.client import LeaseKeeper
from actions.launchers.leases.questions import Asker
from actions.launchers.leases.words import Lease
from trainwarden.clock import Clock
from trainwarden.errors import LauncherError
from trainwarden.metrics_http.tls import PeerTls

log = logging.getLogger("trainwarden.cluster")

TIMEOUT_S: Final = 1.0  # for one report: five fit into the time after which a node counts as lost
RETRY_S: Final = 0.25


class Reporter:
    """Reports again and again, and at once after `wake`; orders go to `orders`.

    Parameters
    ----------
    report : callable
        What is true now; called with `lock` held.
    lock : threading.Lock
        Of `orders` and all that `report` reads.
    """

    def __init__(
        self, orders: NodeOrders, keeper: LeaseKeeper, report: Callable[[], Report], lock: threading.Lock,
        clock: Clock, *, token: str | None, tls: PeerTls | None = None,
    ) -> None:  # fmt: skip
        self._orders, self._keeper, self._report, self._lock, self._clock = orders, keeper, report, lock, clock
        self._asker = Asker("leader", token, TIMEOUT_S, MAX_BYTES, tls=tls)
        self._wake, self._closed = threading.Event(), False
        self._leader: Lease | None = None  # that is obeyed
        self._until_s = float("-inf")  # its time
        self._trouble = False
        self.said: Report | None = None
        """The newest report that an obeyed leader has answered."""
        self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)

    def start(self) -> None:
        """Begin to report."""
        self._thread.start()

    def wake(self) -> None:
        """Report now: something has changed."""
        self._wake.set()

    def close(self) -> None:
        """Report no more."""
        self._closed = True
        self._wake.set()
        self._thread.join(2 * TIMEOUT_S)
        self._asker.close()

    def _run(self) -> None:
        while not self._closed:
            try:
                wait_s = self.once()
            except Exception:  # a thread that ends would leave the ranks to nobody
                log.exception("report failed")
                wait_s = RETRY_S
            self._wake.wait(wait_s)
            self._wake.clear()

    def once(self) -> float:
        """Report once; how long to wait before the next report, in seconds."""
        lease = self._target()
        if lease is None:
            return RETRY_S
        with self._lock:
            report = self._report()
        try:
            order = self._asker.ask(lease.address, "/v1/node", report, Order)
        except LauncherError as error:
            self._missed(lease, str(error))
            return RETRY_S
        self._trouble = False
        now_s = self._clock.monotonic_s()
        with self._lock:
            obeyed = self._orders.hear(order, now_s)
        if obeyed:
            self._leader, self._until_s, self.said = lease, now_s + order.left_s, report
            return order.next_s
        if not order.leads:
            self._leader = None
            self._keeper.wake()
        return RETRY_S

    def _target(self) -> Lease | None:
        """Whom to report to: the leader that is obeyed until its time is over, then the newest that is known of."""
        if self._leader is not None and self._clock.monotonic_s() < self._until_s:
            return self._leader
        return self._keeper.newest

    def _missed(self, lease: Lease, reason: str) -> None:
        if not self._trouble:
            log.warning("no word of the leader", extra={"fields": {"leader": lease.holder, "reason": reason}})
        self._trouble = True
        self._keeper.wake()
