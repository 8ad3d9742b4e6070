"""Simulated hangs by their counts: the culprit is named, a victim never, and nobody where the table cannot tell."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.simulated_ranks.hangs import SYNC, Stand
from tests.simulated_ranks.layout import Layout
from trainwarden.detectors.collectives.count_watch import blame

LAYOUTS = (Layout(1, 8, 1), Layout(4, 2, 1), Layout(2, 2, 4), Layout(4, 4, 2), Layout(1, 4, 4), Layout(8, 8, 1))


def somewhere(layout: Layout, seed: int, **how) -> tuple[int, int]:
    """A rank, and a call in its second step."""
    random = np.random.default_rng((seed, layout.ranks))
    rank = int(random.integers(layout.ranks))
    program = Stand(layout, **how).programs[rank]
    calls = [place for place, comm in enumerate(program) if comm != SYNC and place >= len(program) // 3]
    return rank, int(random.choice(calls[: len(calls) // 2]))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_the_host_that_did_not_come_is_named_and_no_victim(layout, eager, seed):
    where = somewhere(layout, seed, eager=eager)
    found = blame(Stand(layout, host=where, eager=eager).counts())
    assert (found.kind, found.columns) == ("host", (where[0],))
    assert where[0] not in found.waiting


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_the_device_that_did_not_start_is_named_and_no_victim(layout, eager, seed):
    where = somewhere(layout, seed, eager=eager)
    found = blame(Stand(layout, device=where, eager=eager).counts())
    assert (found.kind, found.columns) == ("device", (where[0],))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_call_that_nobody_ends_is_the_links_and_no_ranks(layout, eager, seed):
    plan = Stand(layout, eager=eager)
    comms = [comm for comm, group in plan.members.items() if len(group) > 1]
    comm = comms[int(np.random.default_rng(seed).integers(len(comms)))]
    found = blame(Stand(layout, link=comm, link_after=1, eager=eager).counts())
    assert (found.kind, found.columns, found.comm) == ("link", (), comm)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_without_the_devices_counts_a_host_is_named_still(layout, eager, seed):
    """Or nobody, where other hosts may be stuck as well: those that wait for their own devices."""
    where = somewhere(layout, seed, eager=eager)
    found = blame(Stand(layout, host=where, eager=eager, stamped=False).counts())
    assert (found is None and not eager) or (found.kind, found.columns) == ("host", (where[0],))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_without_the_devices_counts_no_victim_is_named_for_a_stuck_device_or_link(layout, eager, seed):
    """As in steps that are not sampled: hosts that wait for their own devices are behind, and nothing tells of that."""
    where = somewhere(layout, seed, eager=eager)
    for how in ({"device": where}, {"link": layout.first["dp"], "link_after": 1}):
        assert blame(Stand(layout, stamped=False, eager=eager, **how).counts()) is None


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_of_a_job_that_is_done_or_stands_alike_nobody_is_named(layout):
    assert blame(Stand(layout).counts()) is None
    assert blame(Stand(layout, stamped=False).counts()) is None


@pytest.mark.parametrize("layout", LAYOUTS[1:], ids=str)
def test_a_culprit_of_whom_nothing_is_known_is_nobody_else(layout):
    """The ranks that wait for it are not named in its place."""
    rank, place = somewhere(layout, 3)
    for kind in ("host", "device"):
        counts = Stand(layout, **{kind: (rank, place)}).counts()
        known = counts.column != rank
        part = {name: getattr(counts, name)[known]
                for name in ("comm", "column", "place", "enqueued", "started", "finished", "still_s")}  # fmt: skip
        found = blame(replace(counts, **part))
        assert found is None or rank in found.columns or not found.columns, (kind, found)


def test_sends_in_a_group_of_many_are_not_compared():
    """Stages need not have equally many."""
    layout = Layout(2, 2, 4)
    counts = Stand(layout).counts()
    odd = counts.enqueued + (counts.comm == 0) * (counts.place == 0)
    assert blame(replace(counts, enqueued=odd, started=odd, finished=odd)).columns != ()
    paired = np.zeros(counts.sizes.size, dtype=bool)
    paired[0] = True
    sizes = np.where(np.arange(counts.sizes.size) == 0, 4, counts.sizes)
    assert blame(replace(counts, enqueued=odd, started=odd, finished=odd, paired=paired, sizes=sizes)) is None


@pytest.mark.parametrize(
    ("behind", "waiting", "named"),
    [
        ((0, 1), (), (0, 1)), ((0, 1), (0,), (1,)), ((0, 1), (1,), (0,)), ((0, 1), (0, 1), None),
        ((0,), (), (0,)), ((0,), (0,), (0,)),
    ],
    ids=str,
)  # fmt: skip
def test_of_several_who_may_wait_in_receives_none_is_named(behind, waiting, named):
    """Those of `waiting` have a receive open, perhaps posted ahead, in a group of three that sends."""
    comm, column, place = np.array([(0, 0, 0), (0, 1, 1), (0, 2, 2), (1, 0, 0), (1, 1, 1), (1, 2, 2)]).T
    enqueued = np.array([5 - (0 in behind), 5 - (1 in behind), 5, 7, 7, 7])
    finished = np.array([4, 4, 4, 7 - (0 in waiting), 7 - (1 in waiting), 7])
    counts = replace(
        Stand(Layout(1, 4, 1)).counts(), comm=comm, column=column, place=place, enqueued=enqueued, started=enqueued,
        finished=finished, still_s=np.full(6, 60.0), sizes=np.array([3, 3]), trusted=np.ones(2, dtype=bool),
        paired=np.array([False, True]),
    )  # fmt: skip
    found = blame(counts)
    assert (found and found.columns) == named


def test_ranks_that_wait_for_each_other_are_not_told_apart():
    counts = Stand(Layout(1, 4, 1)).counts()
    comm, column, place = np.array([(0, 0, 0), (0, 1, 1), (1, 0, 0), (1, 1, 1)]).T
    ahead = np.array([5, 4, 4, 5])
    cycle = replace(
        counts, comm=comm, column=column, place=place, enqueued=ahead, started=ahead, finished=np.full(4, 4),
        still_s=np.full(4, 60.0), sizes=np.array([2, 2]), trusted=np.ones(2, dtype=bool),
        paired=np.zeros(2, dtype=bool),
    )  # fmt: skip
    assert blame(cycle) is None


def test_a_rank_that_does_not_come_to_an_all_to_all_alone_is_not_named_nor_is_any_other():
    """How many tokens go where is nobody's to say, so ranks need not send equally often."""
    comm, column = np.repeat([0, 1], 8), np.tile(np.arange(8), 2)
    enqueued = np.repeat([5, 160], 8)
    enqueued[8 + 3] = 144
    finished = np.repeat([5, 144], 8)
    counts = replace(
        Stand(Layout(1, 8, 1)).counts(), comm=comm, column=column, place=column, enqueued=enqueued, started=enqueued,
        finished=finished, still_s=np.full(16, 60.0), sizes=np.array([8, 8]), trusted=np.ones(2, dtype=bool),
        paired=np.array([False, True]),
    )  # fmt: skip
    assert blame(counts) is None
