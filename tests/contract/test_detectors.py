"""What every detector of the CATALOG must do, whatever it looks for."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import detectors
from detectors import CATALOG, ENTRY_POINTS
from detectors.job_state import JobState
from detectors.window import Window
from tests.unit.detection_streams import START_S, Job, event, log_lines
from trainwarden import plugins
from trainwarden.errors import ConfigError, DetectorError
from trainwarden.records import Vote
from trainwarden.settings import Config, DetectionSettings

FOLDER = Path(detectors.__file__).parent
every_detector = pytest.mark.parametrize("name", CATALOG)


def made(name: str) -> Any:
    plugin = plugins.load(CATALOG, ENTRY_POINTS, name)
    return plugin(plugin.Config())


def windows(job: Job, step_s: float = 0.5) -> list[Window]:
    """The job's windows, each as a copy that stays as it is."""
    from dataclasses import replace

    state, out = JobState("job"), []
    records = sorted(job.records, key=lambda entry: entry[0])
    now_s, place = START_S, 0
    while place < len(records):
        now_s += step_s
        while place < len(records) and records[place][0] <= now_s:
            state.feed(records[place][1])
            place += 1
        window = state.window(now_s)
        arrays = {
            name: value.copy()
            for name in Window.__slots__
            if isinstance(value := getattr(window, name), np.ndarray)
        }  # fmt: skip
        out.append(replace(window, **arrays))
    return out


def eventful() -> Job:
    job = Job(slow=lambda rank, step: 2.0 if rank == 1 and step >= 40 else 1.0).run(70)
    at_s = job.end_s
    job.add(at_s - 5, log_lines(0, [(at_s - 5, "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.")]))
    return job.add(at_s, event("process_exit", at_s, 2, signal="SIGSEGV"))


def test_table_and_folder_agree() -> None:
    """A file whose class has `update`, `score`, `state` and `restore` is in the table, and the other way round."""
    found = set()
    for path in FOLDER.glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not any(getattr(b, "id", "") == "Protocol" for b in node.bases):
                methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
                if {"update", "score", "state", "restore"} <= methods:
                    found.add(f"detectors.{path.stem}:{node.name}")
    assert found == set(CATALOG.values())


def test_every_default_detector_exists() -> None:
    assert set(DetectionSettings().detectors) <= set(CATALOG)


@every_detector
def test_config_is_typed_frozen_and_refuses_what_it_does_not_know(name: str) -> None:
    plugin = plugins.load(CATALOG, ENTRY_POINTS, name)
    assert issubclass(plugin.Config, Config)
    with pytest.raises(AttributeError):
        plugin.Config().nonesuch = 1
    with pytest.raises(ConfigError, match="nonesuch"):
        plugins.configure(plugin, {"nonesuch": 1}, "here")


@every_detector
def test_an_empty_window_gives_a_vote_that_is_not_anomalous(name: str) -> None:
    detector = made(name)
    window = JobState("job").window(START_S)
    detector.update(window)
    vote = detector.score(window)
    assert isinstance(vote, Vote)
    assert vote.opinion != "anomalous"
    assert vote.opinion == "normal" or vote.reason


@every_detector
def test_a_healthy_job_is_normal_and_scores_stay_in_range(name: str) -> None:
    detector = made(name)
    for window in windows(Job().run(60)):
        detector.update(window)
        vote = detector.score(window)
        assert vote.opinion != "anomalous"
        assert 0.0 <= vote.score <= 1.0
        assert vote.opinion == "normal" or vote.reason


@every_detector
def test_scoring_has_no_side_effects(name: str) -> None:
    asked, silent = made(name), made(name)
    for window in windows(eventful()):
        asked.update(window)
        silent.update(window)
        assert asked.score(window) == asked.score(window)
    assert asked.score(window) == silent.score(window)
    assert asked.state() == silent.state()


@every_detector
def test_anomalous_votes_say_what_and_why(name: str) -> None:
    detector, told = made(name), False
    for window in windows(eventful()):
        detector.update(window)
        vote = detector.score(window)
        if vote.opinion == "anomalous":
            told = True
            assert vote.reason
            assert vote.kind
            assert vote.severity
            assert vote.score >= vote.threshold
            assert all(suspect.reason for suspect in vote.suspects)
    assert told


@every_detector
def test_state_can_be_cut_anywhere(name: str) -> None:
    whole, cut = made(name), made(name)
    for place, window in enumerate(windows(eventful())):
        if place % 7 == 3:
            fresh = made(name)
            fresh.restore(cut.state())
            cut = fresh
        whole.update(window)
        cut.update(window)
        assert cut.score(window) == whole.score(window)


@every_detector
@pytest.mark.parametrize("state", [b"", b"garbage", b"\x80\x04\x95", b"\x81\xa4kind\xa1x"])
def test_foreign_state_is_refused(name: str, state: bytes) -> None:
    with pytest.raises(DetectorError):
        made(name).restore(state)


@every_detector
def test_the_state_of_another_detector_is_refused(name: str) -> None:
    other = next(one for one in CATALOG if one != name)
    with pytest.raises(DetectorError):
        made(name).restore(made(other).state())


@every_detector
def test_ranks_may_come_in_any_order(name: str) -> None:
    def renamed(order: list[int]) -> list[tuple[str, list[int | None]]]:
        job = eventful()
        first = {rank: place for place, rank in enumerate(order)}
        job.records.sort(key=lambda entry: (entry[0], first.get(getattr(entry[1], "rank", None) or 0, 0)))
        detector, votes = made(name), []
        for window in windows(job):
            detector.update(window)
            vote = detector.score(window)
            votes.append((vote.opinion, [suspect.rank for suspect in vote.suspects]))
        return votes

    assert renamed([0, 1, 2, 3]) == renamed([3, 1, 0, 2])
