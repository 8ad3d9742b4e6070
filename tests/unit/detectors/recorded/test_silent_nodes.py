"""Of recorded heartbeats a node is lost where all others wait for it, whatever its clock and wherever its file ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from trainwarden.detectors.recorded.lost_nodes import silent_node_events
from trainwarden.recorded.job import RecordedJob
from trainwarden.records import EventRecord, HeartbeatRecord
from trainwarden.simulation import Fleet
from trainwarden.topics import HEARTBEATS

JOB = RecordedJob("simulated", Path("nowhere"))
Change = Callable[[HeartbeatRecord], HeartbeatRecord | None]


def beats(fault: str, change: Change = lambda one: one, ranks: int = 24) -> list[HeartbeatRecord]:
    sent = Fleet(ranks=ranks, seconds=60.0, fault=fault, at_s=20.0, rank=9).of(HEARTBEATS)
    changed = [change(record) for _, record in sent if isinstance(record, HeartbeatRecord)]
    return [one for one in changed if one is not None]


def shifted(by_s: float) -> Change:
    """The clock of node-1 is another."""

    def change(one: HeartbeatRecord) -> HeartbeatRecord:
        if one.node != "node-1":
            return one
        ends_s = tuple(None if end_s is None else end_s + by_s for end_s in one.step_end_s)
        return msgspec.structs.replace(one, time_s=one.time_s + by_s, step_end_s=ends_s)

    return change


def every(seconds: float) -> Change:
    return lambda one: one if one.time_s % seconds < 0.25 else None


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [16, 24])
@pytest.mark.parametrize("by_s", [0.0, -60.0, 60.0])
def test_a_node_that_the_others_wait_for_is_lost(by_s: float, ranks: int) -> None:
    (event,) = silent_node_events(JOB, beats("node-lost", shifted(by_s), ranks))
    assert (event.kind, event.node) == ("heartbeat_lost", "node-1")
    assert 24.0 < event.time_s < 30.0
    assert 19.0 < float(event.fields["since_s"] or 0.0) < 22.0


@pytest.mark.parametrize("fault", ["none", "slow-rank", "hang"])
@pytest.mark.parametrize(
    "change",
    [
        lambda one: one, shifted(-60.0), shifted(60.0), every(10.0),
        lambda one: None if one.node != "node-0" and one.time_s > 50.0 else one,
        lambda one: None if one.node == "node-0" and one.time_s < 30.0 else one,
    ],
)  # fmt: skip
def test_a_node_whose_part_of_the_recording_is_another_is_not(fault: str, change: Change) -> None:
    assert silent_node_events(JOB, beats(fault, change)) == []


def test_to_wait_for_most_of_a_long_step_is_no_sign() -> None:
    """The recording of one node ends earlier in a step of a minute."""
    found = [
        HeartbeatRecord(
            job="j", node=node, time_s=at_s, ranks=(rank,), steps=(int(at_s // 60),), step_end_s=(at_s // 60 * 60.0,),
            phases=("wait" if at_s % 60 > 30.0 else "compute",),
        )
        for rank, (node, until_s) in enumerate({"a": 595.0, "b": 550.0}.items())
        for at_s in map(float, range(1, int(until_s)))
    ]  # fmt: skip
    assert silent_node_events(JOB, found) == []


def test_two_of_four_nodes_that_cease_together_are_both_lost() -> None:
    left = [one for one in beats("node-lost", ranks=32) if one.node != "node-2" or one.time_s < 20.0]
    assert {event.node for event in silent_node_events(JOB, left)} == {"node-1", "node-2"}


def test_who_ceases_while_one_that_hangs_is_waited_for_is_not() -> None:
    left = [one for one in beats("hang", ranks=32) if one.node != "node-0" or one.time_s < 45.0]
    assert silent_node_events(JOB, left) == []


def test_others_that_evaluate_for_long_are_no_witnesses() -> None:
    def change(one: HeartbeatRecord) -> HeartbeatRecord:
        return msgspec.structs.replace(one, phases=("evaluation",) * len(one.ranks)) if one.time_s > 20.0 else one

    assert silent_node_events(JOB, beats("node-lost", change)) == []


def test_a_node_whose_processes_ended_is_not_and_where_most_are_silent_none_is() -> None:
    end = EventRecord(id="e", job="simulated", node="node-1", time_s=20.0, kind="process_exit", rank=9)
    assert silent_node_events(JOB, beats("node-lost"), [end]) == []
    most = [one for one in beats("node-lost") if one.node == "node-0" or one.time_s < 20.0]
    assert silent_node_events(JOB, most) == []
