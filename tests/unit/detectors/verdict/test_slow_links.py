"""A slow link and a slow rank at the same time are two problems, unless one rank is both."""

from __future__ import annotations

from trainwarden.detectors.job.state import JobState
from trainwarden.detectors.protocol import Role
from trainwarden.detectors.verdict.ensemble import Ensemble
from trainwarden.detectors.verdict.incidents import IncidentTracker
from trainwarden.detectors.verdict.rule import EnsembleConfig
from trainwarden.records import Suspect, Vote

ROLE = Role(reads="calls", opens=("verified",))


def vote(kind: str, *ranks: int) -> Vote:
    suspects = tuple(Suspect(score=1.0, reason="it is slow", rank=rank, node=f"node{rank}") for rank in ranks)
    return Vote(
        opinion="anomalous", score=0.9, kind=kind, severity="sev3", reason=kind, suspects=suspects, verified=True
    )  # type: ignore[arg-type]


def incidents(votes: dict[str, Vote]) -> list[tuple[str, list[int | None]]]:
    window = JobState("job").window(10.0)
    ensemble = Ensemble(EnsembleConfig(), dict.fromkeys(votes, ROLE))
    joiner = IncidentTracker("job", EnsembleConfig())
    joiner.join(ensemble.candidates(window, votes), votes, window)
    joiner.join(ensemble.candidates(window, votes), votes, window)
    return sorted((one.kind, [suspect.rank for suspect in one.suspects]) for one in joiner.open)


def test_they_are_two_incidents_that_stay_two():
    found = incidents({"links": vote("slow_link", 5, 9), "waits": vote("slow_compute", 3)})
    assert found == [("slow_compute", [3]), ("slow_link", [5, 9])]


def test_a_rank_that_is_both_is_one():
    votes = {"links": vote("slow_link", 5), "waits": vote("slow_compute", 5)}
    assert incidents(votes) == [("slow_link", [5])]
    ensemble = Ensemble(EnsembleConfig(), dict.fromkeys(votes, ROLE))
    assert len(ensemble.candidates(JobState("job").window(10.0), votes)) == 1


def test_a_slow_job_goes_with_whoever_is_named():
    assert incidents({"links": vote("slow_link", 5, 9), "pace": vote("slow_job")}) == [("slow_link", [5, 9])]
