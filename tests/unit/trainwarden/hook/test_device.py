"""What the hook says of a device that works behind the host's back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.hook_doubles import HandClock, backward, header_of
from trainwarden.hook import Hook


def module(at_work: Any = True) -> Any:
    return SimpleNamespace(is_initialized=lambda: at_work)


@pytest.mark.parametrize(("name", "said"), [("cuda", "cuda"), ("xpu", "xpu"), ("npu", "npu"), ("mine", "other")])
def test_what_is_at_work_stands_in_the_header(
    make: Callable[..., Hook], monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.setitem(sys.modules, f"torch.{name}", module())
    monkeypatch.setitem(
        sys.modules, "torch._C", SimpleNamespace(_get_privateuse1_backend_name=lambda: "mine")
    )  # a backend from outside torch has a name of its own
    assert header_of(make()).accelerator == said


def test_a_device_that_comes_late_is_seen(
    make: Callable[..., Hook], monkeypatch: pytest.MonkeyPatch, clock: HandClock
) -> None:
    for steps in (3, 1024 + 16):
        monkeypatch.delitem(sys.modules, "torch.cuda", raising=False)
        target = make()
        for _ in range(steps):
            backward(target, clock, 1.0)
            target.ends.optimizer_stepped()
        assert header_of(target).accelerator == ""
        monkeypatch.setitem(sys.modules, "torch.cuda", module())
        for _ in range(1024 if steps > 64 else 1):
            backward(target, clock, 1.0)
            target.ends.optimizer_stepped()
        assert header_of(target).accelerator == "cuda"


def test_nothing_is_initialised_and_nothing_breaks(make: Callable[..., Hook], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> bool:
        raise RuntimeError("CUDA error")

    for asked in (module(False), SimpleNamespace(), SimpleNamespace(is_initialized=broken), None):
        monkeypatch.setitem(sys.modules, "torch.cuda", asked)
        assert header_of(make()).accelerator == ""
