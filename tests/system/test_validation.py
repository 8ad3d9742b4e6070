"""`trainwarden validate` with real processes: who is slow, dead, hung or wrong is named; who is well is not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.places import ROOT
from tests.servers.kafka import ServerMissing
from tests.testbed.nodes import Testbed
from tests.torch_forks import TorchForks

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

SCRIPT = ROOT / "tests" / "scripts" / "validate_there.py"
PATIENCE_S = 400.0
SLOW_MBIT = 100.0  # 84 ms for a message of 1 MiB, which veth carries in one


@pytest.fixture(scope="module")
def forks():
    server = TorchForks()
    yield server
    server.close()


class Started:
    """A validation under way: one process for each node."""

    def __init__(self, folder: Path, processes: list) -> None:
        self.folder, self.processes = folder, processes

    def result(self, node: int = 0) -> dict:
        codes = [process.wait(PATIENCE_S) for process in self.processes]
        said = (self.folder / f"{node}.log").read_text()
        path = self.folder / f"{node}.json"
        assert path.exists(), (codes, said)
        result = json.loads(path.read_text())
        assert all(code == (1 if result["accused"] else 0) for code in codes), (codes, said)
        assert "Traceback" not in said
        lines = (line for line in said.splitlines() if "nanobind" not in line and "leaked" not in line)
        return result | {"said": "\n".join(lines)}

    def ranks(self, number: int) -> list[psutil.Process]:
        """The forks of the first node, once there are so many."""
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            children = [
                one for one in psutil.Process(self.processes[0].pid).children() if "_child.py" not in str(one.cmdline())
            ]  # fmt: skip
            if len(children) >= number:
                return sorted(children, key=lambda one: one.pid)
            time.sleep(0.01)
        raise AssertionError("no ranks")


def start(forks, folder, *arguments, environ=None, pid="-", group="-", fault="-", node=0):
    words = [str(SCRIPT), pid, group, fault, *arguments, "--json", str(folder / f"{node}.json")]
    own = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TRAINWARDEN_NODE": f"node-{node}"}
    return forks.start(words, {**own, **(environ or {})}, folder=folder, log=folder / f"{node}.log")


def local(forks, folder, nproc, *arguments, **how):
    return Started(folder, [start(forks, folder, "--nproc", str(nproc), *arguments, **how)])


def cluster(forks, folder, nodes, *arguments, groups=None, faults=None):
    """Four nodes with two ranks each, each in a network of its own."""
    return Started(
        folder,
        [
            start(
                forks, folder, "--nproc", "2", "--nnodes", str(len(nodes)), "--node-rank", str(number),
                "--master-addr", nodes[0].address, *arguments,
                environ={"GLOO_SOCKET_IFNAME": "eth0"}, pid=str(node.pid), node=number,
                group=(groups or {}).get(number, "-"), fault=(faults or {}).get(number, "-"),
            )
            for number, node in enumerate(nodes)
        ],
    )  # fmt: skip


def accused(result):
    return sorted((one["kind"], tuple(one.get("ranks", ()))) for one in result["accused"])


@pytest.fixture
def nodes(tmp_path, require_servers):
    try:
        with Testbed(4, tmp_path) as made:
            yield made.nodes
    except ServerMissing as missing:
        require_servers(str(missing))


@pytest.fixture
def quota():
    """A control group with a tenth of a processor."""
    for root, files in (
        (Path("/sys/fs/cgroup/cpu"), {"cpu.cfs_period_us": "50000", "cpu.cfs_quota_us": "5000"}),
        (Path("/sys/fs/cgroup"), {"cpu.max": "5000 50000"}),
    ):
        group = root / f"tw-quota-{os.getpid()}"
        with suppress(OSError):
            group.mkdir()
            for name, value in files.items():
                (group / name).write_text(value)
            yield str(group)
            for pid in (group / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            until_s = time.monotonic() + 10
            while time.monotonic() < until_s:
                with suppress(OSError):
                    group.rmdir()
                    return
                time.sleep(0.05)
            return
        with suppress(OSError):
            group.rmdir()
    pytest.skip("no control group with a quota can be made here")


def test_a_healthy_group_is_accused_of_nothing(forks, tmp_path):
    result = local(forks, tmp_path, 8, "--checkpoints", str(tmp_path)).result()
    assert accused(result) == [], result["said"]
    assert [(one["rank"], one["s"] > 0, one["suspect"]) for one in result["compute"]] == [
        (rank, True, False) for rank in range(8)
    ]
    assert len(result["links"]) == 28
    assert not any(one["suspect"] for one in result["links"])
    assert all(one["gbps"] > 0 and one["a"] != one["b"] for one in result["links"])
    assert result["wall_s"] > 0
    assert {"write", "read", "memory"} == set(result["mb_per_s"]["node-0"])
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".trainwarden")] == []


def test_a_slow_port_is_named_among_eight_ranks(forks, tmp_path, nodes):
    nodes[3].slow(SLOW_MBIT)
    result = cluster(forks, tmp_path, nodes, "--checks", "gemm,links").result()
    [(kind, ranks)] = accused(result)
    # Both of the node's, unless a busy machine let a message of one through in what the port lets pass at once.
    assert kind == "slow_link", result["said"]
    assert {6, 7}.issuperset(ranks), result["said"]
    assert result["accused"][0]["nodes"] == ["node-3"]


def test_a_slow_link_is_named_and_not_its_ends(forks, tmp_path, nodes):
    nodes[1].slow_link(nodes[3], SLOW_MBIT)
    result = cluster(forks, tmp_path, nodes, "--checks", "gemm,links").result()
    assert {(one["kind"], tuple(one["nodes"])) for one in result["accused"]} == {("slow_link", ("node-1", "node-3"))}
    assert {tuple(one["link"]) for one in result["accused"]} <= {(2, 6), (2, 7), (3, 6), (3, 7)}


def test_every_node_ends_with_the_same_result(forks, tmp_path, nodes):
    started = cluster(forks, tmp_path, nodes, "--checks", "gemm", faults={2: "slow"})
    results = [started.result(node) for node in range(4)]
    assert accused(results[0]) == [("slow_compute", (4, 5))], results[0]["said"]
    assert all(one["accused"] == results[0]["accused"] for one in results)


def test_a_node_that_its_control_group_holds_back_is_named_so_and_its_device_is_not(forks, tmp_path, nodes, quota):
    result = cluster(forks, tmp_path, nodes, "--checks", "gemm,links", groups={1: quota}).result()
    assert accused(result) == [("host_contention", (2, 3))], result["said"]


def test_wrong_products_are_named(forks, tmp_path, nodes):
    result = cluster(forks, tmp_path, nodes, "--checks", "gemm", faults={3: "corrupt"}).result()
    assert accused(result) == [("silent_corruption", (6, 7))], result["said"]


def test_a_node_that_is_cut_off_from_another_is_told(forks, tmp_path, nodes):
    nodes[1].lose(nodes[3])
    result = cluster(forks, tmp_path, nodes, "--checks", "links").result()
    assert result["accused"], result["said"]
    assert {tuple(one["nodes"]) for one in result["accused"]} == {("node-1", "node-3")}, result["said"]


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGKILL, "crash"), (signal.SIGSTOP, "hang")])
def test_a_rank_that_dies_or_hangs_in_the_middle_is_named_in_time(forks, tmp_path, number, kind):
    started = local(forks, tmp_path, 4, "--checks", "gemm,links", "--burn-in", "1")
    victim = started.ranks(4)[2]
    time.sleep(1.0)
    victim.send_signal(number)
    result = started.result()
    assert accused(result) == [(kind, (2,))], result["said"]
    assert sum(result["took_s"].values()) < 60
    assert not psutil.pid_exists(victim.pid)


def test_ranks_end_with_the_process_that_started_them(forks, tmp_path):
    started = local(forks, tmp_path, 4, "--burn-in", "5")
    ranks = started.ranks(4)
    os.kill(started.processes[0].pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(ranks, timeout=20)
    assert alive == []


def test_a_signal_ends_all_of_it(forks, tmp_path):
    started = local(forks, tmp_path, 4, "--burn-in", "5")
    ranks = started.ranks(4)
    os.kill(started.processes[0].pid, signal.SIGTERM)
    assert started.processes[0].wait(20) == 128 + signal.SIGTERM
    assert not any(psutil.pid_exists(one.pid) for one in ranks)


def test_a_full_disk_is_named(forks, tmp_path):
    """In a file system of its own, so that nobody else's is filled."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    small = tmp_path / "small"
    small.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], check=False, capture_output=True
    )
    if made.returncode != 0:
        pytest.skip(f"tmpfs cannot be mounted: {made.stderr.decode().strip()}")
    try:
        result = local(forks, tmp_path, 2, "--checks", "disk", "--checkpoints", str(small)).result()
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert accused(result) == [("storage", (0, 1))]
    assert "No space left on device" in result["said"]


def test_a_rank_that_stands_still_before_it_comes_is_named_with_its_node(forks, tmp_path):
    started = local(forks, tmp_path, 2, "--checks", "gemm", "--join", "5")
    started.ranks(2)[1].send_signal(signal.SIGSTOP)
    result = started.result()
    assert accused(result) in ([("node_lost", (1,))], [("hang", (1,))]), result["said"]
    assert "rank 1 on node-0" in result["said"]


def test_ranks_that_never_come_are_named(forks, tmp_path):
    words = ("--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1", "--port", "29871", "--join", "3")
    result = local(forks, tmp_path, 2, *words, "--checks", "gemm", environ={"GLOO_SOCKET_IFNAME": "lo"}).result()
    assert accused(result) == [("node_lost", (2,)), ("node_lost", (3,))], result["said"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_where_the_leader_dies_or_hangs_the_other_nodes_say_so(forks, tmp_path, number):
    words = ("--nproc", "1", "--nnodes", "2", "--master-addr", "127.0.0.1", "--port", "29874", "--burn-in", "5")
    here = {"GLOO_SOCKET_IFNAME": "lo"}
    leader, other = (
        start(forks, tmp_path, *words, "--checks", "gemm", "--node-rank", str(node), node=node, environ=here)
        for node in range(2)
    )
    met = Started(tmp_path, [other])
    until_s = time.monotonic() + PATIENCE_S
    while not (met.ranks(1)[0].net_connections() and psutil.Process(other.pid).net_connections()):
        assert time.monotonic() < until_s
        time.sleep(0.05)
    os.kill(leader.pid, number)
    try:
        assert other.wait(60) == 1
    finally:
        with suppress(ProcessLookupError):
            os.kill(leader.pid, signal.SIGKILL)
    result = json.loads((tmp_path / "1.json").read_text())
    assert accused(result) == [("node_lost", (0,))]
    assert "rank 0, which leads the validation at 127.0.0.1:29874, is gone" in result["accused"][0]["text"]


def test_a_signal_ends_a_node_whose_leader_has_not_come(forks, tmp_path):
    words = ("--nproc", "1", "--nnodes", "2", "--node-rank", "1", "--master-addr", "127.0.0.1", "--port", "29875")
    waiting = Started(tmp_path, [start(forks, tmp_path, *words)])
    ranks = waiting.ranks(1)
    time.sleep(1.0)
    os.kill(waiting.processes[0].pid, signal.SIGTERM)
    assert waiting.processes[0].wait(20) == 128 + signal.SIGTERM
    assert not any(psutil.pid_exists(one.pid) for one in ranks)


def as_torchrun(forks, folder, ranks, port, fault="-"):
    """One process for each of `ranks` by number, of two."""
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    return Started(
        folder,
        [
            start(
                forks, folder, "--checks", "gemm,links", "--port", port, "--join", str(PATIENCE_S),
                node=number, fault=fault, environ={**shared, "RANK": rank, "LOCAL_RANK": rank},
            )
            for number, rank in ranks.items()
        ],
    )  # fmt: skip


def test_the_variables_of_torchrun_are_enough(forks, tmp_path):
    result = as_torchrun(forks, tmp_path, {0: "0", 1: "1"}, "29872").result()
    assert accused(result) == [], result["said"]
    assert len(result["links"]) == 2
    assert len(result["unjudged"]) == 2


def test_a_rank_that_is_started_twice_is_told(forks, tmp_path):
    """Whichever comes first, and however late: the leader's own rank begins once one of the two has seen the other."""
    twice = as_torchrun(forks, tmp_path, {1: "1", 2: "1"}, "29873").processes
    doubles = [Started(tmp_path, [one]).ranks(1)[0] for one in twice]
    [leader] = as_torchrun(forks, tmp_path, {0: "0"}, "29873", fault="held").processes
    started = Started(tmp_path, [leader, *twice])
    [leading] = started.ranks(1)
    until_s = time.monotonic() + PATIENCE_S
    while leading.status() != psutil.STATUS_STOPPED or all(one.is_running() for one in doubles):
        assert time.monotonic() < until_s
        time.sleep(0.01)
    leading.resume()
    result = started.result()
    assert accused(result) == [("crash", (1,))], result["said"]
    assert "started twice" in result["said"]


def test_a_rank_that_is_started_when_all_is_over_blames_nobody(forks, tmp_path):
    as_torchrun(forks, tmp_path, {0: "0", 1: "1"}, "29876").result()
    here = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    late = start(forks, tmp_path, "--port", "29876", "--join", "1", node=2, environ={**here, "RANK": "1"})
    assert late.wait(PATIENCE_S) == 3
    assert "NOT JUDGED: nobody answers at 127.0.0.1:29876" in (tmp_path / "2.log").read_text()
    assert json.loads((tmp_path / "2.json").read_text()).keys() == {"answer", "not_judged"}
