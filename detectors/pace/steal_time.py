"""How much longer everything lasts where a hypervisor takes the processors away: a virtual machine's stolen time."""

from __future__ import annotations

from typing import Final

from trainwarden.detectors.job.window import Window
from trainwarden.detectors.peers.cpu_wait import STOLEN

LAST_S: Final = 5.0  # ticks of so long, by the service's clock: one comes each second, later where processors are taken
MOST: Final = 0.95  # a machine that gets nothing at all would be waited for without end


class StealTime:
    """The largest share of time that a node of the job has just been robbed of (steal of proc_stat(5)).

    A process that is taken off a processor by the hypervisor counts as running, whatever this system's own books say,
    and all ranks of a node seem to stand still together, in whatever they did.

    Examples
    --------
    >>> stolen = StealTime()
    >>> stolen.observe(10.0, 0.75)
    >>> stolen.slowed(12.0), stolen.slowed(16.0)
    (4.0, 1.0)
    >>> stolen.observe(20.0, 1.0)
    >>> round(stolen.slowed(20.0))
    20
    """

    def __init__(self) -> None:
        self._shares: list[tuple[float, float]] = []  # when they came, and the largest of then

    def update(self, window: Window) -> None:
        """Observe what is new."""
        shares = (
            share for record in window.metrics if STOLEN in record.names
            for share in record.values[record.names.index(STOLEN)] if share is not None
        )  # fmt: skip
        self.observe(window.now_s, max(shares, default=0.0))

    def observe(self, now_s: float, share: float) -> None:
        """Note the largest share that came at `now_s`."""
        self._shares = [one for one in self._shares if now_s - one[0] < LAST_S]
        if share > 0.0:
            self._shares.append((now_s, min(share, MOST)))

    def slowed(self, now_s: float) -> float:
        """How many times as long as usual anything may take now."""
        return 1.0 / (1.0 - max((share for at_s, share in self._shares if now_s - at_s < LAST_S), default=0.0))
