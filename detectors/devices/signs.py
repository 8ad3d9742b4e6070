"""Signs that a device is unlike its peers, for all devices of a family at one moment."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Found = dict[str, tuple[Flags, Floats, Floats]]
"""By sign: who shows it, the values, and the median of each one's peers."""

LEAST_PEERS: Final = 4
AT_WORK: Final = ("gpu_utilization_ratio", "gpu_engine_active_ratio")
BUSY: Final = 0.5  # share of time in which a kernel runs; clocks of idle GPUs say nothing
WIDTHS: Final = 5.0  # robust standard deviations from the median (1.4826 times the median distance from it)
ODD_SHARE: Final = 0.2  # if more than these differ, it is other work, not a fault
COMMON_SHARE: Final = 0.8  # of the peers that must agree on what is usual

# Sign: metric, least distance from the peers' median, and whether that is a share of it; below (-1) or above it.
UNLIKE: Final = (
    ("clock_low", "gpu_sm_clock_hertz", 0.05, True, -1),
    ("memory_clock_low", "gpu_memory_clock_hertz", 0.05, True, -1),
    ("power_low", "gpu_power_watts", 0.15, True, -1),
    ("hot", "gpu_temperature_celsius", 8.0, False, 1),
)
DRAWN: Final = "gpu_power_watts"
CAP: Final = "gpu_power_limit_watts"
WORKS: Final = 0.6  # of its power limit: so much a GPU draws that works, where nothing says how much it is used
LEAST_CAPPED: Final = 0.05  # below the limit that its peers share
THROTTLED: Final = ("gpu_throttle_thermal_state", "gpu_throttle_hardware_state")
GPU_METRICS: Final = (
    *AT_WORK, *(row[1] for row in UNLIKE), *THROTTLED, "gpu_pcie_link_width_count", "gpu_pcie_link_generation_version",
    CAP,
)  # fmt: skip
GPU_SIGNS: Final = (*(row[0] for row in UNLIKE), "throttled", "narrow", "old_link", "capped")
NIC_METRICS: Final = ("nic_rdma_link_state", "nic_rdma_rate_bytes_per_second")
NIC_SIGNS: Final = ("down", "slow_link")


def gpu_signs(now: dict[str, Floats], roles: list[str]) -> Found:
    """Signs of GPUs that are busy, among busy GPUs of their role.

    A clock is slow only where no more power is drawn than by the peers: who draws more works harder.
    """
    used = np.fmax(*(now[name] for name in AT_WORK))
    busy = (used >= BUSY) | (np.isnan(used) & (now[DRAWN] >= WORKS * now[CAP]))
    codes = np.unique(np.array(roles, dtype=object).astype(str), return_inverse=True)[1]
    none = np.zeros(busy.size, dtype=np.bool_), np.full(busy.size, np.nan), np.full(busy.size, np.nan)
    found: Found = {sign: (none[0].copy(), none[1].copy(), none[2].copy()) for sign in GPU_SIGNS}
    for code in range(int(codes.max(initial=-1)) + 1):
        peers = busy & (codes == code)
        # However widely the peers' own work is spread: this sign is there to spare, not to accuse.
        harder = _beyond(now["gpu_power_watts"], peers, (0.05, True, 1), widths=0.0)[0]
        for sign, metric, least, share, side in UNLIKE:
            flags, middle = _beyond(now[metric], peers, (least, share, side))
            if sign.endswith("clock_low"):
                flags &= ~harder
            _keep(found[sign], flags, now[metric], middle, peers)
        throttled = np.fmax(*(now[name] for name in THROTTLED)) > 0.5
        _keep(found["throttled"], throttled & peers, throttled.astype(np.float64), 0.0, peers)
        # The generation falls with the load, so that only busy GPUs are compared.
        flags, usual = below_usual(now["gpu_pcie_link_generation_version"], peers)
        _keep(found["old_link"], flags, now["gpu_pcie_link_generation_version"], usual, peers, odd=False)
        own = codes == code
        flags, usual = below_usual(now["gpu_pcie_link_width_count"], own)
        _keep(found["narrow"], flags, now["gpu_pcie_link_width_count"], usual, own, odd=False)
        flags, usual = below_usual(now[CAP], own)
        _keep(found["capped"], flags & (now[CAP] < (1.0 - LEAST_CAPPED) * usual), now[CAP], usual, own)
    return found


def nic_signs(now: dict[str, Floats], kinds: list[str]) -> Found:
    """Signs of ports among those of the same kind: of one name, on nodes that are fitted out alike."""
    codes = np.unique(np.array(kinds, dtype=object).astype(str), return_inverse=True)[1]
    found: Found = {}
    for sign, metric in zip(NIC_SIGNS, NIC_METRICS, strict=True):
        values = now[metric]
        found[sign] = (
            np.zeros(values.size, dtype=np.bool_),
            np.full(values.size, np.nan),
            np.full(values.size, np.nan),
        )
        for code in range(int(codes.max(initial=-1)) + 1):
            own = codes == code
            flags, usual = below_usual(values, own)
            _keep(found[sign], flags, values, usual, own, odd=False)
    return found


def below_usual(values: Floats, peers: Flags) -> tuple[Flags, float]:
    """Who among `peers` is below the value that most of them share, and that value (NaN if they share none).

    Examples
    --------
    >>> flags, usual = below_usual(np.array([4.0, 4.0, 1.0, 4.0, 4.0, 4.0]), np.ones(6, dtype=bool))
    >>> flags.tolist(), usual
    ([False, False, True, False, False, False], 4.0)
    """
    known = peers & np.isfinite(values)
    flags = np.zeros(values.size, dtype=np.bool_)
    if known.sum() <= LEAST_PEERS:
        return flags, np.nan
    levels, counts = np.unique(values[known], return_counts=True)
    usual, count = float(levels[counts.argmax()]), int(counts.max())
    if count < LEAST_PEERS or count < COMMON_SHARE * known.sum():
        return flags, np.nan
    flags[known] = values[known] < usual
    return flags, usual


def _beyond(values: Floats, peers: Flags, rule: tuple[float, bool, int], widths: float = WIDTHS) -> tuple[Flags, float]:
    """Who among `peers` is beyond the median by `rule` (least, whether a share, side) and `widths` of spread."""
    least, share, side = rule
    known = peers & np.isfinite(values)
    flags = np.zeros(values.size, dtype=np.bool_)
    if known.sum() <= LEAST_PEERS:
        return flags, np.nan
    own = values[known]
    middle = float(np.median(own))
    spread = 1.4826 * float(np.median(np.abs(own - middle)))
    flags[known] = side * (own - middle) > max(widths * spread, least * middle if share else least)
    return flags, middle


def _keep(
    found: tuple[Flags, Floats, Floats], flags: Flags, values: Floats, middle: float, peers: Flags, *, odd: bool = True
) -> None:
    """Take `flags` into `found`, unless so many differ that they are no exception."""
    if not flags.any() or (odd and flags.sum() > max(1, int(ODD_SHARE * peers.sum()))):
        return
    found[0][flags], found[1][flags], found[2][flags] = True, values[flags], middle
