"""NVLink errors that go on growing on one GPU, where those of its peers stand still.

Live limits are rates that are grave by themselves (detectors/devices/limits.toml). A recording shows more: counters of
dozens of GPUs beside each other, of which one alone grows from look to look.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from trainwarden.formats.verdicts import Verdict, verdict_tables
from trainwarden.recorded.job import Floats, LogTable, MetricTable

_COUNTERS: Final = {
    "gpu_nvlink_recovery_errors_count": "recoveries", "gpu_nvlink_replay_errors_count": "replays",
    "gpu_nvlink_crc_data_errors_count": "CRC errors of data", "gpu_nvlink_crc_flit_errors_count": "CRC errors of flits",
}  # fmt: skip
LEAST_PEERS: Final = 3
LEAST_GROWTHS: Final = 5  # looks between which it has grown
LEAST_SHARE: Final = 0.25  # of the looks since it began to grow
LEAST_ERRORS: Final = 20.0
TIMES: Final = 20.0  # those of the worst peer
MOST_GPUS: Final = 2  # the two ends of one link


def link_errors(table: MetricTable | None) -> list[LogTable]:
    """Lines about the GPUs, one or the two ends of a link, whose NVLink errors alone go on growing."""
    found: dict[int, Verdict] = {}
    for name, words in _COUNTERS.items() if table is not None else ():
        if table is None or name not in table.names:
            continue
        column = table.values[:, table.names.index(name)]
        grown: dict[int, tuple[float, int, float, float]] = {}
        for entity in np.unique(table.entity).tolist():
            rows = np.flatnonzero((table.entity == entity) & np.isfinite(column))
            if rows.size > LEAST_GROWTHS:
                grown[entity] = _growth(table.times_s[rows], column[rows])
        bad = _alone(grown)
        for entity in bad:
            errors, looks, since_s, until_s = grown[entity]
            worst = max((one[0] for key, one in grown.items() if key not in bad), default=0.0)
            said = (
                f"{errors:.0f} {words} in {until_s - since_s:.0f} s, at {looks} looks; "
                f"of {len(grown) - len(bad)} peers {worst:.0f} at most"
            )
            device, node = table.devices[entity] or "gpu", table.nodes[entity]
            found.setdefault(entity, Verdict(device, "nvlink", said, node, since_s, table.ranks[entity]))
    return verdict_tables("nvlink errors", found.values(), np.nan)


def _growth(times_s: Floats, counts: Floats) -> tuple[float, int, float, float]:
    """How much a counter has grown, between how many looks, and in which time; resets count for nothing."""
    steps = np.diff(counts)
    rises = np.flatnonzero(steps > 0.0)
    if not rises.size:
        return 0.0, 0, float(times_s[0]), float(times_s[-1])
    looks = steps.size - int(rises[0])
    steady = rises.size if rises.size >= LEAST_SHARE * looks else 0
    return float(steps[rises].sum()), int(steady), float(times_s[rises[0]]), float(times_s[-1])


def _alone(grown: dict[int, tuple[float, int, float, float]]) -> list[int]:
    """The few entities that have grown steadily and far more than all others."""
    bad = [key for key, (errors, looks, *_) in grown.items() if errors >= LEAST_ERRORS and looks >= LEAST_GROWTHS]
    others = [one[0] for key, one in grown.items() if key not in bad]
    if not bad or len(bad) > MOST_GPUS or len(others) < LEAST_PEERS:
        return []
    return bad if min(grown[key][0] for key in bad) >= TIMES * max(1.0, *others) else []
