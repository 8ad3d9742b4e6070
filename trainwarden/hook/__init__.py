"""The part of trainwarden that lives inside a training process; standard library only, Linux.

Whoever wants it in an image takes it as one file, which imports nothing of ours: ``trainwarden hook >
trainwarden_hook.py``; then ``import trainwarden_hook; trainwarden_hook.autoload()`` after ``import torch``.

It comes in by environment alone: torch (2.5 and newer) calls the entry point `autoload` at the end of
``import torch``; ``inject/sitecustomize.py`` on PYTHONPATH does it for older ones, and notes programs that fail
before they train. The hook does nothing unless ``TRAINWARDEN_HOOK_DIR`` names a folder, and writes nothing before the
first collective, backward pass or explicit mark, so launchers and data-loader workers leave no trace. Nothing here
raises into training, blocks or makes a system call on a step's path: a step is a few stores into a memory-mapped file,
``rank-<rank>-<pid>.hook``, which outlives SIGKILL and tells the agent what the process is doing now.

A rank of several also has one thread. It sleeps in the kernel, in a read of the pipe ``.ask``, until the agent
finds the job standing still and writes a byte; then it leaves the recorder of collective calls in ``.calls``. Or until
a launcher wants all ranks to stand still after the same step: then it reads ``pause.json``, and the hook holds the
training thread there, five minutes at most (``standing``).

What ends a step is inferred, the strongest sign first (``ends``): `iteration()` marks, a ``torch.optim`` step, a
hand-written update, a lone backward pass, the period of the collective calls. Backward passes are seen at the
autograd engine, whoever calls it; its threads for devices count as the training thread during a pass.

Duration is compute plus wait plus pause. Waits: collective calls and ``Work.wait`` on the training thread,
``wait_tensor``, and for DDP, whose all-reduces never pass Python, the time from an engine callback queued
before DDP's own to the return of backward. Pauses: ``torch.save``, distributed checkpoints, the data
loader's ``__next__``, evaluation from ``model.eval()`` to ``model.train()``, ``torch.compile``. Compute is the rest.

On CUDA, and on other devices that work behind the host's back, waits on the host return at once: there events of
the device time the steps and, under DDP, the wait (``device``). Blind: waits inside compiled graphs, replayed CUDA
graphs and polling of ``is_completed`` are not seen. Where neither an optimizer of torch's is made nor a backward
pass seen yet, identical layers can pass for steps.

Where to read on: ``process`` puts the parts together; ``layout`` says what lies in the shared file, ``memory`` writes
its header, ``read`` is the agent's side; ``watches`` tell ``waits``, ``pauses`` and ``backward`` what torch does;
``ends`` infers from it where a step ends and ``steps`` writes it down, ``device`` what a device says of it;
``last_words`` is for exceptions and exits; ``plan`` and ``share`` for loops that take part in rebalancing;
``standing`` for pauses. Imports
between them are relative, as the folder may be loaded under another name. Their frames carry a name that starts with
``<frozen importlib``: torch.compile leaves those alone.

Read `trainwarden.hook.process` first.
"""

from __future__ import annotations

from typing import Any

from .last_words import exception_fact, send_datagram
from .layout import (
    ASK_PAUSE,
    FILE_BYTES,
    LATE_STEPS,
    MAGIC,
    PAUSE_RING,
    PHASES,
    POOL_STEPS,
    RING,
    ROLES,
    SOURCES,
    VERSION,
    Phase,
)
from .memory import let_through
from .period import CallPeriod
from .plan import MicroBatchPlan, micro_batches
from .process import Hook, current
from .read import Header, Pause, Step, ask_hook, files_in, headers_in, read_header, read_pauses, read_steps
from .share import MicroBatch, TrainingShare, phase
from .watches import hide
from .watches.groups import ranks_text

__all__ = [
    "ASK_PAUSE", "FILE_BYTES", "LATE_STEPS", "MAGIC", "PAUSE_RING", "PHASES", "POOL_STEPS", "RING", "ROLES", "SOURCES",
    "VERSION", "CallPeriod", "Header", "Hook", "MicroBatch", "MicroBatchPlan", "Pause", "Phase", "Step",
    "TrainingShare", "ask_hook", "autoload", "exception_fact", "files_in", "headers_in", "hide", "iteration",
    "micro_batches", "phase", "ranks_text", "read_header", "read_pauses", "read_steps", "send_datagram", "set_step",
]  # fmt: skip


def autoload() -> None:
    """Called by torch at the end of ``import torch``: put the watches in place, write nothing yet."""
    try:
        hook = current()
        if hook is not None:
            hook.install()
    except Exception:
        let_through()  # torch would turn any other into a failed import


@hide
def iteration(step: int | None = None) -> None:
    """Mark the end of an iteration; from the first mark on nothing else ends one.

    Parameters
    ----------
    step : int, optional
        The number of the iteration that ended; default one more than the one before.
    """
    try:
        hook = current()
        if hook is not None:
            hook.marked(_number(step))
    except Exception:
        let_through()


@hide
def set_step(step: int) -> None:
    """Say that the next iteration is the job's own number `step`, for a job that resumes from a checkpoint."""
    try:
        hook = current()
        number = _number(step)
        if hook is not None and number is not None:
            hook.number(number)
    except Exception:
        let_through()


@hide
def _number(step: Any) -> int | None:
    """`step` as a number that steps can have; None if it is none: the step counts all the same."""
    if step is None:
        return None
    try:
        number = int(step)
    except Exception:
        let_through()
        return None
    return number if 0 <= number < 2**62 else None
