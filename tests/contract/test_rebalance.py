"""Every reader of a group that is shared out anew under a backlog, held open by a member slow to answer, loses nothing.

A rebalance that is over in an instant hides most of it: a Kafka member that waits for another one sees the loss of its
partitions in one poll and what it gets in a later one.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.archive_doubles import event_record, present
from tests.contract.bus_harness import DEADLINE_S, PARTITIONS, Engine, event, ids, poll_until, wait_until
from tests.contract.test_detectors_share import JOBS, of
from tests.contract.test_engines_share import ManyJobs
from trainwarden.actions.engine.handler import EngineHandler
from trainwarden.actions.remedies.policy import Rules
from trainwarden.clock import SystemClock
from trainwarden.detectors.service import DetectionHandler
from trainwarden.detectors.testing.streams import Job
from trainwarden.protocols import Bus
from trainwarden.records import ActionRecord, IncidentRecord
from trainwarden.self_metrics import SelfMetrics
from trainwarden.service_loop import Handler, ServiceLoop
from trainwarden.settings import ArchiveSettings, DetectionSettings, EngineSettings
from trainwarden.topics import ACTIONS, EVENTS, INCIDENTS, topic_of
from trainwarden.trainer_offline.archive.service import ArchiveHandler, GatedBus

pytestmark = [
    pytest.mark.thorough,
]

HELD_OPEN_S = 1.0
KEYS = [f"k{number}" for number in range(4 * PARTITIONS)]
NUMBERS = 250


class Stepping(Protocol):
    """A member of a group."""

    def step(self) -> None:
        """Poll once and do what follows."""

    def owned(self) -> int:
        """How many partitions it reads now."""


class Members:
    """Members of one group, each with a thread of its own."""

    def __init__(self) -> None:
        self.all: list[Stepping] = []
        self._over = threading.Event()
        self._goes: list[threading.Event] = []
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def come(self, one: Stepping) -> None:
        """One more member."""
        goes = threading.Event()
        goes.set()
        self.all.append(one)
        self._goes.append(goes)
        self._threads.append(threading.Thread(target=self._run, args=(one, goes)))
        self._threads[-1].start()

    def _run(self, one: Stepping, goes: threading.Event) -> None:
        try:
            while not self._over.is_set():
                goes.wait()
                one.step()
        except BaseException as error:
            self._errors.append(error)

    def share(self, makes: Callable[[], Stepping], places: int) -> None:
        """Three members come one by one; the second does not answer for a while when the third one comes."""
        self.come(makes())
        wait_until(lambda: self._shared(places), "the first has all")
        self.come(makes())
        wait_until(lambda: self._shared(places), "two share")
        self.come(makes())
        self._goes[1].clear()
        time.sleep(HELD_OPEN_S)
        self._goes[1].set()
        wait_until(lambda: self._shared(places), "three share")

    def _shared(self, places: int) -> bool:
        owned = [one.owned() for one in self.all]
        return all(owned) and sum(owned) == places

    def end(self) -> None:
        """Nobody takes another step."""
        self._over.set()
        for goes in self._goes:
            goes.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)
        assert not self._errors


@pytest.fixture
def members() -> Iterator[Members]:
    made = Members()
    yield made
    made.end()


class Reader:
    """A bare member that handles a few records at a time and commits each time."""

    def __init__(self, bus: Bus, seen: Counter[str]) -> None:
        self._consumer, self._seen = bus.consumer([EVENTS], "g"), seen

    def step(self) -> None:
        self._seen.update(ids(self._consumer.poll(0.1, max_records=20)))
        self._consumer.commit()
        time.sleep(0.02)  # the work

    def owned(self) -> int:
        return len(self._consumer.assignment())


class Service:
    """A member that is a service."""

    def __init__(self, bus: Bus, handler: Handler) -> None:
        self._loop = ServiceLoop(bus, handler, SystemClock(), SelfMetrics("test"))
        self._handler = handler

    def step(self) -> None:
        self._loop.step()

    def owned(self) -> int:
        return len(self._loop._assigned or ())


def test_bare_members_read_every_record(engine: Engine, members: Members) -> None:
    bus = engine.open()
    for number in range(NUMBERS):
        for key in KEYS:
            bus.publish(EVENTS, key, event(key, number, "x" * 300))
    bus.flush()
    every = {f"{key}/{number}" for key in KEYS for number in range(NUMBERS)}
    seen: Counter[str] = Counter()
    members.share(lambda: Reader(engine.open(), seen), PARTITIONS)
    assert seen.keys() < every, "the group was shared out anew while a backlog was left"
    wait_until(lambda: seen.keys() >= every, "every record")
    for key in KEYS:  # and every partition goes on
        bus.publish(EVENTS, key, event(key, NUMBERS))
    bus.flush()
    wait_until(lambda: all(f"{key}/{NUMBERS}" in seen for key in KEYS), "what comes later")


def test_a_member_that_is_given_the_same_again_sees_that_it_begins_anew(engine: Engine) -> None:
    """It stands at the commit then, also where it had gone back to read what its memory lacks."""
    if engine.kind != "kafka":
        pytest.skip("only Kafka shares out what nobody has asked for")
    bus = engine.open()
    for number in range(10):
        bus.publish(EVENTS, "k", event("k", number))
    bus.flush()
    consumer = engine.open().consumer([EVENTS], "g")
    poll_until(consumer, 10)
    consumer.commit()
    had = consumer.assignment()
    consumer.seek(dict.fromkeys(had, 0))
    consumer._consumer._coordinator.request_rejoin()  # type: ignore[attr-defined]
    shown: list[frozenset[tuple[str, int]]] = []

    def given_again() -> bool:
        consumer.poll(0.1)
        shown.append(consumer.assignment())
        return frozenset() in shown and shown[-1] == had

    wait_until(given_again, "the loss of all, and then all again", 30.0)


def test_archives_put_every_record_on_disk_once(engine: Engine, members: Members, tmp_path: Path) -> None:
    """Their rows wait in memory for an hour: all that is not on disk when the group changes has to come again."""
    bus = engine.open()
    for number in range(NUMBERS):
        for key in KEYS:
            bus.publish(EVENTS, key, event_record(number, job=key))
    bus.flush()
    handlers: list[ArchiveHandler] = []

    def service() -> Service:
        settings = ArchiveSettings(folder=str(tmp_path / "archive"), flush_s=3600.0)
        handlers.append(ArchiveHandler(settings, SystemClock(), SelfMetrics("archive")))
        return Service(GatedBus(engine.open(), handlers[-1].is_flushed), handlers[-1])

    def waiting() -> int:
        groups = [rows for handler in handlers for rows in list(handler._writer._groups.values())]
        return sum(batch.num_rows for rows in groups for batch in list(rows.batches))

    members.share(service, PARTITIONS * len(ArchiveHandler.topics))
    wait_until(lambda: waiting() >= NUMBERS * len(KEYS), "every record in somebody's memory")
    members.end()
    for handler in handlers:
        handler.finish()
        handler.close()
    rows = present(tmp_path / "archive")
    assert len(rows) == NUMBERS * len(KEYS)
    assert set(rows.values()) == {1}


def test_detection_services_remember_every_step(engine: Engine, members: Members) -> None:
    bus = engine.open()
    for _, record in Job(step_s=0.1).run(150).records:
        for job in JOBS:
            shown = of(job, record)
            bus.publish(topic_of(shown), job, shown)
    bus.flush()
    handlers: list[DetectionHandler] = []

    def service() -> Service:
        handlers.append(DetectionHandler(DetectionSettings(), SystemClock(), SelfMetrics("detector")))
        return Service(engine.open(), handlers[-1])

    def steps() -> dict[str, int]:
        watches = [item for handler in handlers for item in list(handler._jobs.items())]
        return {job: len(watch.state._steps.ring.steps) for job, watch in watches}

    members.share(service, PARTITIONS * len(DetectionHandler.topics))
    wait_until(lambda: steps() == dict.fromkeys(JOBS, 150), "every step of each job")
    wait_until(lambda: not any(handler._reading.catching for handler in handlers), "all have caught up")
    assert steps() == dict.fromkeys(JOBS, 150), "who says that all is read has read all"


def test_engines_act_on_every_incident_once(engine: Engine, members: Members) -> None:
    bus, launcher = engine.open(), ManyJobs()
    names = [f"job{number}" for number in range(12)]

    def service() -> Service:
        rules = Rules.of(EngineSettings(mode="auto", cool_down_s=3600.0))
        if len(members.all) == 2:  # from now on the group is held open
            for name in names:
                bus.publish(INCIDENTS, name, IncidentRecord(
                    id=f"crash/{name}", job=name, kind="crash", severity="sev2", state="opened", revision=0,
                    opened_at_s=time.time(), updated_at_s=time.time(), reason="rank 2 was killed",
                ))  # fmt: skip
            bus.flush()
        return Service(engine.open(), EngineHandler(rules, launcher, SystemClock(), SelfMetrics("engine")))

    def ended() -> set[str]:
        records = [message.record for message in bus.read(ACTIONS)]
        return {one.job for one in records if isinstance(one, ActionRecord) and one.outcome == "done"}

    members.share(service, PARTITIONS * len(EngineHandler.topics))
    wait_until(lambda: ended() == set(names), "all are restarted")
    # Whoever takes an incident over may ask for the same operation again; it is carried out once.
    assert sorted(operation.job for operation in launcher.operations) == sorted(names)
