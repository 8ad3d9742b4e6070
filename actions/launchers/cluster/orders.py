"""One node's side: which orders it obeys, and what follows from them for its ranks.

An order says what is wanted from now on, so one that is lost or comes twice changes nothing. Each attempt is started
here at most once, and none after a later one. What a later process of the node has to know of them is kept on disk.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from actions.launchers.cluster.ledger import Ledger
from actions.launchers.cluster.words import Attempt, AttemptId, Order, Over, Patience
from actions.launchers.leases.fence import Allegiance, EpochFence
from actions.launchers.restart_check.trial import Trial
from trainwarden.state import load_json, save_json

log = logging.getLogger("trainwarden.cluster")

ALLEGIANCE: Final = "allegiance.json"  # in the run folder: a launcher after this one obeys no lower epoch
LEDGER: Final = "ledger.json"


class Ranks(msgspec.Struct, frozen=True):
    """What runs here: how many ranks live, and the exit code of the first one that failed since the last start."""

    alive: int = 0
    code: int | None = None


class NodeOrders:
    """What a node does, by the orders it hears; pure, told the time with each call.

    Parameters
    ----------
    life : str
        This launcher's process.
    now_s : float
        The time on a clock of this machine that does not jump, in seconds; as with every call.
    ledger : Ledger, optional
        What a process of this node before this one had heard.

    Examples
    --------
    >>> node = NodeOrders("a/1", EpochFence(), Patience(), now_s=0.0)
    >>> first = Attempt(epoch=1, number=1, roster=("a/1",), master="a", port=7000)
    >>> node.hear(Order(holder="a/1", epoch=1, left_s=4.0, attempt=first, run=True), now_s=0.1)
    True
    >>> node.decide(Ranks(), now_s=0.1) == first
    True
    >>> node.decide(Ranks(alive=1), now_s=0.2) is None, node.state
    (True, 'running')
    """

    def __init__(
        self, life: str, fence: EpochFence, patience: Patience, now_s: float, *, ledger: Ledger | None = None
    ) -> None:
        self._life, self._fence, self._patience = life, fence, patience
        self._contact_s = now_s
        self._wanted: Attempt | None = None
        self._stopping = False
        self.newest: Attempt | None = None
        self.ledger = ledger
        self.trial: Trial | None = None
        self.ran: AttemptId | None = None
        self.state: Literal["idle", "running", "done", "failed", "stopped"] = "idle"
        self.code: int | None = None
        self.over: Over | None = None
        self.told_over = False  # by a leader

    @property
    def obeys(self) -> Allegiance | None:
        """The leader that is obeyed, or was last."""
        return self._fence.allegiance

    def contact(self, now_s: float) -> None:
        """Somebody has answered who leads, or with whom are so many that nobody else can: this node is not cut off."""
        self._contact_s = max(self._contact_s, now_s)

    def hear(self, order: Order, now_s: float) -> bool:
        """Take an order; whether its sender is obeyed."""
        sender = Allegiance(epoch=order.epoch, holder=order.holder)
        if not order.leads:
            if not order.alone:
                self.contact(now_s)
            self._fence.farewell(sender)
            return False
        if not self._fence.admit(sender, left_s=order.left_s, now_s=now_s):
            return False
        self.contact(now_s)
        if order.attempt is not None and (self.newest is None or order.attempt.id >= self.newest.id):
            self.newest = order.attempt
        if order.ledger is not None and (self.ledger is None or order.ledger.id >= self.ledger.id):
            self.ledger = order.ledger
        self.trial = order.trial
        taking_part = order.run and order.attempt is not None and self._life in order.attempt.roster
        self._wanted = order.attempt if taking_part else None
        if order.over is not None:
            self.over, self.told_over = order.over, True
        return True

    def wish(self, over: Over) -> None:
        """A person ends the job, here; everybody else is told by the leader."""
        self.over = self.over or over

    def decide(self, ranks: Ranks, now_s: float) -> Attempt | Literal["stop"] | None:
        """What is to be done now: an attempt to start, ranks to stop, or nothing."""
        silent_s = now_s - self._contact_s
        if silent_s >= self._patience.give_up_s:
            self.wish(Over(1, f"nobody was heard of for {self._patience.give_up_s:.0f} s"))
        isolated = silent_s >= self._patience.isolated_s  # the ranks may have been replaced
        wanted = None if isolated or self.over is not None else self._wanted
        if self.state == "running":
            self._note(ranks)
        if ranks.alive:
            if (wanted is None or wanted.id != self.ran) and not self._stopping:
                self._stopping = True
                return "stop"
            return None
        if wanted is None or (self.ran is not None and wanted.id <= self.ran):
            return None
        self.ran, self.state, self.code, self._stopping = wanted.id, "running", None, False
        return wanted

    def _note(self, ranks: Ranks) -> None:
        """See what became of the ranks that were started."""
        if ranks.code is not None and not self._stopping:
            self.state, self.code = "failed", ranks.code
        elif not ranks.alive:
            self.state = "stopped" if self._stopping else "done"


class _JobLedger(msgspec.Struct, frozen=True):
    job: str
    ledger: Ledger


class NodeMemory:
    """What a node keeps in `folder` over a kill of its launcher: whom it obeyed, and what was asked of `job`.

    A ledger is reported once it is kept. So a word that was seen done is forgotten only where nobody is heard any more
    who was told of it.
    """

    def __init__(self, folder: Path, job: str) -> None:
        self._folder, self._job = folder, job
        self.allegiance: Allegiance | None = _kept(folder / ALLEGIANCE, Allegiance)
        kept: _JobLedger | None = _kept(folder / LEDGER, _JobLedger)
        ledger = None if kept is None or kept.job != job else kept.ledger
        ends = ledger is not None and any(one.kind == "stop" for one in ledger.entries)  # and may have done so since
        self.ledger = None if ends else ledger

    def keep(self, allegiance: Allegiance | None, ledger: Ledger | None) -> bool:
        """Keep both; whether there is a ledger that was not kept before."""
        if allegiance is not None and allegiance != self.allegiance:
            self.allegiance = allegiance
            self._save(ALLEGIANCE, allegiance)
        if ledger is None or ledger == self.ledger:
            return False
        self._save(LEDGER, _JobLedger(self._job, ledger))
        self.ledger = ledger
        return True

    def _save(self, name: str, value: msgspec.Struct) -> None:
        try:
            save_json(self._folder / name, value)
        except OSError as error:  # a full disk must not hold the job up
            log.error("not kept", extra={"fields": {"what": name, "error": str(error)}})

    def forget(self) -> None:
        """The job is over: one of that name that is begun later is asked nothing of this one's."""
        with contextlib.suppress(OSError):
            (self._folder / LEDGER).unlink(missing_ok=True)

    @property
    def sentence(self) -> str:
        """What of it keeps nodes, or the whole job, from training; nothing, if it does not."""
        held = [f"{', '.join(self.ledger.aside)} set aside"] if self.ledger is not None and self.ledger.aside else []
        held += ["the job suspended"] if self.ledger is not None and self.ledger.paused else []
        return " and ".join(held)


def _kept(path: Path, kind: type[Any]) -> Any:
    """What a process before this one kept at `path`; None if nothing can be read there."""
    try:
        return msgspec.convert(load_json(path), kind | None)
    except (msgspec.ValidationError, OSError, RecursionError):
        return None
