"""The lease service's memory: which lease of each job stands until when. It is lost with the process, and may be.

Who asks carries the newest lease that it has heard of, so a service that begins with nothing relearns what it needs
(TRANSOM, section IV-A). Within its first duration it grants nothing except to the holder of a lease that still stands:
whatever an earlier service granted is over by then. An epoch is one more than the highest that any asker has seen.
"""

from __future__ import annotations

from typing import Final

import msgspec

from actions.launchers.leases.words import Answer, Ask, Lease

MOST_JOBS: Final = 10_000


class _Entry(msgspec.Struct):
    """The newest lease of a job, until when it stands (None: only heard of), and the highest epoch of all."""

    lease: Lease | None = None
    until_s: float = float("-inf")
    highest: int = 0


class LeaseTable:
    """Grants leases; pure, told the time with each question.

    Parameters
    ----------
    duration_s : float
        For which a lease is granted, in seconds. Services that follow each other must have the same.
    now_s : float
        The time on any clock that does not jump, in seconds.

    Examples
    --------
    >>> table = LeaseTable(6.0, now_s=0.0)
    >>> table.answer(Ask(job="j", holder="a"), now_s=1.0).wait_s  # an earlier service may have granted one
    5.0
    >>> table.answer(Ask(job="j", holder="a"), now_s=6.0).lease.epoch
    1
    >>> table.answer(Ask(job="j", holder="b"), now_s=10.0).wait_s
    2.0
    """

    def __init__(self, duration_s: float, now_s: float) -> None:
        self._duration_s = duration_s
        self._quiet_until_s = now_s + duration_s
        self._entries: dict[str, _Entry] = {}

    def answer(self, ask: Ask, now_s: float) -> Answer:
        """What `ask` is told at `now_s`."""
        entry = self._entries.get(ask.job) or self._new_entry(ask.job, now_s)
        claims = self._claims(entry, ask, now_s)
        _learn(entry, ask, claims or now_s >= entry.until_s)
        if ask.want == "release":
            if claims and _same(ask.carried, entry.lease):  # and not one that the same holder was granted meanwhile
                entry.until_s = now_s
            return self._refused(entry, now_s)
        if ask.want == "look":
            return self._refused(entry, now_s)
        if claims:
            return self._granted(entry, now_s)
        taken = now_s < entry.until_s and entry.lease is not None and entry.lease.holder != ask.holder
        if taken or now_s < self._quiet_until_s:
            return self._refused(entry, now_s)
        entry.highest += 1
        entry.lease = Lease(
            job=ask.job, holder=ask.holder, address=ask.address, epoch=entry.highest, duration_s=self._duration_s
        )
        return self._granted(entry, now_s)

    def standing(self, now_s: float) -> dict[str, tuple[Lease, float]]:
        """Leases that stand, by job, with the seconds that each has left."""
        return {
            job: (entry.lease, entry.until_s - now_s)
            for job, entry in self._entries.items()
            if entry.lease is not None and now_s < entry.until_s
        }

    def _claims(self, entry: _Entry, ask: Ask, now_s: float) -> bool:
        """Whether `ask` comes from the holder of the newest lease, to be believed that it stands.

        A service that has begun anew may have believed a holder whose question was long under way, after another
        one was granted the lease by the service before it: of two the higher epoch is right, and the other one
        takes no answer that comes after its own lease's end (`LeaderElector.hear`).
        """
        carried = ask.carried
        if not ask.holds or carried is None or carried.holder != ask.holder or carried.job != ask.job:
            return False
        if entry.lease is not None and entry.lease.holder == ask.holder and now_s < entry.until_s:
            return entry.lease.epoch >= max(entry.highest, ask.seen_epoch)  # else it is given one that is obeyed
        return carried.epoch >= max(entry.highest, ask.seen_epoch)

    def _granted(self, entry: _Entry, now_s: float) -> Answer:
        assert entry.lease is not None
        entry.lease = msgspec.structs.replace(entry.lease, duration_s=self._duration_s)
        entry.until_s = now_s + self._duration_s
        return Answer(granted=True, lease=entry.lease, wait_s=self._duration_s)

    def _refused(self, entry: _Entry, now_s: float) -> Answer:
        wait_s = max(0.0, entry.until_s - now_s, self._quiet_until_s - now_s)
        return Answer(granted=False, lease=entry.lease, wait_s=wait_s)

    def _new_entry(self, job: str, now_s: float) -> _Entry:
        """An entry for `job`; the one that has been over for longest makes room, as its askers carry what it said."""
        if len(self._entries) >= MOST_JOBS:
            oldest = min(self._entries, key=lambda one: self._entries[one].until_s)
            if self._entries[oldest].until_s < now_s:
                del self._entries[oldest]
        return self._entries.setdefault(job, _Entry())


def _learn(entry: _Entry, ask: Ask, free: bool) -> None:
    """Take what `ask` carries: the highest epoch and, unless another one's lease stands (`free`), the newest lease."""
    carried = ask.carried if ask.carried is not None and ask.carried.job == ask.job else None
    entry.highest = max(entry.highest, ask.seen_epoch, carried.epoch if carried else 0)
    if free and carried is not None and (entry.lease is None or carried.epoch > entry.lease.epoch):
        entry.lease = carried


def _same(one: Lease | None, other: Lease | None) -> bool:
    """Whether both are one lease; how long it lasts is each service's own affair."""
    return one is not None and other is not None and (one.epoch, one.holder) == (other.epoch, other.holder)
