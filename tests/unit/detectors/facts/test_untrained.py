"""Processes that fail before they train: each such failure has an incident of its own, and training ends it."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.unit.detectors.detection_streams import START_S, Run, event
from trainwarden.records import IncidentRecord

GONE_S = 10.0  # longer than new processes are waited for


def raised(at_s: float, pid: int, message: str = "ValueError: no lr", rank: int = 0) -> list[tuple[float, Any]]:
    """What the agent tells of a program that has begun half a second before it raised."""
    fields = {"incarnation": f"{pid}-t1", "pid": pid, "untrained": True, "began_s": at_s - 0.5, "script": "train.py"}
    words = event("exception", at_s, rank, type=message.partition(":")[0], frame="train.py:3 in main", **fields)
    ended = event("process_exit", at_s, rank, code=1, **fields)
    return [(at_s, msgspec.structs.replace(words, message=message)), (at_s, ended)]


def killed(at_s: float, pid: int, **more: Any) -> list[tuple[float, Any]]:
    fields = {"incarnation": f"{pid}-t1", "pid": pid, "untrained": True, "began_s": at_s - 0.5, **more}
    return [(at_s, event("process_exit", at_s, None if "excused" in more else 0, signal="SIGKILL", **fields))]


def found(*records: list[tuple[float, Any]], until_s: float) -> list[IncidentRecord]:
    """The newest revision of each incident, in the order of opening."""
    run = Run().play([one for some in records for one in some], until_s)
    newest = {one.id: one for one in run.incidents}
    return sorted(newest.values(), key=lambda one: one.opened_at_s)


def test_an_exception_before_the_first_step_names_rank_and_place() -> None:
    (incident,) = found(raised(START_S + 1.0, 7, rank=1), until_s=START_S + 4.0)
    assert (incident.kind, incident.suspects[0].rank, incident.onset_step) == ("exception", 1, None)
    assert incident.reason.endswith("raised ValueError: no lr at train.py:3 in main, before its first step")


def test_each_program_that_fails_after_the_other_has_an_incident() -> None:
    later_s = START_S + 1.0 + GONE_S
    first, second = found(raised(START_S + 1.0, 7), killed(later_s, 8), until_s=later_s + 4.0)
    assert (first.kind, first.state, first.unresolved) == ("exception", "closed", False)
    assert second.kind == "crash"
    assert "SIGKILL, before its first step" in second.reason


def test_one_that_fails_again_soon_tells_what_it_fails_of_now() -> None:
    (incident,) = found(raised(START_S + 1.0, 7), killed(START_S + 4.0, 8), until_s=START_S + 7.0)
    assert "SIGKILL" in incident.reason


def test_who_is_excused_has_no_incident() -> None:
    assert found(killed(START_S + 1.0, 7, excused="another was started"), until_s=START_S + 4.0) == []
