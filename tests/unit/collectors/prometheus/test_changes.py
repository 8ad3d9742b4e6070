"""What changes from scrape to scrape: which GPU is lost, and what is let go of."""

from __future__ import annotations

from trainwarden.collectors.prometheus.changes import Changes
from trainwarden.prometheus.events import XID
from trainwarden.prometheus.exporters import Who

START_S = 1_000_000.0
HOUR_S = 3_600.0


def scraped(changes: Changes, tick: int, uuids: dict[str, str], xids: dict[str, float] | None = None) -> list[tuple]:
    """Kind and device of the events of one scrape, 15 s after the one before; `uuids` by index."""
    rows = {Who("n", index, uuid): {XID: (xids or {}).get(uuid, 0.0)} for index, uuid in uuids.items()}
    return [
        (event.kind, event.device, event.fields.get("uuid")) for event in changes.observe(rows, START_S + 15.0 * tick)
    ]


def test_of_gpus_with_new_numbers_the_one_without_is_lost_once() -> None:
    changes = Changes("job", 15.0)
    assert scraped(changes, 0, {"0": "A", "1": "B", "2": "C"}) == []
    found = [one for tick in range(20, 30) for one in scraped(changes, tick, {"0": "B", "1": "C"})]
    assert found == [("device_lost", "0", "A")]


def test_a_gpu_that_was_exchanged_or_divided_otherwise_is_not_lost() -> None:
    changes = Changes("job", 15.0)
    scraped(changes, 0, {"0": "A", "1/7": "B/7", "1/8": "B/8"})
    assert [one for tick in range(1, 20) for one in scraped(changes, tick, {"0": "Z", "1/1": "B/1"})] == []


def test_a_gpu_in_parts_is_lost_as_one() -> None:
    changes = Changes("job", 15.0)
    scraped(changes, 0, {"0": "A", "1/7": "B/7", "1/8": "B/8"})
    found = [one for tick in range(1, 20) for one in scraped(changes, tick, {"0": "A"})]
    assert found == [("device_lost", "1", "B")]


def test_a_gpu_that_is_told_of_again_is_back_under_the_name_it_was_lost_by() -> None:
    changes = Changes("job", 15.0)
    scraped(changes, 0, {"0": "A", "1/7": "B/7", "1/8": "B/8", "2": "C"})
    found = [one for tick in range(1, 9) for one in scraped(changes, tick, {"0": "A", "2": "C"})]
    assert found == [("device_lost", "1", "B")]
    assert scraped(changes, 9, {"0": "A", "1": "C", "2/1": "B/1"}) == [("device_back", "1", None)]
    found = [one for tick in range(10, 30) for one in scraped(changes, tick, {"0": "A", "1": "C"})]
    assert found == [("device_lost", "2", "B")]


def test_a_gpu_in_the_place_of_the_lost_one_is_back() -> None:
    changes = Changes("job", 15.0)
    scraped(changes, 0, {"0": "A", "1": "B"})
    assert [one for tick in range(1, 9) for one in scraped(changes, tick, {"0": "A"})] == [("device_lost", "1", "B")]
    assert scraped(changes, 9, {"0": "A", "1": "Z"}) == [("device_back", "1", None)]
    assert [one for tick in range(10, 30) for one in scraped(changes, tick, {"0": "A", "1": "Z"})] == []


def test_an_xid_stays_with_its_gpu() -> None:
    changes = Changes("job", 15.0)
    scraped(changes, 0, {"0": "A", "1": "B"}, {"B": 31.0})
    assert scraped(changes, 1, {"0": "B", "1": "A"}, {"B": 31.0}) == []
    assert scraped(changes, 2, {"0": "B", "1": "A"}, {"B": 79.0}) == [("xid", "0", "B")]


def test_names_that_come_and_go_are_let_go_of() -> None:
    changes = Changes("job", 15.0)
    scraped(changes, 0, {"0": "A", "1": "B"})
    for minute in range(600):
        now_s = START_S + 60.0 * minute
        list(changes.observe({Who("n", f"eni{minute}"): {"nic_link_state": 1.0}}, now_s))
        changes.forget(now_s)
    assert len(changes.known["n"]) <= 2 + 60
    assert scraped(changes, 2400, {"0": "A"}) == [("device_lost", "1", "B")]  # ten hours later
    changes.forget(START_S + 48.0 * HOUR_S)
    assert changes.known == {}
