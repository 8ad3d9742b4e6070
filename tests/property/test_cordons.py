"""Words on nodes through two jobs and two engines, whatever is killed, away, slow or stopped: the newest is obeyed."""

from __future__ import annotations

import random
from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tests.engine_doubles import Killed, Rig
from tests.examples import examples
from tests.memory_launcher import ALONE
from trainwarden.commands.builders import on_job, on_node
from trainwarden.launching import Capabilities, NodeState
from trainwarden.records import CommandRecord
from trainwarden.topics import COMMANDS

NODES = ("n0", "n1", "n2")
PATIENCE_S = 86_400.0  # nothing is given up here: what the engine has given up, the launcher may still do


class Hall:
    """A history drawn from one number."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        patience = {
            "launcher_deadline_s": PATIENCE_S, "stale_s": PATIENCE_S,
            "operation_deadline_s": {"cordon": PATIENCE_S, "uncordon": PATIENCE_S},
        }  # fmt: skip
        first = Rig(mode="confirm", policy=patience)
        first.bus.elsewhere = frozenset({"b"})
        self.launcher, self.bus, self.clock = first.launcher, first.bus, first.clock
        self.launcher.able, self.launcher.phase = Capabilities(can=ALONE), "running"
        self.launcher.slow = self.draw.random() < 0.5
        for job in "ab":
            self.launcher.nodes[job] = tuple(NodeState(node=node) for node in NODES)
        first.restart_engine()
        self.rigs = (first, first.beside())
        self.words: list[CommandRecord] = []
        self.kill_next = self.stopped = False
        self.launcher.before = self._arrives

    def _arrives(self) -> None:
        if self.kill_next:
            self.kill_next = False
            raise Killed
        assert not self.stopped

    def say(self, command: CommandRecord) -> None:
        self.bus.publish(COMMANDS, command.job, command)
        self.bus.flush()

    def tick(self, which: int) -> None:
        rig = self.rigs[which]
        try:
            list(rig.engine.handle(rig.consumer.poll(0.0)))
            rig.tick()
        except Killed:
            rig.restart_engine()

    def step(self) -> None:
        """One thing that happens."""
        (what,) = self.draw.choices(
            [self.both, self.a_word, self.a_kill, self.the_launcher, self.a_stop, self.a_restart, self.an_end],
            [50, 20, 5, 5, 5, 5, 10],
        )
        what()
        busy = Counter(operation.targets.nodes for operation in self.launcher._under_way.values())
        assert set(busy.values()) <= {1}

    def both(self) -> None:
        self.clock.sleep(self.draw.choice([0.0, 0.5, 2.0, 15.0]))
        which = self.draw.randrange(2)
        if self.draw.random() < 0.3:  # the other thinks at the moment at which this one writes that it has begun
            self.rigs[which].bus.before_flush = lambda: self.tick(1 - which)
        self.tick(which)
        self.rigs[which].bus.before_flush = None

    def a_word(self) -> None:
        word, node, job = self.draw.choice(["cordon", "uncordon"]), self.draw.choice(NODES), self.draw.choice("ab")
        self.words.append(on_node(word, node, job, "ann", at_s=self.clock.now_s()))  # type: ignore[arg-type]
        self.say(self.words[-1])

    def a_kill(self) -> None:
        self.kill_next = True

    def the_launcher(self) -> None:
        self.launcher.unreachable = not self.launcher.unreachable

    def a_stop(self) -> None:
        self.stopped = self.draw.random() < 0.3
        self.say(on_job("stop" if self.stopped else "resume", None, "bob", 0.0))

    def a_restart(self) -> None:
        self.rigs[self.draw.randrange(2)].restart_engine()

    def an_end(self) -> None:
        for name in list(self.launcher._under_way)[:1]:
            self.launcher.finish(name)

    def quiet(self) -> None:
        """All that was in the way is gone."""
        self.launcher.unreachable = self.launcher.slow = self.kill_next = self.stopped = False
        self.say(on_job("resume", None, "bob", 0.0))
        for _ in range(30):
            while self.launcher._under_way:
                self.an_end()
            self.clock.sleep(12.0)
            self.tick(0)
            self.tick(1)


@pytest.mark.thorough
@settings(examples(80))
@given(seed=st.integers(0, 2**32))
def test_the_newest_word_on_a_node_is_obeyed_and_none_is_carried_out_twice(seed: int) -> None:
    hall = Hall(seed)
    for _ in range(100):
        hall.step()
    hall.quiet()
    newest = {word.node: word.kind for word in hall.words}
    assert hall.launcher.cordoned == {node for node, kind in newest.items() if kind == "cordon"}
    story = hall.rigs[0].story()
    assert set(Counter(name for name, outcome in story if outcome == "started").values()) <= {1}
    assert set(Counter(operation.id for operation in hall.launcher.operations).values()) <= {1}
    assert "started" not in dict(story).values()
