"""Format: Kineto traces of PyTorch's profiler (Chrome's trace format): times of steps and of collectives."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec
import numpy as np
import pandas as pd

from trainwarden.errors import DataError
from trainwarden.formats.building import iteration_table
from trainwarden.formats.dumps.flight_recorder import rank_of
from trainwarden.formats.dumps.short_traces import POINT_TO_POINT, TRACED
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source

_STEP: Final = re.compile(r"ProfilerStep#([0-9]{1,9})$")
_CALL: Final = re.compile(r"(?i)^nccl(?:Dev)?Kernel_([A-Za-z]{2,30}?)(?:_|$)|^nccl:([a-z_]{2,40})")


_SENDS: Final = re.compile(r"(?i)^nccl(?:Dev)?Kernel_?SendRecv|^nccl:(?:send|recv)\b")


class _Event(msgspec.Struct):
    name: str = ""
    ph: str = ""
    ts: float = 0.0
    dur: float = 0.0
    cat: str = ""


class _Distributed(msgspec.Struct):
    rank: int | None = None
    world_size: int | None = None


class _Trace(msgspec.Struct, rename={"trace_events": "traceEvents", "distributed": "distributedInfo"}):
    trace_events: list[_Event] = []
    distributed: _Distributed | None = None


class Kineto:
    """``ProfilerStep#N`` is a step; what NCCL's kernels took of it is waiting and transfer."""

    name = "kineto trace"

    def sniff(self, name: str, head: str) -> float:
        """By the key of the events."""
        del name
        return SURE if head.lstrip()[:1] == "{" and ('"traceEvents"' in head or '"deviceProperties"' in head) else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        try:
            trace = msgspec.json.decode(source.data(), type=_Trace, strict=False)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise DataError(f"{source.name} is no trace in JSON: {error}") from error
        rank = trace.distributed.rank if trace.distributed is not None else rank_of(source.stem)
        frame = _steps(trace.trace_events)
        if frame is None:
            raise DataError(f"{source.name} has no ProfilerStep: call profiler.step() after each step")
        if rank is not None:
            frame["rank"] = str(rank)
        found = Found(rows=len(trace.trace_events))
        if (table := iteration_table(frame)) is not None:
            told = (TRACED,) if "compute_s" in frame else ()
            if any(_SENDS.match(one.name) for one in trace.trace_events if one.ph == "X"):
                told = (*told, POINT_TO_POINT)
            found.iterations.append(replace(table, notes=(*table.notes, *told)))
        return found


def _steps(events: list[_Event]) -> pd.DataFrame | None:
    """Steps with their durations, and the time within them that communication took on the device."""
    marks: dict[int, _Event] = {}
    calls: list[tuple[float, float]] = []
    for one in events:
        if one.ph != "X":
            continue
        if (step := _STEP.match(one.name)) is not None and (int(step[1]) not in marks or "gpu" not in one.cat):
            marks[int(step[1])] = one
        elif one.cat in ("kernel", "") and _CALL.match(one.name):
            calls.append((one.ts, one.ts + one.dur))
    if not marks:
        return None
    steps = sorted(marks)
    begins = np.array([marks[step].ts for step in steps])
    ends = begins + np.array([marks[step].dur for step in steps])
    rows: dict[str, Any] = {"step": np.array(steps, np.float64), "duration_s": (ends - begins) / 1e6,
                            "time_s": ends / 1e6}  # fmt: skip
    if calls:
        waits = [_covered(calls, begin, end) / 1e6 for begin, end in zip(begins, ends, strict=True)]
        rows |= {"wait_s": np.array(waits), "compute_s": np.maximum(rows["duration_s"] - np.array(waits), 0.0)}
    return pd.DataFrame(rows)


def _covered(calls: list[tuple[float, float]], begin: float, end: float) -> float:
    """How much of the time from `begin` to `end` lies within any of `calls`.

    Examples
    --------
    >>> _covered([(0.0, 4.0), (3.0, 6.0), (9.0, 20.0)], 2.0, 10.0)
    5.0
    """
    total, last = 0.0, begin
    for first, over in sorted(calls):
        low, high = max(first, last), min(over, end)
        if high > low:
            total, last = total + high - low, high
    return total
