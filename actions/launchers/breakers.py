"""When a service that did not answer is asked again: one breaker for each job of it, and one for the service.

Each silence costs a time limit, in which nobody else is asked. So a job whose questions are not answered is left alone
for a while, and others are asked meanwhile. Where jobs fall silent that were not silent before, and nobody has had an
answer since, the service itself is away: then one question at a time probes it, each time about another job.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import msgspec

from trainwarden.errors import LauncherUnavailable

SERVICE: Final = ""  # what is asked about no job
AWAY: Final = 2  # jobs that fall silent one after the other
_WANTED_PAUSES: Final = 4.0  # for so long a job that was turned away holds its turn
_KEPT_PAUSES: Final = 20.0  # and for so long, beside its pause, a job counts as silent of which nobody asks any more
_ABOUT: ContextVar[str] = ContextVar("about", default=SERVICE)


class _Silence(msgspec.Struct, frozen=True):
    until_s: float
    why: str


class Breakers:
    """Of one service; from any thread.

    Parameters
    ----------
    pause_s : float
        For which a job is left alone after a silence, in seconds. With more silent jobs it is so much longer that all
        of them together take no more than half of the time.
    """

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._lock = threading.Lock()
        self._silent: dict[str, _Silence] = {}  # by job
        self._fell_silent: set[str] = set()  # since the newest answer to anybody
        self._service = _Silence(float("-inf"), "")
        self._asked_s: dict[str, float] = {}  # by job
        self._wanted_s: dict[str, float] = {}  # by job that was turned away, as the service was away

    @contextmanager
    def about(self, job: str) -> Iterator[None]:
        """All questions within are about `job`."""
        token = _ABOUT.set(job)
        try:
            yield
        finally:
            _ABOUT.reset(token)

    def admit(self, now_s: float) -> None:
        """To be called before a question.

        Raises
        ------
        LauncherUnavailable
            If it is not to be asked now, with the reason of the silence before.
        """
        job = _ABOUT.get()
        with self._lock:
            own = self._silent.get(job)
            if own is not None and now_s < own.until_s:
                raise LauncherUnavailable(own.why)
            if len(self._fell_silent) >= AWAY and not self._probes(job, now_s):
                self._wanted_s[job] = now_s
                raise LauncherUnavailable(self._service.why)
            self._wanted_s.pop(job, None)
            self._asked_s[job] = now_s

    def answered(self) -> None:
        """The question was answered, whatever was said."""
        with self._lock:
            self._silent.pop(_ABOUT.get(), None)
            self._fell_silent.clear()
            self._wanted_s.clear()

    def silent(self, why: str, now_s: float) -> None:
        """The question was not answered."""
        job = _ABOUT.get()
        with self._lock:
            oldest_s = now_s - _KEPT_PAUSES * self._pause_s * (1 + len(self._silent))
            for kept in [name for name, asked_s in self._asked_s.items() if asked_s < oldest_s]:
                del self._asked_s[kept]
                self._silent.pop(kept, None)
            if job not in self._silent:
                self._fell_silent.add(job)
            many = len(self._silent.keys() | {job})
            self._silent[job] = _Silence(now_s + self._pause_s * (2 * many - 1), why)
            self._service = _Silence(now_s + self._pause_s, why)

    def _probes(self, job: str, now_s: float) -> bool:
        """Whether the next question to a service that is away is about `job`: the one that was asked longest ago."""
        if now_s < self._service.until_s:
            return False
        wait = {one for one, at_s in self._wanted_s.items() if now_s - at_s < _WANTED_PAUSES * self._pause_s}
        return min(wait | {job}, key=lambda one: (self._asked_s.get(one, float("-inf")), one)) == job
