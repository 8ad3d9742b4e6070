"""All-to-alls made of their sends and receives: as a slow plain loop makes them, whatever is lost, and nothing else."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from tests.simulated_ranks.judged import Layout, Ranks, joined
from tests.simulated_ranks.records import sent
from trainwarden.detectors.calls.exchanges import with_all_to_alls
from trainwarden.detectors.calls.functions import RECV, SEND, code_of
from trainwarden.detectors.calls.joined import Calls
from trainwarden.detectors.job.state import JobState

EXPERTS = Layout(2, 8, 2, ep=4)
ALL_TO_ALL = code_of("all_to_all")


def rows(calls: Calls) -> list[tuple]:
    return sorted(zip(*(getattr(calls, name).tolist() for name in Calls.__slots__), strict=True))


def plainly(calls: Calls, comms: set[int]) -> list[tuple]:
    """The rows of `comms` made of their parts, stream by stream, all others as they are."""
    streams, launches, out = defaultdict(list), defaultdict(list), []
    for row in zip(*(getattr(calls, name).tolist() for name in Calls.__slots__), strict=True):
        column, comm, function, seq, size, device_s, peer = row
        if comm in comms and function in {SEND, RECV}:
            streams[comm, column, function, peer].append((seq, size, device_s))
        else:
            out.append(row)
    for (comm, column, function, _), parts in streams.items():
        for back, (_, size, device_s) in enumerate(sorted(parts, reverse=True)):
            launches[comm, column, back].append((size, function, device_s))
    most = max((back for *_, back in launches), default=0)
    sizes = defaultdict(set)
    for (comm, _, back), parts in launches.items():
        sizes[comm, back] |= {size for size, *_ in parts}
    for (comm, column, back), parts in launches.items():
        size = sum(size for size, function, _ in parts if function == SEND) if len(sizes[comm, back]) == 1 else 0
        known = [device_s for *_, device_s in parts if not np.isnan(device_s)]
        out.append((column, comm, ALL_TO_ALL, most - back, size, max(known, default=float("nan")), -1))
    return sorted(out)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("layout", [EXPERTS, Layout(1, 6, ep=2), Layout(1, 8, 4, ep=8), Layout(2, 2, 4)], ids=str)
def test_it_is_what_a_plain_loop_makes(layout, seed):
    random = np.random.default_rng(seed)
    calls, _ = Ranks(layout, seed=seed, routing=0.2 * (seed % 2), one_channel=seed % 3 > 0).step()
    if seed > 1:  # lost, unstamped, and in any order
        every = random.permutation(calls.seq.size)[: int(0.97 * calls.seq.size)]
        calls = Calls(*(getattr(calls, name)[every] for name in Calls.__slots__))
        calls.device_s[random.random(calls.seq.size) < 0.02] = np.nan
    first = layout.first.get("ep", 0)
    experts = set(range(first, first + len(layout.groups.get("ep", ()))))
    found, among_all = with_all_to_alls(calls, layout.sizes.size)
    assert set(among_all.tolist()) == experts
    np.testing.assert_array_equal(np.array(rows(found)), np.array(plainly(calls, experts)))


@pytest.mark.parametrize("layout", [Layout(2, 2, 4), Layout(1, 1, 8), Layout(4, 2, 1)], ids=str)
def test_calls_of_a_pipeline_are_left_as_they_are(layout):
    calls, _ = Ranks(layout).step()
    found, among_all = with_all_to_alls(calls, layout.sizes.size)
    assert found is calls
    assert among_all.size == 0


def test_a_ring_that_one_damaged_number_crosses_is_none():
    size = 8
    column = np.arange(size)
    ring = Calls(
        np.tile(column, 2), np.zeros(2 * size, dtype=np.int64), np.repeat([SEND, RECV], size), np.zeros(2 * size),
        np.full(2 * size, 1 << 20), np.full(2 * size, 0.01), np.concatenate(((column + 1) % size, (column - 1) % size)),
    )  # fmt: skip
    ring.peer[3] = 3
    assert with_all_to_alls(ring, 1)[1].size == 0


def test_of_a_step_whose_first_calls_are_lost_the_others_are_joined():
    """NCCL 2.27 stamps no first call of a step, and a ring of records that is full loses the oldest."""
    layout = Layout(2, 8, ep=4)
    calls, _ = Ranks(layout, seed=3, noise=0.02).step()
    whole = joined(layout, calls, 0, 1.0)
    gone = (calls.function == SEND) & (calls.seq % 4096 == 0) & (calls.peer == calls.column)
    gone |= (calls.column == 5) & np.isin(calls.function, (SEND, RECV)) & (calls.seq % 4096 < 3)
    left = joined(layout, calls.part(~gone), 0, 1.0)
    groups = layout.groups["ep"]
    others = ~np.isin(np.arange(layout.ranks), groups[(groups == 5).any(axis=1)])
    assert left.joined[others].tolist() == whole.joined[others].tolist()
    np.testing.assert_allclose(left.wait_s[others], whole.wait_s[others], atol=0.05 * whole.wait_s.max())


def test_ranks_of_experts_are_in_their_calls_for_no_longer_than_the_step():
    calls, took_s = Ranks(EXPERTS, seed=1, one_channel=True).step()
    assert joined(EXPERTS, calls, 0, took_s).kernel_s.max() < took_s


def test_links_of_uneven_all_to_alls_are_not_compared():
    for routing, compared in ((0.0, True), (0.3, False)):
        calls, _ = Ranks(EXPERTS, routing=routing).step()
        found = joined(EXPERTS, calls, 0, 1.0)
        assert (found.links.function == ALL_TO_ALL).any() == compared


def test_records_of_a_job_with_experts_come_out_the_same():
    state = JobState("job")
    for record in sent(Ranks(EXPERTS, seed=2), 2):
        state.feed(record)
    shown = state.window(0.0, last=True).calls
    again = Ranks(EXPERTS, seed=2)
    assert len(shown) == 2
    for number, one in enumerate(shown):
        expected = joined(EXPERTS, again.step()[0], 64 * number, 1.0)
        assert one.among_all.size == expected.among_all.size == 8
        np.testing.assert_allclose(one.wait_s, expected.wait_s, atol=1e-9)
        np.testing.assert_allclose(one.kernel_s, expected.kernel_s)
