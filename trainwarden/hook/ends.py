"""What ends a step, inferred from what the training thread does; strongest first:

marks of the person's own; a ``torch.optim`` step after a backward pass, or again and again without one, where backward
passes cannot be seen (replayed CUDA graphs); a hand-written update, known by "backward,
then waits, then backward" again and again; a lone backward pass in a process without collectives or optimizer; the
period of the sequence of collective calls. A weaker source is believed only while no stronger one has been seen, and
what it saw before it was believed is written out then, so that no step is lost.
"""

from __future__ import annotations

import weakref
from typing import Any

from .layout import BY_HAND, CALLS_PERIOD, LONE, MARKS, NO_SOURCE, OPTIMIZER
from .pauses import Pauses
from .period import CallPeriod, numel
from .standing import Standing
from .steps import Steps
from .thread import Mark, Tally, TrainingThread, clock, thread_id

_HAND_REPEATS = 3
_LONE_REPEATS = 8
_OPTIMIZER_PATIENCE = 1024  # more than the micro-batches of any step, where an optimizer has been made
_CALLS_PATIENCE = 1 << 16  # more than the collective calls of any step, likewise


class ByHand:
    """Steps that nothing announces: the last wait, or the last backward pass, before the next backward pass begins.

    That moment is a candidate until the next backward pass. Candidates that come back often enough are believed;
    from then on the number of waits tells which is the last, so that a step is closed at once.
    """

    __slots__ = ("candidate", "expected", "fresh", "steps", "tally", "waiting", "waits")

    def __init__(self, steps: Steps, tally: Tally) -> None:
        self.steps = steps
        self.tally = tally
        self.candidate: Mark | None = None
        self.fresh = False  # a backward pass since the last candidate was used
        self.waits = 0  # since a backward pass began
        self.expected = 0  # waits of a step, once believed
        self.waiting: list[Mark] = []  # candidates not yet believed

    def waited(self, now: int) -> None:
        """A wait ended that may be the last one of a step."""
        try:
            self.waits += 1
            if self.fresh:
                self.candidate = self.tally.mark(now)
                if self.waits == self.expected and self.steps.source == BY_HAND:
                    self._use()
        except Exception:
            self.steps.memory.failed()

    def alone(self, now: int) -> None:
        """A backward pass ended in a process that has nobody to wait for."""
        if self.candidate is None:
            self.candidate = self.tally.mark(now)
            if self.steps.source == LONE:
                self._use()

    def weigh(self, optimizers: int) -> None:
        """A backward pass begins: was the last wait the end of a step? `optimizers` that were made may yet step."""
        seen, self.waits = self.waits, 0
        if self.candidate is None:
            self.expected = max(self.expected, seen) if self.expected else 0
            return
        steps = self.steps
        if steps.source in (BY_HAND, LONE):
            self.expected = seen
            self._use()
            return
        lone = not self.tally.calls
        self.waiting.append(self.candidate)
        self.candidate = None
        patience = _OPTIMIZER_PATIENCE if optimizers else (_LONE_REPEATS if lone else _HAND_REPEATS)
        if len(self.waiting) >= patience:
            steps.source = LONE if lone else BY_HAND
            self.expected = seen
            for earlier in self.waiting:
                if earlier[0] > steps.mark[0]:
                    steps.close(earlier)
            self.waiting.clear()

    def finish(self) -> None:
        """The process ends: no backward pass will come to tell that the last step was one."""
        if self.steps.source in (BY_HAND, LONE) and self.candidate is not None:
            self.steps.close(self.candidate)

    def _use(self) -> None:
        end, self.candidate, self.fresh = self.candidate, None, False
        if end is not None:
            self.steps.close(end)


class Ends:
    """Closes a step where the strongest source that has been seen says so."""

    __slots__ = (
        "blind", "by_hand", "compiled", "heard", "leader", "optimizers", "pauses", "pending", "period", "standing",
        "steps", "tally", "thread", "unseen",
    )  # fmt: skip

    def __init__(self, thread: TrainingThread, tally: Tally, steps: Steps, pauses: Pauses, standing: Standing) -> None:
        self.thread = thread
        self.tally = tally
        self.steps = steps
        self.pauses = pauses
        self.standing = standing
        self.by_hand = ByHand(steps, tally)
        self.period = CallPeriod()
        self.optimizers = 0  # made in this process
        self.compiled = False  # one whose steps are in a graph, where nobody sees them
        self.pending = False  # one stepped inside a backward pass
        self.leader: Any = None  # weak reference to the one that ends steps, where there are several
        self.unseen: list[Mark] = []  # its steps without a backward pass, not yet believed
        self.blind = False  # they are believed: backward passes cannot be seen
        self.heard = 0  # calls, while an optimizer was expected to step

    def marked(self, number: int | None) -> None:
        """An explicit end of an iteration."""
        steps, thread = self.steps, self.thread
        if thread_id() != thread.owner and not thread.take_over():
            return
        if steps.source != MARKS:
            steps.believe(MARKS)
            self.by_hand.waiting.clear()
            thread.proven = True
        now = clock()
        if thread.paused:
            self.pauses.cut(now)
        steps.close(self.tally.mark(now), number)
        if steps.events is not None:
            self._time_on_device()
        if self.standing.asked is not None:
            self.standing.step_over()

    def optimizer_stepped(self, optimizer: Any = None, *_ignored: Any) -> None:
        """Post-hook of every torch.optim step; further optimizers of the same step do not end another one."""
        steps, thread, tally = self.steps, self.thread, self.tally
        try:
            if steps.source == MARKS:
                return
            if thread_id() != thread.owner and not thread.serves() and not thread.take_over():
                return
            if thread.in_backward:
                self.pending = True
            elif tally.backwards > steps.mark[3]:
                if steps.source != OPTIMIZER:
                    self._trust_optimizer()
                if optimizer is not None:
                    self.leader, self.blind = weakref.ref(optimizer), False
                    self.unseen.clear()
                now = clock()
                if thread.paused:
                    self.pauses.cut(now)
                steps.close((now, tally.wait_ns, tally.pause_ns, tally.backwards))
                if steps.events is not None:
                    self._time_on_device()
                # Without an optimizer this is the end of something else, perhaps by an exception.
                if self.standing.asked is not None and optimizer is not None:
                    self.standing.step_over()
            elif optimizer is not None:
                self._stepped_again(optimizer)
        except Exception:
            steps.memory.failed()

    def _trust_optimizer(self) -> None:
        self.steps.source = OPTIMIZER
        self.by_hand.waiting.clear()
        self.period.forget()

    def _stepped_again(self, optimizer: Any) -> None:
        """No backward pass before this step: a further optimizer, one whose state is made, or the pass was not seen."""
        if self.leader is None or self.leader() is None:
            self.leader = weakref.ref(optimizer)
        if self.leader() is not optimizer:
            return
        if self.thread.paused:
            self.pauses.cut(clock())
        self.unseen.append(self.tally.mark(clock()))
        if not self.blind and len(self.unseen) < _HAND_REPEATS:
            return
        if not self.blind:
            self.blind = True
            self._trust_optimizer()
        for earlier in self.unseen:
            self.steps.close(earlier)
        self.unseen.clear()
        if self.steps.events is not None:
            self._time_on_device()
        if self.standing.asked is not None:
            self.standing.step_over()

    def _time_on_device(self) -> None:
        """A step ends now, and not only in hindsight."""
        began = clock()
        self.steps.events.step_ends(self.steps.count)
        self.tally.own_ns += clock() - began

    def backward_seen(self) -> None:
        """The first backward pass that trains: what the calls before it told was the period of layers, if anything."""
        if self.steps.source <= CALLS_PERIOD:
            self.steps.believe(NO_SOURCE)
            self.period.forget()
            self.by_hand.waiting.clear()
            self.by_hand.candidate = None

    def listen(self, op: int, args: tuple[Any, ...], began: int) -> None:
        """Feed the period finder, unless an optimizer can be expected to step."""
        steps, tally = self.steps, self.tally
        if self.optimizers:
            self.heard += 1
            if tally.backwards or self.unseen or self.heard < _CALLS_PATIENCE:
                return
        if steps.source == LONE:
            steps.believe(NO_SOURCE)
            self.by_hand.waiting.clear()
        for end in self.period.add((op, numel(args)), began, tally.mark(clock())):
            if end[0] > steps.mark[0] and (end[3] > steps.mark[3] or not tally.backwards):  # no layer is a step
                steps.source = CALLS_PERIOD
                steps.close(end)
