"""The inspector's files: what is told of them, when, and what is borne."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.places import DATA
from tests.unit.collectors.nccl_inspector.inspected import ON, Inspected, Watch
from trainwarden.collectors.nccl_inspector import growing_file
from trainwarden.collectors.nccl_inspector.lines import Call, call_of
from trainwarden.detectors.job.state import JobState
from trainwarden.records import CollectivesRecord
from trainwarden.topics import COLLECTIVES

RANKS = 4
SETTLED = 6  # looks, after which a step of a second is told


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "hook").mkdir()
    return tmp_path


@pytest.fixture
def ranks(run_dir: Path) -> Iterator[list[Inspected]]:
    found = [Inspected(run_dir, rank) for rank in range(RANKS)]
    yield found
    for one in found:
        one.end()


@pytest.fixture
def watch(run_dir: Path, ranks: list[Inspected]) -> Iterator[Watch]:
    watch = Watch(run_dir, ranks[0].begin_s)
    yield watch
    watch.collector.close()


def stepped(ranks: list[Inspected], watch: Watch, steps: int, late: int | None = None) -> list[CollectivesRecord]:
    """Steps of one call each, in which all but rank `late` wait 20 ms for it."""
    found = []
    for _ in range(steps):
        for one in ranks:
            one.step()
            one.write(one.call(one.steps, lasts_us=1000 if late in (None, one.rank) else 21_000))
        found += watch.look()
    return found


def test_lines_that_nvidia_s_own_code_wrote_are_read():
    lines = (DATA / "nccl_inspector" / "recorded.log").read_bytes().splitlines()
    calls = [call for call in map(call_of, lines) if isinstance(call, Call)]
    assert [(call.function, call.seq, call.size_bytes) for call in calls] == [
        ("AllReduce", 0, 16384),
        ("AllGather", 1, 16384),
        ("ReduceScatter", 2, 16384),
    ]
    assert {call.device_s for call in calls} == {51e-6}
    assert {call.comm for call in calls} == {("00e62dedaa97644a", "dp", 8, 2, 1)}
    assert all(0.0 < call.dumped_s - call.began_s < 0.2 for call in calls)


def test_calls_are_told_once_with_their_steps_and_who_was_late_is_seen(ranks: list[Inspected], watch: Watch):
    records = stepped(ranks, watch, 20, late=2)
    told = [(record.rank, step) for record in records for step in record.steps]
    assert len(told) == len(set(told))
    assert {rank for rank, _ in told} == set(range(RANKS))
    assert {step for _, step in told} == set(range(max(step for _, step in told) + 1))
    assert all(COLLECTIVES.decode(COLLECTIVES.encode(record)) == record for record in records)
    state = JobState("job")
    joined = []
    for record in records:
        state.feed(record)
        joined += state.window(record.time_s).calls
    assert len(joined) >= 10
    for step in joined:
        assert step.joined.tolist() == [1] * RANKS
        assert step.wait_s.round(6).tolist() == [0.02, 0.02, 0.0, 0.02]


def test_only_the_asked_for_steps_are_told(ranks: list[Inspected], run_dir: Path):
    watch = Watch(run_dir, ranks[0].begin_s, every_steps=4)
    records = stepped(ranks, watch, 20)
    assert {step for record in records for step in record.steps} == {0, 4, 8, 12}
    watch.collector.close()


@pytest.mark.thorough
@pytest.mark.parametrize("at", [1, 4, 9])
def test_a_restart_loses_nothing_and_doubles_nothing(ranks: list[Inspected], watch: Watch, at: int):
    records = stepped(ranks, watch, at)
    watch.restart()
    records += stepped(ranks, watch, 20 - at)
    told = [(record.rank, step) for record in records for step in record.steps]
    assert len(told) == len(set(told))
    assert {step for _, step in told} == set(range(max(step for _, step in told) + 1))
    assert sum(record.lost for record in records) == 0


def test_what_a_rank_wrote_at_its_end_is_told(ranks: list[Inspected], watch: Watch):
    stepped(ranks, watch, 3)
    ranks[1].end()
    records = watch.look() + watch.look()
    assert [(record.rank, record.steps) for record in records] == [(1, (0, 1, 2))]


def test_foreign_torn_and_endless_lines_are_passed_over_and_said_once(
    ranks: list[Inspected], watch: Watch, caplog: pytest.LogCaptureFixture
):
    one = ranks[0]
    one.step()
    whole = one.call(1)
    bad = [
        b"NCCL INFO Inspector\n",
        b"\xff\xfe\n",
        b"[" * 60_000 + b"\n",
        whole.replace(b'"0xab"', b'"ab"'),
        whole.replace(b'"coll_sn": 1', b'"coll_sn": -1'),
        whole.replace(b"1.0", b"nan"),
        one.call(2, coll="A" * 65),
        one.call(3, at_s=1e15),
    ]
    one.write(*bad, whole[:40])
    with caplog.at_level(logging.WARNING):
        assert watch.look() == watch.look() == []
    one.write(whole[40:], b"x" * 70_000)
    watch.look()
    one.write(b"\n")
    told = []
    for _ in range(2 * SETTLED):
        one.step()
        one.write(one.call(10 + one.steps))
        told += watch.look()
    assert caplog.messages == ["lines that are none of the inspector's: passed over"]
    assert [record.seqs for record in told][:3] == [(1,), (12,), (13,)]


def test_a_torn_line_is_read_when_it_is_whole(ranks: list[Inspected], watch: Watch):
    one = ranks[0]
    one.step()
    whole = one.call(1)
    one.write(whole[:40])
    watch.look()
    one.write(whole[40:])
    records = stepped(ranks, watch, SETTLED)
    assert [record.seqs for record in records if record.rank == 0 and 0 in record.steps] == [(1,)]


def test_a_file_that_was_emptied_is_begun_anew(ranks: list[Inspected], watch: Watch):
    stepped(ranks, watch, 5)
    for one in ranks:
        one.log.write_bytes(b"")
    records = stepped(ranks, watch, 10)
    assert max(step for record in records for step in record.steps) >= 8


def test_of_a_long_file_the_end_is_read_and_more_than_can_be_read_is_passed_over(
    ranks: list[Inspected], watch: Watch, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(growing_file, "READ_BYTES", 4096)
    monkeypatch.setattr(growing_file, "BEHIND_BYTES", 20_000)
    one = ranks[0]
    for number in range(1, 41):
        one.step()
        one.write(one.call(number))
    file = growing_file.GrowingFile(str(one.log))
    texts = [line.text for line in file.lines()]
    assert 5 <= len(texts) < 10
    assert texts[-1] + b"\n" == one.call(40)
    one.write(*[one.call(40)] * 100)
    assert 5 <= len(file.lines()) < 10
    assert file.skipped_bytes > 20_000
    file.close()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"NCCL_INSPECTOR_DUMP_VERBOSE": "0"}, "only with NCCL_INSPECTOR_DUMP_VERBOSE=1"),
        ({"NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "-1"}, "MICROSECONDS=500000"),
        ({"NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "30000000"}, "MICROSECONDS=500000"),
        ({"NCCL_INSPECTOR_PROM_DUMP": "1"}, "NCCL_INSPECTOR_PROM_DUMP=0"),
        ({"NCCL_INSPECTOR_ENABLE": "0"}, ""),
    ],
)
def test_what_it_must_be_told_is_said_once(
    run_dir: Path, changes: dict[str, str], said: str, caplog: pytest.LogCaptureFixture
):
    rank = Inspected(run_dir, 0, {**ON, **changes})
    watch = Watch(run_dir, rank.begin_s)
    with caplog.at_level(logging.WARNING):
        for _ in range(30):
            rank.step()
            rank.write(rank.call(rank.steps))
            assert watch.look() == []
    assert len(caplog.messages) == (1 if said else 0)
    assert said in "".join(caplog.messages)
    rank.end()


def test_a_named_folder_is_enough_and_calls_without_a_time_are_said(run_dir: Path, caplog: pytest.LogCaptureFixture):
    rank = Inspected(run_dir, 0, {})
    watch = Watch(run_dir, rank.begin_s, folder=str(rank.folder))
    with caplog.at_level(logging.WARNING):
        for _ in range(10):
            rank.step()
            rank.write(rank.call(rank.steps, event_trace_ts=None))
            assert watch.look() == []
    assert caplog.messages == ["calls without the time at which they were asked for: set NCCL_INSPECTOR_DUMP_VERBOSE=1"]
    rank.end()


def test_a_pipe_or_a_device_in_its_place_is_left_alone(run_dir: Path):
    import os

    rank = Inspected(run_dir, 0)
    os.mkfifo(rank.log)
    watch = Watch(run_dir, rank.begin_s)
    assert watch.look() == []
    rank.log.unlink()
    rank.log.symlink_to("/dev/zero")
    assert watch.look(20.0) == []
    rank.end()


def test_after_a_restart_a_line_that_lies_behind_one_that_waits_is_not_told_again(ranks: list[Inspected], watch: Watch):
    one = ranks[0]
    one.step()
    one.write(one.call(9, at_s=one.begin_s + 12.5), one.call(1))
    records = stepped(ranks, watch, 8)
    watch.restart()
    records += stepped(ranks, watch, 12)
    assert [record.seqs.count(1) for record in records if record.rank == 0 and 0 in record.steps] == [1]
    assert sum(9 in record.seqs and 12 in record.steps for record in records if record.rank == 0) == 1


@pytest.mark.parametrize("place", ["/dev/zero", "/"])
def test_what_is_no_file_is_refused(place: str):
    with pytest.raises(OSError, match="no regular file"):
        growing_file.GrowingFile(place)
