"""A clock that stood ahead for one record: later records stay later, and their writers' clocks are known."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doubles import ManualClock
from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.commands.builders import on_job
from trainwarden.commands.keys import Trusted, new_signer
from trainwarden.commands.trust import Trust, in_order
from trainwarden.records import CommandRecord, EventRecord
from trainwarden.topics import COMMANDS, EVENTS, INCIDENTS

NOW_S, AHEAD_S = 1_000_000.0, 3_600.0
ANN = new_signer("ann")
PLAIN = """
CREATE TABLE streams (id INTEGER PRIMARY KEY, topic TEXT NOT NULL, partition INTEGER NOT NULL, keep_s REAL NOT NULL,
    first INTEGER NOT NULL DEFAULT 0, next INTEGER NOT NULL DEFAULT 0, last_s REAL NOT NULL DEFAULT 0,
    UNIQUE (topic, partition));
CREATE TABLE records (id INTEGER PRIMARY KEY, time_s REAL NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL);
CREATE TABLE groups (name TEXT PRIMARY KEY, generation INTEGER NOT NULL);
CREATE TABLE members (id INTEGER PRIMARY KEY AUTOINCREMENT, grp TEXT NOT NULL, topics TEXT NOT NULL,
    seen_s REAL NOT NULL);
CREATE TABLE owners (grp TEXT NOT NULL, stream INTEGER NOT NULL, member INTEGER NOT NULL, since INTEGER NOT NULL,
    PRIMARY KEY (grp, stream)) WITHOUT ROWID;
CREATE TABLE offsets (grp TEXT NOT NULL, stream INTEGER NOT NULL, next INTEGER NOT NULL, PRIMARY KEY (grp, stream))
    WITHOUT ROWID;
PRAGMA application_id=1415010114;
PRAGMA user_version=1;
"""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_S)


@pytest.fixture
def bus(tmp_path: Path, clock: ManualClock) -> Iterator[EmbeddedBus]:
    opened = EmbeddedBus(str(tmp_path / "bus.db"), clock=clock, partitions=4)
    yield opened
    opened.close()


def put(bus: EmbeddedBus, word: CommandRecord) -> None:
    bus.publish(COMMANDS, word.job, word)
    bus.flush()


def event(name: str, job: str) -> EventRecord:
    return EventRecord(id=name, job=job, node="n", time_s=0.0, kind="phase")


def test_no_signed_word_is_refused_after_a_clock_stood_ahead_for_one_record(
    bus: EmbeddedBus, clock: ManualClock
) -> None:
    trust = Trust([Trusted("ann", frozenset({"approve", "act", "stop"}), ANN.public)])
    clock.set_s(NOW_S + AHEAD_S)
    put(bus, ANN.sign(on_job("stop", "llama", "ann", clock.now_s()), clock.now_s()))
    clock.set_s(NOW_S)
    words = [on_job(kind, "llama", "ann", NOW_S) for kind in ("stop", "resume", "reset")]  # type: ignore[arg-type]
    approve = CommandRecord(id="a", job="llama", at_s=NOW_S, kind="approve", by="ann", action="i/evict/1")
    said = [ANN.sign(word, NOW_S) for word in (*words, approve)]
    for word in said:
        put(bus, word)
    clock.set_s(NOW_S + 1_000.0)
    put(bus, said[-1])  # an approval that somebody puts there once more
    put(bus, ANN.sign(approve, NOW_S))  # ... or that was held back since it was signed
    refusals = [trust.refusal(message) for message in in_order(bus.read(COMMANDS))]
    reasons = [None if one is None else one.reason for one in refusals]
    assert reasons == [*[None] * 5, "stale", "stale"]
    put(bus, ANN.sign(approve, clock.now_s()))
    fresh = [message for message in bus.read(COMMANDS)][-1]
    assert trust.refusal(fresh) is None
    put(bus, fresh.record)  # type: ignore[arg-type]
    assert [one.reason for one in map(trust.refusal, bus.read(COMMANDS)) if one][-1] == "replayed"


def test_what_was_written_later_is_later_whichever_topic_it_lies_in(bus: EmbeddedBus, clock: ManualClock) -> None:
    clock.set_s(NOW_S + AHEAD_S)
    put(bus, on_job("stop", "llama", "ann", clock.now_s()))
    clock.set_s(NOW_S)
    for name, job in (("a", "bert"), ("b", "vit"), ("c", "llama")):
        bus.publish(EVENTS, job, event(name, job))
        bus.flush()
    put(bus, on_job("resume", "*", "ann", NOW_S))
    found = sorted([*bus.read(COMMANDS), *bus.read(EVENTS)], key=lambda message: message.time_s)
    names = [getattr(message.record, "kind", "") + message.record.id[:1] for message in found]  # type: ignore[attr-defined]
    assert names == ["stopc", "phasea", "phaseb", "phasec", "resumec"]
    assert [message.clock_s for message in found] == [None, *[NOW_S] * 4]
    consumer = bus.consumer([EVENTS, COMMANDS, INCIDENTS], "g")
    assert [message.clock_s for message in consumer.poll(0.0)] == [None, *[NOW_S] * 4]


def test_a_file_of_an_earlier_version_is_read_and_written(tmp_path: Path, clock: ManualClock) -> None:
    path = str(tmp_path / "old.db")
    with sqlite3.connect(path) as file:
        file.executescript(PLAIN)
        file.execute("INSERT INTO streams (topic, partition, keep_s, next, last_s) VALUES (?, 0, 9e9, 1, ?)",
                     (EVENTS.name, NOW_S))  # fmt: skip
        file.execute("INSERT INTO records VALUES (?, ?, 'j', ?)", (1 << 40, NOW_S, EVENTS.encode(event("a", "j"))))
    file.close()
    bus = EmbeddedBus(path, clock=clock)
    bus.publish(EVENTS, "j", event("b", "j"))
    bus.flush()
    assert [message.record.id for message in bus.read(EVENTS)] == ["a", "b"]  # type: ignore[attr-defined]
    bus.close()
