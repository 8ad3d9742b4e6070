"""Files of NCCL's calls without NCCL: written word by word, as the plug-in leaves them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from trainwarden import hook
from trainwarden.collectors.nccl_profiler.layout import (
    AT_CALLS,
    AT_STEP,
    CALL,
    CALLS,
    CALLS_BEGIN,
    COMM,
    COMMS_BEGIN,
    FILE_BYTES,
    FUNCTIONS,
    MAGIC,
    Identity,
)

NUMBERS = {name: number for number, name in FUNCTIONS.items()}


class CallsFileWriter:
    """A file of calls, written in place.

    Parameters
    ----------
    path : Path
    who : hook.Header
        Of the hook's file beside it.
    """

    def __init__(self, path: Path, who: hook.Header, **said: int) -> None:
        self.path = path
        path.write_bytes(bytes(FILE_BYTES))
        identity = Identity(
            MAGIC, 1, who.pid, who.start_ticks or 0, who.pid_namespace or 0, 5, 22907, 1_000, 1, 64
        )._replace(**said)
        self.write(0, struct.pack("@10Q", *identity))

    def write(self, at: int, data: bytes) -> None:
        with self.path.open("r+b") as file:
            file.seek(at)
            file.write(data)

    def word(self, at: int, value: int) -> None:
        self.write(8 * at, struct.pack("@Q", value))

    def step(self, step: int) -> None:
        self.word(AT_STEP, step + 1)

    def comm(self, place: int = 0, **said: Any) -> None:
        """A communicator; words by their names in the C source."""
        words = {
            "generation": place + 1, "id": 0xAB00 + place, "nodes": 1, "ranks": 8, "rank": 3, "flags": 0, "enqueued": 0,
            "started": 0, "finished": 0, "stamped": 0, "moved_ns": 0, "name": b"dp",
        } | said  # fmt: skip
        again = words.pop("again", words["generation"])
        self.write(COMMS_BEGIN + place * COMM.size, COMM.pack(*words.values(), *[0] * 12, again))

    def call(self, serial: int, *, counted: bool = True, **said: int) -> None:
        """A call, and unless told otherwise the header's count of them."""
        words = {
            "place": 0, "generation": 1, "function": NUMBERS["AllReduce"], "channels": 1, "flags": 0, "seq": serial,
            "bytes": 4096, "step": 64, "enqueued_ns": 1_000_000_000, "begun": 1, "ended": 1, "peer": 0,
            "device_ns": 50_000, "number": serial,
        } | said  # fmt: skip
        what = words["place"] | words["generation"] << 16 | words["function"] << 40 | words["channels"] << 48
        device = words["begun"] | words["ended"] << 16 | words["peer"] << 32
        self.write(
            CALLS_BEGIN + serial % CALLS * CALL.size,
            CALL.pack(
                words["number"], what | words["flags"] << 56, words["seq"], words["bytes"], words["step"] + 1,
                words["enqueued_ns"], device, words["device_ns"],
            ),
        )  # fmt: skip
        if counted:
            self.word(AT_CALLS, serial)
