"""Which log lines are shown beside an incident, whatever order and clocks they come with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.page_world import NOW_S, incident
from trainwarden.dashboards.page.lines import LATE_S, MOST_RECORDS, around
from trainwarden.protocols import Message
from trainwarden.records import LogRecord

ERROR = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
OPENED = incident("i1", "j", NOW_S)


def message(job: str, arrived_s: float, *lines: str, partition: int = 0, clock_s: float = 0.0) -> Message:
    record = LogRecord(
        job=job, node="n", source="rank-0.log", rank=0, lines=lines,
        times_s=tuple(arrived_s - 0.5 + clock_s for _ in lines), ends=tuple(100 * (at + 1) for at in range(len(lines))),
    )  # fmt: skip
    return Message("trainwarden.logs", partition, 0, arrived_s, job, record)


def test_lines_of_a_partition_that_comes_after_a_longer_one_are_found():
    """A bus keeps the order of each partition, not of them all."""
    others = [message("other", NOW_S + at, "step", partition=1) for at in range(200)]
    found = around(OPENED, lambda _: [*others, message("j", NOW_S - 5.0, ERROR)])
    assert found.error is not None
    assert found.error.text == ERROR
    assert not found.cut


def test_what_comes_late_is_not_read_to_its_end():
    read = 0

    def messages(_from_s: float) -> Iterator[Message]:
        nonlocal read
        yield message("j", NOW_S - 5.0, ERROR)
        while True:
            read += 1
            yield message("j" if read == 50 else "other", NOW_S + LATE_S + 100.0, "step")

    assert not around(OPENED, messages).cut
    assert read == 50


def test_there_is_an_end_to_reading():
    def messages(_from_s: float) -> Iterator[Message]:
        while True:
            yield message("other", NOW_S, "step")

    assert around(OPENED, messages).cut
    endless = (message("other", NOW_S + LATE_S + 100.0, "step") for _ in range(MOST_RECORDS + 2))
    assert not around(OPENED, lambda _: endless).cut
    assert len(list(endless)) == 2


@pytest.mark.parametrize("clock_s", [60.0, 3_600.0, 0.0, -60.0])
def test_lines_of_a_node_whose_clock_is_another(clock_s):
    found = around(OPENED, lambda _: [message("j", NOW_S - 5.0, "step", ERROR, clock_s=clock_s)])
    assert found.error is not None
    assert found.error.time_s == (NOW_S - 5.0 if clock_s > 0.0 else NOW_S - 5.5 + clock_s)
