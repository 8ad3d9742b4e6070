"""What a single look at GPUs shows of their health, where nothing is there that could grow.

Each becomes a line ``health check: DEVICE PART failed: words``, as those of `trainwarden.formats.gpu.health_reports`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from trainwarden.formats.verdicts import Verdict, line_of
from trainwarden.recorded.job import Floats, LogTable, MetricTable

COUNT: Final = "gpu_ecc_uncorrectable_volatile_count"
WIDTH: Final = "gpu_pcie_link_width_count"
MAX_WIDTH: Final = "gpu_pcie_link_width_max_count"
CLOCK: Final = "gpu_sm_clock_hertz"
USE: Final = "gpu_utilization_ratio"
HELD_DOWN: Final = ("gpu_throttle_hardware_state", "gpu_throttle_thermal_state")
SLOW: Final = 0.7  # of the peers' clock: what is held down for a moment only is seldom as slow
BUSY: Final = 0.5  # share of time: clocks of idle GPUs say nothing
LEAST_PEERS: Final = 3  # with all their lanes, or not held down
HEAT: Final = "gpu_temperature_celsius"
MOST_HEAT: Final = 85.0  # °C, above which heat is looked at for how long it lasts (detectors/devices/limits.toml)
# What must be absent of every device before a look at all of them is a clean one.
_STATES: Final = (
    "gpu_throttle_thermal_state", "gpu_throttle_hardware_state", "gpu_row_remap_pending_state",
    "gpu_row_remap_failure_state", "gpu_xid_state",
)  # fmt: skip


def kept_errors(table: MetricTable | None) -> list[LogTable]:
    """Lines about devices with errors, of a table with one row for each device; about all of them where none has."""
    if table is None or np.unique(table.entity).size < table.entity.size:
        return []
    failed = [*_uncorrectable(table), *_narrow(table), *_held_down(table)]
    if not failed:
        return _clean(table)
    rows = np.array([row for row, _ in failed], np.int64)
    return [_lines("single look", table, rows, [verdict for _, verdict in failed])]


def _uncorrectable(table: MetricTable) -> Iterator[tuple[int, Verdict]]:
    counts = np.nan_to_num(_column(table, COUNT))
    for row in np.flatnonzero(counts > 0.0).tolist():
        words = f"{counts[row]:.0f} uncorrectable errors since its reset"
        yield row, Verdict(_device(table, row), "memory", words)


def _narrow(table: MetricTable) -> Iterator[tuple[int, Verdict]]:
    """GPUs with fewer PCIe lanes than they have, while most others have all: an idle link slows down, none narrows."""
    width, most = _column(table, WIDTH), _column(table, MAX_WIDTH)
    narrow, whole = width < most, width == most
    if narrow.sum() and whole.sum() >= LEAST_PEERS and narrow.sum() * 2 < whole.sum():
        for row in np.flatnonzero(narrow & (width > 0)).tolist():
            words = f"{width[row]:.0f} lanes of {most[row]:.0f}, while {whole.sum()} others have all"
            yield row, Verdict(_device(table, row), "pcie", words)


def _held_down(table: MetricTable) -> Iterator[tuple[int, Verdict]]:
    """Busy GPUs that say that their clocks are held down, and whose clock is far below that of busy peers."""
    clock, idle = _column(table, CLOCK), _column(table, USE) < BUSY
    held = np.fmax(*(np.nan_to_num(_column(table, name)) for name in HELD_DOWN)) > 0.5
    peers = ~held & ~idle & np.isfinite(clock)
    if peers.sum() < LEAST_PEERS:
        return
    usual = float(np.median(clock[peers]))
    for row in np.flatnonzero(held & ~idle & (clock < SLOW * usual)).tolist():
        words = (
            f"its clocks are held down, {clock[row] / 1e6:.0f} MHz where {peers.sum()} others have {usual / 1e6:.0f}"
        )
        yield row, Verdict(_device(table, row), "clocks", words)


def _clean(table: MetricTable) -> list[LogTable]:
    """A pass of every GPU where all show their temperature, none is hot, and none is held back or waits for a reset."""
    heat = _column(table, HEAT)
    gpus = [(table.devices[one] or "").startswith("gpu") for one in table.entity.tolist()]
    is_cool = np.isfinite(heat).all() and (heat < MOST_HEAT).all() and all(gpus) and heat.size > 0
    if not is_cool or any(np.nan_to_num(_column(table, name)).any() for name in _STATES):
        return []
    if (_column(table, WIDTH) < _column(table, MAX_WIDTH)).any():
        return []
    verdicts = [Verdict(_device(table, row), "", None) for row in range(heat.size)]
    return [_lines("single look", table, np.arange(heat.size), verdicts)]


def _device(table: MetricTable, row: int) -> str:
    return table.devices[int(table.entity[row])] or "gpu"


def _column(table: MetricTable, name: str) -> Floats:
    if name not in table.names:
        return np.full(table.entity.size, np.nan)
    column: Floats = table.values[:, table.names.index(name)]
    return column


def _lines(label: str, table: MetricTable, rows: np.ndarray, verdicts: list[Verdict]) -> LogTable:
    owners = table.entity[rows].tolist()
    nodes, ranks = tuple(table.nodes[one] for one in owners), tuple(table.ranks[one] for one in owners)
    return LogTable(label, table.times_s[rows].copy(), nodes, ranks, [line_of(one) for one in verdicts])
