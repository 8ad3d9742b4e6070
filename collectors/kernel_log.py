"""The kernel's ring buffer through /dev/kmsg: Xid, link and memory messages."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import msgspec

_MESSAGE_BYTES = 8_192  # one read gives one message; CONSOLE_EXT_LOG_MAX in the kernel's printk
_BATCH = 500


class KernelLogState(msgspec.Struct):
    """The last message read; `base` keeps positions growing over reboots, after which the kernel counts anew."""

    boot: str = ""
    sequence: int = -1
    base: int = 0


class KernelMessage(msgspec.Struct, frozen=True):
    """One message: position, text, seconds since boot."""

    end: int
    text: bytes
    boot_time_s: float


class KernelLog:
    """Reads new messages without waiting.

    Parameters
    ----------
    path : str
        ``/dev/kmsg`` or, in tests, a file with one message.
    boot : str
        This boot's id.
    """

    def __init__(self, path: str, boot: str) -> None:
        self._path = path
        self._fd: int | None = None
        self.state = KernelLogState()
        self._boot = boot

    @property
    def fd(self) -> int | None:
        """Readable when there is a new message; None while not open."""
        return self._fd

    def open(self) -> None:
        """Begin with the next message, or after a restart with the first one not read yet.

        Raises
        ------
        OSError
            If there is no kernel log here or it may not be read.
        """
        self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        state = self.state
        if not state.boot:
            os.lseek(self._fd, 0, os.SEEK_END)
        elif state.boot != self._boot:
            state.base += state.sequence + 1
            state.sequence = -1
        state.boot = self._boot

    def restore(self, raw: Any) -> None:
        """Go on from an earlier `state` (as plain JSON)."""
        self.state = msgspec.convert(raw, KernelLogState)

    def read(self) -> Iterator[KernelMessage]:
        """New messages, at most 500."""
        if self._fd is None:
            return
        for _ in range(_BATCH):
            try:
                raw = os.read(self._fd, _MESSAGE_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:
                continue  # the ring has overwritten what came next; the kernel goes on with the oldest it has
            if not raw:
                return
            message = self.parse(raw)
            if message is not None:
                yield message

    def parse(self, raw: bytes) -> KernelMessage | None:
        """The message ``prio,sequence,microseconds,flags;text``; None if it was read before or is none.

        Examples
        --------
        >>> KernelLog("/dev/kmsg", "b").parse(b"4,17,2500000,-;NVRM: Xid (PCI:0000:3b:00): 79, gone\\n PCI=1\\n")
        KernelMessage(end=18, text=b'NVRM: Xid (PCI:0000:3b:00): 79, gone', boot_time_s=2.5)
        """
        head, _, text = raw.partition(b";")
        fields = head.split(b",")
        if len(fields) < 3 or not (fields[1].isdigit() and fields[2].isdigit()):
            return None
        sequence = int(fields[1])
        if sequence <= self.state.sequence:
            return None
        self.state.sequence = sequence
        # Indented lines after the first are the message's key=value dictionary.
        return KernelMessage(self.state.base + sequence + 1, text.partition(b"\n")[0], int(fields[2]) / 1e6)

    def close(self) -> None:
        """Let go of the device. Safe twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def boot_id() -> str:
    """The kernel's random id of this boot; empty if there is none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def since_boot_s() -> float:
    """Seconds on the clock that the kernel stamps its messages with."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)
