"""Detectors' requests to this job's agents, heard on the bus in a thread of its own.

It is no source of the job's records: nothing waits for it, a bus that is away holds up nobody, and what was asked for
while nobody listened is passed over. It connects by itself, as the delivery's connection belongs to another thread.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from trainwarden.errors import WardenError
from trainwarden.protocols import Bus
from trainwarden.records import SamplingRecord
from trainwarden.topics import SAMPLING

log = logging.getLogger("trainwarden.agent")

_POLL_S: Final = 1.0
_MOST_HEARD: Final = 16  # that wait for the agent's next round
_FIRST_RETRY_S: Final = 5.0
_LONGEST_RETRY_S: Final = 300.0


class Listener:
    """Hears requests about one job once it is started.

    Parameters
    ----------
    bus_factory : callable
        Makes a bus of this listener's own.
    job, node : str
        Whose agent this is; each node hears every request.

    Attributes
    ----------
    failures : int
        How often the bus was not there.
    """

    def __init__(self, bus_factory: Callable[[], Bus], job: str, node: str) -> None:
        self.failures = 0
        self._bus_factory = bus_factory
        self._job = job
        self._group = f"agent/{job}/{node}"
        self._heard: deque[SamplingRecord] = deque(maxlen=_MOST_HEARD)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to listen, in the background. Safe twice."""
        if self._thread is None:
            # A daemon: the end of the agent waits for no bus that hangs.
            self._thread = threading.Thread(target=self._run, name="listener", daemon=True)
            self._thread.start()

    def pop_new(self) -> list[SamplingRecord]:
        """What was heard since the last call; of too much the newest."""
        return [self._heard.popleft() for _ in range(len(self._heard))]

    def close(self) -> None:
        """Stop listening; the thread lets go of the bus by itself. Safe twice."""
        self._ended.set()

    def _run(self) -> None:
        retry_s = _FIRST_RETRY_S
        while not self._ended.is_set():
            try:
                self._listen()
            except WardenError as error:
                if not self.failures:
                    log.info("requests of detectors are not heard", extra={"fields": {"error": str(error)}})
                self.failures += 1
                self._ended.wait(retry_s)
                retry_s = min(2.0 * retry_s, _LONGEST_RETRY_S)

    def _listen(self) -> None:
        bus = self._bus_factory()
        try:
            consumer = bus.consumer((SAMPLING,), self._group, start="latest")
            try:
                while not self._ended.is_set():
                    for message in consumer.poll(_POLL_S):
                        if isinstance(message.record, SamplingRecord) and message.record.job == self._job:
                            self._heard.append(message.record)
            finally:
                consumer.close()
        finally:
            bus.close()
