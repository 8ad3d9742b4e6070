"""`trainwarden detect --job`: a job on the bus or in the archive, the whole of it or a stretch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from detectors.testing.streams import START_S, Job, event
from tests.archive_doubles import Log, Service
from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.cli import main as command_line
from trainwarden.records import HeartbeatRecord, Record
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
