"""A script's numbers are labels: whatever they do, every step is there once and detection sees all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.detectors.detection_streams import JOB, START_S
from trainwarden.detectors.job.state import JobState
from trainwarden.records import IterationRecord

BOGUS = 10**12


def told(state: JobState, rank: int, labels: Sequence[int], *, first: int = 0, life: str = "a") -> None:
    """Feed steps of a rank that its script calls `labels`, a second each, the first of them the job's step `first`."""
    ends = tuple(START_S + first + place + 1.0 for place in range(len(labels)))
    record = IterationRecord(
        job=JOB, node=f"n{rank}", rank=rank, incarnation=life, steps=tuple(labels), end_s=ends,
        duration_s=(1.0,) * len(labels),
    )  # fmt: skip
    state.feed(record)


def rows(label_of: Callable[[int], int], count: int = 180, ranks: int = 3) -> list[int]:
    state = JobState(JOB)
    for place in range(count):
        for rank in range(ranks):
            told(state, rank, [label_of(place)], first=place)
        state.window(START_S + place)
    counts = state.take_counts()
    assert not counts.keys() & {"duplicates", "late", "incomplete_steps", "odd"}
    window = state.window(START_S + count)
    assert window.duration_s.shape == (count, ranks)
    assert window.ends_s.tolist() == [START_S + place + 1.0 for place in range(count)]
    return [int(step) for step in window.steps]


@pytest.mark.parametrize(
    "label_of",
    [
        lambda place: place % 60,
        lambda place: 10 * (place % 18),
        lambda place: 1000 * (place // 60) + place % 60 if place < 120 else place % 60,
        lambda place: BOGUS if place == 70 else place,
        lambda place: BOGUS if place == 0 else place,
        lambda place: BOGUS if place == 179 else place,
        lambda place: 5,
        lambda place: 180 - place,
        lambda place: BOGUS - place if place % 7 == 0 else place,
    ],
)
def test_all_steps_are_there_whatever_their_numbers(label_of: Callable[[int], int]) -> None:
    """Numbers that began again each epoch made 120 of 180 steps duplicates, and one wild number hid the rest."""
    found = rows(label_of)
    assert found == sorted(set(found)), "numbers rise"


def test_numbers_that_rise_are_kept_as_they_are() -> None:
    assert rows(lambda place: 4_000 + place) == list(range(4_000, 4_180))
    assert rows(lambda place: 10 * place) == list(range(0, 1_800, 10))
    assert rows(lambda place: place if place < 60 else 50_000 + place)[61:] == list(range(50_061, 50_180))


def test_a_wild_number_of_one_rank_leaves_the_others_together() -> None:
    for wild_rank in (0, 1):
        for at in (0, 1, 70):
            state = JobState(JOB)
            for place in range(100):
                for rank in (0, 1):
                    label = BOGUS if (rank, place) == (wild_rank, at) else place
                    told(state, rank, [label], first=place)
                if place:  # by then both are known
                    state.window(START_S + place)
            window = state.window(START_S + 100)
            assert window.steps[-1] == 99
            assert len(window.steps) >= 99
            assert "duplicates" not in state.take_counts()


def test_a_rank_that_counts_from_a_wild_number_is_counted_with_the_others() -> None:
    state = JobState(JOB)
    for place in range(100):
        for rank in (0, 1):
            told(state, rank, [BOGUS + place if rank else place], first=place)
        if place:
            state.window(START_S + place)
    window = state.window(START_S + 100)
    assert len(window.steps) >= 99
    assert "incomplete_steps" not in state.take_counts()


def test_what_comes_again_after_an_epoch_is_no_new_step() -> None:
    state = JobState(JOB)
    labels = [*range(60), *range(60), *range(20)]
    told(state, 0, labels)
    state.window(START_S)
    for again in (slice(0, 60), slice(40, 130), slice(130, 140), slice(0, 140)):
        told(state, 0, labels[again], first=again.start)
    assert len(state.window(START_S).steps) == len(labels)
    told(state, 0, [20, 21], first=140)
    assert state.window(START_S).steps.tolist() == list(range(142))


def test_what_comes_again_as_an_epoch_begins_is_no_step_before_the_process_began() -> None:
    """All ranks went on at step 25 and counted from 0 soon; one agent sent that first step 0 once more."""
    state = JobState(JOB)
    for rank in (0, 1):
        told(state, rank, range(30), life=f"{rank}/old")
        told(state, rank, [25, 26, 0], first=100, life=f"{rank}/new")
    told(state, 1, [25, 26, 0], first=100, life="1/new")
    for rank in (0, 1):
        told(state, rank, [1, 2], first=103, life=f"{rank}/new")
    window = state.window(START_S + 110)
    assert window.steps.tolist() == [*range(30), *range(25, 30)]
    assert bool((window.duration_s == 1.0).all()), "every step is whole"


def test_a_new_process_that_goes_back_to_a_checkpoint_begins_with_its_own_numbers() -> None:
    state = JobState(JOB)
    told(state, 0, [*range(30), *range(30)])
    told(state, 0, [*range(10, 30), *range(5)], first=100, life="b")
    window = state.window(START_S)
    assert window.steps.tolist() == [*range(60), *range(10, 35)]
    assert window.epochs.tolist() == [0] * 60 + [1] * 25


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2**52) | st.integers(0, 30), min_size=1, max_size=60))
def test_no_numbers_hide_a_step(labels: list[int]) -> None:
    state = JobState(JOB)
    told(state, 0, labels)
    window = state.window(START_S)
    steps = window.steps.tolist()
    assert len(steps) == len(labels)
    assert steps == sorted(set(steps))


@pytest.mark.parametrize("restarts", [1, 2, 3])
@pytest.mark.parametrize("at_first", [10, 0])
def test_the_steps_of_several_processes_that_arrive_late_are_no_steps_of_the_newest(
    restarts: int, at_first: int
) -> None:
    """An agent is cut off while all ranks restart again and again, and sends everything once it is back."""
    state = JobState(JOB)
    lives = [(0, 20)] + [(at_first + life, 12) for life in range(restarts)]  # first step, count
    firsts_s = [sum(count for _, count in lives[:number]) + 100 * number for number in range(len(lives))]
    for rank in (0, 1):
        for number, (label, count) in enumerate(lives):
            told(state, rank, range(label, label + count), first=firsts_s[number], life=f"{rank}/{number}")
            state.window(START_S + firsts_s[number])
    told(state, 0, range(30, 50), first=2_000, life="0/new")
    told(state, 1, range(30, 50), first=2_000, life="1/new")
    window = state.window(START_S + 2_100)
    assert len(window.steps) == sum(count for _, count in lives) + 20
    assert bool((window.duration_s == 1.0).all()), "every step is whole"


def test_a_rank_that_was_a_step_behind_when_all_went_back_is_with_the_others_again() -> None:
    """The others had ended the step from which all begin again, and one rank hung in it."""
    state = JobState(JOB)
    for rank, ended in ((0, 21), (1, 20)):
        told(state, rank, range(ended), life="first")
    for rank in (0, 1):
        told(state, rank, range(20, 40), first=600, life="second")
    window = state.window(START_S + 700)
    assert window.steps.tolist() == [*range(21), *range(20, 40)]
    assert bool((window.duration_s[21:] == 1.0).all()), "every step after the restart is whole"


def test_late_numbers_are_not_compared_with_those_of_a_later_epoch() -> None:
    """A script counts from 0 again, all ranks restart, and one agent sends what came before only then."""
    state = JobState(JOB)
    labels = [*range(5_000, 5_100), *range(20)]
    told(state, 0, labels, life="0/old")
    told(state, 1, labels[:50], life="1/old")
    told(state, 0, range(10, 30), first=300, life="0/new")
    state.window(START_S + 330)
    for place in range(50, len(labels)):
        told(state, 1, labels[place : place + 1], first=place, life="1/old")
    told(state, 1, range(10, 30), first=300, life="1/new")
    window = state.window(START_S + 340)
    assert len(window.steps) == len(labels) + 20
    assert bool((window.duration_s == 1.0).all()), "every step is whole"
