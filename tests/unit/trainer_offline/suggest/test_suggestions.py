"""What is suggested of a job: one moment for all series, an end, and nothing twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.trainer_offline.suggest.recordings import SLOW_S, slow_spell
from trainwarden.recorded.folder import read_levels_of
from trainwarden.trainer_offline.data.annotations import Annotation
from trainwarden.trainer_offline.suggest.series import series_of
from trainwarden.trainer_offline.suggest.suggestions import Suggestion, suggestions


def found(folder: Path) -> list[Suggestion]:
    return suggestions("job", series_of(read_levels_of(folder)))


@pytest.mark.parametrize("seed", range(3))
def test_a_slow_spell_is_one_suggestion_with_its_end_and_all_that_changed(tmp_path: Path, seed: int) -> None:
    [one] = found(slow_spell(tmp_path / "job", seed))
    assert one.from_s == pytest.approx(200.0, abs=4.0)
    assert one.to_s == pytest.approx(200.0 + 100 * SLOW_S, abs=4.0)
    assert [shift.series for shift in one.shifts] == ["step duration", "gpu/gpu_power_watts"]
    assert one.shifts[0].step == pytest.approx(200, abs=2)
    assert one.shifts[0].after / one.shifts[0].before == pytest.approx(SLOW_S, abs=0.05)
    assert one.note.startswith("step duration ")
    assert one.annotation().label == "suggested"


def test_a_level_that_stays_has_an_open_end(tmp_path: Path) -> None:
    [one] = found(slow_spell(tmp_path / "job", begin=250, end=400))
    assert (one.to_s, one.shifts[0].returns) == (None, False)


def test_a_healthy_job_has_nothing_to_confirm(tmp_path: Path) -> None:
    assert found(slow_spell(tmp_path / "job", begin=200, end=200)) == []


@pytest.mark.parametrize(
    ("job", "label", "from_s", "to_s", "told"),
    [
        ("job", "fault", 201.0, 340.0, True),  # confirmed, and moved a little by hand
        ("job", "refused", 200.0, None, True),
        ("job", "suggested", 200.0, None, True),
        ("job", "initialisation", None, 199.0, True),
        ("job", "ignore", None, None, True),
        ("job", "normal", None, None, False),  # says nothing of this moment
        ("job", "fault", 20.0, 40.0, False),
        ("other", "fault", 200.0, 340.0, False),
    ],
)
def test_what_somebody_has_said_is_not_suggested_again(
    job: str, label: str, from_s: float | None, to_s: float | None, told: bool
) -> None:
    one = Suggestion(job="job", from_s=200.0, near_s=5.0)
    said = Annotation(job=job, label=label, from_s=from_s, to_s=to_s, kind="hang" if label == "fault" else None)  # type: ignore[arg-type]
    assert one.is_told([said]) is told
