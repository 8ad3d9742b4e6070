"""Minutes of launchers under delays, losses and kills drawn at random: nobody leads beside another.

`test_leases` lets Hypothesis choose every step; here the steps are those of a schedule, so that leases run out, are
renewed and handed on hundreds of times, and what is late meets what came after it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Final

import hypothesis.strategies as st
import pytest
from hypothesis import given

from actions.launchers.leases.client import LEAST_WAIT_S
from actions.launchers.leases.elector import LeaderElector, retry_s
from actions.launchers.leases.fence import Allegiance, EpochFence
from actions.launchers.leases.table import LeaseTable
from actions.launchers.leases.words import Answer, Ask
from tests.examples import examples

DURATION_S: Final = 6.0
LASTS_S: Final = 240.0


class Launcher:
    """A process of a node, begun anew under another name when it is killed; its clock runs a little wrong."""

    def __init__(self, number: int, random: Random) -> None:
        self.number, self.life = number, 0
        self.offset_s, self.rate = random.uniform(0.0, 1e4), random.choice([0.98, 1.0, 1.02])
        self.begin()

    def begin(self) -> None:
        self.life += 1
        self.elector = LeaderElector("job", f"n{self.number}/{self.life}", "")

    def s(self, true_s: float) -> float:
        return self.offset_s + self.rate * true_s


class Minutes:
    """Events in the order of their times; `led` are the epochs that a node obeyed, in that order."""

    def __init__(self, seed: int, *, troubled: bool) -> None:
        self.random, self.troubled = Random(seed), troubled
        self.true_s, self.led = 0.0, [0]
        self.fence, self.holders = EpochFence(), dict[int, str]()
        self.without_s = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.count = 0
        self.service_rate = self.random.choice([0.98, 1.0, 1.02])
        self.launchers = [Launcher(number, self.random) for number in range(3)]
        self.restart_service()
        for one in self.launchers:
            self.after(self.random.uniform(0.0, 1.0), lambda one=one: self.ask(one, one.life))
        if troubled:
            self.after(self.random.expovariate(1 / 10), self.kill_service)
            self.after(self.random.expovariate(1 / 15), self.kill_launcher)

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (self.true_s + seconds, self.count, event))

    def run(self) -> None:
        while self.events and self.true_s < LASTS_S:
            before_s = self.true_s
            self.true_s, _, event = heapq.heappop(self.events)
            if not self.leaders() and before_s > DURATION_S + 1.0:
                self.without_s += self.true_s - before_s
            event()
            leaders = self.leaders()
            assert len(leaders) <= 1, f"at {self.true_s}: {[one.elector.newest for one in leaders]}"
            for one in leaders:
                self.command(one)

    def command(self, one: Launcher) -> None:
        """The leader commands a node, which outlives it: only that one knows an epoch that was told to nobody else."""
        newest, now_s = one.elector.newest, one.s(self.true_s)
        assert newest is not None
        sender = Allegiance(epoch=newest.epoch, holder=newest.holder)
        if not self.fence.admit(sender, left_s=one.elector.left_s(now_s), now_s=self.true_s):
            obeyed = self.fence.allegiance
            assert obeyed is not None
            one.elector.fenced(obeyed.epoch)
            return
        assert newest.epoch >= self.led[-1], f"at {self.true_s}"
        assert self.holders.setdefault(newest.epoch, newest.holder) == newest.holder, f"at {self.true_s}"
        self.led.append(newest.epoch)

    def leaders(self) -> list[Launcher]:
        return [one for one in self.launchers if one.elector.leads(one.s(self.true_s))]

    def under_way_s(self) -> float:
        """How long something takes: mostly nothing, now and then longer than a lease lasts."""
        if not self.troubled or self.random.random() < 0.6:
            return 0.001
        return self.random.uniform(0.0, self.random.choice([1.0, 4.0, 9.0]))

    def is_lost(self) -> bool:
        return self.troubled and self.random.random() < 0.15

    def restart_service(self) -> None:
        self.table = LeaseTable(DURATION_S, self.service_rate * self.true_s)

    def kill_service(self) -> None:
        self.restart_service()
        self.after(self.random.expovariate(1 / 10), self.kill_service)

    def kill_launcher(self) -> None:
        one = self.random.choice(self.launchers)
        one.begin()
        self.after(0.1, lambda: self.ask(one, one.life))
        self.after(self.random.expovariate(1 / 15), self.kill_launcher)

    def ask(self, one: Launcher, life: int) -> None:
        """Asked as by `LeaseKeeper`, but without waiting for the answer before."""
        if one.life != life:
            return
        sent_s = one.s(self.true_s)
        resigns = self.random.random() < 0.02 and self.troubled
        said = one.elector.resign(sent_s) if resigns else None
        question = said or one.elector.ask(sent_s)
        if not self.is_lost():
            self.after(self.under_way_s(), lambda: self.serve(one, life, sent_s, question))
        self.after(retry_s(DURATION_S), lambda: self.ask(one, life))

    def serve(self, one: Launcher, life: int, sent_s: float, question: Ask) -> None:
        answer = self.table.answer(question, self.service_rate * self.true_s)
        if not self.is_lost():
            self.after(self.under_way_s(), lambda: self.hear(one, life, sent_s, answer))

    def hear(self, one: Launcher, life: int, sent_s: float, answer: Answer) -> None:
        if one.life != life:
            return
        one.elector.hear(answer, sent_s=sent_s, now_s=one.s(self.true_s))
        if self.troubled and not one.elector.leads(one.s(self.true_s)) and answer.wait_s > 0:
            self.after(max(answer.wait_s, LEAST_WAIT_S), lambda: self.once_more(one, life))

    def once_more(self, one: Launcher, life: int) -> None:
        """What waited for the end of another's lease asks at that very moment."""
        if one.life == life:
            sent_s = one.s(self.true_s)
            question = one.elector.ask(sent_s)
            self.after(self.under_way_s(), lambda: self.serve(one, life, sent_s, question))


@pytest.mark.thorough
@examples(60)
@given(seed=st.integers(0, 2**32))
def test_nobody_leads_beside_another_and_epochs_never_fall(seed: int) -> None:
    minutes = Minutes(seed, troubled=True)
    minutes.run()
    assert len(set(minutes.led)) > 3


@pytest.mark.parametrize("seed", range(5))
def test_without_trouble_one_leads_from_the_first_lease_on(seed: int) -> None:
    minutes = Minutes(seed, troubled=False)
    minutes.run()
    assert set(minutes.led) == {0, 1}
    assert minutes.without_s < 1.0
