"""Lines of the inspector's files: one JSON object a call, as its ``inspector_json.cc`` writes them (format v4.0)."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

import msgspec

MAX_LINE_BYTES: Final = 65_536  # 64 channels' times and their order are about 14 KB
_GPU: Final = "kernel_gpu"  # the other sources are times of the host's
_MOST: Final = 2**53
_Count = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
_Word = Annotated[str, msgspec.Meta(max_length=64)]
# Ours are the words of NCCL's trace; the inspector has names of its own for some.
_FUNCTIONS: Final = {"All2All": "AllToAll"}


class Comm(NamedTuple):
    """A communicator, the same in all its ranks but for `place`, which is this rank's there."""

    id: str
    name: str
    ranks: int
    nodes: int
    place: int


class Call(NamedTuple):
    """A collective call that is over.

    `began_s` is when the host asked for it, `dumped_s` when its line was written, both by the node's wall clock;
    `device_s` how long its kernel ran, None if the device did not time it.
    """

    comm: Comm
    function: str
    seq: int
    size_bytes: int
    device_s: float | None
    began_s: float
    dumped_s: float


class _Header(msgspec.Struct):
    id: Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-fA-F]{1,16}$")]
    rank: _Count
    n_ranks: _Count
    nnodes: _Count = 0
    comm_name: Annotated[str, msgspec.Meta(max_length=256)] = ""


class _Metadata(msgspec.Struct):
    dump_timestamp_us: _Count


class _Times(msgspec.Struct):
    coll_start_ts: _Count


class _Collective(msgspec.Struct):
    coll: _Word
    coll_sn: _Count
    coll_msg_size_bytes: _Count
    coll_exec_time_us: _Count
    coll_timing_source: _Word = ""
    event_trace_ts: _Times | None = None


class _Line(msgspec.Struct):
    header: _Header
    metadata: _Metadata
    coll_perf: _Collective | None = None
    p2p_perf: msgspec.Raw | None = None


_DECODER = msgspec.json.Decoder(_Line)


class NotACall(msgspec.Struct, frozen=True):
    """A line that is whole and says nothing to join; `verbose` is False if the time of its call is missing."""

    dumped_s: float
    verbose: bool = True


def call_of(line: bytes) -> Call | NotACall | None:
    """What a line says; None if it is none of the inspector's.

    Sends and receives are no calls here: the inspector numbers all of a communicator together, which is not the
    same on both sides of a pair.

    Examples
    --------
    >>> line = (
    ...     b'{"header": {"id": "0xab", "comm_name": "dp", "rank": 1, "n_ranks": 2, "nnodes": 1}, "metadata": '
    ...     b'{"dump_timestamp_us": 7000000}, "coll_perf": {"coll": "AllReduce", "coll_sn": 9, "coll_msg_size_bytes": '
    ...     b'4096, "coll_exec_time_us": 50, "coll_timing_source": "kernel_gpu", "event_trace_ts": '
    ...     b'{"coll_start_ts": 6500000}}}'
    ... )
    >>> call = call_of(line)
    >>> call.comm.id, call.function, call.seq, call.device_s, call.began_s
    ('00000000000000ab', 'AllReduce', 9, 5e-05, 6.5)
    >>> call_of(b"INFO") is None
    True
    """
    if len(line) > MAX_LINE_BYTES:
        return None
    try:
        said = _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    dumped_s, what, header = said.metadata.dump_timestamp_us / 1e6, said.coll_perf, said.header
    if what is None:
        return NotACall(dumped_s) if said.p2p_perf is not None else None
    if what.event_trace_ts is None:
        return NotACall(dumped_s, verbose=False)
    name = "" if header.comm_name == "unknown" else header.comm_name
    timed = what.coll_timing_source == _GPU and what.coll_exec_time_us > 0
    return Call(
        comm=Comm(f"{int(header.id, 16):016x}", name, header.n_ranks, header.nnodes, header.rank),
        function=_FUNCTIONS.get(what.coll, what.coll),
        seq=what.coll_sn,
        size_bytes=what.coll_msg_size_bytes,
        device_s=what.coll_exec_time_us / 1e6 if timed else None,
        began_s=what.event_trace_ts.coll_start_ts / 1e6,
        dumped_s=dumped_s,
    )
