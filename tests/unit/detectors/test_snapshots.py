"""A detection service goes on from its snapshots as if it had never been away."""

from __future__ import annotations

import threading
from concurrent.futures import wait
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.doubles import ManualClock, metric_value
from tests.unit.detectors.detection_streams import RememberingBus, Run, crash
from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.catalogue import CATALOGUE
from trainwarden.detectors import snapshot_manager
from trainwarden.detectors.job.packed import MAX_STATE_BYTES
from trainwarden.detectors.job.window import Window
from trainwarden.detectors.job_monitor import JobMonitor
from trainwarden.detectors.pace.change_point import ChangePoint
from trainwarden.detectors.replay_tracker import ReplayTracker
from trainwarden.detectors.service import DetectionHandler
from trainwarden.detectors.snapshots import EVERY_S, SHARE, Cadence, SnapshotOffsets, newest, none_of, parts_of
from trainwarden.detectors.testing.streams import JOB, START_S, Job, event
from trainwarden.errors import DetectorError, RecordError
from trainwarden.protocols import Message
from trainwarden.records import IncidentRecord, MetricsRecord, Record, SnapshotRecord
from trainwarden.self_metrics import SelfMetrics
from trainwarden.service_loop import ServiceLoop
from trainwarden.settings import DetectionSettings
from trainwarden.topics import INCIDENTS, ITERATIONS, SNAPSHOTS, topic_of

SHORT = DetectionSettings(rewind_s=5.0)  # what is read again without a snapshot holds nothing but slow steps


def slow_job(steps: int = 500) -> Job:
    return Job(slow=lambda rank, step: 2.0 if rank == 1 and step >= 60 else 1.0).run(steps)


def without_snapshots(bus: RememberingBus) -> None:
    bus.outputs = [record for record in bus.outputs if not isinstance(record, SnapshotRecord)]


@pytest.mark.thorough
def test_an_incident_that_lasts_longer_than_what_is_read_again_stays_open() -> None:
    job = slow_job()
    first = Run(SHORT).play(job.records, START_S + 150.0)
    (incident,) = first.incidents
    assert incident.state != "closed"
    second = first.begin_again(START_S + 151.0)
    second.play([entry for entry in job.records if entry[0] > START_S + 151.0], job.end_s)
    assert [(one.id, one.state != "closed") for one in second.incidents] == [(incident.id, True)]
    assert metric_value(second.metrics, "snapshots_refused_total") == 0.0


@pytest.mark.thorough
def test_without_its_snapshot_it_would_be_told_twice() -> None:
    """The check above can fail."""
    job = slow_job()
    first = Run(SHORT).play(job.records, START_S + 150.0)
    without_snapshots(first.bus)
    second = first.begin_again(START_S + 151.0)
    second.play([entry for entry in job.records if entry[0] > START_S + 151.0], job.end_s)
    assert len(second.incidents) == 2


def told(run: Run) -> list[tuple[str, str, tuple[int | None, ...]]]:
    """What was opened and closed, in order."""
    return [
        (record.kind, record.state, tuple(one.rank for one in record.suspects))
        for record in run.revisions
        if record.state in {"opened", "closed"}
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_killed_again_and_again_it_tells_what_it_would_have_told(seed: int) -> None:
    job = Job(slow=lambda rank, step: 2.0 if rank == 1 and 60 <= step < 300 else 1.0, seed=seed).run(420)
    crash(job)
    whole = Run(SHORT).play(job.records, job.end_s + 4.0)
    rng = np.random.default_rng(seed)
    run, at_s = Run(SHORT), START_S
    while at_s < job.end_s:
        until_s = min(at_s + float(rng.uniform(5.0, 50.0)), job.end_s + 4.0)
        run.play([entry for entry in job.records if entry[0] > at_s], until_s)
        at_s = run.clock.now_s()
        run = run.begin_again(at_s)
    run.play([], job.end_s + 4.0)
    assert told(run) == told(whole)


@pytest.mark.thorough
def test_what_happened_while_nobody_watched_is_told_late() -> None:
    job = crash(Job().run(200))
    first = Run().play(job.records, job.end_s - 5.0)
    bus = first.bus
    away = Run(bus=RememberingBus())
    away.bus.outputs = bus.outputs
    away.play(job.records, job.end_s + 4.0)  # whoever writes the log goes on
    bus.log, bus.outputs = away.bus.log, [one for one in bus.outputs if not isinstance(one, IncidentRecord)]
    second = first.begin_again(job.end_s + 100.0)
    (incident,) = second.incidents
    assert (incident.kind, incident.suspects[0].rank) == ("crash", 2)
    assert incident.told_late_s == pytest.approx(100.0, abs=10.0)


@pytest.mark.thorough
@pytest.mark.parametrize("memory", ["kept", "none", "of other detectors"])
def test_nothing_that_nobody_has_handled_is_passed_over_however_long_nobody_was_there(memory: str) -> None:
    job = crash(Job().run(100))
    first = Run(SHORT).play(job.records, job.end_s - 5.0)
    bus, handled = first.bus, first.bus.committed_offset
    away = Run(bus=RememberingBus()).play(job.records, job.end_s + 4.0)
    bus.log, bus.committed_offset = away.bus.log, handled
    if memory == "none":
        without_snapshots(bus)
    elif memory == "of other detectors":
        first.settings = DetectionSettings(rewind_s=5.0, detectors={"lof": False})
    second = first.begin_again(job.end_s + 3600.0)
    assert [(one.kind, one.told_late_s is not None) for one in second.incidents] == [("crash", True)]


@pytest.mark.thorough
def test_what_ends_while_it_is_read_again_is_told() -> None:
    job = slow_job(300)
    first = Run(SHORT).play(job.records, START_S + 80.0)
    (incident,) = first.incidents
    first.settings = DetectionSettings(rewind_s=5.0, detectors={"lof": False}, ensemble={"forget_s": 20.0})
    second = first.begin_again(START_S + 80.5)
    second.play([], START_S + 130.0)
    assert {one.id: one.state for one in second.incidents}[incident.id] == "closed"
    assert not [one for one in second.incidents if one.state != "closed"]


@pytest.mark.thorough
def test_a_job_that_is_begun_anew_counts_its_snapshots_on() -> None:
    settings = DetectionSettings(ensemble={"forget_s": 20.0})
    job = Job().run(100)
    run = Run(settings).play(job.records, job.end_s + 30.0)
    again = Job(life=1).run(200, start_s=job.end_s + 31.0)
    run.play(again.records, again.end_s)
    found = newest(run.bus, {0}, 0.0)  # type: ignore[arg-type]
    assert found.snapshots[JOB].number == found.numbers[JOB]


@pytest.mark.thorough
def test_offsets_beyond_what_was_handled_are_not_believed() -> None:
    job = crash(Job().run(200))
    first = Run().play(job.records, job.end_s - 20.0)
    far = {topic.name: 2**40 for topic in first.handler.topics}
    first.bus.outputs = [
        msgspec.structs.replace(one, positions=far, floors=dict.fromkeys(far, -1)) if isinstance(one, SnapshotRecord)
        else one for one in first.bus.outputs
    ]  # fmt: skip
    second = first.begin_again(job.end_s - 19.9)
    second.play([entry for entry in job.records if entry[0] > job.end_s - 20.0], job.end_s + 4.0)
    assert [one.kind for one in second.incidents] == ["crash"]


@pytest.mark.thorough
def test_what_another_member_has_told_in_between_is_not_told_again() -> None:
    job = slow_job(200)
    first = Run().play(job.records, START_S + 20.0)
    assert not first.incidents
    bus = first.bus
    other = first.begin_again(START_S + 20.1)
    other.play([entry for entry in job.records if entry[0] > START_S + 20.1], START_S + 45.0)
    (incident,) = other.incidents
    bus.committed_offset = first.handler._reading._reached((ITERATIONS.name, 0))  # as if by time alone
    first.clock.set_s(START_S + 45.1)
    first.handler.start(bus, bus)  # type: ignore[arg-type]
    first.play([entry for entry in job.records if entry[0] > START_S + 20.1], job.end_s)
    assert {one.id for one in first.incidents} == {incident.id}


@pytest.mark.thorough
def test_a_defect_is_told_once_though_it_happens_again_in_what_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job().run(300)
    first = Run().play(job.records, START_S + 40.0)
    update = ChangePoint.update

    def broken(self: ChangePoint, window: Window) -> None:
        if window.end_s > START_S + 41.0:
            raise KeyError("a mistake")
        update(self, window)

    monkeypatch.setattr(ChangePoint, "update", broken)
    run, at_s = first, START_S + 40.0
    for _ in range(3):
        run.play([entry for entry in job.records if entry[0] > at_s], at_s + 12.0)
        at_s = run.clock.now_s()
        run = run.begin_again(at_s)
    run.play([entry for entry in job.records if entry[0] > at_s], at_s + 30.0)
    assert [(one.kind, one.state == "closed") for one in run.incidents] == [("pipeline", False)]


@pytest.mark.thorough
@pytest.mark.parametrize("back_s", [0.0, 600.0])
def test_what_was_missed_is_judged_whatever_the_clock_does(back_s: float) -> None:
    """The bus stamps what it gets by a clock that was set back while the service was away."""
    job = slow_job(200)
    first = Run().play(job.records, START_S + 15.0)
    bus, handled = first.bus, first.bus.committed_offset
    away = Run(bus=RememberingBus()).play(job.records, START_S + 60.0)
    bus.log = [
        one if place < handled else msgspec.structs.replace(one, time_s=one.time_s - back_s)
        for place, one in enumerate(away.bus.log)
    ]
    second = first.begin_again(START_S + 61.0)
    assert "slow_compute" in {one.kind for one in second.incidents}


def test_an_incident_of_a_job_that_nobody_hears_of_is_closed_by_whoever_comes_after() -> None:
    job = crash(Job().run(40))
    settings = DetectionSettings(ensemble={"forget_s": 20.0}, rewind_s=5.0)
    first = Run(settings).play(job.records, job.end_s + 2.0)
    assert [one.state for one in first.incidents] == ["opened"]
    without_snapshots(first.bus)
    second = first.begin_again(job.end_s + 50.0)
    second.play([], job.end_s + 80.0)
    assert [one.state for one in second.incidents] == ["closed"]


@cache
def kept(steps: int = 60) -> tuple[Run, bytes]:
    run = Run().play(slow_job(steps).records, START_S + 0.35 * steps)
    return run, run.handler._jobs[JOB].snapshot()


def fresh(run: Run) -> JobMonitor:
    return run.handler._made(JOB)


def test_a_watch_that_was_kept_and_restored_is_kept_the_same() -> None:
    run, memory = kept()
    other = fresh(run)
    other.restore(memory)
    assert other.snapshot() == memory


@pytest.mark.parametrize("seed", range(40))
def test_damaged_memory_is_refused_with_one_error_or_harmless(seed: int) -> None:
    run, memory = kept(20)
    rng = np.random.default_rng(seed)
    damaged = bytearray(memory)
    for place in rng.integers(0, len(damaged), 3).tolist():
        damaged[place] = int(rng.integers(0, 256))
    with suppress(DetectorError):
        fresh(run).restore(bytes(damaged[: int(rng.integers(1, len(damaged) + 1))] if seed % 2 else damaged))


@pytest.mark.thorough
def test_memory_of_a_job_of_16_384_ranks_is_not_too_large() -> None:
    """Of a sixteenth of them, each with 20 metrics of its GPU for longer than those are remembered."""
    job = Job(ranks=1024, node=lambda rank: f"node{rank // 8}").run(3)
    watch = Run().play(job.records, job.end_s + 0.5).handler._jobs[JOB]
    names = tuple(metric.name for metric in CATALOGUE.values() if metric.name.startswith("gpu_"))[:20]
    values = np.random.default_rng(0).uniform(1.0, 2.0, (150, 128, len(names), 8))
    for second, of_nodes in enumerate(values.tolist()):
        at_s = job.end_s + 1.0 + second
        for node, table in enumerate(of_nodes):
            first = 8 * node
            watch.state.feed(
                MetricsRecord(
                    job=JOB, node=f"node{node}", time_s=at_s, names=names, values=tuple(map(tuple, table)),
                    devices=tuple(f"GPU-{first + i}" for i in range(8)), ranks=tuple(range(first, first + 8)),
                )
            )  # fmt: skip
        list(watch.score(at_s + 0.5, live=False))
    ring = watch.state._steps.ring
    for step in range(3, 300):
        ring.append(step, 0, START_S + step, False, np.ones((5, 1024), dtype=np.float32))
    kept = watch.snapshot()
    assert 16 * len(kept) < MAX_STATE_BYTES
    again = Run().handler._made(JOB)
    again.restore(kept)
    rings = ring, again.state._steps.ring
    for step in range(300, 600):
        for one in rings:
            one.append(step, 0, START_S + step, False, np.full((5, 1024), step, dtype=np.float32))
    assert rings[0].first_seq == rings[1].first_seq
    assert np.array_equal(rings[0].steps, rings[1].steps)
    assert np.array_equal(rings[0].values, rings[1].values, equal_nan=True)


@pytest.mark.thorough
def test_memory_of_other_detectors_is_refused_and_the_log_is_read_again() -> None:
    job = slow_job(200)
    first = Run(DetectionSettings(rewind_s=3600.0)).play(job.records, START_S + 60.0)
    first.settings = DetectionSettings(detectors={"lof": False})
    second = first.begin_again(START_S + 60.5)
    assert metric_value(second.metrics, "snapshots_refused_total") == 1.0
    second.play([entry for entry in job.records if entry[0] > START_S + 60.5], job.end_s)
    assert [one.state != "closed" for one in second.incidents] == [True]


class Shelf(RememberingBus):
    """A bus on which snapshots lie."""

    def put(self, *outputs: tuple[str, Record]) -> Shelf:
        self.outputs.extend(record for _, record in outputs)
        return self


PLACE = SnapshotOffsets(0, {"trainwarden.events": 7}, {})
NOISE = np.random.default_rng(0).bytes(1_500_000)  # three parts


def test_a_snapshot_that_is_not_whole_leaves_the_one_before() -> None:
    whole, torn = parts_of("a", 1, PLACE, NOISE), parts_of("a", 2, PLACE, NOISE[::-1])
    assert len(torn) == 3
    for left_out in range(3):
        bus = Shelf().put(*whole, *(one for part, one in enumerate(torn) if part != left_out))
        found = newest(bus, {0}, 0.0)  # type: ignore[arg-type]
        assert (found.snapshots["a"].number, found.numbers["a"]) == (1, 2)
    found = newest(Shelf().put(*whole, *torn), {0}, 0.0)  # type: ignore[arg-type]
    assert found.snapshots["a"].kept == NOISE[::-1]


def test_parts_of_two_snapshots_are_never_put_together() -> None:
    one, other = parts_of("a", 1, PLACE, NOISE), parts_of("a", 1, PLACE, NOISE[::-1])
    assert not newest(Shelf().put(*one, other[1]), {0}, 0.0).snapshots  # type: ignore[arg-type]


def test_other_partitions_and_forgotten_jobs_are_left_alone() -> None:
    elsewhere = parts_of("b", 1, SnapshotOffsets(3, {}, {}), b"x")
    bus = Shelf().put(*parts_of("a", 1, PLACE, b"x"), *none_of("a", 2, PLACE), *elsewhere)
    assert not newest(bus, {0}, 0.0).snapshots  # type: ignore[arg-type]
    assert newest(bus, {0, 3}, 0.0).snapshots.keys() == {"b"}  # type: ignore[arg-type]


def test_snapshots_take_no_more_than_their_share_of_the_time() -> None:
    cadence, now_s, spent_s, taken = Cadence(), 0.0, 0.0, dict.fromkeys("abcde", 0)
    while now_s < 1_000.0:
        now_s += 0.1
        job = cadence.due(taken, now_s)
        if job is not None:
            taken[job] += 1
            spent_s += 0.5
            cadence.took(job, now_s)
            cadence.cost(0.3)
            cadence.cost(0.2)
    assert spent_s <= 1.05 * SHARE * now_s
    assert max(taken.values()) - min(taken.values()) <= 1
    assert max(taken.values()) <= now_s / EVERY_S + 1


def test_a_job_that_is_over_leaves_no_snapshot() -> None:
    settings = DetectionSettings(ensemble={"forget_s": 20.0})
    run = Run(settings).play(Job().run(60).add(START_S, event("job_start", START_S)).records, START_S + 90.0)
    assert not newest(run.bus, {0}, 0.0).snapshots  # type: ignore[arg-type]


def test_a_topic_of_which_nothing_has_come_yet_is_read_from_its_beginning() -> None:
    """Else what comes between a first snapshot and a death is passed over."""
    reading = ReplayTracker()
    reading.take_over({("a", 0), ("b", 0), ("a", 1)}, {})
    reading.standing(Message("a", 0, 4, 1.0, JOB, event("job_start", 1.0)))
    assert reading.positions(0) == {"a": 5, "b": 0}


def test_what_is_large_is_packed_beside_the_watching(monkeypatch: pytest.MonkeyPatch) -> None:
    ready, began = threading.Event(), threading.Event()
    pack = snapshot_manager.parts_of

    def slowly(*arguments: Any) -> Any:
        began.set()
        assert ready.wait(30.0)
        return pack(*arguments)

    monkeypatch.setattr(snapshot_manager, "AT_ONCE_BYTES", 0)
    monkeypatch.setattr(snapshot_manager, "parts_of", slowly)
    job = Job().run(100)
    run = Run().play(job.records, START_S + 10.0)  # which would not end if the service waited
    assert began.is_set()
    assert not newest(run.bus, {0}, 0.0).snapshots  # type: ignore[arg-type]
    ready.set()
    assert run.handler._keeper._packing is not None
    wait([run.handler._keeper._packing[1]])
    run.play([entry for entry in job.records if entry[0] > START_S + 10.0], START_S + 12.0)
    assert newest(run.bus, {0}, 0.0).snapshots.keys() == {JOB}  # type: ignore[arg-type]


@pytest.mark.parametrize(("field", "value"), [("parts", 10**12), ("parts", -1), ("part", 4_096), ("number", 0)])
def test_a_snapshot_of_impossible_size_is_no_record(field: str, value: int) -> None:
    ((_, record),) = parts_of("a", 1, PLACE, b"x")
    with pytest.raises(RecordError, match=field):
        SNAPSHOTS.decode(SNAPSHOTS.encode(msgspec.structs.replace(record, **{field: value})))


def begun(bus: RememberingBus, records: int) -> tuple[ReplayTracker, Any]:
    """A member that catches up with so many records of one partition."""
    reading, consumer = ReplayTracker(), bus
    bus.log = [Message(ITERATIONS.name, 0, offset, 0.0, JOB, event("phase", START_S)) for offset in range(records)]
    bus.committed_offset = records
    reading.take_over({(ITERATIONS.name, 0)}, {(ITERATIONS.name, 0): records})
    reading.catch_up(frozenset({0}), {(ITERATIONS.name, 0): records}, consumer)  # type: ignore[arg-type]
    return reading, consumer


def test_a_member_without_a_partition_has_not_caught_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two assignments there is no lag, as there is nothing to measure it of."""
    reading, consumer = begun(RememberingBus(), 3)
    monkeypatch.setattr(consumer, "assignment", frozenset)
    monkeypatch.setattr(consumer, "lag", lambda: None)
    assert not reading.caught_up(consumer)
    monkeypatch.undo()
    assert not reading.caught_up(consumer)
    for message in consumer.poll(3):
        assert reading.standing(message) == "old"
    with monkeypatch.context() as between:
        between.setattr(consumer, "assignment", frozenset)
        assert not reading.caught_up(consumer), "also with nothing left to read"
    assert reading.caught_up(consumer)


def test_a_record_at_which_handling_broke_is_handled_when_it_comes_again() -> None:
    """Its offset was noted already, and what followed from those before it has not gone out."""
    job = Job().run(60)
    run = Run(bus=RememberingBus()).play(job.records[:100], START_S + 3.0)
    steps = len(run.handler._jobs[JOB].state._steps.ring.steps)
    place, observe = len(run.bus.log), run.handler._clock.observe
    rest = [
        Message(topic_of(record).name, 0, place + number, at_s, JOB, record)
        for number, (at_s, record) in enumerate(job.records[100:200])
    ]
    run.bus.log += rest

    def broken(message: Message) -> tuple[float, float]:
        if message.offset == place + 50:
            raise KeyError("x")
        return observe(message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run.handler._clock, "observe", broken)
        with pytest.raises(KeyError):
            run.handler.handle(rest)
    run.handler.start(run.bus, run.bus)  # type: ignore[arg-type]
    assert run.bus.position <= place
    run.handler.handle(run.bus.poll(1_000))
    assert len(run.handler._jobs[JOB].state._steps.ring.steps) > steps


@pytest.mark.thorough
@pytest.mark.parametrize("away_s", [60.0, 7_200.0])
def test_the_first_detection_service_reads_from_the_first_record_however_late_it_comes(
    tmp_path: Path, away_s: float
) -> None:
    """No commit means that nobody has handled anything: `rewind_s` is about what somebody has handled."""
    clock = ManualClock(START_S)
    bus = EmbeddedBus(str(tmp_path / "bus.db"), clock=clock)
    for at_s, record in sorted(crash(Job().run(60)).records, key=lambda entry: entry[0]):
        clock.set_s(max(clock.now_s(), at_s))
        bus.publish(topic_of(record), JOB, topic_of(record).decode(msgspec.json.encode(record, enc_hook=int)))
        bus.flush()
    clock.sleep(away_s)
    metrics = SelfMetrics("detector")
    loop = ServiceLoop(bus, DetectionHandler(DetectionSettings(), clock, metrics), clock, metrics, poll_timeout_s=0.0)
    for _ in range(5):
        loop.step()
    opened = {message.record.kind: message.record.told_late_s for message in bus.read(INCIDENTS)}  # type: ignore[attr-defined]
    bus.close()
    assert opened.keys() == {"crash"}
    assert opened["crash"] == pytest.approx(away_s, abs=5.0)
