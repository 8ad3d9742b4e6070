"""Where a hang is declared: how long each kind of standstill may last, and what is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.unit.detectors.detection_streams import Job, event
from trainwarden.detectors.job.state import JobState
from trainwarden.detectors.pace.hang import HangConfig, HangWatch, hang_vote
from trainwarden.detectors.pace.iteration_threshold import IterationThreshold
from trainwarden.records import IterationRecord, MetricsRecord

STEP_S = 0.3
Beat = Callable[[float], Mapping[str, Any]]  # what the ranks say so long after their last step


def standing_still(
    beat: Beat, until_s: float = 100.0, *, step_s: float = STEP_S, steps: int = 30, slowed: float = 1.0, **config: float
) -> tuple[HangWatch, float | None, Job]:
    """A job of 4 ranks that stands still after so many steps; after how long that was called a hang."""
    job = Job(ranks=4, step_s=step_s).run(steps)
    end_s, state, watch = job.end_s, JobState("job"), HangWatch(HangConfig(**config))
    for _, record in sorted(job.records, key=lambda entry: entry[0]):
        state.feed(record)
    waited_s = 0.0
    while waited_s < until_s:
        waited_s += 0.2
        job.records.clear()
        job.beat(end_s + waited_s, steps, **{"phase": "wait", "calls": 62, **beat(waited_s)})
        for _, record in job.records:
            state.feed(record)
        watch.update(state.window(end_s + waited_s), step_s, slowed)
        if watch.hang is not None:
            return watch, waited_s, job
    return watch, None, job


def stopped(waited_s: float) -> Mapping[str, Any]:
    return {"states": {2: "T"}, "phases": {2: "compute"}, "cpu_s": {2: 10.0}}


def sleeping(waited_s: float) -> Mapping[str, Any]:
    return {"phases": {1: "compute"}, "cpu_s": {1: 10.0}}


def busy(waited_s: float) -> Mapping[str, Any]:
    return {"phases": {1: "compute"}, "cpu_s": {1: 10.0 + waited_s}}


def saving(waited_s: float) -> Mapping[str, Any]:
    return {"phases": {0: "checkpoint"}, "cpu_s": {0: 10.0}}


def mismatched(waited_s: float) -> Mapping[str, Any]:
    return {"begun": {3: 60}}


def left(waited_s: float) -> Mapping[str, Any]:
    return {"phases": {2: "exit"}}


def computing(waited_s: float) -> Mapping[str, Any]:
    return {"phase": "compute"}


def in_kernels(waited_s: float) -> Mapping[str, Any]:
    return {"phase": "compute", "cpu_s": dict.fromkeys(range(4), 10.0)}


def evaluating(waited_s: float) -> Mapping[str, Any]:
    return {"phase": "evaluation"}


def leaving(waited_s: float) -> Mapping[str, Any]:
    return {"phase": "compute", "phases": {1: "exit", 2: "exit", 3: "exit"}}


def mute(waited_s: float) -> Mapping[str, Any]:
    return {}


def paused(waited_s: float) -> Mapping[str, Any]:
    """All stand still between two iterations, as they were asked to, and meet in the next collective call."""
    return {"phase": "evaluation" if waited_s < 35.0 else "wait"}


def test_ranks_that_have_stood_still_together_are_given_time_to_go_on() -> None:
    watch, hung_s, _ = standing_still(paused)
    assert hung_s is not None
    assert 37.0 <= hung_s <= 38.0
    assert watch.hang is not None
    assert watch.hang.kind == "all_waiting"


@pytest.mark.parametrize(
    ("beat", "kind", "culprits", "earliest_s", "latest_s"),
    [
        (stopped, "stopped", [2], 0.6, 1.5),
        (sleeping, "sleeping", [1], 3.0, 4.0),
        (busy, "busy", [1], 30.0, 31.0),
        (saving, "checkpoint", [0], 60.0, 61.0),
        (computing, "computing", [], 60.0, 61.0),
        (in_kernels, "computing", [], 60.0, 61.0),
        (mismatched, "all_waiting", [3], 2.0, 3.0),
        (left, "all_waiting", [2], 5.0, 6.0),
        (mute, "all_waiting", [], 2.0, 3.0),
    ],
)
def test_patience_depends_on_what_the_culprit_does(
    beat: Beat, kind: str, culprits: list[int], earliest_s: float, latest_s: float
) -> None:
    watch, waited_s, _ = standing_still(beat)
    assert watch.hang is not None
    assert waited_s is not None
    assert (watch.hang.kind, watch.hang.culprits.tolist()) == (kind, culprits)
    assert earliest_s <= waited_s <= latest_s + STEP_S


@pytest.mark.parametrize(
    ("beat", "earliest_s"), [(mute, 8.0), (sleeping, 12.0), (left, 20.0), (busy, 120.0), (stopped, 0.6)]
)
def test_where_the_processors_are_taken_away_all_but_a_stopped_process_is_waited_for_so_much_longer(
    beat: Beat, earliest_s: float
) -> None:
    _, waited_s, _ = standing_still(beat, until_s=130.0, slowed=4.0)
    assert waited_s is not None
    assert earliest_s <= waited_s <= earliest_s + 2.0


def test_ranks_that_wait_on_a_machine_that_is_robbed_of_its_processors_hang_only_when_that_has_ended() -> None:
    """As seen on a virtual machine: all ranks wait, and the host collector tells of 76 % stolen time."""
    job, state = Job(ranks=4, step_s=STEP_S).run(30), JobState("job")
    detector = IterationThreshold(IterationThreshold.Config())

    def hangs_at(waited_s: float, *more: MetricsRecord) -> bool:
        for record in (*(one for _, one in sorted(job.records, key=lambda entry: entry[0])), *more):
            state.feed(record)
        job.records.clear()
        window = state.window(job.end_s + waited_s)
        detector.update(window)
        return detector.score(window).kind == "hang"

    assert not hangs_at(0.0)
    told = None
    for tick in range(1, 60):
        waited_s, stolen = 0.2 * tick, 0.76 if tick <= 30 else 0.0
        job.beat(job.end_s + waited_s, 30, phase="wait", calls=62)
        steal = MetricsRecord(
            job="job", node="node0", time_s=job.end_s + waited_s, names=("host_cpu_steal_ratio",), ranks=(None,),
            devices=("host",), values=((stolen,),),
        )  # fmt: skip
        if hangs_at(waited_s, *([steal] if tick % 5 == 0 else [])) and told is None:
            told = waited_s
    assert told is not None
    assert 8.0 <= told <= 9.0, "2 s of patience are 8.3 s"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("beat", "step_s", "latest_s"), [(busy, 20.0, 61.0), (computing, 20.0, 61.0), (busy, 40.0, 121.0)]
)
def test_no_standstill_gets_more_than_three_steps_and_the_longest_pause(
    beat: Beat, step_s: float, latest_s: float
) -> None:
    _, waited_s, _ = standing_still(beat, until_s=latest_s + 1.0, step_s=step_s)
    assert waited_s is not None
    assert 3 * step_s <= waited_s <= latest_s


@pytest.mark.thorough
@pytest.mark.parametrize("beat", [evaluating, leaving])
def test_what_nobody_waits_for_may_last_until_the_configured_most(beat: Beat) -> None:
    assert standing_still(beat, until_s=250.0)[1] is None
    _, waited_s, _ = standing_still(beat, until_s=130.0, most_s=120.0)
    assert waited_s is not None
    assert 120.0 <= waited_s < 121.0
    for any_beat in (busy, computing, saving):
        _, waited_s, _ = standing_still(any_beat, until_s=30.0, most_s=20.0)
        assert waited_s is not None
        assert waited_s < 21.0


@pytest.mark.thorough
def test_a_compiler_at_work_in_the_first_steps_is_no_hang() -> None:
    assert standing_still(computing, until_s=150.0, steps=5)[1] is None


@pytest.mark.thorough
@pytest.mark.parametrize("beat", [busy, computing])
def test_work_that_was_called_a_hang_and_went_over_is_called_none_the_next_time(beat: Beat) -> None:
    watch, job, state = HangWatch(HangConfig()), Job(ranks=4, step_s=STEP_S).run(30), JobState("job")
    hung, place = [], 0
    for turn in range(2):
        end_s, step = job.end_s, 30 * (turn + 1)
        for tick in range(1, 450):
            job.beat(end_s + 0.2 * tick, step, **{"phase": "wait", "calls": 99 * step, **beat(0.2 * tick)})
        job.run(30, first=step, start_s=end_s + 90.0)
        for at_s, record in sorted(job.records[place:], key=lambda entry: entry[0]):
            state.feed(record)
            watch.update(state.window(at_s), STEP_S)
            hung.append((turn, watch.hang is not None))
        place = len(job.records)
    assert {turn for turn, is_hang in hung if is_hang} == {0}


def test_a_standstill_that_ended_with_its_ranks_is_no_pause_to_wait_for() -> None:
    watch, job, state = HangWatch(HangConfig()), Job(ranks=4, step_s=STEP_S).run(30), JobState("job")
    for tick in range(1, 200):
        job.beat(job.end_s + 0.2 * tick, 30, calls=62, phase="compute")
    dead_s = job.end_s + 40.0
    job.add(dead_s, *[event("process_exit", dead_s, rank, signal="SIGKILL") for rank in range(4)])
    for at_s, record in sorted(job.records, key=lambda entry: entry[0]):
        state.feed(record)
        watch.update(state.window(at_s), STEP_S)
    assert watch.hang is None
    assert watch.longest_s.get("computing", 0.0) < 1.0


def test_patience_is_configuration() -> None:
    assert standing_still(sleeping, until_s=8.0, sleeping_s=10.0)[1] is None


def test_a_pause_that_went_over_is_waited_for_longer_the_next_time() -> None:
    watch = HangWatch(HangConfig())
    job = Job(ranks=4, step_s=STEP_S).run(30)
    state, place = JobState("job"), 0
    hung = []
    for turn, pause_s in enumerate((2.5, 5.5, 20.0)):
        end_s = job.end_s
        for tick in range(1, int(pause_s / 0.2)):
            job.beat(end_s + 0.2 * tick, 30 * (turn + 1), phase="wait", calls=99 * (turn + 1),
                     phases={1: "compute"}, cpu_s={1: 10.0})  # fmt: skip
        ordered = sorted(job.records[place:], key=lambda entry: entry[0])
        for at_s, record in ordered:
            state.feed(record)
            watch.update(state.window(at_s), STEP_S)
            hung.append((turn, watch.hang is not None))
        place = len(job.records)
        job.run(30, first=30 * (turn + 1), start_s=end_s + pause_s)
    assert {turn for turn, is_hang in hung if is_hang} == {2}
    assert watch.longest_s["sleeping"] > 2.0


def test_nothing_is_declared_before_a_usual_step_is_known() -> None:
    state, watch = JobState("job"), HangWatch(HangConfig())
    job = Job(ranks=2).run(2)
    job.beat(job.end_s + 500.0, 2, phase="wait")
    for at_s, record in sorted(job.records, key=lambda entry: entry[0]):
        state.feed(record)
        watch.update(state.window(at_s), None)
    assert watch.hang is None


def test_the_vote_names_the_culprit_and_what_it_does() -> None:
    watch, _, _ = standing_still(sleeping)
    assert watch.hang is not None
    state = JobState("job")
    for _, record in sorted(Job(ranks=4).run(2).records, key=lambda entry: entry[0]):
        state.feed(record)
    vote = hang_vote(state.window(0.0), watch.hang, STEP_S)
    assert (vote.kind, vote.opinion, vote.verified) == ("hang", "anomalous", True)
    assert [one.rank for one in vote.suspects] == [1]
    assert vote.reason.startswith("rank 1: it sleeps outside any collective; no rank has moved for 3.")
    assert vote.score > 0.5


def test_the_settings_of_the_plug_in_are_flat() -> None:
    config = IterationThreshold.Config(hang_ratio=4.0, suspicious_ratio=1.2, busy_s=5.0)
    assert isinstance(config, HangConfig)
    detector = IterationThreshold(config)
    again = IterationThreshold(config)
    again.restore(detector.state())
    assert again.state() == detector.state()


def test_a_first_step_that_began_before_it_was_measured_is_no_measure_of_the_others() -> None:
    """The hook comes in at a script's first mark: that step takes a fraction of a millisecond by its clock."""
    durations_s = (0.0005, *(0.05,) * 29)
    ends_s = tuple(1_000_000.0 + 0.05 * step for step in range(30))
    state, detector = JobState("job"), IterationThreshold(IterationThreshold.Config())
    state.feed(
        IterationRecord(
            job="job", node="n", rank=0, incarnation="a", steps=tuple(range(30)), end_s=ends_s, duration_s=durations_s
        )
    )
    window = state.window(ends_s[-1] + 0.1)
    detector.update(window)
    assert detector.score(window).opinion == "normal"
