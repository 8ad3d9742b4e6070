"""The leader's memory of one job on several nodes: who is there, which attempt runs, and when another one is due.

It is made anew with each lease and knows only what reports say, so a leader that follows another goes on with the
attempt that runs. No two machines' clocks are compared: all times are when something was heard here.
"""

from __future__ import annotations

from typing import Final

import msgspec

from actions.launchers.cluster.attempts import LOST_JOB_CODE, following, found, given_up
from actions.launchers.cluster.growing import Growing
from actions.launchers.cluster.ledger import Ledger, LedgerKeeper
from actions.launchers.cluster.obeying import next_step, order_after, sentence_of
from actions.launchers.cluster.words import Attempt, Over, Patience, Report, Shape, place_of
from trainwarden.checkpoints.newest import Checkpoint

_LATE_REPORTS: Final = 4
MISFIT_CODE: Final = 2  # wrong use
STOPPED_CODE: Final = 143  # what a shell shows for SIGTERM


class _Member(msgspec.Struct):
    """A node by its last report, and when that came."""

    report: Report
    heard_s: float


class LeaderTable:
    """Orders by reports; pure, told the time with each.

    Parameters
    ----------
    epoch : int
        Of the lease under which it leads.
    now_s : float
        The time on a clock of this machine that does not jump, in seconds; as with every call.

    Examples
    --------
    >>> shape = Shape(nodes=2, least_nodes=2)
    >>> table = LeaderTable(1, shape, Patience(), now_s=0.0)
    >>> for life in ("a/1", "b/1"):
    ...     said = Report(job="j", life=life, node=life[0], shape=shape, host=life[0], port=7000)
    ...     table.hear(said, now_s=0.1)
    >>> table.ready(now_s=0.1)
    True
    >>> table.form(None, now_s=0.1)
    >>> table.attempt.roster, table.attempt.master, table.runs
    (('a/1', 'b/1'), 'a', True)
    """

    def __init__(self, epoch: int, shape: Shape, patience: Patience, now_s: float) -> None:
        self.epoch, self.shape, self._patience = epoch, shape, patience
        self._began_s = self._gathering_s = self._over_s = self._rested_s = now_s
        self._members: dict[str, _Member] = {}
        self._seen: set[str] = set()  # names of nodes that were ever heard of
        self._join_s, self._growing = patience.join_s, Growing(shape.grow)
        self._news: list[str] = []
        self.asked = LedgerKeeper(epoch)
        self.attempt: Attempt | None = None
        self.runs = False
        self.over: Over | None = None

    @property
    def next_s(self) -> float:
        """How long a node is to wait between two reports, in seconds."""
        return self._patience.next_s(max(self.shape.nodes, len(self._members)))

    def news(self) -> list[str]:
        """What was decided since the last question, in sentences."""
        news, self._news = self._news, []
        return news

    def misfit(self, report: Report, now_s: float) -> Over | None:
        """Why the node of `report` cannot take part; None if it can. To be asked before `hear`."""
        if report.shape != self.shape:
            return Over(MISFIT_CODE, f"{report.node} was started by {report.shape}, but the leader by {self.shape}")
        if report.life in self._members or (self.attempt is not None and report.life in self.attempt.roster):
            return None
        # Two of one name are a process that was killed, and is not lost yet, and the one after it.
        if (
            report.node not in self.asked.aside
            and len(self.usable(now_s) - {report.node}) >= self.shape.nodes + self.shape.spares
        ):
            return Over(MISFIT_CODE, f"the job has its {self.shape.nodes} nodes and {self.shape.spares} spares")
        return None

    def hear(self, report: Report, now_s: float) -> None:
        """A node says what is true there."""
        if report.life not in self._members:
            self._news.append(f"{report.node} is there ({report.life})")
        self._members[report.life] = _Member(report, now_s)
        self._seen.add(report.node)
        self.asked.hear(report.ledger)
        newest = report.newest
        if newest is not None and newest.epoch < self.epoch and (self.attempt is None or newest.id > self.attempt.id):
            # Begun by a leader before this one; whether it runs is seen by its own nodes.
            self.attempt, self.runs = newest, True
        if self.over is None and report.over is not None:
            self._end(report.over, now_s)

    def advance(self, now_s: float) -> None:
        """Decide what is due now."""
        self._forget(now_s)
        # Before it has heard all nodes a leader may know of an older ledger alone; it would fork what was done since.
        due = self.over is None and self.asked.turn is not None and self.settled(now_s)
        if due and self.asked.known(self._ledgers(now_s)):
            self._obey(now_s)
        if self.over is not None:
            return
        if self.runs:
            self._watch(now_s)
            self._growing.see(len(self._placed), len(self._waiting(now_s)) if self.runs else 0, now_s)
        elif self.asked.holds:
            self._gathering_s = now_s  # nobody is waited for
        elif now_s - self._gathering_s >= self._patience.give_up_s and not self.ready(now_s):
            there = len(self.free(now_s))
            why = f"{there} of {self.shape.nodes} nodes were there within {self._patience.give_up_s:.0f} s"
            self._end(Over(LOST_JOB_CODE, why), now_s)

    def ready(self, now_s: float) -> bool:
        """Whether an attempt can be formed now: enough nodes are there, and nobody runs anything of the one before."""
        if self.over is not None or self.runs or self.asked.holds or now_s < self._rested_s:
            return False
        if self._may_run_still(now_s) or not self.asked.known(self._ledgers(now_s)):
            return False
        waited = now_s - self._gathering_s >= self._join_s
        free = self.free(now_s)
        first = [] if waited or self.attempt is not None else free[: self.shape.nodes]
        if any((one.node_rank or 0) >= self.shape.nodes for one in first):
            return False  # that is a spare's rank
        return len(free) >= (self.shape.least_nodes if waited else self.shape.nodes)

    def form(self, checkpoint: Checkpoint | None, now_s: float) -> None:
        """Begin an attempt that goes on from `checkpoint`; does nothing if it is no longer `ready`."""
        if not self.ready(now_s):
            return
        roster = self.free(now_s)[: self.shape.nodes]
        self.attempt = following(self.attempt, self.epoch, roster, checkpoint)
        self.runs = True
        self.asked.begins()
        beside = "" if checkpoint is None or not checkpoint.beside else f"; {checkpoint.beside}"
        whence = "" if checkpoint is None else f" from {checkpoint.path.name}{beside}"
        nodes = ", ".join(one.node for one in roster)
        self._news.append(f"attempt {self.attempt.number} begins on {len(roster)} nodes ({nodes}){whence}")

    def grows(self, now_s: float) -> bool:
        """Whether all are to start again, on more nodes, as soon as a checkpoint has become whole."""
        if not self.runs or not self._waiting(now_s):
            return False
        took_s = [one.start_s for one in self.living(now_s) if one.start_s is not None]
        return self._growing.due(max(took_s, default=None))

    def grow(self, checkpoint: Checkpoint, now_s: float) -> None:
        """Stop all ranks, to go on from `checkpoint` on more nodes; does nothing if that is no longer due."""
        if self.grows(now_s):
            more = ", ".join(one.node for one in self._waiting(now_s))
            self._stop(f"{checkpoint.path.name} is whole, and the job goes on from it with {more}", now_s)
            self._join_s = 0.0  # whoever is there is there

    def finished(self, now_s: float) -> bool:
        """Whether the job is over and everybody who is there has been told; the leader's process may go then."""
        if self.over is None:
            return False
        waiting = [one for one in self.living(now_s) if one.over is None or one.alive]
        return not waiting or now_s - self._over_s >= 2 * self._lost_s

    def settled(self, now_s: float) -> bool:
        """Whether this leader has heard all that a leader before it may have begun."""
        heard = self.attempt is not None and all(life in self._members for life in self.attempt.roster)
        return self.epoch == 1 or heard or now_s - self._began_s >= self._lost_s

    def expects(self, now_s: float) -> bool:
        """Whether nodes that the job was started for were never heard of, and still have time to start."""
        late = now_s - self._began_s >= self._patience.give_up_s
        return not late and len(self._seen) < self.shape.nodes + self.shape.spares

    def _obey(self, now_s: float) -> None:
        """Take what was asked for, and has its turn, as far as it goes now."""
        turn = self.asked.turn
        assert turn is not None
        said = sentence_of(turn)
        step = next_step(self.asked, self.attempt if self.runs else None, self.living(now_s))
        if step == "stop":
            self._stop(said, now_s)
        elif step == "end":
            self.asked.done()
            self._end(Over(STOPPED_CODE, said), now_s)
        elif step == "done":
            self.asked.done()

    # --- an attempt that runs ----------------------------------------------------------------------------------------

    def _watch(self, now_s: float) -> None:
        assert self.attempt is not None
        attempt, lost_s, reports = self.attempt, self._lost_s, []
        for life in attempt.roster:
            if now_s - self._heard_s(life) >= lost_s:
                self._stop(f"{life} is lost: nothing was heard of it for {lost_s:.0f} s", now_s)
                return
            if life in self._members and self._members[life].report.ran == attempt.id:
                reports.append(self._members[life].report)
        match found(attempt, reports):
            case Report() as failed:
                self._failed(failed, attempt, now_s)
            case Over() as over:
                self._end(over, now_s)
            case str() as why:
                self._stop(why, now_s)

    def _failed(self, report: Report, attempt: Attempt, now_s: float) -> None:
        if attempt.in_vain >= self.shape.restarts:
            self._end(given_up(attempt, report), now_s)
            return
        self.attempt = msgspec.structs.replace(attempt, failures=attempt.failures + 1)
        pause_s = self._patience.pause_s(self.attempt.in_vain)
        self._rested_s = now_s + pause_s
        waits = f", and the next attempt waits for {pause_s:.0f} s" if pause_s else ""
        self._stop(f"a rank on {report.node} ended with code {report.code or LOST_JOB_CODE}{waits}", now_s)

    def _stop(self, why: str, now_s: float) -> None:
        self.runs, self._gathering_s, self._join_s = False, now_s, self._patience.join_s
        self._news.append(f"all ranks are stopped: {why}")

    def _end(self, over: Over, now_s: float) -> None:
        self.over, self._over_s, self.runs = over, now_s, False
        self._news.append(f"the job is over, with code {over.code}{': ' if over.why else ''}{over.why}")

    # --- who is there ------------------------------------------------------------------------------------------------

    @property
    def _lost_s(self) -> float:
        return self._patience.lost_after_s(max(self.shape.nodes, len(self._members)))

    def _heard_s(self, life: str) -> float:
        """When `life` was heard of last, or could first have been."""
        return self._members[life].heard_s if life in self._members else self._began_s

    def living(self, now_s: float) -> list[Report]:
        """What all who are there have said last."""
        lost_s = self._lost_s
        return [one.report for one in self._members.values() if now_s - one.heard_s < lost_s]

    def _ledgers(self, now_s: float) -> list[Ledger | None]:
        return [one.ledger for one in self.living(now_s)]

    def usable(self, now_s: float) -> set[str]:
        """Names of nodes that are there and not set aside; others may have come in the place of those that are."""
        return {one.node for one in self.living(now_s)}.difference(self.asked.aside)

    def free(self, now_s: float) -> list[Report]:
        """Nodes that could take part: those of the attempt before in their order, then by rank or name, 2 before 10."""
        place = {life: number for number, life in enumerate(order_after(self.asked, self.attempt))}
        aside = self.asked.aside
        free = [one for one in self.living(now_s) if not one.alive and one.over is None and one.node not in aside]
        return sorted(free, key=lambda one: (place.get(one.life, len(place)), place_of(one)))

    @property
    def _placed(self) -> tuple[str, ...]:
        return () if self.attempt is None else self.attempt.roster

    def _waiting(self, now_s: float) -> list[Report]:
        """Nodes that a job with too few could take in now."""
        placed = self._placed
        wait = [one for one in self.free(now_s) if one.life not in placed]
        return wait[: max(0, self.shape.nodes - len(placed))]

    def _may_run_still(self, now_s: float) -> bool:
        """Whether ranks of an attempt before may run somewhere, so that another one would run beside it."""
        if any(one.alive for one in self.living(now_s)) or not self.settled(now_s) or self._may_have_missed(now_s):
            return True
        if self.attempt is None:
            return False
        silent_s = [now_s - self._heard_s(life) for life in self.attempt.roster]
        if min(silent_s) >= self._lost_s:
            return min(silent_s) < self._lost_s + self._patience.isolated_s
        # One that has stopped is enough, as no step is made without it; but whoever is not heard of now may be lost.
        return any(_LATE_REPORTS * self.next_s <= one_s < self._lost_s for one_s in silent_s)

    def _may_have_missed(self, now_s: float) -> bool:
        """Whether a leader before this one may have begun an attempt of which nobody here has told.

        Those who are silent may run one if they are enough. Whoever is cut off from this leader stops within
        `Patience.isolated_s` of the last answer of the one before, and that leader is given time, too.
        """
        if self.epoch == 1 or now_s - self._began_s >= 2 * self._lost_s + self._patience.isolated_s:
            return False
        return self.shape.enough_without(len(self.usable(now_s)))

    def _forget(self, now_s: float) -> None:
        """Let go of nodes that are long silent and take part in nothing."""
        roster, lost_s = self._placed, self._lost_s
        silent = [life for life, one in self._members.items() if now_s - one.heard_s >= lost_s]
        for life in silent:
            if life not in roster:
                self._news.append(f"{self._members[life].report.node} is gone ({life})")
                del self._members[life]
