"""What `up` trains from, and when it trains nothing."""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from trainwarden.cli.serve import up
from trainwarden.settings import ArchiveSettings, DetectionSettings, Settings, TrainerSettings


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
