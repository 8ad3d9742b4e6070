"""Steps timed by a device's own events: late ones, lost ones, captures, and never at the expense of training."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tests.device_doubles import Device, group
from tests.hook_doubles import HandClock, Replica, backward, engine_backward, header_of, steps_of
from trainwarden import hook
from trainwarden.hook import Hook
from trainwarden.hook.device import _STRIKES
from trainwarden.hook.layout import DEVICE_RING, FILE_BYTES, LATE_STEPS, POOL_STEPS
from trainwarden.hook.watches.training import watch_capture

Make = Callable[..., Hook]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, clock: HandClock) -> Device:
    made = Device(clock)
    monkeypatch.setitem(sys.modules, "torch.cuda", made)  # type: ignore[arg-type]
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    monkeypatch.delenv("TRAINWARDEN_DEVICE_EVENTS", raising=False)
    return made


def step(target: Hook, clock: HandClock, device: Device, work_ms: float, host_ms: float = 1.0) -> None:
    """The host launches a step in `host_ms`; the device takes `work_ms` for it."""
    backward(target, clock, host_ms)
    device.work(work_ms)
    target.ends.optimizer_stepped()


def replicated(target: Hook, clock: HandClock, device: Device, work_ms: float, wait_ms: float) -> None:
    """A step under DDP: the device works, then waits for the gradients of others."""
    device.work(work_ms)
    engine_backward(target, clock, lambda: device.work(wait_ms))
    target.ends.optimizer_stepped()


def device_s(target: Hook) -> list[float | None]:
    return [row.device_s for row in steps_of(target)]


def test_a_step_takes_what_the_device_says_however_early_the_host_is(
    make: Make, clock: HandClock, device: Device
) -> None:
    target = make()
    for work_ms in (20, 20, 30, 20, 20, 20):
        step(target, clock, device, work_ms)
        clock.pass_ms(24)  # the host waits for something at the end
    device.catch_up()
    for _ in range(2):
        step(target, clock, device, 20)
        device.catch_up()
    rows = steps_of(target)
    assert rows[2].device_s == pytest.approx(0.030, rel=0.3)
    assert rows[2].duration_s == pytest.approx(0.025)
    assert rows[0].device_s is None  # nobody has seen it begin
    assert [row.device_s is None for row in rows] == [True, *[False] * 5, True, True]
    assert header_of(target).timing == "on"
    assert header_of(target).timed == 6
    assert device.harm == []


def test_a_device_that_is_behind_is_asked_again_later(make: Make, clock: HandClock, device: Device) -> None:
    target = make()
    for _ in range(8):  # the host launches all of it at once
        step(target, clock, device, 10, host_ms=0.1)
    assert device_s(target) == [None] * 8
    device.catch_up()
    for _ in range(5):  # two steps are read at the end of each
        step(target, clock, device, 10)
        device.catch_up()
    assert [round(took or 0.0, 6) for took in device_s(target)[1:8]] == [0.010] * 7


def test_the_wait_for_gradients_is_timed_on_the_device(make: Make, clock: HandClock, device: Device) -> None:
    target, replica = make(world=4), Replica()
    replica.process_group = group(4)  # type: ignore[attr-defined]
    target.backward.replicas.add(replica)
    for wait_ms in (1, 1, 6, 1, 1, 1):
        replicated(target, clock, device, 20, wait_ms)
        device.catch_up()
    waits = [row.device_wait_s for row in steps_of(target)[1:4]]
    assert waits == pytest.approx([0.001, 0.006, 0.001])
    assert [row.device_s for row in steps_of(target)[1:4]] == pytest.approx([0.021, 0.026, 0.021])


@pytest.mark.parametrize("ranks", [None, 2])
def test_a_wait_within_a_part_of_the_ranks_is_not_the_whole_of_it(
    make: Make, clock: HandClock, device: Device, ranks: int | None
) -> None:
    """Tensor parallel ranks wait for each other in the midst of what would be called computing."""
    target, replica = make(world=4), Replica()
    if ranks is not None:
        replica.process_group = group(ranks)  # type: ignore[attr-defined]
    target.backward.replicas.add(replica)
    for _ in range(6):
        replicated(target, clock, device, 20, 5)
        device.catch_up()
    rows = steps_of(target)
    assert rows[2].device_s == pytest.approx(0.025)
    assert {row.device_wait_s for row in rows} == {None}


def test_of_two_waits_in_a_step_none_is_told(make: Make, clock: HandClock, device: Device) -> None:
    target, replica = make(world=4), Replica()
    replica.process_group = group(4)  # type: ignore[attr-defined]
    target.backward.replicas.add(replica)
    for number in range(8):
        if number == 3:
            device.work(20)
            engine_backward(target, clock, lambda: device.work(5))
        replicated(target, clock, device, 20, 5)
        device.catch_up()
    assert [row.device_wait_s is None for row in steps_of(target)[1:6]] == [False, False, True, False, False]


def test_without_an_exchange_there_is_no_wait(make: Make, clock: HandClock, device: Device) -> None:
    """Micro-batches under no_sync, the last of which exchanges gradients."""
    target, replica = make(world=4), Replica()
    replica.process_group = group(4)  # type: ignore[attr-defined]
    target.backward.replicas.add(replica)
    for _ in range(6):
        replica.require_backward_grad_sync = False
        engine_backward(target, clock, lambda: None)
        replica.require_backward_grad_sync = True
        replicated(target, clock, device, 20, 5)
        device.catch_up()
    assert steps_of(target)[2].device_wait_s == pytest.approx(0.005)


def test_a_wait_in_whose_midst_a_capture_begins_is_left_out(make: Make, clock: HandClock, device: Device) -> None:
    """On another thread, which has the device for itself until it ends."""
    target, replica = make(world=4), Replica()
    replica.process_group = group(4)  # type: ignore[attr-defined]
    target.backward.replicas.add(replica)
    for number in range(8):
        device.work(20)
        engine_backward(target, clock, lambda: setattr(device, "capturing", number == 3))  # noqa: B023 - called at once
        device.capturing = False
        target.ends.optimizer_stepped()
        device.catch_up()
    assert device.harm == []
    rows = steps_of(target)[1:6]
    assert [row.device_wait_s is None for row in rows] == [False, False, True, False, False]
    assert None not in [row.device_s for row in rows]


@pytest.mark.parametrize("over", [True, False])
def test_a_wait_on_a_stream_that_the_step_does_not_follow_is_left_out(
    make: Make, clock: HandClock, device: Device, *, over: bool
) -> None:
    target, replica = make(world=4), Replica()
    replica.process_group = group(4)  # type: ignore[attr-defined]
    target.backward.replicas.add(replica)
    for _ in range(6):

        def elsewhere() -> None:
            device.stream = 1
            device.work(90 if over else 10_000)

        device.work(20)
        engine_backward(target, clock, elsewhere)
        device.stream = 0
        target.ends.optimizer_stepped()
        clock.pass_ms(60)
    assert {(row.device_s is None, row.device_wait_s) for row in steps_of(target)[1:4]} == {(False, None)}
    assert header_of(target).errors == 0


def test_nothing_is_recorded_or_asked_during_a_capture(make: Make, clock: HandClock, device: Device) -> None:
    target, replica = make(world=4), Replica()
    replica.process_group = group(4)  # type: ignore[attr-defined]
    target.backward.replicas.add(replica)
    for number in range(20):
        device.capturing = 6 <= number < 9
        replicated(target, clock, device, 20, 5)
        device.catch_up()
    assert device.harm == []
    known = [took is not None for took in device_s(target)]
    assert known == [False, *[True] * 5, False, False, False, False, *[True] * 8, False, False]


def test_a_capture_on_another_thread_is_known_too(
    make: Make, clock: HandClock, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = make()

    class Graph:
        def capture_begin(self, works: bool = True) -> None:
            if not works:
                raise RuntimeError("no")

        def capture_end(self) -> None:
            """Nothing."""

    monkeypatch.setitem(sys.modules, "torch.cuda.graphs", SimpleNamespace(CUDAGraph=Graph))  # type: ignore[arg-type]
    assert watch_capture(target.device)
    graph = Graph()
    with pytest.raises(RuntimeError):
        graph.capture_begin(works=False)
    step(target, clock, device, 20)
    assert (device.recorded, len(target.device.captures)) == (1, 0)
    graph.capture_begin()
    for _ in range(4):
        step(target, clock, device, 20)
        device.catch_up()
    assert (device.recorded, device.asked) == (1, 0)
    graph.capture_end()
    graph.capture_end()  # of a graph that was made before the hook came
    step(target, clock, device, 20)
    assert (device.recorded, len(target.device.captures)) == (2, 0)


class Graph:
    """What stands for `torch.cuda.CUDAGraph` of torch 2.15."""

    def capture_begin(self) -> None:
        """Nothing."""

    def capture_end_pre(self) -> None:
        """Nothing."""

    def capture_end(self) -> None:
        self.capture_end_pre()
        raise RuntimeError("operation failed due to a previous error during capture")

    def reset(self) -> None:
        """Nothing."""


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> type[Graph]:
    kind = type("CUDAGraph", (Graph,), {name: vars(Graph)[name] for name in vars(Graph) if "__" not in name})
    monkeypatch.setitem(sys.modules, "torch.cuda.graphs", SimpleNamespace(CUDAGraph=kind))  # type: ignore[arg-type]
    return kind


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["end", "pre", "reset", "gone", "again"])
def test_a_capture_is_over_however_it_ends(
    how: str, make: Make, clock: HandClock, device: Device, graphs: type[Graph]
) -> None:
    """In torch 2.15 one that fails while it begins is ended by `capture_end_pre` alone."""
    target = make()
    assert watch_capture(target.device)
    step(target, clock, device, 20)
    graph = graphs()
    graph.capture_begin()
    step(target, clock, device, 20)
    assert device.recorded == 1
    if how == "end":
        with pytest.raises(RuntimeError):
            graph.capture_end()
    elif how == "pre":
        graph.capture_end_pre()
    elif how == "reset":
        graph.reset()
    elif how == "gone":
        del graph
        gc.collect()
    else:
        graph.capture_begin()
        graph.reset()
    step(target, clock, device, 20)
    assert device.recorded == 2
    assert len(target.device.captures) == 0


def test_a_capture_that_never_ends_is_told_and_events_stay_away(
    make: Make, clock: HandClock, device: Device, graphs: type[Graph]
) -> None:
    target = make()
    assert watch_capture(target.device)
    graph = graphs()
    graph.capture_begin()
    for _ in range(63):
        step(target, clock, device, 20)
    assert header_of(target).timing == "on"
    for _ in range(100):
        step(target, clock, device, 20)
    assert (header_of(target).timing, device.recorded) == ("open_capture", 0)
    graph.reset()
    for _ in range(6):
        step(target, clock, device, 20)
        device.catch_up()
    assert header_of(target).timing == "on"
    assert device_s(target)[-3] == pytest.approx(0.021)
    assert device.harm == []


def test_a_device_that_never_gets_on_costs_no_more_than_the_pool(make: Make, clock: HandClock, device: Device) -> None:
    target = make()
    device.dead = True
    for _ in range(3 * POOL_STEPS):
        step(target, clock, device, 10)
    assert device.recorded == POOL_STEPS
    assert device.asked <= 3 * POOL_STEPS
    assert set(device_s(target)) == {None}


def test_where_the_pool_runs_out_steps_are_left_out_and_it_goes_on(
    make: Make, clock: HandClock, device: Device
) -> None:
    target = make()
    for _ in range(2 * POOL_STEPS):
        step(target, clock, device, 10, host_ms=0.01)
    device.catch_up()
    for _ in range(3 * POOL_STEPS):
        step(target, clock, device, 10)
        device.catch_up()
    known = [took is not None for took in device_s(target)]
    assert sum(known[:POOL_STEPS]) == POOL_STEPS - 1  # the first one has no begin
    assert not any(known[POOL_STEPS : 2 * POOL_STEPS])
    assert all(known[2 * POOL_STEPS + 2 : -LATE_STEPS])
    assert {round(took, 6) for took in device_s(target) if took is not None} == {0.010, 0.011}  # host first, later


def test_events_that_raise_now_and_then_leave_gaps(make: Make, clock: HandClock, device: Device) -> None:
    target = make()
    for number in range(20):
        device.broken = number == 8
        step(target, clock, device, 10)
        device.catch_up()
    known = [took is not None for took in device_s(target)]
    assert known == [False, *[True] * 7, False, False, *[True] * 8, False, False]
    assert header_of(target).errors == 1
    assert header_of(target).timing == "on"


@pytest.mark.thorough
@pytest.mark.parametrize("switched", [False, True])
def test_events_that_always_raise_are_given_up(make: Make, clock: HandClock, device: Device, *, switched: bool) -> None:
    target = make()
    for number in range(40):
        device.broken = number >= 5 and not switched
        device.index = int(number >= 5 and switched)  # the device that the program works on has changed
        step(target, clock, device, 10)
        device.catch_up()
    assert header_of(target).timing == "failed"
    assert header_of(target).errors == _STRIKES
    assert len(steps_of(target)) == 40
    gc.collect()
    assert "destroyed" not in device.harm


def test_ends_on_streams_that_do_not_follow_each_other_are_left_out(
    make: Make, clock: HandClock, device: Device
) -> None:
    target = make()
    for number in range(12):
        device.stream = int(number == 5)
        if number == 4:
            device.work(500)
        step(target, clock, device, 10)
        if number != 4:
            device.catch_up()
    rows = device_s(target)
    assert rows[5] is None  # it ended before the step before did
    assert all(took is None or took > 0.0 for took in rows)
    assert rows[8] == pytest.approx(0.011, abs=0.002)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [("TRAINWARDEN_DEVICE_EVENTS", "off", "off"), ("CUDA_DEVICE_MAX_CONNECTIONS", "1", "single_queue")],
)
def test_where_they_would_do_harm_there_are_none(
    make: Make, clock: HandClock, device: Device, monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    target = make()
    for _ in range(4):
        step(target, clock, device, 10)
    assert (device.made, device.recorded) == (0, 0)
    assert header_of(target).timing == said
    assert header_of(target).accelerator == "cuda"


def test_a_torch_whose_events_cannot_be_made_is_left_alone(make: Make, clock: HandClock, device: Device) -> None:
    def broken(**said: object) -> object:
        raise RuntimeError("no events here")

    vars(broken)["elapsed_time"] = None
    device.Event = broken  # type: ignore[assignment]
    target = make()
    for _ in range(4):
        step(target, clock, device, 10)
    assert (header_of(target).timing, header_of(target).errors) == ("unsupported", 1)


def test_torchs_own_events_stand_in_where_a_device_has_none(
    make: Make, clock: HandClock, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, of = device.Event, []

    def event(**said: object) -> object:
        of.append(said.pop("device"))
        return kind(**said)

    event.elapsed_time = None  # type: ignore[attr-defined]
    del device.Event
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Event=event))  # type: ignore[arg-type]
    target = make()
    for _ in range(5):
        step(target, clock, device, 10)
        device.catch_up()
    assert set(of) == {"cuda"}
    assert header_of(target).timing == "on"
    assert device_s(target)[1] == pytest.approx(0.011, abs=0.002)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())  # type: ignore[arg-type]
    assert header_of(make()).timing == "unsupported"


def test_marks_of_the_script_end_steps_on_the_device_too(make: Make, clock: HandClock, device: Device) -> None:
    make()
    for _ in range(6):
        clock.pass_ms(1)
        device.work(10)
        hook.iteration()
        device.catch_up()
    target = hook.current()
    assert device_s(target)[2] == pytest.approx(0.010, abs=0.002)


def test_the_ring_keeps_what_the_device_says_of_the_newest_steps(make: Make, clock: HandClock, device: Device) -> None:
    target = make()
    for _ in range(2 * DEVICE_RING):
        step(target, clock, device, 10)
        device.catch_up()
    known = [took is not None for took in device_s(target)]
    assert known == [*[False] * (DEVICE_RING - LATE_STEPS), *[True] * DEVICE_RING, *[False] * LATE_STEPS]
    assert FILE_BYTES < 400_000


def test_a_process_without_a_device_has_no_events(make: Make, clock: HandClock) -> None:
    target = make()
    for _ in range(3):
        backward(target, clock, 1.0)
        target.ends.optimizer_stepped()
    assert target.steps.events is None
    assert header_of(target).timing == ""
    assert {row.device_s for row in steps_of(target)} == {None}
