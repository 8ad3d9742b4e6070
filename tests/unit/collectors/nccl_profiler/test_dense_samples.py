"""A detector's request for denser samples, on its way into the ranks' files: bounded, counted, and never a harm."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest

from tests.unit.collectors.nccl_profiler.watching import Rank, Watch
from trainwarden.collectors.nccl_profiler.layout import AT_SAMPLE_UNTIL, FILE_BYTES
from trainwarden.records import SamplingRecord


@pytest.fixture
def rank(rank: Rank) -> Rank:
    rank.file.step(60)
    return rank


def asked(first: int = 70, until: int = 102) -> SamplingRecord:
    return SamplingRecord(job="job", time_s=1.0, from_step=first, until_step=until, why="slow")


def written(rank: Rank) -> tuple[int, int]:
    """Until and from."""
    return struct.unpack_from("@2Q", rank.file.path.read_bytes(), 8 * AT_SAMPLE_UNTIL)  # type: ignore[return-value]


def test_a_request_is_written_into_the_file_of_a_rank(run_dir: Path, rank: Rank) -> None:
    watch = Watch(run_dir)
    assert not watch.collector.listens
    watch.look()
    assert watch.collector.listens
    watch.collector.ask(asked())
    watch.look()
    assert (written(rank), watch.collector.requests.outcomes) == ((102, 70), {"granted": 1})
    assert rank.file.path.stat().st_size == FILE_BYTES


@pytest.mark.parametrize(
    ("request_", "outcome"),
    [
        (asked(70, 70), "odd"), (asked(70, 60), "odd"), (asked(70, 103), "odd"), (asked(0, 1 << 39), "odd"),
        (asked(20, 52), "late"), (asked(28, 60), "late"),
    ],
)  # fmt: skip
def test_what_is_too_much_or_over_is_passed_over(
    request_: SamplingRecord, outcome: str, run_dir: Path, rank: Rank
) -> None:
    watch = Watch(run_dir)
    watch.look()
    watch.collector.ask(request_)
    watch.look()
    assert (written(rank), watch.collector.requests.outcomes) == ((0, 0), {outcome: 1})


def test_requests_are_granted_no_more_often_than_that(
    run_dir: Path, rank: Rank, caplog: pytest.LogCaptureFixture
) -> None:
    """However many come: of a flood the newest few are looked at, and one is granted."""
    caplog.set_level("INFO")
    watch = Watch(run_dir, dense_every_s=100.0)
    watch.look()
    for number in range(1000):
        watch.collector.ask(asked(70 + number, 102 + number))
    watch.look()
    assert watch.collector.requests.outcomes == {"granted": 1, "too_soon": 15}
    assert written(rank) == (102 + 984, 70 + 984)
    assert len(caplog.messages) == 2
    watch.look(101.0)
    watch.collector.ask(asked(2000, 2001))
    watch.look()
    assert written(rank) == (2001, 2000)


def test_who_wants_none_listens_to_nobody(run_dir: Path, rank: Rank) -> None:
    watch = Watch(run_dir, dense_steps=0)
    watch.look()
    assert not watch.collector.listens
    watch.collector.ask(asked())
    watch.look()
    assert written(rank) == (0, 0)


def test_a_rank_whose_calls_are_never_stamped_is_not_asked(run_dir: Path) -> None:
    rank = Rank(run_dir)
    rank.file.write(8 * 8, struct.pack("@Q", 0))  # kernel_mode
    watch = Watch(run_dir)
    watch.look()
    assert not watch.collector.listens
    watch.collector.ask(asked())
    watch.look()
    assert watch.collector.requests.outcomes == {"no_rank": 1}


def test_a_file_put_in_the_place_of_a_ranks_is_not_written(run_dir: Path, rank: Rank) -> None:
    watch = Watch(run_dir)
    watch.look()
    victim = run_dir / "victim"
    victim.write_bytes(bytes(FILE_BYTES))
    rank.file.path.unlink()
    os.link(victim, rank.file.path)
    watch.collector.ask(asked())
    watch.look()
    assert victim.read_bytes() == bytes(FILE_BYTES)


def test_positions_know_nothing_of_requests(run_dir: Path, rank: Rank) -> None:
    watch = Watch(run_dir)
    watch.look()
    watch.collector.ask(asked())
    before = json.dumps(watch.collector.position())
    watch.restart()
    assert json.dumps(watch.collector.position()) == before
    watch.look()
    assert written(rank) == (0, 0)
