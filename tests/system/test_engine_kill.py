"""kill -9 of the real engine at random moments, twenty seeds: every incident is acted upon, no action happens twice.

The engine is a process of its own on the embedded bus; the rendezvous is a server in this test that carries out what
it is asked, counts it, and answers late now and then, so that kills fall before, during and after the call. Some
operations are only accepted at first and done a while later, so that kills fall into the time of polling too.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from trainwarden import rundir
from trainwarden.actions.launchers.torchrun.messages import ENCODE, AskJobs, AskState, Poll, Question, Reply, Submit
from trainwarden.actions.launchers.torchrun.operations import CAPABILITIES
from trainwarden.bus.address import connect
from trainwarden.launching import LauncherState, Report, refusal
from trainwarden.protocols import Bus
from trainwarden.records import ActionRecord, EventRecord, IncidentRecord
from trainwarden.topics import ACTIONS, EVENTS, INCIDENTS

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

ENGINE = """
import sys
from pathlib import Path
from trainwarden.actions.engine.service import serve
from trainwarden.self_metrics import log_to_stderr
from trainwarden.settings import EngineSettings, Settings
log_to_stderr()
where = {"endpoint": sys.argv[3], "restarts_itself": False}
engine = EngineSettings(mode="auto", actions_per_hour=1000, cool_down_s=0.0, launcher_settings=where)
serve(Settings(job="job", bus=sys.argv[1], engine=engine), Path(sys.argv[2]), lambda: False)
"""
INCIDENTS_PER_SEED = 5


class CountingLauncher:
    """The rendezvous' place taken by something that counts. `calls` are arrivals, `effects` what was carried out."""

    def __init__(self, seed: int) -> None:
        self.effects: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._done_at_s: dict[str, float] = {}
        self.splits: list[tuple[int, ...]] = []
        self.arrived = threading.Event()
        self._rng = random.Random(seed)
        launcher = self

        class Line(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                asked = msgspec.json.decode(self.rfile.readline(), type=Question).ask
                with suppress(ConnectionError):  # the engine that asked was killed
                    self.wfile.write(ENCODE(launcher._handle(asked)) + b"\n")

        self._server = socketserver.TCPServer(("127.0.0.1", 0), Line)  # one after the other
        self.endpoint = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def _handle(self, request: AskState | AskJobs | Submit | Poll) -> Reply:
        assert not isinstance(request, AskJobs)
        if isinstance(request, AskState):
            phase = "running" if "i0/restart/1" in self.effects else "failed"
            return Reply(state=LauncherState(job="job", phase=phase, generation=len(self.effects)))
        if isinstance(request, Poll):
            return Reply(report=self._report(request.operation))
        operation = request.operation
        self.calls[operation.id] += 1
        self.arrived.set()
        if self.calls[operation.id] == 1:
            self._sleep()  # a kill may fall before it is carried out ...
        if operation.id in self.effects:
            self.calls["repeats"] += 1
        elif (no := refusal(operation, CAPABILITIES, len(self.effects))) is not None:
            return Reply(report=no)
        else:
            self.effects[operation.id] += 1
            self.splits += [operation.plan.micro_batches] if operation.kind == "rebalance" else []
            self._done_at_s[operation.id] = time.monotonic() + self._rng.choice([0.0, 0.0, 0.1, 0.5])
        self._sleep()  # ... or after it, before the answer
        return Reply(report=self._report(operation.id))

    def _report(self, name: str) -> Report:
        if name not in self.effects:
            return Report(operation=name, state="unknown")
        done = time.monotonic() >= self._done_at_s[name]
        return Report(operation=name, state="done" if done else "running")

    def _sleep(self) -> None:
        time.sleep(self._rng.choice([0.0, 0.0, 0.02, 0.05]))

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Import once, so that no seed pays for byte code."""
    subprocess.run(
        [sys.executable, "-c", "import trainwarden.actions.engine.handler, trainwarden.bus.embedded.engine"], check=True
    )


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """On tmpfs where there is one: the bus waits for the disk at each record, and kill -9 needs none to be tested."""
    made = rundir.prepare(Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def launcher(request: pytest.FixtureRequest) -> Iterator[CountingLauncher]:
    made = CountingLauncher(request.getfixturevalue("seed"))
    yield made
    made.close()


class Ranks:
    """Adopt every split that the launcher puts, and say so on a bus of their own."""

    def __init__(self, address: str, launcher: CountingLauncher) -> None:
        self._bus, self._launcher = connect(address), launcher
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._loop)
        self._thread.start()

    def _loop(self) -> None:
        adopted = 0
        while not self._over.wait(0.02):
            if len(self._launcher.splits) > adopted:
                adopted, split = len(self._launcher.splits), self._launcher.splits[-1]
                for rank in range(len(split)):
                    self._bus.publish(EVENTS, "job", adoption(rank, split))
                self._bus.flush()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._bus.close()


def adoption(rank: int, split: tuple[int, ...]) -> EventRecord:
    now_s, fields = time.time(), {"micro_batches": ",".join(map(str, split))}
    return EventRecord(
        id=f"microbatch_plan/{rank}/{now_s}", job="job", node="n0", time_s=now_s, kind="microbatch_plan", rank=rank,
        fields=fields,
    )  # fmt: skip


class Engine:
    """The engine's process, to be killed and started again."""

    def __init__(self, address: str, run_dir: Path, endpoint: str) -> None:
        self._command = [sys.executable, "-c", ENGINE, address, str(run_dir), endpoint]
        self._log = (run_dir / "engine.log").open("wb")
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=self._log, stderr=self._log)

    def kill(self) -> None:
        assert self._process.poll() is None, Path(self._log.name).read_text()[-2000:]
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()


def incident(number: int) -> IncidentRecord:
    """Crashes and slow ranks in turn; the slow ones differ, so that each has a plan of its own."""
    now_s = time.time()
    evidence = {
        "healthy_iteration_s": 0.3, "iteration_s": 0.9, "slow_iterations": 10 + number, "ranks": [0, 1],
        "compute_s": [0.3, 0.6 + number / 10], "micro_batches": [6, 6],
    }  # fmt: skip
    return IncidentRecord(
        id=f"i{number}", job="job", kind="crash" if number == 0 else "slow_compute", severity="sev2", state="opened",
        revision=0, opened_at_s=now_s, updated_at_s=now_s, reason="as the script says", evidence=evidence,
    )  # fmt: skip


def story(bus: Bus) -> dict[str, list[str]]:
    """Outcomes by action id, in order."""
    told: dict[str, list[str]] = {}
    for message in bus.read(ACTIONS):
        assert isinstance(message.record, ActionRecord)
        told.setdefault(message.record.id, []).append(message.record.outcome)
    return told


@pytest.mark.parametrize("seed", range(20))
def test_no_action_twice_and_none_lost(seed: int, launcher: CountingLauncher, run_dir: Path) -> None:
    rng = random.Random(seed)
    address = f"embedded:{run_dir / 'bus.db'}"
    bus = connect(address)
    engine, ranks = Engine(address, run_dir, launcher.endpoint), Ranks(address, launcher)
    expected = {"i0/restart/1", *(f"i{number}/rebalance/1" for number in range(1, INCIDENTS_PER_SEED))}
    try:
        numbers = iter(range(INCIDENTS_PER_SEED))
        for _ in range(INCIDENTS_PER_SEED):
            bus.publish(INCIDENTS, "job", incident(next(numbers)))
            bus.flush()
            launcher.arrived.clear()
            if rng.random() < 0.7:  # aim at the call; else anywhere, start-up included
                launcher.arrived.wait(10.0)
                time.sleep(rng.choice([0.0, 0.001, 0.005, 0.02, 0.05, 0.1]))
            else:
                time.sleep(rng.uniform(0.0, 0.6))
            engine.kill()
            engine.start()
        deadline = time.monotonic() + 60.0
        while {name for name, outcomes in story(bus).items() if "done" in outcomes} != expected:
            assert time.monotonic() < deadline, (story(bus), (run_dir / "engine.log").read_text()[-3000:])
            time.sleep(0.05)
        time.sleep(0.3)  # time for a second action to show itself
    finally:
        ranks.close()
        engine.close()
        bus.close()
    assert set(launcher.effects) == expected
    assert set(launcher.effects.values()) == {1}
    told = story(connect(address))
    assert set(told) == expected
    for name, outcomes in told.items():
        assert outcomes[0] == "started", (name, outcomes)
        # An engine killed between the launcher's answer and its own note says "done" again, never "started".
        assert outcomes.count("started") == 1, (name, outcomes)
        assert set(outcomes[1:]) == {"done"}, (name, outcomes)
