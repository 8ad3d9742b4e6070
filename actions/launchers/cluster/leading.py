"""What a launcher does while it leads: reports in, orders out, and the checkpoint that an attempt goes on from."""

from __future__ import annotations

import logging
import threading
from http import HTTPStatus
from pathlib import Path
from typing import Final, Protocol

import msgspec

from actions.launchers.checkpoints.resumption import SEARCH_S
from actions.launchers.cluster.control import Question, answered, vouched
from actions.launchers.cluster.growing import CheckpointWatch
from actions.launchers.cluster.leader import LeaderTable
from actions.launchers.cluster.ledger import MOST_ASIDE
from actions.launchers.cluster.words import Order, Patience, Report, Shape, believable
from actions.launchers.leases.questions import Refusal, Roles, Routes, decoded
from actions.launchers.leases.words import Lease
from actions.launchers.local.control import Reply, Request, Submit
from actions.launchers.restart_check.trials import Trials
from actions.launchers.restart_check.words import Suspicions
from trainwarden.checkpoints.newest import Checkpoint, Search
from trainwarden.clock import Clock
from trainwarden.errors import ConfigError
from trainwarden.metrics_http.access import Person

log = logging.getLogger("trainwarden.cluster")

ROLES: Final[Roles] = {("POST", "/v1/job"): "act", ("POST", "/v1/look"): "observe"}


class Leadership(Protocol):
    """What says whether this launcher may act (`actions.launchers.leases.client.LeaseKeeper`)."""

    def leads(self) -> Lease | None: ...
    def left_s(self) -> float: ...
    def fenced(self, epoch: int) -> None: ...


class Leading:
    """Answers reports by a `LeaderTable`, made anew with each lease; from any thread.

    Parameters
    ----------
    holder : str
        This launcher's process.
    checkpoints : Path, optional
        The folder in which an attempt's checkpoint is looked for.
    suspicions : Suspicions, optional
        Who is to be measured between two attempts; nobody, if there are none.
    """

    def __init__(
        self, job: str, holder: str, leadership: Leadership, clock: Clock,
        *, shape: Shape, patience: Patience, checkpoints: Path | None, suspicions: Suspicions | None = None,
    ) -> None:  # fmt: skip
        self._job, self._holder, self._leadership, self._clock = job, holder, leadership, clock
        self._shape, self._patience, self._folder = shape, patience, checkpoints
        self._lock = threading.Lock()
        self._table: LeaderTable | None = None
        self._held_epoch = 1
        self._heard_s: dict[str, float] = {}  # by node
        self._search: Search | None = None
        self._search_s = 0.0
        self._watch: CheckpointWatch | None = None
        self._trials = Trials(suspicions, clock)
        self._wrong: str | None = None
        self._stop_heard: str | None = None  # id of a stop of whose end somebody has heard

    def routes(self) -> Routes:
        """For a `QuestionServer`."""
        return {
            ("POST", "/v1/node"): self._question,
            ("POST", "/v1/job"): self._asked,
            ("POST", "/v1/look"): self._looks,
        }

    def _question(self, question: bytes, _who: Person | None) -> bytes:
        report = decoded(question, Report)
        if report.job != self._job or not believable(report):
            raise Refusal(HTTPStatus.BAD_REQUEST, f"this launcher is of job '{self._job}'")
        return msgspec.json.encode(self.answer(report))

    def _asked(self, question: bytes, who: Person | None) -> bytes:
        return msgspec.json.encode(self.control(vouched(decoded(question, Question).ask, who)))

    def _looks(self, question: bytes, _who: Person | None) -> bytes:
        ask = decoded(question, Question).ask
        if isinstance(ask, Submit):
            raise Refusal(HTTPStatus.BAD_REQUEST, "who looks on asks for nothing; POST /v1/job does")
        return msgspec.json.encode(self.control(ask))

    def control(self, request: Request) -> Reply:
        """What is answered to a person or an engine; nothing at all by who does not lead, or does not know yet."""
        with self._lock:
            lease, now_s = self._leadership.leads(), self._clock.monotonic_s()
            if lease is None:
                return Reply()
            table = self._table_of(lease, now_s)
            reply = answered(request, self._job, table, now_s) if table.settled(now_s) else Reply()
            if reply.report is not None and reply.report.operation == table.asked.stopped_by:
                self._stop_heard = reply.report.operation
            return reply

    def answer(self, report: Report) -> Order:
        """The order that follows from `report` and all that came before it."""
        with self._lock:
            lease, now_s = self._leadership.leads(), self._clock.monotonic_s()
            if report.ledger is None or report.node not in report.ledger.aside:
                self._heard_s[report.node] = now_s
            if lease is not None and _is_fenced(lease, report):
                self._leadership.fenced(report.obeyed_epoch)
                lease = None
            if lease is None:
                return Order(holder=self._holder, epoch=self._held_epoch, leads=False, alone=self._alone(now_s))
            if report.shape != self._shape and report.newest is not None and report.life in report.newest.roster:
                self._wrong = f"this launcher was started by {self._shape}, but the job that runs by {report.shape}"
                return Order(holder=self._holder, epoch=lease.epoch, leads=False)
            table = self._table_of(lease, now_s)
            over = table.misfit(report, now_s)
            if over is None:
                table.hear(report, now_s)
            return Order(
                holder=lease.holder, epoch=lease.epoch, left_s=self._leadership.left_s(), attempt=table.attempt,
                run=table.runs and over is None, ledger=table.asked.ledger, trial=self._trials.ordered,
                over=over or table.over, next_s=table.next_s,
            )  # fmt: skip

    def _alone(self, now_s: float) -> bool:
        """Whether another leader could have enough nodes for an attempt beside those that are heard here.

        Where the lease service is away and all nodes are here, nobody can: they go on for as long as that takes.
        """
        lost_s = self._patience.lost_after_s(self._shape.nodes)
        self._heard_s = {node: at_s for node, at_s in self._heard_s.items() if now_s - at_s < lost_s}
        return self._shape.enough_without(len(self._heard_s))

    def advance(self) -> None:
        """Do what is due although nobody says anything; to be called several times a second.

        Raises
        ------
        ConfigError
            If this launcher was started with other numbers than the job that it leads: it has to go, not the job.
        """
        with self._lock:
            if self._wrong is not None:
                raise ConfigError(self._wrong)
            lease = self._leadership.leads()
            if lease is None:
                self._table = self._search = self._watch = None
                self._trials.cut()
                return
            now_s = self._clock.monotonic_s()
            table = self._table_of(lease, now_s)
            table.advance(now_s)
            self._grow(table, now_s)
            if table.runs or table.asked.holds or table.over is not None:
                self._trials.cut()
            if not table.ready(now_s):
                self._search = None  # what it found may be old by the time another attempt can be formed
            elif self._looked(now_s) and self._tried(table, now_s):
                table.form(self._found(), now_s)
            self._tell(table)

    def finished(self) -> bool:
        """Whether nobody waits for a word of this launcher any more; who has asked for a stop hears of its end."""
        with self._lock:
            if self._table is None or self._leadership.leads() is None:
                return True
            asked = self._table.asked.stopped_by
            return self._table.finished(self._clock.monotonic_s()) and asked in (None, self._stop_heard)

    def _table_of(self, lease: Lease, now_s: float) -> LeaderTable:
        if self._table is None or self._table.epoch != lease.epoch:
            self._table = LeaderTable(lease.epoch, self._shape, self._patience, now_s)
            self._search = self._watch = None
            self._held_epoch = lease.epoch
            log.info("this launcher leads", extra={"fields": {"epoch": lease.epoch, "address": lease.address}})
        return self._table

    def _grow(self, table: LeaderTable, now_s: float) -> None:
        """Have a job that is to grow do so when a checkpoint has become whole since then."""
        if self._folder is None or not table.grows(now_s):
            self._watch = None
        elif self._watch is None:
            self._watch = CheckpointWatch(self._folder, now_s)
        elif (newer := self._watch.newer(now_s)) is not None:
            table.grow(newer, now_s)

    def _tried(self, table: LeaderTable, now_s: float) -> bool:
        """Whether what is to be measured before the next attempt is; who is at fault then takes no part in it."""
        if table.attempt is None:  # before the first one nodes are tested by themselves
            return True
        found = self._trials.advance(table.attempt.id, table.epoch, table.free(now_s))
        if found is not None and found.said:
            log.info("the leader says", extra={"fields": {"what": f"measured before the restart: {found.said}"}})
        for node in () if found is None else found.confirmed:
            enough = len(table.usable(now_s) - {node}) >= self._shape.least_nodes
            if enough := enough and len(table.asked.aside) < MOST_ASIDE:
                table.asked.put(node, aside=True)
            what = f"{node} is set aside" if enough else f"{node} takes part all the same: too few would be left"
            log.info("the leader says", extra={"fields": {"what": what}})
        return found is not None

    def _looked(self, now_s: float) -> bool:
        """Whether the folder has been looked through, or does not answer; looks if nobody does yet."""
        if self._folder is None:
            return True
        if self._search is None:
            self._search, self._search_s = Search(self._folder), now_s
        return self._search.done or now_s - self._search_s >= SEARCH_S

    def _found(self) -> Checkpoint | None:
        return self._search.found if self._search is not None and self._search.done else None

    @staticmethod
    def _tell(table: LeaderTable) -> None:
        for sentence in table.news():
            log.info("the leader says", extra={"fields": {"what": sentence}})


def _is_fenced(lease: Lease, report: Report) -> bool:
    """Whether the node of `report` would refuse the holder of `lease` for ever, by what it has obeyed."""
    if report.obeyed_epoch == lease.epoch:
        return report.obeyed_holder != lease.holder
    return report.obeyed_epoch > lease.epoch
