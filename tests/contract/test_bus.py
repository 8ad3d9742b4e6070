"""What every engine of the bus promises; each test runs on the embedded file and on a real Kafka broker."""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from typing import Any

import msgspec
import pytest
from kafka import KafkaAdminClient

from tests.contract.bus_harness import (
    DEADLINE_S,
    PARTITIONS,
    Engine,
    Worker,
    event,
    ids,
    joined,
    poll_until,
    wait_until,
)
from trainwarden.errors import BusError, RecordError, RecordsRefused
from trainwarden.protocols import Message
from trainwarden.records import CommandRecord, EventRecord, LogRecord
from trainwarden.topics import DEAD_LETTERS, EVENTS, LOGS, MAX_RECORD_BYTES, Topic


def by_key(messages: list[Message]) -> dict[str, list[str]]:
    found = defaultdict(list)
    for message in messages:
        found[message.key].append(message.record.id)
    return found


def test_order_holds_per_key_over_two_producers_and_many_keys(engine: Engine) -> None:
    first, second = engine.open(), engine.open()
    keys = [f"job{number}" for number in range(12)]
    for number in range(40):
        for index, key in enumerate(keys):
            (first if index % 2 else second).publish(EVENTS, key, event(key, number))
    first.flush()
    second.flush()
    messages = poll_until(first.consumer([EVENTS], "g"), 40 * len(keys))
    assert by_key(messages) == {key: [f"{key}/{number}" for number in range(40)] for key in keys}
    assert all(message.topic == EVENTS.name and message.record.job == message.key for message in messages)
    places = {(message.key, message.partition) for message in messages}
    assert len(places) == len(keys), "a key's records lie in one partition"
    assert len({partition for _, partition in places}) > 1, "keys are spread over partitions"


def test_offsets_are_contiguous_and_times_are_when_it_was_written(engine: Engine) -> None:
    bus = engine.open()
    before = time.time()
    for number in range(30):
        bus.publish(EVENTS, "a", event("a", number))
    bus.flush()
    messages = poll_until(bus.consumer([EVENTS], "g"), 30)
    assert [message.offset for message in messages] == list(range(30))
    assert all(before - 1.0 <= message.time_s <= time.time() + 1.0 for message in messages)
    assert messages == sorted(messages, key=lambda message: message.time_s)


def test_every_group_gets_everything(engine: Engine) -> None:
    bus = engine.open()
    for number in range(10):
        bus.publish(EVENTS, "a", event("a", number))
    bus.flush()
    expected = [f"a/{number}" for number in range(10)]
    assert ids(poll_until(bus.consumer([EVENTS], "one"), 10)) == expected
    assert ids(poll_until(bus.consumer([EVENTS], "two"), 10)) == expected


def test_a_group_resumes_after_its_last_commit(engine: Engine) -> None:
    bus = engine.open()
    for number in range(20):
        bus.publish(EVENTS, "a", event("a", number))
    bus.flush()
    consumer = bus.consumer([EVENTS], "g")
    seen = []
    while len(seen) < 8:
        seen += consumer.poll(0.2, max_records=8 - len(seen))
    assert consumer.committed() == {}
    consumer.commit()
    partition = (EVENTS.name, seen[0].partition)
    assert consumer.committed() == {partition: 8}
    assert ids(consumer.poll(5.0, max_records=3)) == ["a/8", "a/9", "a/10"]
    consumer.close()  # without a commit: those three come again

    after = engine.open().consumer([EVENTS], "g")
    assert ids(poll_until(after, 12)) == [f"a/{number}" for number in range(8, 20)]
    assert after.committed()[partition] == 8


def test_latest_skips_what_was_there_and_earliest_is_the_default(engine: Engine) -> None:
    bus = engine.open()
    bus.publish(EVENTS, "a", event("a", 0))
    bus.flush()
    late = joined(bus.consumer([EVENTS], "late", start="latest"))
    wait_until(lambda: late.poll(0.05) == [] and late.lag() == 0, "positions of the late group")
    bus.publish(EVENTS, "a", event("a", 1))
    bus.flush()
    assert ids(poll_until(late, 1)) == ["a/1"]
    assert ids(poll_until(bus.consumer([EVENTS], "early"), 2)) == ["a/0", "a/1"]
    with pytest.raises(ValueError, match="'earliest' or 'latest'"):
        bus.consumer([EVENTS], "g", start="middle")


@pytest.mark.thorough
def test_seek_by_time_and_commits_do_not_fall_back(engine: Engine) -> None:
    bus = engine.open()
    for number in range(3):
        bus.publish(EVENTS, "a", event("a", number))
    bus.flush()
    time.sleep(0.05)
    middle = time.time()
    time.sleep(0.05)
    for number in range(3, 6):
        bus.publish(EVENTS, "a", event("a", number))
    bus.flush()
    consumer = bus.consumer([EVENTS], "g")
    messages = poll_until(consumer, 6)
    consumer.commit()
    consumer.seek_to_time(middle)
    assert ids(poll_until(consumer, 3)) == ["a/3", "a/4", "a/5"]
    consumer.seek_to_time(0.0)
    again = ids(consumer.poll(5.0, max_records=2))
    assert again == ["a/0", "a/1"]
    consumer.commit()
    assert consumer.committed() == {(EVENTS.name, messages[0].partition): 6}
    assert ids(poll_until(consumer, 4)) == ["a/2", "a/3", "a/4", "a/5"]
    consumer.seek_to_time(time.time() + 3600.0)
    assert consumer.poll(0.3) == []
    assert consumer.lag() == 0


@pytest.mark.thorough
def test_seek_to_offsets_moves_those_partitions_alone(engine: Engine) -> None:
    bus = engine.open()
    for number in range(4):
        for key in "abcdef":  # several partitions
            bus.publish(EVENTS, key, event(key, number))
    bus.flush()
    consumer = bus.consumer([EVENTS], "g")
    messages = poll_until(consumer, 24)
    consumer.commit()
    before = dict(consumer.committed())
    moved = messages[0].partition
    expected = [one for one in messages if one.partition == moved and one.offset >= 2]
    consumer.seek({(EVENTS.name, moved): 2, (EVENTS.name, 10_000): 0})
    assert consumer.lag() == len(expected)
    assert ids(poll_until(consumer, len(expected))) == ids(expected)
    consumer.commit()
    assert consumer.poll(0.3) == []
    assert consumer.committed() == before, "a commit does not fall back"
    consumer.seek({(EVENTS.name, moved): 0})
    every = [one for one in messages if one.partition == moved]
    assert ids(poll_until(consumer, len(every))) == ids(every)


def test_a_new_member_may_rewind_before_it_polls_anything_and_keeps_the_commit(engine: Engine) -> None:
    bus = engine.open()
    for number in range(6):
        bus.publish(EVENTS, "a", event("a", number))
    bus.flush()
    first = bus.consumer([EVENTS], "g")
    partition = poll_until(first, 6)[0].partition
    first.commit()
    first.close()
    second = joined(bus.consumer([EVENTS], "g"))
    second.seek_to_time(0.0)
    assert ids(second.poll(5.0, max_records=2)) == ["a/0", "a/1"]
    second.commit()
    assert second.committed() == {(EVENTS.name, partition): 6}


def test_two_members_share_partitions_and_one_takes_over_from_the_other(engine: Engine) -> None:
    bus = engine.open(session_s=10.0)  # this one thread polls both, and may be starved
    first = joined(bus.consumer([EVENTS, LOGS], "g"))
    assert len(first.assignment()) == 2 * PARTITIONS
    second = engine.open(session_s=10.0).consumer([EVENTS, LOGS], "g")

    def shared() -> bool:
        first.poll(0.05)
        second.poll(0.05)
        return len(first.assignment()) == len(second.assignment()) == PARTITIONS

    wait_until(shared, "both members reading half each")
    assert first.assignment().isdisjoint(second.assignment())
    for consumer in (first, second):
        numbers = [
            {number for topic, number in consumer.assignment() if topic == name} for name in (EVENTS.name, LOGS.name)
        ]
        assert numbers[0] == numbers[1], "a key's records of all topics meet in one member"
    keys = [f"job{number}" for number in range(16)]
    for key in keys:
        bus.publish(EVENTS, key, event(key, 0))
    bus.flush()
    ones: list[Message] = []
    twos: list[Message] = []
    end = time.monotonic() + DEADLINE_S
    while len(ones) + len(twos) < len(keys) and time.monotonic() < end:
        ones += first.poll(0.1)
        twos += second.poll(0.1)
    assert sorted(ids(ones) + ids(twos)) == sorted(f"{key}/0" for key in keys)
    assert ones
    assert twos
    first.commit()  # the second does not: its records come to the first when it leaves
    second.close()
    wait_until(lambda: first.poll(0.05) == [] and len(first.assignment()) == 2 * PARTITIONS, "taking over")
    assert sorted(ids(poll_until(first, len(twos)))) == sorted(ids(twos))


def test_a_poll_at_which_the_assignment_changed_returns_nothing(engine: Engine) -> None:
    bus = engine.open()
    for number in range(50):
        bus.publish(EVENTS, f"k{number}", event("a", number))
    bus.flush()
    first = bus.consumer([EVENTS], "g")
    before = first.assignment()
    others = [bus.consumer([EVENTS], "g") for _ in range(2)]
    end = time.monotonic() + DEADLINE_S
    while len(first.assignment()) == PARTITIONS or not first.assignment():
        messages = first.poll(0.5, max_records=1)
        assert before == first.assignment() or messages == []
        before = first.assignment()
        for other in others:
            other.poll(0.01)
        assert time.monotonic() < end


@pytest.mark.thorough
def test_a_backlog_of_several_topics_comes_in_the_order_of_time(engine: Engine) -> None:
    bus = engine.open()
    rounds, many = 15, 300
    for number in range(rounds):
        for _ in range(many):  # lines that do not compress, so that the backlog takes many fetches
            line = os.urandom(1000).hex()
            bus.publish(LOGS, "a", LogRecord(job="a", node="n", source="s", ends=(1,), lines=(line,), times_s=(1.0,)))
        bus.publish(EVENTS, "a", event("a", number))
        bus.flush()
    consumer = bus.consumer([EVENTS, LOGS], "g")
    for again in (False, True):  # from the beginning, and once more after a rewind
        if again:
            consumer.seek_to_time(0.0)
        messages = poll_until(consumer, rounds * (many + 1))
        times = [message.time_s for message in messages]
        assert times == sorted(times)
        places = [place // (many + 1) for place, message in enumerate(messages) if message.topic == EVENTS.name]
        assert places == list(range(rounds)), "each event among the log lines of its round"


@pytest.mark.system
def test_kill_of_a_consumer_loses_nothing_and_another_takes_over(engine: Engine) -> None:
    bus = engine.open()
    total = 600
    for number in range(total):
        bus.publish(EVENTS, f"k{number % 6}", event(f"k{number % 6}", number))
    bus.flush()
    with Worker(engine, "consume", "g") as worker:
        worker.read_lines(25)
        done = worker.kill()
    assert len(done) < total
    consumer = bus.consumer([EVENTS], "g")
    seen: set[str] = set()
    every = {f"k{number % 6}/{number}" for number in range(total)}
    end = time.monotonic() + DEADLINE_S
    while seen | set(done) != every:
        seen |= set(ids(consumer.poll(0.2)))
        assert time.monotonic() < end, f"lost: {sorted(every - seen - set(done))}"
    assert seen != every, "what was committed does not come again"


@pytest.mark.system
def test_kill_of_a_producer_keeps_all_that_was_flushed_in_order(engine: Engine) -> None:
    with Worker(engine, "produce", "a") as worker:
        worker.read_lines(200)
        flushed = [int(line) for line in worker.kill()]
    consumer = engine.open().consumer([EVENTS], "g")
    found = [int(message.record.time_s) for message in poll_until(consumer, len(flushed))]
    found += [int(message.record.time_s) for message in consumer.poll(0.5)]
    assert found == list(range(len(found))), "no gap, no repetition, no other order"
    assert set(flushed) <= set(found)


def test_large_records_and_large_batches(engine: Engine) -> None:
    bus = engine.open()
    big = event("a", 0, message="x" * (MAX_RECORD_BYTES - 1000))
    for _ in range(3):
        bus.publish(EVENTS, "a", big)
    bus.flush()
    consumer = bus.consumer([EVENTS], "g")
    messages = poll_until(consumer, 3)
    assert all(message.record == big for message in messages)
    for number in range(5000):
        bus.publish(EVENTS, "a", event("a", number))
    bus.flush()
    assert ids(poll_until(consumer, 5000)) == [f"a/{number}" for number in range(5000)]


def test_what_does_not_fit_is_refused_and_nothing_of_it_is_kept(engine: Engine) -> None:
    bus = engine.open()
    with pytest.raises(RecordError, match="more than"):
        bus.publish(EVENTS, "a", event("a", 0, message="x" * (MAX_RECORD_BYTES + 1)))
    with pytest.raises(RecordError, match="takes EventRecord"):
        bus.publish(EVENTS, "a", CommandRecord(id="c", job="a", at_s=1.0, kind="stop", by="me"))
    with pytest.raises(RecordError, match="cannot be encoded"):
        bus.publish(EVENTS, "a", event("a", 0, message="half a character: \ud83d"))
    bus.publish(EVENTS, "a", event("a", 1))
    bus.flush()
    assert ids(poll_until(bus.consumer([EVENTS], "g"), 1)) == ["a/1"]


def test_nothing_is_fine_too(engine: Engine) -> None:
    bus = engine.open()
    bus.flush()
    assert list(bus.read(EVENTS)) == []
    consumer = joined(bus.consumer([EVENTS], "g"))
    assert consumer.poll(0.0) == []
    assert consumer.lag() == 0
    consumer.commit()
    assert consumer.committed() == {}
    bus.publish(LOGS, "", LogRecord(job="", node="n", source="s", ends=(), lines=(), times_s=()))
    bus.flush()
    assert [message.key for message in bus.read(LOGS)] == [""]


def test_lag_counts_what_was_not_returned_yet(engine: Engine) -> None:
    bus = engine.open()
    consumer = joined(bus.consumer([EVENTS], "g"))
    for number in range(10):
        bus.publish(EVENTS, f"k{number}", event("a", number))
    bus.flush()
    wait_until(lambda: consumer.lag() == 10, "a lag of 10")
    got = consumer.poll(5.0, max_records=4)
    assert consumer.lag() == 10 - len(got)
    poll_until(consumer, 10 - len(got))
    assert consumer.lag() == 0


def test_an_undecodable_record_goes_to_dead_letters_and_the_rest_goes_on(engine: Engine) -> None:
    bus = engine.open()
    foreign = Topic(EVENTS.name, LogRecord)  # what another, mistaken program writes into our topic
    bus.publish(EVENTS, "a", event("a", 0))
    bus.publish(
        foreign, "a", LogRecord(job="a", node="n", source="s", ends=(1,), lines=("é" * 50_000,), times_s=(1.0,))
    )
    bus.publish(EVENTS, "a", event("a", 1))
    bus.flush()
    consumer = bus.consumer([EVENTS], "g")
    messages = poll_until(consumer, 2)
    assert ids(messages) == ["a/0", "a/1"]
    assert consumer.dead_letters == 1
    flushed = []
    consumer._flush = lambda: flushed.append(bus.flush())
    consumer.commit()
    assert len(flushed) == 1, "dead letters are durable before the commit passes them"
    consumer.commit()
    assert len(flushed) == 1
    assert list(consumer.committed().values()) == [3]
    letters = [message.record for message in engine.open().read(DEAD_LETTERS)]
    assert [(letter.topic, letter.partition, letter.offset) for letter in letters] == [
        (EVENTS.name, messages[0].partition, 1)
    ]
    assert "Invalid value" in letters[0].reason or "tag" in letters[0].reason
    assert len(letters[0].value) == 64 * 1024
    assert letters[0].value.startswith(b'{"type":"log"')
    assert ids(list(bus.read(EVENTS))) == ["a/0", "a/1"], "a read skips it"


@pytest.mark.thorough
def test_undecodable_dead_letters_do_not_breed(engine: Engine) -> None:
    bus = engine.open()
    bus.publish(Topic(DEAD_LETTERS.name, EventRecord), "a", event("a", 0))
    bus.flush()
    consumer = bus.consumer([DEAD_LETTERS], "g")
    wait_until(lambda: consumer.poll(0.05) == [] and consumer.dead_letters == 1, "the count")
    consumer.commit()
    bus.flush()
    assert consumer.poll(0.3) == []
    assert consumer.dead_letters == 1


def test_read_sees_all_that_was_flushed_before_the_call_and_nothing_else_changes(engine: Engine) -> None:
    bus, other = engine.open(), engine.open()
    for number in range(300):
        bus.publish(EVENTS, f"k{number % 5}", event(f"k{number % 5}", number))
    bus.flush()
    messages = list(other.read(EVENTS))
    assert by_key(messages) == {f"k{key}": [f"k{key}/{number}" for number in range(key, 300, 5)] for key in range(5)}
    time.sleep(0.05)
    middle = time.time()
    time.sleep(0.05)
    bus.publish(EVENTS, "k0", event("k0", 300))
    bus.flush()
    assert ids(list(other.read(EVENTS, from_time_s=middle))) == ["k0/300"]
    assert list(other.read(EVENTS, from_time_s=time.time() + 3600.0)) == []
    unused = other.read(EVENTS)
    del unused
    assert len(poll_until(bus.consumer([EVENTS], "g"), 301)) == 301


@pytest.mark.thorough
def test_what_is_older_than_its_topic_keeps_goes(engine: Engine) -> None:
    short = Topic("trainwarden.short", EventRecord, keep_s=1.0)
    bus = engine.open()
    for number in range(20):
        bus.publish(short, "a", event("a", number))
    bus.publish(EVENTS, "a", event("a", 0))
    bus.flush()
    consumer = bus.consumer([short], "g")
    assert len(poll_until(consumer, 20)) == 20

    def gone() -> bool:
        engine.expire(bus)
        return not list(bus.read(short))

    wait_until(gone, "retention")
    assert ids(list(bus.read(EVENTS))) == ["a/0"]
    bus.publish(short, "a", event("a", 20))
    bus.flush()
    (message,) = poll_until(consumer, 1)
    assert (message.offset, message.record.id) == (20, "a/20"), "offsets go on; nothing is numbered twice"


def test_close_is_safe_twice_and_keeps_what_was_published(engine: Engine) -> None:
    bus = engine.open()
    consumer = joined(bus.consumer([EVENTS], "g"))
    bus.publish(EVENTS, "a", event("a", 0))
    consumer.close()
    consumer.close()
    bus.close()
    bus.close()
    with pytest.raises(BusError, match="closed"):
        bus.publish(EVENTS, "a", event("a", 1))
    with pytest.raises(BusError, match="closed"):
        consumer.poll(0.0)
    assert ids(list(engine.open().read(EVENTS))) == ["a/0"]


@pytest.mark.parametrize(
    "engine", [pytest.param("kafka", marks=[pytest.mark.system, pytest.mark.kafka])], indirect=True
)
def test_a_member_that_was_put_out_sees_its_loss_though_the_same_partitions_come_back(engine: Engine) -> None:
    """A lease of the embedded bus is a minute long: there it is `tests/unit/trainwarden/test_service_loop.py`."""
    bus = engine.open()
    with Worker(engine, "follow", "g") as worker:
        while worker.read_lines(len(worker.lines) + 1)[-1] != f"owns {PARTITIONS}":
            pass
        worker.signal(signal.SIGSTOP)
        other = bus.consumer([EVENTS], "g")
        wait_until(lambda: other.poll(0.05) == [] and len(other.assignment()) == PARTITIONS, "it is put out")
        for number in range(3):
            bus.publish(EVENTS, "a", event("a", number))
        bus.flush()
        poll_until(other, 3)
        other.commit()
        other.close()
        before = len(worker.lines)
        worker.signal(signal.SIGCONT)
        while worker.read_lines(len(worker.lines) + 1)[-1] != f"owns {PARTITIONS}":
            pass
        assert "owns 0" in worker.lines[before:]


class LateAnswers:
    """The producer's clock: its pauses last until all that was sent is answered, so that it sees each refusal late."""

    monotonic = staticmethod(time.monotonic)

    def __init__(self, producer: Any) -> None:
        self._producer = producer

    def sleep(self, _: float) -> None:
        futures = [one.future for one in self._producer._pending if one.future is not None]
        wait_until(lambda: all(one.is_done for one in futures), "answers")


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    "engine", [pytest.param("kafka", marks=[pytest.mark.system, pytest.mark.kafka])], indirect=True
)
def test_a_record_that_its_topic_refuses_for_good_is_named_and_takes_no_other_with_it(
    engine: Engine, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker refuses a whole batch; the embedded bus has no limit but that of `publish`."""
    admin = KafkaAdminClient(bootstrap_servers=[engine.place])
    limit = {"max.message.bytes": "8000"}
    made = {"num_partitions": PARTITIONS, "replication_factor": 1, "configs": limit}
    admin.create_topics({engine.prefix + EVENTS.name: made})
    admin.close()
    bus: Any = engine.open()
    if late:
        monkeypatch.setattr(bus._producer, "_wait", lambda _: None)
        monkeypatch.setattr("trainwarden.bus.kafka.producer.time", LateAnswers(bus._producer))
    for number in range(40):
        bus.publish(EVENTS, "a", event("a", number, os.urandom(20_000 if number == 7 else 100).hex()))
    named: list[bytes] = []
    for _ in range(10):
        try:
            bus.flush()
            break
        except RecordsRefused as error:
            named += [value for _, _, value in error.records]
    assert [msgspec.json.decode(value)["id"] for value in named] == ["a/7"]
    found = ids(list(bus.read(EVENTS)))
    assert sorted(set(found)) == sorted(f"a/{number}" for number in range(40) if number != 7)
