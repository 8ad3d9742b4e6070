"""MIG instances are devices of their own; what is of the whole GPU stays with the GPU."""

from __future__ import annotations

import os

import pytest

from tests.hook_doubles import write_header
from tests.servers.fake_nvml import of_instance
from tests.unit.collectors.gpu.node import Node


def test_instances_have_memory_and_work_of_their_own(node: Node) -> None:
    uuid = node.nvml.uuid(0)
    node.nvml.set(0, util_gpu=None, util_mem=None)  # not there on a divided GPU
    node.nvml.divide(0, 3, 5)
    node.tick()
    node.nvml.work(0, 1000, prefix="mig_3_", gpm_2=800)
    node.nvml.work(0, 1000, prefix="mig_5_", gpm_2=100)
    values = node.tick()
    assert list(values) == [uuid, f"{uuid}/3", f"{uuid}/5", node.nvml.uuid(1)]
    assert values[f"{uuid}/3"]["gpu_sm_active_ratio"] == 0.8
    assert values[f"{uuid}/5"]["gpu_sm_active_ratio"] == 0.1
    assert values[f"{uuid}/3"]["gpu_memory_total_bytes"] == 150e9 / 8
    assert "gpu_temperature_celsius" not in values[f"{uuid}/3"]
    assert values[uuid]["gpu_temperature_celsius"] == 62.0
    assert "gpu_utilization_ratio" not in values[uuid]
    assert node.collector.device_index(f"{uuid}/3") == 0


def test_a_record_says_what_models_its_devices_are(node: Node) -> None:
    """Devices are compared with those of their own model alone."""
    node.nvml.set(1, model=100)
    node.nvml.divide(0, 1)
    uuid, other = node.nvml.uuid(0), node.nvml.uuid(1)
    node.tick()
    assert node.models == {uuid: "NVIDIA H200", f"{uuid}/1": "NVIDIA H200 MIG 1g.18gb", other: "NVIDIA H100"}


def test_instances_come_and_go_and_no_gpu_is_lost_by_it(node: Node) -> None:
    uuid = node.nvml.uuid(0)
    node.tick()
    node.nvml.divide(0, 1)
    assert f"{uuid}/1" in node.tick()
    node.nvml.work(0, 1000, prefix="mig_1_", gpm_2=800)
    node.nvml.divide(0, 1, made=2)  # destroyed and made anew, under the same number
    node.nvml.work(0, 5000, prefix="mig_1_", gpm_2=4000)
    assert "gpu_sm_active_ratio" not in node.tick()[f"{uuid}/1"], "samples of the one before are none of this one"
    before = node.unfreed()
    node.nvml.set(0, mig_mode=0)
    values = node.tick()
    assert list(values) == [uuid, node.nvml.uuid(1)]
    assert node.unfreed() == before - 2
    assert node.told() == []


def test_a_stale_handle_between_two_looks_costs_that_instance_alone(node: Node) -> None:
    uuid = node.nvml.uuid(0)
    node.collector_again(slow_every=10)
    node.nvml.divide(0, 1, 2)
    assert len(node.tick()) == 4
    node.nvml.divide(0, 2)
    assert list(node.tick()) == [uuid, f"{uuid}/2", node.nvml.uuid(1)]
    assert node.told() == []


@pytest.mark.parametrize("code", [15, 16, 28])
def test_an_instance_that_is_lost_is_no_lost_gpu(node: Node, code: int) -> None:
    node.nvml.divide(0, 1, 2)
    node.nvml.fail(0, "mig_1_mem_used", code)
    uuid = node.nvml.uuid(0)
    assert list(node.tick(5)) == [uuid, f"{uuid}/2", node.nvml.uuid(1)]
    assert node.told() == []


def test_readings_that_a_whole_gpu_has_come_back_when_it_is_whole_again(node: Node) -> None:
    uuid = node.nvml.uuid(0)
    node.nvml.set(0, util_gpu=None)
    node.nvml.divide(0, 1)
    assert "gpu_utilization_ratio" not in node.tick()[uuid]
    node.nvml.set(0, util_gpu=50, mig_mode=0)
    assert node.tick()[uuid]["gpu_utilization_ratio"] == 0.5


def test_a_divided_gpu_without_counters_of_its_own_hides_not_those_of_its_instances(node: Node) -> None:
    uuid = node.nvml.uuid(0)
    node.nvml.divide(0, 1)
    node.nvml.fail(0, "gpm_clock", 3)
    node.tick()
    node.nvml.work(0, 1000, prefix="mig_1_", gpm_2=800)
    assert node.tick()[f"{uuid}/1"]["gpu_sm_active_ratio"] == 0.8


def test_ranks_and_xids_go_to_the_instance(node: Node) -> None:
    uuid = node.nvml.uuid(0)
    parent = os.getppid()
    (node.run_dir / "hook").mkdir(parents=True)
    for rank, pid in ((4, os.getpid()), (5, parent)):
        write_header(node.run_dir / "hook" / f"rank-{rank}-{pid}.hook", pid)
    node.nvml.divide(0, 1, 2)
    node.nvml.set(0, pid_0=of_instance(os.getpid(), 1), pid_1=of_instance(parent, 2))
    node.tick()
    node.nvml.xid(0, 13, instance=2)
    node.nvml.xid(0, 31, instance=None)
    values = node.tick()
    assert node.ranks == {uuid: None, f"{uuid}/1": 4, f"{uuid}/2": 5, node.nvml.uuid(1): None}
    assert values[f"{uuid}/1"]["gpu_processes_count"] == 1.0
    assert values[uuid]["gpu_processes_count"] == 2.0
    of_one, of_all = node.events
    assert (of_one.device, of_one.rank, of_one.fields["instance"]) == (uuid, 5, 2)
    assert (of_all.device, of_all.rank, "instance" in of_all.fields) == (uuid, None, False)


def test_between_two_runs_of_a_rank_its_devices_stay_its_own(node: Node) -> None:
    uuid = node.nvml.uuid(0)
    (node.run_dir / "hook").mkdir(parents=True)
    write_header(node.run_dir / "hook" / f"rank-4-{os.getpid()}.hook", os.getpid())
    node.nvml.divide(0, 1)
    node.nvml.set(0, pid_0=of_instance(os.getpid(), 1))
    node.tick()
    node.nvml.set(0, pid_0=None)
    node.tick()
    assert node.ranks == {uuid: 4, f"{uuid}/1": 4, node.nvml.uuid(1): None}
    node.nvml.lose(0)
    node.tick()
    node.nvml.set(0, lost=None)
    node.tick(31)
    assert [(event.kind, event.rank) for event in node.events] == [("device_lost", 4), ("device_back", 4)]


def test_compute_instances_that_share_a_gpu_instance_are_one_device(node: Node) -> None:
    node.nvml.divide(0, 1)
    node.nvml.set(0, mig_at_1=1)
    uuid = node.nvml.uuid(0)
    assert list(node.tick(2)) == [uuid, f"{uuid}/1", node.nvml.uuid(1)]


def test_instances_take_turns_with_their_gpu(node: Node) -> None:
    node.nvml.divide(0, 3)
    node.collector_again(slow_every=4)
    node.tick(4)
    seen = []
    for _ in range(4):
        node.nvml.work(0, 1000, prefix="mig_3_", gpm_2=250)
        seen.append(node.tick()[f"{node.nvml.uuid(0)}/3"].get("gpu_sm_active_ratio"))
    assert seen == [0.25, None, None, None]
