"""Watches on what makes a training step: backward passes, optimizers, gradient scalers, DDP, captured graphs."""

from __future__ import annotations

import functools
from typing import Any

from ..backward import Backward
from ..device import Device
from ..ends import Ends
from ..thread import thread_id
from . import hide, loaded
from .profiler import tell_capture


def watch_backward(passes: Backward) -> bool:
    """The autograd engine: ``run_backward`` of one of a kind of its own, put where everybody looks for it."""
    autograd = loaded("torch.autograd")
    if autograd is None:
        return False
    passes.engine = engine = autograd.Variable._execution_engine
    thread = passes.thread
    thread.graph_task = getattr(loaded("torch._C"), "_current_graph_task_id", thread.graph_task)
    inner = engine.run_backward

    @functools.wraps(inner)
    def run_backward(_engine: Any, *args: Any, **kwargs: Any) -> Any:
        began, handle = thread.in_backward, None
        try:
            roots = args[0] if args else kwargs.get("tensors")
            handle = passes.begin(roots, bool(args[6] if len(args) > 6 else kwargs.get("accumulate_grad")))
            return inner(*args, **kwargs)
        finally:
            if handle is not None:
                if handle.__class__ is not int:  # no call here: a signal handler might raise in it
                    thread.in_backward = False
                try:
                    passes.end(handle)
                except BaseException:
                    passes.abandon()
                    raise
            elif not began and thread.in_backward and thread_id() == thread.owner:
                thread.in_backward = False  # a signal handler raised in the midst of `begin`

    # A kind that torch made in C has no place for attributes of ours; there is one engine behind all instances.
    kind = type(engine)
    autograd.Variable._execution_engine = type(kind.__name__, (kind,), {"run_backward": hide(run_backward)})()
    return True


def watch_optimizer(ends: Ends) -> bool:
    """Every ``torch.optim`` step, by the hook that torch has for this, and the making of optimizers.

    torch.compile traces through our hook, as a break in its graph would fail, or leave the optimizer uncompiled. Steps
    within a graph are seen by nobody; backward passes tell them, as if they were made by hand.
    """
    module = loaded("torch.optim.optimizer")
    if module is None or not hasattr(module, "register_optimizer_step_post_hook"):
        return False
    is_compiling = loaded("torch").compiler.is_compiling

    def traced() -> bool:
        ends.compiled = True
        return True

    # Called by the compiler itself, which takes the answer for a constant (torch._dynamo.assume_constant_result).
    vars(traced)["_dynamo_marked_constant"] = True

    def stepped(*args: Any) -> None:  # not hidden, as wait_tensor
        if not (is_compiling() and traced()):
            ends.optimizer_stepped(*args)

    module.register_optimizer_step_post_hook(stepped)
    inner = module.Optimizer.__init__

    @functools.wraps(inner)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        ends.optimizers += 1
        inner(self, *args, **kwargs)

    module.Optimizer.__init__ = hide(initialise)
    return True


def watch_scaler(ends: Ends) -> bool:
    """A gradient scaler passes over the optimizer's step when gradients overflow: an iteration all the same."""
    module = loaded("torch.amp.grad_scaler")
    if module is None:
        return False
    inner = module.GradScaler.update

    @functools.wraps(inner)
    def update(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return inner(self, *args, **kwargs)
        finally:
            ends.optimizer_stepped()

    module.GradScaler.update = hide(update)
    return True


def watch_replicas(passes: Backward) -> bool:
    """DDP modules, whose backward passes end with a wait."""
    module = loaded("torch.nn.parallel.distributed")
    if module is None:
        return False
    inner = module.DistributedDataParallel.__init__

    @functools.wraps(inner)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        inner(self, *args, **kwargs)
        passes.replicas.add(self)

    module.DistributedDataParallel.__init__ = hide(initialise)
    return True


def watch_capture(device: Device) -> bool:
    """Captures of CUDA graphs, on whatever thread: whoever asked an event meanwhile would break them, or changed what
    NCCL is to stamp.

    One that begins and then fails is ended by torch 2.15 with `capture_end_pre` alone; a program may also make the
    graph anew (`reset`).
    """
    module = loaded("torch.cuda.graphs")
    if module is None or not hasattr(module, "CUDAGraph"):
        return False
    kind, captures = module.CUDAGraph, device.captures
    begin = kind.capture_begin

    @functools.wraps(begin)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        news = captures.begins(self)
        tell_capture(True)
        try:
            return begin(self, *args, **kwargs)
        except BaseException:
            if news:
                over(self)
            raise

    def over(graph: Any) -> None:
        captures.ends(graph)
        tell_capture(len(captures) > 0)

    def over_with(inner: Any) -> Any:
        @functools.wraps(inner)
        def ends(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return inner(self, *args, **kwargs)
            finally:
                over(self)

        return hide(ends)

    kind.capture_begin = hide(capture_begin)
    for name in ("capture_end", "capture_end_pre", "reset"):
        if hasattr(kind, name):
            setattr(kind, name, over_with(getattr(kind, name)))
    return True
