"""The recording that is scaled: a minute of everything that one agent sent, beside eight ranks and eight GPUs.

``python -m tests.record_agent`` makes it: real ranks under the hook, the driver a fake one with wandering readings.
"""

from __future__ import annotations

import functools
import gzip
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden import catalogue
from trainwarden.records import HeartbeatRecord, IterationRecord, LogRecord, MetricsRecord, Record

Floats = npt.NDArray[np.float64]
Sent = tuple[float, Record]
"""When a record is sent, and the record."""

RANKS: Final = 8  # of the recorded node, one on each of its GPUs
NAME: Final = "agent.jsonl.gz"


@dataclass(frozen=True)
class Readings:
    """One metrics record of the recording.

    Attributes
    ----------
    at_s : float
        Since the start of the recording.
    values : array ``[names, devices]``
        NaN where nothing was measured.
    grows : array ``[names, devices]``
        What a counter grows by in one whole recording; 0 for what is no counter.
    wander : array ``[names, 1]``
        How far a gauge strays in the recording, as a standard deviation; 0 for what stands still and for counters.
    whole : array ``[names, 1]``
        Whether all values are whole numbers.
    low, high : arrays ``[names, 1]``
        What the catalogue says is possible.
    """

    at_s: float
    devices: tuple[str, ...]
    names: tuple[str, ...]
    ranked: bool
    models: tuple[str, ...]
    values: Floats
    grows: Floats
    wander: Floats
    whole: npt.NDArray[np.bool_]
    low: Floats
    high: Floats


@dataclass(frozen=True)
class Recording:
    """What is replayed.

    Attributes
    ----------
    seconds : float
        How long it is; it is played again and again.
    metrics : sequence of Readings
        In the order of their times.
    compute_s, wait_s : arrays ``[steps, 8]``
        Of each step and rank.
    beat_s, batch_s : float
        Seconds between two heartbeats, and between two batches of steps and of log lines.
    cpu_ratio : float
        Processor time of a rank per second.
    line : str
        A log line of rank 0.
    """

    seconds: float
    metrics: Sequence[Readings]
    compute_s: Floats
    wait_s: Floats
    beat_s: float
    batch_s: float
    cpu_ratio: float
    line: str


@functools.cache
def recording() -> Recording:
    """The recording of the package.

    Examples
    --------
    >>> found = recording()
    >>> found.compute_s.shape[1], sum(any("gpu_temperature" in name for name in one.names) for one in found.metrics) > 9
    (8, True)
    """
    lines = gzip.decompress(files("trainwarden.simulation").joinpath(NAME).read_bytes()).splitlines()
    return recording_of([_DECODER.decode(line) for line in lines])


_Any = MetricsRecord | IterationRecord | HeartbeatRecord | LogRecord
_DECODER: Final = msgspec.json.Decoder(tuple[float, _Any])


def recording_of(sent: Sequence[tuple[float, Any]]) -> Recording:
    """`sent` in the form in which it is replayed.

    Parameters
    ----------
    sent : sequence of (float, record)
        By the time when it was sent; of one node with `RANKS` ranks.
    """
    begun_s, seconds = sent[0][0], sent[-1][0] - sent[0][0]
    steps = _Steps.of(record for _, record in sent if isinstance(record, IterationRecord))
    beats = [record for _, record in sent if isinstance(record, HeartbeatRecord)]
    spent = np.array([[float(one or 0.0) for one in beat.cpu_s] for beat in (beats[0], beats[-1])])
    batches = sum(isinstance(record, IterationRecord) and record.rank == 0 for _, record in sent)
    return Recording(
        seconds=seconds,
        metrics=_readings(
            [(at_s - begun_s, record) for at_s, record in sent if isinstance(record, MetricsRecord)]
        ),
        compute_s=steps.compute_s,
        wait_s=steps.wait_s,
        beat_s=seconds / len(beats),
        batch_s=seconds / batches,
        cpu_ratio=float(np.median(spent[1] - spent[0])) / (beats[-1].time_s - beats[0].time_s),
        line=next(record.lines[0] for _, record in sent if isinstance(record, LogRecord) and record.rank == 0),
    )  # fmt: skip


@dataclass(frozen=True)
class _Steps:
    """Seconds of steps that all ranks have, ``[steps, RANKS]``."""

    compute_s: Floats
    wait_s: Floats

    @classmethod
    def of(cls, records: Iterable[IterationRecord]) -> _Steps:
        found: dict[int, dict[int, tuple[float, float]]] = {}
        for record in records:
            for step, compute_s, wait_s in zip(record.steps, record.compute_s, record.wait_s, strict=True):
                found.setdefault(step, {})[record.rank] = (compute_s or 0.0, wait_s or 0.0)
        whole = [[ranks[rank] for rank in range(RANKS)] for _, ranks in sorted(found.items()) if len(ranks) == RANKS]
        both = np.array(whole, np.float64)
        return cls(both[:, :, 0], both[:, :, 1])


def _readings(sent: Sequence[tuple[float, MetricsRecord]]) -> list[Readings]:
    """Each record, with what its series do over the whole recording."""
    series: dict[tuple[str, str], list[float]] = {}
    tables = []
    for at_s, record in sent:
        table = np.array([[np.nan if one is None else one for one in row] for row in record.values], np.float64)
        tables.append((at_s, record, table))
        for name, row in zip(record.names, table, strict=True):
            for device, value in zip(record.devices, row.tolist(), strict=True):
                series.setdefault((device, name), []).append(value)
    found = []
    for at_s, record, table in tables:
        each = [[np.array(series[device, name]) for device in record.devices] for name in record.names]
        known = [catalogue.lookup(name) for name in record.names]
        counts = np.array([[one is not None and one.kind == "counter"] for one in known])
        bounds = [(None, None) if one is None else (one.low, one.high) for one in known]
        spread = np.array([[float(np.nanstd(np.concatenate(row)))] for row in each])
        found.append(
            Readings(
                at_s, record.devices, record.names, any(one is not None for one in record.ranks), record.models, table,
                grows=np.where(counts, [[_growth(one) for one in row] for row in each], 0.0),
                wander=np.where(counts, 0.0, np.nan_to_num(spread)),
                whole=np.array([[bool((np.nan_to_num(np.concatenate(row)) % 1.0 == 0.0).all())] for row in each]),
                low=np.array([[-np.inf if low is None else low] for low, _ in bounds]),
                high=np.array([[np.inf if high is None else high] for _, high in bounds]),
            )
        )  # fmt: skip
    return found


def _growth(values: Floats) -> float:
    """What a counter grows by from one playing to the next: to its last value, and a mean step beyond it."""
    known = values[~np.isnan(values)]
    return 0.0 if known.size < 2 else float(known[-1] - known[0]) * known.size / (known.size - 1)
