"""Ranks of a job whose layout is known are compared within their pipeline stage."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from tests.unit.detectors.peers.rank_series import healthy, layout_event, watched, windows
from trainwarden.detectors.job.state import JobState
from trainwarden.detectors.job_monitor import _PLAIN
from trainwarden.detectors.verdict.causes import slowness
from trainwarden.parallelism.claim import Claim
from trainwarden.records import IterationRecord

PP4 = Claim(source="arguments", framework="Megatron", world_size=16, started_s=1.0, tp=1, cp=1, pp=4)


def by_stage(*factors: float, rows: int = 160) -> np.ndarray:
    """Work of 16 ranks in stages of four [rows, ranks], each stage so many times as long as usual."""
    return healthy(7, rows, 16, 0.02) * np.repeat(factors, 4)


def test_roles_are_stages() -> None:
    (window, *_) = windows(healthy(0, 8, 16), roles=["p2p:middle"] * 16, claim=PP4)
    assert window.roles[0] == "stage0:first"
    assert window.roles[4:8] == ("stage1",) * 4
    assert window.roles[15] == "stage3:last"
    assert window.layout is not None
    assert window.layout.summary() == "tp 1 x pp 4 x dp 4; from Megatron arguments"


def test_stages_are_named_once_while_nothing_changes_and_anew_when_it_does() -> None:
    found = windows(healthy(0, 16, 16), claim=PP4)
    assert found[0].roles is found[1].roles
    state = JobState("job")
    state.feed(layout_event(PP4))
    for rank in range(16):
        state.feed(
            IterationRecord(
                job="job", node="n", rank=rank, incarnation="0-0", steps=(1,), end_s=(2.0,), duration_s=(0.5,)
            )
        )
    assert state.window(3.0).roles[8] == "stage2"
    state.feed(layout_event(msgspec.structs.replace(PP4, started_s=5000.0, pp=2)))
    assert state.window(4.0).roles[8] == "stage1:last"


def test_a_layout_that_contradicts_itself_changes_nothing() -> None:
    wrong = Claim(source="settings", world_size=16, started_s=1.0, tp=1, cp=1, pp=3)
    (window, *_) = windows(healthy(0, 8, 16), roles=["p2p:middle"] * 16, claim=wrong)
    assert set(window.roles) == {"p2p:middle"}


def test_stages_of_less_than_three_ranks_keep_what_their_trainer_says() -> None:
    pp8 = Claim(source="settings", world_size=16, started_s=1.0, tp=1, cp=1, pp=8)
    (window, *_) = windows(healthy(0, 8, 16), roles=["p2p:middle"] * 16, claim=pp8)
    assert set(window.roles) == {"p2p:middle"}


def test_an_embedding_and_a_head_are_no_fault() -> None:
    roles = ["p2p:first"] * 4 + ["p2p:middle"] * 8 + ["p2p:last"] * 4
    assert watched(by_stage(1.4, 1.0, 1.0, 1.6), roles=roles, claim=PP4) == []


@pytest.mark.thorough
def test_a_rank_that_is_slow_from_the_start_is_named_among_its_stage() -> None:
    work = by_stage(1.4, 1.0, 1.0, 1.6)
    work[:, 14] *= 1.5
    roles = ["p2p:first"] * 4 + ["p2p:middle"] * 8 + ["p2p:last"] * 4
    assert watched(work, roles=roles) == []  # by what the hook alone can tell, nobody can be compared
    (spell,) = watched(work, roles=roles, claim=PP4)
    assert (spell.rank, spell.basis) == (14, "peers")


def test_what_is_known_of_the_layout_goes_with_an_incident_and_outlives_the_service() -> None:
    state = JobState("job")
    state.feed(layout_event(PP4))
    state.feed(
        IterationRecord(
            job="job", node="n0", rank=0, incarnation="0-0", steps=(1,), end_s=(2.0,), duration_s=(0.5,),
        )
    )  # fmt: skip
    kept, fresh = _PLAIN.dump(state), JobState("job")
    _PLAIN.load(fresh, kept)
    for one in (state, fresh):
        one._steps.quiet_left = 0
        assert one.window(3.0).layout == state._roster.layout.layout()
    evidence = slowness(windows(healthy(0, 16, 16), claim=PP4)[-1], None)
    assert evidence["layout"]["sizes"] == {"tp": 1, "cp": 1, "pp": 4, "dp": 4}
