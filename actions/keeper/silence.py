"""Bounds on a store that may hang: nobody waits for ever, and a newer checkpoint need not wait for its slot."""

from __future__ import annotations

import fcntl
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from trainwarden.checkpoint.shard import CheckpointError
from trainwarden.checkpoint.slots import Slot
from trainwarden.clock import Clock

PEERS_S: Final = 60.0  # a keeper is up after a few seconds, on a busy node after some tens
STILL_S: Final = 60.0  # without a byte: what is synced to a slow store takes some tens
_FRESH_S: Final = 5.0  # a healthy store is looked at every second
_OLD_S: Final = 10.0  # so long the ranks wait for another look
_LOOK_S: Final = 0.5
T = TypeVar("T")


class StoreStill(CheckpointError):
    """The store hangs."""


class LetGo(CheckpointError):
    """Others need the slot that was read for the store."""


def wait_s(looked_at_s: float | None, now_s: float) -> float:
    """How long to wait for the next look at a store before one goes on by the last, which was at `looked_at_s`.

    Examples
    --------
    >>> wait_s(None, 7.0), wait_s(3.0, 7.0), wait_s(1.0, 7.0)
    (60.0, 0.0, 10.0)
    """
    if looked_at_s is None:
        return PEERS_S
    return 0.0 if now_s - looked_at_s <= _FRESH_S else _OLD_S


def is_long(still_s: float) -> bool:
    """Whether a store from which nothing came for so long counts as hanging."""
    return still_s >= STILL_S


def unless_still(work: Callable[[], T], progress: Callable[[], object] = lambda: None) -> T:
    """What `work` returns, which asks a store; its thread is left behind where that hangs.

    Raises
    ------
    StoreStill
        If `progress` did not change for `STILL_S`.
    """
    ends: queue.SimpleQueue[tuple[T | None, Exception | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            ends.put((work(), None))
        except Exception as error:  # noqa: BLE001 - raised below
            ends.put((None, error))

    threading.Thread(target=run, name="keeper-asks-store", daemon=True).start()
    before, since_s = progress(), time.monotonic()
    while True:
        try:
            value, error = ends.get(timeout=min(_LOOK_S, STILL_S))
            break
        except queue.Empty:
            now, now_s = progress(), time.monotonic()
            if now != before:
                before, since_s = now, now_s
            elif now_s - since_s >= STILL_S:
                raise StoreStill(f"the store has not answered for {STILL_S:.0f} s") from None
    if error is not None:
        raise error
    return value  # type: ignore[return-value] # what `work` has returned


class Sending:
    """A slot that is read for the store, until it is let go of."""

    def __init__(self, slot: Slot, descriptor: int, clock: Clock) -> None:
        self.slot = slot
        self._descriptor, self._clock, self._is_gone = descriptor, clock, False
        self._read_at_s = clock.monotonic_s()

    def read(self, buffer: memoryview) -> int:
        """Read on.

        Raises
        ------
        LetGo
            If it was let go of.
        """
        count = os.readv(self._descriptor, [buffer])
        self.check()
        return count

    def check(self) -> None:
        """Say that something was read; asked afterwards, so that what was read before is whole.

        Raises
        ------
        LetGo
            If it was let go of.
        """
        self._read_at_s = self._clock.monotonic_s()
        if self._is_gone:
            raise LetGo("it took no byte for so long that a newer checkpoint has got the slot")

    @property
    def is_still(self) -> bool:
        """Whether nothing was read for long."""
        return is_long(self._clock.monotonic_s() - self._read_at_s)

    def let_go(self) -> None:
        """Free the slot for others."""
        self._is_gone = True
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
