"""What the GPU's units really did, as differences of two samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pynvml
import pytest

from tests.servers.fake_nvml import HEALTHY
from tests.unit.collectors.gpu.node import Node
from trainwarden.collectors.gpu.reader import LEAST_S, MOST_S

ONE, OTHER = "gpu_sm_active_ratio", "gpu_tensor_active_ratio"


def test_a_metric_is_the_mean_between_two_samples(node: Node) -> None:
    uuid = node.nvml.uuid(0)
    assert ONE not in node.tick()[uuid], "one sample is no difference"
    node.nvml.work(0, 1000, gpm_1=990, gpm_2=700, gpm_3=450, gpm_5=600, gpm_10=350, gpm_60=2_000, gpm_61=3_000)
    node.nvml.work(0, 1000, gpm_1=1010, gpm_2=100, gpm_20=4_000, gpm_21=6_000)
    values = node.tick()[uuid]
    mib = 1_048_576.0
    expected = {
        "gpu_engine_active_ratio": 1.0,
        "gpu_sm_active_ratio": 0.4,
        "gpu_sm_occupancy_ratio": 0.225,
        "gpu_tensor_active_ratio": 0.3,
        "gpu_dram_active_ratio": 0.175,
        "gpu_nvlink_receive_bytes_per_second": mib,
        "gpu_nvlink_transmit_bytes_per_second": 1.5 * mib,
        "gpu_pcie_transmit_bytes_per_second": 2 * mib,
        "gpu_pcie_receive_bytes_per_second": 3 * mib,
    }
    assert {name: values.get(name) for name in expected} == pytest.approx(expected)
    assert "gpu_fp64_active_ratio" not in values, "a metric that this GPU does not give"
    node.nvml.work(0, 1000, gpm_2=1005)
    assert node.tick()[uuid][ONE] == 1.0, "rounding"


def test_pcie_rates_that_profiling_gives_are_not_measured_a_second_time(node: Node) -> None:
    """NVML's own way takes 20 ms a direction, and is the only one where there are no such counters."""
    node.nvml.set(1, gpm=0)
    node.tick()
    node.nvml.work(0, 1000, gpm_20=1_000)
    values = node.tick()
    assert values[node.nvml.uuid(0)]["gpu_pcie_transmit_bytes_per_second"] == 1_048_576.0
    assert values[node.nvml.uuid(1)]["gpu_pcie_transmit_bytes_per_second"] == HEALTHY["pcie_kb_0"] * 1024
    assert ONE not in values[node.nvml.uuid(1)]


@pytest.mark.parametrize("prepare", [{"gpm": 0}, {"gpm!": 3}, {"gpm_clock!": 3}, {"gpm_clock!": 4}])
def test_a_gpu_without_these_counters_is_asked_once_and_loses_nothing_else(node: Node, prepare: dict[str, int]) -> None:
    node.nvml.set(0, **prepare)
    node.tick()
    node.nvml.set(0, **{"gpm": 1, "gpm!": None, "gpm_clock!": None})
    node.tick()
    node.nvml.work(0, 1000, gpm_2=500)
    values = node.tick()[node.nvml.uuid(0)]
    assert ONE not in values
    assert values["gpu_utilization_ratio"] == 0.97


def test_an_error_now_and_then_costs_that_moment(node: Node) -> None:
    uuid = node.nvml.uuid(0)
    node.tick()
    node.nvml.fail(0, "gpm_clock", 999)
    assert ONE not in node.tick()[uuid]
    node.nvml.set(0, **{"gpm_clock!": None})
    node.nvml.work(0, 1000, gpm_2=900)
    assert ONE not in node.tick()[uuid], "what was before the error is no difference to what is now"
    node.nvml.work(0, 1000, gpm_2=300)
    assert node.tick()[uuid][ONE] == 0.3


def test_samples_too_near_or_too_far_apart_are_not_compared(node: Node) -> None:
    uuid = node.nvml.uuid(0)
    node.tick()
    node.nvml.work(0, 1000, gpm_2=300)
    assert ONE not in node.tick(seconds=0.5 * LEAST_S)[uuid]
    assert node.tick()[uuid][ONE] == 0.3, "and the sample before still counts"
    node.nvml.work(0, 1000, gpm_2=800)
    assert ONE not in node.tick(seconds=1.5 * MOST_S)[uuid]
    node.nvml.work(0, 1000, gpm_2=200)
    assert node.tick()[uuid][ONE] == 0.2


def test_counters_that_stand_still_or_run_backwards_give_nothing_that_is_wrong(node: Node) -> None:
    uuid = node.nvml.uuid(0)
    node.nvml.work(0, 5000)
    node.tick()
    assert ONE not in node.tick()[uuid]
    node.nvml.work(0, -1000, gpm_2=100)
    assert ONE not in node.tick()[uuid]


def test_what_is_no_number_is_not_measured(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.tick()

    def nonsense(request: Any) -> None:
        for answer in request.metrics[: request.numMetrics]:
            answer.nvmlReturn, answer.value = pynvml.NVML_SUCCESS, math.nan

    monkeypatch.setattr(pynvml, "nvmlGpmMetricsGet", nonsense)
    values = node.tick()[node.nvml.uuid(0)]
    assert ONE not in values
    assert values["gpu_utilization_ratio"] == 0.97


def test_samples_are_made_once_and_freed(node: Node) -> None:
    node.tick()
    after_one = node.unfreed()
    assert after_one == 2 * (2 + 1), "two samples and an event set for each GPU"
    node.tick(50)
    assert node.unfreed() == after_one
    node.collector.close()
    assert node.unfreed() == 0


def test_they_can_be_switched_off(node: Node) -> None:
    node.collector_again(profiling=False)
    node.tick()
    node.nvml.work(0, 1000, gpm_2=500)
    assert ONE not in node.tick()[node.nvml.uuid(0)]
    assert node.unfreed() == 2


def test_it_takes_turns_and_misses_nothing_between(make_node: Callable[..., Node]) -> None:
    node = make_node(gpus=2)
    node.collector_again(slow_every=4)
    node.tick(4)
    seen = []
    for _ in range(8):
        for gpu in (0, 1):
            node.nvml.work(gpu, 1000, gpm_2=250)
        seen.append({uuid: row[ONE] for uuid, row in node.tick().items() if ONE in row})
    assert seen == [{node.nvml.uuid(0): 0.25}, {node.nvml.uuid(1): 0.25}, {}, {}] * 2


def test_our_request_fits_the_drivers_layout() -> None:
    """Offsets of nvmlGpmMetricsGet_t and nvmlGpmMetric_t in nvml.h (x86-64, aarch64)."""
    assert pynvml.c_nvmlGpmMetricsGet_t.metrics.offset == 24
    assert pynvml.c_nvmlGpmMetric_t.value.offset == 8
