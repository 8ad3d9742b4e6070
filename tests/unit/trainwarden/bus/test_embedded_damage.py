"""A bus file whose content is broken, a log beside it that was cut off, a disk that takes nothing."""

from __future__ import annotations

import logging
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainwarden.bus.embedded import store
from trainwarden.bus.embedded.damaged import set_aside
from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.errors import BusUnavailable, ConfigError
from trainwarden.records import EventRecord
from trainwarden.topics import EVENTS, METRICS

PAGE_BYTES = 8192
RECORDS = 600


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "bus.db")


def say(bus: EmbeddedBus, *numbers: int, key: str = "k") -> None:
    for number in numbers:
        bus.publish(EVENTS, key, EventRecord(id=str(number), job=key, node="n", time_s=0.0, kind="phase",
                                             message=f"{number} " * 200))  # fmt: skip
    bus.flush()


def numbers(bus: EmbeddedBus) -> list[int]:
    return [int(message.record.id) for message in bus.read(EVENTS)]  # type: ignore[attr-defined]


def filled(path: str) -> None:
    """A closed bus of many pages, of which a group has read 100 records."""
    bus = EmbeddedBus(path, partitions=1)
    consumer = bus.consumer([EVENTS], "g")
    say(bus, *range(RECORDS))
    assert len(consumer.poll(0.0, max_records=100)) == 100
    consumer.commit()
    bus.close()
    assert not Path(path + "-wal").exists()


def break_page(path: str, number: int) -> None:
    with open(path, "r+b") as file:
        file.seek(number * PAGE_BYTES)
        file.write(os.urandom(PAGE_BYTES))


def asides(path: str) -> list[Path]:
    return [one for one in Path(path).parent.glob("bus.db.damaged-*") if not one.name.endswith(("-wal", "-shm"))]


def tried(bus: EmbeddedBus) -> list[int]:
    """What can be read, once the bus has said that it begins anew."""
    for _ in range(3):
        try:
            return numbers(bus)
        except BusUnavailable:
            continue
    raise AssertionError("the bus stays away")


def test_a_page_that_is_broken_costs_its_records_and_no_others(path: str, caplog: pytest.LogCaptureFixture) -> None:
    filled(path)
    break_page(path, Path(path).stat().st_size // PAGE_BYTES // 2)
    bus = EmbeddedBus(path, partitions=1)
    found = tried(bus)
    assert len(found) > 0.8 * RECORDS
    assert set(found) <= set(range(RECORDS))
    (aside,) = asides(path)
    (said,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert said.fields["set_aside"] == str(aside)  # type: ignore[attr-defined]
    assert said.fields["records_kept"] == len(found)  # type: ignore[attr-defined]
    assert said.fields["records_lost"] == RECORDS - len(found)  # type: ignore[attr-defined]
    consumer = bus.consumer([EVENTS], "g")  # goes on where its group was, with the same offsets
    messages = [*consumer.poll(0.0), *consumer.poll(0.0)]
    assert {message.offset: int(message.record.id) for message in messages} == {  # type: ignore[attr-defined]
        number: number for number in found if number >= 100
    }
    say(bus, RECORDS)
    assert numbers(bus) == [*found, RECORDS]
    times = [message.time_s for message in bus.read(EVENTS)]
    assert times == sorted(times)
    bus.close()


@pytest.mark.parametrize("page", [0, 1])
def test_a_file_of_which_nothing_can_be_read_is_set_aside_and_the_bus_goes_on(path: str, page: int) -> None:
    filled(path)
    break_page(path, page)
    bus = EmbeddedBus(path, partitions=1)
    tried(bus)
    assert len(asides(path)) == 1
    say(bus, RECORDS)
    assert numbers(bus)[-1] == RECORDS
    bus.close()


def test_processes_that_have_the_file_open_go_on_with_the_new_one(path: str) -> None:
    filled(path)
    writer, reader = EmbeddedBus(path, partitions=1), EmbeddedBus(path, partitions=1)
    say(writer, RECORDS)
    consumer = reader.consumer([EVENTS], "other")
    assert consumer.assignment()
    writer.publish(EVENTS, "k", EventRecord(id="9999", job="k", node="n", time_s=0.0, kind="phase"))
    set_aside(path, Path(path).stat().st_ino)  # as a third process does
    writer.flush()
    seen: list[int] = []
    lost = False
    for _ in range(20):
        seen += [int(message.record.id) for message in consumer.poll(0.0)]  # type: ignore[attr-defined]
        lost = lost or not consumer.assignment()
    assert seen == [*range(RECORDS + 1), 9999]
    assert lost, "it had to join the group of the new file"
    consumer.commit()
    assert consumer.lag() == 0
    reader.close()
    writer.close()


def test_what_waits_in_a_queue_reaches_its_topic_though_no_name_of_a_topic_could_be_read(path: str) -> None:
    bus = EmbeddedBus(path, partitions=2)
    say(bus, 1)
    bus._topic_streams(METRICS)
    bus.publish(EVENTS, "k", EventRecord(id="2", job="k", node="n", time_s=0.0, kind="phase"))
    Path(path).unlink()
    for part in ("-wal", "-shm"):
        Path(path + part).unlink()
    other = EmbeddedBus(path, partitions=2)  # a new file in which topics have other numbers
    other._topic_streams(METRICS)
    bus.flush()
    assert numbers(other) == [2]
    bus.close()
    other.close()


def test_another_programs_file_is_left_alone(path: str) -> None:
    Path(path).write_bytes(b"my thesis, not a database " * 1_000)
    with pytest.raises(ConfigError, match="not a database of trainwarden"):
        EmbeddedBus(path)
    assert [one.name for one in Path(path).parent.iterdir()] == ["bus.db"]


def test_a_log_that_was_cut_off_costs_its_end_alone(path: str) -> None:
    """What the machine was killed at: the file itself has nothing yet, and the last transactions are torn."""
    bus = EmbeddedBus(path, partitions=1)
    for number in range(20):
        say(bus, number)
    kept = {part: Path(path + part).read_bytes() for part in ("", "-wal")}
    bus.close()
    for part in ("", "-wal", "-shm"):
        Path(path + part).unlink(missing_ok=True)
    Path(path).write_bytes(kept[""])
    Path(path + "-wal").write_bytes(kept["-wal"][: len(kept["-wal"]) * 3 // 4 + 17])
    again = EmbeddedBus(path, partitions=1)
    found = numbers(again)
    assert found == list(range(len(found)))
    assert 5 < len(found) < 20
    say(again, 100)
    assert numbers(again) == [*found, 100]
    assert asides(path) == []
    again.close()


def test_a_bus_that_cannot_be_begun_on_a_full_disk_is_said_at_once(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was tried for ten seconds, as if another process held it: at each try of an agent, and before a command."""
    monkeypatch.setattr(store.time, "sleep", lambda _: pytest.fail("it waits"))
    _, hard = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(BusUnavailable, match=r"full|I/O"):
            EmbeddedBus(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def bus(path: str) -> Iterator[EmbeddedBus]:
    opened = EmbeddedBus(path, partitions=1)
    yield opened
    opened.close()


def test_a_disk_that_has_become_read_only_keeps_the_queue_and_readers_say_that_the_bus_is_away(
    bus: EmbeddedBus,
) -> None:
    say(bus, 0)
    consumer = bus.consumer([EVENTS], "g")
    bus.publish(EVENTS, "k", EventRecord(id="1", job="k", node="n", time_s=0.0, kind="phase"))
    for one in (bus._store, consumer._store):
        one.db.execute("PRAGMA query_only=1")  # SQLite's own error of such a disk
    with pytest.raises(BusUnavailable, match="readonly"):
        bus.flush()
    assert [message.record.id for message in consumer.poll(0.0)] == ["0"]
    with pytest.raises(BusUnavailable, match="readonly"):
        consumer.commit()
    for one in (bus._store, consumer._store):
        one.db.execute("PRAGMA query_only=0")
    bus.flush()
    consumer.commit()
    assert [message.record.id for message in consumer.poll(0.0)] == ["1"]
