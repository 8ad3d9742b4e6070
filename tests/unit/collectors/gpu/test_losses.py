"""One GPU that is lost, reset or silent, and a driver that goes: the others and what comes back are not hidden."""

from __future__ import annotations

from collections.abc import Callable

import pynvml
import pytest

from tests.unit.collectors.gpu.node import Node
from trainwarden.collectors.gpu.collector import MAX_EVENTS
from trainwarden.errors import CollectorError

AGAIN = 31  # ticks until NVML is opened again, at one slow turn a tick


def test_a_lost_gpu_hides_neither_metrics_nor_xids_of_the_others(make_node: Callable[..., Node]) -> None:
    node = make_node(gpus=4)
    node.tick()
    node.nvml.xid(1, 79)
    node.nvml.lose(1)
    node.nvml.xid(2, 48)
    values = node.tick()
    node.nvml.xid(3, 31)
    node.tick(3)
    assert sorted(values) == [node.nvml.uuid(gpu) for gpu in (0, 2, 3)]
    xids = [(event.device, event.fields["xid"]) for event in node.events if event.kind == "xid"]
    assert xids == [(node.nvml.uuid(1), 79), (node.nvml.uuid(2), 48), (node.nvml.uuid(3), 31)]
    assert [event.device for event in node.events if event.kind == "device_lost"] == [node.nvml.uuid(1)]


def test_a_storm_on_one_gpu_leaves_the_others_their_turn(node: Node) -> None:
    node.tick()
    node.nvml.storm(0, 43, 3 * MAX_EVENTS)
    node.nvml.xid(1, 79)
    node.tick()
    assert [event.fields["xid"] for event in node.events if event.device == node.nvml.uuid(1)] == [79]
    assert len(node.events) == MAX_EVENTS + 1
    node.tick(3)
    assert len(node.events) == 3 * MAX_EVENTS + 1


def test_a_gpu_that_was_reset_comes_back_with_its_xids(node: Node) -> None:
    """Its old handle stays dead, so NVML has to be opened again; the others lose nothing by it."""
    node.tick()
    node.nvml.xid(1, 31)
    node.nvml.lose(0)
    node.tick()
    node.nvml.set(0, lost=None)
    node.nvml.xid(1, 43)
    values = node.tick(AGAIN)
    assert sorted(values) == [node.nvml.uuid(0), node.nvml.uuid(1)]
    assert values[node.nvml.uuid(1)]["gpu_xid_events_count"] == 2.0
    node.nvml.xid(0, 13)
    node.nvml.lose(0)
    node.tick(2)
    lost, xid = ("device_lost", node.nvml.uuid(0)), ("xid", node.nvml.uuid(0))
    other = ("xid", node.nvml.uuid(1))
    assert node.told() == [other, lost, other, ("device_back", node.nvml.uuid(0)), xid, lost]
    assert len({event.id for event in node.events}) == 6


def test_a_gpu_that_stays_lost_is_told_once_and_costs_the_others_nothing(node: Node) -> None:
    node.tick()
    node.nvml.lose(0)
    node.tick()
    before = node.unfreed()
    for _ in range(3 * AGAIN):
        assert list(node.tick()) == [node.nvml.uuid(1)]
    assert node.told() == [("device_lost", node.nvml.uuid(0))]
    assert node.unfreed() <= before


class Calls:
    """How often a function of the binding's is called."""

    def __init__(self, patch: pytest.MonkeyPatch, name: str) -> None:
        self.times, self._call = 0, getattr(pynvml, name)
        patch.setattr(pynvml, name, self)

    def __call__(self, *args: object) -> object:
        self.times += 1
        return self._call(*args)


def test_a_lost_gpu_is_seldom_asked_and_nvml_opened_again_for_it_alone(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, opened = Calls(monkeypatch, "nvmlGpmQueryDeviceSupport"), Calls(monkeypatch, "nvmlInit")
    node.tick(2 * AGAIN)
    assert (asked.times, opened.times) == (4 * AGAIN, 1)
    node.nvml.lose(0)
    node.tick(AGAIN)
    assert opened.times == 2
    assert asked.times - 4 * AGAIN <= AGAIN + AGAIN // 6 + 2


def test_an_xid_that_comes_just_before_nvml_is_opened_again_is_told(node: Node) -> None:
    node.tick()
    node.nvml.lose(0)
    node.tick(AGAIN - 2)
    node.nvml.xid(1, 43)
    node.tick()
    assert ("xid", node.nvml.uuid(1)) in node.told()


def test_gpus_of_another_boot_are_not_missed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.tick()
    kept = node.collector.position()
    node.collector.close()
    monkeypatch.setattr("trainwarden.collectors.gpu.collector.boot_id", lambda: "another boot")
    node.nvml.set_count(1)
    node.collector_again().restore(kept)
    node.tick(3)
    assert node.told() == []


def test_without_a_gpu_the_driver_is_let_go_of(make_node: Callable[..., Node]) -> None:
    assert make_node(gpus=0).collector.supported() == "the NVIDIA driver finds no GPU"
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()


def test_a_gpu_that_was_not_listed_at_first_comes_in_later(node: Node) -> None:
    node.tick()
    kept = node.collector.position()
    node.collector.close()
    node.nvml.set(0, lost_at_start=1)
    node.collector_again().restore(kept)
    node.tick()
    assert node.told() == [("device_lost", node.nvml.uuid(0))]
    node.nvml.set(0, lost_at_start=None)
    assert len(node.tick(AGAIN)) == 2


@pytest.mark.parametrize("code", [15, 16, 28])
def test_lost_has_several_names(node: Node, code: int) -> None:
    node.tick()
    node.nvml.set(0, error=code)
    node.tick()
    assert node.told() == [("device_lost", node.nvml.uuid(0))]


def test_a_gpu_whose_fields_say_that_it_is_lost_is_lost(node: Node) -> None:
    node.tick()
    node.nvml.fail(0, "field_82", 15)
    node.tick()
    assert node.told() == [("device_lost", node.nvml.uuid(0))]


def test_an_event_set_for_which_nothing_can_be_registered_is_freed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)

    monkeypatch.setattr(pynvml, "nvmlDeviceRegisterEvents", refused)
    assert node.tick()
    node.collector.close()
    assert node.unfreed() == 0


def test_a_gpu_that_answers_nothing_at_all_is_lost_after_a_while(node: Node) -> None:
    node.tick()
    node.nvml.set(0, error=999)
    node.tick()
    assert node.told() == []
    node.tick(2 * AGAIN)
    assert node.told() == [("device_lost", node.nvml.uuid(0))]
    node.nvml.set(0, error=None)
    assert len(node.tick(AGAIN)) == 2


def test_a_gpu_that_is_silent_now_and_then_is_not_lost(node: Node) -> None:
    node.tick()
    for _ in range(3):
        node.nvml.set(0, error=999)
        node.tick(2)
        node.nvml.set(0, error=None)
        node.tick()
    assert node.told() == []


def test_a_driver_that_is_unloaded_and_loaded_again(node: Node) -> None:
    node.tick()
    node.nvml.xid(0, 31)
    node.tick()
    node.nvml.set(0, error=1)
    node.nvml.start_error(9)
    for _ in range(3):
        with pytest.raises(CollectorError, match="NVML"):
            node.tick()
    assert node.unfreed() == 0
    node.nvml.set(0, error=None)
    node.nvml.start_error(0)
    values = node.tick()
    assert values[node.nvml.uuid(0)]["gpu_xid_events_count"] == 1.0
    node.nvml.xid(0, 79)
    node.tick()
    assert [event.fields["xid"] for event in node.events] == [31, 79]


def test_a_driver_that_goes_while_its_gpus_are_listed_loses_none(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.tick()
    node.nvml.set(0, error=9)
    with pytest.raises(CollectorError):
        node.tick()

    def gone(handle: object) -> str:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    with monkeypatch.context() as patch:
        patch.setattr(pynvml, "nvmlDeviceGetUUID", gone)
        with pytest.raises(CollectorError, match="does not start"):
            node.tick()
    node.nvml.set(0, error=None)
    assert len(node.tick()) == 2
    assert node.told() == []


def test_a_driver_of_another_version_asks_for_a_new_agent(node: Node) -> None:
    node.tick()
    node.nvml.set(0, error=18)
    node.nvml.start_error(18)
    with pytest.raises(CollectorError):
        node.tick()
    with pytest.raises(CollectorError, match="exchanged for another version: restart the agent"):
        node.tick()


def test_an_old_driver_tells_its_processes_and_all_else(make_node: Callable[..., Node]) -> None:
    node = make_node(old_driver=True)
    node.nvml.set(0, pid_0=4711)
    values = node.tick()[node.nvml.uuid(0)]
    assert (values["gpu_processes_count"], values["gpu_utilization_ratio"]) == (1.0, 0.97)


@pytest.mark.parametrize("agent_again", [False, True])
def test_what_was_counted_of_a_gpu_outlives_its_absence(node: Node, *, agent_again: bool) -> None:
    node.tick()
    node.nvml.xid(0, 31)
    node.nvml.lose(0)
    node.tick()
    node.nvml.set(0, lost_at_start=1)
    node.tick(AGAIN)
    if agent_again:
        kept = node.collector.position()
        node.collector.close()
        collector = node.collector_again()
        assert collector.supported() is None
        collector.restore(kept)
        node.tick()
    node.nvml.set(0, lost=None, lost_at_start=None)
    values = node.tick(2 * AGAIN)
    assert [values[node.nvml.uuid(gpu)]["gpu_xid_events_count"] for gpu in (0, 1)] == [1.0, 0.0]
    assert node.told() == [(kind, node.nvml.uuid(0)) for kind in ("xid", "device_lost", "device_back")]
