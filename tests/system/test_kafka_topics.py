"""Topics of a real broker that are deleted, made again, or emptied by retention while services run."""

from __future__ import annotations

import gc
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.structs import OffsetAndMetadata

from tests.archive_doubles import event_record, present
from tests.contract.bus_harness import event, ids, joined, wait_until
from tests.contract.test_detectors_share import of
from tests.contract.test_engines_share import ManyJobs
from tests.contract.test_rebalance import Members, Service
from tests.servers.kafka import KafkaBroker
from trainwarden.actions.engine.handler import EngineHandler
from trainwarden.actions.remedies.policy import Rules
from trainwarden.bus.kafka.engine import KafkaBus, KafkaConfig
from trainwarden.clock import SystemClock
from trainwarden.commands.builders import on_job
from trainwarden.detectors.service import DetectionHandler
from trainwarden.detectors.testing.streams import Job
from trainwarden.errors import BusUnavailable
from trainwarden.protocols import Consumer
from trainwarden.records import ActionRecord, HeartbeatRecord, IncidentRecord
from trainwarden.self_metrics import SelfMetrics
from trainwarden.settings import ArchiveSettings, DetectionSettings, EngineSettings
from trainwarden.topics import ACTIONS, COMMANDS, EVENTS, HEARTBEATS, INCIDENTS, ITERATIONS, METRICS, Topic, topic_of
from trainwarden.trainer_offline.archive.service import ArchiveHandler, GatedBus

pytestmark = [
    pytest.mark.system,
    pytest.mark.kafka,
]


class Cluster:
    """Topics of one test on a broker, and an administrator of it."""

    def __init__(self, broker: KafkaBroker) -> None:
        self.server = broker.server
        self.config = KafkaConfig(partitions=1, topic_prefix=f"t{uuid.uuid4().hex[:8]}.", session_timeout_s=2.0)
        self.topic = self.config.topic_prefix + EVENTS.name
        self.admin = KafkaAdminClient(bootstrap_servers=self.server)
        self.buses: list[KafkaBus] = []

    def open(self) -> KafkaBus:
        self.buses.append(KafkaBus([self.server], self.config))
        return self.buses[-1]

    def say(self, bus: KafkaBus, *numbers: int) -> None:
        for number in numbers:
            bus.publish(EVENTS, "k", event("k", number))
        bus.flush()

    def delete(self, *topics: Topic[Any]) -> None:
        names = [self.config.topic_prefix + topic.name for topic in topics or (EVENTS,)]
        self.admin.delete_topics(names)
        if not topics:  # else services are at work, and may be quicker
            wait_until(lambda: self.topic not in self.admin.list_topics(), "the topic is gone")

    def close(self) -> None:
        for bus in self.buses:
            bus.close()
        self.admin.close()
        gc.collect()


@pytest.fixture
def cluster(kafka_broker: KafkaBroker) -> Iterator[Cluster]:
    made = Cluster(kafka_broker)
    yield made
    made.close()


def numbers(found: list[str]) -> list[int]:
    return sorted({int(one.partition("/")[2]) for one in found})


def follow(consumer: Consumer, until: int) -> tuple[list[str], bool]:
    """Poll and commit until the record `until` comes: all that came, and whether the assignment was empty meanwhile."""
    found: list[str] = []
    lost = False

    def came() -> bool:
        nonlocal lost
        try:
            found.extend(ids(consumer.poll(0.1)))
            consumer.commit()
        except BusUnavailable:
            return False
        lost = lost or not consumer.assignment()
        return f"k/{until}" in found

    wait_until(came, f"record {until}")
    return found, lost


def test_a_deleted_topic_is_made_again_by_whoever_writes_and_whoever_reads(cluster: Cluster) -> None:
    writer, reader = cluster.open(), cluster.open()
    consumer = joined(reader.consumer([EVENTS, METRICS], "g"))
    cluster.say(writer, *range(100))
    follow(consumer, 99)
    cluster.delete()  # the reader alone has it made again
    wait_until(lambda: consumer.poll(0.1) == [] and cluster.topic in cluster.admin.list_topics(), "it is there again")
    cluster.say(writer, *range(100, 110))
    assert numbers(follow(consumer, 109)[0]) == list(range(100, 110))
    consumer.close()
    cluster.delete()  # and the writer alone, while other topics are written to
    for number in range(110, 120):
        writer.publish(EVENTS, "k", event("k", number))
    writer.flush()
    again = joined(reader.consumer([EVENTS], "g"))
    assert numbers(follow(again, 119)[0]) == list(range(110, 120))


def test_a_topic_made_again_is_read_from_its_first_record_though_it_has_more_than_was_read(cluster: Cluster) -> None:
    writer, reader = cluster.open(), cluster.open()
    consumer = joined(reader.consumer([EVENTS], "g"))
    cluster.say(writer, *range(50))
    follow(consumer, 49)
    writer.close()
    cluster.delete()  # nobody polls meanwhile
    other = cluster.open()
    cluster.say(other, *range(1000, 1200))
    early, _ = follow(consumer, 1199)  # offsets of the earlier topic would begin at its record 50
    consumer._consumer._cluster.request_update()  # as it does twice a minute
    late, lost = follow(consumer, 1199)
    assert numbers(early + late) == list(range(1000, 1200))
    assert lost, "whoever remembers must see that it begins anew"
    assert consumer.committed() == {(EVENTS.name, 0): 200}


def test_offsets_that_were_committed_of_an_earlier_topic_do_not_count(cluster: Cluster) -> None:
    """A cluster forgets a group's offsets with the topic; a member that wakes late may commit them once more."""
    bus = cluster.open()
    consumer = joined(bus.consumer([EVENTS], "g"))
    cluster.say(bus, *range(50))
    follow(consumer, 49)
    place, life = TopicPartition(cluster.topic, 0), consumer._life(TopicPartition(cluster.topic, 0))
    consumer.close()
    cluster.delete()
    other = cluster.open()
    cluster.say(other, *range(1000, 1100))
    late = KafkaConsumer(bootstrap_servers=cluster.server, group_id=cluster.config.topic_prefix + "g")
    late.assign([place])
    late.commit({place: OffsetAndMetadata(50, life, -1)})
    late.close()
    assert numbers(follow(joined(other.consumer([EVENTS], "g")), 1099)[0]) == list(range(1000, 1100))


def test_what_retention_removes_before_a_slow_consumer_is_counted_and_the_rest_is_read(cluster: Cluster) -> None:
    bus = cluster.open()
    consumer = joined(bus.consumer([EVENTS], "g"))
    cluster.say(bus, *range(20))
    follow(consumer, 19)
    place = TopicPartition(cluster.topic, 0)
    cluster.say(bus, *range(20, 30))  # on their way to the consumer
    cluster.admin.delete_records({place: 30})
    cluster.say(bus, *range(30, 100))
    cluster.admin.delete_records({place: 80})
    found = numbers(follow(consumer, 99)[0])
    assert found[-20:] == list(range(80, 100))
    assert dict(consumer.lost) == {EVENTS.name: 80 - len(found)}  # 20 were read before, 20 are left
    consumer.close()
    cluster.say(bus, *range(100, 200))
    cluster.admin.delete_records({place: 150})
    late = joined(bus.consumer([EVENTS], "g"))
    assert numbers(follow(late, 199)[0]) == list(range(150, 200))
    assert dict(late.lost) == {EVENTS.name: 50}
    fresh = joined(bus.consumer([EVENTS], "of nobody"))
    assert numbers(follow(fresh, 199)[0]) == list(range(150, 200))
    assert not fresh.lost, "who has read nothing before has lost nothing"


def test_records_of_other_topics_go_on_while_one_topic_is_gone_and_cannot_be_made(cluster: Cluster) -> None:
    bus, reader = cluster.open(), cluster.open()
    cluster.say(bus, 0)
    bus._topics.pop(cluster.topic)  # as if the cluster refused to make it
    reader._topics.pop(cluster.topic)
    cluster.delete()
    bus._producer.send(cluster.topic, "k", EVENTS.encode(event("k", 1)))
    for _ in range(2):
        with pytest.raises(BusUnavailable):
            bus.flush(timeout_s=1.0)
    done = threading.Event()
    seen: list[str] = []

    def read() -> None:
        consumer = reader.consumer([HEARTBEATS], "g")
        while not done.is_set():
            seen.extend(message.record.node for message in consumer.poll(0.1))  # type: ignore[attr-defined]

    thread = threading.Thread(target=read)
    thread.start()
    bus.publish(HEARTBEATS, "k", HeartbeatRecord(job="k", node="n1", time_s=time.time()))
    with pytest.raises(BusUnavailable):
        bus.flush(timeout_s=1.0)
    try:
        wait_until(lambda: seen == ["n1"], "the record of another topic", 30.0)
    finally:
        done.set()
        thread.join()
    bus._topics[cluster.topic] = EVENTS
    bus.flush(timeout_s=30.0)
    assert ids(list(bus.read(EVENTS))) == ["k/1"]


class Services:
    """An archive, a detector and an engine on one cluster, each with a thread of its own."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.bus, self.members, self.launcher = cluster.open(), Members(), ManyJobs()
        clock = SystemClock()
        settings = ArchiveSettings(folder=str(folder), flush_s=0.5)
        self.archive = ArchiveHandler(settings, clock, SelfMetrics("archive"))
        self.detector = DetectionHandler(DetectionSettings(), clock, SelfMetrics("detector"))
        rules = Rules.of(EngineSettings(mode="auto", cool_down_s=3600.0))
        engine = EngineHandler(rules, self.launcher, clock, SelfMetrics("engine"))
        self.members.come(Service(GatedBus(cluster.open(), self.archive.is_flushed), self.archive))
        self.members.come(Service(cluster.open(), self.detector))
        self.members.come(Service(cluster.open(), engine))
        wait_until(lambda: all(one.owned() for one in self.members.all), "all have their partitions")

    def steps(self, job: str) -> int:
        watch = self.detector._jobs.get(job)
        return 0 if watch is None else len(watch.state._steps.ring.steps)

    def fails(self, job: str) -> None:
        now_s = time.time()
        self.bus.publish(INCIDENTS, job, IncidentRecord(
            id=f"crash/{job}", job=job, kind="crash", severity="sev2", state="opened", revision=0, opened_at_s=now_s,
            updated_at_s=now_s, reason="rank 2 was killed",
        ))  # fmt: skip
        self.bus.flush()

    def say(self, word: Any) -> None:
        said = on_job(word, None, "ann", time.time())
        self.bus.publish(COMMANDS, said.job, said)
        self.bus.flush()

    def outcomes(self) -> set[tuple[str, str]]:
        records = [message.record for message in self.bus.read(ACTIONS)]
        return {(one.job, one.outcome) for one in records if isinstance(one, ActionRecord)}


def test_all_services_go_on_when_their_topics_are_deleted(cluster: Cluster, tmp_path: Path) -> None:
    services = Services(cluster, tmp_path / "archive")
    bus = services.bus
    job = [record for _, record in Job(step_s=0.1).run(60).records]
    told = sum(topic_of(record) is EVENTS for record in job)

    def archived() -> list[Any]:
        return [place for place in present(tmp_path / "archive") if place[0] == "events"]

    try:
        for number in range(50):
            bus.publish(EVENTS, "k", event_record(number, job="k"))
        for record in job:
            bus.publish(topic_of(record), "llama", of("llama", record))
        services.fails("a")
        wait_until(lambda: services.steps("llama") == 60, "every step")
        wait_until(lambda: len(archived()) == 50 + told, "rows on disk")
        wait_until(lambda: ("a", "done") in services.outcomes(), "a restart")
        cluster.delete(EVENTS, ITERATIONS, COMMANDS, INCIDENTS)
        for number in range(50, 80):
            bus.publish(EVENTS, "k", event_record(number, job="k"))
        for record in job:
            bus.publish(topic_of(record), "bert", of("bert", record))
        services.say("stop")
        services.fails("b")
        wait_until(lambda: ("b", "skipped") in services.outcomes(), "the stop is obeyed")
        assert [one.job for one in services.launcher.operations] == ["a"]
        services.say("resume")
        wait_until(lambda: ("b", "done") in services.outcomes(), "and lifted")
        wait_until(lambda: services.steps("bert") == 60, "steps of the new topic")
        wait_until(lambda: len(archived()) == 80 + 2 * told, "rows of both topics")
    finally:
        services.members.end()
        services.archive.close()
    assert {present(tmp_path / "archive")[place] for place in archived()} == {1}, "each event once"
