"""Whatever happens in whatever order, to however many engines: no brake is ever broken."""

from __future__ import annotations

import math
import random
from collections import Counter

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from tests.engine_doubles import Killed, Rig
from tests.examples import examples
from trainwarden.launching import Capabilities, NodeState
from trainwarden.records import CommandRecord, IncidentRecord, Suspect
from trainwarden.topics import COMMANDS, INCIDENTS

JOBS = ("a", "b", "c")
NODES = 8
WITHIN_S, LEAST_SHARE = 3600.0, 0.5
SEEN: Counter[str] = Counter()
MORNING = {"from_utc": "02:00", "to_utc": "12:00"}


class Engines:
    """Two engines, one launcher, three jobs; the launcher checks every brake at each operation that reaches it.

    A history is drawn from one number: rules of a state machine that are drawn one by one come to hardly any eviction.
    """

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.at_most, self.share, self.budget = (
            self.draw.choice([1, 3]),
            self.draw.choice([0.1, 0.3]),
            self.draw.choice([1, 9]),
        )
        limits = {
            "at_most": self.at_most,
            "share": self.share,
            "within_s": WITHIN_S,
            "least_healthy_share": LEAST_SHARE,
        }
        policy = {"nodes": limits, "maintenance": [MORNING]}
        self.confirm = self.draw.random() < 0.3
        first = Rig(
            mode="confirm" if self.confirm else "auto", actions_per_hour=self.budget, cool_down_s=0.0, policy=policy
        )
        first.bus.elsewhere = frozenset({"b"})
        first.launcher.able = Capabilities(can=frozenset({"evict"}))
        first.launcher.phase = "running"
        for job in JOBS:
            first.launcher.nodes[job] = tuple(NodeState(node=f"{job}{number}") for number in range(NODES))
        first.restart_engine()
        self.rigs, self.launcher = (first, first.beside()), first.launcher
        self.launcher.before = self._arrives
        self.taken: list[tuple[float, str, str]] = []  # when, job, node
        self.incidents: dict[str, IncidentRecord] = {}
        self.latched: set[str] = set()
        self.kill_next, self.stopped, self.number = False, False, 0

    def step(self) -> None:
        """One thing that happens."""
        (what,) = self.draw.choices(
            [
                self.tick, self.a_device_is_lost, self.an_incident_goes_on_or_ends, self.nodes_change,
                self.a_person_speaks, self.a_person_approves_all, self.kill_at_the_next_call, self.restart,
            ],
            [12, 6, 4, 1, 1, 3, 1, 1],
        )  # fmt: skip
        what()

    @property
    def now_s(self) -> float:
        return self.rigs[0].clock.now_s()

    def _arrives(self) -> None:
        """An engine is about to ask for something: by which brakes it may."""
        if self.kill_next:
            self.kill_next = False
            raise Killed
        assert not self.stopped
        if not self.confirm:
            assert not 7200.0 <= self.now_s % 86_400.0 < 43_200.0

    def _check(self) -> None:
        """What was taken out, with what was taken out before it."""
        known = len(self.taken)
        for operation in self.launcher.operations[known:]:
            (node,) = operation.targets.nodes
            assert not self.latched & {"*", operation.job}
            others = [one for one in self.launcher.nodes[operation.job] if one.node != node]
            assert sum(one.state == "healthy" for one in others) >= math.ceil(LEAST_SHARE * len(others))
            self.taken.append((self.now_s, operation.job, node))
        recent = [one for one in self.taken if one[0] > self.now_s - WITHIN_S]
        assert len({node for _, _, node in recent}) <= self.at_most
        for job in JOBS:
            assert len({node for _, of, node in recent if of == job}) <= math.ceil(self.share * NODES)
            assert sum(of == job for _, of, _ in recent) <= self.budget
        said = [message.record for message in self.rigs[0].bus.read(COMMANDS)]
        self.latched = set()
        for one in said:
            if isinstance(one, CommandRecord) and one.kind == "latch":
                self.latched.add(one.job)
            elif isinstance(one, CommandRecord) and one.kind == "reset":
                self.latched = set() if one.job == "*" else self.latched - {one.job}

    def _tick(self, which: int) -> None:
        try:
            self.rigs[which].tick()
        except Killed:
            self.rigs[which].restart_engine()

    def tick(self) -> None:
        self.rigs[0].clock.sleep(self.draw.choice([0.0, 1.0, 1.0, 100.0, 3601.0, 20_000.0]))
        which = self.draw.randrange(2)
        if self.draw.random() < 0.5:  # the other engine thinks at the moment at which this one writes that it has begun
            self.rigs[which].bus.before_flush = lambda: self._tick(1 - which)
        self._tick(which)
        self.rigs[which].bus.before_flush = None
        self._check()

    def a_device_is_lost(self) -> None:
        self.number += 1
        job = self.draw.choice(JOBS)
        suspects = (Suspect(score=1.0, reason="Xid 79", node=f"{job}{self.draw.randrange(NODES)}"),)
        incident = self.rigs[0].incident(f"i{self.number}", "gpu_lost", suspects=suspects)
        self._say(msgspec.structs.replace(incident, job=job))

    def _say(self, incident: IncidentRecord) -> None:
        self.incidents[incident.id] = incident
        self.rigs[0].bus.publish(INCIDENTS, incident.job, incident)
        self.rigs[0].bus.flush()
        for rig in self.rigs:
            list(rig.engine.handle(rig.consumer.poll(0.0)))

    def an_incident_goes_on_or_ends(self) -> None:
        known = [one for one in self.incidents.values() if one.state != "closed"]
        if known:
            one = self.draw.choice(known)
            self._say(self.rigs[0].closed(one) if self.draw.random() < 0.7 else self.rigs[0].later(one))

    def nodes_change(self) -> None:
        job, state = self.draw.choice(JOBS), self.draw.choice(["healthy", "healthy", "lost", "cordoned", "suspect"])
        few = self.draw.sample(range(NODES), self.draw.randrange(6))
        self.launcher.nodes[job] = tuple(
            msgspec.structs.replace(one, state=state) if place in few else one
            for place, one in enumerate(self.launcher.nodes[job])
        )
        for rig in self.rigs:  # a launcher is believed for half a second
            rig.engine._calls.forget_state(job)

    def a_person_speaks(self) -> None:
        kind = self.draw.choice(["stop", "resume", "resume", "reset", "reset", "reset"])
        job = self.draw.choice(["*", *JOBS]) if kind == "reset" else "*"
        self.stopped = kind == "stop" or (self.stopped and kind != "resume")
        command = CommandRecord(id=f"c{self.number}", job=job, at_s=self.now_s, kind=kind, by="ann")
        self.rigs[0].bus.publish(COMMANDS, job, command)
        self.rigs[0].bus.flush()
        self._check()

    def a_person_approves_all(self) -> None:
        shown = {record.id: record for record in self.rigs[0].bus.actions()}
        for action in shown.values():
            if action.outcome == "proposed":
                self.rigs[0].bus.publish(COMMANDS, action.job, self.rigs[0].command("approve", action.id, action.job))
        self.rigs[0].bus.flush()

    def kill_at_the_next_call(self) -> None:
        self.kill_next = True

    def restart(self) -> None:
        self.rigs[self.draw.randrange(2)].restart_engine()


@pytest.mark.thorough
@settings(examples(120))
@given(seed=st.integers(0, 2**32))
def test_no_brake_is_ever_broken(seed: int) -> None:
    engines = Engines(seed)
    for _ in range(100):
        engines.step()
    SEEN.update({"taken": len(engines.taken), "latched": bool(engines.latched)})


@pytest.mark.thorough
def test_the_histories_drawn_come_to_the_brakes() -> None:
    """Else the test above would show nothing."""
    for seed in range(15):
        test_no_brake_is_ever_broken.hypothesis.inner_test(seed)
    assert SEEN["taken"] > 20
    assert SEEN["latched"] > 3
