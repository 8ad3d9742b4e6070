"""`trainwarden detect --job`: a job on the bus or in the archive, the whole of it or a stretch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.archive_doubles import Log, Service
from tests.simulated_ranks.layout import Layout
from tests.simulated_ranks.records import START_S as calls_start_s
from tests.simulated_ranks.records import sent
from tests.simulated_ranks.steps import Fault, Ranks
from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.cli import main as command_line
from trainwarden.detectors.configured_detectors import chosen, rule
from trainwarden.detectors.job_monitor import JobMonitor
from trainwarden.detectors.testing.streams import START_S, Job, event
from trainwarden.records import CollectivesRecord, HeartbeatRecord, IncidentRecord, Record
from trainwarden.self_metrics import SelfMetrics
from trainwarden.settings import DetectionSettings
from trainwarden.topics import topic_of


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """A job that is fine for 70 steps, then a rank dies."""
    job = Job().run(70)
    sent = job.add(job.end_s, event("process_exit", job.end_s, 2, signal="SIGSEGV")).records
    plain = [(record, msgspec.json.encode(record, enc_hook=int)) for _, record in sent]  # NumPy's numbers
    return [topic_of(record).decode(value) for record, value in plain]


@pytest.fixture(scope="module")
def bus(records: list[Record], tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("bus") / "bus.db"
    engine = EmbeddedBus(str(path))
    for record in records:
        engine.publish(topic_of(record), "job", record)
    engine.flush()
    engine.close()
    return f"embedded:{path}"


@pytest.fixture(scope="module")
def archive(records: list[Record], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("archive")
    log = Log()
    for record in records:
        if not isinstance(record, HeartbeatRecord):  # these are not archived
            log.put(record, time_s=START_S + 60.0)
    service = Service(log, root)
    service.rounds(200)
    service.handler.finish()
    service.handler.close()
    return root


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object
) -> tuple[int, dict[str, Any], str]:
    monkeypatch.setattr(sys, "argv", ["trainwarden", "detect", *map(str, words), "--json"])
    with pytest.raises(SystemExit) as ended:
        command_line.run()
    said = capsys.readouterr()
    return int(ended.value.code or 0), json.loads(said.out or "{}"), said.err


@pytest.mark.thorough
@pytest.mark.parametrize("place", ["bus", "archive"])
def test_a_job_is_judged_as_if_it_had_been_recorded(place, request, monkeypatch, capsys):
    source = (f"--{place}", request.getfixturevalue(place))
    code, found, said = run(monkeypatch, capsys, "--job", "job", *source)
    assert code == 1, said
    (job,) = found["jobs"]
    assert job["job"] == "job"
    assert [(one["kind"], one["suspects"][0]["rank"]) for one in job["incidents"]] == [("crash", 2)]
    whole = job["input"]["iterations"]
    assert whole == 4 * 70
    code, found, _ = run(monkeypatch, capsys, "--job", "job", *source, "--from", START_S, "--to", START_S + 10.0)
    assert code == 0
    (job,) = found["jobs"]
    assert job["incidents"] == []
    assert 0 < job["input"]["iterations"] < whole / 2
    assert job["input"]["span_s"] <= 10.5


@pytest.mark.parametrize("place", ["bus", "archive"])
@pytest.mark.parametrize("words", [("nobody",), ("job", "--from", 5000, "--to", 6000), ("job", "--since", "10m")])
def test_what_is_not_there_is_said(place, words, request, monkeypatch, capsys):
    source = (f"--{place}", request.getfixturevalue(place))
    code, found, said = run(monkeypatch, capsys, "--job", *words, *source)
    assert code == 2
    assert found == {}
    assert "nothing of" in said.splitlines()[-1]
    assert "trainwarden-detect-" not in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "say what is to be judged"),
        (("--job", "j", "--data", "d"), "say what is to be judged"),
        (("--data", "d", "--since", "10m"), "do not go with --data"),
        (("--data", "d", "--bus", "embedded:x"), "do not go with --data"),
        (("--job", "j", "--by", "x"), "go with --prometheus"),
        (("--job", "j", "--bus", "embedded:x", "--archive", "a"), "exclude each other"),
        (("--job", "j", "--bus", "embedded:/nonexistent/x"), "there is no embedded bus"),
        (("--job", "j", "--since", "10m", "--from", "5"), "exclude each other"),
        (("--prometheus", "http://x", "--normal-until", "5"), "go with --data and --job"),
    ],
)
def test_wrong_use_gets_one_sentence(words, sentence, monkeypatch, capsys):
    code, _, said = run(monkeypatch, capsys, *words)
    assert code == 2
    assert sentence in said


def judged_live(records: list[Record]) -> dict[str, tuple[int | None, ...]]:
    """What the detection service says of the same records: suspects by kind of incident."""
    settings = DetectionSettings()
    detectors = {name: choice.made() for name, choice in chosen(settings, None).items()}
    watch = JobMonitor("job", detectors, rule(settings), SelfMetrics("live"))
    found, now_s = [], 0.0
    for record in records:
        if isinstance(record, CollectivesRecord) and record.time_s > now_s:
            found += watch.score(now_s)
            now_s = record.time_s
        watch.state.feed(record)
    found += watch.score(now_s, last=True)
    newest = {one.id: one for one in found if isinstance(one, IncidentRecord)}
    return {one.kind: tuple(who.rank for who in one.suspects) for one in newest.values()}


@pytest.fixture(
    scope="module", params=[Fault("late", 5, 0.2, 20), Fault("pair", 5, 0.6, 20)], ids=["late rank", "slow pair"]
)
def simulated(request: pytest.FixtureRequest) -> tuple[list[Record], dict[str, tuple[int | None, ...]]]:
    """Sixteen ranks with NCCL, of which one is late or one pair slow, and what is said of them live."""
    records = list(sent(Ranks(Layout(2, 2, 4, per_node=4), seed=3, noise=0.02, faults=(request.param,)), 40))
    return records, judged_live(records)


@pytest.mark.thorough
@pytest.mark.parametrize("place", ["bus", "archive"])
def test_collective_calls_are_judged_as_live(place, simulated, tmp_path, monkeypatch, capsys):
    records, live = simulated
    assert live in ({"slow_compute": (5,)}, {"slow_link": (5, 9)})
    if place == "bus":
        engine = EmbeddedBus(str(tmp_path / "bus.db"))
        for record in records:
            engine.publish(topic_of(record), "job", record)
        engine.flush()
        engine.close()
        source = ("--bus", f"embedded:{tmp_path / 'bus.db'}")
    else:
        log = Log()
        for record in records:
            log.put(record, time_s=calls_start_s + 60.0)
        service = Service(log, tmp_path, flush_bytes=1 << 24)
        service.rounds(1000)
        service.handler.finish()
        service.handler.close()
        source = ("--archive", str(tmp_path))
    code, found, said = run(monkeypatch, capsys, "--job", "job", *source)
    assert code == 1, said
    (job,) = found["jobs"]
    assert {one["kind"]: tuple(who["rank"] for who in one["suspects"]) for one in job["incidents"]} == live
