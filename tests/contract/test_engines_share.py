"""Two engines in one group, on both buses: each incident is acted on once, and a stop reaches both."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.contract.bus_harness import DEADLINE_S, Engine, wait_until
from tests.memory_launcher import MemoryLauncher
from trainwarden.actions.engine.handler import EngineHandler
from trainwarden.actions.remedies.policy import Rules
from trainwarden.clock import SystemClock
from trainwarden.commands.builders import on_node
from trainwarden.launching import Capabilities, LauncherState, NodeState, Operation, Report
from trainwarden.protocols import Bus
from trainwarden.records import ActionRecord, CommandRecord, IncidentKind, IncidentRecord, Suspect
from trainwarden.self_metrics import SelfMetrics
from trainwarden.service_loop import ServiceLoop
from trainwarden.settings import EngineSettings
from trainwarden.topics import ACTIONS, COMMANDS, INCIDENTS

JOBS = 12


class ManyJobs(MemoryLauncher):
    """Jobs that are down for good, each with a generation of its own and twenty nodes."""

    def __init__(self) -> None:
        super().__init__()
        self._changes: Counter[str] = Counter()
        self._one_by_one = threading.RLock()

    def state(self, job: str) -> LauncherState:
        with self._one_by_one:
            self.phase, self.generation = "failed", 1 + self._changes[job]
            self.nodes[job] = tuple(NodeState(node=f"{job}/{number}") for number in range(20))
            return super().state(job)

    def submit(self, operation: Operation) -> Report:
        with self._one_by_one:
            self.state(operation.job)
            before = len(self.operations)
            report = super().submit(operation)
            self._changes[operation.job] += len(self.operations) - before
            return report


class Pair:
    """Two engines, each with a thread of its own, over one launcher of many jobs that are down for good."""

    def __init__(self, storage: Engine) -> None:
        self.launcher, self.bus = ManyJobs(), storage.open()
        self.handlers: list[EngineHandler] = []
        self.over = [threading.Event(), threading.Event()]
        loops = [self._loop(storage.open()) for _ in self.over]
        self.threads = [
            threading.Thread(target=loop.run, args=(over.is_set,)) for loop, over in zip(loops, self.over, strict=True)
        ]
        for thread in self.threads:
            thread.start()

    def _loop(self, bus: Bus) -> ServiceLoop:
        rules = Rules.of(EngineSettings(mode="auto", cool_down_s=3600.0))
        handler = EngineHandler(rules, self.launcher, SystemClock(), SelfMetrics("engine"))
        self.handlers.append(handler)
        return ServiceLoop(bus, handler, SystemClock(), SelfMetrics("engine"))

    def end(self, number: int) -> None:
        """One engine leaves."""
        self.over[number].set()
        self.threads[number].join(DEADLINE_S)

    def fails(self, name: str, jobs: int = JOBS, kind: IncidentKind = "crash") -> None:
        """A crash of each of so many jobs, or another incident of their first nodes."""
        now_s = time.time()
        for number in range(jobs):
            job = f"{name}{number}"
            self.bus.publish(INCIDENTS, job, IncidentRecord(
                id=f"{kind}/{job}", job=job, kind=kind, severity="sev2", state="opened", revision=0,
                suspects=(Suspect(score=1.0, reason="Xid 79", node=f"{job}/0"),),
                opened_at_s=now_s, updated_at_s=now_s, reason="rank 2 was killed",
            ))  # fmt: skip
        self.bus.flush()

    def say(self, kind: str) -> None:
        """A person's word to all engines."""
        word = CommandRecord(id=f"c/{kind}", job="*", at_s=0.0, kind=kind, by="someone")  # type: ignore[arg-type]
        self.bus.publish(COMMANDS, "*", word)
        self.bus.flush()

    def started(self) -> Counter[str]:
        """How often each action was begun, by the bus."""
        records = [message.record for message in self.bus.read(ACTIONS)]
        return Counter(one.id for one in records if isinstance(one, ActionRecord) and one.outcome == "started")


@pytest.fixture
def pair(engine: Engine) -> Iterator[Pair]:
    made = Pair(engine)
    try:
        hearings = [handler._acting for handler in made.handlers]
        wait_until(lambda: all(one._hearing is not None and one._hearing._placed for one in hearings), "both hear")
        yield made
    finally:
        for number in range(2):
            made.end(number)


@pytest.mark.thorough
def test_each_incident_is_acted_on_once_by_whoever_owns_its_job(pair: Pair) -> None:
    pair.fails("job")
    wait_until(lambda: len(pair.launcher.asked) == JOBS, "all are restarted")  # which the bus has been told before
    time.sleep(0.5)
    assert set(pair.started().values()) == {1}
    assert sorted(name for _, name in pair.launcher.asked) == sorted(pair.started())
    owners = [len(handler._memory.cases) for handler in pair.handlers]
    assert sum(owners) == JOBS
    assert min(owners) > 0


@pytest.mark.thorough
def test_a_stop_reaches_every_engine_and_resume_lets_all_go_on(pair: Pair) -> None:
    pair.say("stop")
    wait_until(lambda: all(h._memory.stopped_by("any") == "someone" for h in pair.handlers), "both heard it")
    pair.fails("job")
    wait_until(lambda: sum(len(handler._memory.cases) for handler in pair.handlers) == JOBS, "all are known")
    time.sleep(0.5)
    assert pair.launcher.asked == []
    pair.say("resume")
    wait_until(lambda: len(pair.started()) == JOBS, "all are restarted")


@pytest.mark.thorough
def test_who_is_left_takes_over_the_incidents_of_one_that_is_gone_and_repeats_nothing(pair: Pair) -> None:
    pair.fails("early")
    wait_until(lambda: len(pair.started()) == JOBS, "all are restarted")
    pair.end(0)
    wait_until(lambda: len(pair.handlers[1]._memory.cases) == JOBS, "the other has taken over")
    pair.fails("late")
    wait_until(lambda: len(pair.launcher.asked) >= 2 * JOBS, "the late ones are restarted")
    assert set(pair.started().values()) == {1}
    assert len(pair.launcher.asked) == 2 * JOBS


@pytest.mark.thorough
def test_each_word_on_a_node_is_carried_out_once_by_whoever_owns_its_place(pair: Pair) -> None:
    pair.launcher.able = Capabilities(can=frozenset({"cordon"}))
    for number in range(JOBS):
        job = f"job{number}"
        pair.bus.publish(COMMANDS, job, on_node("cordon", f"{job}/0", job, "ann", at_s=time.time()))
    pair.bus.flush()
    wait_until(lambda: len(pair.launcher.cordoned) == JOBS, "all are cordoned")
    pair.end(0)
    time.sleep(0.5)
    assert len(pair.launcher.done) == JOBS  # the launcher's one generation makes some of them stale, and asked anew
    assert set(pair.started().values()) == {1}


@pytest.mark.thorough
def test_all_engines_together_take_out_no_more_nodes_than_are_allowed(pair: Pair) -> None:
    """The shipped limit is five of all jobs, whoever owns them."""
    pair.launcher.able = Capabilities(can=frozenset({"evict"}))
    pair.fails("job", kind="gpu_lost")
    wait_until(
        lambda: all(h._memory.latches.over("any") is not None for h in pair.handlers), "both have heard the latch"
    )
    wait_until(lambda: pair.launcher.operations, "the first nodes go")
    time.sleep(1.0)
    assert len(pair.launcher.operations) <= 5
    pair.fails("late", kind="gpu_lost")
    wait_until(lambda: sum(len(handler._memory.cases) for handler in pair.handlers) == 2 * JOBS, "all are known")
    time.sleep(1.0)
    assert len({node for one in pair.launcher.operations for node in one.targets.nodes}) <= 5
