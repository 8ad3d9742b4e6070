"""`trainwarden up` alone trains the metric models from its own archive and serves them, with a real MLflow registry."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from tests.system.runs import WARDEN
from trainwarden.bus.address import connect
from trainwarden.records import MetricsRecord
from trainwarden.settings import Settings
from trainwarden.topics import METRICS

pytestmark = [pytest.mark.system, pytest.mark.timeout(290)]

# Models that a small training fits within seconds.
SETTINGS = """
[archive]
flush_s = 1.0
[trainer]
check_every_s = 0.5
[trainer.models]
members = {pca = 1.0, kmeans = 1.0}
[detection]
models_every_s = 1.0
"""
NAMES = ("gpu_power_watts", "gpu_sm_clock_hertz", "gpu_temperature_celsius")
EVERY_S = 10.0
SAMPLES = 360  # an hour


def publish_an_hour(address: str) -> None:
    """Metrics of four healthy nodes with one GPU each."""
    rng = np.random.default_rng(1)
    bus = connect(address, Settings().kafka)
    now_s = time.time()
    for sample in range(SAMPLES):
        for node in range(4):
            values = 400.0 + 20.0 * np.sin(sample / 7.0 + node), 1.4e9, 60.0
            noise = rng.normal(0.0, (4.0, 1e6, 1.0))
            record = MetricsRecord(
                job="job", node=f"n{node}", time_s=now_s - EVERY_S * (SAMPLES - sample), devices=("gpu0",), names=NAMES,
                values=tuple((float(one),) for one in values + noise),
            )  # fmt: skip
            bus.publish(METRICS, "job", record)
    bus.flush()
    bus.close()


def until(path: Path, text: str, within_s: float = 200.0) -> None:
    end_s = time.monotonic() + within_s
    while not path.is_file() or text not in path.read_text():
        assert time.monotonic() < end_s, path.read_text()[-3000:] if path.is_file() else f"{path} is not there"
        time.sleep(0.2)


def test_up_trains_from_its_archive_and_serves_what_it_has_trained(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    (tmp_path / "trainwarden.toml").write_text(SETTINGS)
    address = f"embedded:{tmp_path / 'bus.db'}"
    environ = {**os.environ, "TRAINWARDEN_BUS": address}
    environ.pop("MLFLOW_TRACKING_URI", None)  # MLflow sets it in a process that has used a registry
    run = tmp_path / "run"
    command = [*WARDEN, "up", "--config", "trainwarden.toml", "--run-dir", str(run)]
    with (tmp_path / "output").open("wb") as output:
        up = subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=output, stderr=output)
    try:
        until(tmp_path / "output", "metric models are trained from")
        publish_an_hour(address)
        until(run / "services" / "trainer.log", "training ended")
        until(run / "services" / "detector.log", "models swapped")
    finally:
        up.terminate()
        up.wait(30)
    registry = f"sqlite:///{tmp_path / 'trainwarden-models' / 'mlflow.db'}"
    listed = subprocess.run(
        [*WARDEN, "models", "list", "--registry", registry, "--json"], cwd=tmp_path, capture_output=True, check=True
    )
    assert b"provisional" in listed.stdout
    assert json.loads(listed.stdout)
    assert (tmp_path / "trainwarden-archive" / "metrics").is_dir()
