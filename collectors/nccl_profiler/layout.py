"""What lies in the file ``rank-<rank>-<pid>-<start>.nccl``: `layout.h` in Python."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from trainwarden.hook.layout import NCCL_ABI, NCCL_CONTROL_BYTES, NCCL_MAGIC

MAGIC: Final = NCCL_MAGIC
ABI: Final = NCCL_ABI
HEADER_BYTES: Final = NCCL_CONTROL_BYTES
COMMS: Final = 256
COMM: Final = struct.Struct("@11Q64s13Q")
CALLS: Final = 8192
CALL: Final = struct.Struct("@8Q")
COMMS_BEGIN: Final = HEADER_BYTES
CALLS_BEGIN: Final = COMMS_BEGIN + COMMS * COMM.size
FILE_BYTES: Final = CALLS_BEGIN + CALLS * CALL.size

HEADER: Final = struct.Struct(f"@{HEADER_BYTES // 8}Q")
AT_STEP, AT_SAMPLE_UNTIL, AT_SAMPLE_FROM, AT_CALLS, AT_KERNELS, AT_COUNTS = 64, 65, 66, 128, 136, 144

UNTRUSTED, CAPTURED, CLOSED = 1, 2, 4
VOID: Final = 1
SEND: Final = 16
FUNCTIONS: Final[dict[int, str]] = {
    1: "AllReduce", 2: "AllGather", 3: "ReduceScatter", 4: "Broadcast", 5: "Reduce", 6: "AlltoAll", 7: "Gather",
    8: "Scatter", 9: "AllGatherV", SEND: "Send", 17: "Recv", 18: "SendRecv",
}  # fmt: skip
KERNEL_MODES: Final = ("never", "sampled", "always")


class Identity(NamedTuple):
    """The header's first words."""

    magic: int
    abi: int
    pid: int
    start_ticks: int
    pid_namespace: int
    interface: int
    nccl_version: int
    born_ns: int
    kernel_mode: int
    every: int


class Counts(NamedTuple):
    """The header's words from `AT_COUNTS` on."""

    own_ns: int
    dropped: int
    stale: int
    orphans: int
    foreign: int
    voided: int
    captured: int
