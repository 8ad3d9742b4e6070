"""Two engines of one group, each a service loop around the real handler, killed and stopped at any of their calls."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from tests.chaos.bus import ChaosBus, ChaosLog
from tests.chaos.history import Call
from tests.chaos.platform import Platform, Wire
from trainwarden.actions.engine.handler import EngineHandler
from trainwarden.actions.remedies.policy import Rules
from trainwarden.launching import Operation
from trainwarden.self_metrics import SelfMetrics
from trainwarden.service_loop import ServiceLoop

FURTHEST: Final = 60  # calls until an engine that is to be killed is
FIRST: Final = 6  # calls in which an engine that is killed as it starts is
AT_START: Final = 0.25  # share of engines that are killed as they start
MEANWHILE: Final = 0.01  # share of an engine's calls during which the other one has a round


class Killed(BaseException):
    """kill -9 of an engine."""


class EngineClock:
    """An engine's own, a little apart; nobody waits."""

    def __init__(self, now_s: Callable[[], float], offset_s: float) -> None:
        self._now_s, self._offset_s = now_s, offset_s
        self.ahead_s = 0.0  # for one round

    def now_s(self) -> float:
        return self._now_s() + self._offset_s + self.ahead_s

    def monotonic_s(self) -> float:
        return self._now_s()

    def sleep(self, seconds: float) -> None:
        return None


class Engine:
    """One engine's place; its process is another one after each kill."""

    def __init__(
        self, rules: Rules, log: ChaosLog, platform: Platform, random: Random, asked: Callable[[Operation], Call]
    ) -> None:
        self._rules, self._log, self._platform, self._random, self._asked = rules, log, platform, random, asked
        self.clock = EngineClock(log.now_s, random.uniform(-2.0, 2.0))
        self.back_s = float("-inf")  # killed, or standing still, until then
        self.cut_until_s = float("-inf")  # from bus and launcher
        self.dies_in: int | None = None
        self.meanwhile: Callable[[], None] | None = None
        self._inside = False
        self.start()

    def start(self) -> None:
        bus = ChaosBus(self._log, self._point, self._is_cut_off)
        self.wire = Wire(self._platform, self._point, self._asked, self._is_cut_off)
        self.wire.calm = self._log.calm
        metrics = SelfMetrics("engine")
        handler = EngineHandler(self._rules, self.wire, self.clock, metrics)
        self.loop = ServiceLoop(bus, handler, self.clock, metrics)

    def kill_soon(self) -> None:
        """It dies at one of its next calls of bus or launcher."""
        self.dies_in = self._random.randrange(FURTHEST)

    def stand_still(self, seconds: float) -> None:
        self.back_s = self._log.now_s() + seconds

    def _is_cut_off(self) -> bool:
        return self._log.now_s() < self.cut_until_s

    def _point(self) -> None:
        if self.dies_in is not None:
            self.dies_in -= 1
            if self.dies_in < 0:
                self.dies_in = None
                raise Killed
        if self.meanwhile is not None and not self._log.calm and self._random.random() < MEANWHILE:
            self.meanwhile()

    def step(self) -> None:
        """One round, if it lives and is not in the midst of one."""
        if self._inside or self._log.now_s() < self.back_s:
            return
        self._inside = True
        try:
            self.loop.step()
        except Killed:
            self._platform.history.faults["engine killed"] += 1
            self.back_s = self._log.now_s() + self._random.choice((0.0, 1.0, 5.0, 20.0))
            self.start()
            if not self._log.calm and self._random.random() < AT_START:
                self.dies_in = self._random.randrange(FIRST)
        finally:
            self._inside, self.clock.ahead_s = False, 0.0
