"""What the bus refuses for good: an action whose start cannot be recorded is not begun, and all else goes on."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest

from tests.doubles import metric_value
from tests.engine_doubles import Rig
from trainwarden.actions.engine.action_executor import REFUSED
from trainwarden.errors import BusUnavailable, RecordsRefused
from trainwarden.records import ActionRecord
from trainwarden.topics import ACTIONS


def test_an_action_whose_start_cannot_be_recorded_is_not_begun_and_others_are() -> None:
    rig = Rig(cool_down_s=0.0)
    rig.bus.refuses = lambda record: (
        isinstance(record, ActionRecord) and record.job == "job" and record.outcome == "started"
    )
    rig.tell(rig.incident(), msgspec.structs.replace(rig.incident("i2"), job="other"))
    assert rig.launcher.asked == [("restart", "i2/restart/1")], "the launcher heard of what is recorded alone"
    (failed,) = [action for action in rig.bus.actions() if action.job == "job"]
    assert failed.outcome == "failed"
    assert failed.why.startswith(REFUSED)
    assert metric_value(rig.metrics, "outputs_refused_total", kind="RecordsRefused") == 1.0
    for _ in range(3):
        rig.tick(1.0)
    assert [name for _, name in rig.launcher.asked] == ["i2/restart/1"]


def test_a_record_that_is_refused_at_the_flush_of_a_start_does_not_hold_the_start_back() -> None:
    rig = Rig()
    other = ActionRecord(id="x", incident="x", job="job", kind="ignore", outcome="skipped", at_s=0.0, why="w")
    rig.bus.refuses = lambda record: getattr(record, "id", "") == "x"
    rig.bus.queued.append((ACTIONS, "job", other))  # an output of before
    rig.engine._memory.apply(rig.incident())
    rig.tick()
    assert rig.launcher.asked == [("restart", "i1/restart/1")]
    assert metric_value(rig.metrics, "outputs_refused_total", kind="RecordsRefused") == 1.0


def test_a_start_whose_refusal_another_flush_was_told_of_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bus is away at the flush of a start, and the service loop's own flush is told that its topic refuses it."""
    rig = Rig()
    rig.bus.refuses = lambda record: getattr(record, "outcome", "") == "started"
    flush, away = rig.bus.flush, [BusUnavailable("away")]

    def once_away() -> None:
        started = any(getattr(record, "outcome", "") == "started" for _, _, record in rig.bus.queued)
        if away and started:
            raise away.pop()
        flush()

    monkeypatch.setattr(rig.bus, "flush", once_away)
    with pytest.raises(BusUnavailable):
        rig.tell(rig.incident())
    with suppress(RecordsRefused):
        rig.bus.flush()
    for _ in range(3):
        rig.tick(1.0)
    assert rig.launcher.asked == []
