"""What every detector of the CATALOG must do, whatever it looks for."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import detectors
from detectors import CATALOG, ENTRY_POINTS
from detectors.job.samples import Entity
from detectors.job.state import JobState
from detectors.job.window import Window
from detectors.metrics.bundle.bundle import ModelBundle
from detectors.metrics.bundle.members import VoteConfig
from detectors.metrics.scores import MetricScorer
from detectors.metrics.vote import ModelVote
from tests.unit.detectors.detection_streams import START_S, Job, event, log_lines
from trainwarden import plugins
from trainwarden.errors import ConfigError, DetectorError
from trainwarden.records import MetricsRecord, Vote
from trainwarden.settings import Config, DetectionSettings, parse

FOLDER = Path(detectors.__file__).parent
every_detector = pytest.mark.parametrize("name", CATALOG)


def made(name: str) -> Any:
    plugin = plugins.load(CATALOG, ENTRY_POINTS, name)
    return plugin(plugin.Config())


METRICS = ("load", "flow")


def temperatures(seed: int, samples: int = 400) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Two metrics of one device ``[t, 2]``."""
    random = np.random.default_rng(seed)
    ticks = np.arange(samples)[:, None]
    return np.sin(ticks / np.array([3.0, 5.0])) + random.normal(0.0, 0.1, (samples, 2))


@cache
def bundle() -> ModelBundle:
    """Models of four devices, small enough for a test."""
    normal = [(Entity("node0", f"GPU-{one}", one), np.arange(400.0), temperatures(one)) for one in range(4)]
    config = parse(VoteConfig, {"neighbor_profile": {"bags": 20, "bag_size": 16}, "dtw_samples": 20}, "models")
    return ModelBundle.fit({"GPU": normal}, {"GPU": METRICS}, config, seed=0)


def metrics(seconds: int, sick_from: int | None = None) -> list[tuple[float, MetricsRecord]]:
    """Two samples a second of four devices; from a time on device 1 is not what it was."""
    values = np.stack([temperatures(20 + one, 2 * seconds) for one in range(4)])
    if sick_from is not None:
        values[1, 2 * sick_from :, 0] += 25.0 * np.sin(np.arange(2 * (seconds - sick_from)) ** 2)
    return [
        (
            START_S + tick / 2,
            MetricsRecord(
                job="job", node="node0", time_s=START_S + tick / 2, devices=tuple(f"GPU-{one}" for one in range(4)),
                names=METRICS, values=tuple(map(tuple, values[:, tick, :].T.tolist())), ranks=(0, 1, 2, 3),
            ),
        )
        for tick in range(2 * seconds)
    ]  # fmt: skip


def windows(job: Job, step_s: float = 0.5) -> list[Window]:
    """The job's windows with scored metrics, each as a copy that stays as it is."""
    from dataclasses import replace

    state, out = JobState("job"), []
    scorer = MetricScorer(bundle())
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
        scored, versions = scorer.score(window.samples), bundle().versions
        found: Any = {"scored": scored, "unscored": scorer.abstained, "model_versions": versions}
        out.append(replace(window, **arrays, **found))
    return out


def talk(job: Job) -> None:
    """Every rank says four lines a second; towards the end rank 1 says something new, 40 times a second."""
    for rank in range(4):
        for second in range(int(job.end_s - START_S)):
            at_s = START_S + second
            lines = [(at_s + i / 4, f"step {second} micro {i} loss 3.{i}") for i in range(4)]
            if rank == 1 and job.end_s - 8 < at_s < job.end_s - 3:
                lines += [(at_s + i / 40, f"cannot reach peer {i}, will try again") for i in range(40)]
            record = log_lines(rank, sorted(lines), first=1 + 10_000 * second)
            job.add(at_s + 1, msgspec.structs.replace(record, source=f"talk-{rank}"))


def eventful() -> Job:
    job = Job(slow=lambda rank, step: 2.0 if rank == 1 and step >= 40 else 1.0).run(70)
    job.records.extend(metrics(28, sick_from=14))
    talk(job)
    at_s = job.end_s
    job.add(at_s - 5, log_lines(0, [(at_s - 5, "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.")]))
    return job.add(at_s, event("process_exit", at_s, 2, signal="SIGSEGV"))


def test_table_and_folder_agree() -> None:
    """A file whose class has `update`, `score`, `state` and `restore` is in the table, and the other way round."""
    found = set()
    for path in FOLDER.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name not in {"Detector", "ModelVote"} and node.name[0] != "_":
                methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
                trained = any(getattr(base, "id", "") == "ModelVote" for base in node.bases)
                if trained or {"update", "score", "state", "restore"} <= methods:
                    found.add(f"{'.'.join(path.relative_to(FOLDER.parent).with_suffix('').parts)}:{node.name}")
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
    if isinstance(detector, ModelVote):
        # One model may err alone now and then (the rule asks for two): here it is asked about the clear cases.
        detector = type(detector)(msgspec.structs.replace(detector.Config(), threshold=0.55))
    job = Job().run(60)
    job.records.extend(metrics(20))
    for window in windows(job):
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
