"""The embedded engine from inside: its file, its leases, its limits; no sleeping, the clock is turned by hand."""

from __future__ import annotations

import os
import sqlite3
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doubles import ManualClock
from trainwarden.bus.address import connect
from trainwarden.bus.embedded import retention as embedded_retention
from trainwarden.bus.embedded.consumer import MAX_POLL_BYTES
from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.errors import BusError, BusUnavailable, ConfigError
from trainwarden.protocols import Consumer
from trainwarden.records import ActionRecord, CommandRecord, EventRecord, LogRecord, SnapshotRecord
from trainwarden.topics import ACTIONS, COMMANDS, DEAD_LETTERS, EVENTS, METRICS, SNAPSHOTS, Topic

LEASE_S = 60.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000.0)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "bus.db")


@pytest.fixture
def bus(path: str, clock: ManualClock) -> Iterator[EmbeddedBus]:
    opened = EmbeddedBus(path, clock=clock, partitions=4, lease_s=LEASE_S)
    yield opened
    opened.close()


def event(number: int, message: str = "") -> EventRecord:
    return EventRecord(id=str(number), job="j", node="n", time_s=0.0, kind="phase", message=message)


def publish(bus: EmbeddedBus, *numbers: int, key: str = "a", message: str = "") -> None:
    for number in numbers:
        bus.publish(EVENTS, key, event(number, message))
    bus.flush()


def key_in(partition: int, partitions: int = 4) -> str:
    return next(key for key in map(str, range(1_000)) if zlib.crc32(key.encode()) % partitions == partition)


def polled(consumer: Consumer, timeout_s: float = 0.0, max_records: int = 1000) -> list[int]:
    return [int(message.record.id) for message in consumer.poll(timeout_s, max_records)]


def kept(bus: EmbeddedBus) -> list[int]:
    return [int(message.record.id) for message in bus.read(EVENTS)]


# ---- the file ----


def test_connect_opens_it_by_its_address(path: str) -> None:
    bus = connect(f"embedded:{path}")
    assert isinstance(bus, EmbeddedBus)
    bus.close()


@pytest.mark.parametrize("address", ["embedded:", "sqlite:x", "kafka://", "kafka:host:9092", ""])
def test_connect_refuses_other_addresses(address: str) -> None:
    with pytest.raises(ConfigError, match="neither embedded:PATH nor kafka"):
        connect(address)


def test_a_missing_folder_and_a_folder_are_one_clear_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the folder .*/nowhere does not exist"):
        EmbeddedBus(str(tmp_path / "nowhere" / "bus.db"))
    with pytest.raises(ConfigError, match="this is a folder, not a file"):
        EmbeddedBus(str(tmp_path))


def test_a_file_of_somebody_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but long enough to be read as a header of one, if anybody tried" * 20)
    before = text.read_bytes()
    with pytest.raises(ConfigError, match="not a database of trainwarden"):
        EmbeddedBus(str(text))
    assert text.read_bytes() == before
    other = tmp_path / "other.db"
    db = sqlite3.connect(other)
    db.execute("CREATE TABLE theirs (x)")
    db.close()
    before = other.read_bytes()
    with pytest.raises(ConfigError, match="a database, but not one of trainwarden"):
        EmbeddedBus(str(other))
    assert other.read_bytes() == before


def test_a_file_of_a_newer_version_is_refused(path: str) -> None:
    EmbeddedBus(path).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(ConfigError, match="written by a newer trainwarden"):
        EmbeddedBus(path)


def test_records_wait_for_the_disk_and_memberships_do_not(bus: EmbeddedBus) -> None:
    consumer = bus.consumer([EVENTS], "g")
    full, normal = 2, 1  # SQLite's numbers for PRAGMA synchronous
    assert bus._store.db.execute("PRAGMA synchronous").fetchone()[0] == full
    assert consumer._store.db.execute("PRAGMA synchronous").fetchone()[0] == normal
    assert bus._store.db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"


def test_the_number_of_partitions_is_that_of_the_file(bus: EmbeddedBus, path: str) -> None:
    publish(bus, 0)
    other = EmbeddedBus(path, partitions=9)
    publish(other, 1)
    consumer = other.consumer([EVENTS], "g")
    assert len(consumer.assignment()) == 4
    assert polled(consumer) == [0, 1]
    other.close()


# ---- writing ----


def test_nothing_is_seen_before_flush_and_a_flush_is_all_or_nothing(bus: EmbeddedBus, path: str) -> None:
    bus.publish(EVENTS, "a", event(0))
    assert kept(bus) == []
    stuck = sqlite3.connect(path, isolation_level=None)
    stuck.execute("BEGIN IMMEDIATE")
    with pytest.raises(BusUnavailable, match="locked"):
        bus.flush(timeout_s=0.01)
    stuck.execute("COMMIT")
    stuck.close()
    bus.publish(EVENTS, "a", event(1))
    bus.flush()
    assert kept(bus) == [0, 1]


def test_a_full_disk_keeps_the_queue_and_a_later_flush_writes_it(bus: EmbeddedBus) -> None:
    publish(bus, 0)
    pages = bus._store.db.execute("PRAGMA page_count").fetchone()[0]
    bus._store.db.execute(f"PRAGMA max_page_count={pages}")
    for number in range(1, 20):
        bus.publish(EVENTS, "a", event(number, "x" * 5000))
    with pytest.raises(BusUnavailable, match="full"):
        bus.flush()
    assert kept(bus) == [0]
    bus._store.db.execute(f"PRAGMA max_page_count={pages + 1000}")
    bus.flush()
    assert kept(bus) == list(range(20))


def test_the_queue_is_bounded(path: str) -> None:
    bus = EmbeddedBus(path, max_queue_bytes=10_000, clock=ManualClock())
    bus.publish(EVENTS, "a", event(0))
    bus.flush()
    pages = bus._store.db.execute("PRAGMA page_count").fetchone()[0]
    bus._store.db.execute(f"PRAGMA max_page_count={pages}")

    def publish_on() -> None:
        for number in range(1, 100):
            bus.publish(EVENTS, "a", event(number, "x" * 1000))

    with pytest.raises(BusUnavailable):
        publish_on()
    bus._store.db.execute("PRAGMA max_page_count=100000")
    bus.flush()
    found = kept(bus)
    assert found == list(range(len(found)))
    assert 5 < len(found) < 12, "what was refused was not taken, what was taken is kept"
    bus.close()


def test_a_long_queue_is_written_without_a_flush(bus: EmbeddedBus) -> None:
    for number in range(2_000):
        bus.publish(EVENTS, "a", event(number))
    assert len(kept(bus)) == 2_000


def test_many_threads_publish_and_flush_one_bus(bus: EmbeddedBus) -> None:
    def work(name: str) -> None:
        for number in range(200):
            bus.publish(EVENTS, name, event(number))
            if number % 10 == 0:
                bus.flush()

    threads = [threading.Thread(target=work, args=(f"k{index}",)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bus.flush()
    for index in range(4):
        numbers = [int(message.record.id) for message in bus.read(EVENTS) if message.key == f"k{index}"]
        assert numbers == list(range(200))


def test_a_clock_set_back_does_not_break_the_order_of_times(bus: EmbeddedBus, clock: ManualClock) -> None:
    publish(bus, 0)
    clock.set_s(500.0)
    publish(bus, 1)
    clock.set_s(2_000.0)
    publish(bus, 2)
    assert [message.time_s for message in bus.read(EVENTS)] == pytest.approx([1_000.0, 1_000.0, 2_000.0])
    for from_time_s, expected in ((1_500.0, ["2"]), (2_000.0, ["2"]), (1_000.0, ["0", "1", "2"]), (2_000.1, [])):
        assert [message.record.id for message in bus.read(EVENTS, from_time_s=from_time_s)] == expected


# ---- reading ----


def test_poll_waits_on_the_clock_and_no_longer(bus: EmbeddedBus, clock: ManualClock) -> None:
    consumer = bus.consumer([EVENTS], "g")
    assert polled(consumer, timeout_s=2.5) == []
    assert clock.monotonic_s() == pytest.approx(1_002.5)


def test_an_idle_poll_costs_no_query_for_records(bus: EmbeddedBus) -> None:
    consumer = bus.consumer([EVENTS], "g")
    publish(bus, 0)
    assert polled(consumer) == [0]
    assert polled(consumer) == []
    statements: list[str] = []
    consumer._store.db.set_trace_callback(statements.append)
    assert polled(consumer, timeout_s=0.5) == []
    assert not [one for one in statements if "records" in one]
    assert 20 <= len(statements) / 2 <= 70, "looks are some 16 ms apart"


def test_one_poll_is_bounded_in_bytes_and_in_records(bus: EmbeddedBus) -> None:
    big = "x" * 800_000
    count = 3 * MAX_POLL_BYTES // len(big) // 2
    publish(bus, *range(count), message=big)
    consumer = bus.consumer([EVENTS], "g")
    first = polled(consumer)
    assert 0 < len(first) <= MAX_POLL_BYTES // len(big)
    assert first + polled(consumer) == list(range(count))
    publish(bus, *range(10))
    assert polled(consumer, max_records=3) == [0, 1, 2]


def test_topics_and_keys_come_merged_by_the_time_they_were_written(bus: EmbeddedBus, clock: ManualClock) -> None:
    other = Topic("trainwarden.other", EventRecord)
    for number in range(30):
        clock.sleep(1.0)
        bus.publish(other if number % 3 else EVENTS, f"k{number}", event(number))
    bus.flush()
    assert polled(bus.consumer([EVENTS, other], "g")) == list(range(30))


def test_a_consumer_that_retention_overtook_goes_on_with_what_is_left(bus: EmbeddedBus, clock: ManualClock) -> None:
    publish(bus, *range(5))
    consumer = bus.consumer([EVENTS], "g")
    assert polled(consumer, max_records=2) == [0, 1]
    clock.sleep(EVENTS.keep_s + 1.0)
    publish(bus, 5)
    assert kept(bus) == [5]
    assert consumer.lag() == 1
    assert polled(consumer) == [5]


def test_dead_letters_are_flushed_before_the_commit_passes_them(bus: EmbeddedBus, path: str) -> None:
    foreign = Topic(EVENTS.name, LogRecord)
    bus.publish(foreign, "a", LogRecord(job="j", node="n", source="s", ends=(), lines=(), times_s=()))
    bus.flush()
    consumer = bus.consumer([EVENTS], "g")
    assert consumer.poll(0.0) == []
    stuck = sqlite3.connect(path, isolation_level=None)
    stuck.execute("BEGIN IMMEDIATE")
    bus._store.db.execute("PRAGMA busy_timeout=1")
    consumer._flush = lambda: bus.flush(timeout_s=0.01)  # type: ignore[method-assign]
    with pytest.raises(BusUnavailable):
        consumer.commit()
    assert consumer.committed() == {}
    stuck.execute("COMMIT")
    stuck.close()
    consumer.commit()
    assert list(consumer.committed().values()) == [1]
    assert len(list(bus.read(DEAD_LETTERS))) == 1


# ---- groups ----


def test_a_member_that_stalls_loses_its_partitions_and_learns_so(bus: EmbeddedBus, clock: ManualClock) -> None:
    publish(bus, 0, 1, 2, key=key_in(0))  # range assignment: the first member keeps partitions 0 and 1
    stalled = bus.consumer([EVENTS], "g")
    assert polled(stalled) == [0, 1, 2]
    other = bus.consumer([EVENTS], "g")
    clock.sleep(LEASE_S / 2)
    other.poll(0.0)
    assert len(other.assignment()) == 2, "not yet"
    clock.sleep(LEASE_S / 2 + 1.0)
    assert other.poll(0.0) == []
    assert len(other.assignment()) == 4
    assert polled(other) == [0, 1, 2], "nothing was committed"
    other.commit()
    stalled.commit()  # too late: it must not undo or repeat anything
    assert list(other.committed().values()) == [3]
    assert stalled.poll(0.0) == []
    assert not stalled.assignment(), "what it had is gone, even if the same comes back"
    assert stalled.poll(0.0) == []
    assert len(stalled.assignment()) == 2, "back as a new member"
    assert stalled.assignment() | other.assignment() >= stalled.assignment()


def test_an_idle_member_keeps_its_lease(bus: EmbeddedBus, clock: ManualClock) -> None:
    one, two = bus.consumer([EVENTS], "g"), bus.consumer([EVENTS], "g")
    for _ in range(40):
        clock.sleep(LEASE_S / 10)
        one.poll(0.0)
        two.poll(0.0)
    assert len(one.assignment()) == len(two.assignment()) == 2
    assert one.assignment().isdisjoint(two.assignment())


def test_a_clock_set_back_does_not_keep_the_dead_alive(bus: EmbeddedBus, clock: ManualClock) -> None:
    gone = bus.consumer([EVENTS], "g")
    gone._members.release()  # what the kernel does when the process dies
    clock.set_s(clock.now_s() - 10 * LEASE_S)
    other = bus.consumer([EVENTS], "g")
    assert len(other.assignment()) == 4


def test_the_death_of_a_member_is_seen_within_a_second_or_so(bus: EmbeddedBus, clock: ManualClock) -> None:
    dead, other = bus.consumer([EVENTS], "g"), bus.consumer([EVENTS], "g")
    assert len(other.assignment()) == 2
    dead._members.release()
    before = clock.monotonic_s()
    while len(other.assignment()) < 4:
        other.poll(0.1)
        assert clock.monotonic_s() - before < 3.0


def test_commits_of_lost_partitions_are_left_out_and_others_kept(bus: EmbeddedBus) -> None:
    keys = [f"k{number}" for number in range(12)]
    for key in keys:
        publish(bus, 0, key=key)
    one = bus.consumer([EVENTS], "g")
    assert len(polled(one)) == 12
    two = bus.consumer([EVENTS], "g")  # takes half before `one` has committed
    one.commit()
    assert one.poll(0.0) == []
    assert set(one.committed()) <= one.assignment()
    assert two.committed() == {}, "two's partitions are no longer one's to commit"
    assert len(polled(two)) > 0, "what was not committed comes again"
    two.commit()
    every = set(one.committed()) | set(two.committed())
    assert every == {(message.topic, message.partition) for message in bus.read(EVENTS)}


@pytest.mark.parametrize("commits_before_it_knows", [True, False])
def test_a_partition_that_went_and_came_back_takes_no_stale_commit(
    bus: EmbeddedBus, commits_before_it_knows: bool
) -> None:
    key = key_in(3)  # range assignment: the second member gets partitions 2 and 3
    publish(bus, 0, 1, 2, key=key)
    one = bus.consumer([EVENTS], "g")
    assert polled(one) == [0, 1, 2]
    two = bus.consumer([EVENTS], "g")
    publish(bus, 3, 4, key=key)
    assert polled(two) == [0, 1, 2, 3, 4]
    two.commit()
    two.close()
    place = (EVENTS.name, 3)
    if commits_before_it_knows:
        one.commit()  # of what it read before it lost the partition
        assert one.committed()[place] == 5
    assert one.poll(0.0) == []
    one.commit()
    assert one.committed()[place] == 5
    publish(bus, 5, key=key)
    assert polled(one) == [5]


def test_more_members_than_partitions_and_different_topics_in_one_group(bus: EmbeddedBus) -> None:
    members = [bus.consumer([EVENTS], "g") for _ in range(6)]
    for member in members:
        member.poll(0.0)
    shares = [member.assignment() for member in members]
    assert sorted(len(share) for share in shares) == [0, 0, 1, 1, 1, 1]
    assert len(frozenset().union(*shares)) == 4
    both = bus.consumer([EVENTS, METRICS], "g")
    assert {place for place in both.assignment() if place[0] == METRICS.name} == {
        (METRICS.name, partition) for partition in range(4)
    }


def test_closing_the_bus_closes_its_consumers(path: str) -> None:
    bus = EmbeddedBus(path)
    bus.consumer([EVENTS], "g")
    descriptors = {os.readlink(f"/proc/self/fd/{name}") for name in _descriptors()}
    assert any(one.endswith("-members") for one in descriptors)
    bus.close()
    descriptors = {os.readlink(f"/proc/self/fd/{name}") for name in _descriptors()}
    assert not any(one.startswith(path) for one in descriptors)
    with pytest.raises(BusError, match="closed"):
        bus.flush() or bus.publish(EVENTS, "a", event(0))


def _descriptors() -> list[str]:
    return [name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]


# ---- retention ----


def test_retention_by_time_is_per_topic(bus: EmbeddedBus, clock: ManualClock) -> None:
    action = ActionRecord(id="a", incident="i", job="j", kind="ignore", outcome="done", at_s=0.0, why="w")
    bus.publish(ACTIONS, "a", action)
    publish(bus, 0)
    clock.sleep(EVENTS.keep_s - 10.0)
    publish(bus, 1)
    assert bus.prune() == 0
    clock.sleep(11.0)
    assert bus.prune() == 1
    assert kept(bus) == [1]
    assert len(list(bus.read(ACTIONS))) == 1
    clock.sleep(ACTIONS.keep_s)
    assert bus.prune() == 2


def test_of_a_compact_topic_the_newest_record_of_each_key_is_kept(bus: EmbeddedBus, clock: ManualClock) -> None:
    def snapshot(job: str, number: int) -> SnapshotRecord:
        return SnapshotRecord(
            job=job, number=number, part=0, parts=1, partition=0, positions={}, floors={}, digest="",
            value=bytes(10_000),
        )  # fmt: skip

    for number in range(1, 21):
        for job in "ab":
            bus.publish(SNAPSHOTS, job, snapshot(job, number))
    bus.flush()
    before = embedded_retention.used_bytes(bus._store)
    assert bus.prune() == 38
    assert sorted((one.record.job, one.record.number) for one in bus.read(SNAPSHOTS)) == [("a", 20), ("b", 20)]  # type: ignore[attr-defined]
    assert embedded_retention.used_bytes(bus._store) < before / 4
    assert bus.prune() == 0
    bus.publish(SNAPSHOTS, "a", snapshot("a", 21))
    bus.flush()
    (newest,) = [one.record for one in bus.read(SNAPSHOTS, from_time_s=clock.now_s()) if one.key == "a"][-1:]
    assert newest.number == 21  # type: ignore[attr-defined]
    clock.sleep(SNAPSHOTS.keep_s + 1.0)
    assert bus.prune() > 0
    assert list(bus.read(SNAPSHOTS)) == []


def test_flush_prunes_now_and_then_in_bounded_steps(
    bus: EmbeddedBus, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_retention, "PRUNE_RECORDS", 4)
    publish(bus, *range(10))
    clock.sleep(EVENTS.keep_s + 1.0)
    publish(bus, 10)
    assert kept(bus) == [4, 5, 6, 7, 8, 9, 10]
    bus.flush()
    bus.flush()
    assert kept(bus) == [10]
    clock.sleep(1.0)
    publish(bus, 11)
    assert kept(bus) == [10, 11]


def test_what_retention_removes_before_a_slow_consumer_is_counted(
    bus: EmbeddedBus, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = bus.consumer([EVENTS], "g")
    publish(bus, 0, 1, 2)
    assert polled(consumer, max_records=2) == [0, 1]
    consumer.commit()
    clock.set_s(1_000.0 + EVENTS.keep_s + 1.0)
    publish(bus, 3)
    bus.prune()
    assert polled(consumer) == [3]
    assert dict(consumer.lost) == {EVENTS.name: 1}
    assert caplog.messages == ["records were removed before they were read"]
    consumer.commit()
    clock.set_s(clock.now_s() + EVENTS.keep_s + 1.0)
    bus.prune()
    assert polled(consumer) == []
    assert not bus.consumer([EVENTS], "another").lost, "who has read nothing before has lost nothing"
    assert dict(consumer.lost) == {EVENTS.name: 1}, "what was read is not lost"


def test_retention_by_size_takes_what_has_lived_most_of_its_time(
    path: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    bus = EmbeddedBus(path, clock=clock, partitions=2, limit_bytes=2_000_000)
    action = ActionRecord(id="a", incident="i", job="j", kind="ignore", outcome="done", at_s=0.0, why="w")
    bus.publish(ACTIONS, "a", action)
    for round_number in range(10):
        clock.sleep(60.0)
        publish(
            bus, *range(round_number * 500, round_number * 500 + 500), key=f"k{round_number % 2}", message="x" * 900
        )
    while bus.prune():
        pass
    assert embedded_retention.used_bytes(bus._store) <= 2_000_000
    assert caplog.messages == ["bus is full: the oldest records go"]
    numbers = sorted(kept(bus))
    assert numbers[-1] == 4_999
    assert 1_000 < len(numbers) < 2_500
    assert numbers == list(range(numbers[0], 5_000)), "the oldest went, over both partitions"
    assert len(list(bus.read(ACTIONS))) == 1, "older, but kept 90 days"
    bus.close()


def test_the_file_and_its_neighbours_are_their_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        bus = EmbeddedBus(str(tmp_path / "bus.db"))
        bus.publish(EVENTS, "j", EventRecord(id="e", job="j", node="n", time_s=1.0, kind="job_start"))
        bus.flush()
        bus.consumer([EVENTS], "g").poll(0.0)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys(["bus.db", "bus.db-wal", "bus.db-shm", "bus.db-members"], 0o600)
    bus.close()


def test_people_s_words_never_make_room_for_measurements(tmp_path: Path) -> None:
    clock = ManualClock(1_000.0)
    bus = EmbeddedBus(str(tmp_path / "bus.db"), clock=clock, limit_bytes=1)
    bus.publish(COMMANDS, "*", CommandRecord(id="c", job="*", at_s=1.0, kind="stop", by="me"))
    bus.publish(EVENTS, "j", EventRecord(id="e", job="j", node="n", time_s=1.0, kind="job_start"))
    bus.flush()
    clock.sleep(400 * 86_400.0)
    bus.prune()
    assert [message.record.id for message in bus.read(COMMANDS)] == ["c"]  # type: ignore[attr-defined]
    assert list(bus.read(EVENTS)) == []
    bus.close()


def test_a_flush_asks_sqlite_for_nothing_but_the_transaction(bus: EmbeddedBus) -> None:
    bus.publish(EVENTS, "a", event(1))
    bus.flush(timeout_s=5.0)
    said: list[str] = []
    bus._store.db.set_trace_callback(said.append)
    bus.publish(EVENTS, "a", event(2))
    bus.flush(timeout_s=5.0)
    assert [words.split()[0] for words in said] == ["BEGIN", "SELECT", "INSERT", "UPDATE", "COMMIT"]


def test_a_short_wait_of_one_transaction_is_not_that_of_the_next_reader(bus: EmbeddedBus) -> None:
    waits = []
    for timeout_s in (5.0, 0.01, 0.01, 3.0):
        bus.publish(EVENTS, "a", event(1))
        bus.flush(timeout_s=timeout_s)
        waits.append(bus._store.db.execute("PRAGMA busy_timeout").fetchone()[0])
    assert waits == [5_000, 10_000, 10_000, 3_000]
