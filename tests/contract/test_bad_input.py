"""Bad records of a healthy job, through every detector of the CATALOG: nothing is told, and silence has a reason.

What goes in is not the agent's (which drops what is not finite), so that nobody relies on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import msgspec
import pytest

from tests.contract.test_detectors import calm
from trainwarden import plugins
from trainwarden.detectors import CATALOG, ENTRY_POINTS
from trainwarden.detectors.job.window import Window
from trainwarden.detectors.testing.checks import small_models, windows_of
from trainwarden.detectors.testing.streams import START_S, Sent, job_records
from trainwarden.records import HeartbeatRecord, IterationRecord, MetricsRecord, Record

LATE_S: Final = START_S + 10.0
Values = Callable[[float | None, int, float], float | None]


def healthy() -> list[Sent]:
    return sorted(job_records(False), key=lambda sent: sent[0])


def changed(of: Callable[[float, Record], Record]) -> list[Sent]:
    return [(at_s, of(at_s, record)) for at_s, record in healthy()]


def metrics_as(change: Values) -> list[Sent]:
    """Each value of the second metric by what it was, its device's place, and when."""

    def of(at_s: float, record: Record) -> Record:
        if not isinstance(record, MetricsRecord):
            return record
        second = tuple(change(value, place, at_s) for place, value in enumerate(record.values[1]))
        return msgspec.structs.replace(record, values=(record.values[0], second))

    return changed(of)


def first_of(ranks: int) -> list[Sent]:
    """The same job with so many ranks, and their devices alone."""

    def of(at_s: float, record: Record) -> Record:
        del at_s
        if isinstance(record, HeartbeatRecord):
            lanes = {name: getattr(record, name) for name in record.__struct_fields__}
            few = {name: lane[:ranks] for name, lane in lanes.items() if isinstance(lane, tuple)}
            return msgspec.structs.replace(record, **few)
        if isinstance(record, MetricsRecord):
            few = {name: getattr(record, name)[:ranks] for name in ("devices", "ranks")}
            return msgspec.structs.replace(record, values=tuple(row[:ranks] for row in record.values), **few)
        return record

    return [sent for sent in changed(of) if not isinstance(sent[1], IterationRecord) or sent[1].rank < ranks]


def in_pairs() -> list[Sent]:
    """Roles of two ranks, of which one computes half as long and waits for the other."""

    def of(at_s: float, record: Record) -> Record:
        del at_s
        if not isinstance(record, IterationRecord):
            return record
        role, share = ("a", 1.0) if record.rank < 2 else ("b", 0.5)
        work = tuple(share * (value or 0.0) for value in record.compute_s)
        wait = tuple(took - part for took, part in zip(record.duration_s, work, strict=True))
        return msgspec.structs.replace(record, role=role, compute_s=work, wait_s=wait)

    return changed(of)


STREAMS: Final[dict[str, Callable[[], Sequence[Sent]]]] = {
    "duplicated": lambda: [sent for sent in healthy() for _ in range(2)],
    "a metric missing": lambda: metrics_as(lambda value, place, at_s: None),
    "a metric that appears late": lambda: metrics_as(lambda value, place, at_s: value if at_s > LATE_S else None),
    "a metric of no number": lambda: metrics_as(lambda value, place, at_s: float("nan") if place == 2 else value),
    "a metric that is infinite": lambda: metrics_as(lambda value, place, at_s: float("-inf")),
    "a metric missing on one device": lambda: metrics_as(lambda value, place, at_s: None if place == 2 else value),
    "a metric that one device loses": lambda: metrics_as(
        lambda value, place, at_s: None if place == 2 and at_s > LATE_S else value
    ),
    "a metric that one device has late": lambda: metrics_as(
        lambda value, place, at_s: value if place != 2 or at_s > LATE_S else None
    ),
    "a metric that comes and goes": lambda: metrics_as(
        lambda value, place, at_s: value if int(at_s + place) % 3 else None
    ),
    "values no float can square": lambda: metrics_as(lambda value, place, at_s: 1e300 if int(at_s) % 2 else -1e300),
    "one value no float can square": lambda: metrics_as(
        lambda value, place, at_s: 1e300 if place == 2 and at_s == LATE_S else value
    ),
    "a job of one rank": lambda: first_of(1),
    "a job of two ranks": lambda: first_of(2),
    "roles of two ranks": in_pairs,
}


@cache
def windows(stream: str, scored: bool) -> tuple[Window, ...]:
    return windows_of(STREAMS[stream](), small_models() if scored else None)


@pytest.mark.thorough
@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("name", CATALOG)
def test_nothing_is_told_of_a_healthy_job_by_bad_input_and_silence_has_a_reason(name: str, stream: str) -> None:
    plugin: Any = plugins.load(CATALOG, ENTRY_POINTS, name)
    detector = plugin(calm(plugin) or plugin.Config())
    for window in windows(stream, plugin.role.reads == "scores"):
        detector.update(window)
        vote = detector.score(window)
        assert vote.opinion != "anomalous", f"{vote.reason} {vote.suspects}"
        assert vote.opinion == "normal" or vote.reason
