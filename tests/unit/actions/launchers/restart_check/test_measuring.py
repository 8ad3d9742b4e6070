"""The launcher's child that measures: what it says when it cannot, and that it ends when it is told to."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.unit.trainwarden.hook.test_planted_files import in_time, plant
from trainwarden import rundir
from trainwarden.actions.launchers.restart_check.measuring import JobPlace, Measurement

pytestmark = pytest.mark.thorough  # starts processes


def place(run_dir: Path, ranks: int = 2) -> JobPlace:
    return JobPlace(ranks=ranks, run_dir=run_dir, job="job", node="node-b")


def wait_for(what: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 60.0
    while not what():
        assert time.monotonic() < until_s
        time.sleep(0.02)


def test_one_that_cannot_begin_says_why_in_its_last_words(tmp_path: Path) -> None:
    (tmp_path / rundir.VALIDATION).write_text('{"accused": [], "nodes": {}, "judged": ["gemm"]}')  # of one before it
    measurement = Measurement(place(tmp_path, ranks=0), ("gemm",))
    wait_for(lambda: measurement.ended)
    measurement.begin()
    findings, error = measurement.outcome()
    assert findings is None
    assert error is not None
    assert error.startswith("the validation ended with code 2 and no result: ")
    assert "--nproc" in error
    measurement.kill()


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_a_log_that_was_planted_is_neither_waited_for_nor_followed(tmp_path: Path, kind: str) -> None:
    elsewhere = plant(tmp_path / rundir.VALIDATION_LOG, kind)
    before = elsewhere.read_text()
    measurement = in_time(lambda: Measurement(place(tmp_path), ("gemm",)))
    assert isinstance(measurement, Measurement)
    assert in_time(lambda: measurement.ready) is False
    measurement.kill()
    assert elsewhere.read_text() == before


def test_one_that_is_killed_leaves_nothing_and_no_answer(tmp_path: Path) -> None:
    measurement = Measurement(place(tmp_path), ("gemm",))
    assert psutil.pid_exists(measurement.pid)
    measurement.kill()
    measurement.kill()
    assert measurement.ended
    assert not psutil.pid_exists(measurement.pid)
    findings, error = measurement.outcome()
    assert (findings, error) == (None, "the validation ended with code -9 and no result: it said nothing")


def test_one_that_is_told_measures_and_names_its_node(tmp_path: Path) -> None:
    measurement = Measurement(place(tmp_path), ("gemm",))
    wait_for(lambda: measurement.ready)
    assert not measurement.ended
    measurement.begin()
    wait_for(lambda: measurement.ended)
    findings, error = measurement.outcome()
    assert error is None
    assert findings is not None
    assert (findings.nodes, findings.judged) == (("node-b",), ())  # two ranks have no median
    measurement.kill()
