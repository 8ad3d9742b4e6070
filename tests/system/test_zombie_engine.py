"""An engine that stood still while another took over, and then wakes, its clock a minute ahead (real broker)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any

import pytest

from tests.contract.bus_harness import DEADLINE_S, event, ids, joined, poll_until, wait_until
from tests.memory_launcher import MemoryLauncher
from tests.places import ROOT
from tests.servers.kafka import KafkaBroker
from trainwarden.actions.engine.handler import EngineHandler
from trainwarden.actions.remedies.policy import Rules
from trainwarden.bus.kafka.engine import KafkaBus, KafkaConfig
from trainwarden.clock import SystemClock
from trainwarden.commands.builders import on_job
from trainwarden.launching import Capabilities, LauncherState, Operation, Report
from trainwarden.records import ActionRecord, IncidentRecord
from trainwarden.self_metrics import SelfMetrics
from trainwarden.service_loop import ServiceLoop
from trainwarden.settings import EngineSettings
from trainwarden.topics import ACTIONS, COMMANDS, EVENTS, INCIDENTS

pytestmark = [
    pytest.mark.system,
    pytest.mark.kafka,
]
AHEAD_S = 60.0
ROUNDS = 30


class Launchers(BaseManager):
    """Gives the launcher of the test to another process."""


class Ahead(SystemClock):
    """A clock that is a minute ahead of all others."""

    def now_s(self) -> float:
        return super().now_s() + AHEAD_S


class Remote:
    """The test's launcher, asked from another process, which may stop itself at the very call."""

    job = None

    def __init__(self, port: int, *, stops: bool) -> None:
        Launchers.register("launcher")
        manager = Launchers(address=("127.0.0.1", port), authkey=b"test")
        manager.connect()
        self._there: Any = manager.launcher()  # type: ignore[attr-defined]
        self._stops = stops

    def capabilities(self) -> Capabilities:
        return self._there.capabilities()  # type: ignore[no-any-return]

    def state(self, job: str) -> LauncherState:
        return self._there.state(job)  # type: ignore[no-any-return]

    def poll(self, job: str, operation: str) -> Report:
        return self._there.poll(job, operation)  # type: ignore[no-any-return]

    def submit(self, operation: Operation) -> Report:
        if self._stops:
            self._stops = False
            os.kill(os.getpid(), signal.SIGSTOP)
        return self._there.submit(operation)  # type: ignore[no-any-return]


def bus_of(server: str, prefix: str) -> KafkaBus:
    return KafkaBus([server], KafkaConfig(partitions=2, topic_prefix=prefix, session_timeout_s=2.0))


def loop_of(bus: KafkaBus, launcher: Any, clock: SystemClock) -> ServiceLoop:
    rules = Rules.of(EngineSettings(mode="auto", cool_down_s=0.0))
    handler = EngineHandler(rules, launcher, clock, SelfMetrics("engine"))
    return ServiceLoop(bus, handler, clock, SelfMetrics("engine"))


def be_the_zombie(server: str, prefix: str, port: str, where: str) -> None:
    """The process that is stopped; says how many partitions it has, and counts its rounds with them."""
    loop = loop_of(bus_of(server, prefix), Remote(int(port), stops=where == "call"), Ahead())
    while True:
        loop.step()
        print(len(loop._assigned or ()), flush=True)


class Zombie:
    """That process, from outside."""

    def __init__(self, server: str, prefix: str, port: int, where: str) -> None:
        command = [sys.executable, "-m", "tests.system.test_zombie_engine", server, prefix, str(port), where]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}
        )
        self.said: list[int] = []
        self._listens = threading.Thread(target=self._listen)
        self._listens.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as said:
            self.said.extend(int(line) for line in said)

    def stopped(self) -> bool:
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def end(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)
        self._listens.join(DEADLINE_S)


class Stage:
    """A broker's topics, a launcher, the zombie, and the engine that takes over."""

    def __init__(self, server: str, where: str) -> None:
        self.launcher, prefix = MemoryLauncher(), f"t{uuid.uuid4().hex[:8]}."
        Launchers.register("launcher", callable=lambda: self.launcher)
        self._manager = Launchers(address=("127.0.0.1", 0), authkey=b"test").get_server()
        threading.Thread(target=self._manager.serve_forever, daemon=True).start()
        self.bus = bus_of(server, prefix)
        self.other = bus_of(server, prefix)
        self._over = threading.Event()
        self.loop = loop_of(self.other, self.launcher, SystemClock())
        self._thread = threading.Thread(target=self.loop.run, args=(self._over.is_set,))
        self.zombie = Zombie(server, prefix, self._manager.address[1], where)

    def takes_over(self) -> None:
        self._thread.start()

    def fails(self, name: str) -> None:
        self.launcher.phase = "failed"
        now_s = time.time()
        self.bus.publish(INCIDENTS, "job", IncidentRecord(
            id=name, job="job", kind="crash", severity="sev2", state="opened", revision=0, opened_at_s=now_s,
            updated_at_s=now_s, reason="rank 2 was killed",
        ))  # fmt: skip
        self.bus.flush()

    def actions(self) -> list[ActionRecord]:
        return [one.record for one in self.bus.read(ACTIONS) if isinstance(one.record, ActionRecord)]

    def close(self) -> None:
        self.zombie.end()
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(DEADLINE_S)
        self.bus.close()
        self.other.close()


@pytest.fixture(params=["idle", "call"])
def stage(kafka_broker: KafkaBroker, request: pytest.FixtureRequest) -> Iterator[Stage]:
    made = Stage(kafka_broker.server, request.param)
    made.where = request.param  # type: ignore[attr-defined]
    yield made
    made.close()


def test_an_engine_that_wakes_after_another_took_over_does_nothing_twice_and_obeys(stage: Stage) -> None:
    zombie, launcher = stage.zombie, stage.launcher
    wait_until(lambda: zombie.said and zombie.said[-1] == 4, "it has all partitions")
    if stage.where == "idle":  # type: ignore[attr-defined]
        zombie.process.send_signal(signal.SIGSTOP)
        wait_until(zombie.stopped, "it stands still")
        stage.fails("i1")
    else:
        stage.fails("i1")
        wait_until(zombie.stopped, "it stands still at the launcher's door")
        assert launcher.operations == []
    stage.takes_over()
    wait_until(lambda: launcher.done == ["i1/restart/1"], "the other one goes on with it")
    wait_until(lambda: ("i1/restart/1", "done") in [(a.id, a.outcome) for a in stage.actions()], "and says so")
    stop = on_job("stop", None, "ann", time.time())
    stage.bus.publish(COMMANDS, stop.job, stop)
    stage.bus.flush()
    stage.fails("i2")
    wait_until(lambda: any(a.id == "i2/restart/1" and a.outcome == "skipped" for a in stage.actions()), "the stop")
    heard = len(zombie.said)
    zombie.process.send_signal(signal.SIGCONT)
    # It finds itself put out, comes back, and has a share of the partitions for many rounds.
    wait_until(lambda: zombie.said[heard:].count(2) + zombie.said[heard:].count(4) > ROUNDS, "rounds of the zombie")
    assert [one.id for one in launcher.operations] == ["i1/restart/1"]
    assert {name for _, name in launcher.asked} == {"i1/restart/1"}, "of what was stopped the launcher has not heard"
    started = Counter(one.id for one in stage.actions() if one.outcome == "started")
    assert set(started.values()) == {1}, [(a.id, a.outcome, a.at_s, a.why, a.finished_at_s) for a in stage.actions()]
    assert launcher.phase == "failed", "the stop holds"


@pytest.mark.parametrize("silent", ["received_heartbeat", "sent_heartbeat"])
def test_while_no_new_heartbeat_is_answered_nothing_is_handed_out(
    kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    """As after a stop: what the broker had sent by then lies in the socket, and the group has put the member out.

    The answer to the heartbeat before the stop lies there, too.
    """
    bus = bus_of(kafka_broker.server, f"t{uuid.uuid4().hex[:8]}.")
    for number in range(3):
        bus.publish(EVENTS, "k", event("k", number))
    bus.flush()
    consumer: Any = joined(bus.consumer([EVENTS], "g"))
    said = consumer.poll(DEADLINE_S, max_records=1)
    heartbeat = consumer._consumer._coordinator.heartbeat
    monkeypatch.setattr(heartbeat, silent, lambda: None)
    if silent == "received_heartbeat":
        heartbeat.last_receive = float("-inf")
    else:
        heartbeat.last_send = float("-inf")
    consumer._member_s = consumer._joined_s = float("-inf")
    assert consumer.poll(0.5) == []
    monkeypatch.undo()
    assert ids(said + poll_until(consumer, 2)) == ["k/0", "k/1", "k/2"]
    bus.close()


def test_where_a_heartbeat_is_under_way_at_each_look_records_are_handed_out(
    kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a broker that takes longer to answer than a heartbeat waits for the one before."""
    bus = bus_of(kafka_broker.server, f"t{uuid.uuid4().hex[:8]}.")
    bus.publish(EVENTS, "k", event("k", 0))
    bus.flush()
    consumer: Any = joined(bus.consumer([EVENTS], "g"))
    heartbeat = consumer._consumer._coordinator.heartbeat
    received = heartbeat.received_heartbeat

    def received_and_sent() -> None:
        received()
        heartbeat.last_send = heartbeat.last_receive + 0.001

    monkeypatch.setattr(heartbeat, "received_heartbeat", received_and_sent)
    heartbeat.last_send = heartbeat.last_receive + 0.001
    consumer._member_s = consumer._joined_s = float("-inf")
    assert ids(poll_until(consumer, 1)) == ["k/0"]
    bus.close()


if __name__ == "__main__":
    be_the_zombie(*sys.argv[1:])
