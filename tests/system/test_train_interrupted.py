"""Ctrl-C in the middle of `trainwarden train`: one sentence, exit code 130, nothing half made serves."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.system.runs import WARDEN
from tests.training_data import batch
from trainwarden.cli import main as command_line
from trainwarden.trainer_offline.registry.address import asking
from trainwarden.trainer_offline.registry.registry import Registry
from trainwarden.trainer_offline.registry.version import CHALLENGER, CHAMPION

# MLflow and what it stands on warn of their own making.
pytestmark = [pytest.mark.system, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]

SETTINGS = """
[trainer.gate]  # small data: here only who serves matters
accuracy = 0.0
precision = 0.0
recall = 0.0
injected_recall = 0.0
false_alarms_per_machine_day = 1e6
alone_false_alarms_per_machine_day = 1e6
[trainer.models]
members = { pca = 1.0, kmeans = 1.0, nearest = 1.0 }
"""
STOPPED_S = 60.0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("interrupted")
    batch(found / "data", jobs=3, rows=400)
    (found / "settings.toml").write_text(SETTINGS)
    return found


def test_a_run_that_cannot_be_ended_when_it_is_interrupted_is_no_broken_registry() -> None:
    """MLflow writes down how a run ended, and a thread of it that was stopped too may hold the database."""

    def run() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            (Path(__file__) / "database").read_bytes()  # an error of its own

    with pytest.raises(KeyboardInterrupt), asking("sqlite:///models/mlflow.db"):
        run()


def train(place: Path, registry: Path) -> list[str]:
    words = ["--data", str(place / "data"), "--registry", str(registry), "--config", str(place / "settings.toml")]
    return [*WARDEN, "train", *words]


def interrupted(command: list[str], line: str) -> tuple[int, str]:
    """SIGINT to the whole group, as a terminal does, once `line` was printed; exit code and standard error."""
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, env=environ
    ) as process:
        assert process.stdout is not None
        try:
            for told in process.stdout:
                if told.startswith(line):
                    break
            else:
                pytest.fail(f"ended without {line!r}: {process.communicate()[1]}")
            os.killpg(process.pid, signal.SIGINT)
            _, error = process.communicate(timeout=STOPPED_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    end_s = time.monotonic() + STOPPED_S
    while (left := _group(process.pid)) and time.monotonic() < end_s:
        time.sleep(0.1)
    assert left == [], "processes of its own are left"
    return process.returncode, error


def _group(group: int) -> list[str]:
    """What each process of the group is, and does."""
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getpgid(one.pid) == group:
                found.append(f"{one.pid} {one.status()} {one.cmdline()}")
    return found


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("[0/3] preparing", "trainwarden: stopped while preparing: nothing was registered\n"),
        (
            "[1/4] registering",
            "trainwarden: stopped while registering: no alias has moved, so what serves is what served before\n",
        ),
    ],
)
def test_one_sentence_and_nothing_half_made_serves(
    line: str, sentence: str, place: Path, tmp_path: Path, empty_registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = train(place, tmp_path / "models")
    if "registering" in line:  # the other training makes its registry itself
        (tmp_path / "models").mkdir()
        shutil.copyfile(empty_registry, tmp_path / "models" / "mlflow.db")
    code, error = interrupted(command, line)
    assert error == sentence
    assert code == 130
    registry = Registry.at(str(tmp_path / "models"))
    assert registry.aliases(CHAMPION) == registry.aliases(CHALLENGER) == {}
    monkeypatch.setattr(sys, "argv", ["trainwarden", "models", "list", "--registry", str(tmp_path / "models")])
    with pytest.raises(SystemExit) as ended:
        command_line.run()
    assert not ended.value.code
    if "registering" in line:
        made = registry.versions()
        assert 0 < len(made) <= 2
        again = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert again.returncode == 0, again.stderr[-3000:]
        served = registry.aliases(CHAMPION)
        assert served.keys() == {"pca", "kmeans", "nearest", "ensemble"}
        assert all(served[one.detector] != one.version for one in made), "what was left half made never serves"
