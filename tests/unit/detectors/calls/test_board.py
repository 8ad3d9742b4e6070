"""Records of collective calls on their way into a window: late, doubled, damaged and lost ones, restarts, snapshots."""

from __future__ import annotations

import msgspec
import pytest

from trainwarden.detectors.calls import board
from trainwarden.detectors.calls.board import MAX_OPEN
from trainwarden.detectors.job.object_codec import ObjectCodec
from trainwarden.detectors.job.state import JobState
from trainwarden.detectors.job.step_assembly import Pending
from trainwarden.detectors.job.window import LogLine
from trainwarden.records import CollectivesRecord


def record(rank: int, step: int, at_s: float, **changes) -> CollectivesRecord:
    """Two all-reduces of four ranks in one step."""
    lanes = {
        "job": "j", "node": f"n{rank // 2}", "rank": rank, "incarnation": "1", "time_s": at_s, "monotonic_s": at_s,
        "comms": ("world",), "groups": ("dp",), "sizes": (4,), "places": (rank,), "node_counts": (2,),
        "enqueued": (2 * step + 2,), "started": (2 * step + 2,), "finished": (2 * step + 1,), "moved_s": (at_s - 1,),
        "of": (0, 0), "functions": ("AllReduce",) * 2, "seqs": (2 * step, 2 * step + 1), "steps": (step,) * 2,
        "call_bytes": (1 << 20,) * 2, "device_s": (0.01, 0.02 + rank), "enqueued_s": (at_s - 2, at_s - 1),
    }  # fmt: skip
    return CollectivesRecord(**(lanes | changes))


NO_CALLS = {name: () for name in ("seqs", "of", "functions", "steps", "call_bytes", "device_s", "enqueued_s")}


def fed(*records: CollectivesRecord) -> JobState:
    state = JobState("j")
    for one in records:
        state.feed(one)
    return state


def step_of(step: int, at_s: float, **changes) -> list[CollectivesRecord]:
    return [record(rank, step, at_s, **changes) for rank in range(4)]


def test_a_step_is_shown_once_when_all_have_said_something_newer():
    state = fed(*step_of(64, 100.0))
    assert state.window(100.0).calls == ()
    for one in step_of(128, 101.0):
        state.feed(one)
    (shown,) = state.window(101.0).calls
    assert (shown.step, shown.joined.tolist()) == (64, [2, 2, 2, 2])
    assert shown.wait_s.round(9).tolist() == [0.0, 1.0, 2.0, 3.0]
    assert state.window(101.5).calls == ()
    assert [one.step for one in state.window(102.0, last=True).calls] == [128]


def test_a_step_is_waited_for_no_longer_than_that():
    state = fed(*step_of(0, 100.0)[:3], record(3, 0, 100.0, seqs=(), of=(), functions=(), steps=(), call_bytes=(),
                                               device_s=(), enqueued_s=()))  # fmt: skip
    state.feed(record(0, 64, 106.0))
    assert [one.step for one in state.window(106.0).calls] == [0]


def test_a_rank_that_tells_no_calls_any_more_is_waited_for_once():
    state = fed(*step_of(0, 100.0), *step_of(64, 101.0)[:3])
    for at_s in (101.0, 107.0):
        for one in step_of(0, at_s, **NO_CALLS):
            state.feed(one)
    assert [one.step for one in state.window(107.0).calls] == [0, 64]
    for one in (*step_of(128, 108.0)[:3], *step_of(0, 109.0, **NO_CALLS)):
        state.feed(one)
    assert [one.step for one in state.window(109.0).calls] == [128]


def test_ranks_that_do_not_sample_together_fill_no_memory():
    state = fed(*(record(place % 4, 64 * place, 100.0) for place in range(MAX_OPEN + 4)))
    assert [one.step for one in state.window(100.0).calls] == [0, 64, 128, 192]


def test_more_calls_than_are_kept_are_counted_and_close_the_oldest_step(monkeypatch):
    monkeypatch.setattr(board, "MAX_ROWS", 5)
    state = fed(record(0, 0, 100.0), record(1, 64, 100.0), record(2, 64, 100.0), record(3, 128, 100.0))
    assert state.take_counts() == {"odd": 2}
    assert [(one.step, int(one.told.sum())) for one in state.window(100.0).calls] == [(0, 2)]
    state.feed(record(3, 192, 101.0))
    assert state.take_counts() == {}


def test_how_long_a_count_stands_is_not_known_before_its_rank_has_said_so():
    """A record that contradicts itself makes a row, in the place of one that is gone, and no more."""
    state = fed(*step_of(0, 100.0), record(3, 0, 101.0, incarnation="2", enqueued=(1, 2)))
    counts = state.window(101.0).counts
    assert counts.still_s.tolist() == pytest.approx([1.0, 1.0, 1.0, float("nan")], nan_ok=True)


def test_calls_of_communicators_that_are_forgotten_are_forgotten_too():
    nowhere = {name: () for name in ("comms", "groups", "sizes", "places", "node_counts", "enqueued", "started",
                                     "finished", "moved_s")}  # fmt: skip
    state = fed(*step_of(0, 100.0), *step_of(0, 101.0, **NO_CALLS, **nowhere)[1:])
    state.feed(record(0, 64, 102.0, incarnation="2", comms=("new",)))
    assert [one.step for one in state.window(103.0, last=True).calls] == [64]


def test_how_long_a_step_takes_is_told_by_each_ranks_own_clock():
    records = [one for step, at_s in ((0, 100.0), (64, 228.0)) for one in step_of(step, at_s)]
    shifted = [msgspec.structs.replace(one, enqueued_s=tuple(at + 5000 * one.rank for at in one.enqueued_s))
               for one in records]  # fmt: skip
    window = fed(*shifted).window(228.0, last=True)
    assert window.calls[-1].period_s == pytest.approx(2.0)


def test_the_newest_counts_are_shown_with_how_long_they_stand():
    counts = fed(*step_of(0, 100.0), *step_of(1, 101.0)).window(101.0).counts
    assert counts.enqueued.tolist() == [4, 4, 4, 4]
    assert counts.finished.tolist() == [3, 3, 3, 3]
    assert counts.still_s.tolist() == [1.0, 1.0, 1.0, 1.0]
    assert counts.members(0).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"seqs": (1,)}, "odd"),
        ({"sizes": (1 << 40,)}, "odd"),
        ({"places": (9,)}, "odd"),
        ({"sizes": (4, 4)}, "odd"),
        ({"comms": ("a", "a"), "sizes": (4, 4), "places": (0, 0)}, "odd"),
        ({"of": (0, 7)}, "odd"),
        ({"seqs": (5, -1)}, "odd"),
        ({"steps": (5, 1 << 50)}, "odd"),
        ({"time_s": 1e15}, "odd"),
        ({"enqueued": (1, 2)}, "odd"),
        ({"seqs": (0, 0)}, "duplicates"),
        ({"lost": 7}, "lost"),
    ],
)
def test_what_contradicts_itself_is_counted_and_never_fatal(changes, kind):
    state = fed(*step_of(0, 100.0), record(0, 1, 101.0, **changes), *step_of(2, 102.0))
    assert state.window(102.0, last=True).calls[0].step == 0
    assert state.take_counts()[kind] == (7 if kind == "lost" else 1)


def test_a_damaged_step_or_count_of_nodes_spoils_nothing_that_comes():
    damaged = record(0, 1 << 38, 100.5, sizes=(), node_counts=(1 << 70,), comms=("damaged",))
    state = fed(*step_of(0, 100.0), damaged)
    for step, at_s in ((64, 101.0), (128, 110.0), (192, 120.0)):
        for one in (*step_of(step, at_s), *step_of(step, at_s + 1.0, **NO_CALLS)):
            state.feed(one)
        (shown,) = [one for one in state.window(at_s + 1.0).calls if one.step == step]
        assert shown.joined.tolist() == [2, 2, 2, 2]


def test_kernels_that_ran_impossibly_long_are_not_measured():
    state = fed(*(record(rank, 0, 100.0, device_s=(-1.0, 1e9)) for rank in range(4)))
    assert not state.window(100.0, last=True).calls[0].joined.any()


def test_what_came_before_or_again_changes_nothing():
    state = fed(*step_of(0, 100.0), *step_of(0, 100.0), *step_of(64, 101.0))
    (shown,) = state.window(101.0).calls
    assert shown.joined.tolist() == [2, 2, 2, 2]
    for one in (*step_of(0, 100.0), *step_of(0, 102.0)):
        state.feed(one)
    assert [one.step for one in state.window(102.0).calls] == [64]
    assert state.take_counts() == {"duplicates": 8, "late": 16}


def test_sends_are_counted_for_each_peer_and_none_is_taken_for_another():
    """As the plug-in numbers them: in a ring of four every rank sends to both neighbours, each time number 0."""
    ring = [
        record(rank, 0, 100.0, functions=("Send", "Send", "Recv", "Recv"), seqs=(0,) * 4, of=(0,) * 4, steps=(0,) * 4,
               call_bytes=(1 << 20,) * 4, device_s=(0.01, 0.02, 0.03, 0.04), enqueued_s=(99.0,) * 4,
               peers=((rank + 1) % 4, (rank - 1) % 4) * 2)
        for rank in range(4)
    ]  # fmt: skip
    state = fed(*ring, *ring)
    (shown,) = state.window(100.0, last=True).calls
    assert shown.joined.tolist() == [4, 4, 4, 4]
    assert state.take_counts() == {"duplicates": 16}


def test_a_new_life_may_tell_the_same_steps_of_new_communicators():
    state = fed(*step_of(0, 100.0), *step_of(64, 101.0))
    assert len(state.window(101.0).calls) == 1
    again = {"incarnation": "2", "comms": ("new",)}
    for one in (*step_of(0, 110.0, **again), *step_of(64, 111.0, **again)):
        state.feed(one)
    window = state.window(111.0)
    assert [one.step for one in window.calls] == [0]
    assert {window.counts.names[comm] for comm in window.counts.comm.tolist()} == {"new"}
    state.feed(record(1, 128, 112.0))  # of the old life
    assert state.take_counts()["late"] == 1


def test_ranks_that_disagree_about_a_size_are_not_believed():
    state = fed(*step_of(0, 100.0)[:3], record(3, 0, 100.0, sizes=(8,)))
    assert not state.window(100.0, last=True).calls[0].joined.any()


def test_communicators_come_and_go():
    state = fed(*(record(rank, 0, 100.0, comms=("world", "old"), groups=("a", "b"), sizes=(4, 2),
                         places=(rank, rank % 2), node_counts=(2, 1), enqueued=(2, 1), started=(2, 1),
                         finished=(2, 1), moved_s=(1.0, 1.0)) for rank in range(4)))  # fmt: skip
    assert state.window(100.0).counts.column.size == 8
    for one in step_of(64, 101.0):
        state.feed(one)
    assert state.window(101.0).counts.column.size == 8  # with calls come their communicators alone
    for turn in range(100):
        for one in step_of(64, 101.0 + turn, **NO_CALLS, comms=(("world",) if turn % 2 else ("new",))):
            state.feed(one)
        assert state.window(101.0 + turn).counts.column.size == 4
    assert state._calls._table._used <= 12  # rows of what is gone are used again


def test_a_version_that_tells_no_sizes_tells_counts():
    state = fed(*step_of(0, 100.0, sizes=(), node_counts=(), **NO_CALLS))
    counts = state.window(100.0).counts
    assert (counts.sizes.tolist(), counts.enqueued.tolist()) == ([0], [2, 2, 2, 2])


def test_it_outlives_a_snapshot():
    plain = ObjectCodec(LogLine, Pending)
    state = fed(*step_of(0, 100.0), *step_of(64, 101.0)[:2])
    fresh = JobState("j")
    plain.load(fresh, plain.dump(state))
    for one in (state, fresh):
        for late in step_of(64, 101.0)[2:]:
            one.feed(late)
    assert [one.step for one in fresh.window(101.0).calls] == [one.step for one in state.window(101.0).calls] == [0]
