"""The GPU collector end to end: a real agent process, the real pynvml, a fake driver underneath, the bus."""

from __future__ import annotations

import os
import re
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hook_doubles import write_header
from tests.servers.agent import AgentProcess
from tests.servers.fake_nvml import FakeNvml
from trainwarden.records import EventRecord, MetricsRecord
from trainwarden.topics import EVENTS, METRICS

pytestmark = [pytest.mark.system, pytest.mark.timeout(90)]

COLLECTORS = "{gpu = {interval_s = 0.1, slow_every = 2}}"
WAIT_S = 90.0


class Rig:
    """A fake driver and an agent over it."""

    def __init__(self, folder: Path, *, gpus: int = 2, old_driver: bool = False, metrics_port: int = 0) -> None:
        self.nvml = FakeNvml(folder, gpus, old_driver=old_driver)
        environ = {**self.nvml.environ(), "TRAINWARDEN_AGENT_METRICS_PORT": str(metrics_port)}
        self.agent = AgentProcess(folder, COLLECTORS, environ)

    def start(self) -> None:
        self.agent.start()
        self.agent.wait_for("the first GPU metrics", METRICS, 3)

    def latest(self, gpu: int) -> dict[str, float]:
        """The newest value of every metric of a GPU within the last second or so."""
        values: dict[str, float] = {}
        for message in self.agent.messages(METRICS)[-8:]:
            record = message.record
            assert isinstance(record, MetricsRecord)
            if self.nvml.uuid(gpu) in record.devices:
                place = record.devices.index(self.nvml.uuid(gpu))
                rows = zip(record.names, (row[place] for row in record.values), strict=True)
                values.update((name, value) for name, value in rows if value is not None)
        return values

    def events(self, kind: str) -> list[EventRecord]:
        records = [message.record for message in self.agent.messages(EVENTS)]
        return [record for record in records if isinstance(record, EventRecord) and record.kind == kind]

    def wait(self, what: str, true: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not true():
            if time.monotonic() > deadline_s:
                pytest.fail(f"waited {WAIT_S} s for {what}\n{self.agent.tail()}")
            time.sleep(0.1)


@pytest.fixture
def make_rig(tmp_path: Path, compiler: list[str]) -> Iterator[Callable[..., Rig]]:
    rigs: list[Rig] = []

    def make(**options: object) -> Rig:
        rigs.append(Rig(tmp_path, **options))  # type: ignore[arg-type]
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.agent.kill()


def test_every_field_arrives_in_the_catalogues_units(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.start()
    rig.wait("the slow readings", lambda: "gpu_nvlink_active_links_count" in rig.latest(1))
    values = rig.latest(1)
    expected = {
        "gpu_utilization_ratio": 0.97,
        "gpu_memory_copy_utilization_ratio": 0.45,
        "gpu_sm_clock_hertz": 1.755e9,
        "gpu_memory_clock_hertz": 2.619e9,
        "gpu_sm_clock_max_hertz": 1.98e9,
        "gpu_temperature_celsius": 62.0,
        "gpu_memory_temperature_celsius": 71.0,
        "gpu_temperature_slowdown_celsius": 92.0,
        "gpu_temperature_shutdown_celsius": 95.0,
        "gpu_power_watts": 640.0,
        "gpu_power_limit_watts": 700.0,
        "gpu_energy_joules": 5000.0,
        "gpu_memory_used_bytes": 1e11,
        "gpu_memory_total_bytes": 1.5e11,
        "gpu_memory_reserved_bytes": 6e8,
        "gpu_clock_event_reasons_state": 0.0,
        "gpu_throttle_thermal_state": 0.0,
        "gpu_ecc_correctable_volatile_count": 0.0,
        "gpu_ecc_correctable_aggregate_count": 3.0,
        "gpu_row_remap_failure_state": 0.0,
        "gpu_pcie_transmit_bytes_per_second": 2_048_000_000.0,
        "gpu_pcie_link_width_count": 16.0,
        "gpu_nvlink_active_links_count": 18.0,
        "gpu_nvlink_inactive_links_count": 0.0,
        "gpu_nvlink_transmit_bytes": 1_024_000.0,
        "gpu_nvlink_receive_bytes": 2_048_000.0,
        "gpu_recovery_action_state": 0.0,
        "gpu_xid_events_count": 0.0,
        "gpu_processes_count": 0.0,
        "gpu_performance_state": 0.0,
    }
    assert {name: values.get(name) for name in expected} == pytest.approx(expected)
    # What this GPU does not support is absent: fan, retired pages, the other violations, CRC data errors.
    assert not {"gpu_fan_speed_ratio", "gpu_retired_pages_correctable_count", "gpu_xid_state"} & values.keys()
    assert "gpu_reliability_violation_seconds" not in values
    assert "gpu_nvlink_crc_data_errors_count" not in values


def test_values_that_change_are_seen_to_change(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.start()
    hot = 0x40 | 0x8  # hardware thermal slowdown, hardware slowdown
    rig.nvml.set(0, temperature=93, event_reasons=hot, clock_1=1200, ecc_0_0=17, remapped_pending=1, nvlinks_down=2)
    rig.wait("the throttling", lambda: rig.latest(0).get("gpu_throttle_thermal_state") == 1.0)
    rig.wait("the memory errors", lambda: rig.latest(0).get("gpu_ecc_correctable_volatile_count") == 17.0)
    values = rig.latest(0)
    assert values["gpu_temperature_celsius"] == 93.0
    assert values["gpu_clock_event_reasons_state"] == float(hot)
    assert values["gpu_throttle_hardware_state"] == 1.0
    assert values["gpu_throttle_power_state"] == 0.0
    assert values["gpu_sm_clock_hertz"] == 1.2e9
    assert values["gpu_row_remap_pending_state"] == 1.0
    assert values["gpu_nvlink_inactive_links_count"] == 2.0
    assert rig.latest(1)["gpu_temperature_celsius"] == 62.0


def test_xid_events_name_gpu_and_rank(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.nvml.set(1, pid_0=os.getpid())
    write_header(rig.agent.run_dir / "hook" / f"rank-5-{os.getpid()}.hook", os.getpid())
    rig.start()
    rig.nvml.xid(1, 79)
    rig.nvml.xid(0, 31)
    rig.wait("two Xid events", lambda: len(rig.events("xid")) == 2)
    found = {event.fields["xid"]: event for event in rig.events("xid")}
    assert (found[79].device, found[79].rank, found[79].fields["pci"]) == (rig.nvml.uuid(1), 5, "00000000:19:00.0")
    assert (found[31].device, found[31].rank) == (rig.nvml.uuid(0), None)
    rig.wait("the last Xid as a metric", lambda: rig.latest(1).get("gpu_xid_state") == 79.0)
    records = [message.record for message in rig.agent.messages(METRICS)]
    ranks = [record.ranks for record in records if isinstance(record, MetricsRecord) and record.ranks]
    assert ranks[-1] == (None, 5)


def test_a_lost_gpu_is_one_event_and_the_others_go_on(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.start()
    rig.nvml.lose(0)
    rig.wait("the loss", lambda: bool(rig.events("device_lost")))
    before = len(rig.agent.messages(METRICS))
    rig.wait("more metrics", lambda: len(rig.agent.messages(METRICS)) > before + 12)
    assert [event.device for event in rig.events("device_lost")] == [rig.nvml.uuid(0)]
    assert rig.latest(0) == {}
    assert rig.latest(1)["gpu_temperature_celsius"] == 62.0
    # A restart does not tell it again, even if the GPU does not say its name any more.
    rig.agent.kill()
    rig.nvml.set(0, lost_at_start=1)
    rig.agent.start()
    before = len(rig.agent.messages(METRICS))
    rig.wait("metrics after the restart", lambda: len(rig.agent.messages(METRICS)) > before + 3)
    assert len(rig.events("device_lost")) == 1


def test_a_gpu_lost_while_the_agent_was_down_is_missed(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.start()
    rig.agent.kill()
    rig.nvml.set(1, lost_at_start=1)
    rig.agent.start()
    rig.wait("the loss", lambda: bool(rig.events("device_lost")))
    assert [event.device for event in rig.events("device_lost")] == [rig.nvml.uuid(1)]


def test_a_reading_that_fails_now_and_then_costs_only_itself(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.nvml.fail(0, "power_mw", 999)
    rig.start()
    assert "gpu_power_watts" not in rig.latest(0)
    assert rig.latest(0)["gpu_temperature_celsius"] == 62.0
    rig.nvml.set(0, **{"power_mw!": None})
    rig.wait("the power again", lambda: rig.latest(0).get("gpu_power_watts") == 640.0)


def test_an_old_driver_gives_what_it_has(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(old_driver=True)
    rig.start()
    values = rig.latest(0)
    assert values["gpu_memory_used_bytes"] == 1e11
    assert "gpu_memory_reserved_bytes" not in values
    assert values["gpu_throttle_thermal_state"] == 0.0


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (lambda nvml: nvml.library.unlink(), "libnvidia-ml.so.1 is not installed"),
        (lambda nvml: nvml.start_error(9), "NVML does not start"),
    ],
    ids=["no library", "driver not loaded"],
)
def test_no_gpu_is_one_clear_line(
    make_rig: Callable[..., Rig], prepare: Callable[[FakeNvml], None], reason: str
) -> None:
    rig = make_rig()
    prepare(rig.nvml)
    rig.agent.start()
    rig.wait("the event", lambda: bool(rig.events("collector_unsupported")))
    (event,) = rig.events("collector_unsupported")
    assert reason in event.message
    assert rig.agent.errors.read_text().count("collector skipped") == 1


def test_a_driver_that_goes_is_waited_for(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.start()
    rig.nvml.fail(0, "util_gpu", 9)  # driver not loaded any more
    rig.nvml.start_error(9)
    rig.wait("the failure", lambda: "collector fails" in rig.agent.errors.read_text())
    rig.nvml.set(0, **{"util_gpu!": None})
    rig.nvml.start_error(0)
    rig.wait("the recovery", lambda: "collector works again" in rig.agent.errors.read_text())
    assert rig.agent.errors.read_text().count("collector fails") == 1


def test_the_agent_tells_its_gpus_under_the_names_of_dcgm_exporter(make_rig: Callable[..., Rig]) -> None:
    """The same numbers that the driver gives, in the exporter's units."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    rig = make_rig(metrics_port=port)
    rig.start()

    def told(name: str) -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        found = [re.fullmatch(rf'{name}\{{UUID="(.*)",gpu="(.*)",hostname="node0"\}} (.*)', line) for line in lines]
        return {f"{one[2]} {one[1]}": float(one[3]) for one in found if one}

    both = [f"{gpu} {rig.nvml.uuid(gpu)}" for gpu in (0, 1)]
    rig.wait("the slow readings", lambda: len(told("DCGM_FI_DEV_ROW_REMAP_FAILURE")) == 2)

    def works() -> bool:
        for gpu in (0, 1):
            rig.nvml.work(gpu, 1000, gpm_2=250)
        return len(told("DCGM_FI_PROF_SM_ACTIVE")) == 2

    rig.wait("the profiling counters", works)
    assert told("DCGM_FI_PROF_SM_ACTIVE") == dict.fromkeys(both, 0.25)
    assert told("DCGM_FI_DEV_FABRIC_MANAGER_STATUS") == dict.fromkeys(both, 3.0)
    assert told("DCGM_FI_DEV_GPU_UTIL") == dict.fromkeys(both, 97.0)
    assert told("DCGM_FI_DEV_SM_CLOCK") == dict.fromkeys(both, 1755.0)
    assert told("DCGM_FI_DEV_POWER_USAGE") == dict.fromkeys(both, 640.0)
    assert told("DCGM_FI_DEV_FB_USED") == pytest.approx(dict.fromkeys(both, 1e11 / 1048576))
