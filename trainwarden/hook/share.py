"""This rank's part of every training step, for a loop that takes part in rebalancing and pauses between iterations.

All ranks change their part, and stop, at the same step: each puts the newest plan and the newest request for a pause
that it can read into a small all-reduce (minimum) on gloo, which runs beside the step and is read when the next begins.
A plan is taken up once it is the newest of all, and means the same in every data-parallel group: of a number with its
negative the minimum tells whether all are equal.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from .layout import AT_STANDING, CHECKPOINT, COMPILE, EXIT, PHASES, START
from .memory import let_through
from .plan import MicroBatchPlan, micro_batches
from .process import current
from .standing import PauseFile
from .watches import hide, loaded

_PATIENCE_H = 24  # whoever comes late is for the job's own groups to judge: this one must not end it before them
# Classes whose forward or backward pass does something with other ranks, or with a whole batch, in every micro-batch.
_UNEVEN = {
    "_BatchNorm": "BatchNorm: its running averages take in one entry for each micro-batch of a rank",
    "SyncBatchNorm": "SyncBatchNorm: every micro-batch is a collective call of all replicas",
    "FullyShardedDataParallel": "FSDP: every micro-batch is a collective call of all replicas",
    "FSDPModule": "FSDP: every micro-batch is a collective call of all replicas",
    "DeepSpeedEngine": "DeepSpeed: its engine counts the same number of micro-batches everywhere",
}


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Name a pause: ``checkpoint``, ``data``, ``evaluation`` or ``compile``; other names mean nothing."""
    token, code = None, START
    try:
        try:
            hook = current()
            if (
                hook is not None
                and name in (*PHASES[CHECKPOINT:EXIT], PHASES[COMPILE])
                and (hook.live or hook.activate())
            ):
                code = PHASES.index(name)
                token = hook.begin_pause(code)
        except Exception:
            let_through()
        yield
    finally:
        try:
            if token is not None:
                hook.end_pause(token, code)
        except Exception:
            let_through()


class MicroBatch:
    """One micro-batch of this rank.

    Attributes
    ----------
    index : int
        Its place among all micro-batches of the step, over all replicas: what data it is must follow from this and the
        step alone, not from the rank.
    last : bool
        Whether it is the last of this rank; its backward pass is the one that exchanges gradients.
    weight : float
        What a loss that is a mean over the micro-batch is multiplied by, where all micro-batches are equally large.
    """

    __slots__ = ("index", "last", "model", "replicas", "weight")

    def __init__(self, index: int, last: bool, replicas: int, total: int, model: Any) -> None:
        self.index, self.last, self.replicas, self.model = index, last, replicas, model
        self.weight = replicas / total

    def weight_of(self, part: float, whole: float) -> float:
        """The weight where micro-batches have unequal numbers of tokens: those of this one, and those of the step.

        Examples
        --------
        >>> MicroBatch(index=0, last=False, replicas=2, total=4, model=None).weight_of(300, 1000)
        0.6
        """
        return self.replicas * part / whole

    def sync(self) -> AbstractContextManager[Any]:
        """Around forward and backward pass: gradients are exchanged by the last micro-batch alone."""
        no_sync = getattr(self.model, "no_sync", None)
        return contextlib.nullcontext() if self.last or no_sync is None else no_sync()


class TrainingShare:
    """Which micro-batches of each step this rank runs, and how their losses are weighted; the loss is the even split's.

    Parameters
    ----------
    total : int
        Micro-batches of a step over all replicas; at least one for each.
    model : optional
        The `DistributedDataParallel` that exchanges the gradients. One for which unequal numbers are wrong keeps the
        even split; `refusal` says why.
    group : sequence of int, optional
        Global ranks of this rank's data-parallel group, where a replica is more than one rank; else all ranks.
    every : int
        Steps from one agreement of all ranks to the next: more where steps take milliseconds.

    Notes
    -----
    All ranks make one, after ``init_process_group``, and run the same steps. What has to hold for equal losses is in
    docs/training_loops.md.

    Examples
    --------
    >>> share = TrainingShare(3)
    >>> [(micro.index, micro.last, round(micro.weight, 3)) for micro in share.step(0)]
    [(0, False, 0.333), (1, False, 0.333), (2, True, 0.333)]
    """

    def __init__(self, total: int, model: Any = None, group: Sequence[int] | None = None, every: int = 1) -> None:
        self.total, self.model, self.every, self.begun = total, model, max(1, every), 0
        self.torch, self.distributed = loaded("torch"), _distributed()
        rank, world = 0, 1
        if self.distributed is not None:
            rank, world = self.distributed.get_rank(), self.distributed.get_world_size()
        self.plan = MicroBatchPlan(rank, world, total, group)
        if total < len(self.plan.group):
            raise ValueError(f"{total} micro-batches leave some of {len(self.plan.group)} replicas without any")
        folder = os.path.dirname(self.plan.path)
        self.pauses = PauseFile(os.path.join(folder, "pause.json") if folder else "")
        self.refusal = uneven_model(model)
        self.adopted = 0
        self.told = (-1, 0)  # the plan that is told, and the number that stands for its counts
        self.word: Any = None  # what all ranks know, under way
        self.work: Any = None
        self.control = None
        if self.distributed is not None and world > 1:
            import datetime  # not in every process that has the hook

            patience = datetime.timedelta(hours=_PATIENCE_H)
            self.control = self.distributed.new_group(backend="gloo", timeout=patience, group_desc="trainwarden")
        _stands_by_itself()
        _tell_refusal(self.refusal)

    @property
    def counts(self) -> tuple[int, ...]:
        """Micro-batches of each member of the data-parallel group, by its place."""
        return self.plan.in_force

    @hide
    def step(self, number: int | None = None) -> Iterator[MicroBatch]:
        """The micro-batches of this rank in the next step, the job's own `number` if it has one.

        Before the first one, all ranks take up the newest split that everybody has read, and stand still if that was
        asked of all.
        """
        plan, pause = self._agreed()
        if plan > self.adopted:
            self.adopted = plan
            self.plan.adopt(plan)
        if pause > self.pauses.over:
            with phase("evaluation"):
                _tell_standing(1 + pause)
                self.pauses.obey(pause)
        _tell_standing(1)
        _declare(number, self.counts[self.plan.place])
        first = sum(self.counts[: self.plan.place])
        count = self.counts[self.plan.place]
        for place in range(count):
            yield MicroBatch(first + place, place == count - 1, len(self.plan.group), self.total, self.model)

    def close(self) -> None:
        """Wait for what is under way between ranks, before the process group goes. Safe twice."""
        if self.work is not None:
            self.work.wait()
            self.work = None
        _tell_standing(0)

    def _agreed(self) -> tuple[int, int]:
        """The newest plan and pause that all ranks had read as the step before began; at first, those they have now."""
        if self.control is None:
            return self._mine()
        self.begun += 1
        if self.begun % self.every and self.begun > 1:
            return 0, 0
        if self.work is None:
            self._ask()
        self.work.wait()
        plan, pause, least, negative = (int(number) for number in self.word)
        self._ask()
        return plan if least == -negative else 0, pause

    def _ask(self) -> None:
        plan, pause = self._mine()
        if plan != self.told[0]:  # milliseconds with thousands of ranks: not in every step
            self.told = plan, zlib.crc32(f"{plan}:{self.plan.plans[plan]}".encode())
        told = self.told[1]
        self.word = self.torch.tensor([plan, pause, told, -told], dtype=self.torch.int64)
        least = self.distributed.ReduceOp.MIN
        self.work = self.distributed.all_reduce(self.word, op=least, group=self.control, async_op=True)

    def _mine(self) -> tuple[int, int]:
        return 0 if self.refusal else self.plan.latest(), self.pauses.newest()


def uneven_model(model: Any) -> str | None:
    """Why `model` must run as many micro-batches on each rank; None if nothing is known against unequal numbers."""
    try:
        for module in [model, *model.modules()] if hasattr(model, "modules") else [model]:
            for kind in type(module).__mro__:
                if kind.__name__ in _UNEVEN and not (kind.__name__ == "_BatchNorm" and not module.track_running_stats):
                    return _UNEVEN[kind.__name__]
    except Exception:
        let_through()
    return None


def _distributed() -> Any:
    distributed = loaded("torch.distributed")
    ready = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if ready else None


def _tell_refusal(refusal: str | None) -> None:
    """So that no split is planned."""
    try:
        hook = current()
        if hook is not None and refusal:
            hook.memory.uneven = refusal
    except Exception:
        let_through()


def _stands_by_itself() -> None:
    """So that the hook does not hold a loop that agrees with the other ranks when to stand still."""
    try:
        hook = current()
        if hook is not None:
            hook.standing.leave_to_loop()
    except Exception:
        let_through()


def _tell_standing(word: int) -> None:
    """So that nobody waits for a loop that takes part in no pauses, and what is measured meanwhile is alone."""
    try:
        hook = current()
        if hook is not None and hook.live:
            hook.words[AT_STANDING] = word
    except Exception:
        let_through()


def _declare(number: int | None, count: int) -> None:
    try:
        hook = current()
        if hook is not None and number is not None and number >= 0:
            hook.number(int(number))
    except Exception:
        let_through()
    micro_batches(count)
