"""Two real trainings against a real MLflow server, made once; each test takes a copy as a server or as a folder."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.mlflow import DATABASE, MlflowServer
from tests.training_data import MODELS, batch
from trainwarden.trainer_offline.registry.registry import Registry

PLACES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "storage_location"),
    ("model_versions", "source"),
)  # where MLflow's database names artifacts


TWICE = """
import json, sys
from trainwarden.cli.main import run
for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    try:
        run()
    except SystemExit as end:
        if end.code:
            raise
"""
ANY_GATE = """
[trainer.gate]  # small data: here only who serves matters
accuracy = 0.0
precision = 0.0
recall = 0.0
injected_recall = 0.0
false_alarms_per_machine_day = 1e6
alone_false_alarms_per_machine_day = 1e6
"""


def write_settings(path: Path, *names: str) -> None:
    """Settings of a trainer that passes what it makes: the models `names` of `MODELS`, or all of them."""
    members = ", ".join(f"{name} = {MODELS['members'][name]}" for name in names or MODELS["members"])
    small = ", ".join(f"{key} = {value}" for key, value in MODELS["neighbor_profile"].items())
    lines = [
        f"members = {{ {members} }}",
        f"neighbor_profile = {{ {small} }}",
        f"dtw_samples = {MODELS['dtw_samples']}",
    ]
    path.write_text("\n".join(["[trainer.models]", *lines, ANY_GATE]))


def twice(words: list[str], folder: Path) -> list[dict[str, Any]]:
    """What a command answers that one process carries out twice: its imports are dearer than the second training."""
    files = [folder / f"answer{number}.json" for number in range(2)]
    commands = [[*words, "--json", str(file)] for file in files]
    done = subprocess.run(
        [sys.executable, "-c", TWICE, json.dumps(commands)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(file.read_text()) for file in files]


@dataclass(frozen=True)
class TrainedModels:
    """`first` run: the champions; `second`, by the same seed and so as good as they are: the challengers.

    Attributes
    ----------
    folder : Path
        Data and settings that both were trained with, and what the server kept.
    first, second : mapping
        What ``trainwarden train --json`` answered.
    """

    folder: Path
    first: dict[str, Any]
    second: dict[str, Any]

    @staticmethod
    def make(folder: Path, empty: Path) -> None:
        """Train by the command line, over HTTP, with a server that begins with the database `empty`."""
        data, settings = batch(folder / "data"), folder / "settings.toml"
        write_settings(settings)
        server = MlflowServer(folder / "server", empty)
        server.start()
        try:
            answers = twice(["train", "--data", str(data), "--registry", server.uri, "--config", str(settings)], folder)
        finally:
            server.kill()
        (folder / "answers.json").write_text(json.dumps(answers))

    @classmethod
    def read(cls, folder: Path) -> TrainedModels:
        """What `make` has left in `folder`."""
        first, second = json.loads((folder / "answers.json").read_text())
        return cls(folder, first, second)

    def server(self, to: Path) -> MlflowServer:
        """A server of its own on a copy of everything; not started."""
        shutil.copytree(self.folder / "server", to)
        return MlflowServer(to)

    def registry(self, to: Path) -> Registry:
        """A registry of this machine, in a folder, with a copy of everything."""
        shutil.copytree(self.folder / "server" / "artifacts", to / "artifacts")
        shutil.copyfile(self.folder / "server" / DATABASE, to / "mlflow.db")
        with closing(sqlite3.connect(to / "mlflow.db")) as base, base:
            for table, column in PLACES:
                base.execute(
                    f"UPDATE {table} SET {column} = replace({column}, 'mlflow-artifacts:', ?)",
                    ((to / "artifacts").as_uri(),),
                )
        return Registry.at(str(to))
