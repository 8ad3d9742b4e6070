"""Ports that run slower, are down or lose packets where the ports of the same name on other nodes do not.

Each becomes a line ``health check: DEVICE PART failed: words``, and one for each that is as its peers are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trainwarden.formats.verdicts import Verdict, verdict_tables
from trainwarden.recorded.job import Floats, LogTable, MetricTable

Rows = npt.NDArray[np.int64]
SPEEDS: Final = ("nic_rdma_rate_bytes_per_second", "nic_speed_bytes_per_second")
STATES: Final = {"nic_rdma_link_state": 4.0, "nic_link_state": 1.0}  # and the value of a port that is up
LOST: Final = (
    ("nic_receive_errors_count", "nic_receive_packets_count", "errors"),
    ("nic_transmit_errors_count", "nic_transmit_packets_count", "errors"),
    ("nic_receive_dropped_count", "nic_receive_packets_count", "drops"),
    ("nic_transmit_dropped_count", "nic_transmit_packets_count", "drops"),
)
GBPS: Final = 1.25e8
LEAST_PEERS: Final = 3
COMMON_SHARE: Final = 0.75  # of the peers that must agree
LEAST_PORTS: Final = 4  # of one node, where no other node has a port of this name
LEAST_RATE: Final = 10.0  # packets lost a second,
LEAST_SHARE: Final = 1e-3  # of those that came or went,
LEAST_PACKETS: Final = 1_000.0  # a second: what a port for management loses is multicast that is not for it
ASSUMED_PACKETS: Final = 1e5  # a second, where nothing tells how many there are: of a busy port
LEAST_TIMES: Final = 10.0  # what its peers or its own past lose
SAMPLES: Final = 5
LASTED_S: Final = 55.0


class _Port(NamedTuple):
    """A port and the rows of the table that are of it, by time."""

    entity: int
    node: str | None
    device: str
    rows: Rows


def port_peers(table: MetricTable | None) -> list[LogTable]:
    """Lines about ports that differ from their peers, and those that do not; none where nothing is compared."""
    if table is None or not {*SPEEDS, *STATES, *(name for name, _, _ in LOST)} & set(table.names):
        return []
    ports = list(_ports(table))
    found = [*_of_states(table, ports), *_of_speeds(table, ports), *_of_losses(table, ports)]
    failed = {port.entity for _, port, verdict in found if verdict.failed is not None}
    told = [one for one in found if one[2].failed is not None or one[1].entity not in failed]
    once = list({(port.entity, verdict): (time_s, port, verdict) for time_s, port, verdict in told}.values())
    verdicts = [
        verdict._replace(node=table.nodes[port.entity], time_s=time_s, rank=table.ranks[port.entity])
        for time_s, port, verdict in once
    ]
    return verdict_tables("ports", verdicts, np.nan)


def _ports(table: MetricTable) -> Iterator[_Port]:
    for entity, device in enumerate(table.devices):
        if device:
            yield _Port(entity, table.nodes[entity], device, np.flatnonzero(table.entity == entity))


def _peers(port: _Port, ports: Sequence[_Port]) -> list[_Port]:
    """Ports of the same name on other nodes."""
    return [one for one in ports if one.device == port.device and one.node != port.node]


Told = Iterator[tuple[float, _Port, Verdict]]


def _of_states(table: MetricTable, ports: Sequence[_Port]) -> Told:
    """Ports that are down in a single look, while those of their name or of their node are up."""
    for name, up in STATES.items():
        if name not in table.names or max((port.rows.size for port in ports), default=0) > 1:
            continue  # of several looks the detectors know who went down
        states = {port.entity: _newest(table, port, name) for port in ports}
        known = [port for port in ports if np.isfinite(states[port.entity])]
        for port in known:
            across = [one for one in _peers(port, known)]
            own = [one for one in known if one.node == port.node and one is not port]
            peers = across if len(across) >= LEAST_PEERS else own if len(own) >= LEAST_PORTS - 1 else []
            count = sum(states[one.entity] >= up for one in peers)
            if not peers or count < max(LEAST_PEERS, COMMON_SHARE * len(peers)):
                continue
            is_up = states[port.entity] >= up
            words = f"down while {count} of {len(peers)} others are up"
            device = port.device.partition(":")[0]
            yield float(table.times_s[port.rows[-1]]), port, Verdict(device, "port", None if is_up else words)


def _of_speeds(table: MetricTable, ports: Sequence[_Port]) -> Told:
    """Ports that are slower than those of their name on most other nodes, or than they were."""
    for name in SPEEDS:
        if name not in table.names:
            continue
        speeds = {port.entity: _newest(table, port, name) for port in ports}
        known = [port for port in ports if speeds[port.entity] > 0.0]
        for port in known:
            own = speeds[port.entity]
            levels, counts = np.unique([speeds[one.entity] for one in _peers(port, known)], return_counts=True)
            count = int(counts.max(initial=0))
            values = table.values[port.rows, table.names.index(name)]
            since = port.rows[np.flatnonzero(values == own)[0]]
            time_s, device = float(table.times_s[since]), port.device.partition(":")[0]
            before = float(values[np.isfinite(values)][0])
            usual = float(levels[counts.argmax()]) if count >= max(LEAST_PEERS, COMMON_SHARE * counts.sum()) else own
            if own < usual:
                words = f"runs at {own / GBPS:g} Gb/s, where {count} others of this name have {usual / GBPS:g}"
                yield time_s, port, Verdict(device, "port_errors", words)
            elif own < before and usual == own and count < LEAST_PEERS:
                yield (
                    time_s,
                    port,
                    Verdict(device, "port_errors", f"runs at {own / GBPS:g} Gb/s, {before / GBPS:g} before"),
                )
            elif count >= LEAST_PEERS:
                yield time_s, port, Verdict(device, "", None)


def _newest(table: MetricTable, port: _Port, name: str) -> float:
    values = table.values[port.rows, table.names.index(name)]
    known = values[np.isfinite(values)]
    return float(known[-1]) if known.size else float("nan")


def _of_losses(table: MetricTable, ports: Sequence[_Port]) -> Told:
    """Ports that lose a share of their packets for a while, far more than their peers or than before."""
    for name, of, what in LOST:
        if name not in table.names:
            continue
        rates = {port.entity: _rates(table, port, name, of) for port in ports}
        for port in ports:
            own, peers = rates[port.entity], [rates[one.entity] for one in _peers(port, ports)]
            runs = list(_runs(own))
            if not runs and np.isfinite(own.share).sum() >= SAMPLES:
                yield float(own.times_s[-1]), port, Verdict(port.device.partition(":")[0], "", None)
            for run in runs:
                if well := _well(own, run, peers):
                    share = f", {float(np.median(own.share[run])):.2%} of its packets" if of in table.names else ""
                    words = f"{float(np.median(own.lost[run])):.0f} {what} a second{share}, and hardly any of {well}"
                    verdict = Verdict(port.device.partition(":")[0], "port_errors", words)
                    yield float(own.times_s[run[-1]]), port, verdict
                    break


def _runs(own: _Rates) -> Iterator[Rows]:
    """The first samples of each time in which a port loses much, as soon as they are enough."""
    far = np.flatnonzero((own.lost >= LEAST_RATE) & (own.share >= LEAST_SHARE) & (own.packets >= LEAST_PACKETS))
    for run in np.split(far, np.flatnonzero(np.diff(far) > 2) + 1):
        lasted_s = own.times_s[run] - own.times_s[run[:1]]
        enough = np.flatnonzero((np.arange(1, run.size + 1) >= SAMPLES) & (lasted_s >= LASTED_S))
        if enough.size:
            yield run[: enough[0] + 1]


def _well(own: _Rates, run: Rows, peers: Sequence[_Rates]) -> str:
    """Whom a port is held against: its peers at the same time, or itself before; empty where they lose as much."""
    most = float(np.median(own.share[run])) / LEAST_TIMES
    others = [share for one in peers if np.isfinite(share := _usual(one, own.times_s[run]))]
    if len(others) >= LEAST_PEERS:
        return f"{len(others)} others of this name" if max(others) <= most else ""
    past = own.share[: run[0]]
    past = past[np.isfinite(past)]
    return "them before" if past.size >= SAMPLES and float(np.median(past)) <= most else ""


class _Rates(NamedTuple):
    """Packets a second: arrays [n]."""

    times_s: Floats
    lost: Floats
    packets: Floats
    share: Floats


def _rates(table: MetricTable, port: _Port, name: str, of: str) -> _Rates:
    """Losses between samples that tell them; packets are assumed where the table tells of none (`sar -n EDEV`)."""
    known = [one for one in (name, of) if one in table.names]
    rows = port.rows[np.isfinite(table.values[port.rows][:, [table.names.index(one) for one in known]]).all(axis=1)]
    times_s = table.times_s[rows]
    with np.errstate(invalid="ignore", divide="ignore"):
        grown = [np.diff(table.values[rows, table.names.index(one)]) / np.diff(times_s) for one in known]
        lost, packets = grown[0], grown[1] if len(grown) > 1 else np.full(grown[0].size, ASSUMED_PACKETS)
        return _Rates(times_s[1:], lost, packets, np.where(packets > 0.0, lost / packets, np.nan))


def _usual(rates: _Rates, times_s: Floats) -> float:
    """The share that a peer loses at these times; NaN where it moves nothing."""
    now = (rates.times_s >= times_s[0]) & (rates.times_s <= times_s[-1]) & (rates.packets >= LEAST_PACKETS)
    return float(np.nanmedian(rates.share[now])) if now.any() else float("nan")
