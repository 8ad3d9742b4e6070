"""Watches on what makes a training step: backward passes, optimizers, gradient scalers, DDP."""

from __future__ import annotations

import functools
from typing import Any

from ..backward import Backward
from ..ends import Ends
from . import hide, loaded


def watch_backward(passes: Backward) -> bool:
    """``torch.autograd.backward``, which ``Tensor.backward`` calls."""
    autograd = loaded("torch.autograd")
    if autograd is None:
        return False
    passes.engine = autograd.Variable._execution_engine
    inner = autograd.backward

    @functools.wraps(inner)
    def backward(*args: Any, **kwargs: Any) -> Any:
        handle = passes.begin(args[0] if args else kwargs.get("tensors"))
        if handle is None:
            return inner(*args, **kwargs)
        try:
            return inner(*args, **kwargs)
        finally:
            passes.end(handle)

    autograd.backward = hide(backward)
    return True


def watch_optimizer(ends: Ends) -> bool:
    """Every ``torch.optim`` step, by the hook that torch has for this, and the making of optimizers."""
    module = loaded("torch.optim.optimizer")
    if module is None or not hasattr(module, "register_optimizer_step_post_hook"):
        return False
    module.register_optimizer_step_post_hook(ends.optimizer_stepped)
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
