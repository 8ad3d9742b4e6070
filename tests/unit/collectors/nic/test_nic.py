"""The NIC collector over a miniature sysfs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.doubles import ManualClock
from trainwarden.collectors.nic.collector import NicCollector, choose
from trainwarden.collectors.nic.port_files import OpenFiles, PortFiles
from trainwarden.protocols import Scope
from trainwarden.records import EventRecord, MetricsRecord


class Sysfs:
    """A folder that looks like /sys to the collector."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str | int) -> None:
        file = self.root / "class" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def ethernet(self, name: str, state: str = "up", **counters: int) -> None:
        self.write(f"net/{name}/type", 1)
        self.write(f"net/{name}/operstate", state)
        self.write(f"net/{name}/speed", 100_000 if state == "up" else -1)
        for counter, value in counters.items():
            folder = "" if counter.startswith("carrier") else "statistics/"
            self.write(f"net/{name}/{folder}{counter}", value)
        (self.root / "class" / "net" / name / "statistics").mkdir(exist_ok=True)

    def rdma(self, device: str, port: int = 1, state: str = "4: ACTIVE", **counters: int) -> None:
        folder = f"infiniband/{device}/ports/{port}"
        self.write(f"{folder}/state", state)
        self.write(f"{folder}/phys_state", "5: LinkUp")
        self.write(f"{folder}/rate", "400 Gb/sec (4X NDR)")
        for counter, value in counters.items():
            hardware = counter.startswith(("np_", "rp_", "out_of", "local_ack"))
            self.write(f"{folder}/{'hw_counters' if hardware else 'counters'}/{counter}", value)

    def efa(self, device: str, driver: str | None = "efa", *, commands: str = "hw_counters", **counters: int) -> None:
        """An Elastic Fabric Adapter; newer kernels have its `commands` beside its ports, older ones within."""
        self.rdma(device)
        if driver is not None:
            (self.root / "class" / "infiniband" / device / "device").mkdir()
            (self.root / "class" / "infiniband" / device / "device" / "driver").symlink_to(f"../../drivers/{driver}")
        for counter, value in counters.items():
            folder = commands if counter.endswith(("cmds", "cmds_err")) else "ports/1/hw_counters"
            self.write(f"infiniband/{device}/{folder}/{counter}", value)


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path)


def collector_over(sysfs: Sysfs, **options: object) -> NicCollector:
    config = NicCollector.Config(sysfs=str(sysfs.root), **options)  # type: ignore[arg-type]
    return NicCollector(config, Scope(job="job", node="n0", run_dir="nowhere"), ManualClock())


def look(collector: NicCollector, now_s: float = 1.0) -> tuple[dict[str, dict[str, float]], list[EventRecord]]:
    """Values by device and metric, and events."""
    values: dict[str, dict[str, float]] = {}
    events = []
    for record in collector.collect(now_s):
        if isinstance(record, MetricsRecord):
            for name, row in zip(record.names, record.values, strict=True):
                for device, value in zip(record.devices, row, strict=True):
                    if value is not None:
                        values.setdefault(device, {})[name] = value
        elif isinstance(record, EventRecord):
            events.append(record)
    return values, events


def test_ethernet_counters_speed_and_state(sysfs: Sysfs) -> None:
    sysfs.ethernet("eth0", rx_bytes=1000, tx_bytes=2000, rx_dropped=3, carrier_changes=2, carrier_down_count=1)
    values, events = look(collector_over(sysfs))
    assert values == {
        "eth0": {
            "nic_receive_bytes": 1000.0,
            "nic_transmit_bytes": 2000.0,
            "nic_receive_dropped_count": 3.0,
            "nic_carrier_changes_count": 2.0,
            "nic_carrier_down_count": 1.0,
            "nic_link_state": 1.0,
            "nic_speed_bytes_per_second": 12.5e9,
        }
    }
    assert events == []


def test_rdma_counters_in_our_units(sysfs: Sysfs) -> None:
    sysfs.rdma("mlx5_0", port_xmit_data=1000, link_downed=1, symbol_error=7, np_cnp_sent=9, local_ack_timeout_err=2)
    values, _ = look(collector_over(sysfs))
    assert values == {
        "mlx5_0:1": {
            "nic_rdma_transmit_bytes": 4000.0,
            "nic_rdma_link_downed_count": 1.0,
            "nic_rdma_symbol_errors_count": 7.0,
            "nic_rdma_cnp_sent_count": 9.0,
            "nic_rdma_local_ack_timeouts_count": 2.0,
            "nic_rdma_link_state": 4.0,
            "nic_rdma_physical_state": 5.0,
            "nic_rdma_rate_bytes_per_second": 50e9,
        }
    }


def test_a_link_that_goes_and_comes_is_two_events(sysfs: Sysfs) -> None:
    sysfs.ethernet("eth0", carrier_changes=2)
    sysfs.rdma("mlx5_0", link_downed=0)
    collector = collector_over(sysfs)
    look(collector)
    sysfs.ethernet("eth0", "down", carrier_changes=3)
    sysfs.rdma("mlx5_0", state="1: DOWN", link_downed=1)
    values, events = look(collector)
    assert [(event.kind, event.device) for event in events] == [("link_down", "eth0"), ("link_down", "mlx5_0:1")]
    assert values["eth0"]["nic_link_state"] == 0.0
    assert "nic_speed_bytes_per_second" not in values["eth0"]
    assert look(collector)[1] == []
    sysfs.ethernet("eth0", carrier_changes=4)
    sysfs.rdma("mlx5_0", link_downed=1)
    assert [(event.kind, event.device) for event in look(collector)[1]] == [
        ("link_up", "eth0"),
        ("link_up", "mlx5_0:1"),
    ]


def test_efa_counts_bytes_errors_and_what_it_sent_again(sysfs: Sysfs) -> None:
    sysfs.efa(
        "rdmap113s0", tx_bytes=1000, rx_drops=2, rdma_write_wr_err=3, retrans_timeout_events=4, no_completion_cmds=1
    )
    sysfs.efa("efa_0", None, tx_bytes=2000, rdma_read_bytes=5, unresponsive_remote_events=6, lifespan=12)
    sysfs.efa("rdmap2s0", commands="ports/1/hw_counters", cmds_err=7, impaired_remote_conn_events=8, rdma_read_wr_err=9)
    collector = collector_over(sysfs, ethtool_every=1)
    values, events = look(collector)
    port = {"nic_rdma_link_state": 4.0, "nic_rdma_physical_state": 5.0, "nic_rdma_rate_bytes_per_second": 50e9}
    assert values == {
        "rdmap113s0:1": port
        | {
            "nic_rdma_transmit_bytes": 1000.0,
            "nic_rdma_receive_dropped_count": 2.0,
            "nic_rdma_write_errors_count": 3.0,
            "nic_rdma_retransmit_timeouts_count": 4.0,
            "nic_rdma_uncompleted_commands_count": 1.0,
        },
        "efa_0:1": port
        | {
            "nic_rdma_transmit_bytes": 2000.0,
            "nic_rdma_read_bytes": 5.0,
            "nic_rdma_unresponsive_remotes_count": 6.0,
        },
        "rdmap2s0:1": port
        | {
            "nic_rdma_command_errors_count": 7.0,
            "nic_rdma_impaired_connections_count": 8.0,
            "nic_rdma_read_errors_count": 9.0,
        },
    }
    assert events == []


def test_efa_ports_take_turns_and_can_be_left_in_peace(sysfs: Sysfs) -> None:
    for number in range(3):
        sysfs.efa(f"rdmap{number}s0", tx_bytes=number)
    collector = collector_over(sysfs, ethtool_every=2)
    ticks = [look(collector)[0] for _ in range(4)]
    seen = [[name[:6] for name, row in tick.items() if "nic_rdma_transmit_bytes" in row] for tick in ticks]
    assert seen == [["rdmap0", "rdmap2"], ["rdmap1"]] * 2
    assert all(len(tick) == 3 for tick in ticks), "states are told at every tick"
    never, _ = look(collector_over(sysfs, ethtool_every=0))
    assert all("nic_rdma_transmit_bytes" not in row for row in never.values())


def test_the_counters_of_other_drivers_are_not_taken_for_those_of_efa(sysfs: Sysfs) -> None:
    """Broadcom's driver has tx_bytes among its hardware counters too, beside those of the port."""
    sysfs.efa("bnxt_re0", "bnxt_re", tx_bytes=1, rx_drops=2)
    sysfs.rdma("bnxt_re0", port_xmit_data=1000)
    values, _ = look(collector_over(sysfs, ethtool_every=1))
    assert values["bnxt_re0:1"]["nic_rdma_transmit_bytes"] == 4000.0
    assert "nic_rdma_receive_dropped_count" not in values["bnxt_re0:1"]


def test_the_same_change_seen_again_after_a_kill_has_the_same_id(sysfs: Sysfs) -> None:
    sysfs.ethernet("eth0", carrier_changes=2)
    first = collector_over(sysfs)
    look(first)
    position = first.position()
    sysfs.ethernet("eth0", "down", carrier_changes=3)
    second = collector_over(sysfs)
    second.restore(position)
    assert [event.id for event in look(first, 5.0)[1]] == [event.id for event in look(second, 9.0)[1]]


def test_a_port_that_vanishes_is_down(sysfs: Sysfs) -> None:
    sysfs.rdma("mlx5_0")
    sysfs.rdma("mlx5_1")
    collector = collector_over(sysfs)
    look(collector)
    (sysfs.root / "class" / "infiniband" / "mlx5_1").rename(sysfs.root / "gone")
    _, events = look(collector)
    assert [(event.kind, event.device) for event in events] == [("link_down", "mlx5_1:1")]
    assert look(collector)[1] == []


def test_virtual_ports_and_those_never_up_are_left_out(sysfs: Sysfs) -> None:
    for name in ("lo", "veth12", "docker0", "br-1a", "ifb0"):
        sysfs.ethernet(name)
    sysfs.ethernet("loop9")
    sysfs.write("net/loop9/type", 772)
    sysfs.ethernet("eth1", "down", carrier_changes=1)
    sysfs.ethernet("eth2v0")
    (sysfs.root / "class" / "net" / "eth2v0" / "device" / "physfn").mkdir(parents=True)
    sysfs.rdma("mlx5_9")
    (sysfs.root / "class" / "infiniband" / "mlx5_9" / "device" / "physfn").mkdir(parents=True)
    sysfs.write("net/bonding_masters", "")
    sysfs.ethernet("eth0")
    collector = collector_over(sysfs)
    values, events = look(collector)
    assert list(values) == ["eth0"]
    assert events == []
    sysfs.ethernet("eth1")
    values, events = look(collector)
    assert list(values) == ["eth0", "eth1"]
    assert events == []


def test_what_a_port_is_is_asked_anew_when_others_come_and_within_a_minute_anyway(sysfs: Sysfs) -> None:
    sysfs.ethernet("eth0", rx_bytes=1)
    sysfs.write("net/eth1/type", 772)
    collector = collector_over(sysfs)
    assert set(look(collector)[0] | look(collector)[0]) == {"eth0"}
    sysfs.ethernet("eth2", rx_bytes=1)
    look(collector)
    assert set(look(collector)[0]) == {"eth0", "eth2"}
    sysfs.ethernet("eth1", rx_bytes=1)  # the same name, another device
    assert any("eth1" in look(collector)[0] for _ in range(62))


def test_include_wins_over_exclude(sysfs: Sysfs) -> None:
    sysfs.ethernet("veth0")
    sysfs.ethernet("veth1")
    values, _ = look(collector_over(sysfs, include=("veth0",)))
    assert list(values) == ["veth0"]


def test_a_driver_that_does_not_know_its_state_is_asked_for_its_carrier(sysfs: Sysfs) -> None:
    sysfs.ethernet("eth0", "unknown")
    sysfs.write("net/eth0/carrier", 1)
    values, _ = look(collector_over(sysfs))
    assert values["eth0"]["nic_link_state"] == 1.0


def test_junk_in_sysfs_is_not_measured(sysfs: Sysfs) -> None:
    sysfs.ethernet("eth0", rx_bytes=1)
    sysfs.write("net/eth0/statistics/tx_bytes", "N/A")
    sysfs.write("net/eth0/speed", "garbage")
    sysfs.rdma("mlx5_0")
    sysfs.write("infiniband/mlx5_0/ports/1/rate", "fast")
    sysfs.write("infiniband/mlx5_0/ports/1/phys_state", "")
    values, _ = look(collector_over(sysfs))
    assert values["eth0"] == {"nic_receive_bytes": 1.0, "nic_link_state": 1.0}
    assert values["mlx5_0:1"] == {"nic_rdma_link_state": 4.0}


def test_no_port_at_all_is_one_sentence(sysfs: Sysfs) -> None:
    assert collector_over(sysfs).supported() == f"there is no network port to watch under {sysfs.root}"
    sysfs.rdma("mlx5_0")
    assert collector_over(sysfs).supported() is None


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["rx_pause_ctrl_phy", "rx_prio0_pause", "rx_prio5_pause"], {"nic_receive_pause_frames_count": (1, 2)}),
        (
            ["rx_discards_phy", "tx_pause"],
            {"nic_transmit_pause_frames_count": (1,), "nic_receive_discards_count": (0,)},
        ),
        (["rx_packets", "rx_prio0_pause_duration"], {}),
    ],
)
def test_driver_counters_are_chosen_by_name(names: list[str], expected: dict[str, tuple[int, ...]]) -> None:
    assert choose(names) == expected


def test_a_files_second_reading_opens_nothing(sysfs: Sysfs, monkeypatch: pytest.MonkeyPatch) -> None:
    sysfs.ethernet("eth0", rx_bytes=1)
    sysfs.rdma("mlx5_0", link_downed=0, np_cnp_sent=9)
    collector = collector_over(sysfs)
    look(collector)
    opened: list[str] = []
    really = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest: opened.append(path) or really(path, *rest))
    sysfs.ethernet("eth0", rx_bytes=2)
    assert look(collector)[0]["eth0"]["nic_receive_bytes"] == 2.0
    assert not [path for path in opened if os.path.exists(path)], "only what was not there is looked for again"


def test_an_interface_under_the_name_of_another_is_not_taken_for_it(sysfs: Sysfs) -> None:
    sysfs.ethernet("eth0", rx_bytes=1)
    sysfs.ethernet("eth1", rx_bytes=2)
    collector = collector_over(sysfs)
    look(collector)
    net = sysfs.root / "class" / "net"
    for old, new in (("eth0", "away"), ("eth1", "eth0"), ("away", "eth1")):
        (net / old).rename(net / new)
    values, events = look(collector)
    assert [values[name]["nic_receive_bytes"] for name in ("eth0", "eth1")] == [2.0, 1.0]
    assert events == []


def test_a_port_keeps_no_more_files_open_than_it_may_and_none_in_the_end(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text("7\n")
    opened, before = OpenFiles(), len(os.listdir("/proc/self/fd"))
    assert opened.most > 100
    opened.most = 2
    port = PortFiles(str(tmp_path), opened)
    for _ in range(2):
        assert port.numbers(".", {"a": "x", "b": "y", "c": "z", "d": "absent"}) == {"x": 7.0, "y": 7.0, "z": 7.0}
        assert (opened.kept, len(os.listdir("/proc/self/fd"))) == (2, before + 2)
    port.close()
    port.close()
    assert (opened.kept, len(os.listdir("/proc/self/fd"))) == (0, before)


def test_ports_that_go_take_their_files_along(sysfs: Sysfs) -> None:
    sysfs.ethernet("eth0", rx_bytes=1)
    sysfs.rdma("mlx5_0", link_downed=0)
    collector = collector_over(sysfs)
    before = len(os.listdir("/proc/self/fd"))
    look(collector)
    assert len(os.listdir("/proc/self/fd")) > before
    shutil.rmtree(sysfs.root)
    _, events = look(collector)
    assert [event.kind for event in events] == ["link_down", "link_down"]
    assert len(os.listdir("/proc/self/fd")) == before


def test_one_that_was_only_asked_whether_there_is_a_port_keeps_no_file(sysfs: Sysfs) -> None:
    sysfs.ethernet("eth0", rx_bytes=1)
    before = len(os.listdir("/proc/self/fd"))
    collector = collector_over(sysfs)
    assert collector.supported() is None
    collector.close()
    assert len(os.listdir("/proc/self/fd")) == before
