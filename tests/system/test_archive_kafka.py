"""Archive workers of one group on a real Kafka broker: joined, stopped, killed; every record is in Parquet once."""

from __future__ import annotations

import gc
import itertools
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest

from tests.archive_doubles import MAKERS, present, rows_of
from tests.servers.kafka import KafkaBroker
from trainwarden.bus.kafka.engine import KafkaBus, KafkaConfig
from trainwarden.topics import COLLECTIVES, EVENTS, ITERATIONS, LOGS, METRICS, topic_of

pytestmark = [
    pytest.mark.system,
    pytest.mark.kafka,
    pytest.mark.timeout(300),
]

# The service as it is, told to say what it owns; small files so that both workers find days to join all the time.
WORKER = """
import json, signal, sys
from trainwarden.trainer_offline.archive.service import serve
from trainwarden.trainer_offline.archive.writer import ArchiveWriter
from trainwarden.settings import ArchiveSettings, Settings
from trainwarden.self_metrics import log_to_stderr
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
log_to_stderr()
own = ArchiveWriter.own
def told(self, places, *, afresh):
    places = sorted(places)
    own(self, places, afresh=afresh)
    print("OWNS", json.dumps(places), flush=True)
ArchiveWriter.own = told
archive = ArchiveSettings(folder=sys.argv[2], flush_bytes=4096, flush_s=0.1, compact_files=4, maintain_every_s=0.05)
serve(Settings(bus=sys.argv[1], kafka=json.loads(sys.argv[3]), archive=archive), lambda: bool(asked))
"""
PARTITIONS = 4
JOBS = tuple(f"job{number}" for number in range(12))
KAFKA = {"partitions": PARTITIONS, "topic_prefix": "archived-", "session_timeout_s": 2.0, "request_timeout_s": 2.0}
TOPICS = (METRICS, ITERATIONS, COLLECTIVES, LOGS, EVENTS)
DEADLINE_S = 180.0


class Worker:
    """One `archive` process and what it says."""

    def __init__(self, name: str, broker: KafkaBroker, folder: Path) -> None:
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as log:
            command = [sys.executable, "-c", WORKER, broker.address, str(folder / "archive"), json.dumps(KAFKA)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def owned(self) -> frozenset[int]:
        """Partitions of metrics that it owned when it last said so."""
        said = [line for line in self.log.read_text(errors="replace").splitlines() if line.startswith("OWNS ")]
        places = json.loads(said[-1].removeprefix("OWNS ")) if said else []
        return frozenset(partition for topic, partition in places if topic == METRICS.name)

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


class Cluster:
    """A broker, the stream of jobs, and the workers that archive it."""

    def __init__(self, broker: KafkaBroker, folder: Path) -> None:
        self.broker = broker
        self.folder = folder
        self.archive = folder / "archive"
        self.bus = KafkaBus([broker.server], KafkaConfig(**KAFKA))
        self.workers: list[Worker] = []
        self._ends = itertools.count()

    def start(self) -> Worker:
        self.workers.append(Worker(f"worker{len(self.workers)}", self.broker, self.folder))
        return self.workers[-1]

    def stream(self) -> None:
        """One record of every topic for every job."""
        number = next(self._ends)
        for job in JOBS:
            for make in MAKERS.values():
                record = make(number, job=job, time_s=time.time() - number)
                self.bus.publish(topic_of(record), job, record)
        self.bus.flush()

    def until(self, what: str, holds: Callable[[], bool], *, stream: bool = True) -> None:
        end_s = time.monotonic() + DEADLINE_S
        while not holds():
            if time.monotonic() > end_s:
                raise AssertionError(f"{what} not within {DEADLINE_S:g} s\n{self.said()}")
            if stream:
                self.stream()
            time.sleep(0.05)

    def for_a_while(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self.stream()
            time.sleep(0.05)

    def expected(self) -> Counter[tuple[str, int, int]]:
        """Rows by folder, partition and offset, as the bus has them; a record of collective calls may have none."""
        return +Counter(
            {
                (topic.name.rpartition(".")[2], message.partition, message.offset): rows_of(message)
                for topic in TOPICS
                for message in self.bus.read(topic)
            }
        )

    def found(self) -> Counter[tuple[str, int, int]]:
        found: Counter[tuple[str, int, int]] = Counter()
        for (topic, partition, offset, _), rows in present(self.archive).items():
            found[topic, partition, offset] += rows
        return found

    def holds(self, records: int) -> bool:
        """Whether so many records are there; a reader that meets a compaction reads again (docs/archive.md)."""
        try:
            return len(self.found()) >= records
        except FileNotFoundError:
            return False

    def said(self) -> str:
        return "\n".join(f"--- {one.log.name}\n{one.log.read_text(errors='replace')[-2500:]}" for one in self.workers)

    def close(self) -> None:
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.send_signal(signal.SIGCONT)
                worker.process.kill()
                worker.process.wait()
        self.bus.close()


@pytest.fixture
def cluster(kafka_broker: KafkaBroker, tmp_path: Path) -> Iterator[Cluster]:
    one = Cluster(kafka_broker, tmp_path)
    yield one
    one.close()
    gc.collect()


def test_every_record_is_there_once_while_workers_join_freeze_and_die(cluster: Cluster) -> None:
    everything = frozenset(range(PARTITIONS))
    first = cluster.start()
    cluster.until("the first worker owns all", lambda: first.owned() == everything)
    second = cluster.start()

    def shared() -> bool:
        return bool(first.owned()) and bool(second.owned()) and first.owned() | second.owned() == everything

    cluster.until("a second worker shares the partitions", shared)
    assert not first.owned() & second.owned()
    cluster.for_a_while(2.0)
    assert first.end(signal.SIGKILL) == -signal.SIGKILL
    cluster.until("the survivor takes over", lambda: second.owned() == everything)
    cluster.for_a_while(1.0)
    third = cluster.start()
    cluster.until("a third worker joins", lambda: bool(third.owned()) and second.owned() != everything)
    # Frozen beyond its session: the group expels it, its locks stay, and who inherits must wait for them.
    frozen = third.owned()
    third.process.send_signal(signal.SIGSTOP)
    cluster.until("the frozen worker is expelled", lambda: "another process still writes" in second.log.read_text())
    cluster.for_a_while(1.0)
    assert not second.owned() & frozen
    third.process.send_signal(signal.SIGCONT)
    cluster.until(
        "both work again", lambda: not second.owned() & third.owned() and bool(third.owned() and second.owned())
    )
    cluster.for_a_while(2.0)
    expected = cluster.expected()
    assert {partition for _, partition, _ in expected} == everything
    cluster.until("everything archived", lambda: cluster.holds(len(expected)), stream=False)
    for worker in (second, third):
        assert worker.end(signal.SIGTERM) == 0, cluster.said()
    assert cluster.found() == expected, cluster.said()
    read_by_others(cluster, expected)
    assert not list((cluster.archive / ".staging").rglob("*.parquet"))


def read_by_others(cluster: Cluster, expected: Counter[tuple[str, int, int]]) -> None:
    """pandas and DuckDB see the rows, and count as many."""
    duckdb = pytest.importorskip("duckdb")
    for topic in ("metrics", "iterations", "logs", "events"):
        rows = sum(number for (name, _, _), number in expected.items() if name == topic)
        frame = pd.read_parquet(cluster.archive / topic)
        assert len(frame) == rows
        assert set(frame.job) == set(JOBS)
        files = f"'{cluster.archive}/{topic}/**/*.parquet'"
        query = f"SELECT count(*), count(DISTINCT (bus_partition, bus_offset)), count(DISTINCT job) FROM {files}"
        records = sum(name == topic for name, _, _ in expected)
        assert duckdb.sql(query).fetchall() == [(rows, records, len(JOBS))]
