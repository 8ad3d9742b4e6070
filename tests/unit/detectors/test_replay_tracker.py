"""What a member of the detection group remembers of what it has read, when partitions come back."""

from __future__ import annotations

from trainwarden.detectors.replay_tracker import ReplayTracker
from trainwarden.protocols import Message
from trainwarden.records import HeartbeatRecord

EVENTS, METRICS = ("events", 0), ("metrics", 0)
BOTH = frozenset({EVENTS, METRICS})


class Waiting:
    """A consumer with so many records left."""

    def __init__(self, left: int) -> None:
        self._left = left

    def lag(self) -> int:
        return self._left

    def assignment(self) -> frozenset[tuple[str, int]]:
        return BOTH


def read_up_to(offset: int) -> ReplayTracker:
    """A member that has read and committed so many records of both topics."""
    reading = ReplayTracker()
    kept, gained = reading.take_over(BOTH, {})
    assert (kept, gained) == (frozenset(), {0})
    reading.catch_up(gained, {}, Waiting(0))  # type: ignore[arg-type]
    for number in range(offset):
        for topic, _ in BOTH:
            record = HeartbeatRecord(job="j", node="n", time_s=0.0)
            assert reading.standing(Message(topic, 0, number, 0.0, "j", record)) == "live"
    return reading


def test_memory_outlives_a_moment_without_partitions() -> None:
    reading = read_up_to(5)
    assert reading.take_over((), {}) == (frozenset(), frozenset())
    assert reading.take_over(BOTH, {EVENTS: 5, METRICS: 4}) == ({0}, frozenset())
    assert reading.places(frozenset({0})) == {EVENTS: 5, METRICS: 5}


def test_memory_ends_where_a_topic_was_made_again() -> None:
    """Nothing is committed of it then, or less than there was when this member came."""
    reading = read_up_to(5)
    reading.take_over((), {})
    assert reading.take_over(BOTH, {EVENTS: 5}) == (frozenset(), {0})
    again = read_up_to(5)
    again.take_over(BOTH, {EVENTS: 5, METRICS: 5})
    again.catch_up(frozenset({0}), {EVENTS: 5, METRICS: 5}, Waiting(0))  # type: ignore[arg-type]
    assert again.take_over(BOTH, {EVENTS: 5, METRICS: 2}) == (frozenset(), {0})


def test_memory_ends_where_somebody_else_has_read_on() -> None:
    reading = read_up_to(5)
    assert reading.take_over(BOTH, {EVENTS: 5, METRICS: 6}) == (frozenset(), {0})
