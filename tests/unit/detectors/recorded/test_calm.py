"""Calm stretches of a log: fewer windows, the same verdicts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from trainwarden.detectors.job_monitor import JobMonitor
from trainwarden.detectors.recorded.facts import read_facts
from trainwarden.detectors.recorded.replay import CUT_STEPS, FIRST, CalmStretches, ReplayResult, replay
from trainwarden.formats.reading import read_job
from trainwarden.records import Record
from trainwarden.settings import DetectionSettings

START = datetime(2026, 11, 4, 8, 0, 0, tzinfo=UTC)
STEPS = 400


def written(to: Path, *, slow_from: int = STEPS, said: dict[int, str] | None = None) -> Path:
    now, lines = START, list[str]()
    for step in range(STEPS):
        now += timedelta(seconds=8.0 if step >= slow_from else 2.0)
        lines.append(f"{now:%Y-%m-%d %H:%M:%S},101 - INFO - step: {step}  loss:  {3.0 - step / 1000:.4f}")
        if said and step in said:
            lines.append(f"[rank3]: {said[step]}")
    (to / "train.log").write_text("".join(f"{line}\n" for line in lines))
    return to


def judged(folder: Path) -> ReplayResult:
    job = read_job(folder)
    return replay(job, DetectionSettings(), facts=read_facts(job))


def counted(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    scored, score = list[float](), JobMonitor.score

    def counting(self: JobMonitor, now_s: float, *, live: bool = True, last: bool = False) -> list[Record]:
        scored.append(now_s)
        return score(self, now_s, live=live, last=last)

    monkeypatch.setattr(JobMonitor, "score", counting)
    return scored


@pytest.mark.thorough
def test_steps_as_usual_take_a_window_for_eight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scored = counted(monkeypatch)
    result = judged(written(tmp_path))
    assert not result.incidents
    assert len(scored) < 3 * FIRST + STEPS / CUT_STEPS


@pytest.mark.parametrize(
    ("slow_from", "said"),
    [
        (250, {}),
        (STEPS, {251: "KeyError: 'labels'"}),
        (STEPS, {200: "NVRM: Xid (PCI:0000:3b:00): 79, pid=7001, GPU has fallen off the bus."}),
        (STEPS, {step: "step: 1  loss:  nan" for step in range(203, 260)}),
    ],
)
@pytest.mark.thorough
def test_what_happens_is_told_as_by_windows_of_each_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow_from: int, said: dict[int, str]
) -> None:
    folder = written(tmp_path, slow_from=slow_from, said=said)
    few = judged(folder)
    monkeypatch.setattr(CalmStretches, "skips", lambda *_: False)
    assert judged(folder).incidents == few.incidents
    assert few.incidents or "KeyError" in str(said)
