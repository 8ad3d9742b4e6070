"""Agents and ranks on two sides of a container's wall: other pid namespaces, other users, hostile neighbours."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.places import ROOT
from trainwarden import hook
from trainwarden.clock import SystemClock
from trainwarden.collectors.host.collector import HostCollector
from trainwarden.collectors.iterations.collector import IterationsCollector
from trainwarden.collectors.processes.collector import ProcessesCollector
from trainwarden.protocols import Scope
from trainwarden.records import EventRecord, HeartbeatRecord, MetricsRecord, Record

CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
WAIT_S = 90.0

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(120),
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("setpriv") is None,
        reason="namespaces and users need root, unshare and setpriv",
    ),
]

# Makes steps until it is told to end, by the exit code that it finds in a file.
RANK = """
import os, sys, time
from trainwarden import hook
order = sys.argv[1]
while not os.path.exists(order):
    hook.iteration()
    time.sleep(0.02)
sys.exit(int(open(order).read()))
"""

# An agent's collectors, looked at for some seconds; what they yielded, one JSON a line.
AGENT = """
import sys, time, msgspec
from tests.system.test_containers import Agent
agent, ends_s = Agent(sys.argv[1]), time.monotonic() + float(sys.argv[2])
print("looking", flush=True)
while time.monotonic() < ends_s:
    for record in agent.look():
        print(msgspec.json.encode(record).decode(), flush=True)
    time.sleep(0.05)
"""


class Agent:
    """The collectors that look at processes, in this very process."""

    def __init__(self, run_dir: str) -> None:
        scope, clock = Scope(job="job", node="n0", run_dir=run_dir), SystemClock()
        self.clock = clock
        self.collectors: list[Any] = [
            IterationsCollector(IterationsCollector.Config(), scope, clock),
            ProcessesCollector(ProcessesCollector.Config(), scope, clock),
            HostCollector(HostCollector.Config(), scope, clock),
        ]

    def close(self) -> None:
        for collector in self.collectors:
            collector.close()

    def look(self) -> list[Record]:
        return [record for collector in self.collectors for record in collector.collect(self.clock.now_s())]

    def look_until(self, found: Any) -> list[Record]:
        """Everything up to the first record that `found` accepts."""
        seen: list[Record] = []
        ends_s = time.monotonic() + WAIT_S
        while time.monotonic() < ends_s:
            seen += self.look()
            if any(found(record) for record in seen):
                return seen
            time.sleep(0.05)
        raise AssertionError(f"not told in {WAIT_S} s: {seen[-5:]}")

    def look_for(self, seconds: float) -> list[Record]:
        seen: list[Record] = []
        ends_s = time.monotonic() + seconds
        while time.monotonic() < ends_s:
            seen += self.look()
            time.sleep(0.05)
        return seen


def of(kind: type[Any], records: list[Record]) -> list[Any]:
    return [record for record in records if isinstance(record, kind)]


def exits(records: list[Record]) -> list[EventRecord]:
    return [record for record in of(EventRecord, records) if record.kind == "process_exit"]


def lists(record: Record) -> bool:
    """A heartbeat with a rank that lives by what the kernel says."""
    return isinstance(record, HeartbeatRecord) and any(state not in ("", "X", "Z") for state in record.states)


class Site:
    """A run folder with a rank; both agent and rank may live in a container or belong to another user."""

    def __init__(self, folder: Path) -> None:
        self.run_dir = folder / "run"
        self.hook_dir = self.run_dir / "hook"
        self.order = folder / "order"
        for path in (self.run_dir, self.hook_dir, self.run_dir / "logs"):
            path.mkdir(mode=0o700)
        self.started: list[subprocess.Popen[str]] = []
        self.agents: list[Agent] = []

    def start(self, code: str, *words: str, around: tuple[str, ...] = (), **environ: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [*around, sys.executable, "-c", code, *words], cwd=ROOT, text=True, stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TRAINWARDEN_HOOK_DIR": str(self.hook_dir), "RANK": "0",
                 "WORLD_SIZE": "1", **environ},
        )  # fmt: skip
        self.started.append(child)
        return child

    def agent(self) -> Agent:
        self.agents.append(Agent(str(self.run_dir)))
        return self.agents[-1]

    def rank(self, *around: str, rank: int = 0) -> subprocess.Popen[str]:
        before = set(self.hook_dir.glob(f"rank-{rank}-*.hook"))
        child = self.start(RANK, str(self.order), around=around, RANK=str(rank))
        ends_s = time.monotonic() + WAIT_S
        while time.monotonic() < ends_s and child.poll() is None:
            for path in set(self.hook_dir.glob(f"rank-{rank}-*.hook")) - before:
                header = hook.read_header(path)
                if header is not None and header.recorded:
                    return child
            time.sleep(0.02)
        raise AssertionError(f"no hook file: exit code {child.poll()}")

    def header(self, rank: int = 0) -> hook.Header:
        (path,) = self.hook_dir.glob(f"rank-{rank}-*.hook")
        found = hook.read_header(path)
        assert found is not None
        return found

    def agent_says(self, *around: str, seconds: float = 3.0) -> list[dict[str, Any]]:
        out, _ = self.start(AGENT, str(self.run_dir), str(seconds), around=around).communicate(timeout=60)
        return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


@pytest.fixture
def site() -> Iterator[Site]:
    """Not below pytest's own folder: each pytest that starts closes that one to other users."""
    folder = Path(tempfile.mkdtemp(prefix="trainwarden-site-"))
    folder.chmod(0o755)
    made = Site(folder)
    yield made
    for agent in made.agents:
        agent.close()
    for child in made.started:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        child.wait(WAIT_S)
        if child.stdout is not None:
            child.stdout.close()
    shutil.rmtree(folder)


def inner_pid(child: subprocess.Popen[str]) -> int:
    """The process that `unshare` has begun, as it is numbered here."""
    return int(Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()[0])


def test_a_rank_in_a_container_is_found_by_who_it_is_and_not_by_its_number(site: Site) -> None:
    """Its pid is 1 as it sees itself; here that is another process, far larger or smaller, which never ends."""
    child = site.rank(*CONTAINER)
    here = inner_pid(child)
    assert site.header().pid == 1
    agent = site.agent()
    seen = agent.look_until(lists)
    assert exits(seen) == []
    rows = [record for record in agent.look_until(_has_rank_row) if _has_rank_row(record)]
    row: Any = rows[0]
    told = dict(zip(row.names, row.values, strict=True))["rank_resident_memory_bytes"]
    resident = int(Path(f"/proc/{here}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    assert told[row.devices.index("rank-0")] == pytest.approx(resident, rel=0.3)
    os.kill(here, signal.SIGKILL)
    (event,) = exits(agent.look_until(lambda record: record in exits([record])))
    assert event.fields["signal"] == "SIGKILL"


def _has_rank_row(record: Record) -> bool:
    return isinstance(record, MetricsRecord) and "rank-0" in record.devices


def test_an_agent_in_a_container_that_cannot_see_a_rank_accuses_nobody(site: Site) -> None:
    """Its own number there belongs to nobody, or to somebody else: no end, no memory, no processor time."""
    site.rank()
    said = site.agent_says(*CONTAINER)
    beats = [record for record in said if record["type"] == "heartbeat"]
    assert beats
    assert {tuple(beat["states"]) for beat in beats} == {("",)}
    assert {tuple(beat["cpu_s"]) for beat in beats} == {(None,)}
    assert [record for record in said if record.get("kind") == "process_exit"] == []
    assert not any("rank-0" in record.get("devices", ()) for record in said)
    assert any(record["type"] == "iterations" for record in said), "what it says of itself is told all the same"


def test_a_number_that_is_somebody_elses_in_the_agents_container_is_not_looked_at(site: Site) -> None:
    """Two containers, rank and agent both number 1, begun one after the other."""
    site.rank(*CONTAINER)
    said = site.agent_says(*CONTAINER)
    beats = [record for record in said if record["type"] == "heartbeat"]
    assert {tuple(beat["states"]) for beat in beats} == {("",)}
    assert [record for record in said if record.get("kind") == "process_exit"] == []
    assert not any("rank-0" in record.get("devices", ()) for record in said)


def test_an_end_that_the_rank_told_itself_is_told_though_nobody_sees_it(site: Site) -> None:
    child = site.rank()
    agent = site.start(AGENT, str(site.run_dir), "6", around=CONTAINER)
    assert agent.stdout is not None
    assert agent.stdout.readline() == "looking\n"
    site.order.write_text("7")
    assert child.wait(WAIT_S) == 7
    out, _ = agent.communicate(timeout=60)
    said = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    (event,) = [record for record in said if record.get("kind") == "process_exit"]
    assert event["fields"]["code"] == 7


def test_a_container_that_begins_anew_with_the_same_number_is_another_process(site: Site) -> None:
    """All steps of both are told, and both ends; the second is the rank's trainer at once."""
    agent = site.agent()
    first = site.rank(*CONTAINER)
    seen = agent.look_until(lists)
    os.kill(inner_pid(first), signal.SIGKILL)
    first.wait(WAIT_S)
    seen += agent.look_until(lambda record: record in exits([record]))
    second = site.rank(*CONTAINER)
    seen += agent.look_until(lists)
    site.order.write_text("0")
    second.wait(WAIT_S)
    seen += agent.look_until(lambda record: record in exits([record]))
    starts = [record for record in of(EventRecord, seen) if record.kind == "process_start"]
    assert len({record.fields["incarnation"] for record in starts}) == 2
    assert len({record.id for record in exits(seen)}) == 2
    assert [record.fields.get("code", record.fields.get("signal")) for record in exits(seen)] == ["SIGKILL", 0]


def test_an_agent_of_root_hears_ranks_of_another_user(site: Site) -> None:
    for path in (site.run_dir, site.hook_dir):
        os.chown(path, 65534, 65534)
    child = site.rank(*NOBODY)
    agent = site.agent()
    seen = agent.look_until(lists)
    child.send_signal(signal.SIGTERM)
    seen += agent.look_until(lambda record: record in exits([record]))
    assert exits(seen)[0].fields["signal"] == "SIGTERM"
    assert any(record.kind == "process_start" for record in of(EventRecord, seen))


def let_in(folder: Path, user: int) -> None:
    """What ``setfacl -m u:USER:rwx,d:u:USER:rwx FOLDER`` writes; linux/posix_acl_xattr.h."""
    entries = [(0x01, 7, -1), (0x02, 7, user), (0x04, 0, -1), (0x10, 7, -1), (0x20, 0, -1)]
    packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        for kind in ("access", "default"):
            os.setxattr(folder, f"system.posix_acl_{kind}", packed)
    except OSError as error:
        pytest.skip(f"this file system has no access lists ({error.strerror})")


@pytest.mark.parametrize("by", ["group", "access list"])
def test_an_agent_without_rights_hears_ranks_of_root_by_what_the_folder_grants(site: Site, by: str) -> None:
    """By the group of the folder, or by an access list on it; no exit code is made up."""
    if by == "group":
        for path in (site.run_dir, site.hook_dir):
            os.chown(path, 0, 65534)
            path.chmod(0o2770)
    else:
        for path in (site.run_dir, site.hook_dir):
            let_in(path, 65534)
    child = site.rank()
    agent = site.start(AGENT, str(site.run_dir), "5", around=NOBODY)
    assert agent.stdout is not None
    assert agent.stdout.readline() == "looking\n"
    time.sleep(2.0)
    child.send_signal(signal.SIGTERM)
    out, _ = agent.communicate(timeout=60)
    said = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert any(record["type"] == "iterations" for record in said)
    (event,) = [record for record in said if record.get("kind") == "process_exit"]
    assert event["fields"].get("signal") in ("SIGTERM", None)
    assert "code" not in event["fields"], "the kernel says 0 to those whom it does not tell"


def test_an_agent_that_may_only_read_hears_the_ranks_all_the_same(site: Site) -> None:
    for path in (site.run_dir, site.hook_dir):
        os.chown(path, 0, 65534)
        path.chmod(0o2750)
    site.rank()
    said = site.agent_says(*NOBODY)
    assert any(record["type"] == "iterations" for record in said)


def test_files_of_a_stranger_in_a_folder_that_all_may_write_to_are_not_believed(site: Site) -> None:
    site.run_dir.chmod(0o755)
    site.hook_dir.chmod(0o1777)
    site.rank()
    site.rank(*NOBODY, rank=3)
    agent = site.agent()
    seen = agent.look_until(lists) + agent.look_for(2.0)
    assert {rank for beat in of(HeartbeatRecord, seen) for rank in beat.ranks} == {0}
    assert {record.rank for record in of(EventRecord, seen)} <= {0, None}


def test_a_pipe_or_a_link_under_the_name_of_a_hook_file_holds_nobody_up(site: Site) -> None:
    os.mkfifo(site.hook_dir / "rank-4-77.hook")
    (site.hook_dir / "rank-5-78.hook").symlink_to("/dev/zero")
    site.rank()
    agent = site.agent()
    seen = agent.look_until(lists) + agent.look_for(2.0)
    assert {rank for beat in of(HeartbeatRecord, seen) for rank in beat.ranks} == {0}
