"""Two real trainings against a real MLflow server, made once; each test takes a copy as a server or as a folder."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import screenshots
from tests.servers.mlflow import DATABASE, MlflowServer
from tests.training_data import MODELS, batch
from trainer_offline.registry.registry import Registry

PLACES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "storage_location"),
    ("model_versions", "source"),
)  # where MLflow's database names artifacts


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
    def make(folder: Path) -> None:
        """Train by the command line, over HTTP."""
        data, settings = batch(folder / "data"), folder / "settings.toml"
        write_settings(settings)
        server = MlflowServer(folder / "server")
        server.start()
        try:
            answers = [screenshots.train(data, server.uri, seed, settings) for seed in (0, 0)]
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
