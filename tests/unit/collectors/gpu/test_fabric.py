"""The NVLink fabric: part of the metrics always, a fact where a machine that had it loses it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pynvml
import pytest

from tests.unit.collectors.gpu.node import Node
from trainwarden.collectors.gpu.fabric import PATIENCE_S, FabricInfo
from trainwarden.records import EventRecord

COMPLETED, IN_PROGRESS, NOT_STARTED = 3, 2, 1


def test_a_healthy_fabric_is_two_metrics_and_no_event(node: Node) -> None:
    values = node.tick(3)[node.nvml.uuid(0)]
    assert (values["gpu_fabric_state"], values["gpu_fabric_degraded_state"]) == (3.0, 0.0)
    assert node.told() == []


@pytest.mark.parametrize(
    ("trouble", "says", "degraded"),
    [
        ({"fabric_status": 999}, "the fabric manager could not set it up (NVML error 999)", None),
        ({"fabric_health": 0x1A9}, "its bandwidth is degraded", 1.0),
        ({"fabric_health": 0x199}, "its bandwidth is degraded and a route is unhealthy", 1.0),
        ({"fabric_health": 0x5AA}, "it is wrongly configured", 1.0),
        ({"fabric_health": 0x1A9, "fabric_summary": 2}, "its bandwidth is degraded", 1.0),
        ({"fabric_summary": 2}, "it is unhealthy", 1.0),
        ({"fabric_summary": 3}, "its capacity is limited", 1.0),
    ],
)
def test_trouble_is_one_fact_and_so_is_its_end(
    node: Node, trouble: dict[str, int], says: str, degraded: float | None
) -> None:
    uuid = node.nvml.uuid(1)
    node.tick()
    node.nvml.set(1, **trouble)
    values = node.tick(5)[uuid]
    (event,) = node.events
    assert (event.kind, event.device, event.message) == ("fabric_down", uuid, f"NVLink fabric of GPU {uuid}: {says}")
    assert values.get("gpu_fabric_degraded_state") == degraded
    node.nvml.set(1, fabric_status=0, fabric_health=0x1AA, fabric_summary=1)
    node.tick(3)
    assert node.told() == [("fabric_down", uuid), ("fabric_up", uuid)]
    node.nvml.set(1, **trouble)
    node.tick()
    assert len({event.id for event in node.events}) == 3


@pytest.mark.parametrize("mask", [0, 0x1AA, 0x1A6, 0x16A])
def test_what_is_unknown_or_only_being_recovered_is_no_trouble(node: Node, mask: int) -> None:
    node.tick()
    node.nvml.set(0, fabric_health=mask, fabric_summary=0)
    assert node.tick()[node.nvml.uuid(0)]["gpu_fabric_degraded_state"] == 0.0
    assert node.told() == []


@pytest.mark.parametrize("state", [0, NOT_STARTED, IN_PROGRESS])
def test_a_fabric_that_is_being_set_up_has_time_for_it(node: Node, state: int) -> None:
    node.tick()
    node.nvml.set(0, fabric_state=state)
    node.tick(seconds=PATIENCE_S - 10.0)
    node.tick(seconds=PATIENCE_S - 10.0)
    assert node.told() == []
    node.nvml.set(0, fabric_state=COMPLETED)
    node.tick(seconds=20.0)
    node.nvml.set(0, fabric_state=state)
    node.tick()
    assert node.told() == []
    node.tick(seconds=PATIENCE_S)
    node.tick(3)
    assert node.told() == [("fabric_down", node.nvml.uuid(0))]


def test_of_a_gpu_that_is_lost_meanwhile_nothing_is_told_of_its_fabric(node: Node) -> None:
    node.tick()
    node.nvml.set(0, fabric_state=IN_PROGRESS)
    node.tick()
    node.nvml.lose(0)
    node.tick(3, seconds=PATIENCE_S)
    assert node.told() == [("device_lost", node.nvml.uuid(0))]


def test_a_clock_that_is_set_ends_no_patience(node: Node) -> None:
    """As while a machine starts, which is when its fabric is set up."""
    node.tick()
    node.nvml.set(0, fabric_state=IN_PROGRESS)
    for wall_s in (1_000.0, 900.0, 5_000.0):
        node.clock.sleep(1.0)
        assert not any(isinstance(record, EventRecord) for record in node.collector.collect(wall_s))


@pytest.mark.parametrize("state", [0, NOT_STARTED, IN_PROGRESS, None])
def test_a_machine_that_never_had_a_fabric_is_left_alone(node: Node, state: int | None) -> None:
    """GPUs behind PCIe, one GPU of a switch board given to a virtual machine, a fabric manager nobody runs."""
    for gpu in (0, 1):
        node.nvml.set(gpu, fabric_state=state)
    values = node.tick(5, seconds=PATIENCE_S)
    assert node.told() == []
    assert values[node.nvml.uuid(0)].get("gpu_fabric_state") == (state or None)


def test_a_fabric_that_does_not_come_back_after_a_reboot_is_missed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.tick()
    kept = node.collector.position()
    node.collector.close()
    monkeypatch.setattr("trainwarden.collectors.gpu.collector.boot_id", lambda: "another boot")
    node.nvml.set(0, fabric_state=IN_PROGRESS)
    node.collector_again().restore(kept)
    node.tick()
    node.tick(seconds=PATIENCE_S)
    assert node.told() == [("fabric_down", node.nvml.uuid(0))]


def test_a_restart_tells_nothing_twice(node: Node) -> None:
    node.tick()
    node.nvml.set(0, fabric_summary=2)
    before = node.collector.position()
    node.tick()
    after = node.collector.position()
    node.collector.close()
    node.collector_again().restore(after)
    node.tick(3)
    assert node.told() == [("fabric_down", node.nvml.uuid(0))]
    node.collector.close()
    node.collector_again().restore(before)  # killed before its position was kept
    node.tick()
    assert len({event.id for event in node.events}) == 1


@pytest.mark.parametrize(
    ("version", "old_driver", "refusal", "degraded"),
    [
        (3, False, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH, 1.0),
        (2, False, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH, 1.0),
        (2, False, pynvml.NVML_ERROR_INVALID_ARGUMENT, 1.0),
        (1, False, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH, 0.0),
        (1, True, 0, 0.0),
    ],
)
def test_older_drivers_say_less_and_are_understood(
    make_node: Callable[..., Node], version: int, old_driver: bool, refusal: int, degraded: float
) -> None:
    node = make_node(old_driver=old_driver)
    node.nvml.set(0, fabric_version=version, fabric_refusal=refusal, fabric_health=0x1A9)
    values = node.tick()[node.nvml.uuid(0)]
    assert (values["gpu_fabric_state"], values["gpu_fabric_degraded_state"]) == (3.0, degraded)


def test_our_structure_is_that_of_nvml() -> None:
    """Offsets in nvml.h of the CUDA 13 toolkit; the size is part of the version number."""
    names = ("version", "cluster", "status", "clique", "state", "mask", "summary")
    assert [getattr(FabricInfo, name).offset for name in names] == [0, 4, 20, 24, 28, 32, 36]
    assert ctypes.sizeof(FabricInfo) == 40
