"""Training, serving and retraining against a real MLflow server, with our own services as real processes."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.servers.mlflow import MlflowServer
from tests.trained_models import TrainedModels, write_settings
from trainwarden.bus.address import connect
from trainwarden.records import MetricsRecord, VerdictRecord
from trainwarden.topics import EVENTS, METRICS, VERDICTS

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

SWAP_S = 30.0
NAMES = ("power", "clock", "power_twice", "seven", "traffic")


@pytest.fixture(scope="module")
def server(trained_models: TrainedModels, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    """It has champions and challengers, made over HTTP by the command line."""
    one = trained_models.server(tmp_path_factory.mktemp("mlflow") / "server")
    one.start()
    yield one
    one.kill()


class Services:
    """Our services as processes on one embedded bus, and a job that streams metrics."""

    def __init__(self, place: Path, server: MlflowServer) -> None:
        self.place = place
        self.settings = place / "settings.toml"
        self.bus = connect(f"embedded:{place / 'bus.db'}", {})
        self._ends = itertools.count()
        self._rng = np.random.default_rng(0)
        self._processes: list[subprocess.Popen[bytes]] = []
        self.environ = {
            **os.environ,
            "TRAINWARDEN_BUS": f"embedded:{place / 'bus.db'}",
            "TRAINWARDEN_DETECTION_MODELS": server.uri,
            "TRAINWARDEN_DETECTION_MODELS_EVERY_S": "2.0",
            "TRAINWARDEN_TRAINER_DATA": str(place / "data"),
            "TRAINWARDEN_TRAINER_REGISTRY": server.uri,
            "TRAINWARDEN_TRAINER_CHECK_EVERY_S": "1.0",
        }

    def start(self, name: str) -> None:
        command = [sys.executable, "-m", "trainwarden.cli.main", name, "--run-dir", str(self.place / "run")]
        command += ["--config", str(self.settings)]
        with (self.place / f"{name}.log").open("ab") as out:
            self._processes.append(subprocess.Popen(command, stdout=out, stderr=out, env=self.environ))

    def stream(self) -> None:
        """One tick of four nodes."""
        tick = next(self._ends)
        for node in range(4):
            power = 400.0 + 20.0 * np.sin(tick / 7.0 + node) + self._rng.normal(0.0, 4.0)
            values = (power, 1.4e9 + self._rng.normal(0.0, 1e6), 2.0 * power, 7.0, self._rng.normal(5.0, 1.0))
            record = MetricsRecord(
                job="live", node=f"n{node}", time_s=time.time(), devices=("",), names=NAMES,
                values=tuple((float(value),) for value in values),
            )  # fmt: skip
            self.bus.publish(METRICS, "live", record)
        self.bus.flush()

    def verdicts(self) -> list[VerdictRecord]:
        return [one.record for one in self.bus.read(VERDICTS) if isinstance(one.record, VerdictRecord)]

    def until(self, what: str, holds: Callable[[], bool], timeout_s: float) -> float:
        """Stream until it holds; how long it took."""
        began_s = time.monotonic()
        while time.monotonic() - began_s < timeout_s:
            self.stream()
            if holds():
                return time.monotonic() - began_s
            time.sleep(0.2)
        logs = "\n".join(path.read_text(errors="replace")[-2500:] for path in sorted(self.place.glob("*.log")))
        raise AssertionError(f"{what} not within {timeout_s:g} s\n{logs}")

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.bus.close()


@pytest.fixture
def services(tmp_path: Path, trained_models: TrainedModels, server: MlflowServer) -> Iterator[Services]:
    (tmp_path / "data").symlink_to(trained_models.folder / "data")
    write_settings(tmp_path / "settings.toml", "pca", "kmeans")  # what is trained again
    one = Services(tmp_path, server)
    yield one
    one.close()


def registered(detector: str) -> str:
    return f"trainwarden-{detector.replace('_', '-')}"


def test_versions_and_aliases_are_visible_through_the_servers_own_interface(
    server: MlflowServer, trained_models: TrainedModels
) -> None:
    first, second = trained_models.first, trained_models.second
    for one in first["models"]:
        champion = server.model(registered(one["detector"]))["aliases"].get("champion")
        assert (champion == one["version"]) == one["gate"]["passed"], one
    for one in second["models"]:
        version = server.ask(
            f"model-versions/get?name={registered(one['detector'])}&version={one['version']}", method="GET"
        )["model_version"]
        tags = {tag["key"]: tag["value"] for tag in version["tags"]}
        gate = one["gate"]
        assert tags["gate"] == ("passed" if gate["passed"] else "provisional" if gate["provisional"] else "rejected")
        assert tags["data_hash"] == second["data"]["hash"]


def test_a_moved_alias_swaps_models_within_30_s_and_loses_no_verdict_even_without_the_server(
    server: MlflowServer, services: Services
) -> None:
    name = "lof"  # has an opinion after the fewest samples
    champion = server.model(registered(name))["aliases"]["champion"]
    services.start("detector")

    def serves(version: str) -> bool:
        found = services.verdicts()
        return bool(found) and found[-1].model_versions.get(name) == version

    services.until("models in verdicts", lambda: serves(champion), 180.0)
    move = {"name": registered(name), "alias": "champion", "version": "2"}
    server.ask("registered-models/alias", move)
    try:
        took_s = services.until("the swap", lambda: serves("2"), SWAP_S)
        assert took_s < SWAP_S
        # Whoever is tampered with is refused; the last good models serve on.
        damaged = sorted((server.folder / "artifacts").rglob("family-0.npz"))
        kept = {path: path.read_bytes() for path in damaged}
        for path in damaged:
            path.write_bytes(kept[path][:100])
        server.ask("registered-models/alias", {**move, "version": champion})
        log = services.place / "detector.log"
        services.until("the refusal", lambda: "is refused" in log.read_text(), SWAP_S)
        assert serves("2")
        for path, content in kept.items():
            path.write_bytes(content)
        services.until("the roll-back", lambda: serves(champion), SWAP_S)
    finally:
        server.ask("registered-models/alias", {**move, "version": champion})
    server.kill()
    before = len(services.verdicts())
    services.until("verdicts without the server", lambda: len(services.verdicts()) > before + 5, 120.0)
    assert serves(champion)
    server.start()
    found = services.verdicts()
    times = [one.time_s for one in found]
    assert len({one.id for one in found}) == len(found)
    usual_s = float(np.median(np.diff(times)))
    assert max(np.diff(times)) < 5 * usual_s + 1.0, "no window was skipped"


def test_a_request_in_the_ui_retrains_and_who_serves_is_told_on_the_bus(
    server: MlflowServer, services: Services
) -> None:
    services.start("trainer")

    def told() -> list[Any]:
        return [one.record for one in services.bus.read(EVENTS) if getattr(one.record, "kind", "") == "model"]

    services.until("the audit of what is", lambda: len(told()) > 0, 120.0)
    assert {one.fields["alias"] for one in told()} <= {"champion", "challenger"}
    tag = {"name": registered("pca"), "key": "retrain", "value": "requested"}
    server.ask("registered-models/set-tag", tag)
    services.until("the training", lambda: server.model(registered("pca"))["tags"]["retrain"].startswith("done"), 240.0)
    newest = server.ask(f"model-versions/get?name={registered('pca')}&version=3", method="GET")["model_version"]
    assert {tag["key"] for tag in newest["tags"]} >= {"gate", "data_hash"}
    told_ids = [one.id for one in told()]
    assert len(set(told_ids)) == len(told_ids)
