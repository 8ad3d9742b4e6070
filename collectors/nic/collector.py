"""Network ports through sysfs: Ethernet interfaces, InfiniBand, RoCE and EFA ports, their counters and links.

Which sysfs file of a network port is which metric of the catalogue.

Driver counters of an Ethernet port by the ethtool ioctl: pause frames, pause storms, discards.

Priority flow control stalls a RoCE fabric before anything is lost, and only these counters show it. Their names
are the drivers'; what several name alike is added up (priorities 0 to 7).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from trainwarden.clock import Clock
from trainwarden.collectors.nic.port_files import OpenFiles, PortFiles
from trainwarden.protocols import JsonObject, Scope
from trainwarden.records import EventRecord, MetricsRecord, Record
from trainwarden.settings import Config

# linux/sockios.h, linux/ethtool.h
_SIOCETHTOOL = 0x8946
_GSTRINGS, _GSTATS, _GSSET_INFO = 0x1B, 0x1D, 0x37
_STATS_SET = 1
_NAME_BYTES = 32
_MAX_COUNTERS = 8_192

_WANTED: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"rx_prio[0-7]_pause|rx_pause(_frames|_ctrl_phy)?|rx_xoff(_phy)?"), "nic_receive_pause_frames_count"),
    (re.compile(r"tx_prio[0-7]_pause|tx_pause(_frames|_ctrl_phy)?|tx_xoff(_phy)?"), "nic_transmit_pause_frames_count"),
    (re.compile(r"tx_pause_storm_(warning|error)_events"), "nic_pause_storm_events_count"),
    (re.compile(r"rx_discards_phy|rx_discards"), "nic_receive_discards_count"),
)


class _Layout(msgspec.Struct):
    """How many counters a port has and which of them are wanted, by metric name."""

    count: int
    places: dict[str, tuple[int, ...]]


class PauseCounters:
    """Reads the wanted counters; remembers where each port's driver has them."""

    def __init__(self) -> None:
        self._layouts: dict[str, _Layout | None] = {}

    def read(self, interface: str) -> dict[str, float]:
        """Counters of `interface` by metric name; empty if its driver has none."""
        if interface not in self._layouts:
            self._layouts[interface] = _layout(interface)
        layout = self._layouts[interface]
        if layout is None:
            return {}
        buffer = bytearray(struct.pack("<II", _GSTATS, layout.count)) + bytearray(8 * layout.count)
        if not _ask(interface, buffer) or struct.unpack_from("<I", buffer, 4)[0] != layout.count:
            del self._layouts[interface]  # another driver, perhaps: look again next time
            return {}
        values = struct.unpack_from(f"<{layout.count}Q", buffer, 8)
        return {name: float(sum(values[place] for place in places)) for name, places in layout.places.items()}


def choose(names: list[str]) -> dict[str, tuple[int, ...]]:
    """Places of the wanted counters among a driver's `names`.

    Examples
    --------
    >>> choose(["rx_packets", "rx_prio0_pause", "rx_prio3_pause", "tx_pause_storm_error_events"])
    {'nic_receive_pause_frames_count': (1, 2), 'nic_pause_storm_events_count': (3,)}
    """
    chosen = {
        metric: tuple(place for place, name in enumerate(names) if pattern.fullmatch(name))
        for pattern, metric in _WANTED
    }
    # Where a driver gives priorities and their sum, the priorities are the finer truth.
    for metric, places in chosen.items():
        finer = tuple(place for place in places if "_prio" in names[place])
        chosen[metric] = finer or places[:1] if "pause_frames" in metric else places
    return {metric: places for metric, places in chosen.items() if places}


def _layout(interface: str) -> _Layout | None:
    info = bytearray(struct.pack("<IIQI", _GSSET_INFO, 0, 1 << _STATS_SET, 0))
    if not _ask(interface, info) or not struct.unpack_from("<Q", info, 8)[0]:
        return None
    count = struct.unpack_from("<I", info, 16)[0]
    if not 0 < count <= _MAX_COUNTERS:
        return None
    strings = bytearray(struct.pack("<III", _GSTRINGS, _STATS_SET, count)) + bytearray(_NAME_BYTES * count)
    if not _ask(interface, strings):
        return None
    names = [
        strings[12 + _NAME_BYTES * place : 12 + _NAME_BYTES * (place + 1)]
        .partition(b"\0")[0]
        .decode("ascii", "replace")
        for place in range(count)
    ]
    places = choose(names)
    return _Layout(count, places) if places else None


def _ask(interface: str, buffer: bytearray) -> bool:
    """One SIOCETHTOOL call with `buffer` as the command's structure; False if port or driver refuses."""
    data = (ctypes.c_char * len(buffer)).from_buffer(buffer)
    request = struct.pack("16sP8x", interface.encode()[:15], ctypes.addressof(data))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            fcntl.ioctl(sock, _SIOCETHTOOL, request)
        except OSError:
            return False
    return True


# /sys/class/net/IF/statistics/ (kernel documentation, ABI/testing/sysfs-class-net-statistics)
ETHERNET: Final[dict[str, str]] = {
    "rx_bytes": "nic_receive_bytes",
    "tx_bytes": "nic_transmit_bytes",
    "rx_packets": "nic_receive_packets_count",
    "tx_packets": "nic_transmit_packets_count",
    "rx_errors": "nic_receive_errors_count",
    "tx_errors": "nic_transmit_errors_count",
    "rx_dropped": "nic_receive_dropped_count",
    "tx_dropped": "nic_transmit_dropped_count",
    "rx_fifo_errors": "nic_receive_fifo_errors_count",
    "rx_frame_errors": "nic_receive_frame_errors_count",
    "rx_crc_errors": "nic_receive_crc_errors_count",
    "rx_missed_errors": "nic_receive_missed_errors_count",
    "tx_carrier_errors": "nic_transmit_carrier_errors_count",
    "collisions": "nic_collisions_count",
}

# /sys/class/net/IF/ itself (as above, ABI/testing/sysfs-class-net)
ETHERNET_LINK: Final[dict[str, str]] = {
    "carrier_changes": "nic_carrier_changes_count",
    "carrier_down_count": "nic_carrier_down_count",
}

# /sys/class/infiniband/DEV/ports/N/counters/ (kernel documentation, ABI/stable/sysfs-class-infiniband)
RDMA: Final[dict[str, str]] = {
    "port_xmit_packets": "nic_rdma_transmit_packets_count",
    "port_rcv_packets": "nic_rdma_receive_packets_count",
    "link_downed": "nic_rdma_link_downed_count",
    "link_error_recovery": "nic_rdma_link_error_recovery_count",
    "symbol_error": "nic_rdma_symbol_errors_count",
    "local_link_integrity_errors": "nic_rdma_local_link_integrity_errors_count",
    "excessive_buffer_overrun_errors": "nic_rdma_excessive_buffer_overrun_errors_count",
    "port_rcv_errors": "nic_rdma_receive_errors_count",
    "port_rcv_remote_physical_errors": "nic_rdma_receive_remote_physical_errors_count",
    "port_rcv_switch_relay_errors": "nic_rdma_receive_switch_relay_errors_count",
    "port_rcv_constraint_errors": "nic_rdma_receive_constraint_errors_count",
    "port_xmit_constraint_errors": "nic_rdma_transmit_constraint_errors_count",
    "port_xmit_discards": "nic_rdma_transmit_discards_count",
    "port_xmit_wait": "nic_rdma_transmit_wait_count",
    "VL15_dropped": "nic_rdma_vl15_dropped_count",
}

# These count in words of four bytes.
RDMA_WORDS: Final[dict[str, str]] = {
    "port_xmit_data": "nic_rdma_transmit_bytes",
    "port_rcv_data": "nic_rdma_receive_bytes",
}
WORD_BYTES: Final = 4

# .../ports/N/hw_counters/ (mlx5 and others; the meaning is the vendor's)
RDMA_HARDWARE: Final[dict[str, str]] = {
    "local_ack_timeout_err": "nic_rdma_local_ack_timeouts_count",
    "rnr_nak_retry_err": "nic_rdma_rnr_nak_retries_count",
    "packet_seq_err": "nic_rdma_packet_sequence_errors_count",
    "out_of_sequence": "nic_rdma_out_of_sequence_count",
    "out_of_buffer": "nic_rdma_out_of_buffer_count",
    "implied_nak_seq_err": "nic_rdma_implied_nak_sequence_errors_count",
    "duplicate_request": "nic_rdma_duplicate_requests_count",
    "req_cqe_error": "nic_rdma_requester_cqe_errors_count",
    "resp_cqe_error": "nic_rdma_responder_cqe_errors_count",
    "req_cqe_flush_error": "nic_rdma_requester_cqe_flush_errors_count",
    "roce_slow_restart": "nic_rdma_roce_slow_restarts_count",
    "roce_adp_retrans": "nic_rdma_roce_adaptive_retransmits_count",
    "roce_adp_retrans_to": "nic_rdma_roce_adaptive_retransmit_timeouts_count",
    "np_cnp_sent": "nic_rdma_cnp_sent_count",
    "rp_cnp_handled": "nic_rdma_cnp_handled_count",
    "rp_cnp_ignored": "nic_rdma_cnp_ignored_count",
    "np_ecn_marked_roce_packets": "nic_rdma_ecn_marked_count",
    "rx_icrc_encapsulated": "nic_rdma_icrc_errors_count",
}

# .../ports/N/hw_counters/ of an Elastic Fabric Adapter (EFA_DEFINE_PORT_STATS in the kernel's efa_verbs.c, and AWS'
# "Monitor an Elastic Fabric Adapter"). It has no counters/; its bytes are bytes; what is retransmitted and who does not
# answer is counted from Nitro v4 on.
EFA: Final[dict[str, str]] = {
    "tx_bytes": "nic_rdma_transmit_bytes",
    "rx_bytes": "nic_rdma_receive_bytes",
    "tx_pkts": "nic_rdma_transmit_packets_count",
    "rx_pkts": "nic_rdma_receive_packets_count",
    "rx_drops": "nic_rdma_receive_dropped_count",
    "rdma_read_bytes": "nic_rdma_read_bytes",
    "rdma_read_resp_bytes": "nic_rdma_read_response_bytes",
    "rdma_read_wr_err": "nic_rdma_read_errors_count",
    "rdma_write_bytes": "nic_rdma_write_bytes",
    "rdma_write_recv_bytes": "nic_rdma_write_receive_bytes",
    "rdma_write_wr_err": "nic_rdma_write_errors_count",
    "retrans_bytes": "nic_rdma_retransmitted_bytes",
    "retrans_pkts": "nic_rdma_retransmitted_packets_count",
    "retrans_timeout_events": "nic_rdma_retransmit_timeouts_count",
    "unresponsive_remote_events": "nic_rdma_unresponsive_remotes_count",
    "impaired_remote_conn_events": "nic_rdma_impaired_connections_count",
}

# Its hw_counters/ of the device, which older kernels show among those of the port (EFA_DEFINE_DEVICE_STATS).
EFA_DEVICE: Final[dict[str, str]] = {
    "no_completion_cmds": "nic_rdma_uncompleted_commands_count",
    "cmds_err": "nic_rdma_command_errors_count",
}


_LOOPBACK = "772"  # ARPHRD_LOOPBACK in linux/if_arp.h
_MEGABIT_BYTES = 125_000
_ASK_ANEW_TICKS = 60  # a port may come up with the name of another
_ACTIVE = 4.0  # IB_PORT_ACTIVE in the kernel's rdma/ib_verbs.h
_VIRTUAL = (
    "lo", "veth*", "docker*", "br-*", "virbr*", "cni*", "flannel*", "cali*", "cilium*", "lxc*", "tunl*", "kube-*",
    "nodelocaldns", "dummy*", "ifb*", "tap*", "vnet*", "bonding_masters",
)  # fmt: skip


class _Port(msgspec.Struct):
    """A port as it was at the last look; it counts from the first time it was seen up."""

    up: bool


class NicCollector:
    """Ports of this node: Ethernet by interface (``eth0``), RDMA by device and port (``mlx5_0:1``).

    Parameters
    ----------
    config : NicCollector.Config
    scope : Scope
    clock : Clock
    """

    class Config(Config, frozen=True, kw_only=True):
        """`exclude` are patterns of interface names that are left out, `include` those that are taken all the same.

        Loopback and SR-IOV virtual functions are left out but by `include`, ports that were never up in any case.
        Driver counters (`ethtool_every` ticks, 0: never) may ask the port's firmware, so they are read more rarely, and
        so are the counters of EFA ports, which take turns: a machine has up to 32, and each look is a command to it.
        """

        interval_s: Annotated[float, msgspec.Meta(ge=0.1, le=3600.0)] = 1.0
        sysfs: str = "/sys"
        exclude: tuple[str, ...] = _VIRTUAL
        include: tuple[str, ...] = ()
        ethtool_every: Annotated[int, msgspec.Meta(ge=0, le=3600)] = 10

    def __init__(self, config: Config, scope: Scope, clock: Clock) -> None:
        self._config = config
        self._scope = scope
        self._net = Path(config.sysfs) / "class" / "net"
        self._rdma = Path(config.sysfs) / "class" / "infiniband"
        self._ports: dict[str, _Port] = {}
        self._pauses = PauseCounters()
        self._opened = OpenFiles()
        self._open: dict[str, PortFiles] = {}  # by folder
        self._looked_at: set[str] = set()  # folders, in this turn
        self._tick = 0
        self._listed: list[str] = []
        self._watched: list[str] = []

    @property
    def interval_s(self) -> float:
        return self._config.interval_s

    def supported(self) -> str | None:
        if not any(True for _ in self._interfaces()) and not any(True for _ in self._rdma_ports()):
            return f"there is no network port to watch under {self._config.sysfs}"
        return None

    def collect(self, now_s: float) -> Iterable[Record]:
        rows: dict[str, dict[str, float]] = {}
        for name in self._interfaces():
            values = self._ethernet(name)
            state, down = values.get("nic_link_state"), values.get("nic_carrier_down_count")
            number = values.get("nic_carrier_changes_count", down)
            yield from self._link(name, None if state is None else bool(state), number, now_s)
            if name in self._ports:
                rows[name] = values
        for place, (device, port) in enumerate(self._rdma_ports()):
            name = f"{device}:{port}"
            files = self._files(f"{self._rdma}/{device}/ports/{port}")
            values = _port(files) | self._counters(files, device, place)
            state = values.get("nic_rdma_link_state")
            number = values.get("nic_rdma_link_downed_count")
            yield from self._link(name, None if state is None else state == _ACTIVE, number, now_s)
            if name in self._ports:
                rows[name] = values
        # A port that has vanished, as with a driver that was unloaded or a card that fell off the bus.
        for name in [name for name, port in self._ports.items() if name not in rows and port.up]:
            yield from self._link(name, False, None, now_s)
        self._close_others()
        self._tick += 1
        yield from self._metrics(rows, now_s)

    def wake_fds(self) -> Sequence[int]:
        return ()

    def position(self) -> JsonObject:
        return {"ports": {name: port.up for name, port in self._ports.items()}}

    def restore(self, position: JsonObject) -> None:
        self._ports = {str(name): _Port(bool(up)) for name, up in dict(position.get("ports", {})).items()}

    def close(self) -> None:
        self._looked_at.clear()  # a turn that was broken off, or a question whether there is a port
        self._close_others()

    def _interfaces(self) -> Iterator[str]:
        """Names of the Ethernet interfaces to watch; what each is, is asked anew where names change, and at times."""
        names = _names(self._net)
        if names != self._listed or self._tick % _ASK_ANEW_TICKS == 0:
            self._listed, self._watched = names, list(self._worth_watching(names))
        return iter(self._watched)

    def _worth_watching(self, names: Sequence[str]) -> Iterator[str]:
        """Those of the interfaces `names` that are asked for, or else are no loopback and no virtual function."""
        for name in names:
            if not any(fnmatchcase(name, pattern) for pattern in self._config.include):
                if any(fnmatchcase(name, pattern) for pattern in self._config.exclude):
                    continue
                folder = self._net / name
                if self._files(str(folder)).text("type") == _LOOPBACK or (folder / "device" / "physfn").exists():
                    continue
            if (self._net / name / "statistics").is_dir():
                yield name

    def _rdma_ports(self) -> Iterator[tuple[str, str]]:
        """Device and port number of every RDMA port but those of virtual functions."""
        for device in _names(self._rdma):
            included = any(fnmatchcase(device, pattern) for pattern in self._config.include)
            if included or not (self._rdma / device / "device" / "physfn").exists():
                for port in _names(self._rdma / device / "ports"):
                    yield device, port

    def _files(self, folder: str) -> PortFiles:
        """The files of the port whose folder this is now."""
        files = self._open.get(folder)
        if files is not None and not files.same():
            files.close()
            files = None
        if files is None:
            files = self._open[folder] = PortFiles(folder, self._opened)
        self._looked_at.add(folder)
        return files

    def _close_others(self) -> None:
        """Let go of the files of ports that were not looked at in this turn."""
        for folder in self._open.keys() - self._looked_at:
            self._open.pop(folder).close()
        self._looked_at.clear()

    def _ethernet(self, name: str) -> dict[str, float]:
        files = self._files(f"{self._net}/{name}")
        values = files.numbers("statistics", ETHERNET) | files.numbers(".", ETHERNET_LINK)
        state = files.text("operstate")
        if state == "unknown":  # a driver that does not tell: the carrier does
            state = "up" if files.text("carrier") == "1" else "down"
        if state is not None:
            values["nic_link_state"] = float(state == "up")
        speed = files.number("speed")
        if speed is not None and speed > 0:
            values["nic_speed_bytes_per_second"] = speed * _MEGABIT_BYTES
        every = self._config.ethtool_every
        if every and self._tick % every == 0 and self._config.sysfs == "/sys":
            values |= self._pauses.read(name)
        return values

    def _counters(self, files: PortFiles, device: str, place: int) -> dict[str, float]:
        if _is_efa(self._rdma / device):
            every = self._config.ethtool_every
            if not every or self._tick % every != place % every:
                return {}
            found = files.numbers("hw_counters", EFA | EFA_DEVICE)
            return found | self._files(f"{self._rdma}/{device}").numbers("hw_counters", EFA_DEVICE)
        values = files.numbers("counters", RDMA)
        words = files.numbers("counters", RDMA_WORDS)
        values |= {name: value * WORD_BYTES for name, value in words.items()}
        return values | files.numbers("hw_counters", RDMA_HARDWARE)

    def _link(self, name: str, up: bool | None, number: float | None, now_s: float) -> Iterator[EventRecord]:
        """An event if the link has changed since the last look; `number` is a counter that makes its id stable."""
        port = self._ports.get(name)
        if up is None or (port is None and not up):
            return  # nothing known, or a port that was never up: perhaps there is no cable at all
        if port is None:
            self._ports[name] = _Port(True)
            return
        if port.up == up:
            return
        port.up = up
        kind: Literal["link_up", "link_down"] = "link_up" if up else "link_down"
        mark = f"{number:.0f}" if number is not None else f"t{now_s * 1000:.0f}"
        yield EventRecord(
            id=f"{kind}/{self._scope.node}/{name}/{mark}",
            job=self._scope.job,
            node=self._scope.node,
            time_s=now_s,
            kind=kind,
            device=name,
            message=f"link of {name} is {'up' if up else 'down'}",
        )

    def _metrics(self, rows: dict[str, dict[str, float]], now_s: float) -> Iterator[MetricsRecord]:
        if not rows:
            return
        names = tuple(dict.fromkeys(name for row in rows.values() for name in row))
        yield MetricsRecord(
            job=self._scope.job,
            node=self._scope.node,
            time_s=now_s,
            devices=tuple(rows),
            names=names,
            values=tuple(tuple(row.get(name) for row in rows.values()) for name in names),
        )


def _port(files: PortFiles) -> dict[str, float]:
    """State and rate of an RDMA port."""
    values: dict[str, float] = {}
    for file, name in (("state", "nic_rdma_link_state"), ("phys_state", "nic_rdma_physical_state")):
        # "4: ACTIVE"
        number = (files.text(file) or "").partition(":")[0]
        if number.isdigit():
            values[name] = float(number)
    rate = (files.text("rate") or "").partition(" ")[0]  # "400 Gb/sec (4X NDR)"
    if rate.replace(".", "", 1).isdigit():
        values["nic_rdma_rate_bytes_per_second"] = float(rate) * 1000 * _MEGABIT_BYTES
    return values


def _is_efa(device: Path) -> bool:
    """Whether an RDMA device is an Elastic Fabric Adapter: by its driver, for udev calls it ``rdmap113s0``."""
    try:
        return (device / "device" / "driver").readlink().name == "efa"
    except OSError:
        return device.name.startswith("efa_")


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
