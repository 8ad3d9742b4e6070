"""Calls joined over ranks: as a slow plain loop joins them, whatever is missing or disagrees."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from tests.simulated_ranks.layout import Layout
from tests.simulated_ranks.steps import Ranks
from trainwarden.detectors.calls.functions import RECV, SEND, SYNCHRONISES, code_of
from trainwarden.detectors.calls.joined import AGREE, NEARLY, Calls, join


def plainly(calls: Calls, sizes: np.ndarray, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """Seconds in kernels and waiting of every rank, call by call."""
    kernel_s, wait_s, told = np.zeros(ranks), np.zeros(ranks), defaultdict(dict)
    sides = defaultdict(lambda: ([], []))
    rows = zip(*(getattr(calls, name) for name in Calls.__slots__), strict=True)
    for column, comm, function, seq, size, device_s, peer in rows:
        if np.isnan(device_s):
            continue
        if SYNCHRONISES[function] or function in {SEND, RECV}:
            kernel_s[column] += device_s
        if SYNCHRONISES[function]:
            told[comm, function, seq][column] = (device_s, size)
        elif function == SEND:
            sides[comm, column, peer][0].append((seq, device_s, size))
        elif function == RECV:
            sides[comm, peer, column][1].append((seq, device_s, size))
    good = {
        key: len({size for _, size in own.values()}) == 1 and max(2, np.ceil(NEARLY * sizes[key[0]])) <= len(own)
        and len(own) <= sizes[key[0]]
        for key, own in told.items()
    }  # fmt: skip
    for key, own in told.items():
        alike = [other for other in told if other[:2] == key[:2]]
        if good[key] and sum(good[other] for other in alike) >= AGREE * len(alike):
            shortest_s = min(device_s for device_s, _ in own.values())
            for column, (device_s, _) in own.items():
                wait_s[column] += device_s - shortest_s
    for (_, source, target), (out, into) in sides.items():
        if len(out) == len(into):
            for (_, one_s, size), (_, other_s, as_large) in zip(sorted(out), sorted(into), strict=True):
                if size == as_large:
                    wait_s[source] += one_s - min(one_s, other_s)
                    wait_s[target] += other_s - min(one_s, other_s)
    return kernel_s, wait_s


def kept(calls: Calls, rows: np.ndarray) -> Calls:
    return Calls(*(getattr(calls, name)[rows] for name in Calls.__slots__))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("layout", [Layout(1, 8, 1), Layout(2, 2, 2), Layout(8, 2, 1), Layout(1, 2, 4)], ids=str)
def test_it_is_what_a_plain_loop_finds(layout, seed):
    random = np.random.default_rng(seed)
    calls, _ = Ranks(layout, seed=seed).step()
    if seed > 1:  # lost, unstamped, and told in any order
        calls = kept(calls, random.permutation(calls.seq.size)[: int(0.97 * calls.seq.size)])
        calls.device_s[random.random(calls.seq.size) < 0.02] = np.nan
    if seed > 3:  # of another size than the others say, far apart
        calls.call_bytes[random.integers(calls.seq.size)] += 1
        calls.seq[calls.comm == 0] += 1 << 35
    found = join(calls, layout.sizes, np.ones(layout.sizes.size, dtype=bool), layout.ranks, at=(0, 0.0))
    kernel_s, wait_s = plainly(calls, layout.sizes, layout.ranks)
    np.testing.assert_allclose(found.kernel_s, kernel_s)
    np.testing.assert_allclose(found.wait_s, wait_s, atol=1e-12)


def test_one_damaged_number_asks_for_no_memory_of_its_size():
    calls, _ = Ranks(Layout(1, 4, 1)).step()
    calls.seq[0] = (1 << 40) - 1
    assert join(calls, np.array([4, 4]), np.ones(2, dtype=bool), 4, at=(0, 0.0)).joined.sum() > 0


def test_numbers_that_are_far_apart_are_found_by_sorting():
    calls, _ = Ranks(Layout(1, 4, 1)).step()
    near = join(calls, np.array([4, 4]), np.ones(2, dtype=bool), 4, at=(0, 0.0))
    calls.seq[:] = calls.seq * 1_000_003
    far = join(calls, np.array([4, 4]), np.ones(2, dtype=bool), 4, at=(0, 0.0))
    assert near.kernel_s.tolist() == far.kernel_s.tolist()
    assert near.joined.sum() > 0


def simple(**changes: object) -> Calls:
    """Four ranks, ten all-reduces of 1 MiB; rank 2 comes last to each."""
    device_s = np.full((4, 10), 0.003)
    device_s[2] = 0.001
    lanes = {
        "column": np.repeat(np.arange(4), 10), "comm": np.zeros(40, dtype=int),
        "function": np.full(40, code_of("AllReduce")), "seq": np.tile(np.arange(10), 4),
        "call_bytes": np.full(40, 1 << 20), "device_s": device_s.ravel(), "peer": np.full(40, -1),
    }  # fmt: skip
    return Calls(**(lanes | changes))


def joined(calls: Calls, *, trusted: bool = True):
    return join(calls, np.array([4]), np.array([trusted]), 4, at=(7, 1.0))


def test_who_comes_last_does_not_wait():
    found = joined(simple())
    assert found.wait_s.round(6).tolist() == [0.02, 0.02, 0.0, 0.02]
    (slowness,) = found.links.slowness
    assert np.exp(slowness) * (1 << 20) == pytest.approx(0.001)


@pytest.mark.parametrize("name", ["Broadcast", "Reduce", "Mystery", "Gather"])
def test_calls_with_a_root_and_unknown_ones_are_left_out(name):
    assert not joined(simple(function=np.full(40, code_of(name)))).joined.any()


def test_a_communicator_that_is_not_trusted_is_left_out():
    assert not joined(simple(), trusted=False).joined.any()


def test_a_call_of_which_a_rank_is_missing_counts_for_nobody():
    calls = simple()
    found = joined(kept(calls, np.flatnonzero((calls.column != 2) | (calls.seq > 4))))
    assert found.joined.tolist() == [5, 5, 5, 5]


def test_ranks_that_count_differently_are_left_out():
    calls = simple()
    calls.seq[calls.column == 1] += 8
    assert not joined(calls).joined.any()


def test_calls_without_stamps_make_a_blind_communicator():
    found = joined(simple(device_s=np.full(40, np.nan)))
    assert found.blind.tolist() == [0]
    assert found.told.tolist() == [10, 10, 10, 10]
