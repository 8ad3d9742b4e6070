"""Whose own time has grown when the whole job is slow: one rank's, everybody's, nobody's."""

from __future__ import annotations

import numpy as np

from tests.places import ROOT
from trainwarden.detectors.job.state import JobState
from trainwarden.detectors.pace.change_point import ChangePoint, RowMemory, likely, shared
from trainwarden.detectors.recorded.stream import ReplayStream
from trainwarden.recorded.folder import read_folder
from trainwarden.records import IterationRecord, Record, Vote


def remembered(factors: list[float], noise: float, rows: int = 10, seed: int = 0) -> RowMemory:
    """Sixty rows of ranks as they are, then `rows` in which each takes so many times as long."""
    rng, memory = np.random.default_rng(seed), RowMemory()
    memory.resize(len(factors))
    for seq in range(60 + rows):
        own = 0.2 * rng.lognormal(0.0, noise, len(factors)) * (np.array(factors) if seq >= 60 else 1.0)
        memory.note(seq, seq, 0.2 * seq, own)
    return memory


def blamed(factors: list[float], ratio: float, noise: float = 0.12, seed: int = 0) -> int | None:
    memory = remembered(factors, noise, seed=seed)
    found = likely(memory.growth(60, 69, np.ones(len(factors), dtype=np.bool_)), ratio)
    return None if found is None else found[0]


def test_the_rank_of_a_real_sharded_job_is_named_and_not_the_job() -> None:
    """Its compute time is noisier than that of replicated training: every layer waits for the other rank."""
    job = read_folder(ROOT / "tests" / "data" / "fsdp_slow_rank")
    state, detector = JobState("job"), ChangePoint(ChangePoint.Config())
    sent = [record for _, records in ReplayStream(job).windows() for record in records]
    votes: list[Vote] = []
    for record in one_step_each(sent):
        state.feed(record)
        window = state.window(record.end_s[-1])
        detector.update(window)
        votes.append(detector.score(window))
    told = [vote for vote in votes if vote.opinion == "anomalous"]
    assert (told[0].kind, [suspect.rank for suspect in told[0].suspects]) == ("slow_compute", [1])
    assert told[0].onset_step == 40
    assert told[0].at_step is not None
    assert told[0].at_step <= 52


def one_step_each(records: list[Record]) -> list[IterationRecord]:
    """Steps as a live job sends them, in the order of their ends."""
    found = [
        IterationRecord(
            job=one.job, node=one.node, rank=one.rank, incarnation=one.incarnation, steps=(step,),
            end_s=one.end_s[place : place + 1], duration_s=one.duration_s[place : place + 1],
            compute_s=one.compute_s[place : place + 1], wait_s=one.wait_s[place : place + 1],
        )
        for one in records if isinstance(one, IterationRecord)
        for place, step in enumerate(one.steps)
    ]  # fmt: skip
    return sorted(found, key=lambda one: one.end_s)


def test_a_rank_that_has_grown_by_most_of_it_is_the_cause() -> None:
    for seed in range(20):
        assert blamed([1.0, 1.0, 1.5, 1.0], 1.4, noise=0.08, seed=seed) == 2


def test_ranks_that_have_grown_alike_and_noise_are_nobodys_fault() -> None:
    for seed in range(50):
        for ratio in (1.1, 1.3):
            assert blamed([ratio] * 4, ratio, seed=seed) is None
            assert blamed([1.0, 1.0], ratio, seed=seed) is None


def test_all_have_grown_if_most_have() -> None:
    everyone = np.ones(4, dtype=np.bool_)
    assert shared(remembered([1.3, 1.3, 1.0, 1.3], 0.02).growth(60, 69, everyone), 1.3)
    assert not shared(remembered([1.0, 1.0, 1.5, 1.0], 0.02).growth(60, 69, everyone), 1.3)


def test_ranks_that_have_ended_are_not_asked() -> None:
    live = np.array([True, True, False, True])
    assert likely(remembered([1.0, 1.0, 1.5, 1.0], 0.02).growth(60, 69, live), 1.3) is None
