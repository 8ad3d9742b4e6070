"""Denser samples for a while, because a detector has a suspicion: the request is written into the ranks' files.

The plug-in reads two words of its file at every step. A request names steps ahead, so all ranks sample the same ones,
whenever their agents hear of it. It is bounded three times: by its steps, by the time since the one before, and by its
end, after which the plug-in goes on as before whether or not anybody still lives.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

from trainwarden.collectors.nccl_profiler.source import CallsFile
from trainwarden.records import SamplingRecord

log = logging.getLogger("trainwarden.agent")

_MOST_WAITING: Final = 16


class Requests:
    """Requests that wait for the collector's turn, and what became of those before.

    Parameters
    ----------
    most_steps : int
        Of one request; longer ones are passed over.
    every_s : float
        Least time between two that are granted.

    Attributes
    ----------
    outcomes : Counter
        ``granted``, ``odd`` (no steps, or too many), ``too_soon``, ``late`` (its steps are over), ``no_rank`` (none
        whose calls are stamped at sampled steps), ``refused`` (no file of a rank may be written).
    """

    def __init__(self, most_steps: int, every_s: float) -> None:
        self.outcomes: Counter[str] = Counter()
        self._most_steps = most_steps
        self._every_s = every_s
        self._waiting: deque[SamplingRecord] = deque(maxlen=_MOST_WAITING)
        self._granted_s = float("-inf")
        self._said = ""

    def put(self, request: SamplingRecord) -> None:
        """Keep `request` for the next turn; of too many the oldest are dropped. From any thread."""
        self._waiting.append(request)

    def see_to(self, files: Iterable[CallsFile], now_s: float) -> None:
        """Grant what may be granted; `now_s` by a clock that never steps."""
        while self._waiting:
            request = self._waiting.popleft()
            outcome = self._outcome(request, list(files), now_s)
            self.outcomes[outcome] += 1
            if outcome == "granted" or outcome != self._said:  # of a flood of them one line
                fields = {"from_step": request.from_step, "until_step": request.until_step, "outcome": outcome}
                log.info("denser samples were asked for", extra={"fields": {**fields, "why": request.why[:200]}})
            self._said = outcome

    def _outcome(self, request: SamplingRecord, files: list[CallsFile], now_s: float) -> str:
        if not 0 < request.until_step - request.from_step <= self._most_steps:
            return "odd"
        if now_s - self._granted_s < self._every_s:
            return "too_soon"
        sampled = [file for file in files if file.sampled]
        if not sampled:
            return "no_rank"
        ahead = [file for file in sampled if ((file.header and file.header.step) or 0) < request.until_step]
        if not ahead:
            return "late"
        if not any([file.sample(request.from_step, request.until_step) for file in ahead]):
            return "refused"
        self._granted_s = now_s
        return "granted"
