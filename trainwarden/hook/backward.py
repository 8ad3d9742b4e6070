"""Backward passes of the training thread, and the wait for gradients at the end of DDP's.

They are seen at the engine, where ``Tensor.backward``, ``torch.autograd.grad`` and Megatron-LM's own call all arrive.
What ``torch.autograd.grad`` asks for is often a part of the forward pass (penalties, forces), and accumulates nothing:
such passes count in a process that has no others.

DDP's all-reduces never pass Python. What shows of them is the time from an engine callback queued before DDP's own,
which waits for them, to the return of the backward pass.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from .ends import Ends
from .layout import AT_PHASE, AT_WORLD, COMPUTE, OPTIMIZER, START, WAIT
from .memory import Memory, let_through
from .pauses import Evaluation
from .thread import Tally, TrainingThread, clock, thread_id


class NoHandle:
    """Stands for the handle of a prehook where none could be set."""

    __slots__ = ()

    def remove(self) -> None:
        """Nothing to remove."""


_NO_HANDLE = NoHandle()


class Backward:
    """Outermost backward passes of the training thread; the first one tells which thread that is."""

    __slots__ = ("accumulating", "ends", "engine", "evaluation", "memory", "replicas", "tail", "tally", "thread")

    def __init__(self, thread: TrainingThread, tally: Tally, ends: Ends, evaluation: Evaluation) -> None:
        self.memory: Memory = thread.memory
        self.thread = thread
        self.tally = tally
        self.ends = ends
        self.evaluation = evaluation
        self.engine: Any = None  # torch's
        self.accumulating = False  # a pass has accumulated gradients
        self.replicas: Any = weakref.WeakSet()  # DistributedDataParallel modules
        self.tail: tuple[int, int] = (0, 0)  # when DDP's wait began, and the waits up to then

    def begin(self, roots: Any, accumulates: bool = True) -> Any:
        """An outermost backward pass begins; what `end` needs, None if it is not one to watch."""
        thread, tally = self.thread, self.tally
        if not accumulates and (self.accumulating or not self.memory.live):
            return None
        if thread_id() != thread.owner and not thread.take_over():
            return self._elsewhere()
        if thread.inside or thread.in_backward:
            return None
        try:
            now = clock()
            thread.proven = True
            if accumulates and not self.accumulating:
                self._first_accumulating()
            if self.evaluation.token is not None:
                self.evaluation.disprove()
            if thread.phase == START:
                thread.phase = COMPUTE
                self.memory.words[AT_PHASE] = now << 3 | COMPUTE
            ends = self.ends
            if ends.steps.source < OPTIMIZER:
                ends.by_hand.weigh(0 if ends.compiled else ends.optimizers)
            ends.by_hand.fresh = True
            tally.backwards += 1
            self.tail = (0, 0)
            handle = self._hook_root(roots)
            thread.in_backward = True
            tally.own_ns += clock() - now
            return handle
        except Exception:
            self.memory.failed()
            return None

    def _elsewhere(self) -> Any:
        """A pass begins on a thread that is not the training thread; within another pass it is a part of that."""
        thread, own = self.thread, thread_id()
        if not self.memory.live or own in thread.elsewhere or thread.graph_task() >= 0:
            return None
        thread.elsewhere.add(own)
        return own

    def _first_accumulating(self) -> None:
        """Passes up to now were no training, and the calls told the period of something else."""
        self.accumulating = True
        if not self.ends.steps.count:
            self.tally.backwards = 0
        self.ends.backward_seen()

    def _hook_root(self, roots: Any) -> Any:
        """Have the engine call us back just before DDP's own final callback, where there is DDP."""
        if not self.replicas:
            return _NO_HANDLE
        compiled = sys.modules.get("torch._dynamo.compiled_autograd")
        if compiled is not None and getattr(compiled, "compiled_autograd_enabled", False):
            return _NO_HANDLE  # it would trace the callback into its graph
        root = roots[0] if isinstance(roots, (tuple, list)) else roots
        node = getattr(root, "grad_fn", None) or getattr(root, "node", None)
        if node is None:
            return _NO_HANDLE
        return node.register_prehook(self._on_root)

    def _on_root(self, _grads: Any) -> None:
        try:
            self.engine.queue_callback(self._on_tail)
        except Exception:
            let_through()

    def _on_tail(self) -> None:
        if self.thread.in_backward and not self.tail[0]:
            now = clock()
            self.tail = (now, self.tally.wait_ns)
            self.memory.words[AT_PHASE] = now << 3 | WAIT
            events = self.ends.steps.events
            if events is not None and self._exchanges_with_all():
                events.wait_begins()

    def _exchanges_with_all(self) -> bool:
        """Gradients are exchanged now, and with every rank: then nobody has waited for anybody before in this step."""
        try:
            world = self.memory.words[AT_WORLD]
            modules = list(self.replicas)
            groups = [getattr(module, "process_group", None) for module in modules]
            whole = all(group is not None and group.size() == world for group in groups)
            return whole and any(module.require_backward_grad_sync for module in modules)
        except Exception:
            self.memory.failed()
            return False

    def abandon(self) -> None:
        """A signal handler raised in the midst of `end`."""
        self.memory.words[AT_PHASE] = clock() << 3 | self.thread.phase

    def end(self, handle: Any) -> None:
        """The backward pass that gave `handle` returned or raised."""
        thread, tally, ends = self.thread, self.tally, self.ends
        if isinstance(handle, int):
            thread.elsewhere.discard(handle)
            return
        try:
            now = clock()
            handle.remove()
            thread.in_backward = False
            guessing = ends.steps.source < OPTIMIZER
            began, waited = self.tail
            if began:
                self.memory.words[AT_PHASE] = now << 3 | thread.phase
                if ends.steps.events is not None:
                    ends.steps.events.wait_ends()
                # FSDP's final callback waits through Work.wait, which has been counted already.
                if waited == tally.wait_ns and not thread.paused:
                    tally.wait_ns += now - began
                    # Under no_sync the engine has nothing to wait for.
                    if guessing and any(module.require_backward_grad_sync for module in self.replicas):
                        ends.by_hand.waited(now)
            if guessing and not tally.calls and not thread.paused:
                ends.by_hand.alone(now)
            if ends.pending:
                ends.pending = False
                ends.optimizer_stepped()
            tally.own_ns += clock() - now
        except Exception:
            self.memory.failed()
