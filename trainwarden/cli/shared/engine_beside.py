"""The engine beside the node of a job's first rank: there with that place, and gone with it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from trainwarden.cli.shared.stack import STOP_GRACE_S, LocalStack
from trainwarden.clock import Clock

log = logging.getLogger("trainwarden.cli")

BETWEEN_S: Final = 5.0  # from one start to the next at least
_SERVICE: Final = "engine"


class EngineBeside:
    """``trainwarden engine`` as one more service of `stack`, for as long as `leads` is true; waits for nothing.

    Two of them may run for a moment, as one that is told to end still does: they share the job's incidents as all
    engines of a bus do, and what either asks is done once by its id.

    Parameters
    ----------
    leads : callable
        Whether this machine has the job's first rank now.
    """

    def __init__(self, stack: LocalStack, leads: Callable[[], bool], clock: Clock) -> None:
        self._stack, self._leads, self._clock = stack, leads, clock
        self._begun = False
        self._next_s = float("-inf")
        self._asked_s: float | None = None

    def tend(self) -> None:
        """Start or end it, where that is due; to be called again and again."""
        now_s, runs = self._clock.monotonic_s(), self._begun and self._stack.returncode(_SERVICE) is None
        if not runs:
            if self._leads() and now_s >= self._next_s:
                self._start(now_s)
        elif self._asked_s is None and not self._leads():
            self._asked_s = now_s
            self._stack.ask_to_stop(_SERVICE)
        elif self._asked_s is not None and now_s - self._asked_s >= STOP_GRACE_S:
            self._stack.kill(_SERVICE)

    def _start(self, now_s: float) -> None:
        code = self._stack.returncode(_SERVICE) if self._begun else None
        log.info("the engine starts beside the first rank", extra={"fields": {"ended": code}})
        self._next_s, self._asked_s = now_s + BETWEEN_S, None
        with suppress(OSError):  # no process slot, a full disk: later
            self._stack.start(_SERVICE)
            self._begun = True


def as_toml(settings: dict[str, str | float | None]) -> str:
    """`settings` as an inline table of TOML, without those that are None.

    Examples
    --------
    >>> as_toml({"endpoint": "10.0.0.1:29402", "token_file": None, "timeout_s": 2.0})
    '{endpoint = "10.0.0.1:29402", timeout_s = 2.0}'
    """
    return f"{{{', '.join(f'{name} = {json.dumps(value)}' for name, value in settings.items() if value is not None)}}}"
