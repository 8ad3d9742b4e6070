"""What breaks is set aside and told, and everything else goes on."""

from __future__ import annotations

import pytest

from tests.doubles import metric_value
from tests.unit.detectors.detection_streams import START_S, Job, Run
from tests.unit.detectors.test_detection_service import crash, played
from trainwarden.detectors.job.state import JobState
from trainwarden.detectors.job.window import Window
from trainwarden.detectors.pace.change_point import ChangePoint
from trainwarden.detectors.verdict.ensemble import Ensemble
from trainwarden.records import DeadLetter, HeartbeatRecord, Record
from trainwarden.settings import DetectionSettings


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

    def fragile(self: JobState, record: Record, at_s: float | None = None) -> None:
        if isinstance(record, HeartbeatRecord):
            raise IndexError("a mistake of ours")
        feed(self, record, at_s)

    monkeypatch.setattr(JobState, "feed", fragile)
    run = played(crash(Job().run(40)))
    letters = [record for record in run.bus.outputs if isinstance(record, DeadLetter)]
    assert letters
    assert all(letter.reason == "IndexError: a mistake of ours" for letter in letters)
    assert [incident.kind for incident in run.incidents] == ["crash"]
    again = Run(bus=run.bus)  # killed and started anew: what was read before is read again
    again.take(again.handler.handle(run.bus.poll(10**9)))
    again.take(again.handler.tick(run.clock.now_s()))
    assert [record for record in run.bus.outputs if isinstance(record, DeadLetter)] == letters


@pytest.mark.thorough
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


@pytest.mark.thorough
@pytest.mark.parametrize("heard_again", [True, False])
def test_what_was_open_when_a_job_was_set_aside_is_closed_all_the_same(
    monkeypatch: pytest.MonkeyPatch, heard_again: bool
) -> None:
    judge, broken = Ensemble.judge, []
    job = crash(Job(step_s=1.2).run(20))
    defect_s = job.end_s + 3.0

    def fragile(self: Ensemble, window: Window, votes: object) -> object:
        if not broken and window.now_s > defect_s:
            broken.append(True)
            raise ZeroDivisionError("a mistake of ours")
        return judge(self, window, votes)  # type: ignore[arg-type]

    monkeypatch.setattr(Ensemble, "judge", fragile)
    job.life, until_s = 1, job.end_s + 120.0
    if heard_again:
        job.run(75, first=20, start_s=job.end_s + 5.0)
    run = Run(DetectionSettings(ensemble={"forget_s": 20.0})).play(
        job.records, until_s if not heard_again else job.end_s
    )
    assert broken
    assert [(incident.kind, incident.state) for incident in run.incidents] == [
        ("crash", "closed"),
        ("pipeline", "closed"),
    ]


def test_a_detector_is_told_to_be_set_aside_as_long_as_the_job_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChangePoint, "update", lambda *_: {}["a mistake of the detector's"])
    job = Job().run(40)
    (incident,) = played(job).incidents
    assert (incident.kind, incident.state) == ("pipeline", "opened")
    forgetful = Run(DetectionSettings(ensemble={"forget_s": 20.0}, detectors={"hard_event": False}))
    (incident,) = forgetful.play(job.records, job.end_s + 60.0).incidents
    assert (incident.kind, incident.state) == ("pipeline", "closed")
