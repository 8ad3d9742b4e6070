"""Watches on what makes training pause: checkpoints, the next batch of data, evaluation, compilers."""

from __future__ import annotations

import functools
from typing import Any

from ..layout import CHECKPOINT, COMPILE, DATA
from ..pauses import Evaluation, Pauses, path_of_save
from ..thread import thread_id
from . import hide, loaded


def watch_save(pauses: Pauses) -> bool:
    """``torch.save``."""
    torch = loaded("torch")
    if torch is None or not hasattr(torch, "save"):
        return False
    torch.save = torch.serialization.save = _pausing(pauses, torch.save, CHECKPOINT)
    return True


def watch_distributed_save(pauses: Pauses) -> bool:
    """``torch.distributed.checkpoint.save``."""
    package = loaded("torch.distributed.checkpoint")
    saver = loaded("torch.distributed.checkpoint.state_dict_saver")
    if package is None or saver is None or not hasattr(package, "save"):
        return False
    package.save = saver.save = _pausing(pauses, saver.save, CHECKPOINT)
    return True


def watch_data(pauses: Pauses) -> bool:
    """The ``__next__`` of every data loader."""
    module = loaded("torch.utils.data.dataloader")
    if module is None:
        return False
    kind = module._BaseDataLoaderIter
    kind.__next__ = _pausing(pauses, kind.__next__, DATA)
    return True


def watch_compile(pauses: Pauses) -> bool:
    """Compilations of ``torch.compile``, by the callbacks that it has for their begin and end."""
    module = loaded("torch._dynamo.callback")
    if module is None or not hasattr(module, "callback_handler"):
        return False
    tokens: list[tuple[int, int]] = []

    def begin(*_: Any) -> None:
        try:
            if pauses.memory.live and (token := pauses.begin(COMPILE)) is not None:
                tokens.append(token)
        except Exception:
            pauses.memory.failed()

    def end(*_: Any) -> None:
        try:
            if tokens and thread_id() == pauses.thread.owner:
                pauses.end(tokens.pop(), COMPILE)
        except Exception:
            pauses.memory.failed()

    module.callback_handler.register_start_callback(hide(begin))
    module.callback_handler.register_end_callback(hide(end))
    return True


def _pausing(pauses: Pauses, inner: Any, phase: int) -> Any:
    thread = pauses.thread

    @functools.wraps(inner)
    def paused(*args: Any, **kwargs: Any) -> Any:
        depth, before = thread.paused, thread.phase
        try:
            token = pauses.begin(phase)
            try:
                return inner(*args, **kwargs)
            finally:
                if token is not None:
                    pauses.end(token, phase)
        except BaseException:
            if thread.paused > depth:
                pauses.abandon(depth, before)
            if phase == CHECKPOINT:
                try:
                    pauses.memory.saving = path_of_save(args, kwargs)
                except Exception:
                    pauses.memory.failed()
            raise

    return hide(paused)


def watch_mode(evaluation: Evaluation) -> bool:
    """``Module.train`` and, through it, ``Module.eval``."""
    module = loaded("torch.nn.modules.module")
    if module is None:
        return False
    inner = module.Module.train
    is_compiling = loaded("torch").compiler.is_compiling
    memory, thread = evaluation.pauses.memory, evaluation.pauses.thread
    busy = [False]

    @functools.wraps(inner)
    def train(self: Any, mode: bool = True) -> Any:
        # Not hidden from torch.compile, as wait_tensor. A module trains its children by the same method: only the
        # outermost call means anything.
        if is_compiling() or busy[0] or not memory.live or thread_id() != thread.owner:
            return inner(self, mode)
        try:
            busy[0] = True
            try:
                evaluation.mode_changed(self, bool(mode))
            except Exception:
                memory.failed()
            return inner(self, mode)
        finally:
            busy[0] = False

    module.Module.train = train
    return True
