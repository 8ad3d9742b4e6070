"""Jobs that stood still without a word until their scheduler ended them, and jobs that only look so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.detectors.last_words.judged import judged, steps

ENDED = "slurmstepd: error: *** {what} ON gpu-{at} CANCELLED AT 2026-11-04T{clock}{why} ***"


def ended(clock: str, why: str = "") -> list[str]:
    return [ENDED.format(what=what, at=4, clock=clock, why=why) for what in ("STEP 71.0", "JOB 71")]


@pytest.mark.parametrize("why", ["", " DUE TO TIME LIMIT"])
@pytest.mark.parametrize("own_file", [True, False])
def test_hours_without_a_step_before_the_scheduler_ends_a_job_are_a_hang_of_nobody(
    tmp_path: Path, why: str, own_file: bool
) -> None:
    lines, last = steps("09:10:00", 40), ended("11:20:10", why)
    files = {"train.log": lines, "slurm-71.out": last} if own_file else {"slurm-71.out": [*lines, *last]}
    (incident,) = judged(tmp_path, files)
    assert incident.kind == "hang"
    assert not any(one.rank is not None or one.node for one in incident.suspects)
    assert "7810 s" in incident.reason


@pytest.mark.parametrize(
    ("number", "clock", "more"),
    [
        (40, "09:10:20", []),  # it was at work
        (40, "09:35:00", []),  # an evaluation may take so long
        (40, "11:10:04", []),  # two hours: the scheduler's zone
        (40, "10:40:50", []),  # a zone of half an hour
        (5, "11:20:10", []),  # what is usual is not known
        (40, "11:20:10", [f"evaluated batch {number} of 4000" for number in range(30)]),
    ],
)
def test_a_job_that_was_at_work_or_may_have_been_is_none(
    tmp_path: Path, number: int, clock: str, more: list[str]
) -> None:
    assert not judged(tmp_path, {"slurm-71.out": [*steps("09:10:00", number), *more, *ended(clock)]})


def test_steps_without_stamps_do_not_tell_when_they_were(tmp_path: Path) -> None:
    lines = ["2026-11-04 08:00:00 INFO starting", *(f"step {step} loss 2.{step:03d}" for step in range(60))]
    assert not judged(tmp_path, {"slurm-71.out": [*lines, *ended("11:20:10")]})


def test_steps_after_the_job_was_queued_again_are_no_silence(tmp_path: Path) -> None:
    lines = [*steps("08:10:00", 40), *ended("08:10:09", " DUE TO PREEMPTION"), *steps("11:10:00", 40)]
    assert not judged(tmp_path, {"slurm-71.out": lines})


def test_a_job_that_waits_after_its_last_step_is_done(tmp_path: Path) -> None:
    lines = [line.replace("9000 |", "139 |") for line in steps("09:10:00", 40)]
    assert not judged(tmp_path, {"slurm-71.out": [*lines, *ended("11:20:10")]})
