"""Hosts that run ahead of their devices, one of them in a barrier: others may be waiting for their own devices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.simulated_ranks.hangs import Stand
from tests.simulated_ranks.layout import Layout
from tests.unit.detectors.detection_streams import Job
from trainwarden.detectors.calls.counts import Counts
from trainwarden.detectors.job.state import JobState
from trainwarden.detectors.pace.hang import HangConfig, HangWatch, Stall, hang_vote
from trainwarden.records import IterationRecord

STEP_S, STEPS, CULPRIT = 0.3, 30, 3
LAYOUT = Layout(2, 2, 2, per_node=8)


def hung(counts: Counts | None = None, *, device: str = "cuda", silent_s: float = 0.0, **said: Any) -> Stall:
    """Rank 0 waits in a barrier, the hosts of all others sleep in what looks like computing."""
    job = Job(ranks=8, step_s=STEP_S).run(STEPS)
    end_s, state, watch = job.end_s, JobState("job"), HangWatch(HangConfig())
    beat = {"phases": {0: "wait"}, "calls": 62, "cpu_s": dict.fromkeys(range(8), 10.0)} | said
    for tick in range(1, 30):
        job.beat(end_s + 0.2 * tick, STEPS, **beat)
    for _, record in sorted(job.records, key=lambda entry: entry[0]):
        measured = isinstance(record, IterationRecord)
        state.feed(msgspec.structs.replace(record, accelerator=device) if measured else record)
        window = state.window(end_s + 6.0)
        watch.update(replace(window, counts=counts and replace(counts, silent_s=np.full(8, silent_s))), STEP_S)
    assert watch.hang is not None
    return watch.hang


@pytest.mark.parametrize("silent_s", [0.0, 4.0])
@pytest.mark.parametrize("kind", ["host", "device"])
def test_counts_name_the_culprit_whatever_hosts_do(kind, silent_s):
    """Told before or a while ago: since nobody has moved, it still holds."""
    found = hung(Stand(LAYOUT, **{kind: (CULPRIT, 12)}).counts(), silent_s=silent_s)
    assert (found.culprits.tolist(), found.kind) == ([CULPRIT], "sleeping")
    assert kind in found.what


def test_a_link_has_no_culprit_among_ranks():
    found = hung(Stand(LAYOUT, link=LAYOUT.first["dp"] + 1, link_after=2).counts())
    assert found.culprits.size == 0


def test_without_counts_the_fewest_calls_tell_or_nobody_is_named():
    assert hung(begun={CULPRIT: 60}).culprits.tolist() == [CULPRIT]
    found = hung()
    assert found.culprits.size == 0
    state = JobState("job")
    for _, record in Job(ranks=8, step_s=STEP_S).run(3).records:
        state.feed(record)
    assert "who holds them up is not known" in hang_vote(state.window(1.0), found, STEP_S).reason


def test_where_hosts_do_the_work_their_states_tell():
    assert hung(device="").culprits.tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_the_only_rank_that_has_not_come_is_the_one():
    assert hung(phases={rank: "wait" for rank in range(8) if rank != 5}).culprits.tolist() == [5]
