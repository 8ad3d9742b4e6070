"""Where the detection service gets its models from while it runs, and the one thread that asks there.

The service never waits for a registry: `ModelPoller` asks in the background and puts what is new into a slot, from
which the service takes it between two windows. A registry that is away, slow or wrong costs nothing but freshness.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
from trainwarden.errors import DetectorError

log = logging.getLogger("trainwarden.detection")


@dataclass(frozen=True, slots=True)
class ModelSet:
    """Who serves, and who is scored beside it without a say; `why` there is no challenger although one is named."""

    champion: ModelBundle
    challenger: ModelBundle | None = None
    why: str = ""


class ModelSource(Protocol):
    """Something that knows which models should serve."""

    def poll(self) -> ModelSet | None:
        """The models to serve from now on if they are others than last time, else None. May take seconds.

        Raises
        ------
        DetectorError
            If there is none that can serve; the models in use stay.
        """
        ...

    def last_good(self) -> ModelSet | None:
        """What served last, from this machine's disk; None if nothing is kept."""
        ...


class ModelPoller:
    """Asks a source every `every_s` seconds in a thread of its own; `pop_new` hands over what is new.

    Parameters
    ----------
    told : callable
        Called in that thread with the error of an attempt, or None after a good one.

    Examples
    --------
    >>> class Nothing:
    ...     def poll(self): return None
    ...     def last_good(self): return None
    >>> follower = ModelPoller(Nothing(), every_s=60.0)
    >>> follower.ask(); follower.pop_new() is None
    True
    """

    def __init__(
        self, source: ModelSource, every_s: float, told: Callable[[str | None], None] = lambda error: None
    ) -> None:
        self._source = source
        self._every_s = every_s
        self._told = told
        self._slot: ModelSet | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._away: str | None = None
        self.asked_s: float | None = None

    def start(self) -> None:
        """Begin with what is kept on this machine, then ask in the background."""
        try:
            self._put(self._source.last_good())
        except DetectorError as error:
            log.warning("kept models are unusable", extra={"fields": {"error": str(error)}})
        self._thread = threading.Thread(target=self._run, name="model-follower", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Ask once, now, in the caller's thread."""
        try:
            self._put(self._source.poll())
        except DetectorError as error:
            self._note(str(error))
        else:
            self._note(None)
        self.asked_s = time.time()

    def pop_new(self) -> ModelSet | None:
        """What is new since the last call."""
        with self._lock:
            found, self._slot = self._slot, None
        return found

    def close(self) -> None:
        """Ask no more. A question that hangs is left behind with its daemon thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=2.0)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.ask()
            self._stop.wait(self._every_s)

    def _put(self, found: ModelSet | None) -> None:
        if found is not None:
            with self._lock:
                self._slot = found

    def _note(self, error: str | None) -> None:
        """One line for each change of state, not for each attempt."""
        if error != self._away:
            if error is None:
                log.info("models can be asked for again")
            else:
                log.warning("models stay as they are", extra={"fields": {"error": error}})
            self._away = error
        self._told(error)
