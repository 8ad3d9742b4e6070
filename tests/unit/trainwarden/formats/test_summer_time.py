"""Local times at the end of summer time: the hour that comes twice is two hours, and nothing else is."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from trainwarden.formats.reading import read_job
from trainwarden.formats.stamps import Times

EUROPE, AMERICA = datetime(2025, 10, 26, 2), datetime(2025, 11, 2, 1)


def stamps(start: datetime, zone: str = "", back: int = 1) -> list[str]:
    """Minutes of two hours, of which the second one has the names of the first."""
    hours = [start + timedelta(minutes=minute % (60 if back else 10_000)) for minute in range(120)]
    return [f"{one:%Y-%m-%d %H:%M:%S}{zone}" for one in hours]


@pytest.mark.parametrize("start", [EUROPE, AMERICA])
def test_the_hour_that_comes_twice_is_two_hours(start: datetime):
    told = Times(stamps(start))
    assert np.diff(told.values_s).tolist() == [60.0] * 119
    assert "end of summer time" in told.note


@pytest.mark.parametrize(
    "cells",
    [
        stamps(EUROPE, "Z"),  # a zone is told
        stamps(EUROPE + timedelta(days=1)),  # a Monday
        stamps(EUROPE + timedelta(hours=9)),  # by day
        [*stamps(EUROPE), *stamps(EUROPE)],  # two ranks one after the other
        stamps(EUROPE, back=0),
    ],
)
def test_nothing_else_is_taken_for_it(cells: list[str]):
    assert Times(cells).note == ""


def panel(start: datetime) -> str:
    rows = [f"{stamp},{60 + minute % 3},{61 + minute % 3}" for minute, stamp in enumerate(stamps(start))]
    return "\n".join(["Time,temp_gpu0,temp_gpu1", *rows]) + "\n"


def test_a_panel_over_the_change_is_read_whole(tmp_path: Path):
    (tmp_path / "t.csv").write_text(panel(EUROPE), encoding="utf-8")
    job = read_job(tmp_path / "t.csv")
    assert job.metrics is not None
    assert job.metrics.times_s.size == 240
    assert any("end of summer time" in note for note in job.notes)
    (tmp_path / "t.csv").write_text(panel(EUROPE + timedelta(days=1)), encoding="utf-8")
    assert not any("summer time" in note for note in read_job(tmp_path / "t.csv").notes)
