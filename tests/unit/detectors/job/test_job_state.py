"""The memory of a job: steps close when all ranks are in, odd records are counted, numbers are normalised."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.unit.detectors.detection_streams import JOB, START_S, Job, event, log_lines
from trainwarden.detectors.job import last_seen
from trainwarden.detectors.job.state import JobState
from trainwarden.detectors.job.step_assembly import LATE_S, WARM_UP_STEPS
from trainwarden.detectors.job.window import job_duration_s
from trainwarden.records import HeartbeatRecord, IterationRecord, MetricsRecord


def steps(rank: int, *numbers: int, life: str = "a", took_s: float = 1.0, **more: Any) -> IterationRecord:
    ends = tuple(START_S + (number + 1) * took_s for number in numbers)
    size = len(numbers)
    return IterationRecord(
        job=JOB, node=f"node{rank}", rank=rank, incarnation=life, steps=numbers, end_s=ends,
        duration_s=(took_s,) * size, **more,
    )  # fmt: skip


def beat(*ranks: int, at_s: float, life: str = "a", **more: Any) -> HeartbeatRecord:
    size = len(ranks)
    fields: dict[str, Any] = {"steps": (0,) * size, "phases": ("compute",) * size, "calls": (0,) * size}
    fields |= {"phase_since_s": (None,) * size, "incarnations": (life,) * size} | more
    return HeartbeatRecord(job=JOB, node="n", time_s=at_s, ranks=ranks, pids=ranks, **fields)


def fed(*records: Any) -> JobState:
    state = JobState(JOB)
    for record in records:
        state.feed(record)
    return state


def test_a_step_closes_when_every_rank_has_reported_it() -> None:
    state = fed(beat(0, 1, at_s=START_S), steps(0, 0, 1, 2))
    assert state.window(START_S).steps.tolist() == []
    state.feed(steps(1, 0, 1))
    assert state.window(START_S).steps.tolist() == [0, 1]


def test_a_rank_that_is_missing_is_waited_for_no_longer_than_need_be() -> None:
    state = fed(beat(0, 1, at_s=START_S), steps(0, *range(10)))
    assert len(state.window(START_S).steps) > 3
    assert state.take_counts()["incomplete_steps"] > 3
    assert state.end_s - START_S > LATE_S


@pytest.mark.parametrize("finished", [False, True])
def test_of_made_up_nodes_no_more_is_kept_than_that_and_of_the_jobs_nodes_all(monkeypatch, finished) -> None:
    monkeypatch.setattr(last_seen, "MAX_NODES", 8)
    state = fed(beat(0, at_s=START_S), *([event("job_end", 5)] if finished else []))
    for second in range(10):
        for number in range(10):
            state.feed(HeartbeatRecord(job=JOB, node=f"made-up-{second}-{number}", time_s=START_S))
        state.count_silence(1.0)
        assert state.window(START_S).node_silent_s == ({} if finished else {"n": second + 1.0})
        assert len(state._silence._nodes) <= 8


def test_duplicates_and_late_steps_are_counted_and_filled_in() -> None:
    state = fed(beat(0, 1, at_s=START_S), steps(0, *range(10)))
    state.window(START_S)
    state.feed(steps(1, 0, 1))
    state.feed(steps(0, 3))
    window = state.window(START_S)
    assert window.duration_s[0].tolist() == [1.0, 1.0]
    counts = state.take_counts()
    assert (counts["late"], counts["duplicates"]) == (2, 1)
    assert state.take_counts() == {}


def test_steps_of_an_old_life_are_late() -> None:
    state = fed(steps(0, 0, 1), steps(0, 0, life="b"), steps(0, 2))
    assert state.take_counts()["late"] == 1


def test_a_restart_goes_back_to_earlier_steps() -> None:
    state = fed(*[steps(rank, *range(15)) for rank in (0, 1)])
    state.window(START_S)
    for rank in (0, 1):
        state.feed(steps(rank, *range(10, 30), life="b"))
    window = state.window(START_S)
    assert window.steps.tolist() == [*range(15), *range(10, 30)]
    assert window.epochs.tolist() == [0] * 15 + [1] * 20
    quiet = window.quiet_rows.tolist()
    assert quiet == [True] * WARM_UP_STEPS + [False] * 5 + [True] * WARM_UP_STEPS + [False] * 10


def test_more_steps_than_are_kept_push_the_oldest_out() -> None:
    state = JobState(JOB, rows=16)
    for first in range(0, 200, 5):
        state.feed(steps(0, *range(first, first + 5)))
        window = state.window(START_S)
    assert window.steps.tolist() == list(range(184, 200))
    assert window.first_seq == 184
    assert window.fresh(198) == slice(14, 16)


def test_ranks_may_appear_late_and_in_any_number() -> None:
    state = JobState(JOB)
    for rank in (3, 0, 77, 12):
        state.feed(steps(rank, 0))
    window = state.window(START_S)
    assert window.ranks.tolist() == [3, 0, 77, 12]
    assert window.duration_s.shape == (1, 4)


def test_windows_are_read_only() -> None:
    window = fed(steps(0, 0)).window(START_S)
    with pytest.raises(ValueError, match="read-only"):
        window.duration_s[0, 0] = 0.0


def test_logs_events_and_metrics_are_shown_once_and_deduplicated() -> None:
    lines = log_lines(0, [(START_S, "a"), (START_S + 1, "b")])
    metrics = MetricsRecord(job=JOB, node="n", time_s=1.0, devices=("d",), names=("x",), values=((1.0,),))
    happened = event("xid", START_S)
    state = fed(lines, metrics, happened, lines, metrics, happened)
    window = state.window(START_S)
    assert ([line.line for line in window.logs], len(window.events), len(window.metrics)) == (["a", "b"], 1, 1)
    assert state.window(START_S).logs == ()
    assert state.take_counts()["duplicates"] == 4


def test_work_is_normalised_by_micro_batches() -> None:
    shares = {0: 2, 1: 6}
    state = fed(*[steps(r, 0, compute_s=(float(m),), micro_batches=(m,)) for r, m in shares.items()])
    assert np.allclose(state.window(START_S).work_s(slice(None)), [[4.0, 4.0]])


def test_a_pause_of_one_rank_is_not_the_jobs_duration() -> None:
    state = fed(
        steps(0, 0, took_s=3.0, pause_s=(2.0,)), steps(1, 0, took_s=3.0, wait_s=(2.1,)), steps(2, 0, took_s=3.0)
    )  # fmt: skip
    assert job_duration_s(state.window(START_S), slice(None)).tolist() == [1.0]


@pytest.mark.parametrize("seed", range(8))
def test_the_jobs_duration_equals_the_plain_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    took_s, pause_s = rng.uniform(1.0, 3.0, (6, 5)), rng.uniform(0.0, 2.0, (6, 5))
    pause_s[rng.random((6, 5)) < 0.7] = np.nan
    pause_s[::2] = 0.0
    took_s[rng.random((6, 5)) < 0.2 * (seed % 3)] = np.nan
    window = replace(fed(beat(*range(5), at_s=1.0)).window(1.0), duration_s=took_s, pause_s=pause_s, steps=np.arange(6))
    for row, found in enumerate(job_duration_s(window, slice(None))):
        pauses = np.where(np.isnan(pause_s[row]), 0.0, pause_s[row])
        known = np.isfinite(took_s[row])
        if not known.any():
            assert np.isnan(found)
            continue
        plain = np.median(np.maximum(took_s[row] - pauses, 1e-6)[known])
        without = np.median(took_s[row][known]) - pauses.max()
        assert found == pytest.approx(max(min(plain, without), 0.05 * plain) if pauses.max() > 0 else plain)


def test_progress_is_when_something_last_changed() -> None:
    state = fed(beat(0, 1, at_s=1.0), beat(0, 1, at_s=2.0, calls=(0, 1)), beat(0, 1, at_s=3.0, calls=(0, 1)))
    board = state.window(3.0).beats
    assert board.progress_s[:2].tolist() == [1.0, 2.0]
    assert state.quiet_s == 1.0


def test_being_stopped_counts_from_the_first_heartbeat_that_saw_it() -> None:
    state = fed(*[beat(0, at_s=at_s, states=("T" if at_s > 1 else "S",)) for at_s in (1.0, 2.0, 3.0)])
    assert state.window(3.0).beats.stopped_for_s[0] == 1.0
    state.feed(beat(0, at_s=4.0, states=("R",)))
    assert np.isnan(state.window(4.0).beats.stopped_for_s[0])


def test_heartbeats_of_the_past_or_of_odd_shape_change_nothing() -> None:
    state = fed(beat(0, at_s=5.0, calls=(7,)), beat(0, at_s=4.0, calls=(3,)), beat(0, at_s=6.0, calls=(1, 2)))
    assert state.window(6.0).beats.calls[0] == 7
    counts = state.take_counts()
    assert (counts["duplicates"], counts["odd"]) == (1, 1)


def test_phases() -> None:
    job = Job(ranks=2).run(30)
    state = JobState(JOB)
    assert state.window(START_S).phase == ""  # nobody has started anything
    state.feed(event("job_start", START_S, world_size=2))
    assert state.window(START_S).phase == "start"
    for _, record in job.records:
        state.feed(record)
    state.window(job.end_s)
    assert state.window(job.end_s).phase == ""
    state.feed(event("restart", job.end_s, stage="started"))
    assert state.window(job.end_s).phase == "restart"
    state.feed(event("restart", job.end_s + 1, stage="done"))
    assert state.window(job.end_s).phase == "start"
    state.feed(event("job_end", job.end_s + 2))
    assert state.window(job.end_s).phase == "ended"


def test_a_node_is_silent_only_while_its_ranks_live() -> None:
    state = fed(beat(0, at_s=1.0))
    state.count_silence(2.0)
    assert state.window(3.0).node_silent_s == {"n": 2.0}
    state.feed(event("process_exit", 3.0, 0, node="n", incarnation="a", code=0))
    assert state.window(3.0).node_silent_s == {}


def test_nodes_need_not_share_a_clock() -> None:
    """One node's clock is a minute ahead; the steps of the others are waited for all the same."""
    early = [steps(0, number) for number in range(3)]
    late = steps(1, 0, 1, 2)
    ahead = tuple(end_s + 60.0 for end_s in late.end_s)
    state = fed(beat(0, 1, at_s=START_S), msgspec.structs.replace(late, end_s=ahead))
    assert state.window(START_S).steps.tolist() == []
    for record in early:
        state.feed(record)
    assert state.window(START_S).steps.tolist() == [0, 1, 2]
    assert state.take_counts() == {}


def test_damaged_numbers_are_counted_and_harm_nothing() -> None:
    state = fed(
        steps(0, 10**30, -5), beat(0, at_s=1.0, calls=(10**30,)), beat(0, at_s=1e300),
        event("job_start", START_S, world_size=1e300), log_lines(0, [(1e300, "a")]), steps(0, 0),
    )  # fmt: skip
    assert state.window(START_S).steps.tolist() == [0]
    assert state.end_s < START_S + 10.0
    assert state.take_counts()["odd"] == 4


def test_a_rank_that_fell_silent_is_not_waited_for_again_until_it_speaks() -> None:
    state = fed(beat(0, 1, at_s=START_S), steps(0, *range(10)))
    assert len(state.window(START_S).steps) > 3
    state.feed(steps(0, 10, 11))
    assert state.window(START_S).steps[-1] == 11
    state.feed(steps(1, 11))
    state.feed(steps(0, 12))
    assert state.window(START_S).steps[-1] == 11


def test_what_a_process_beside_the_trainer_does_is_not_the_ranks() -> None:
    """A probe that ends with an error, and the start of an inference worker, are no news of the rank."""
    state = fed(beat(0, at_s=START_S), steps(0, 0, 1))
    told = {"incarnation": "9-9"}
    state.feed(event("process_start", START_S + 1, 0, beside="a", **told))
    for kind in ("exception", "process_exit", "fatal_signal"):
        state.feed(event(kind, START_S + 2, 0, code=1, **told))
    assert state.window(START_S + 3).events == ()
    state.feed(event("process_start", START_S + 4, 0, **told))
    state.feed(event("process_exit", START_S + 5, 0, code=1, **told))
    assert [one.kind for one in state.window(START_S + 6).events] == ["process_start", "process_exit"]


def test_nobody_was_missed_between_an_end_and_the_next_start_under_the_same_name() -> None:
    state = fed(beat(0, 1, at_s=START_S), event("job_end", START_S + 1.0))
    state.count_silence(30.0)
    state.feed(event("job_start", START_S + 31.0, world_size=2))
    state.count_silence(0.5)
    assert max(state.window(START_S + 31.5).node_silent_s.values(), default=0.0) <= 0.5
    state.feed(beat(0, 1, at_s=START_S + 32.0, life="b"))
    state.feed(event("job_start", START_S + 32.0, world_size=2))  # the launcher's word, after that of the ranks
    state.count_silence(2.0)
    assert state.window(START_S + 34.0).node_silent_s == {"n": 2.0}
