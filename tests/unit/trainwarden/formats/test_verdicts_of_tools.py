"""Tables of disks, fabrics, benchmarks and Kubernetes: what failed is said, what looks like it and is none is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainwarden.errors import DataError
from trainwarden.formats.source import Source
from trainwarden.formats.survey import made, sniffed


def reported(folder: Path, text: str, kind: str, name: str = "out.txt") -> list[str]:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    source = Source(path, name)
    assert sniffed(source)[0] == kind
    return [line.removeprefix("health check: ") for log in made(kind).read(source, {}).logs for line in log.lines]


def failures(lines: list[str]) -> list[str]:
    return [line for line in lines if " failed: " in line]


HEAD = "Filesystem      Size  Used Avail Use% Mounted on\n"
ROOT = "/dev/sda1       100G   20G   80G  20% /\n"


def test_a_full_file_system_is_told_once_and_again_after_it_had_room(tmp_path: Path):
    full = f"{HEAD}{ROOT}/dev/md0          7T    7T     0 100% /data\n"
    room = f"{HEAD}{ROOT}/dev/md0          7T    6T    1T  86% /data\n"
    stamped = [f"2026-09-21 14:0{n}:00\n{table}" for n, table in enumerate((full, full, room, full))]
    found = failures(reported(tmp_path, "".join(stamped), "disk report"))
    assert found == ["/data storage failed: 100 % of 7T used, 0 left (/dev/md0)"] * 2


@pytest.mark.parametrize(
    "row",
    [
        "/dev/loop7       64M   64M     0 100% /snap/core20/9\n",
        "cvmfs2          4.0G  4.0G     0 100% /cvmfs/sw.example.org\n",
        "/dev/sr0        1.1G  1.1G     0 100% /media/cdrom\n",
        "/dev/vdb1       1.1G  1.1G     0 100% /snap/core22/1\n",
        "/dev/md0          7T  6.9T  100G  99% /data\n",
    ],
)
def test_what_is_sealed_or_has_room_is_not_full(tmp_path: Path, row: str):
    lines = reported(tmp_path, HEAD + ROOT + row, "disk report")
    assert not failures(lines)
    assert "/ passed" in lines


def test_inodes_and_kinds_of_file_systems_are_read(tmp_path: Path):
    inodes = "Filesystem     Inodes IUsed IFree IUse% Mounted on\n/dev/sdb1        6.0M  6.0M     0  100% /scratch\n"
    assert failures(reported(tmp_path, inodes, "disk report")) == [
        "/scratch storage failed: no inode is left (/dev/sdb1)"
    ]
    kinds = "Filesystem     Type      Size  Used Avail Use% Mounted on\n"
    kinds += "b1             squashfs  2.0G  2.0G     0 100% /img\n"
    kinds += "/dev/sdb1      xfs       2.0T  2.0T  1.0M 100% /scratch\n"
    assert failures(reported(tmp_path, kinds, "disk report")) == [
        "/scratch storage failed: 100 % of 2.0T used, 1.0M left (/dev/sdb1)"
    ]


def test_a_log_that_prints_its_disks_is_a_log(tmp_path: Path):
    path = tmp_path / "run.log"
    steps = "".join(f"2026-09-21 14:00:{n:02d} step {n} loss 2.0\n" for n in range(40))
    path.write_text(HEAD + ROOT + steps, encoding="utf-8")
    assert sniffed(Source(path, path.name))[0] != "disk report"


PORT = (
    '   GUID 0x1 port {}: {}\n         Link info:  3 1[ ] ==( 4X 106 Gbps Active/ LinkUp)==>  0x2  4  12[ ] "{}" ( )\n'
)


def fabric(owner: str, counts: str, far: str, nodes: int = 40) -> str:
    return (
        f'Errors for 0x1 "{owner}"\n'
        + PORT.format(1, counts, far)
        + f"\n## Summary: {nodes} nodes checked, 1 bad nodes found\n"
    )


@pytest.mark.parametrize(
    ("counts", "bad"),
    [
        ("[LinkErrorRecoveryCounter == 9]", True),
        ("[LocalLinkIntegrityErrors == 1]", True),
        ("[ExcessiveBufferOverrunErrors == 2] [PortXmitWait == 7]", True),
        ("[LinkDownedCounter == 12] [PortRcvSwitchRelayErrors == 99]", False),
        ("[PortXmitWait == 4294967295] [PortXmitDiscards == 800]", False),
        ("[SymbolErrorCounter == 40] [LinkErrorRecoveryCounter == 2]", False),
    ],
)
def test_a_port_fails_by_counters_that_a_sound_link_does_not_have(tmp_path: Path, counts: str, bad: bool):
    lines = reported(tmp_path, fabric("a3 mlx5_1", counts, "leaf2"), "fabric errors")
    assert lines[0].startswith("mlx5_1 port_errors failed: " if bad else "a3_mlx5_1 passed")


def test_the_card_at_the_other_end_is_named_and_a_link_of_switches_by_its_port(tmp_path: Path):
    counts = "[LinkErrorRecoveryCounter == 9]"
    (line,) = reported(tmp_path, fabric("leaf2", counts, "a3 mlx5_1"), "fabric errors")
    assert line == "mlx5_1 port_errors failed: LinkErrorRecoveryCounter 9, counted by leaf2 port 1"
    (line,) = reported(tmp_path, fabric("leaf2", counts, "spine1"), "fabric errors")
    assert line.startswith("leaf2:1 port_errors failed: ")
    both = fabric("leaf2", counts, "a3 mlx5_1") + fabric("a3 mlx5_1", counts, "leaf2")
    (line,) = failures(reported(tmp_path, both, "fabric errors"))  # one link
    assert line == "mlx5_1 port_errors failed: LinkErrorRecoveryCounter 9; linked to leaf2"


def test_counters_of_a_whole_fabric_that_were_not_cleared_accuse_no_port(tmp_path: Path):
    text = "".join(fabric(f"a{n} mlx5_0", "[LinkErrorRecoveryCounter == 9]", "leaf", 1) for n in range(8))
    assert not failures(reported(tmp_path, text, "fabric errors"))


TESTS = """# nThread 1 nGpus 1 minBytes 1024 maxBytes 1024 step: 2(factor) validation: 1
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
        1024           256     float     sum      -1     9.10    0.11    0.20 {wrong:>6}     9.00    0.11    0.20      0
# Out of bounds values : {total}
# Avg bus bandwidth    : 0.20
"""


def test_wrong_values_of_a_benchmark_are_told_and_its_bandwidth_is_not(tmp_path: Path):
    bad, well = TESTS.format(wrong=8, total="1 FAILED"), TESTS.format(wrong=0, total="0 OK")
    assert reported(tmp_path, bad + well, "nccl tests") == [
        "collectives results failed: 1 results with values out of bounds, 8 wrong values in all",
        "collectives passed",
    ]
    for text in (well, TESTS.format(wrong="N/A", total="0 OK")):
        with pytest.raises(DataError, match="a benchmark: bandwidths"):
            reported(tmp_path, text, "nccl tests")


def pod(state: dict[str, Any], last: dict[str, Any] | None = None, phase: str = "Running") -> dict[str, Any]:
    status = {"name": "main", "restartCount": 0, "state": state, "lastState": last or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "t-1"}, "spec": {"nodeName": "a2"},
            "status": {"phase": phase, "containerStatuses": [status]}}  # fmt: skip


def objects(*of: dict[str, Any]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(of)})


def ended(reason: str, code: int, day: int = 21) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "finishedAt": f"2026-09-{day}T14:00:00Z"}}


RUNNING = {"running": {"startedAt": "2026-09-21T14:10:00Z"}}


def test_pods_of_json_say_who_was_killed_and_where(tmp_path: Path):
    kind = "kubernetes objects"
    assert reported(tmp_path, objects(pod(RUNNING)), kind) == ["pod t-1: Running"]
    told = "pod t-1: container main ended: OOMKilled, exit code 137"
    assert reported(tmp_path, objects(pod(ended("OOMKilled", 137), phase="Failed")), kind) == [told, "pod t-1: Failed"]
    assert reported(tmp_path, objects(pod(RUNNING, ended("OOMKilled", 137))), kind) == [told, "pod t-1: Running"]
    assert reported(tmp_path, objects(pod(RUNNING, ended("OOMKilled", 137, 11))), kind) == ["pod t-1: Running"]
    assert reported(tmp_path, objects(pod(ended("Completed", 0), phase="Succeeded")), kind) == ["pod t-1: Succeeded"]


@pytest.mark.parametrize("one", [pod(ended("Error", 1), phase="Failed"), pod({"waiting": {}}, phase="Pending")])
def test_pods_that_failed_without_a_known_reason_are_not_judged(tmp_path: Path, one: dict[str, Any]):
    with pytest.raises(DataError, match=r"1 pods do not run or have failed \(t-1\)"):
        reported(tmp_path, objects(one), "kubernetes objects")


def test_nodes_of_json_are_read_as_the_table_of_nodes(tmp_path: Path):
    def node(name: str, ready: str) -> dict[str, Any]:
        conditions = [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-09-21T14:00:00Z"}]
        return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
                "status": {"conditions": conditions, "nodeInfo": {"kubeletVersion": "v1.29.6"}}}  # fmt: skip

    lines = reported(tmp_path, objects(node("a1", "True"), node("a2", "Unknown")), "kubernetes objects")
    assert sorted(lines) == ["a2   NotReady   <none>   1d   v1.29.6", "node a1: Ready"]


PODS = "NAME   READY   STATUS    RESTARTS     AGE\n"


def test_a_table_of_pods_that_run_is_judged_and_others_ask_for_their_logs(tmp_path: Path):
    well = f"{PODS}t-0    1/1     Running   1 (9d ago)   10d\nprep   0/1     Completed   0   10d\n"
    assert reported(tmp_path, well, "kubernetes objects") == ["pod t-0: Running", "pod prep: Completed"]
    for row in ("t-1    0/1     Running   0   1d\n", "t-1    0/1     CrashLoopBackOff   9 (2m ago)   1d\n"):
        path = tmp_path / "pods.txt"
        path.write_text(well + row, encoding="utf-8")
        assert sniffed(Source(path, path.name))[0] != "kubernetes objects"


def ports(*of: tuple[str, str, str]) -> str:
    return "".join(
        f"{n}: {name}: <BROADCAST,MULTICAST,{flags}> mtu 9000 qdisc mq state {state} mode DEFAULT\n"
        f"    link/ether 02:00:00:00:00:{n:02x} brd ff:ff:ff:ff:ff:ff\n"
        for n, (name, flags, state) in enumerate(of)
    )


UP = [(f"ens{n}np0", "UP,LOWER_UP", "UP") for n in range(4)]


def test_a_port_without_carrier_among_others_of_its_kind_is_down(tmp_path: Path):
    lines = reported(tmp_path, ports(*UP, ("ens7np0", "NO-CARRIER,UP", "DOWN")), "interface list")
    assert failures(lines) == ["ens7np0 port failed: no carrier, while 4 others of its kind are up"]


@pytest.mark.parametrize(
    "other",
    [
        ("docker0", "NO-CARRIER,UP", "DOWN"), ("ens7np0", "", "DOWN"), ("eno1", "NO-CARRIER,UP", "DOWN"),
        ("bond0", "NO-CARRIER,MASTER,UP", "DOWN"), ("ens7np0", "UP,LOWER_UP", "UNKNOWN"),
    ],
)  # fmt: skip
def test_what_wants_no_cable_is_not_down(tmp_path: Path, other: tuple[str, str, str]):
    assert not failures(reported(tmp_path, ports(*UP, other), "interface list"))


def test_few_or_many_ports_without_carrier_are_not_judged(tmp_path: Path):
    down = [(f"ens{n}np0", "NO-CARRIER,UP", "DOWN") for n in range(4, 8)]
    assert not failures(reported(tmp_path, ports(*UP, *down), "interface list"))
    with pytest.raises(DataError, match="no port is down among others of its kind"):
        reported(tmp_path, ports(UP[0], down[0]), "interface list")


def cards(*widths: int, kind: str = "3D controller", model: str = "NVIDIA Corporation GH100", most: int = 16) -> str:
    return "".join(
        f"{n:02x}:00.0 {kind}: {model}\n\tNUMA node: 0\n\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x{most}, ASPM L1\n"
        f"\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x{width} (ok)\n\n" for n, width in enumerate(widths)
    )  # fmt: skip


def test_the_device_with_fewer_lanes_than_others_of_its_model_is_told(tmp_path: Path):
    lines = reported(tmp_path, cards(16, 16, 8, 16, 16), "pci list")
    assert failures(lines) == [
        "0000:02:00.0 pcie failed: x8 of x16, while 4 others of its model have all lanes: NVIDIA Corporation GH100"
    ]


def test_links_that_are_slow_alike_alone_or_empty_are_no_fault(tmp_path: Path):
    assert not failures(reported(tmp_path, cards(16, 16, 16, 16), "pci list"))  # 2.5 GT/s: idle
    assert not failures(reported(tmp_path, cards(16, 16, 16, 16, 0), "pci list"))  # switched off
    bridges = cards(0, 0, 0, 4, kind="PCI bridge", model="Intel root port")
    assert not failures(reported(tmp_path, cards(16, 16, 16, 16) + bridges, "pci list"))
    for text in (cards(8, 8, 8, 8), cards(16, 8), cards(16, 16, 16, kind="PCI bridge")):
        with pytest.raises(DataError, match="devices of one model"):
            reported(tmp_path, text, "pci list")
