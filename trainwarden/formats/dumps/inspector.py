"""Format: lines of NCCL's inspector plug-in, one JSON object a collective call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np

from trainwarden.errors import DataError
from trainwarden.formats.dumps.flight_recorder import rank_of
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source
from trainwarden.recorded.job import CollectiveTable

MAX_LINES: Final = 20_000_000
_FUNCTIONS: Final = {"All2All": "AllToAll"}


class _Header(msgspec.Struct):
    id: str
    rank: int
    n_ranks: int
    nnodes: int = 0
    comm_name: str = ""


class _Metadata(msgspec.Struct):
    dump_timestamp_us: int = 0
    hostname: str = ""


class _Times(msgspec.Struct):
    coll_start_ts: int = 0


class _Call(msgspec.Struct):
    coll: str
    coll_sn: int
    coll_msg_size_bytes: int
    coll_exec_time_us: int
    coll_timing_source: str = ""
    event_trace_ts: _Times | None = None


class _Line(msgspec.Struct):
    header: _Header
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    coll_perf: _Call | None = None


class Inspector:
    """Calls by communicator and rank; the place in the largest communicator is taken for the rank."""

    name = "nccl inspector"

    def sniff(self, name: str, head: str) -> float:
        """By the keys of its lines."""
        del name
        return SURE if '"coll_perf"' in head and '"coll_sn"' in head and '"header"' in head else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        decoder = msgspec.json.Decoder(_Line)
        calls: list[_Line] = []
        bad = 0
        for number, line in enumerate(source.data().split(b"\n"), 1):
            if not line.strip():
                continue
            if number > MAX_LINES:
                raise DataError(f"{source.name} has more than {MAX_LINES:,} lines")
            try:
                one = decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                bad += 1
                continue
            if one.coll_perf is not None:
                calls.append(one)
        if not calls:
            raise DataError(f"{source.name}: none of its lines is a call of the inspector")
        found = Found(rows=len(calls), collectives=[_table(calls, rank_of(source.stem))])
        if bad:
            found.notes.append(f"{bad} lines left out that are no calls or cut short")
        return found


def _table(lines: list[_Line], rank: int | None) -> CollectiveTable:
    """The calls; the steps of a recording without steps are the calls of its most used communicator and function."""
    comms: dict[str, int] = {}
    functions: dict[str, int] = {}
    sizes: dict[str, tuple[int, int, str]] = {}
    rows: list[tuple[Any, ...]] = []
    hosts: dict[int, str] = {}
    for one in lines:
        call = one.coll_perf
        assert call is not None
        comm = comms.setdefault(one.header.id, len(comms))
        function = functions.setdefault(_FUNCTIONS.get(call.coll, call.coll), len(functions))
        name = "" if one.header.comm_name == "unknown" else one.header.comm_name
        sizes[one.header.id] = (one.header.n_ranks, one.header.nnodes, name)
        whose = one.header.rank if rank is None else rank
        began = call.event_trace_ts.coll_start_ts if call.event_trace_ts is not None else 0
        device = call.coll_exec_time_us / 1e6 if call.coll_timing_source == "kernel_gpu" else float("nan")
        if one.metadata.hostname:
            hosts[whose] = one.metadata.hostname
        began_s = (began or one.metadata.dump_timestamp_us) / 1e6
        size = call.coll_msg_size_bytes
        rows.append((call.coll_sn, whose, comm, function, call.coll_sn, size, device or float("nan"), began_s))
    lanes = [np.array(lane) for lane in zip(*rows, strict=True)]
    order = np.lexsort((lanes[1], lanes[0]))
    step, ranks, comm_, function_, seq, nbytes, device_s, enqueued_s = (lane[order] for lane in lanes)
    told = [sizes[name] for name in comms]
    return CollectiveTable(
        step=step, rank=ranks, comm=comm_, function=function_, seq=seq, call_bytes=nbytes, device_s=device_s,
        enqueued_s=enqueued_s, peer=np.full(len(rows), -1), comms=tuple(comms), functions=tuple(functions),
        groups=tuple(one[2] for one in told), nodes=tuple(one[1] for one in told), sizes=tuple(one[0] for one in told),
        hosts=hosts,
    )  # fmt: skip
