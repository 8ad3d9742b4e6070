"""Gradients of one step, reduced in buckets; what a bucket's members hold of it survives the loss of one of them.

A bucket is reduced in a copy. The local sums stay in ``grad``, so that they can be reduced again. Behind the gradients
a bucket has a number for each parameter: how many ranks had a gradient of it.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import torch
from torch import Tensor

BUCKET_BYTES: Final = 25 * 2**20  # as DistributedDataParallel's
_NAP_S: Final = 0.0002
_LOOK_S: Final = 0.2
_END_S: Final = 10.0


class Broken(Exception):
    """The members of the group do not all take part any more."""


class Group:
    """The process group of one epoch, and what is under way in it.

    Parameters
    ----------
    process_group
        A ProcessGroupGloo or ProcessGroupNCCL of its own, which torch's table of groups does not know.
    is_over : callable
        Whether a member is known to be gone, or to have left for the next epoch; asked while a call is waited for.
    timeout_s : float
        Longest wait for a call.
    """

    def __init__(self, process_group: Any, is_over: Callable[[], bool], timeout_s: float) -> None:
        self._process_group, self._is_over, self._timeout = process_group, is_over, timedelta(seconds=timeout_s)
        self._broken = False

    def start(self, work: Callable[[], Any]) -> Any:
        """Begin a call; the work, or None where the group is broken.

        Raises
        ------
        RuntimeError
            If the call fails though the group is whole: it would fail in the next group as well.
        """
        if self._broken:
            return None
        try:
            return work()
        except RuntimeError:
            self._broken = True
            if self._is_over():
                return None
            raise

    def finish(self, work: Any) -> None:
        """Wait for a call.

        Raises
        ------
        Broken
            If it has failed, or can end no more.
        """
        if work is None:
            raise Broken
        looked_s = time.monotonic()
        try:
            while not work.is_completed():
                if self._broken:  # a call before this one, so that waiting here ends no earlier than there
                    raise Broken
                time.sleep(_NAP_S)
                if time.monotonic() - looked_s >= _LOOK_S:
                    looked_s = time.monotonic()
                    if self._is_over():
                        raise Broken
            work.wait()
        except RuntimeError as error:
            self._broken = True
            raise Broken(str(error)) from error
        except Broken:
            self._broken = True
            raise

    def reduce(self, tensor: Tensor, *, highest: bool = False) -> Any:
        """Begin the sum, or the highest, over all members."""
        options = torch.distributed.AllreduceOptions()
        options.reduceOp = torch.distributed.ReduceOp.MAX if highest else torch.distributed.ReduceOp.SUM
        options.timeout = self._timeout
        return self.start(lambda: self._process_group.allreduce([tensor], options))

    def spread(self, tensor: Tensor, source: int) -> None:
        """From one member to all; gloo's calls between two cannot be given up."""
        options = torch.distributed.BroadcastOptions()
        options.rootRank, options.rootTensor, options.timeout = source, 0, self._timeout
        self.finish(self.start(lambda: self._process_group.broadcast([tensor], options)))

    def leave(self) -> None:
        """End all that is under way here, so that its other members notice as well.

        gloo's destructor waits for calls that a silent member keeps, up to their time-out: a thread of its own does.
        Python's end aborts the process where it finds this thread there, so it waits a while.
        """
        self._broken = True
        held, self._process_group = [self._process_group], None
        if held[0] is not None:
            with suppress(RuntimeError):
                held[0].abort()
            leaving = threading.Thread(target=held.clear, name="trainwarden-leave", daemon=True)
            leaving.start()
            atexit.register(leaving.join, _END_S)


class Buckets:
    """Gradients in buckets of some 25 MiB, each of one type and device, in the reverse order of the parameters."""

    def __init__(self, parameters: Sequence[Tensor], bucket_bytes: int = BUCKET_BYTES) -> None:
        self._parameters = [one for one in parameters if one.requires_grad]
        self._members = _split(self._parameters, bucket_bytes)
        self._bucket_of = {place: number for number, places in enumerate(self._members) for place in places}
        self.reduced: dict[int, Tensor] = {}
        self._started: dict[int, tuple[Tensor, Any]] = {}
        self._missing: list[int] = []
        self._next = 0
        self._group: Group | None = None
        self._armed = False
        self._twice = False
        self.is_open = False
        """Whether a micro-batch is out, so that gradients may arrive."""
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(lambda _, place=place: self._ready(place))
            for place, parameter in enumerate(self._parameters)
        ]

    def __len__(self) -> int:
        return len(self._members)

    def use(self, group: Group) -> None:
        """Reduce in `group` from now on; what is under way elsewhere counts no more."""
        self._group = group
        self._started.clear()
        self._armed = False

    def arm(self) -> None:
        """The next backward pass is this rank's last: a bucket is reduced once all its gradients are there."""
        self._missing = [len(places) for places in self._members]
        self._next, self._armed = 0, True

    def finish(self) -> None:
        """Reduce what is not reduced yet.

        Raises
        ------
        Broken
            If that was not possible; `reduced` holds what was.
        ValueError
            If a parameter got a gradient twice in the last micro-batch: the first was being reduced by then.
        """
        self._armed = False
        if self._twice:
            raise ValueError("a micro-batch has more than one backward pass; add its losses and call backward once")
        for bucket in range(len(self)):
            self._start(bucket)
        broken: Broken | None = None
        for bucket, (flat, work) in [*self._started.items()]:
            try:
                self._of_group.finish(work)
                self.reduced[bucket] = flat
            except Broken as error:
                broken = error
        self._started.clear()
        if broken is not None:
            raise broken

    @property
    def are_reduced(self) -> bool:
        """Whether nothing of the step is left to compute."""
        return len(self.reduced) == len(self)

    def flat(self, bucket: int) -> Tensor:
        """A copy of the local sums of a bucket, and whether there are any; what has no gradient counts as zero."""
        members = [self._parameters[place] for place in self._members[bucket]]
        parts = [(torch.zeros_like(one) if one.grad is None else one.grad).detach().reshape(-1) for one in members]
        return torch.cat([*parts, parts[0].new_tensor([one.grad is not None for one in members])])

    def write(self) -> None:
        """Put what was reduced into ``grad``; what no rank had a gradient of has none afterwards."""
        for bucket, flat in self.reduced.items():
            members, at = [self._parameters[place] for place in self._members[bucket]], 0
            for one, ranks in zip(members, flat[-len(members) :].tolist(), strict=True):
                part = flat[at : at + one.numel()].view_as(one)
                at += one.numel()
                if not ranks:
                    one.grad = None
                elif one.grad is None:
                    one.grad = part.clone()
                else:
                    one.grad.copy_(part)

    def close(self) -> None:
        """Let the parameters be; gradients mean nothing here any more."""
        for one in self._hooks:
            one.remove()

    def clear(self) -> None:
        """Forget the step."""
        self.reduced.clear()
        self._started.clear()
        self._armed = False

    def drop_gradients(self) -> None:
        """Forget the local sums too."""
        for one in self._parameters:
            one.grad = None

    @property
    def _of_group(self) -> Group:
        assert self._group is not None, "use a group first"
        return self._group

    def _ready(self, place: int) -> None:
        """Called by autograd, whose backward pass raises what is raised here."""
        if not self.is_open:
            raise RuntimeError(
                "a gradient arrived outside of micro_batches(): take its micro-batches one at a time, to the end"
            )
        if not self._armed:
            return
        self._missing[self._bucket_of[place]] -= 1
        self._twice |= self._missing[self._bucket_of[place]] < 0
        while self._next < len(self) and self._missing[self._next] <= 0:  # all members begin them in one order
            self._start(self._next)
            self._next += 1

    def _start(self, bucket: int) -> None:
        if bucket in self.reduced or bucket in self._started:
            return
        flat = self.flat(bucket)
        self._started[bucket] = flat, self._of_group.reduce(flat)


def _split(parameters: Sequence[Tensor], bucket_bytes: int) -> list[list[int]]:
    """The places of the parameters of each bucket.

    Examples
    --------
    >>> _split([torch.zeros(3), torch.zeros(2), torch.zeros(1, dtype=torch.float64)], 12)
    [[2], [1], [0]]
    """
    buckets: list[list[int]] = []
    kind, size = None, 0
    for place in reversed(range(len(parameters))):
        one = parameters[place]
        own = one.numel() * one.element_size()
        if not buckets or (one.dtype, one.device) != kind or size + own > bucket_bytes:
            buckets.append([])
            kind, size = (one.dtype, one.device), 0
        buckets[-1].append(place)
        size += own
    return buckets
