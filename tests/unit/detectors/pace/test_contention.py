"""What hosts have lost, as arrays: the same as by plain lists, tick by tick."""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from trainwarden.detectors.job.object_codec import ObjectCodec
from trainwarden.detectors.pace.contention import KEPT, LOST, HostContention
from trainwarden.detectors.peers.cpu_wait import EXPLAINED, GROWN, LEAST_TICKS, LEVEL_S

Ticks = dict[str, dict[str, list[tuple[float, float]]]]


def level(ticks: dict[str, list[tuple[float, float]]], after_s: float, until_s: float) -> float | None:
    found = [[share for at_s, share in kept[-KEPT:] if after_s < at_s <= until_s] for kept in ticks.values()]
    known = [median(shares) for shares in found if len(shares) >= LEAST_TICKS]
    return sum(known) if known else None


def explained(ticks: Ticks, before: dict[str, float], onset_s: float, was_s: float, now_s: float) -> dict[str, float]:
    """Seconds of each step that every node which explains the slowness has lost."""
    out = {}
    for node, usual in before.items():
        last_s = max(kept[-1][0] for kept in ticks[node].values())
        now = level(ticks[node], max(onset_s, last_s - LEVEL_S), np.inf)
        if now is not None and now >= usual + GROWN:
            lost_s = now * now_s - usual * was_s
            if lost_s > 0.0 and lost_s >= EXPLAINED * (now_s - was_s):
                out[node] = lost_s
    return out


@examples(60)
@given(
    seed=st.integers(0, 2**32 - 1), nodes=st.integers(1, 6), seconds=st.integers(0, 300), onset=st.floats(0.0, 300.0),
    grown=st.floats(1.05, 3.0), cut=st.booleans(),
)  # fmt: skip
def test_arrays_say_what_plain_lists_say(
    seed: int, nodes: int, seconds: int, onset: float, grown: float, cut: bool
) -> None:
    rng = np.random.default_rng(seed)
    host, ticks = HostContention(), Ticks()
    busy = rng.random(nodes) < 0.5

    def take(first: int, last: int) -> None:
        for second in range(first, last):
            for node in range(nodes):
                for name in LOST:
                    if rng.random() < 0.8:
                        share = float(rng.uniform(0.0, 0.2) + 0.3 * (busy[node] and second > onset))
                        host.observe(f"n{node}", name, float(second), share)
                        ticks.setdefault(f"n{node}", {}).setdefault(name, []).append((float(second), share))

    take(0, seconds)
    levels = {node: level(named, onset - LEVEL_S, onset) for node, named in ticks.items()}
    before = {node: usual for node, usual in levels.items() if usual is not None}
    host.begin(onset)
    if cut:
        other = HostContention()
        ObjectCodec().load(other, ObjectCodec().dump(host))
        host = other
    take(seconds, seconds + 40)
    assert host.unknown(onset) == any(level(ticks[node], onset, np.inf) is None for node in before)
    found, expected = host.explains(onset, 1.0, grown), explained(ticks, before, onset, 1.0, grown)
    assert (found is None) == (not expected)
    if found is not None:
        assert found.node == max(expected, key=lambda node: expected[node])
        assert found.before == pytest.approx(before[found.node])
