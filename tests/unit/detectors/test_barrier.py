"""What breaks is set aside and told, and everything else goes on."""

from __future__ import annotations

import pytest

from detectors.job.state import JobState
from detectors.pace.change_point import ChangePoint
from detectors.verdict.ensemble import Ensemble
from tests.doubles import metric_value
from tests.unit.detectors.detection_streams import START_S, Job, Run
from tests.unit.detectors.test_detection_service import crash, played
from trainwarden.records import DeadLetter, HeartbeatRecord, Record


def test_a_detector_with_a_defect_is_set_aside_told_once_and_asked_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def broken(self: ChangePoint, window: object) -> None:
        asked.append(window)
        raise KeyError("a mistake of the detector's")

    monkeypatch.setattr(ChangePoint, "update", broken)
    run = played(crash(Job().run(40)))
    assert [incident.kind for incident in run.incidents] == ["pipeline", "crash"]
    assert "detector change_point was set aside: KeyError" in run.incidents[0].reason
    assert len(asked) == 1
    assert "set aside" in run.verdicts[-1].votes["change_point"].reason
    assert metric_value(run.metrics, "set_aside_total", what="change_point") == 1


def test_a_record_that_breaks_the_memory_of_a_job_goes_to_dead_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = JobState.feed

    def fragile(self: JobState, record: Record) -> None:
        if isinstance(record, HeartbeatRecord):
            raise IndexError("a mistake of ours")
        feed(self, record)

    monkeypatch.setattr(JobState, "feed", fragile)
    run = played(crash(Job().run(40)))
    letters = [record for record in run.bus.outputs if isinstance(record, DeadLetter)]
    assert letters
    assert all(letter.reason == "IndexError: a mistake of ours" for letter in letters)
    assert [incident.kind for incident in run.incidents] == ["crash"]


def test_a_job_that_cannot_be_judged_is_set_aside_and_begun_anew_a_minute_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judge, broken = Ensemble.judge, []

    def fragile(self: Ensemble, *given: object) -> object:
        if not broken:
            broken.append(True)
            raise ZeroDivisionError("a mistake of ours")
        return judge(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Ensemble, "judge", fragile)
    job = Job(step_s=1.2).run(100)
    run = Run().play(crash(job).records, job.end_s + 3.0)
    assert [incident.kind for incident in run.incidents] == ["pipeline", "crash"]
    assert "cannot be judged for 60 s: ZeroDivisionError" in run.incidents[0].reason
    assert not [verdict for verdict in run.verdicts if verdict.time_s < START_S + 60.0]
    assert [verdict for verdict in run.verdicts if verdict.time_s > START_S + 62.0]
    assert metric_value(run.metrics, "set_aside_total", what="job") == 1
    assert (metric_value(run.metrics, "records_aside_total") or 0) > 0
