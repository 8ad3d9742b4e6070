"""Hooks that live in the test's own process and leave it alone once the test is over."""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hook_doubles import HandClock, set_everywhere
from trainwarden.hook import Hook


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    clock = HandClock()
    set_everywhere(monkeypatch, "clock", clock)
    return clock


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: HandClock) -> Iterator[Callable[..., Hook]]:
    """Hooks that leave this very process alone once the test is over."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(sys, "exit", sys.exit)
    for name in ("enable", "disable", "is_enabled"):
        monkeypatch.setattr(faulthandler, name, getattr(faulthandler, name))
    made: list[Hook] = []

    def build(rank: int = 0, world: int = 2) -> Hook:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world))
        built = Hook(str(tmp_path))
        built.missing = []  # torch may be here by another test: it is not to be touched
        monkeypatch.setitem(vars(sys), "_trainwarden_hook", built)
        built.activate()
        # The time of day is the hand clock's, so that every number of a test is known.
        began = clock()
        built.steps.mark = (began, 0, 0, 0)
        made.append(built)
        return built

    yield build
    for built in made:
        built.memory.live, built.memory.off = False, True
        if built.requests.pipe >= 0:
            os.write(built.requests.pipe, b"!")  # its thread sees that it is over
