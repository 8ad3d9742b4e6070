"""One file per detector, the ensemble and the detection service. CATALOG is the table of what there is."""

from __future__ import annotations

from typing import Final

CATALOG: Final[dict[str, str]] = {
    "log_window": "detectors.log_window:LogWindow",
    "hard_event": "detectors.hard_event:HardEvent",
    "iteration_threshold": "detectors.iteration_threshold:IterationThreshold",
    "change_point": "detectors.change_point:ChangePoint",
    "peer_deviation": "detectors.peer_deviation:PeerDeviation",
}
ENTRY_POINTS: Final = "trainwarden.detectors"
