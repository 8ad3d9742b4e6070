"""Leases under everything that a network and a kill can do: nobody leads beside another, and epochs never fall.

Three launchers, each with a clock of its own that runs a little wrong, ask a lease service that is killed and begins
with nothing; questions, answers and commands are late, lost or overtake each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from actions.launchers.leases.elector import LeaderElector, retry_s
from actions.launchers.leases.fence import Allegiance, EpochFence
from actions.launchers.leases.table import LeaseTable
from actions.launchers.leases.words import Answer, Ask
from tests.examples import examples

pytestmark = pytest.mark.thorough

DURATION_S: Final = 6.0
NODES: Final = 3
NODE = st.integers(0, NODES - 1)
ANY = st.integers(0, 1_000)
FATE = st.sampled_from(["answered", "answered", "answered", "late question", "late answer", "answer lost", "lost"])
RATE = st.sampled_from([0.99, 1.0, 1.01])  # a hundred times worse than real ones; the margin is a third


@dataclass
class Watch:
    """A clock that began anywhere and runs at `rate`."""

    offset_s: float
    rate: float

    def s(self, true_s: float) -> float:
        return self.offset_s + self.rate * true_s


@dataclass
class Launcher:
    """One launcher process of a node; the fence is the node's and outlives it."""

    number: int
    watch: Watch
    fence: EpochFence = field(default_factory=EpochFence)
    life: int = 0
    epochs: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.life += 1
        self.elector = LeaderElector("job", f"n{self.number}/{self.life}", f"n{self.number}:7000")

    @property
    def own(self) -> Allegiance:
        assert self.elector.newest is not None
        return Allegiance(epoch=self.elector.newest.epoch, holder=self.elector.newest.holder)


class Leases(RuleBasedStateMachine):
    """What is in flight is taken from the lists in any order."""

    services: ClassVar[int] = 1

    def __init__(self) -> None:
        super().__init__()
        self.true_s = 0.0
        self.asked: list[tuple[Launcher, int, float, Ask, int]] = []
        self.answered: list[tuple[Launcher, int, float, Answer]] = []
        self.commands: list[tuple[Launcher, int, Launcher, Allegiance, float]] = []

    @initialize(rates=st.lists(RATE, min_size=NODES + 2, max_size=NODES + 2))
    def begin(self, rates: list[float]) -> None:
        self.launchers = [Launcher(number, Watch(1e3 * number, rates[number])) for number in range(NODES)]
        self.watches = [Watch(77.0 * number, rate) for number, rate in enumerate(rates[NODES : NODES + self.services])]
        self.begun_s = [watch.s(0.0) for watch in self.watches]
        self.tables = [LeaseTable(DURATION_S, self.begun_s[number]) for number in range(self.services)]

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0, 3.9, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.true_s += seconds

    @rule(which=ANY, off_s=st.sampled_from([-0.001, 0.001]))
    def time_passes_to_an_end(self, which: int, off_s: float) -> None:
        """To just before or after a lease is over by somebody's clock, or a new service may grant."""
        watches = [one.watch.rate for one in self.launchers]
        ends = [one.elector.left_s(one.watch.s(self.true_s)) for one in self.launchers]
        for number, (table, watch) in enumerate(zip(self.tables, self.watches, strict=True)):
            standing = table.standing(watch.s(self.true_s))
            ends += [left_s for _, left_s in standing.values()]
            ends.append(self.begun_s[number] + DURATION_S - watch.s(self.true_s))
            watches += [watch.rate] * (len(standing) + 1)
        waits = [left_s / rate for left_s, rate in zip(ends, watches, strict=True) if left_s > 0]
        if waits:
            self.true_s += max(0.0, waits[which % len(waits)] + off_s)

    @rule(service=st.integers(0, 1), fate=FATE)
    def the_leader_asks(self, service: int, fate: str) -> None:
        for one in self.launchers:
            if one.elector.leads(one.watch.s(self.true_s)):
                self.a_launcher_asks(one.number, service, fate)

    @rule(node=NODE, service=st.integers(0, 1), fate=FATE)
    def a_launcher_asks(self, node: int, service: int, fate: str) -> None:
        one = self.launchers[node]
        now_s = one.watch.s(self.true_s)
        self.send(one, now_s, one.elector.ask(now_s), service % self.services, fate)

    @rule(node=NODE, fate=FATE)
    def a_leader_resigns(self, node: int, fate: str) -> None:
        one = self.launchers[node]
        now_s = one.watch.s(self.true_s)
        if (said := one.elector.resign(now_s)) is not None:
            self.send(one, now_s, said, 0, fate)

    def send(self, one: Launcher, now_s: float, ask: Ask, service: int, fate: str) -> None:
        if fate == "lost":
            return
        self.asked.append((one, one.life, now_s, ask, service))
        if fate != "late question":
            self.serve(-1)
            if fate == "answer lost":
                self.answered.pop()
            elif fate == "answered":
                self.take(-1)

    @rule(which=ANY)
    def a_late_question_arrives(self, which: int) -> None:
        if self.asked:
            self.serve(which % len(self.asked))
            self.take(-1)

    def serve(self, which: int) -> None:
        one, life, sent_s, ask, service = self.asked.pop(which)
        answer = self.tables[service].answer(ask, self.watches[service].s(self.true_s))
        self.answered.append((one, life, sent_s, answer))

    @rule(which=ANY)
    def a_late_answer_arrives(self, which: int) -> None:
        if self.answered:
            self.take(which % len(self.answered))

    def take(self, which: int) -> None:
        one, life, sent_s, answer = self.answered.pop(which)
        if life == one.life:
            one.elector.hear(answer, sent_s=sent_s, now_s=one.watch.s(self.true_s))

    @rule(service=st.integers(0, 1))
    def the_service_is_killed(self, service: int) -> None:
        """Another one begins at once and knows nothing; questions on their way come to it."""
        number = service % self.services
        self.begun_s[number] = self.watches[number].s(self.true_s)
        self.tables[number] = LeaseTable(DURATION_S, self.begun_s[number])

    @rule(node=NODE)
    def a_launcher_is_killed(self, node: int) -> None:
        self.launchers[node].begin()

    @rule(node=NODE, to=NODE, late=st.booleans())
    def a_leader_commands(self, node: int, to: int, late: bool) -> None:
        one = self.launchers[node]
        now_s = one.watch.s(self.true_s)
        if one.elector.leads(now_s):
            self.commands.append((one, one.life, self.launchers[to], one.own, one.elector.left_s(now_s)))
            if not late:
                self.obey(-1)

    @rule(which=ANY)
    def a_late_command_arrives(self, which: int) -> None:
        if self.commands:
            self.obey(which % len(self.commands))

    def obey(self, which: int) -> None:
        one, life, other, sender, left_s = self.commands.pop(which)
        admitted = other.fence.admit(sender, left_s=left_s, now_s=other.watch.s(self.true_s))
        obeyed = other.fence.allegiance
        assert obeyed is not None
        other.epochs.append(obeyed.epoch)
        assert (obeyed == sender) == admitted
        if not admitted and obeyed.epoch >= sender.epoch and life == one.life and one.own == sender:
            one.elector.fenced(obeyed.epoch)

    @rule()
    def all_is_well_for_a_while(self) -> None:
        """Then somebody leads, all obey, and it stays so."""
        self.asked.clear()
        self.answered.clear()
        self.commands.clear()
        leaders = []
        step_s = retry_s(DURATION_S)
        for _ in range(round(4 * DURATION_S / step_s)):
            for number, one in enumerate(self.launchers):
                self.a_launcher_asks(number, 0, "answered")
                if one.elector.leads(one.watch.s(self.true_s)):
                    for to in range(NODES):
                        self.a_leader_commands(number, to, late=False)
            self.true_s += step_s
            leaders.append([one.own for one in self.launchers if one.elector.leads(one.watch.s(self.true_s))])
            self.nobody_leads_beside_another()
        late = leaders[-round(DURATION_S / step_s) :]
        if self.services == 1:
            assert all(len(now) == 1 and now == late[0] for now in late), leaders
        (leader,) = late[-1]
        assert {one.fence.allegiance for one in self.launchers} == {leader}

    @invariant()
    def nobody_leads_beside_another(self) -> None:
        leaders = [one for one in self.launchers if one.elector.leads(one.watch.s(self.true_s))]
        if self.services == 1:
            assert len(leaders) <= 1

    @invariant()
    def epochs_never_fall_on_a_node(self) -> None:
        for one in self.launchers:
            assert one.epochs == sorted(one.epochs)


class TwoServices(Leases):
    """Two services that know nothing of each other, asked by anybody: the nodes keep all but one leader from acting."""

    services = 2

    @rule(node=NODE)
    def a_leader_that_is_heard_of_keeps_its_nodes(self, node: int) -> None:
        """As long as it goes on, nobody whom another service has granted a higher epoch gets one of them."""
        one = self.launchers[node]
        if not one.elector.leads(one.watch.s(self.true_s)):
            return
        for to in range(NODES):
            self.a_leader_commands(node, to, late=False)
        mine = [other for other in self.launchers if other.fence.allegiance == one.own]
        for other in mine:
            stranger = Allegiance(epoch=one.own.epoch + 5, holder="stranger")
            assert not other.fence.admit(stranger, left_s=4.0, now_s=other.watch.s(self.true_s))


TestLeases = Leases.TestCase
TestLeases.settings = examples(300)
TestTwoServices = TwoServices.TestCase
TestTwoServices.settings = examples(200)
