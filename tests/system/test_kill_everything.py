"""kill -9 of agent, detector and engine at random moments: no record is lost, no restart happens twice."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.torchrun_nodes import TorchrunNodes
from tests.torch_forks import TorchForks
from trainwarden import rundir
from trainwarden.actions.launchers.torchrun.operations import STOPPED_CODE
from trainwarden.bus import address as buses
from trainwarden.cli.ask.jobs_on_bus import read_jobs
from trainwarden.cli.shared.engine_beside import as_toml
from trainwarden.cli.shared.stack import LocalStack
from trainwarden.protocols import Bus
from trainwarden.records import EventRecord, LogRecord
from trainwarden.topics import EVENTS, LOGS

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

SERVICES = ("agent", "detector", "engine")
SEEDS = range(10)  # 200 more in one process, and of engines alone: tests/chaos, test_chaos_processes.py
# A rank that does nothing but write: lines must arrive whole and in order whoever is killed.
RANK = """
import itertools, os, time
with open(f"{os.environ['TRAINWARDEN_RUN_DIR']}/logs/rank-{os.environ['RANK']}.log", "a") as log:
    for number in itertools.count():
        print(f"attempt {os.environ['TRAINWARDEN_ATTEMPT']} line {number}", flush=True, file=log)
        time.sleep(0.02)
"""


def wait_for(what: str, true: Callable[[], object], stack: LocalStack, timeout_s: float = 300.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline:
            tails = "\n".join(f"{name}:\n{stack.log_path(name).read_text()[-1500:]}" for name in SERVICES)
            facts = (stack.log_path("agent").parent.parent / rundir.EVENTS).read_text()[-3000:]
            pytest.fail(f"waited {timeout_s} s for {what}\n{tails}\n{facts}")
        time.sleep(0.05)


def rank_pid(run_dir: Path, rank: int) -> int | None:
    """The rank's process: the one whose environment says so."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environ = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            wanted = {f"RANK={rank}".encode(), f"TRAINWARDEN_RUN_DIR={run_dir}".encode()}
            if wanted <= set(environ):
                return int(entry.name)
    return None


def lines_on_bus(bus: Bus, source_rank: int) -> list[str]:
    """Lines of one rank, duplicates dropped by position, in order of position."""
    found: dict[tuple[str, int], str] = {}
    for message in bus.read(LOGS):
        record = message.record
        if isinstance(record, LogRecord) and record.rank == source_rank:
            for end, line, count in zip(
                record.ends, record.lines, record.counts or (1,) * len(record.ends), strict=True
            ):
                assert count == 1
                found[(record.source, end)] = line
    return [line for _, line in sorted(found.items())]


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_and_nothing_is_done_twice(seed: int, torch_forks: TorchForks, tmp_path: Path) -> None:
    rng = random.Random(seed)
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    nodes = TorchrunNodes(tmp_path, str(script), nodes=1, lost_after_s=300.0, forks=torch_forks)
    run_dir = rundir.prepare(nodes.run_dir("node"))
    address = f"embedded:{tmp_path / 'bus.db'}"
    environ = {
        "TRAINWARDEN_JOB": "job", "TRAINWARDEN_NODE": "node", "TRAINWARDEN_BUS": address,
        "TRAINWARDEN_STATE_DIR": str(tmp_path / "state"), "TRAINWARDEN_ENGINE_MODE": "auto",
        "TRAINWARDEN_ENGINE_LAUNCHER_SETTINGS": as_toml(nodes.settings),
    }  # fmt: skip
    stack = LocalStack(run_dir, environ)
    try:
        for service in SERVICES:
            stack.start(service)
        nodes.start("node", PET_NPROC_PER_NODE="2", TRAINWARDEN_JOB="job")
        log = rundir.rank_log(run_dir, 1)
        wait_for("the ranks", lambda: log.exists() and log.stat().st_size > 500, stack)
        victim = rank_pid(run_dir, 1)
        assert victim is not None
        moments = sorted((rng.uniform(0.0, 2.5), rng.choice(SERVICES)) for _ in range(4))
        began = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        for moment, service in moments:
            time.sleep(max(0.0, began + moment - time.monotonic()))
            os.kill(stack.pid(service), signal.SIGKILL)
            stack.start(service)
        bus = buses.connect(address)
        wait_for("the incident", lambda: _incidents(bus) == ["crash"], stack)
        wait_for("the restarted ranks to write", lambda: b"attempt 1 line 20" in log.read_bytes(), stack)
        time.sleep(1.0)  # long enough for a second action or incident to show itself
        assert nodes.ask("stop").state == "done"
        assert nodes.codes() == {"node": STOPPED_CODE}
        written = log.read_text().splitlines()
        wait_for("the last line", lambda: lines_on_bus(bus, 1)[-1:] == written[-1:], stack)
        _check(bus, written)
        bus.close()
    finally:
        nodes.close()
        stack.stop()


def _incidents(bus: Bus) -> list[str]:
    views = read_jobs(bus, "job")
    return [one.kind for one in views["job"].incidents.values()] if "job" in views else []


def _check(bus: Bus, written: list[str]) -> None:
    assert lines_on_bus(bus, 1) == written
    view = read_jobs(bus, "job")["job"]
    assert _incidents(bus) == ["crash"]
    # torchrun starts the ranks again by itself: an engine that comes back after that finds nothing to decide.
    actions = [(action.kind, action.outcome) for action in view.actions.values()]
    assert actions in ([], [("restart_process", "skipped")])
    # The ranks' own account: started once, restarted once, by torchrun.
    starts = {line.split()[1] for line in written}
    assert starts == {"0", "1"}
    told = [m.record for m in bus.read(EVENTS) if isinstance(m.record, EventRecord)]
    exits = {event.id for event in told if event.kind == "process_exit" and event.rank == 1}
    assert len(exits) >= 1
