"""Format: ports as `ibstat`, `perfquery` and `ethtool -S` print them, once or again and again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import pandas as pd

from trainwarden.formats.building import metric_table
from trainwarden.formats.exporters.exposition import named_s
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source
from trainwarden.formats.stamps import time_s_of

EVERY_S: Final = 60.0  # between snapshots without times
_CA: Final = re.compile(r"CA '([A-Za-z0-9_.-]{1,64})'\s{0,4}$")
_PORT: Final = re.compile(r"\s{1,8}Port ([0-9]{1,3}):\s{0,4}$")
_PAIR: Final = re.compile(r"\s{0,16}([A-Za-z][A-Za-z0-9_. \[\]]{0,80}?):[. ]{0,60}\s{0,8}([A-Za-z0-9_.]{1,40})\b")
_COUNTERS: Final = re.compile(r"# Port (?:extended )?counters: Lid ([0-9]{1,6}) port ([0-9]{1,3})")
_RDMA: Final = re.compile(r"(?m)^link ([a-z][a-z0-9_]{1,40}/[0-9]{1,3}) ([a-z][a-z0-9_]{1,60} [0-9][^\n]{0,8000})")
_STATE: Final = {"active": 4.0, "armed": 3.0, "initializing": 2.0, "down": 1.0}
_PHYSICAL: Final = {"linkup": 5.0, "polling": 2.0, "disabled": 3.0, "sleep": 1.0, "linkerrorrecovery": 6.0}
_GBPS: Final = 1.25e8
# What perfquery calls them; what ethtool's drivers do.
_NAMES: Final[dict[str, tuple[str, float]]] = {
    "symbolerrorcounter": ("nic_rdma_symbol_errors_count", 1.0),
    "linkerrorrecoverycounter": ("nic_rdma_link_error_recovery_count", 1.0),
    "linkdownedcounter": ("nic_rdma_link_downed_count", 1.0), "portrcverrors": ("nic_rdma_receive_errors_count", 1.0),
    "portrcvremotephysicalerrors": ("nic_rdma_receive_remote_physical_errors_count", 1.0),
    "portrcvswitchrelayerrors": ("nic_rdma_receive_switch_relay_errors_count", 1.0),
    "portxmitdiscards": ("nic_rdma_transmit_discards_count", 1.0),
    "portxmitconstrainterrors": ("nic_rdma_transmit_constraint_errors_count", 1.0),
    "portrcvconstrainterrors": ("nic_rdma_receive_constraint_errors_count", 1.0),
    "locallinkintegrityerrors": ("nic_rdma_local_link_integrity_errors_count", 1.0),
    "excessivebufferoverrunerrors": ("nic_rdma_excessive_buffer_overrun_errors_count", 1.0),
    "vl15dropped": ("nic_rdma_vl15_dropped_count", 1.0), "portxmitdata": ("nic_rdma_transmit_bytes", 4.0),
    "portrcvdata": ("nic_rdma_receive_bytes", 4.0), "portxmitpkts": ("nic_rdma_transmit_packets_count", 1.0),
    "portrcvpkts": ("nic_rdma_receive_packets_count", 1.0), "portxmitwait": ("nic_rdma_transmit_wait_count", 1.0),
    "rx_bytes": ("nic_receive_bytes", 1.0), "tx_bytes": ("nic_transmit_bytes", 1.0),
    "rx_packets": ("nic_receive_packets_count", 1.0), "tx_packets": ("nic_transmit_packets_count", 1.0),
    "rx_errors": ("nic_receive_errors_count", 1.0), "tx_errors": ("nic_transmit_errors_count", 1.0),
    "rx_dropped": ("nic_receive_dropped_count", 1.0), "tx_dropped": ("nic_transmit_dropped_count", 1.0),
    "rx_crc_errors": ("nic_receive_crc_errors_count", 1.0), "rx_crc_errors_phy": ("nic_receive_crc_errors_count", 1.0),
    "rx_missed_errors": ("nic_receive_missed_errors_count", 1.0),
    "rx_crc_error": ("nic_receive_crc_errors_count", 1.0), "crc_errors": ("nic_receive_crc_errors_count", 1.0),
    "rx_fcs_errors": ("nic_receive_crc_errors_count", 1.0),
    "rx_fcs_err_frames": ("nic_receive_crc_errors_count", 1.0),
    "rx_crc_align_errors": ("nic_receive_crc_errors_count", 1.0),
    "rx_pcs_symbol_err_phy": ("nic_rdma_symbol_errors_count", 1.0),  # what the FEC did not correct
    "rx_pcs_symbol_err": ("nic_rdma_symbol_errors_count", 1.0),
    "rx_corrected_bits_phy": ("nic_fec_corrected_count", 1.0), "rx_corrected_bits": ("nic_fec_corrected_count", 1.0),
    "rx_fec_corrected_blocks": ("nic_fec_corrected_count", 1.0),
    "fec_corrected_blocks": ("nic_fec_corrected_count", 1.0),
    "rx_fec_uncorrectable_blocks": ("nic_fec_uncorrectable_blocks_count", 1.0),
    "fec_uncorrectable_blocks": ("nic_fec_uncorrectable_blocks_count", 1.0),
    "link_downed": ("nic_rdma_link_downed_count", 1.0), "symbol_error": ("nic_rdma_symbol_errors_count", 1.0),
    "rx_good_bytes": ("nic_receive_bytes", 1.0), "rx_total_frames": ("nic_receive_packets_count", 1.0),
    "rx_symbol_err_phy": ("nic_rdma_symbol_errors_count", 1.0), "rx_discards_phy": ("nic_receive_discards_count", 1.0),
    "link_down_events_phy": ("nic_carrier_down_count", 1.0), "collisions": ("nic_collisions_count", 1.0),
    "rx_pause_ctrl_phy": ("nic_receive_pause_frames_count", 1.0),
    "tx_pause_ctrl_phy": ("nic_transmit_pause_frames_count", 1.0),
    "out_of_sequence": ("nic_rdma_out_of_sequence_count", 1.0),
    "packet_seq_err": ("nic_rdma_packet_sequence_errors_count", 1.0),
    "local_ack_timeout_err": ("nic_rdma_local_ack_timeouts_count", 1.0),
    "rnr_nak_retry_err": ("nic_rdma_rnr_nak_retries_count", 1.0),
    "out_of_buffer": ("nic_rdma_out_of_buffer_count", 1.0),
    "implied_nak_seq_err": ("nic_rdma_implied_nak_sequence_errors_count", 1.0),
    "duplicate_request": ("nic_rdma_duplicate_requests_count", 1.0),
    "req_cqe_error": ("nic_rdma_requester_cqe_errors_count", 1.0),
    "resp_cqe_error": ("nic_rdma_responder_cqe_errors_count", 1.0),
    "roce_slow_restart": ("nic_rdma_roce_slow_restarts_count", 1.0),
    "rx_icrc_encapsulated": ("nic_rdma_icrc_errors_count", 1.0),
    "tx_pause_storm_error_events": ("nic_pause_storm_events_count", 1.0),
}  # fmt: skip
# What counts a fault by its name; one that grows and that no metric of ours has is named.
_FAULT: Final = re.compile(r"(?i)(?:err|crc|fcs|fec_unc|uncorrect|symbol|drop|discard|down|bad)")
_OTHER: Final = "other "
_NAMED: Final = 6
_DRIVERS: Final = re.compile(r"^port\.|\.nic$|_mac$")  # of i40e and ice, of what the port itself counts
_IN_NAME: Final = re.compile(
    r"(?i)(mlx[0-9]_(?:ib|bond_)?[0-9]{1,3}|ib[ps]?[0-9][a-z0-9]{0,12}|e(?:th|n[ops])[0-9][a-z0-9]{0,12}|rdma[0-9]{1,3})"
)
# A line above a port's counters that names it: `=== eth0 ===`, `# ethtool -S eth0`.
_NAMED_ABOVE: Final = re.compile(
    r"[$#=*> -]{0,20}(?:ethtool (?:-S|--statistics) |port |device |interface )?([A-Za-z0-9_.:-]{2,24}?)[#=*<: -]{0,20}$"
)


# First and largest value of what counts a fault and is no metric of ours, by port and name.
_Others = dict[tuple[str | None, str], tuple[float, float]]


class Ports:
    """Keys and values of one port or more."""

    name = "port counters"

    def sniff(self, name: str, head: str) -> float:
        """By the first line of each tool."""
        del name
        start = head[:4_000]
        return (
            SURE
            if "NIC statistics:" in start
            or _COUNTERS.search(start)
            or _RDMA.search(start)
            or re.search(r"(?m)^CA '", start)
            else NEVER
        )

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        others: _Others = {}
        rows = list(_rows(source.text(), source.title, others))
        found = Found(rows=len(rows), notes=_grown(others))
        if not rows:
            return found
        if any("time_s" not in row for row in rows):
            named = named_s(source.path.name)
            start_s = source.path.stat().st_mtime if named is None else named
            last = max(int(row["block"]) for row in rows)
            rows = [{"time_s": start_s - (last - int(row["block"])) * EVERY_S, **row} for row in rows]
            when = "at the file's change" if named is None else "when its name says"
            if named is None or last:
                found.notes.append(f"no times written: snapshots taken for a minute apart, the last one {when}")
        if (table := metric_table(pd.DataFrame(rows).drop(columns="block"))) is not None:
            found.metrics.append(table)
            if np.unique(table.times_s).size == 1 and named_s(source.path.name) is None:
                found.notes.append("a single snapshot: counters cannot be judged by their growth")
        return found


def _rows(text: str, file: str, others: _Others) -> Iterator[dict[str, Any]]:
    """A row for each port of each snapshot."""
    named = _IN_NAME.search(file)
    card, block, time_s = (named[1] if named else ""), 0, None
    row: dict[str, Any] = {}
    seen: set[str] = set()
    for line in text.split("\n"):
        begins = _begin(line, card)
        if begins is not None:
            if len(row) > 2:
                yield row
            card, device = begins
            if device in seen:
                block, seen = block + 1, set()
            if device:
                seen.add(device)
            row = {"device": device or None, "block": block} | ({} if time_s is None else {"time_s": time_s})
            if (link := _RDMA.match(line)) is not None:  # `rdma statistic`: a port a line
                words = link[2].split()
                for key, value in zip(words[::2], words[1::2], strict=False):
                    _put(row, _value(key, value), others)
            continue
        match = _PAIR.match(line)
        told = _value(match[1], match[2]) if match is not None else None
        if told is not None:
            row.setdefault("device", card or None)
            row.setdefault("block", block)
            _put(row, told, others)
        elif (stamp_s := time_s_of(line.strip(" #=-"))) > 1e8:
            time_s = stamp_s
        elif (above := _NAMED_ABOVE.match(line)) is not None and _IN_NAME.fullmatch(above[1]):
            card = above[1]
    if len(row) > 2:
        yield row


def _begin(line: str, card: str) -> tuple[str, str] | None:
    """The card and the port whose values follow; None if the line begins none."""
    if (ca := _CA.match(line)) is not None:
        return ca[1], ""
    if (port := _PORT.match(line)) is not None:
        return card, f"{card}:{port[1]}"
    if (link := _RDMA.match(line)) is not None:
        return card, link[1].replace("/", ":")
    if (counters := _COUNTERS.match(line)) is not None:
        return card, f"{card or f'lid{counters[1]}'}:{counters[2]}"
    return (card, card) if line.strip() == "NIC statistics:" else None


def _value(key: str, value: str) -> tuple[str, float] | None:
    """A metric and its value; None where the line tells another thing."""
    bare = key.strip().lower()
    if bare == "state" and value.lower() in _STATE:
        return "nic_rdma_link_state", _STATE[value.lower()]
    if bare == "physical state" and value.lower() in _PHYSICAL:
        return "nic_rdma_physical_state", _PHYSICAL[value.lower()]
    try:
        number = float(int(value, 16) if value.startswith("0x") else float(value))
    except ValueError:
        return None
    if bare == "rate":
        return "nic_rdma_rate_bytes_per_second", number * _GBPS
    found = _NAMES.get(bare) or _NAMES.get(_DRIVERS.sub("", bare))
    if found is None:
        return (f"{_OTHER}{bare}", number) if _FAULT.search(bare) else None
    return found[0], number * found[1]


def _put(row: dict[str, Any], told: tuple[str, float] | None, others: _Others) -> None:
    """Put a value into its port's row; of what is no metric of ours, keep how it grows."""
    if told is None:
        return
    name, value = told
    if not name.startswith(_OTHER):
        row[name] = value
        return
    first, most = others.get((row["device"], name), (value, value))
    others[row["device"], name] = (first, max(most, value))


def _grown(others: _Others) -> list[str]:
    """A note that names the counters that grew."""
    grew = list(dict.fromkeys(name.removeprefix(_OTHER) for (_, name), (first, most) in others.items() if most > first))
    if not grew:
        return []
    more = f" and {len(grew) - _NAMED} more" if len(grew) > _NAMED else ""
    return [f"counters of faults that grew and that no rule judges: {', '.join(grew[:_NAMED])}{more}"]
