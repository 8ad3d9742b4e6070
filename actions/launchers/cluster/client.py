"""The way of people and engines to the leader of a job on several nodes, whichever launcher that is, and wherever."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from actions.launchers.cluster.control import Question
from actions.launchers.cluster.words import MAX_BYTES
from actions.launchers.leases.client import LeaseClient
from actions.launchers.leases.questions import Asker
from actions.launchers.leases.words import Ask
from actions.launchers.local.control import AskState, Poll, Reply, Request, Submit
from trainwarden.clock import Clock
from trainwarden.errors import LauncherError, LauncherUnavailable
from trainwarden.launching import LauncherState, Operation, Report, Targets, Verb
from trainwarden.metrics_http.tls import PeerTls

TIMEOUT_S: Final = 2.0  # for one question, to the lease service or a leader
BETWEEN_S: Final = 0.25

T = TypeVar("T")


class LeaderClient:
    """Asks whoever leads `job` by the lease service at `rdzv`, ``HOST:PORT``.

    Parameters
    ----------
    token : str, optional
        That the nodes share, where they have one, or a person's.
    timeout_s : float
        For one question, to the lease service or the leader, in seconds.
    """

    def __init__(
        self, job: str, rdzv: str, token: str | None = None, *, tls: PeerTls | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        self._job, self._rdzv, self._name = job, rdzv, f"person/{uuid.uuid4().hex[:12]}"
        self._leases = LeaseClient(rdzv, token, timeout_s, tls=tls)
        self._asker = Asker("leader", token, timeout_s, MAX_BYTES, tls=tls)

    def state(self) -> LauncherState:
        """What is true of the job.

        Raises
        ------
        LauncherUnavailable
            If nobody who leads it can be reached, or the leader does not know yet. So with the other questions.
        LauncherError
            If the answer is no.
        """
        reply = self._ask(AskState(self._job))
        if reply.state is None:
            raise LauncherError(reply.error or "the leader answered without a state")
        return reply.state

    def submit(self, operation: Operation) -> Report:
        """Have `operation` carried out, once by its id."""
        return self._report(self._ask(Submit(operation)))

    def poll(self, operation: str) -> Report:
        """How far that operation is; ``unknown`` if nothing of it was begun."""
        return self._report(self._ask(Poll(self._job, operation)))

    @staticmethod
    def _report(reply: Reply) -> Report:
        if reply.later is not None:
            raise LauncherUnavailable(reply.later)
        if reply.report is None:
            raise LauncherError(reply.error or "the leader answered without a report")
        return reply.report

    def _ask(self, request: Request) -> Reply:
        lease = self._leases.look(Ask(job=self._job, holder=self._name, want="look")).lease
        if lease is None:
            raise LauncherUnavailable(f"the lease service at {self._rdzv} knows no leader of job '{self._job}'")
        path = "/v1/job" if isinstance(request, Submit) else "/v1/look"
        reply = self._asker.ask(lease.address, path, Question(request), Reply)
        if reply == Reply():
            raise LauncherUnavailable(f"{lease.holder} does not lead job '{self._job}' now, or does not know it yet")
        return reply


class Asked(Protocol):
    """Whoever answers for one job: the leader of one on several nodes, or another launcher."""

    def state(self) -> LauncherState:
        """What is true of the job."""
        ...

    def submit(self, operation: Operation) -> Report:
        """Have `operation` carried out, once by its id."""
        ...

    def poll(self, operation: str) -> Report:
        """How far that operation is."""
        ...


class Patient:
    """Asks again for as long as `wait_s` lasts, counted from when it was made, while nobody can be reached."""

    def __init__(self, client: Asked, clock: Clock, wait_s: float) -> None:
        self._client, self._clock = client, clock
        self._until_s = clock.monotonic_s() + wait_s

    def state(self) -> LauncherState:
        """What is true of the job."""
        return self._again(self._client.state)

    def carry_out(self, kind: Verb, job: str, why: str, node: str | None = None, *, by: str = "") -> Report:
        """Have `kind` done, of `node` if it is one of nodes, once; its end, or how far it was when the time was over.

        What a leader that was killed had accepted, but not begun, is unknown to the next one, and is asked for again
        under the same id and from the same state: it is refused where somebody else was quicker.
        """
        state = self._again(self._client.state)
        operation = Operation(
            id=f"{job}/{kind}/{uuid.uuid4().hex}", job=job, kind=kind, expected_generation=state.generation,
            targets=Targets(nodes=() if node is None else (node,)), why=why, by=by,
        )  # fmt: skip
        report = self._again(lambda: self._client.submit(operation))
        try:
            while not report.ended and self._wait():
                report = self._again(lambda: self._client.poll(operation.id))
                if report.state == "unknown":
                    report = self._again(lambda: self._client.submit(operation))
        except LauncherUnavailable:
            if report.state != "accepted":
                raise
        return report

    def _again(self, ask: Callable[[], T]) -> T:
        while True:
            try:
                return ask()
            except LauncherUnavailable:
                if not self._wait():
                    raise

    def _wait(self) -> bool:
        """Wait a moment; whether there was time for that."""
        if self._clock.monotonic_s() >= self._until_s:
            return False
        self._clock.sleep(BETWEEN_S)
        return True
