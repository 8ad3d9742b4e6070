"""Driver counters of an Ethernet port by the ethtool ioctl: pause frames, pause storms, discards.

Priority flow control stalls a RoCE fabric before anything is lost, and only these counters show it. Their names
are the drivers'; what several name alike is added up (priorities 0 to 7).
"""

from __future__ import annotations

import ctypes
import fcntl
import re
import socket
import struct

import msgspec

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
