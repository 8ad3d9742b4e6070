"""What columns of sysstat's programs (iostat, sar, sadf) mean, and rows of them as metrics of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from trainwarden.prometheus.exporters import is_virtual

_KIB: Final = 1024.0
_SECTOR: Final = 512.0
_PSEUDO: Final = ("loop", "ram", "sr", "fd", "zram")
# Columns of sar -u, sar -r, sar -S and mpstat (sysstat 11 to 12), and of sadf: the metric and the factor to its unit.
HOST: Final = {
    "%steal": ("host_cpu_steal_ratio", 0.01), "%iowait": ("host_cpu_iowait_ratio", 0.01),
    "%system": ("host_cpu_system_ratio", 0.01), "%sys": ("host_cpu_system_ratio", 0.01),
    "%memused": ("host_memory_used_ratio", 0.01), "kbavail": ("host_memory_available_bytes", _KIB),
    "kbswpused": ("host_swap_used_bytes", _KIB),
}  # fmt: skip
# Rates of disks and of interfaces: the counter of ours, and what one of theirs is in its unit.
_DISK: Final = {
    "rkB/s": ("host_disk_read_bytes", _KIB), "rMB/s": ("host_disk_read_bytes", _KIB * _KIB),
    "rsec/s": ("host_disk_read_bytes", _SECTOR), "rd_sec/s": ("host_disk_read_bytes", _SECTOR),
    "wkB/s": ("host_disk_write_bytes", _KIB), "wMB/s": ("host_disk_write_bytes", _KIB * _KIB),
    "wsec/s": ("host_disk_write_bytes", _SECTOR), "wr_sec/s": ("host_disk_write_bytes", _SECTOR),
    "r/s": ("host_disk_reads_count", 1.0), "w/s": ("host_disk_writes_count", 1.0),
    "tps": ("host_disk_reads_count", 1.0),  # of both
}  # fmt: skip
_PORT: Final = {
    "rxkB/s": ("nic_receive_bytes", _KIB), "txkB/s": ("nic_transmit_bytes", _KIB),
    "rxpck/s": ("nic_receive_packets_count", 1.0), "txpck/s": ("nic_transmit_packets_count", 1.0),
    "rxerr/s": ("nic_receive_errors_count", 1.0), "txerr/s": ("nic_transmit_errors_count", 1.0),
    "rxdrop/s": ("nic_receive_dropped_count", 1.0), "txdrop/s": ("nic_transmit_dropped_count", 1.0),
    "coll/s": ("nic_collisions_count", 1.0), "txcarr/s": ("nic_transmit_carrier_errors_count", 1.0),
    "rxfram/s": ("nic_receive_frame_errors_count", 1.0), "rxfifo/s": ("nic_receive_fifo_errors_count", 1.0),
}  # fmt: skip
COLUMNS: Final = frozenset({*HOST, "await", "rxkB/s", "rxerr/s"})
"""What a block must have one of to be judged."""
_SPEEDS: Final = (0.1, 1.0, 2.5, 5.0, 10.0, 25.0, 40.0, 50.0, 100.0, 200.0, 400.0, 800.0)  # Gb/s
_GBPS: Final = 1.25e8
_LEAST_USED: Final = 1.0  # percent of a link: of less the two digits behind the point do not tell its speed
_CLOSE: Final = 0.02
_ALL: Final = ("all", "-1")  # processors
Row = dict[str, Any]


def is_pseudo(device: str) -> bool:
    """Whether a device stands for no disk.

    Examples
    --------
    >>> is_pseudo("loop7"), is_pseudo("sda"), is_pseudo("dev7-0")
    (True, False, True)
    """
    return (device.rstrip("0123456789") in _PSEUDO and device[-1:].isdigit()) or device.startswith("dev7-")


def number(cell: str) -> float:
    """The number in a cell; NaN if it holds none.

    Examples
    --------
    >>> number("12,5"), number("x")
    (12.5, nan)
    """
    try:
        return float(cell.replace(",", "."))
    except ValueError:
        return float("nan")


@dataclass(slots=True)
class Work:
    """Rows of reports as metrics: what they tell as rates is added up, as the metrics of ours are counters."""

    totals: dict[tuple[str, str], tuple[float, dict[str, float]]] = field(default_factory=dict)

    def row(self, node: str, time_s: float, cells: Mapping[str, str]) -> Row | None:
        """Metrics of one line, by the names of its columns; None where it is of what is not judged.

        Examples
        --------
        >>> Work().row("n", 0.0, {"CPU": "all", "%steal": "12.5"})
        {'time_s': 0.0, 'node': 'n', 'host_cpu_steal_ratio': 0.125}
        >>> Work().row("n", 0.0, {"CPU": "3", "%steal": "12.5"}), Work().row("n", 0.0, {"IFACE": "lo", "rxkB/s": "1"})
        (None, None)
        """
        values = {name: value for name, cell in cells.items() if (value := number(cell)) == value}
        owner = {"time_s": time_s, "node": node}
        if "DEV" in cells:
            device = cells["DEV"]
            return None if is_pseudo(device) else {**owner, "device": device, **self.disk(node, device, time_s, values)}
        if "IFACE" in cells:
            device = cells["IFACE"]
            return (
                None if is_virtual(device) else {**owner, "device": device, **self._port(node, device, time_s, values)}
            )
        if cells.get("CPU", "all") not in _ALL:
            return None
        found = {HOST[name][0]: value * HOST[name][1] for name, value in values.items() if name in HOST}
        return {**owner, **found} if found else None

    def disk(self, node: str, device: str, time_s: float, values: Mapping[str, float]) -> dict[str, float]:
        """Metrics of a disk.

        Examples
        --------
        >>> work = Work()
        >>> _ = work.disk("n", "sda", 0.0, {"rkB/s": 1.0, "await": 5.0})
        >>> work.disk("n", "sda", 10.0, {"rkB/s": 2.0, "await": 5.0, "%util": 50.0})["host_disk_read_bytes"]
        20480.0
        """
        found = {"host_disk_latency_seconds": _wait_s(values)}
        if "%util" in values:
            found["host_disk_busy_ratio"] = min(0.01 * values["%util"], 1.0)
        return found | self._added(node, device, time_s, values, _DISK)

    def _port(self, node: str, device: str, time_s: float, values: Mapping[str, float]) -> dict[str, float]:
        found = self._added(node, device, time_s, values, _PORT)
        used = values.get("%ifutil", 0.0)
        moved = _KIB * max(values.get("rxkB/s", 0.0), values.get("txkB/s", 0.0))
        speed = _speed(moved, used)
        return found if speed is None else {**found, "nic_speed_bytes_per_second": speed}

    def _added(
        self, node: str, device: str, time_s: float, values: Mapping[str, float], table: Mapping[str, tuple[str, float]]
    ) -> dict[str, float]:
        """Counters that grow by the rates of a row since the row before."""
        rates: dict[str, float] = {}
        for name, (metric, factor) in table.items():
            if name in values:
                rates[metric] = rates.get(metric, 0.0) + factor * values[name]
        key = (node, f"{device} {' '.join(rates)}")  # blocks of one device come one after the other
        last_s, before = self.totals.get(key, (time_s, {}))
        elapsed_s = max(time_s - last_s, 0.0)
        total = {metric: before.get(metric, 0.0) + elapsed_s * rate for metric, rate in rates.items()}
        self.totals[key] = (time_s, total)
        return total


def _speed(moved: float, used: float) -> float | None:
    """The speed of a link, bytes a second, of which so many percent were used; None where that does not tell it.

    Examples
    --------
    >>> _speed(1.25e9, 10.0), _speed(1.25e9, 0.5), _speed(1.25e9, 13.7)
    (12500000000.0, None, None)
    """
    if used < _LEAST_USED or moved <= 0.0:
        return None
    told = 100.0 * moved / used / _GBPS
    near = min(_SPEEDS, key=lambda one: abs(one - told))
    return near * _GBPS if abs(near - told) <= _CLOSE * near else None


def _wait_s(values: Mapping[str, float]) -> float:
    """Mean time of a request; of an idle disk it is 0.

    Examples
    --------
    >>> _wait_s({"r/s": 1.0, "r_await": 4.0, "w/s": 3.0, "w_await": 8.0}), _wait_s({"await": 5.0})
    (0.007, 0.005)
    """
    if "await" in values:
        return 1e-3 * values["await"]
    requests = values.get("r/s", 0.0) + values.get("w/s", 0.0)
    waited = values.get("r/s", 0.0) * values.get("r_await", 0.0) + values.get("w/s", 0.0) * values.get("w_await", 0.0)
    return 1e-3 * waited / requests if requests else 0.0
