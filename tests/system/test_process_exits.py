"""Real processes that end: code or signal, whether their parent reaps them at once, late or never."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hook_doubles import write_header
from trainwarden.clock import SystemClock
from trainwarden.collectors.processes.collector import ProcessesCollector
from trainwarden.protocols import Scope
from trainwarden.records import EventRecord
from trainwarden.topics import EVENTS

pytestmark = pytest.mark.system

WAIT_S = 60.0


def new_collector(run_dir: Path) -> ProcessesCollector:
    scope = Scope(job="job", node="n0", run_dir=str(run_dir))
    return ProcessesCollector(ProcessesCollector.Config(), scope, SystemClock())


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[ProcessesCollector]:
    (tmp_path / "hook").mkdir()
    collector = new_collector(tmp_path)
    yield collector
    collector.close()


def kernel_remembers_reaped() -> bool:
    """PIDFD_INFO_EXIT came with Linux 6.15."""
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int("".join(filter(str.isdigit, minor)))) >= (6, 15)


@pytest.mark.parametrize("reaped", [False, True], ids=["zombie", "reaped"])
@pytest.mark.parametrize(
    ("last_act", "expected"),
    [
        ("sys.exit(0)", {"code": 0}),
        ("os._exit(7)", {"code": 7}),
        ("1 / 0", {"code": 1}),
        ("os.kill(os.getpid(), signal.SIGKILL)", {"signal": "SIGKILL"}),
        ("faulthandler._sigsegv()", {"signal": "SIGSEGV"}),
    ],
)
def test_code_or_signal(
    collector: ProcessesCollector, tmp_path: Path, last_act: str, expected: dict[str, object], reaped: bool
) -> None:
    if reaped and not kernel_remembers_reaped():
        pytest.skip("this kernel forgets the status of a process once its parent has reaped it")
    code = f"import faulthandler, os, signal, sys; sys.stdin.read(); {last_act}"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert child.stdin is not None
    write_header(tmp_path / "hook" / f"rank-3-{child.pid}.hook", child.pid)
    assert list(collector.collect(1.0)) == []
    *_, pidfd = collector.wake_fds()
    child.stdin.close()
    if reaped:
        child.wait(WAIT_S)
    else:
        assert select.select([pidfd], [], [], WAIT_S)[0], "the pidfd wakes the agent"
    (event,) = collector.collect(2.0)
    assert isinstance(event, EventRecord)
    assert (event.kind, event.rank, event.fields["pid"]) == ("process_exit", 3, child.pid)
    assert {key: value for key, value in event.fields.items() if key in ("code", "signal")} == expected
    assert pidfd not in collector.wake_fds()
    child.wait(WAIT_S)


def test_an_end_while_the_agent_was_down_is_told_after_its_restart(
    collector: ProcessesCollector, tmp_path: Path
) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    write_header(tmp_path / "hook" / f"rank-3-{child.pid}.hook", child.pid)
    assert list(collector.collect(1.0)) == []
    position = collector.position()
    collector.close()
    child.send_signal(signal.SIGTERM)
    child.wait(WAIT_S)
    again = new_collector(tmp_path)
    again.restore(position)
    (event,) = again.collect(2.0)
    again.close()
    assert isinstance(event, EventRecord)
    assert event.id == f"exit/n0/{position['known'][f'rank-3-{child.pid}.hook']}"


def test_new_ranks_and_events_wake_the_agent(collector: ProcessesCollector, tmp_path: Path) -> None:
    assert list(collector.collect(1.0)) == []
    assert select.select(collector.wake_fds(), [], [], 0.0)[0] == []
    for change in (tmp_path / "hook" / f"rank-0-{os.getpid()}.hook", tmp_path / "events.jsonl"):
        change.write_bytes(b"")
        assert select.select(collector.wake_fds(), [], [], WAIT_S)[0]
        assert list(collector.collect(2.0)) == []
    with (tmp_path / "events.jsonl").open("ab") as events:
        events.write(EVENTS.encode(EventRecord(id="e", job="j", node="n", time_s=1.0, kind="restart")) + b"\n")
    assert select.select(collector.wake_fds(), [], [], WAIT_S)[0]
    assert len(list(collector.collect(3.0))) == 1
