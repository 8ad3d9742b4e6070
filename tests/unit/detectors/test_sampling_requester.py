"""When detectors ask for denser samples of collective calls, and what comes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulated_ranks.judged import Layout
from tests.simulated_ranks.sampling import watched
from tests.simulated_ranks.steps import Fault, Ranks
from trainwarden.detectors.job.window import Window
from trainwarden.detectors.job_monitor import EVERY_S, LEAD_S, STEPS, SamplingRequester
from trainwarden.detectors.testing.streams import Job
from trainwarden.records import Suspect, Vote

SLOW = Vote(opinion="anomalous", score=0.9, kind="slow_job", reason="the job is slow")
NAMED = Vote(
    opinion="anomalous",
    score=0.9,
    kind="slow_compute",
    verified=True,
    suspects=(Suspect(score=1.0, reason="r", rank=1),),
)
FINE = Vote(opinion="normal")


@pytest.fixture(scope="module")
def window() -> Window:
    """Of a job that tells of collective calls."""
    from trainwarden.detectors.job.state import JobState

    state, job = JobState("job"), Job().run(20)
    for _, record in job.records:
        state.feed(record)
    return replace(state.window(job.end_s, with_samples=False), counts=Layout(1, 4).counts, phase="training")


def test_steps_are_asked_for_that_lie_ahead(window: Window) -> None:
    request = SamplingRequester("job").ask(window, {"a": SLOW, "b": FINE})
    assert request is not None
    assert request.until_step - request.from_step == STEPS
    step_s = float(window.duration_s[-1].mean())
    ahead = request.from_step - int(window.steps[-1])
    assert LEAD_S <= ahead * step_s <= LEAD_S + 3 * step_s
    assert (request.job, request.why) == ("job", "the job is slow")


def test_it_asks_once_in_a_while(window: Window) -> None:
    suspicion = SamplingRequester("job")
    times_s = [number * 1.0 for number in range(1300)]
    asked = [at_s for at_s in times_s if suspicion.ask(replace(window, now_s=at_s), {"a": SLOW}) is not None]
    assert asked == [0.0, EVERY_S, 2 * EVERY_S]
    assert suspicion.ask(replace(window, now_s=-5.0), {"a": SLOW}) is not None  # a clock that was put back


@pytest.mark.parametrize(
    ("changes", "votes"),
    [
        ({}, {"a": FINE}),
        ({}, {"a": SLOW, "b": NAMED}),
        ({}, {"a": Vote(opinion="anomalous", kind="crash", hard=True)}),
        ({"counts": None}, {"a": SLOW}),
        ({"phase": "start"}, {"a": SLOW}),
        ({"phase": "ended"}, {"a": SLOW}),
    ],
)
def test_it_does_not_ask_where_nothing_would_come_of_it(changes: dict, votes: dict[str, Vote], window: Window) -> None:
    assert SamplingRequester("job").ask(replace(window, **changes), votes) is None


@pytest.mark.thorough
def test_a_straggler_is_named_within_seconds_instead_of_minutes() -> None:
    def named_at_s(granted: bool) -> tuple[float, int]:
        ranks = Ranks(Layout(2, 4, per_node=4), seed=4, noise=0.02, faults=(Fault("late", 5, 0.2, 150),))
        incidents, requests = watched(ranks, 420, granted=granted)
        named = next(one for one in incidents if one.suspects)
        assert [who.rank for who in named.suspects] == [5]
        return named.updated_at_s - incidents[0].opened_at_s, len(requests)

    soon_s, requests = named_at_s(True)
    late_s, _ = named_at_s(False)
    assert requests == 1
    assert soon_s < 10.0 < 100.0 < late_s


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_where_all_are_slower_nobody_is_accused_for_being_looked_at(seed: int) -> None:
    faults = tuple(Fault("late", rank, 0.25, 120) for rank in range(8))
    ranks = Ranks(Layout(2, 2, 2, per_node=4), seed=seed, noise=0.02 + 0.03 * seed, faults=faults)
    incidents, requests = watched(ranks, 240)
    assert requests
    assert {one.kind for one in incidents} == {"slow_job"}
    assert not any(one.suspects for one in incidents)


@pytest.mark.thorough
def test_a_healthy_job_is_left_alone() -> None:
    ranks = Ranks(Layout(1, 4, per_node=4), seed=1, noise=0.02)
    assert watched(ranks, 80) == ([], [])
