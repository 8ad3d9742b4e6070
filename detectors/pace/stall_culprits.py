"""Who holds up ranks that wait, where hosts run ahead of their devices: the counts of calls decide, not hosts' states.

A host that waits for its device is in no collective, and is no culprit for it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.collectives.count_watch import blame, heard
from trainwarden.detectors.job.window import Window

Flags = npt.NDArray[np.bool_]
_MOST: Final = 0.5  # of the ranks: if more have begun equally few calls, that tells nobody
_WHAT: Final = {
    "host": "its host has not enqueued a call that others wait in",
    "device": "its device has not started a call that others wait in",
    "link": "",
}


def stall_culprits(window: Window, absent: Flags, lasted_s: float) -> tuple[Flags, str]:
    """Ranks that hold up the others, and what tells so; nobody where that is not known.

    Parameters
    ----------
    window : Window
    absent : bool [ranks]
        Have not come to the collective in which others are seen to wait.
    lasted_s : float
        How long nobody has moved: what ranks have told of their counts meanwhile still holds.
    """
    if absent.sum() == 1:
        return absent, ""
    out = np.zeros(absent.size, dtype=np.bool_)
    found = None if window.counts is None else blame(heard(window.counts, window, lasted_s))
    if found is not None:
        out[[column for column in found.columns if column < out.size]] = True
        return out & window.live, _WHAT[found.kind]
    calls = window.beats.calls[: absent.size]
    fewest = absent & (calls == calls[absent].min(initial=np.iinfo(np.int64).max))
    if fewest.sum() < _MOST * window.live.sum() and (calls[window.live & ~fewest] > calls[fewest].max(initial=0)).all():
        return fewest, "it has begun the fewest collective calls"
    return out, ""
