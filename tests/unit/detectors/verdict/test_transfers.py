"""What an incident says of transfers between nodes: as simulated ranks made them, and what another order would do."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from tests.simulated_ranks.layout import Layout
from tests.simulated_ranks.records import START_S, records_of_step
from tests.simulated_ranks.steps import BYTES, BYTES_PER_S, Fault, Ranks
from trainwarden.actions.planners.move import best_move
from trainwarden.actions.planners.slow import Slowness, read
from trainwarden.detectors.calls.functions import bus_factor, code_of
from trainwarden.detectors.job.state import JobState
from trainwarden.detectors.job.window import Window
from trainwarden.detectors.verdict.causes import slowness
from trainwarden.parallelism.layout import Layout as Told
from trainwarden.records import HeartbeatRecord

LAYOUT = Layout(tp=2, dp=2, pp=2, per_node=2)
NODES = tuple(dict.fromkeys(LAYOUT.nodes))


def feed(state: JobState, ranks: Ranks, steps: int, first: int = 0, life: str = "1") -> None:
    """What all ranks tell of so many steps, of which every one is sampled."""
    end_s = START_S + 10.0 * first
    for step in range(first, first + steps):
        calls, took_s = ranks.step()
        end_s += took_s
        for record in records_of_step(ranks, calls, step, end_s, took_s):
            state.feed(msgspec.structs.replace(record, incarnation=life))


def window_of(ranks: Ranks, sampled: int, told: Told | None = None) -> Window:
    """Seen live, with a heartbeat of every rank."""
    state, layout = JobState("job"), ranks.layout
    feed(state, ranks, sampled)
    for node in dict.fromkeys(layout.nodes):
        own = tuple(rank for rank in range(layout.ranks) if layout.nodes[rank] == node)
        state.feed(
            HeartbeatRecord(
                job="job", node=node, time_s=START_S, ranks=own, incarnations=("1",) * len(own), steps=(1,) * len(own),
                phases=("compute",) * len(own), phase_since_s=(None,) * len(own), calls=(0,) * len(own),
            )
        )  # fmt: skip
    sizes = {"tp": layout.tp, "cp": 1, "dp": layout.dp, "pp": layout.pp}
    window = state.window(START_S + 600.0, with_samples=False, last=True)
    return replace(window, layout=told or Told(world_size=layout.ranks, sizes=sizes))


def evidence_of(ranks: Ranks, sampled: int = 8, onset: int = 0) -> Slowness:
    found = read(slowness(window_of(ranks, sampled), onset))
    assert found is not None
    return found


def test_bytes_links_and_working_times_are_those_of_the_ranks() -> None:
    ranks = Ranks(LAYOUT, noise=0.0, drift=0.0, micro_batches=4)
    found = evidence_of(ranks).transfers
    assert found is not None
    reduced = sum(bus_factor(code_of(name), 2) for name in ("reduce_scatter", "all_gather", "reduce_scatter"))
    assert (found.tp_bytes, found.micro_batches) == (0.0, 4), "tensor parallel groups lie on one node"
    assert found.dp_bytes == pytest.approx(reduced * BYTES["dp"])
    assert found.pp_bytes == 2 * 4 * BYTES["pp"]
    pairs = {(link.kind, link.nodes) for link in found.links}
    assert pairs == {("dp", NODES[:2]), ("dp", NODES[2:]), ("pp", NODES[::2]), ("pp", NODES[1::2])}
    for link in found.links:
        rate = BYTES_PER_S[link.kind] * (1.0 if link.kind == "pp" else 0.5)  # of two ranks half passes the link
        assert link.byte_s == pytest.approx(1.0 / rate, rel=0.05)
    assert found.ranks == tuple(range(8))
    assert [one is not None and 0.7 < one < 0.9 for one in found.working_s] == [True] * 8


def test_nothing_is_told_of_layouts_that_are_not_known_whole_of_other_jobs_and_of_steps_before_the_onset() -> None:
    ranks = Ranks(LAYOUT)
    window = window_of(ranks, 4)
    assert "transfers" in slowness(window, 0)
    assert "transfers" not in slowness(replace(window, layout=None), 0)
    assert "transfers" not in slowness(window_of(ranks, 4, Told(world_size=8, sizes={"tp": 2})), 0)
    assert "transfers" not in slowness(
        window_of(ranks, 4, Told(world_size=4, sizes={"tp": 1, "cp": 1, "dp": 4, "pp": 1})), 0
    )
    assert "transfers" not in slowness(window, 4)
    for alone in (Layout(tp=2, dp=2, pp=2, per_node=8), Layout(dp=4, per_node=8)):
        assert "transfers" not in slowness(window_of(Ranks(alone), 4), 0), "one node"


def test_a_rank_that_starts_anew_makes_what_was_measured_before_it_old() -> None:
    ranks, state = Ranks(LAYOUT), JobState("job")
    feed(state, ranks, 4)
    assert len(state.window(START_S + 60.0, with_samples=False, last=True).carried) == 4
    feed(state, ranks, 1, first=5, life="2")
    assert [one.step for one in state.window(START_S + 120.0, with_samples=False, last=True).carried] == [5]


@pytest.mark.parametrize("seed", range(3))
def test_the_predicted_order_is_as_fast_as_the_ranks_are_in_it(seed: int) -> None:
    """One data-parallel group has a slow link; without it, which is what the order found comes to, so long."""
    healthy = Ranks(LAYOUT, seed=seed, micro_batches=4)
    slow = Ranks(LAYOUT, seed=seed, micro_batches=4, faults=(Fault("dp", 2, 40.0, 30), Fault("dp", 3, 40.0, 30)))
    well_s = float(np.median([healthy.step()[1] for _ in range(8)]))
    found = best_move(evidence_of(slow, 42, onset=30), [(node, (2 * at, 2 * at + 1)) for at, node in enumerate(NODES)])
    assert {*found.node_order[:2]} != {NODES[2], NODES[3]} != {*found.node_order[2:]}
    assert found.iteration_s > 1.6 * well_s
    assert found.removed > 0.9
    assert found.predicted_s == pytest.approx(well_s, rel=0.05)
