"""The engine comes and goes with the first rank, and nothing waits for it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.doubles import ManualClock
from trainwarden.cli.shared.engine_beside import EngineBeside


class Stack:
    """A stack whose one service ends when it is told to, if it is not `stubborn`."""

    def __init__(self) -> None:
        self.starts, self.full, self.stubborn = 0, False, False
        self.asked: list[str] = []
        self.code: int | None = None

    def start(self, _service: str) -> None:
        if self.full:
            raise OSError("no process slot")
        self.starts, self.code = self.starts + 1, None

    def returncode(self, _service: str) -> int | None:
        return self.code

    def ask_to_stop(self, _service: str) -> None:
        self.asked.append("stop")
        self.code = None if self.stubborn else 0

    def kill(self, _service: str) -> None:
        self.asked.append("kill")
        self.code = -9


class Rig:
    def __init__(self) -> None:
        self.stack, self.clock, self.lead = Stack(), ManualClock(100.0), True
        stack: Any = self.stack
        self.engine = EngineBeside(stack, lambda: self.lead, self.clock)

    def pass_s(self, seconds: float) -> None:
        for _ in range(int(seconds * 20)):
            self.clock.sleep(0.05)
            self.engine.tend()


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_it_is_there_with_the_first_rank_and_gone_with_it(rig: Rig) -> None:
    rig.lead = False
    rig.pass_s(10.0)
    assert rig.stack.starts == 0
    rig.lead = True
    rig.pass_s(10.0)
    assert (rig.stack.starts, rig.stack.asked) == (1, [])
    rig.lead = False
    rig.pass_s(10.0)
    assert (rig.stack.starts, rig.stack.asked) == (1, ["stop"])


def test_one_that_is_killed_is_started_again_and_one_that_cannot_run_not_without_end(rig: Rig) -> None:
    rig.pass_s(6.0)
    rig.stack.code = -9
    rig.pass_s(0.1)
    assert rig.stack.starts == 2
    for _ in range(100):
        rig.stack.code = 2
        rig.pass_s(0.5)
    assert rig.stack.starts in (11, 12)  # in 50 s, one each 5 s


def test_one_that_does_not_end_is_killed_and_another_waits_for_that(rig: Rig) -> None:
    rig.pass_s(6.0)
    rig.stack.stubborn, rig.lead = True, False
    rig.pass_s(1.0)
    rig.lead = True
    rig.pass_s(6.0)
    assert (rig.stack.starts, rig.stack.asked) == (1, ["stop"])
    rig.pass_s(2.0)
    assert (rig.stack.starts, rig.stack.asked) == (2, ["stop", "kill"])


def test_a_machine_that_is_full_ends_no_launcher(rig: Rig) -> None:
    rig.stack.full = True
    rig.pass_s(6.0)
    rig.stack.full = False
    rig.pass_s(6.0)
    assert rig.stack.starts == 1
