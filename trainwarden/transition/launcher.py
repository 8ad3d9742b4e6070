"""What the launcher is to know: whether it may start this rank again alone, and what became of a transition.

Both are files where a launcher of ours has named their place; without one, nothing is written. Neither may stop a step.
"""

# The training script pays for what is imported here.
# ruff: noqa: PTH108, PTH118
from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping


class Launcher:
    """The launcher of this rank, as far as the environment tells.

    Parameters
    ----------
    environ : mapping of str to str
        Of the rank. ``TRAINWARDEN_HOOK_DIR`` is where the torchrun ``TRAINWARDEN_ENDS_WITH`` looks for the file
        (`trainwarden.torchrun.exits`), and ``TRAINWARDEN_RUN_DIR`` has the file of events that the node's agent reads.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        folder, attempt = environ.get("TRAINWARDEN_HOOK_DIR"), environ.get("TRAINWARDEN_ATTEMPT", "0")
        self._rank = environ["RANK"]
        torchrun = environ.get("TRAINWARDEN_ENDS_WITH")
        offer = f"resilient-{torchrun}-{attempt}-{self._rank}"
        self._path = os.path.join(folder, offer) if folder and torchrun else None
        run_dir = environ.get("TRAINWARDEN_RUN_DIR")
        self._events = os.path.join(run_dir, "events.jsonl") if run_dir else None
        self._job, self._node = environ.get("TRAINWARDEN_JOB", "job"), environ.get("TRAINWARDEN_NODE", "node")

    def offer(self) -> None:
        """Should this rank die, it may be started again while the others go on."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))

    def withdraw(self) -> None:
        """Should this rank end from now on, all have to start again, or have come to their end. Safe twice."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def number(self, step: int) -> None:
        """Have the hook, where there is one, call the step by the job's own number: a newcomer begins in the middle."""
        hook = vars(sys).get("_trainwarden_hook")
        with contextlib.suppress(Exception):
            if hook is not None:
                hook.number(step)

    def report(self, member: str, epoch: int, message: str, fields: Mapping[str, object]) -> None:
        """Append what became of a transition to the node's events; the name of a `member` is never used again."""
        if self._events is None:
            return
        event = {
            "type": "event", "id": f"transition/{self._job}/{member}/{epoch}", "job": self._job,
            "node": self._node, "time_s": time.time(), "kind": "transition", "message": message, "fields": fields,
            "rank": int(self._rank),
        }  # fmt: skip
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(self._events, flags, 0o600)
            try:
                os.write(file, json.dumps(event).encode() + b"\n")
            finally:
                os.close(file)
