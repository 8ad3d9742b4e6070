"""How long `trainwarden detect --prometheus` takes for half an hour of a fleet, and what memory.

256 GPUs come from a real Prometheus, filled beforehand. Filling one with 2,048 GPUs takes promtool several minutes, so
those are served by a program in a process of its own that answers as a Prometheus does; the server's own time is not in
that figure.

Run: ``python -m tests.benchmarks.bench_prometheus`` (about two minutes).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.servers.bad_prometheus import BadPrometheus, success
from tests.servers.exporters import GPU_FIELDS, PORT_FIELDS, Cluster
from tests.servers.kafka import ServerMissing
from tests.servers.prometheus import Prometheus

NAMES = (
    "detect_prometheus_256_gpus_s", "detect_prometheus_2048_gpus_s", "detect_prometheus_2048_gpus_rss_bytes",
)  # fmt: skip
SPAN_S = 1800.0
EVERY_S = 15.0
PORTS = 8


def benchmarks() -> list[dict[str, Any]]:
    """All three, as `trainwarden bench` prints them; the first is left out where there is no Prometheus."""
    found = []
    try:
        wall_s, _ = _real(256 // 8)
        found.append(_result(NAMES[0], wall_s, "s", 60.0))
    except ServerMissing as missing:
        sys.stderr.write(f"{NAMES[0]}: {missing}\n")
    wall_s, rss = _served(2048 // 8)
    return [*found, _result(NAMES[1], wall_s, "s", 300.0), _result(NAMES[2], rss, "bytes", 2e9)]


def _real(nodes: int) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as name:
        folder, end_s = Path(name), time.time() - 5.0
        cluster = Cluster(nodes=nodes, ports=PORTS, since_s=end_s - 900.0)
        cluster.faults[1, "3", "DCGM_FI_DEV_ROW_REMAP_FAILURE"] = lambda s: 1.0
        server = Prometheus(folder / "server")
        cluster.write_history(folder / "history.txt", end_s - SPAN_S, end_s)
        server.fill(folder / "history.txt")
        with server:
            return _detected(server.url, nodes * (8 + PORTS + 1))


def _served(nodes: int) -> tuple[float, float]:
    command = [sys.executable, "-m", "tests.benchmarks.bench_prometheus", "--serve", str(nodes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            return _detected(process.stdout.readline().strip(), nodes * (8 + PORTS))
        finally:
            process.kill()


def _detected(url: str, entities: int) -> tuple[float, float]:
    """Seconds and bytes of one run, which must have seen every device and the fault."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "out.json"
        command = [sys.executable, "-m", "trainwarden.cli.main", "detect", "--prometheus", url, "--json", str(out)]
        begun_s = time.perf_counter()
        process = subprocess.Popen(command, stdout=sys.stderr)
        _, status, used = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - begun_s
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 1, f"exit code {process.returncode}"
        (job,) = json.loads(out.read_text())["jobs"]
    assert job["input"]["entities"] == entities, job["input"]
    assert [incident["kind"] for incident in job["incidents"]] == ["gpu_memory_error"], job["incidents"]
    return wall_s, used.ru_maxrss * 1024.0


class _Steady(BadPrometheus):
    """A fleet whose values stand still, but for one GPU that fails in the middle."""

    def __init__(self, nodes: int) -> None:
        super().__init__()
        self._gpus = [(node, gpu) for node in range(nodes) for gpu in range(8)]
        self._ports = [(node, port) for node in range(nodes) for port in range(PORTS)]

    def good(self, path: str, asked: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        if path.endswith("/values"):
            return success([*GPU_FIELDS, *PORT_FIELDS])
        if path.endswith("/series"):
            return success([])
        query, end_s = asked["query"], float(asked["time"])
        if query.startswith(("sum(", "count(")):
            value = len(self._gpus) * (1 if query.startswith("count") else int(SPAN_S / EVERY_S))
            return success({"resultType": "vector", "result": [{"metric": {}, "value": [0, str(value)]}]})
        name, _, window = query.partition("[")
        length_s = float(window[:-2])
        stamps = [EVERY_S * n for n in range(int((end_s - length_s) // EVERY_S) + 1, int(end_s // EVERY_S))]
        phases = [[f"{stamp + phase:.3f}" for stamp in stamps] for phase in range(15)]
        if name in GPU_FIELDS:
            series = [self._gpu(name, node, gpu, phases[node % 15]) for node, gpu in self._gpus]
        else:
            series = [self._port(name, node, port, phases[node % 15]) for node, port in self._ports]
        body = '{"status":"success","data":{"resultType":"matrix","result":[' + ",".join(series) + "]}}"
        return 200, {"Content-Type": "application/json"}, body.encode()

    def _gpu(self, name: str, node: int, gpu: int, stamps: list[str]) -> str:
        labels = {
            "__name__": name, "gpu": str(gpu), "UUID": f"GPU-{node:08x}-{gpu:x}", "device": f"nvidia{gpu}",
            "modelName": "NVIDIA H100 80GB HBM3", "Hostname": f"gpu-{node:04d}", "instance": f"gpu-{node:04d}:9400",
        }  # fmt: skip
        sick = (name, node, gpu) == ("DCGM_FI_DEV_ROW_REMAP_FAILURE", 1, 3)
        value = f"{GPU_FIELDS[name][0]:g}"
        half = len(stamps) // 2
        pairs = [f'[{stamp},"{1 if sick and place > half else value}"]' for place, stamp in enumerate(stamps)]
        return f'{{"metric":{json.dumps(labels)},"values":[{",".join(pairs)}]}}'

    def _port(self, name: str, node: int, port: int, stamps: list[str]) -> str:
        labels = {"__name__": name, "device": f"mlx5_{port}", "port": "1", "instance": f"gpu-{node:04d}:9100"}
        pairs = [f'[{stamp},"{PORT_FIELDS[name]:g}"]' for stamp in stamps]
        return f'{{"metric":{json.dumps(labels)},"values":[{",".join(pairs)}]}}'


def _result(name: str, value: float, unit: str, most: float) -> dict[str, Any]:
    return {
        "name": name, "value": value, "unit": unit, "rounds": 1, "spread": 0.0, "peer": None, "ratio": None,
        "bar": f"<= {most:g} {unit}", "holds": value <= most,
    }  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        with _Steady(int(sys.argv[2])) as steady:
            print(steady.url, flush=True)
            time.sleep(3600)
    print(json.dumps({"benchmarks": benchmarks()}, indent=2))
