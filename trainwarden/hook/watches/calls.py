"""Watches on what waits for other ranks: collective and point-to-point calls, and the waits for their results."""

from __future__ import annotations

import functools
from typing import Any

from ..layout import AT_CALLS, LONE, RECEIVE, SEND
from ..waits import Calls, Waits
from . import hide, loaded

_BROADCAST = 7  # one call that DDP makes; operations of process groups have the codes from 8
_OPERATIONS = (
    "allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather", "_allgather_base", "allgather_coalesced",
    "allgather_into_tensor_coalesced", "all_gather_single", "all_gather_single_coalesced", "gather", "gather_single",
    "gather_into_tensor", "scatter", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced", "alltoall", "alltoall_base",
    "all_to_all_single", "barrier", "monitored_barrier",
)  # fmt: skip


def watch_wait(waits: Waits) -> bool:
    """``Work.wait``, of a call that was started before."""
    c10d = loaded("torch._C._distributed_c10d")
    if c10d is None:
        return False
    c10d.Work.wait = hide(_watched_wait(waits, c10d.Work.wait))
    return True


def _watched_wait(waits: Waits, inner: Any) -> Any:
    """`inner`, which waits for a call that was started before."""
    thread = waits.thread

    @functools.wraps(inner)
    def wait(*args: Any, **kwargs: Any) -> Any:
        free, began = not thread.inside, 0
        try:
            began = waits.enter()
            return inner(*args, **kwargs)
        finally:
            if began:
                thread.inside = False
                try:
                    waits.leave(began)
                except BaseException:
                    waits.abandon()
                    raise
            elif free and thread.inside:
                waits.abandon()

    return wait


def watch_calls(waits: Waits, calls: Calls) -> bool:
    """The operations of every process group, whatever backend it has."""
    c10d = loaded("torch._C._distributed_c10d")
    if c10d is None:
        return False
    kinds = {"send": SEND, "recv": RECEIVE, "recv_anysource": RECEIVE}
    kinds.update({name: code for code, name in enumerate(_OPERATIONS, start=_BROADCAST + 1)})
    for name, code in kinds.items():
        inner = getattr(c10d.ProcessGroup, name, None)
        if inner is not None:
            setattr(c10d.ProcessGroup, name, watched_call(waits, calls, inner, code))
    return True


def watched_call(waits: Waits, calls: Calls, inner: Any, code: int) -> Any:
    """`inner`, a call that waits for other ranks, watched as operation `code`."""
    memory, tally, steps, thread = waits.memory, waits.tally, waits.steps, waits.thread
    between_neighbours = code <= RECEIVE

    @functools.wraps(inner)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        free, began = not thread.inside, 0
        try:
            began = waits.enter()
            if began:
                memory.words[AT_CALLS] = tally.calls = tally.calls + 1  # begun: of a rank that is stuck in it, too
            return inner(self, *args, **kwargs)
        finally:
            if began:
                thread.inside = False
                try:
                    waits.leave(began)
                except BaseException:
                    waits.abandon()
                    raise
                # Of most calls there is nothing more to learn; what they do not call they do not pay for.
                if between_neighbours or steps.source <= LONE or not memory.rank_known:
                    calls.called(code, args, began)
            elif free and thread.inside:
                waits.abandon()

    # A group made in Python passes each call on to what overrides it; pybind knows by the name of the frame that it
    # comes from there already. Under another name our function would be called for ever.
    named: Any = call
    named.__code__ = named.__code__.replace(co_name=getattr(inner, "__name__", "call"))
    return hide(named)


def watch_broadcast(waits: Waits, calls: Calls) -> bool:
    """DDP sends its buffers round at every forward by one C++ call that waits inside."""
    distributed = loaded("torch.distributed")
    if distributed is None or not hasattr(distributed, "_broadcast_coalesced"):
        return False
    inner = distributed._broadcast_coalesced
    distributed._broadcast_coalesced = watched_call(waits, calls, inner, _BROADCAST)
    return True


def watch_wait_tensor(waits: Waits) -> bool:
    """The waits of functional collectives."""
    functional = loaded("torch.distributed._functional_collectives")
    if functional is None or not hasattr(functional, "wait_tensor"):
        return False
    is_compiling = loaded("torch").compiler.is_compiling

    def watch(inner: Any) -> Any:
        watched = _watched_wait(waits, inner)

        # Not hidden from torch.compile: it must trace through this one, or a compiled collective would break its graph.
        @functools.wraps(inner)
        def wait_tensor(*args: Any, **kwargs: Any) -> Any:
            return inner(*args, **kwargs) if is_compiling() else watched(*args, **kwargs)

        return wait_tensor

    for name in ("wait_tensor", "wait_tensors"):
        if hasattr(functional, name):
            setattr(functional, name, watch(getattr(functional, name)))
    return True
