"""What `up` trains from, and when it trains nothing."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.trainwarden.cli.test_main import run
from trainwarden.cli.serve import up
from trainwarden.errors import NotJudged
from trainwarden.settings import ArchiveSettings, DetectionSettings, ServeSettings, Settings, TrainerSettings


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(up, "find_spec", lambda name: ModuleSpec(name, None))


def test_archive_trainer_and_detector_share_a_folder_and_a_registry(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/trainwarden-models/mlflow.db"
    assert up.learning(Settings()) == {
        "TRAINWARDEN_ARCHIVE_FOLDER": str(tmp_path / "trainwarden-archive"),
        "TRAINWARDEN_TRAINER_REGISTRY": uri,
        "TRAINWARDEN_DETECTION_MODELS": uri,
    }


def test_named_servers_and_folders_are_used() -> None:
    named = Settings(
        archive=ArchiveSettings(folder="/data/archive"),
        trainer=TrainerSettings(registry="http://train:5000"),
        detection=DetectionSettings(models="http://serve:5000"),
    )
    assert list(up.learning(named).values()) == ["/data/archive", "http://train:5000", "http://serve:5000"]


def test_fixed_models_are_served_and_nothing_is_trained(tmp_path: Path) -> None:
    assert up.learning(Settings(detection=DetectionSettings(models=str(tmp_path / "bundle")))) == {}


def test_without_the_extra_nothing_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "find_spec", lambda name: None)
    assert up.learning(Settings()) == {}


def test_a_service_that_cannot_be_started_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "python"
    program.write_text("")  # without the right to run it
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(up, "StopFlag", lambda: lambda: True)
    assert run(monkeypatch, "up") == 3
    said = capsys.readouterr()
    assert f"NOT JUDGED: a service cannot be started: Permission denied: {program}" in said.err
    assert "are up on" not in said.out


def test_a_service_that_ends_ends_up_with_its_last_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Stack:
        def __init__(self, *_: object) -> None:
            pass

        def start(self, name: str, *_: str, **__: object) -> None:
            pass

        def check(self, services: Sequence[str]) -> None:
            raise NotJudged(f"{services[1]} ended with exit code 1:\nlast words")

        def stop(self) -> None:
            print("all are stopped")

    monkeypatch.setattr(up, "LocalStack", Stack)
    monkeypatch.setattr(up, "PageBeside", lambda *_: SimpleNamespace(news=lambda **_: None))
    monkeypatch.setattr(up, "StopFlag", lambda: lambda: False)
    monkeypatch.setattr(up, "time", SimpleNamespace(sleep=lambda _: None))
    assert run(monkeypatch, "up") == 3
    said = capsys.readouterr()
    assert "NOT JUDGED: detector ended with exit code 1:\nlast words" in said.err
    assert "all are stopped" in said.out


def test_a_second_page_of_a_machine_has_the_next_port_and_one_that_was_set_keeps_its_own() -> None:
    first = up.page_address(Settings())
    host, _, port = first.partition(":")
    with socket.socket() as taken:
        taken.bind((host, int(port)))
        taken.listen()
        second = up.page_address(Settings())
        set_by_hand = up.page_address(Settings(serve=ServeSettings(listen=f"localhost:{port}")))
    assert int(second.partition(":")[2]) > int(port)
    assert set_by_hand == f"localhost:{port}"
