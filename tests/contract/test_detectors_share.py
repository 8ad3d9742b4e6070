"""Two detection services in one group, on both buses: a job's memory goes with its partition, nothing is told twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.contract.bus_harness import DEADLINE_S, Engine, wait_until
from trainwarden.clock import SystemClock
from trainwarden.detectors.service import DetectionHandler
from trainwarden.detectors.testing.streams import START_S, Job
from trainwarden.records import EventRecord, IncidentRecord, Record
from trainwarden.self_metrics import SelfMetrics
from trainwarden.service_loop import ServiceLoop
from trainwarden.settings import DetectionSettings
from trainwarden.topics import INCIDENTS, SNAPSHOTS, topic_of

JOBS = [f"job{number}" for number in range(6)]
SETTINGS = DetectionSettings(rewind_s=1.0)  # what is read again without a snapshot says nothing of the past


def of(job: str, record: Record) -> Record:
    """`record` of `job`, at this time."""
    shift_s = BEGUN_S - START_S

    def moved(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(None if one is None else one + shift_s for one in value)
        return value + shift_s

    names = [name for name in ("time_s", "end_s", "phase_since_s", "step_end_s") if getattr(record, name, None)]
    shown = msgspec.structs.replace(record, job=job, **{name: moved(getattr(record, name)) for name in names})  # type: ignore[call-arg]
    return topic_of(shown).decode(msgspec.json.encode(shown, enc_hook=int))  # NumPy's numbers


BEGUN_S = time.time() - 30.0


class Member:
    """One detection service with a thread of its own."""

    def __init__(self, storage: Engine) -> None:
        self.metrics = SelfMetrics("detector")
        self.handler = DetectionHandler(SETTINGS, SystemClock(), self.metrics)
        self._over = threading.Event()
        loop = ServiceLoop(storage.open(), self.handler, SystemClock(), self.metrics)
        self._thread = threading.Thread(target=loop.run, args=(self._over.is_set,))
        self._thread.start()

    def watched(self) -> set[str]:
        return set(self.handler._jobs)

    def steps(self) -> set[int]:
        """How many steps it remembers of each job."""
        return {len(watch.state._steps.ring.steps) for watch in list(self.handler._jobs.values())}

    def end(self) -> None:
        self._over.set()
        self._thread.join(DEADLINE_S)


@pytest.fixture
def members(engine: Engine) -> Iterator[list[Member]]:
    made: list[Member] = []
    try:
        yield made
    finally:
        for member in made:
            member.end()


@pytest.mark.thorough
def test_jobs_go_from_one_service_to_another_with_their_memory(engine: Engine, members: list[Member]) -> None:
    members.append(Member(engine))
    wait_until(lambda: members[0].handler._reading.assigned, "the first has joined")
    bus = engine.open()
    stream = Job(slow=lambda rank, step: 2.0 if rank == 1 and step >= 30 else 1.0, step_s=0.1).run(150)
    for _, record in stream.records:
        for job in JOBS:
            shown = of(job, record)
            bus.publish(topic_of(shown), job, shown)
    bus.flush()

    def newest() -> dict[str, IncidentRecord]:
        records = [message.record for message in bus.read(INCIDENTS)]
        slow = (one for one in records if isinstance(one, IncidentRecord) and one.kind == "slow_compute")
        return {one.id: one for one in slow}  # that all stands still after its last step is another matter

    def kept() -> set[str]:
        return {message.record.job for message in bus.read(SNAPSHOTS)}  # type: ignore[attr-defined]

    wait_until(lambda: {one.job for one in newest().values()} == set(JOBS), "an incident of each job")
    wait_until(lambda: kept() == set(JOBS), "a snapshot of each job")
    told = newest()
    assert len(told) == len(JOBS)
    members.append(Member(engine))
    first, second = members
    wait_until(lambda: second.watched() and first.watched() | second.watched() == set(JOBS), "both watch jobs")
    wait_until(lambda: not first.watched() & second.watched(), "no job is watched by both")
    wait_until(lambda: second.steps() == {150}, "it knows what was before it came")
    first.end()
    wait_until(lambda: second.watched() == set(JOBS), "the other goes on with all")
    for job in JOBS:  # nothing but a sign of life: whoever knew no more than that would know no slowness
        word = EventRecord(id=f"e/{job}", job=job, node="node0", time_s=time.time(), kind="phase")
        bus.publish(topic_of(word), job, word)
    bus.flush()
    wait_until(lambda: second.steps() == {150}, "it knows what was before it came")
    again = [one for one in newest().values() if one.id not in told]
    assert not again, "nothing was told twice"
    assert not [one for one in newest().values() if one.told_late_s is not None]
