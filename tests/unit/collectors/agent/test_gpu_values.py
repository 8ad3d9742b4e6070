"""GPU values of the agent under dcgm-exporter's names."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest

from tests.doubles import ManualClock
from trainwarden.catalogue import lookup
from trainwarden.collectors.agent.agent import HOLD_S, NAMES, GpuValues
from trainwarden.records import MetricsRecord
from trainwarden.self_metrics import SelfMetrics

DEVICES = ("GPU-a", "GPU-b")


def record(
    names: tuple[str, ...], *values: tuple[float | None, ...], devices: tuple[str, ...] = DEVICES
) -> MetricsRecord:
    return MetricsRecord(job="j", node="n", time_s=0.0, devices=devices, names=names, values=values)


def told(values: GpuValues) -> dict[tuple[str, str], float]:
    return {
        (sample.name, sample.labels["UUID"]): sample.value for family in values.families() for sample in family.samples
    }


def test_units_are_those_of_the_exporter() -> None:
    values = GpuValues("n1", ManualClock(), {"GPU-a": 0, "GPU-b": 3}.get)
    names = ("gpu_utilization_ratio", "gpu_sm_clock_hertz", "gpu_memory_used_bytes", "gpu_energy_joules")
    values.observe([record(names, (0.5, 1.0), (1.41e9, None), (1048576.0, 0.0), (2.0, 3.0))])
    metrics = SelfMetrics("agent")
    metrics.register_families(values.families)
    text = generate_latest(metrics.registry).decode()
    assert 'DCGM_FI_DEV_GPU_UTIL{UUID="GPU-a",gpu="0",hostname="n1"} 50.0\n' in text
    assert 'DCGM_FI_DEV_SM_CLOCK{UUID="GPU-a",gpu="0",hostname="n1"} 1410.0\n' in text
    assert 'DCGM_FI_DEV_SM_CLOCK{UUID="GPU-b"' not in text, "not measured is not told"
    assert 'DCGM_FI_DEV_FB_USED{UUID="GPU-b",gpu="3",hostname="n1"} 0.0\n' in text
    assert 'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{UUID="GPU-a",gpu="0",hostname="n1"} 2000.0\n' in text
    assert "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION_total" not in text


def test_a_mig_instance_is_told_apart_by_the_label_of_the_exporter() -> None:
    values = GpuValues("n1", ManualClock(), lambda device: 4 if device.startswith("GPU-a") else None)
    values.observe([record(("gpu_sm_active_ratio",), (0.25, 0.5), devices=("GPU-a", "GPU-a/3"))])
    metrics = SelfMetrics("agent")
    metrics.register_families(values.families)
    text = generate_latest(metrics.registry).decode()
    assert 'DCGM_FI_PROF_SM_ACTIVE{UUID="GPU-a",gpu="4",hostname="n1"} 0.25\n' in text
    assert 'DCGM_FI_PROF_SM_ACTIVE{GPU_I_ID="3",UUID="GPU-a",gpu="4",hostname="n1"} 0.5\n' in text


@pytest.mark.parametrize("name", NAMES)
def test_what_is_told_reads_back_as_what_was_measured(name: str) -> None:
    values = GpuValues("n1", ManualClock(), lambda _: None)
    values.observe([record((name,), (0.25,), devices=("GPU-a",))])
    (((alias, _), value),) = told(values).items()
    metric = lookup(alias)
    assert metric is not None
    assert metric.name == name
    assert value * metric.scale_of(alias) == pytest.approx(0.25)


def test_what_nobody_tells_any_more_is_dropped_and_slow_readings_are_kept() -> None:
    clock = ManualClock()
    values = GpuValues("n1", clock, lambda _: None)
    names = ("gpu_temperature_celsius", "gpu_ecc_uncorrectable_volatile_count")
    values.observe([record(names, (60.0, 61.0), (0.0, 0.0))])
    for _ in range(10):
        clock.sleep(1.0)
        values.observe([record(names[:1], (62.0,), devices=("GPU-b",))])
    assert len(told(values)) == 4
    clock.sleep(HOLD_S - 5.0)
    assert told(values) == {("DCGM_FI_DEV_GPU_TEMP", "GPU-b"): 62.0}
    clock.sleep(10.0)
    assert told(values) == {}


def test_a_collector_with_long_intervals_is_waited_for() -> None:
    clock = ManualClock()
    values = GpuValues("n1", clock, lambda _: None)
    for _ in range(2):
        clock.sleep(60.0)
        values.observe([record(("gpu_temperature_celsius",), (60.0, 61.0))])
    clock.sleep(300.0)
    assert len(told(values)) == 2


def test_other_metrics_are_not_told() -> None:
    values = GpuValues("n1", ManualClock(), lambda _: None)
    values.observe([record(("host_load_ratio", "gpu_xid_events_count"), (1.0, 1.0), (1.0, 1.0))])
    assert told(values) == {}
