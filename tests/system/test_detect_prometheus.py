"""`trainwarden detect --prometheus` on a real Prometheus whose exporters told of half an hour with faults in it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.servers.exporter_server import ExporterServer
from tests.servers.exporters import Cluster
from tests.servers.kafka import ServerMissing
from tests.servers.prometheus import Prometheus

pytestmark = pytest.mark.system
FAULT_S = 900.0  # ago


@pytest.fixture(scope="module")
def end_s() -> float:
    return time.time() - 5.0


@pytest.fixture(scope="module")
def cluster(end_s: float) -> Cluster:
    """Six nodes, half of them with the newer exporter; every fault on another device."""
    job = {0: "big", 1: "big", 2: "big", 3: "big", 4: "small", 5: "small"}
    cluster = Cluster(
        nodes=6, renamed=frozenset({0, 2, 4}), since_s=end_s - FAULT_S, labels=lambda node, gpu: {"hpc_job": job[node]}
    )
    cluster.faults = {
        (1, "3", "DCGM_FI_DEV_SM_CLOCK"): lambda s: 1200.0,
        (1, "3", "DCGM_FI_DEV_GPU_TEMP"): lambda s: 84.0,
        (2, "5", "DCGM_FI_DEV_XID_ERRORS"): lambda s: 79.0,
        (0, "1", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"): lambda s: 3.0 + round(s),
        (3, "2", "DCGM_FI_DEV_ROW_REMAP_FAILURE"): lambda s: 1.0,
        (3, "mlx5_1", "node_infiniband_symbol_error_total"): lambda s: float(round(s)),
        (2, "mlx5_0", "node_infiniband_state_id"): lambda s: 1.0,
    }
    cluster.gone = {(0, "7"): end_s - 600.0, (5, None): end_s - 500.0}
    return cluster


@pytest.fixture(scope="module")
def prometheus(
    cluster: Cluster, end_s: float, tmp_path_factory: pytest.TempPathFactory, require_servers: Callable[[str], Any]
) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    cluster.write_history(folder / "history.txt", end_s - 1800.0, end_s)
    try:
        server = Prometheus(folder / "server")
    except ServerMissing as missing:
        require_servers(str(missing))
    server.fill(folder / "history.txt")
    with server:
        yield server


def detect(prometheus: Prometheus, folder: Path, *words: str) -> tuple[int, dict, str]:
    out = folder / "out.json"
    command = [sys.executable, "-m", "trainwarden.cli.main", "detect", "--prometheus", prometheus.url, *words]
    done = subprocess.run([*command, "--json", str(out)], capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, json.loads(out.read_text()) if out.exists() else {}, done.stderr


def suspects(job: dict) -> dict[str, set[tuple[str, str]]]:
    """Who is named, by kind of incident."""
    found: dict[str, set[tuple[str, str]]] = {}
    for incident in job["incidents"]:
        found.setdefault(incident["kind"], set()).update((one["node"], one["device"]) for one in incident["suspects"])
    return found


def test_every_fault_is_named_and_nobody_else(prometheus: Prometheus, end_s: float, tmp_path: Path) -> None:
    code, answer, said = detect(prometheus, tmp_path, "--since", "31m")
    assert code == 1, said
    (job,) = answer["jobs"]
    assert suspects(job) == {
        "gpu_lost": {("gpu-0002", "5"), ("gpu-0000", "7")},
        "gpu_memory_error": {("gpu-0003", "2")},
        "gpu_throttle": {("gpu-0001", "3")},
        "pcie_error": {("gpu-0000", "1")},
        "nic_down": {("gpu-0002", "mlx5_0:1")},
        "nic_error": {("gpu-0003", "mlx5_1:1")},
    }
    assert answer["partial"] == []
    assert job["job"] == "fleet"
    assert job["silent"] == ["exporters that answer no more (gpu): gpu-0005"]
    assert job["input"]["nodes"] == 6
    assert job["input"]["entities"] == 6 * (8 + 2 + 1)
    for incident in job["incidents"]:
        assert incident["closed_at_s"] is None, incident
        assert end_s - FAULT_S - 20.0 <= incident["onset_s"] <= end_s - FAULT_S + 40.0, incident
    throttled = next(one for one in job["incidents"] if one["kind"] == "gpu_throttle")
    assert "(GPU-00000001-0000-4000-8000-000000000003)" in throttled["suspects"][0]["reason"]
    assert "reading http://127.0.0.1" in said


def test_a_healthy_stretch_is_healthy(prometheus: Prometheus, end_s: float, tmp_path: Path) -> None:
    words = ("--from", f"{end_s - 1790.0:.0f}", "--to", f"{end_s - FAULT_S - 20.0:.0f}")
    code, answer, said = detect(prometheus, tmp_path, *words)
    assert code == 0, said
    assert answer["jobs"][0]["incidents"] == []


def test_a_label_parts_the_fleet_and_a_selector_narrows_it(prometheus: Prometheus, tmp_path: Path) -> None:
    _, answer, _ = detect(prometheus, tmp_path, "--by", "hpc_job", "--since", "31m")
    big, small = answer["jobs"]
    assert (big["job"], small["job"]) == ("big", "small")
    assert big["input"]["entities"] == 4 * (8 + 2 + 1)
    assert "nic_error" in suspects(big)
    assert small["incidents"] == []
    _, answer, _ = detect(prometheus, tmp_path, "--match", 'instance=~"10.0.0.3:.+"', "--since", "31m")
    assert suspects(answer["jobs"][0]) == {
        "gpu_memory_error": {("gpu-0003", "2")}, "nic_error": {("gpu-0003", "mlx5_1:1")},
    }  # fmt: skip


def test_other_steps_find_the_same(prometheus: Prometheus, tmp_path: Path) -> None:
    _, answer, _ = detect(prometheus, tmp_path, "--step", "60s", "--since", "31m")
    found = suspects(answer["jobs"][0])
    assert found["gpu_throttle"] == {("gpu-0001", "3")}
    assert found["pcie_error"] == {("gpu-0000", "1")}
    assert found["gpu_lost"] == {("gpu-0002", "5"), ("gpu-0000", "7")}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--match", 'cluster="none"'), "has no metric of dcgm-exporter or node_exporter for {cluster=\"none\"}"),
        (("--match", 'cluster="'), "does not take the question"),
        (("--from", "5000", "--to", "6000"), "has no metric"),
        (("--from", "6000", "--to", "5000"), "the range of time is empty"),
        (("--step", "soon"), "--step: 'soon' is no length of time"),
        (("--detectors", "nobody"), "there is no detector 'nobody'"),
    ],
)  # fmt: skip
def test_mistakes_get_one_sentence(
    prometheus: Prometheus, tmp_path: Path, words: tuple[str, ...], sentence: str
) -> None:
    code, _, said = detect(prometheus, tmp_path, *words)
    assert code == 2
    assert sentence in said.splitlines()[-1]
    assert "Traceback" not in said


def test_what_a_prometheus_scrapes_is_judged(tmp_path: Path, require_servers: Callable[[str], Any]) -> None:
    """The exporters' text through a real scraper: its own `job` and `instance`, a real parser, its stamps."""
    cluster = Cluster(nodes=2, gpus=4, renamed=frozenset({1}), since_s=float("inf"))
    cluster.faults = {
        (0, "2", "DCGM_FI_DEV_XID_ERRORS"): lambda s: 79.0,
        (1, "3", "DCGM_FI_DEV_ROW_REMAP_FAILURE"): lambda s: 1.0,
        (1, "mlx5_0", "node_infiniband_state_id"): lambda s: 1.0,
    }
    with ExporterServer(cluster) as exporters:
        targets: dict[str, Any] = {"dcgm": [], "node": []}
        for node in range(2):
            for kind, port in (("dcgm", 9400), ("node", 9100)):
                address = urlsplit(exporters.address(kind, node))
                targets[kind].append((address.netloc, address.path, f"10.0.0.{node}:{port}"))
        try:
            server = Prometheus(tmp_path / "server", targets, interval="1s")
        except ServerMissing as missing:
            require_servers(str(missing))
        with server:
            scrapes = "count_over_time(up[1m])"
            server.until("four scrapes of all", lambda: _least(server, scrapes) >= 4)
            assert server.query("min(up)")[0]["value"][1] == "1"
            cluster.since_s = time.time()
            server.until("eight scrapes of all", lambda: _least(server, scrapes) >= 9)
            code, answer, said = detect(server, tmp_path, "--since", "2m", "--step", "1s")
    assert code == 1, said
    assert suspects(answer["jobs"][0]) == {
        "gpu_lost": {("gpu-0000", "2")},
        "gpu_memory_error": {("gpu-0001", "3")},
        "nic_down": {("gpu-0001", "mlx5_0:1")},
    }


def _least(server: Prometheus, expression: str) -> float:
    found = server.query(expression)
    return min((float(one["value"][1]) for one in found), default=0.0) if len(found) == 4 else 0.0
