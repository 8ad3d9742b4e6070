"""Several archive workers share one folder: one joins and removes days at a time, whatever the others write then."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.archive_doubles import DAY_S, NOON_S, Log, Service, expected, lines_record, present
from tests.doubles import ManualClock, metric_value
from trainwarden.errors import DataError
from trainwarden.settings import ArchiveSettings
from trainwarden.trainer_offline.archive import compaction, maintenance
from trainwarden.trainer_offline.archive import writer as archive_writer
from trainwarden.trainer_offline.archive.compaction import compaction_lock
from trainwarden.trainer_offline.archive.layout import TOPIC_FOLDERS, day_folders
from trainwarden.trainer_offline.data import annotations
from trainwarden.trainer_offline.data.annotations import Annotation

LONG_AGO_S = NOON_S - 20 * DAY_S
LATER_S = NOON_S + 15 * DAY_S


class Worker(Service):
    """A worker that owns the partition and writes every record to a file of its own."""

    def __init__(self, log: Log, root: Path) -> None:
        super().__init__(log, root)
        self.log = log

    def write(self, number: int, *, written_s: float | None = None) -> None:
        self.log.put(lines_record(number, time_s=LONG_AGO_S), time_s=written_s)
        self.rounds(1)
        self.handler.finish()


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda number: None)


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    one = Worker(Log(), tmp_path)
    for number in range(3):
        one.write(number)
    return one


def just_before(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, act: Callable[[], object]) -> None:
    """Let another worker `act` once, just before the next call of `module.name`."""
    real = getattr(module, name)

    def call(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(module, name, real)
        act()
        return real(*arguments, **named)

    monkeypatch.setattr(module, name, call)


def upkeep(root: Path, clock: ManualClock, **settings: Any) -> maintenance.Maintenance:
    chosen = ArchiveSettings(folder=str(root), compact_files=2, maintain_every_s=1.0, **settings)
    return maintenance.Maintenance(root, chosen, clock)


def test_a_record_that_comes_while_its_day_is_joined_is_kept(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    just_before(monkeypatch, compaction, "locked", lambda: worker.write(3))
    assert maintenance.compact(tmp_path, {}, NOON_S) == (1, 0)
    assert present(tmp_path) == expected(worker.log)
    assert len(list(tmp_path.glob("logs/*/*/*"))) == 2
    worker.write(4)
    assert maintenance.compact(tmp_path, {}, NOON_S) == (1, 0)
    assert present(tmp_path) == expected(worker.log)


def test_a_record_that_comes_while_its_day_is_removed_is_kept(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    just_before(monkeypatch, maintenance, "locked", lambda: worker.write(3, written_s=LATER_S))
    maintenance.compact(tmp_path, {"logs": 10}, LATER_S)
    assert present(tmp_path) == expected(worker.log)
    assert maintenance.compact(tmp_path, {"logs": 10}, LATER_S + 11 * DAY_S) == (0, 1)
    assert not list(tmp_path.glob("logs/*"))
    assert not list((tmp_path / ".staging" / "compaction").iterdir())


def test_files_that_another_worker_joins_while_they_are_looked_at_still_hold_their_records(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.handler.close()
    again = Worker(worker.log, tmp_path)
    worker.log.committed.clear()  # killed before the commit: everything comes again
    joined: list[tuple[int, int]] = []

    def join() -> None:
        joined.append(maintenance.compact(tmp_path, {}, NOON_S))

    just_before(monkeypatch, archive_writer, "read_footer", join)
    again.rounds(2)
    again.handler.finish()
    assert joined == [(1, 0)]
    assert present(tmp_path) == expected(worker.log)
    assert metric_value(again.handler._metrics, "errors_total") is None
    assert worker.log.committed == {("trainwarden.logs", 0): 3}


def test_one_works_at_a_time_and_the_other_passes(worker: Worker, tmp_path: Path) -> None:
    clock = ManualClock(NOON_S)
    other = upkeep(tmp_path, clock)
    with compaction_lock(tmp_path) as ours:
        assert ours
        with compaction_lock(tmp_path) as theirs:
            assert not theirs
        for _ in range(4):
            assert other.step(NOON_S) == 0
            clock.sleep(2.0)
        assert len(list(tmp_path.glob("logs/*/*/*"))) == 3
    done = 0
    for _ in range(4):
        clock.sleep(2.0)
        done += other.step(NOON_S)
    assert done == 1
    assert len(list(tmp_path.glob("logs/*/*/*"))) == 1
    assert present(tmp_path) == expected(worker.log)


@pytest.mark.parametrize("keep_days", [{}, {"logs": 10}])
def test_a_day_that_another_worker_has_removed_meanwhile_is_nothing_to_say(
    keep_days: dict[str, int], worker: Worker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = upkeep(tmp_path, ManualClock(LATER_S), keep_days=keep_days)
    (found,) = [(topic, folder) for topic in TOPIC_FOLDERS for folder in day_folders(tmp_path, topic)]
    assert maintenance.compact(tmp_path, {"logs": 10}, LATER_S) == (0, 1)
    assert other._work(*found, LATER_S) == 0
    assert caplog.records == []


def test_the_command_waits_for_a_worker_that_is_joining_days(worker: Worker, tmp_path: Path) -> None:
    class Waiting(ManualClock):
        waits = 0
        ends_after = 3

        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            self.waits += 1
            if self.waits == self.ends_after:
                held.__exit__(None, None, None)

    held = compaction_lock(tmp_path)
    held.__enter__()
    clock = Waiting(NOON_S)
    assert maintenance.compact(tmp_path, {}, NOON_S, clock=clock) == (1, 0)
    assert clock.waits == 3
    with compaction_lock(tmp_path), pytest.raises(DataError, match="another process is compacting it now"):
        maintenance.compact(tmp_path, {}, NOON_S, clock=ManualClock(NOON_S))


def test_annotations_added_at_the_same_time_are_all_there(tmp_path: Path) -> None:
    def say(who: int) -> None:
        for number in range(8):
            annotations.add(tmp_path, Annotation(job=f"job{who}", label="ignore", from_s=float(number)))

    people = [threading.Thread(target=say, args=(who,)) for who in range(4)]
    for one in people:
        one.start()
    for one in people:
        one.join()
    found = annotations.read(tmp_path)
    assert sorted((one.job, one.from_s) for one in found) == [
        (f"job{who}", float(number)) for who in range(4) for number in range(8)
    ]
    stretches = [(float(number), math.inf) for number in range(8)]
    assert [annotations.spans(tmp_path, f"job{who}") for who in range(4)] == [{"ignore": stretches}] * 4
