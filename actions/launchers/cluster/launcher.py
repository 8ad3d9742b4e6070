"""One node's launcher of a job on several: its ranks, its reports, and the leader's part while it holds the lease."""

from __future__ import annotations

import logging
import selectors
import threading
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from actions.launchers.cluster import places
from actions.launchers.cluster.leading import ROLES, Leading
from actions.launchers.cluster.ledger import LedgerNews
from actions.launchers.cluster.obeying import sentence_of
from actions.launchers.cluster.orders import NodeMemory, NodeOrders, Ranks
from actions.launchers.cluster.reporter import Reporter
from actions.launchers.cluster.words import MAX_BYTES, Attempt, Over, Patience, Report, Shape
from actions.launchers.leases.client import LeaseClient, LeaseKeeper
from actions.launchers.leases.elector import LeaderElector
from actions.launchers.leases.fence import EpochFence
from actions.launchers.leases.host import LeaseHost
from actions.launchers.leases.questions import LOOPBACK, Answer, QuestionServer, Route
from actions.launchers.local.measuring import among
from actions.launchers.local.node_runner import NodeRunner
from actions.launchers.local.ranks import Place, World, check_command
from actions.launchers.local.run_events import EventFile
from actions.launchers.restart_check.trial import Trial, TrialPart
from actions.launchers.restart_check.words import Suspicions
from trainwarden import rundir
from trainwarden.clock import Clock
from trainwarden.errors import ConfigError
from trainwarden.launching import Operation
from trainwarden.metrics_http.access import Tokens
from trainwarden.metrics_http.tls import PeerTls
from trainwarden.network.host_port import host_and_port

log = logging.getLogger("trainwarden.cluster")

STOPPED_CODE: Final = 143  # what a shell shows for SIGTERM
LONGEST_WAIT_S: Final = 0.05
FAREWELL_S: Final = 5.0  # for the leader to hear that this node's part is over


class Meeting(msgspec.Struct, frozen=True, kw_only=True):
    """How the nodes of a job find each other: `rdzv` is the lease service's ``HOST:PORT``; with `tls` all speak TLS.

    `node_rank` is this node's place, where a person has named one. `people` may ask by tokens of their own.
    """

    rdzv: str
    shape: Shape
    token: str | None = None
    people: Tokens | None = None
    tls: PeerTls | None = None
    patience: Patience = Patience()
    node_rank: int | None = None


class NodeLauncher:
    """Runs this node's part of the job; `run` returns the job's exit code.

    Parameters
    ----------
    place : Place
        As for `actions.launchers.local.supervisor.Supervisor`; `ranks` are those of this node.
    clock : Clock
        Its monotonic seconds go on while the machine sleeps (`trainwarden.clock.BootClock`).
    environ : mapping
        Environment to build the ranks' on.
    suspicions : Suspicions, optional
        Who is to be measured between two attempts; nobody, if there are none.

    Raises
    ------
    ConfigError
        If there is no way to the lease service, or others than this machine would be answered without a token.
    """

    def __init__(
        self, place: Place, meeting: Meeting, clock: Clock, environ: Mapping[str, str], *, stop_grace_s: float,
        suspicions: Suspicions | None = None,
    ) -> None:  # fmt: skip
        if meeting.token is None and host_and_port(meeting.rdzv, "--rdzv")[0] not in LOOPBACK:
            raise ConfigError("--rdzv: nodes on other machines are answered only with a token; name a --token-file")
        self._place = msgspec.structs.replace(place, command=check_command(place.command))
        self._meeting, self._clock = meeting, clock
        self._host = places.own_host(meeting.rdzv)
        self._life = f"{place.node[:200]}/{uuid.uuid4().hex[:12]}"
        rundir.prepare(place.run_dir)
        self._selector = selectors.DefaultSelector()
        self._runner = NodeRunner(self._place, environ, self._selector, clock, stop_grace_s=stop_grace_s)
        self._events, self._asked = EventFile(self._place), LedgerNews()
        self._memory = NodeMemory(place.run_dir, place.job)
        self._asked.of(self._memory.ledger)  # which was told before
        fence, begins_s = EpochFence(self._memory.allegiance), clock.monotonic_s()
        self._orders = NodeOrders(self._life, fence, meeting.patience, begins_s, ledger=self._memory.ledger)
        self._trial = TrialPart(self._life, lambda t: among(self._place, t.checks, t.nodes, self._world(t)), clock)
        self._suspicions, self._lock = suspicions, threading.Lock()  # of orders and what is told
        self._ranks, self._port = Ranks(), places.free_port(self._host)
        self._first_step: int | None = None
        self._own = range(0)  # the numbers of the ranks that were started here last
        self._began_s = 0.0
        self._start_s: float | None = None
        self._awaits_step = False  # a checkpoint is whole, so it is looked at whether the script goes on from it
        self._over_s: float | None = None
        self._connected = False

    def _connect(self) -> None:
        """Make the leader's part and the ways to others; nothing of it begins yet."""
        meeting, job, clock = self._meeting, self._place.job, self._clock
        shown, routes = f"[{self._host}]" if ":" in self._host else self._host, dict[Route, Answer]()
        own: dict[str, Any] = {"people": meeting.people, "tls": meeting.tls}
        self._server = QuestionServer(
            f"{shown}:0", routes, token=meeting.token, most_bytes=MAX_BYTES, roles=ROLES, **own
        )
        elector = LeaderElector(job, self._life, self._server.address)
        self._keeper = LeaseKeeper(elector, LeaseClient(meeting.rdzv, meeting.token, tls=meeting.tls).ask, clock)
        self._leading = Leading(
            job, self._life, self._keeper, clock,
            shape=meeting.shape, patience=meeting.patience, checkpoints=self._place.checkpoints,
            suspicions=self._suspicions,
        )  # fmt: skip
        routes.update(self._leading.routes())
        self._leases = LeaseHost(meeting.rdzv, meeting.token, clock, **own)
        self._reporter = Reporter(
            self._orders, self._keeper, self.report, self._lock, clock, token=meeting.token, tls=meeting.tls
        )
        self._connected = True

    def leads(self) -> bool:
        """Whether this launcher leads the job now."""
        return self._connected and self._keeper.leads() is not None

    def run(self, stop: Callable[[], bool] = lambda: False, passed_on: Callable[[], Sequence[int]] = tuple) -> int:
        """Take part until the job is over, or, after `stop()`, end it everywhere; the ranks get signals `passed_on()`.

        Returns
        -------
        int
            0 if every rank ended well, else the code of the first that failed, 143 if the job was stopped.
        """
        self._runner.get_ready(stop)
        if kept := self._memory.sentence:
            self._runner.say(f"kept from before: {kept}; until `trainwarden job uncordon` or `resume`")
        self._connect()
        self._leases.start()
        self._server.start()
        self._keeper.start()
        self._reporter.start()
        try:
            while not self._gone():
                for key, _ in self._selector.select(LONGEST_WAIT_S):
                    key.data()
                if stop():
                    self._wish(Over(STOPPED_CODE, f"it was stopped on {self._place.node}"))
                self._runner.pass_on(passed_on())
                self._runner.advance()
                self._advance()
                self._leading.advance()
            over = self._orders.over
            assert over is not None
            if over.why:
                self._runner.say(f"the job is over: {over.why}")
        finally:
            self._close()
        if self._orders.told_over:
            self._memory.forget()
        return over.code

    def _close(self) -> None:
        self._trial.close()
        self._runner.kill_all()
        self._reporter.close()
        self._keeper.close()
        self._server.close()
        self._leases.close()
        self._selector.close()

    def _wish(self, over: Over) -> None:
        with self._lock:
            self._orders.wish(over)

    def _gone(self) -> bool:
        """Whether the job is over, nothing runs here, and who waits for a word of this node has had it."""
        over, now_s = self._orders.over, self._clock.monotonic_s()
        if over is None or self._runner.running:
            return False
        if self._over_s is None:
            self._over_s = now_s
            self._reporter.wake()
        said = self._reporter.said
        heard = said is not None and said.over is not None and not said.alive and self._leading.finished()
        return heard or now_s - self._over_s >= FAREWELL_S

    # --- the ranks of this node --------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """See what became of the ranks, and do what is wanted of them."""
        failure = self._runner.failure
        ranks = Ranks(len(self._runner.running), None if failure is None else failure.code)
        first = self._first_step_of_all()
        with self._lock:
            before = self._orders.state, self._ranks, self._first_step
            if self._first_step is None and first is not None:
                self._start_s = self._clock.monotonic_s() - self._began_s
            self._ranks, self._first_step = ranks, first
            todo = self._orders.decide(ranks, self._clock.monotonic_s())
            if isinstance(todo, Attempt):  # a report may be made before its ranks start: the old step is none of theirs
                self._first_step, self._awaits_step = None, False
            changed = before != (self._orders.state, ranks, first)
            obeys, trial = self._orders.obeys, self._orders.trial if self._orders.over is None else None
            ledger = self._orders.ledger
        changed |= self._memory.keep(obeys, ledger)
        for entry, stage in self._asked.of(ledger):
            self._events.asked(entry.operation(self._place.job), sentence_of(entry, stage), stage, self._clock.now_s())
        changed |= self._trial.follow(trial, idle=not ranks.alive and not isinstance(todo, Attempt))
        if todo == "stop":
            self._runner.ask_to_stop(list(self._runner.running))
        elif isinstance(todo, Attempt):
            self._start(todo)
        if changed:
            self._reporter.wake()

    def _world(self, step: Attempt | Trial) -> World:
        return World(
            node_rank=step.roster.index(self._life), nodes=len(step.roster), master=step.master, port=step.port,
            interface=places.interface_of(self._host),
        )  # fmt: skip

    def _start(self, attempt: Attempt) -> None:
        world, folder = self._world(attempt), self._place.checkpoints
        first = world.node_rank * self._place.ranks
        resume_from = None if folder is None or attempt.checkpoint is None else folder / attempt.checkpoint
        ranks = range(first, first + self._place.ranks)
        if attempt.number > 1:
            self._tell(attempt, "started")
        self._runner.say(f"attempt {attempt.number}: ranks {ranks[0]} to {ranks[-1]} of {world.nodes} nodes start here")
        try:
            self._runner.start(ranks, attempt.number - 1, resume_from, world)
        except OSError as error:  # that counts as a failure of the ranks
            log.error("ranks cannot be started", extra={"fields": {"error": str(error)}})
        failure = self._runner.failure
        with self._lock:
            self._ranks = Ranks(len(self._runner.running), None if failure is None else failure.code)
            self._awaits_step = attempt.step is not None
            self._own, self._first_step, self._began_s = ranks, None, self._clock.monotonic_s()
        if attempt.number > 1:
            self._tell(attempt, "done")

    def _tell(self, attempt: Attempt, stage: str) -> None:
        """Put a fact of the restart where the node's agent finds it; all nodes tell one and the same."""
        number = f"{attempt.epoch}.{attempt.number}"
        restart = Operation(
            id=f"{self._place.job}/attempt/{number}", job=self._place.job, kind="restart", by="leader",
            expected_generation=attempt.number - 1, why=f"the leader has all ranks start again: attempt {number}",
        )  # fmt: skip
        self._events.restart(restart, stage, attempt.number - 1, self._clock.now_s())

    def _first_step_of_all(self) -> int | None:
        """The lowest first step of the ranks, once each has finished one that has a number; asked where it matters."""
        if not self._awaits_step or self._first_step is not None:
            return self._first_step
        return lowest(self._runner.first_steps(), self._own)

    def report(self) -> Report:
        """What is true here; a port that is free now as long as no ranks run, as others may take one meanwhile."""
        orders, obeys = self._orders, self._orders.obeys
        if not self._ranks.alive:
            self._port = places.free_port(self._host)
        return Report(
            job=self._place.job, life=self._life, node=self._place.node[:256], shape=self._meeting.shape,
            node_rank=self._meeting.node_rank,
            host=self._host, port=self._port, alive=self._ranks.alive, ran=orders.ran, state=orders.state,
            code=orders.code, first_step=self._first_step, newest=orders.newest, start_s=self._start_s,
            age_s=self._clock.monotonic_s() - self._began_s if self._ranks.alive else None,
            obeyed_epoch=0 if obeys is None else obeys.epoch, obeyed_holder="" if obeys is None else obeys.holder,
            ledger=self._memory.ledger, trial=self._trial.said, over=orders.over,
        )  # fmt: skip


def lowest(first_steps: Mapping[int, int | None], ranks: Collection[int]) -> int | None:
    """The lowest first step of `ranks`, once each has a numbered one; those of others are of attempts before.

    Examples
    --------
    >>> lowest({1: 0, 0: 40}, [0]), lowest({0: 40}, [0, 1]), lowest({0: None}, [0])
    (40, None, None)
    """
    known = [first_steps.get(rank) for rank in ranks]
    return None if not known or None in known else min(step for step in known if step is not None)
