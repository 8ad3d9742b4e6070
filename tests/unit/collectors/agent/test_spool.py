"""The disk spool: order, bound, kills at any byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doubles import log_record
from trainwarden.collectors.agent.spool import Spool
from trainwarden.records import LogRecord, Record
from trainwarden.topics import MAX_RECORD_BYTES

LIMIT = 65_536


def pairs(start: int, stop: int) -> list[tuple[str, Record]]:
    return [("job", log_record(number)) for number in range(start, stop)]


def drain(spool: Spool, batch: int = 7) -> list[int]:
    """Numbers of all records left, in the order in which the spool gives them."""
    numbers: list[int] = []
    while True:
        end, got = spool.peek(batch)
        if not got:
            return numbers
        for key, record in got:
            assert key == "job"
            assert isinstance(record, LogRecord)
            numbers.append(record.ends[0])
        spool.advance(end)


def test_records_come_out_in_the_order_they_went_in(tmp_path: Path) -> None:
    spool = Spool(tmp_path, LIMIT)
    for start in range(0, 100, 10):
        assert spool.append(pairs(start, start + 10)) == 0
    assert len(spool) == 100
    assert drain(spool) == list(range(100))
    assert (len(spool), spool.size_bytes) == (0, 0)
    assert list(tmp_path.glob("*.seg")) == []


def test_peeking_removes_nothing(tmp_path: Path) -> None:
    spool = Spool(tmp_path, LIMIT)
    spool.append(pairs(0, 5))
    assert spool.peek(3) == spool.peek(3)
    assert len(spool) == 5


def test_at_the_bound_the_oldest_go_first_and_are_counted(tmp_path: Path) -> None:
    spool = Spool(tmp_path, LIMIT)
    dropped = sum(spool.append(pairs(number, number + 1)) for number in range(2000))
    assert spool.size_bytes <= LIMIT
    assert dropped > 0
    left = drain(spool)
    assert left == list(range(dropped, 2000))


def test_dropping_overtakes_an_advance(tmp_path: Path) -> None:
    spool = Spool(tmp_path, LIMIT)
    spool.append(pairs(0, 5))
    end, _ = spool.peek(5)
    for number in range(5, 3000):
        spool.append(pairs(number, number + 1))
    head = spool.head
    assert head > end
    spool.advance(end)
    assert spool.head == head
    assert drain(spool)[0] == head


def test_another_process_goes_on_at_the_confirmed_record(tmp_path: Path) -> None:
    first = Spool(tmp_path, LIMIT)
    for start in range(0, 300, 3):
        first.append(pairs(start, start + 3))
    for _ in range(5):
        first.advance(first.peek(10)[0])
    confirmed = first.head
    # No close: this is what a kill leaves.
    second = Spool(tmp_path, LIMIT)
    assert len(second) == 300 - confirmed < 300
    second.append(pairs(300, 310))
    assert drain(second) == list(range(confirmed, 310))


@pytest.mark.parametrize("cut", [1, 3, 7, 9, 40])
def test_a_torn_tail_loses_only_the_torn_record(tmp_path: Path, cut: int) -> None:
    first = Spool(tmp_path, LIMIT)
    first.append(pairs(0, 10))
    segment = next(tmp_path.glob("*.seg"))
    segment.write_bytes(segment.read_bytes()[:-cut])
    second = Spool(tmp_path, LIMIT)
    second.append(pairs(10, 12))
    assert drain(second) == [*range(9), 10, 11]


def test_a_flipped_bit_loses_one_record_and_is_counted(tmp_path: Path) -> None:
    first = Spool(tmp_path, LIMIT)
    first.append(pairs(0, 10))
    segment = next(tmp_path.glob("*.seg"))
    data = bytearray(segment.read_bytes())
    data[data.index(b"line 5")] ^= 0x40
    segment.write_bytes(bytes(data))
    second = Spool(tmp_path, LIMIT)
    left = drain(second)
    assert len(left) == 9
    assert left == sorted(left)
    assert second.damaged == 1


def test_a_damaged_head_file_sends_again_instead_of_losing(tmp_path: Path) -> None:
    first = Spool(tmp_path, LIMIT)
    first.append(pairs(0, 10))
    first.advance(first.peek(4)[0])
    (tmp_path / "head.json").write_text("{")
    assert drain(Spool(tmp_path, LIMIT)) == list(range(10))


def test_a_segment_that_somebody_removed_is_passed_over(tmp_path: Path) -> None:
    spool = Spool(tmp_path, LIMIT)
    for number in range(200):
        spool.append(pairs(number, number + 1))
    sorted(tmp_path.glob("*.seg"))[0].unlink()
    left = drain(spool)
    assert left == list(range(left[0], 200))
    assert spool.damaged == left[0]


def test_a_record_too_large_for_any_bus_is_refused(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 4 * MAX_RECORD_BYTES)
    huge = LogRecord(job="j", node="n", source="s", ends=(1,), lines=("x" * MAX_RECORD_BYTES,), times_s=(0.0,))
    assert spool.append([("job", huge), *pairs(1, 2)]) == 0
    assert spool.refused == 1
    assert drain(spool) == [1]


def test_closing_is_safe_twice_and_writing_goes_on_after_it(tmp_path: Path) -> None:
    spool = Spool(tmp_path, LIMIT)
    spool.append(pairs(0, 1))
    spool.close()
    spool.close()
    spool.append(pairs(1, 2))
    assert drain(spool) == [0, 1]
