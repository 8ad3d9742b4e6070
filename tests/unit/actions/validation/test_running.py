"""What the processes of a validation are made of: the kernel's counts, children for disk and memory, exact products."""

from __future__ import annotations

import os
import signal
import socket
import time

import msgspec
import pytest

from trainwarden.actions.validation.results import NodeReport, RankInfo
from trainwarden.actions.validation.running import disk_child, memory_child, processor
from trainwarden.actions.validation.running.node import listen
from trainwarden.actions.validation.running.node_checks import NodeChecks


def counts(folder, cgroup, stat):
    """A miniature /proc and /sys/fs/cgroup."""
    threads = folder / "proc" / "self" / "task"
    for thread, text in (("1", "5 2000000000 1"), ("2", "5 500000000 1"), ("3", "")):
        (threads / thread).mkdir(parents=True)
        (threads / thread / "schedstat").write_text(text)
    (folder / "proc" / "self" / "cgroup").write_text(cgroup)
    if stat is not None:
        path, text = stat
        (folder / "cgroup" / path).mkdir(parents=True)
        (folder / "cgroup" / path / "cpu.stat").write_text(text)
    return folder / "proc", folder / "cgroup"


@pytest.mark.parametrize(
    ("cgroup", "stat", "stood_s"),
    [
        ("0::/job\n", ("job", "usage_usec 1\nthrottled_usec 2500000\n"), 2.5),
        ("4:memory:/x\n1:cpu,cpuacct:/job\n", ("cpu,cpuacct/job", "nr_throttled 3\nthrottled_time 1500000000\n"), 1.5),
        ("1:cpu:/job\n0::/\n", ("cpu/job", "throttled_time 1\n"), 1e-9),
        ("0::/job\n", ("job", "usage_usec 1\n"), None),
        ("0::/job\n", None, None),
        ("", None, None),
    ],
)
def test_the_kernels_counts_of_both_kinds_of_control_group(tmp_path, cgroup, stat, stood_s):
    proc, groups = counts(tmp_path, cgroup, stat)
    assert processor.stood_still_s(proc, groups) == stood_s
    assert processor.waited_s(proc) == 2.5


def test_a_disk_that_is_well_and_leaves_nothing(tmp_path, capsys):
    assert disk_child.main(str(tmp_path), 3 << 20) == 0
    assert len(capsys.readouterr().out.split()) == 2
    assert [*tmp_path.iterdir()] == []


def test_a_disk_that_gives_back_something_else(tmp_path, capsys, monkeypatch):
    read = os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, at: read(file, size, at)[:-1] + b"?")
    assert disk_child.main(str(tmp_path), 1 << 20) == 1
    assert "does not come back" in capsys.readouterr().out


def test_a_folder_that_is_not_there(tmp_path, capsys):
    assert disk_child.main(str(tmp_path / "gone"), 1 << 20) == 1
    assert "No such file" in capsys.readouterr().out


def test_memory_that_is_well(capsys):
    assert memory_child.main(2 << 20) == 0
    assert float(capsys.readouterr().out) > 0


def ended(checks: NodeChecks):
    until_s = time.monotonic() + 60
    while (report := checks.poll()) is None and time.monotonic() < until_s:
        os.sched_yield()
    assert report is not None
    return report


def test_children_that_hang_or_are_killed_accuse_disks_alone(tmp_path):
    checks = NodeChecks("n", ("disk", "memory"), tmp_path, 0.2)
    for child in checks._children.values():
        child.send_signal(signal.SIGSTOP)
    report = ended(checks)
    assert report.wrong == {"disk": "no answer within 0 s"}
    assert report.left_out == {"memory": "no answer within 0 s"}
    checks = NodeChecks("n", ("disk", "memory"), tmp_path, 60)
    for child in checks._children.values():
        child.kill()
    assert set(ended(checks).left_out) == {"disk", "memory"}


def test_without_a_folder_the_disk_is_left_out():
    assert set(ended(NodeChecks("n", ("disk",), None, 10)).left_out) == {"disk"}


class Clock:
    """Time that passes while somebody sleeps."""

    now_s = 0.0

    def monotonic(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


class Later:
    """A board on which each key is written at its time."""

    def __init__(self, clock, keys):
        self.clock, self.keys = clock, keys

    def found(self, keys):
        return {key: self.keys[key][1] for key in keys if key in self.keys and self.keys[key][0] <= self.clock.now_s}


@pytest.mark.thorough  # torch is imported
def test_a_node_that_comes_late_still_has_its_time_for_disk_and_memory(monkeypatch):
    from trainwarden.actions.validation.running import store

    clock = Clock()
    monkeypatch.setattr(store, "time", clock)
    member = msgspec.json.encode(RankInfo(rank=0, node="n", local_rank=0, device="cpu"))
    report = msgspec.json.encode(NodeReport(node="n", wrong={"disk": "no answer within 10 s"}))
    board = Later(clock, {"joined/0": (50.0, member), "node/0": (60.0, report)})
    talk = store.StoreTalk(board, 1, 1, lambda: None, join_s=60.0, nodes_s=12.0)
    assert set(talk.join()) == {0}
    assert [one.wrong for one in talk.nodes()] == [{"disk": "no answer within 10 s"}]


@pytest.mark.thorough
def test_a_rank_waits_for_the_leader_as_long_as_its_node_does(monkeypatch):
    from trainwarden.actions.validation.running import rank, store

    asked = []

    def nobody(_address, _port, *, within_s):
        asked.append(within_s)
        raise store.StoreGone("nobody answers")

    monkeypatch.setattr(rank, "connect", nobody)
    assert rank.serve(2, "n", 0, ("127.0.0.1", 1), 600.0) == 0
    assert asked == [600.0]


@pytest.mark.parametrize(
    ("address", "alone", "listens"),
    [
        ("127.0.0.2", False, "127.0.0.2"),
        ("localhost", False, "127.0.0.1"),
        ("10.0.0.1", True, "127.0.0.1"),
        ("192.0.2.1", False, "0.0.0.0"),  # forwarded to this host
        ("no-such-host.invalid", False, "0.0.0.0"),
    ],
)
def test_the_store_listens_at_the_ranks_address_and_no_other(address, alone, listens):
    with listen(address, 0, alone=alone) as listening:
        assert listening.getsockname()[0] == listens


def test_a_name_that_this_host_alone_takes_for_its_loopback_is_reached_by_others(monkeypatch):
    told = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: told)
    with listen("n0", 0, alone=False) as listening:
        assert listening.getsockname()[0] == "0.0.0.0"
