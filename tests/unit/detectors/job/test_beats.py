"""Heartbeats taken in together are what they are one at a time, by a plain board of dictionaries too."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwarden.detectors.job.beats import PHASE_CODE, HeartbeatTable, damaged
from trainwarden.detectors.job.object_codec import ObjectCodec as Snapshot
from trainwarden.detectors.job.state import JobState
from trainwarden.detectors.job.step_assembly import Pending
from trainwarden.detectors.testing.streams import START_S, Job
from trainwarden.records import HeartbeatRecord

RANKS, NODES = 2, 3
LANES = (
    "step", "calls", "phase", "gone", "time_s", "clock_s", "still_s", "stopped_for_s", "cpu_at_progress_s",
    "cpu_at_stop_s",
)  # fmt: skip


def beat(node: int, clock_s: float, boot: str, words: list[tuple[int, str, str, int]]) -> HeartbeatRecord:
    """What node `node` says of its ranks: of each its step, phase, state and process."""
    ranks = range(node * RANKS, (node + 1) * RANKS)
    return HeartbeatRecord(
        job="j", node=f"n{node}", time_s=1000.0 + clock_s, ranks=tuple(ranks), pids=tuple(ranks),
        incarnations=tuple(f"i{life}" for *_, life in words), steps=tuple(step for step, *_ in words),
        step_end_s=(None,) * RANKS, phases=tuple(phase for _, phase, *_ in words),  # type: ignore[misc]
        phase_since_s=(0.0,) * RANKS, calls=tuple(2 * step for step, *_ in words),
        states=tuple(state for _, _, state, _ in words), cpu_s=(clock_s,) * RANKS, monotonic_s=clock_s, boot=boot,
    )  # fmt: skip


WORDS = st.tuples(
    st.integers(0, 2), st.sampled_from(["compute", "wait", "checkpoint", "evaluation", "?"]),
    st.sampled_from(["S", "T", "X"]), st.integers(0, 2),
)  # fmt: skip
BEATS = st.builds(
    beat, st.integers(0, NODES - 1), st.integers(0, 20).map(float), st.sampled_from(["a", "b"]),
    st.lists(WORDS, min_size=RANKS, max_size=RANKS),
)  # fmt: skip


class ObjectCodec:
    """One rank at a time."""

    def __init__(self) -> None:
        self.ranks: dict[int, dict[str, Any]] = {}
        self.boots: dict[int, str] = {}

    def take(self, record: HeartbeatRecord, lives: list[int]) -> None:
        for i, rank in enumerate(record.ranks):
            known = self.ranks.get(rank)
            if known and self.boots[rank] != record.boot:
                known |= {"clock_s": math.nan, "moved_at_s": math.nan, "stopped_at_s": math.nan}
            self.boots[rank] = record.boot
            if known and record.monotonic_s <= known["clock_s"]:  # type: ignore[operator]
                continue
            self.ranks[rank] = self._after(known, record, i, lives[i])

    @staticmethod
    def _after(known: dict[str, Any] | None, record: HeartbeatRecord, i: int, life: int) -> dict[str, Any]:
        phase, clock_s, cpu_s = PHASE_CODE.get(record.phases[i], -1), record.monotonic_s, record.cpu_s[i]
        pauses = {PHASE_CODE["checkpoint"], PHASE_CODE["evaluation"]}
        now: dict[str, Any] = {
            "step": record.steps[i], "calls": record.calls[i], "phase": phase, "life": life, "clock_s": clock_s,
            "time_s": record.time_s, "gone": record.states[i] in {"Z", "X"},
        }  # fmt: skip
        was = known or {"moved_at_s": math.nan, "stopped_at_s": math.nan, "cpu_at_stop_s": math.nan, "phase": -1}
        moved = math.isnan(was["moved_at_s"]) or any(was[lane] != now[lane] for lane in ("step", "calls", "life"))
        moved |= was["phase"] in pauses and phase not in pauses
        now["moved_at_s"] = clock_s if moved else was["moved_at_s"]
        now["cpu_at_progress_s"] = cpu_s if moved else was["cpu_at_progress_s"]
        stopped = record.states[i] == "T"
        begun = stopped and math.isnan(was["stopped_at_s"])
        now["cpu_at_stop_s"] = cpu_s if begun else was["cpu_at_stop_s"]
        now["stopped_at_s"] = (clock_s if begun else was["stopped_at_s"]) if stopped else math.nan
        return now | {"still_s": clock_s - now["moved_at_s"], "stopped_for_s": clock_s - now["stopped_at_s"]}


def seen(board: HeartbeatTable, rank: int) -> list[float]:
    return [float(getattr(board, lane)[rank]) for lane in LANES]


@pytest.mark.thorough
@settings(max_examples=300)
@given(st.lists(st.tuples(BEATS, st.booleans()), min_size=1, max_size=25))
def test_it_does_not_matter_when_they_are_settled(told: list[tuple[HeartbeatRecord, bool]]) -> None:
    together, plain = HeartbeatTable(), ObjectCodec()
    together.resize(RANKS * NODES)
    for record, asked in told:
        lives = [int(one[1:]) for one in record.incarnations]
        plain.take(record, lives)
        if together.holds(record.ranks):
            together.apply_pending()
        together.apply(record, None, list(record.ranks), lives)
        if asked:
            together.apply_pending()
    together.apply_pending()
    for rank, known in plain.ranks.items():
        np.testing.assert_equal(seen(together, rank), [float(known[lane]) for lane in LANES])


def test_what_has_waited_is_counted_as_one_at_a_time() -> None:
    board = HeartbeatTable()
    board.resize(RANKS * NODES)
    words = [(1, "compute", "S", 0)] * RANKS
    for node in range(NODES):
        board.apply(beat(node, 5.0, "a", words), None, [2 * node, 2 * node + 1], [1, 1])
    assert board.apply_pending() == (True, 1005.0, 0)
    for node, clock_s in enumerate((6.0, 5.0, 4.0)):
        board.apply(beat(node, clock_s, "a", words), None, [2 * node, 2 * node + 1], [1, 1])
    assert board.apply_pending() == (False, 1006.0, 2)
    assert board.apply_pending() == (False, -math.inf, 0)


def test_a_snapshot_before_they_are_settled_loses_none() -> None:
    state, other = JobState("job"), JobState("job")
    for _, record in Job(ranks=4).run(5).records:
        state.feed(record)
    Snapshot(Pending).load(other, Snapshot(Pending).dump(state))
    mine, theirs = state.window(START_S + 9.0), other.window(START_S + 9.0)
    np.testing.assert_equal(mine.beats.still_s, theirs.beats.still_s)
    assert np.isfinite(theirs.beats.still_s).all()


def test_what_contradicts_itself_is_damaged() -> None:
    sound = beat(0, 1.0, "a", [(1, "compute", "S", 0)] * RANKS)
    assert not damaged(sound)
    for lane in ("steps", "calls"):
        for value in ((-1, 0), (2**53, 0), (1,)):
            assert damaged(
                HeartbeatRecord(**{name: getattr(sound, name) for name in sound.__struct_fields__} | {lane: value})
            )
