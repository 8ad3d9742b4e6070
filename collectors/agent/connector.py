"""Connecting to the bus without waiting for it: a broker that is away can take its time, the collectors cannot."""

from __future__ import annotations

import threading
from collections.abc import Callable

from trainwarden.errors import BusUnavailable
from trainwarden.protocols import Bus


class Connector:
    """Makes the bus in the background, in a thread that ends once there is a bus.

    Examples
    --------
    >>> never = threading.Event()
    >>> Connector(lambda: never.wait()).bus(wait_s=0.01)
    Traceback (most recent call last):
    trainwarden.errors.BusUnavailable: still connecting
    >>> never.set()
    """

    def __init__(self, factory: Callable[[], Bus]) -> None:
        self._factory = factory
        self._thread: threading.Thread | None = None
        self._bus: Bus | None = None
        self._error: BaseException | None = None

    def bus(self, wait_s: float) -> Bus:
        """A new bus, if it is there within `wait_s`; else the attempt goes on and the next call asks for its outcome.

        Raises
        ------
        BusUnavailable
            If it takes longer.
        Exception
            Whatever the factory has raised; the next call tries anew.
        """
        if self._thread is None:
            self._bus = self._error = None
            self._thread = threading.Thread(target=self._connect, name="bus-connector", daemon=True)
            self._thread.start()
        self._thread.join(wait_s)
        if self._thread.is_alive():
            raise BusUnavailable("still connecting")
        self._thread = None
        if self._error is not None:
            raise self._error
        assert self._bus is not None
        return self._bus

    def _connect(self) -> None:
        try:
            self._bus = self._factory()
        except Exception as error:  # noqa: BLE001 - carried over to the agent's thread, which raises it
            self._error = error
