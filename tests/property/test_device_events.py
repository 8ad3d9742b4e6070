"""Events of a device under any mixture of late devices, captures, failures and streams: true or unknown, never harm."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.device_doubles import Device, group
from tests.hook_doubles import HandClock, Replica, engine_backward, header_of, steps_of
from tests.unit.trainwarden.hook.conftest import clock, make
from trainwarden.hook import Hook

__all__ = ["clock", "make"]

STEP = st.tuples(
    st.integers(1, 30),  # ms of work
    st.integers(0, 10),  # ms of waiting for gradients
    st.sampled_from(["", "", "", "", "capture", "broken", "switched", "stream", "twice"]),
    st.booleans(),  # the host waits for the device at the end of the step
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(STEP, max_size=60))
def test_what_is_told_is_true(
    make: Callable[..., Hook],
    clock: HandClock,
    monkeypatch: pytest.MonkeyPatch,
    steps: list[tuple[int, int, str, bool]],
) -> None:
    device = Device(clock)
    monkeypatch.setitem(sys.modules, "torch.cuda", device)  # type: ignore[arg-type]
    for name in ("CUDA_DEVICE_MAX_CONNECTIONS", "TRAINWARDEN_DEVICE_EVENTS"):
        monkeypatch.delenv(name, raising=False)
    target, replica = make(world=4), Replica()
    replica.process_group = group(4)  # type: ignore[attr-defined]
    target.backward.replicas.add(replica)
    ends, waits = [0], []
    for work_ms, wait_ms, what, waited in steps:
        device.capturing, device.broken = what == "capture", what == "broken"
        device.index, device.stream = int(what == "switched"), int(what == "stream")
        device.work(work_ms)
        for _ in range(2 if what == "twice" else 1):
            engine_backward(target, clock, lambda wait_ms=wait_ms: device.work(wait_ms))  # type: ignore[misc]
        target.ends.optimizer_stepped()
        ends.append(max(device.ready_ns.get(device.stream, 0), clock()))
        waits.append(wait_ms)
        if waited:
            device.catch_up()
    rows = steps_of(target)
    assert len(rows) == len(steps)
    for row in rows:
        if row.device_s is not None:
            assert row.device_s == pytest.approx((ends[row.serial] - ends[row.serial - 1]) / 1e9, abs=1e-6)
        if row.device_wait_s is not None:
            assert row.device_wait_s == pytest.approx(waits[row.serial - 1] / 1e3, abs=1e-6)
    assert device.harm == []
    assert header_of(target).timing == "on" or header_of(target).errors >= 8
