"""Network ports through sysfs: Ethernet interfaces, InfiniBand, RoCE and EFA ports, their counters and links."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from trainwarden.clock import Clock
from trainwarden.collectors.nic.counters import (
    EFA,
    EFA_DEVICE,
    ETHERNET,
    ETHERNET_LINK,
    RDMA,
    RDMA_HARDWARE,
    RDMA_WORDS,
    WORD_BYTES,
)
from trainwarden.collectors.nic.ethtool import PauseCounters
from trainwarden.collectors.nic.port_files import OpenFiles, PortFiles
from trainwarden.protocols import JsonObject, Scope
from trainwarden.records import EventRecord, MetricsRecord, Record
from trainwarden.settings import Config

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
