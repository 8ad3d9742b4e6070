"""The archive holds each record once, whatever is killed when, and readers of another make see it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.archive_doubles import (
    DAY_S,
    MAKERS,
    NOON_S,
    Killed,
    Log,
    Service,
    death_at,
    event_record,
    expected,
    lines_record,
    metrics_record,
    present,
    steps_record,
)
from tests.doubles import ManualClock
from trainwarden.errors import DataError
from trainwarden.records import (
    ActionRecord,
    IncidentRecord,
    IterationRecord,
    LogRecord,
    MetricsRecord,
    Suspect,
    VerdictRecord,
    Vote,
)
from trainwarden.trainer_offline.archive import compaction, maintenance
from trainwarden.trainer_offline.archive import reader as archive_reader
from trainwarden.trainer_offline.archive.atomic import held_open
from trainwarden.trainer_offline.archive.data_file import Part, part_of
from trainwarden.trainer_offline.archive.export import export


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed loses nothing that the kernel has; only a power cut asks for the real thing."""
    monkeypatch.setattr("os.fsync", lambda number: None)


def filled(number: int = 12, topics: int = 4) -> Log:
    """Records of four topics, two jobs and two days."""
    log = Log()
    for index in range(number):
        for make in list(MAKERS.values())[:topics]:
            job, day_s = f"job{index % 2}", DAY_S * (index // 6 % 2)
            log.put(make(index, job=job, time_s=NOON_S - day_s))
    return log


def archived(log: Log, root: Path, **settings: Any) -> None:
    service = Service(log, root, **settings)
    service.rounds(12)
    service.handler.finish()
    service.handler.close()


def test_each_record_is_there_once_in_the_folder_of_its_job_and_day(tmp_path: Path) -> None:
    log = filled()
    archived(log, tmp_path)
    assert present(tmp_path) == expected(log)
    assert log.committed == {place: 12 for place in log.messages}
    folders = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("metrics/*/*")}
    days = ("day=2024-10-03", "day=2024-10-04")
    assert folders == {f"metrics/job=job{job}/{day}" for job in (0, 1) for day in days}


def test_nothing_is_committed_before_it_is_on_disk(tmp_path: Path) -> None:
    log = filled()
    clock = ManualClock(NOON_S)
    service = Service(log, tmp_path, clock, flush_bytes=10**9, flush_s=60.0)
    service.rounds(6)
    assert not log.committed
    assert not present(tmp_path)
    clock.sleep(61.0)
    service.rounds(2)
    assert log.committed == {place: 12 for place in log.messages}
    assert present(tmp_path) == expected(log)


def test_without_the_gate_every_round_is_on_disk_before_its_commit(tmp_path: Path) -> None:
    log = filled()
    service = Service(log, tmp_path, flush_bytes=10**9)
    service.loop._bus = log  # type: ignore[assignment]
    service.rounds(1)
    assert sum(log.committed.values()) == 12
    assert sum(1 for key in present(tmp_path)) == 12


@pytest.mark.thorough
@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_step_of_writing(after: bool, tmp_path: Path) -> None:
    step = 0
    while True:
        step += 1
        log, root = filled(8, topics=2), tmp_path / str(step)
        first = Service(log, root, flush_bytes=4_096 * 2)
        with death_at(step, after=after) as done:
            try:
                first.rounds(8)
                first.handler.finish()
            except Killed:
                pass
            else:
                assert done() < step
                assert step > 30
                return
        first.die()
        archived(log, root)
        assert present(root) == expected(log), f"killed at step {step}"
        assert not list((root / ".staging").rglob("*.parquet"))


@pytest.mark.thorough
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("atomic", [True, False])
def test_killed_at_any_step_of_compaction(
    after: bool, atomic: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not atomic:
        monkeypatch.setattr(compaction, "exchange", lambda one, other: False)
    step = 0
    while True:
        step += 1
        log, root = Log(), tmp_path / str(step)
        for index in range(9):
            log.put(metrics_record(index))
        archived(log, root, flush_bytes=4_096)
        service = Service(log, root)
        for _ in range(3):
            for _ in range(3):
                log.put(metrics_record(len(log.messages[next(iter(log.messages))])))
            service.rounds(1)
            service.handler.finish()
        with death_at(step, after=after) as done:
            try:
                maintenance.compact(root, {}, NOON_S)
            except Killed:
                killed = True
            else:
                killed = False
                assert done() < step
        if atomic:
            assert present(root) == expected(log), f"killed at step {step}"
        if killed:
            log.put(metrics_record(99))
            service.rounds(1)
            service.handler.finish()
        maintenance.compact(root, {}, NOON_S)
        assert present(root) == expected(log), f"killed at step {step}, compacted again"
        assert len(list(root.glob("metrics/*/*/*"))) == 1
        assert not list((root / ".staging").rglob("*.parquet"))
        service.die()
        if not killed:
            assert step > 8
            return


def test_what_comes_again_within_one_life_is_passed_over(tmp_path: Path) -> None:
    log = filled()
    service = Service(log, tmp_path, flush_bytes=10**9)
    service.rounds(2)
    service.loop._consumer._inner.rewind()  # type: ignore[union-attr]
    service.rounds(6)
    service.handler.finish()
    assert present(tmp_path) == expected(log)


def test_a_bus_that_was_made_anew_counts_from_zero_and_loses_nothing(tmp_path: Path) -> None:
    old, new = filled(), filled()
    archived(old, tmp_path)
    for place, stream in new.messages.items():
        new.messages[place] = [
            type(one)(one.topic, one.partition, one.offset, one.time_s + 1000.0, one.key, one.record) for one in stream
        ]
    archived(new, tmp_path)
    both = expected(old) + expected(new)
    assert present(tmp_path) == both
    maintenance.compact(tmp_path, {}, NOON_S)
    assert present(tmp_path) == both
    new.committed.clear()
    archived(new, tmp_path)
    assert present(tmp_path) == both


def test_two_processes_never_write_one_partition(tmp_path: Path) -> None:
    log = filled()
    first, second = Service(log, tmp_path), Service(log, tmp_path)
    first.rounds(1)
    second.rounds(3)
    assert second.handler.is_flushed()
    first.rounds(8)
    first.handler.finish()
    first.die()
    second.rounds(8)
    second.handler.finish()
    assert present(tmp_path) == expected(log)


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled()
    service = Service(log, tmp_path)
    with monkeypatch.context() as full:

        def refuse(number: int) -> None:
            raise OSError(28, "No space left on device")

        full.setattr("os.fsync", refuse)
        service.rounds(9)
    assert not log.committed
    service.rounds(12)
    service.handler.finish()
    assert present(tmp_path) == expected(log)


def test_records_that_contradict_themselves_go_to_dead_letters(tmp_path: Path) -> None:
    log = Log()
    log.put(
        IterationRecord(job="j", node="n", rank=0, incarnation="1", steps=(1, 2), end_s=(NOON_S,), duration_s=(1.0,))
    )
    log.put(steps_record(1))
    log.put(IterationRecord(
        job="j", node="n", rank=0, incarnation="1", steps=(2**70,), end_s=(NOON_S,), duration_s=(1.0,)
    ))  # fmt: skip
    log.put(MetricsRecord(job="j", node="n", time_s=NOON_S, devices=("a",), names=("x",), values=((1.0, 2.0),)))
    log.put(LogRecord(job="j", node="n", source="s", ends=(1,), lines=(), times_s=()))
    archived(log, tmp_path)
    assert sorted((one.topic, one.offset) for one in log.letters) == [  # type: ignore[attr-defined]
        ("trainwarden.iterations", 0), ("trainwarden.iterations", 2), ("trainwarden.logs", 0),
        ("trainwarden.metrics", 0),
    ]  # fmt: skip
    assert set(present(tmp_path)) == {("iterations", 0, 1, NOON_S + 1)}


def test_times_that_cannot_be_are_kept_under_the_day_of_the_bus(tmp_path: Path) -> None:
    log = Log()
    for time_s in (-5.0, 1e300, NOON_S + 3 * DAY_S, NOON_S - 9 * DAY_S):
        log.put(event_record(0, time_s=time_s), time_s=NOON_S)
    log.put(event_record(0, job="../a/b"))
    archived(log, tmp_path)
    days = sorted(path.name for path in tmp_path.glob("events/job=j/*"))
    assert days == ["day=2024-09-25", "day=2024-10-04"]
    assert {path.name for path in tmp_path.glob("events/*")} == {"job=j", "job=..%2Fa%2Fb"}
    assert [one.job for one in archive_reader.jobs(tmp_path)] == ["../a/b", "j"]
    assert present(tmp_path) == expected(log)


def test_pandas_reads_values_and_absence_as_they_were(tmp_path: Path) -> None:
    log = filled()
    suspect = Suspect(score=0.9, reason="slow", rank=3)
    log.put(VerdictRecord(
        id="v", job="job0", time_s=NOON_S, window_s=60.0, anomalous=True, reason="r", suspects=(suspect,),
        votes={"lof": Vote(opinion="anomalous", score=0.9)},
    ))  # fmt: skip
    log.put(IncidentRecord(
        id="i", job="job0", kind="hang", severity="sev2", state="opened", revision=0, opened_at_s=NOON_S,
        updated_at_s=NOON_S, reason="r",
    ))  # fmt: skip
    log.put(ActionRecord(
        id="a", incident="i", job="job0", kind="restart_job", outcome="done", at_s=NOON_S, why="w", plan={"x": [1]}
    ))  # fmt: skip
    log.put(ActionRecord(
        id="command/c/cordon/1", command="command/c", job="job0", kind="cordon_node", outcome="done", at_s=NOON_S,
        why="w",
    ))  # fmt: skip
    archived(log, tmp_path)
    metrics = pd.read_parquet(tmp_path / "metrics")
    wide = metrics[metrics.job == "job1"].pivot_table(
        index=["time_s", "node", "device"], columns="name", values="value"
    )
    assert wide["a"].dropna().tolist() == [7.0, 9.0, 11.0, 1.0, 3.0, 5.0]
    assert len(metrics) == 12 * 3
    assert metrics["rank"].isna().sum() == 12
    steps = pd.read_parquet(tmp_path / "iterations")
    assert sorted(steps.step) == list(range(24))
    assert steps.compute_s.isna().sum() == 12
    verdict = pd.read_parquet(tmp_path / "verdicts").iloc[0]
    assert (verdict.suspect_rank, json.loads(verdict.record)["votes"]["lof"]["score"]) == (3, 0.9)
    assert pd.read_parquet(tmp_path / "incidents").kind.tolist() == ["hang"]
    actions = pd.read_parquet(tmp_path / "actions")
    assert json.loads(actions.record[0])["plan"] == {"x": [1]}
    assert actions.incident.isna().tolist() == [False, True]  # a person's word has a command in its place


def test_compaction_leaves_one_file_a_day_and_every_row(tmp_path: Path) -> None:
    log = Log()
    service = Service(log, tmp_path)
    for index in range(20):
        log.put(lines_record(index))
        service.rounds(1)
        service.handler.finish()
    before = pd.read_parquet(tmp_path / "logs").sort_values("bus_offset", ignore_index=True)
    assert len(list(tmp_path.glob("logs/*/*/*"))) == 20
    assert maintenance.compact(tmp_path, {}, NOON_S) == (1, 0)
    assert [path.name for path in tmp_path.glob("logs/*/*/*")] == ["part-0-0-19.parquet"]
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "logs"), before)
    assert maintenance.compact(tmp_path, {}, NOON_S) == (0, 0)


def test_a_reader_sees_one_state_while_the_day_is_compacted(tmp_path: Path) -> None:
    log = Log()
    service = Service(log, tmp_path)
    for index in range(6):
        log.put(lines_record(index))
        service.rounds(1)
        service.handler.finish()
    found = archive_reader.batches(tmp_path, "logs", "j")
    offsets = next(found).column("bus_offset").to_pylist()
    assert maintenance.compact(tmp_path, {}, NOON_S) == (1, 0)
    log.put(lines_record(6))
    service.rounds(1)
    service.handler.finish()
    for batch in found:
        offsets += batch.column("bus_offset").to_pylist()
    assert offsets == list(range(6))
    assert len(list((tmp_path / ".staging" / "compaction").rglob("*.parquet"))) == 6
    maintenance.compact(tmp_path, {}, NOON_S)
    assert not list((tmp_path / ".staging" / "compaction").iterdir())
    assert present(tmp_path) == expected(log)


def test_the_tick_compacts_and_expires_by_itself(tmp_path: Path) -> None:
    log = Log()
    clock = ManualClock(NOON_S)
    service = Service(log, tmp_path, clock, compact_files=3, maintain_every_s=1.0, keep_days={"logs": 2})
    for index in range(5):
        log.put(lines_record(index))
        log.put(event_record(index))
        service.rounds(1)
        service.handler.finish()
    for _ in range(6):
        clock.sleep(2.0)
        service.rounds(1)
    assert len(list(tmp_path.glob("logs/*/*/*"))) == 1
    assert present(tmp_path) == expected(log)
    clock.sleep(4 * DAY_S)
    for _ in range(6):
        clock.sleep(2.0)
        service.rounds(1)
    assert not list(tmp_path.glob("logs/*"))
    assert {key[0] for key in present(tmp_path)} == {"events"}


def test_a_recording_played_back_lately_is_not_old(tmp_path: Path) -> None:
    log = Log()
    log.put(lines_record(0, time_s=NOON_S - 1000 * DAY_S))
    archived(log, tmp_path)
    assert maintenance.compact(tmp_path, {"logs": 10}, NOON_S + 5 * DAY_S) == (0, 0)
    assert maintenance.compact(tmp_path, {"logs": 10}, NOON_S + 11 * DAY_S) == (0, 1)


def test_batches_choose_time_and_columns(tmp_path: Path) -> None:
    log = filled()
    archived(log, tmp_path)
    found = archive_reader.batches(
        tmp_path, "iterations", "job0", from_s=NOON_S, to_s=NOON_S + 3, columns=["step"], days=["2024-10-04"]
    )
    assert [step for batch in found for step in batch.column(0).to_pylist()] == [0, 1, 4, 5]
    with pytest.raises(DataError, match="no topic 'x'"):
        next(archive_reader.batches(tmp_path, "x", "job0"))


def test_damaged_files_are_one_sentence(tmp_path: Path) -> None:
    log = filled()
    archived(log, tmp_path)
    path = next(tmp_path.glob("logs/job=job0/*/*.parquet"))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="damaged"):
        archive_reader.jobs(tmp_path)
    with pytest.raises(DataError):
        export(tmp_path, "job0", tmp_path / "out")
    with pytest.raises(DataError, match="does not exist"):
        archive_reader.jobs(tmp_path / "nowhere")
    with pytest.raises(DataError, match="nothing of a job"):
        export(tmp_path, "nobody", tmp_path / "out")


def test_files_that_claim_the_same_record_are_refused(tmp_path: Path) -> None:
    log = filled()
    archived(log, tmp_path)
    path = next(tmp_path.glob("logs/job=job0/*/*.parquet"))
    part = part_of(path.name)
    assert part is not None
    (path.parent / Part(0, part.first, part.last + 1).name).write_bytes(path.read_bytes())
    with pytest.raises(DataError, match="hold the same records"):
        maintenance.compact(tmp_path, {}, NOON_S)


def test_a_folder_that_is_gone_has_no_rows(tmp_path: Path) -> None:
    with held_open(tmp_path / "none") as number:
        assert number is None
    assert list(archive_reader.batches(tmp_path, "logs", "j")) == []
