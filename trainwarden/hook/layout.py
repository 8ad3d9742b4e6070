"""What lies in ``rank-<rank>-<pid>.hook``: 64 header words, rings of steps, of long pauses and of steps on the device.

Every word is a signed integer of 64 bits in the machine's own byte order: writer and reader share the machine. Times
are nanoseconds; those of the header are monotonic, and its word `offset_ns` makes wall time of them, while those of the
rings are wall time. A record carries its number twice, first and last, so that a reader knows a torn one. Writer and
readers take the layout from here and from nowhere else.
"""

from __future__ import annotations

import struct
from typing import Literal, NamedTuple

MAGIC = int.from_bytes(b"TWHOOK01", "little")
VERSION = 1
MAX_RANK = 1_000_000

Phase = Literal["start", "compute", "wait", "checkpoint", "data", "evaluation", "exit", "compile"]
PHASES: tuple[Phase, ...] = ("start", "compute", "wait", "checkpoint", "data", "evaluation", "exit", "compile")
START, COMPUTE, WAIT, CHECKPOINT, DATA, EVALUATION, EXIT, COMPILE = range(8)

# What ends a step, weakest first.
SOURCES = ("none", "calls", "backward", "by_hand", "optimizer", "marks")
NO_SOURCE, CALLS_PERIOD, LONE, BY_HAND, OPTIMIZER, MARKS = range(6)

# A place in a pipeline is told by the calls of a step: a role's number is 1 more than the bits of SEND and RECEIVE.
ROLES = ("", "collective", "p2p:first", "p2p:last", "p2p:middle")
SEND, RECEIVE = 1, 2

# Devices that work behind the host's back: calls return before the work is done, waits too.
ACCELERATORS = ("", "cuda", "xpu", "npu", "hpu", "mtia", "other")

# Whether steps are timed there by events, and if not, why: turned off, a device with a single queue (events between
# its kernels would end their overlap), a torch without events, events that failed, a capture of a graph that goes on
# and on, in which none may be recorded.
TIMINGS = ("", "on", "off", "single_queue", "unsupported", "failed", "open_capture")
TIMED, OFF, SINGLE_QUEUE, UNSUPPORTED, FAILED, OPEN_CAPTURE = range(1, 7)
LATE_STEPS = 2  # events are asked so many steps later, when they are over
POOL_STEPS = 16  # whose events may be under way


class Words(NamedTuple):
    """The words of the header that mean something, in their order."""

    magic: int
    version: int
    pid: int
    rank: int
    world: int
    start_ns: int  # of the process, wall time
    offset_ns: int  # wall time less monotonic time
    phase: int  # since when, with the phase in the three lowest bits: one store is never torn
    calls: int
    p2p: int
    recorded: int  # steps, those overwritten included
    step: int  # number of the step in progress
    step_end: int
    micro: int  # micro-batches of an iteration as declared; 0 if they are not
    source: int
    plan: int
    plan_step: int
    pauses: int  # recorded, as steps
    role: int
    own_ns: int  # what the hook itself has cost
    code: int
    errors: int
    attempt: int
    first: int  # 1 more than the first step that the script itself gave a number; 0 if it gives none
    start_ticks: int  # of the process, in ticks since boot, as /proc/PID/stat has it; 0: not known
    pid_namespace: int  # inode of the namespace that `pid` belongs to; 0: not known
    accelerator: int  # place in ACCELERATORS; 0: none has been seen at work
    timing: int  # place in TIMINGS
    timed: int  # newest step of which it is settled what the device says
    standing: int  # 1 if this rank can stand still, 1 more than the request's number while it does; else 0


# Where the writer finds them.
(
    AT_MAGIC, AT_VERSION, AT_PID, AT_RANK, AT_WORLD, AT_START_NS, AT_OFFSET_NS, AT_PHASE, AT_CALLS, AT_P2P, AT_RECORDED,
    AT_STEP, AT_STEP_END, AT_MICRO, AT_SOURCE, AT_PLAN, AT_PLAN_STEP, AT_PAUSES, AT_ROLE, AT_OWN_NS, AT_CODE, AT_ERRORS,
    AT_ATTEMPT, AT_FIRST, AT_START_TICKS, AT_PID_NAMESPACE, AT_ACCELERATOR, AT_TIMING,
    AT_TIMED, AT_STANDING,
) = range(len(Words._fields))  # fmt: skip
NO_CODE = -(2**62)  # the process has not ended yet

# What is asked by one byte in the pipe ``.ask``: the record of collective calls, or to look at ``pause.json``.
ASK_CALLS, ASK_PAUSE = b"?", b"p"

HEADER = struct.Struct("@64q")
HEADER_BYTES = HEADER.size
RING = 4096
STEP_WORDS = struct.Struct("@10q")  # number, step, end, duration, compute, wait, pause, micro-batches, source, number
STEP_BYTES = STEP_WORDS.size
PAUSE_RING = 256
PAUSE_WORDS = struct.Struct("@6q")  # number, phase, begin, duration, step, number
PAUSES_BEGIN = HEADER_BYTES + RING * STEP_BYTES
DEVICE_RING = 1024  # of steps on the device
DEVICE_WORDS = struct.Struct("@4q")  # number of the step, duration, wait or NO_WAIT, number
DEVICE_BEGINS = PAUSES_BEGIN + PAUSE_RING * PAUSE_WORDS.size
NO_WAIT = -1
FILE_BYTES = DEVICE_BEGINS + DEVICE_RING * DEVICE_WORDS.size

# The file of NCCL's profiler plug-in, ``rank-<rank>-<pid>-<start>.nccl``: what the hook knows of its first page.
NCCL_MAGIC = int.from_bytes(b"TWNCCL01", "little")
NCCL_ABI = 1
NCCL_CONTROL_BYTES = 4096
NCCL_AT_MAGIC, NCCL_AT_ABI, NCCL_AT_PID, NCCL_AT_START_TICKS = range(4)
NCCL_AT_STEP = 64  # 1 more than the number of the step in progress; 0: not told
