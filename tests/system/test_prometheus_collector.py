"""A cluster that runs exporters alone, watched by one agent's collector and the detectors of live jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.doubles import ManualClock
from tests.servers.agent import AgentProcess
from tests.servers.exporter_server import ExporterServer
from tests.servers.exporters import Cluster
from trainwarden import plugins
from trainwarden.detectors.configured_detectors import chosen, rule
from trainwarden.detectors.job_monitor import JobMonitor
from trainwarden.errors import CollectorError
from trainwarden.protocols import Scope
from trainwarden.records import EventRecord, IncidentRecord, MetricsRecord, Record
from trainwarden.self_metrics import SelfMetrics
from trainwarden.settings import DetectionSettings
from trainwarden.topics import EVENTS, METRICS

pytestmark = pytest.mark.system
START_S = 1_750_000_000.0
SCOPE = Scope(job="job", node="watcher", run_dir="nowhere")


@pytest.fixture
def server() -> Iterator[ExporterServer]:
    with ExporterServer(Cluster(nodes=4, gpus=4, renamed=frozenset({1, 3}), since_s=START_S + 120.0)) as one:
        one.now_s = lambda: START_S
        yield one


def collector(server: ExporterServer, **more):
    from trainwarden.collectors.prometheus.collector import PrometheusCollector

    settings = {"endpoints": server.endpoints(), "timeout_s": 60.0, **more}  # a busy machine must not lose a turn
    config = plugins.configure(PrometheusCollector, settings, "here")
    return PrometheusCollector(config, SCOPE, ManualClock())


def collected(one, server: ExporterServer, tick: int) -> list[Record]:
    server.now_s = lambda: START_S + 15.0 * tick
    return list(one.collect(START_S + 15.0 * tick))


def watched(server: ExporterServer, ticks: int, healthy: int = 0) -> dict[str, IncidentRecord]:
    """The incidents of so many turns, of which the first ones must have none."""
    settings = DetectionSettings()
    detectors = {name: choice.made() for name, choice in chosen(settings).items()}
    watch = JobMonitor("job", detectors, rule(settings), SelfMetrics("test"))
    one, incidents = collector(server), dict[str, IncidentRecord]()
    for tick in range(ticks):
        for record in collected(one, server, tick):
            watch.state.feed(record)
        for record in watch.score(START_S + 15.0 * tick):
            if isinstance(record, IncidentRecord):
                incidents[record.id] = record
        assert tick >= healthy or not incidents
    return incidents


def test_both_generations_give_the_same_metrics_under_the_exporters_host(server: ExporterServer) -> None:
    records = collected(collector(server), server, 0)
    metrics = [record for record in records if isinstance(record, MetricsRecord)]
    assert {record.node for record in metrics} == {f"gpu-{node:04d}" for node in range(4)}
    gpus = {record.node: record for record in metrics if "gpu_sm_clock_hertz" in record.names}
    old, new = gpus["gpu-0000"], gpus["gpu-0001"]
    assert old.devices == new.devices == ("0", "1", "2", "3")
    assert set(old.names) == set(new.names)
    for name, scale in (("gpu_utilization_ratio", 0.98), ("gpu_sm_clock_hertz", 1.98e9), ("gpu_power_watts", 640.0)):
        for record in (old, new):
            assert record.values[record.names.index(name)][0] == pytest.approx(scale, rel=0.05)
    ports = next(record for record in metrics if "nic_rdma_link_state" in record.names)
    assert ports.devices[:2] == ("mlx5_0:1", "mlx5_1:1")


def test_xids_links_and_lost_gpus_are_events_each_once(server: ExporterServer) -> None:
    cluster = server.cluster
    cluster.faults = {
        (1, "2", "DCGM_FI_DEV_XID_ERRORS"): lambda s: 79.0,
        (2, "mlx5_0", "node_infiniband_state_id"): lambda s: 1.0 if s < 60.0 else 4.0,
    }
    cluster.gone = {(0, "3"): START_S + 120.0, (3, None): START_S + 120.0}
    one, found = collector(server), []
    for tick in range(20):
        found += [(tick, record) for record in collected(one, server, tick) if isinstance(record, EventRecord)]
        if tick == 10:
            second = collector(server)
            second.restore(one.position())
            one = second
    # Of one turn, whichever exporter answers first is first.
    assert sorted((tick, event.kind, event.node, event.device) for tick, event in found) == [
        (8, "link_down", "gpu-0002", "mlx5_0:1"),
        (8, "xid", "gpu-0001", "2"),
        (12, "device_lost", "gpu-0000", "3"),
        (12, "link_up", "gpu-0002", "mlx5_0:1"),
    ]
    assert len({event.id for _, event in found}) == len(found)


def test_an_exporter_that_fails_or_hangs_holds_up_no_other(server: ExporterServer) -> None:
    one = collector(server, timeout_s=5.0)
    assert len(collected(one, server, 0)) == 12  # GPUs, ports and host of four nodes
    server.failing = {"/dcgm/0/metrics"}
    server.hanging = {"/node/1/metrics"}
    assert len(collected(one, server, 1)) == 9
    server.failing = {urlsplit(endpoint).path for endpoint in server.endpoints()}
    server.hanging = set()
    with pytest.raises(CollectorError, match="none of the 8 exporters answered"):
        collected(one, server, 2)


def test_healthy_nodes_of_two_models_accuse_nobody() -> None:
    other = {"DCGM_FI_DEV_SM_CLOCK": 1410.0, "DCGM_FI_DEV_POWER_USAGE": 390.0}
    cluster = Cluster(nodes=8, labels=lambda node, gpu: {"modelName": "NVIDIA A100-SXM4-80GB"} if node == 7 else {})
    cluster.faults = {(7, str(gpu), name): lambda s, v=v: v for gpu in range(8) for name, v in other.items()}
    with ExporterServer(cluster) as server:
        assert watched(server, 12) == {}


def test_a_rack_that_hangs_takes_no_places_from_the_others(server: ExporterServer) -> None:
    dead = [f"{server.address('dcgm', 0)}?number={number}" for number in range(80)]
    server.hanging = {f"/dcgm/0/metrics?number={number}" for number in range(80)}
    one = collector(server, endpoints=[*dead, *server.endpoints()], timeout_s=4.0)
    with suppress(CollectorError):
        collected(one, server, 0)
    assert len(collected(one, server, 1)) == 12


def test_faults_become_incidents_of_the_live_path(server: ExporterServer) -> None:
    server.cluster.faults = {
        (1, "2", "DCGM_FI_DEV_XID_ERRORS"): lambda s: 79.0,
        (2, "1", "DCGM_FI_DEV_SM_CLOCK"): lambda s: 1200.0,
        (2, "1", "DCGM_FI_DEV_GPU_TEMP"): lambda s: 84.0,
        (3, "mlx5_1", "node_infiniband_symbol_error_total"): lambda s: float(round(2 * s)),
    }
    incidents = watched(server, 24, healthy=8)
    found = {record.kind: [(one.node, one.device) for one in record.suspects] for record in incidents.values()}
    assert found == {
        "gpu_lost": [("gpu-0001", "2")],
        "gpu_throttle": [("gpu-0002", "1")],
        "nic_error": [("gpu-0003", "mlx5_1:1")],
    }
    assert all(record.closed_at_s is None for record in incidents.values())


def test_an_incident_of_a_lost_gpu_closes_when_the_gpu_is_back() -> None:
    class Away(Cluster):
        def dcgm(self, node, time_s):
            self.gone = {(0, "3"): 0.0} if 60.0 <= time_s - START_S < 240.0 else {}
            return super().dcgm(node, time_s)

    with ExporterServer(Away(nodes=2, gpus=4)) as server:
        (incident,) = watched(server, 24, healthy=4).values()
    assert (incident.kind, incident.suspects[0].node, incident.suspects[0].device) == ("gpu_lost", "gpu-0000", "3")
    assert incident.closed_at_s is not None
    assert START_S + 240.0 <= incident.closed_at_s <= START_S + 260.0


def test_a_real_agent_brings_them_to_the_bus(server: ExporterServer, tmp_path: Path) -> None:
    server.cluster.faults = {(1, "2", "DCGM_FI_DEV_XID_ERRORS"): lambda s: 79.0}
    endpoints = ", ".join(f'"{endpoint}"' for endpoint in server.endpoints())
    agent = AgentProcess(tmp_path, f"{{prometheus = {{endpoints = [{endpoints}], interval_s = 1.0}}}}")
    agent.start()
    try:
        agent.wait_for("metrics of every exporter", METRICS, 12)
        server.now_s = lambda: START_S + 200.0
        (event,) = agent.wait_for("the Xid", EVENTS, 1)
        assert (event.record.kind, event.record.node, event.record.device) == ("xid", "gpu-0001", "2")
        nodes = {message.record.node for message in agent.messages(METRICS)}
        assert {f"gpu-{node:04d}" for node in range(4)} <= nodes
    finally:
        agent.stop()
