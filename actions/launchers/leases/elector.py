"""One launcher's side of the lease: what it asks, and until when it may act as the leader.

All times are of one clock of this machine that neither jumps nor stands still while the machine sleeps
(CLOCK_BOOTTIME); no time of another machine is ever compared with it.
"""

from __future__ import annotations

from typing import Final

from actions.launchers.leases.words import Answer, Ask, Lease

MARGIN_RATIO: Final = 1 / 3  # client-go's renewDeadline is 10 s of leaseDuration 15 s
RETRY_RATIO: Final = 2 / 15  # its retryPeriod, 2 s of 15 s


class LeaderElector:
    """Knows the newest lease of a job, and whether it is this launcher's and still stands.

    A lease stands for its duration less a third, counted from when the question was sent: whoever counts from when
    it was answered, as the service does, comes later.

    Parameters
    ----------
    holder : str
        This process, unlike any other and any before it on this node.
    address : str
        Where others reach it.

    Examples
    --------
    >>> elector = LeaderElector("j", "a", "10.0.0.1:7000")
    >>> mine = Lease(job="j", holder="a", address="10.0.0.1:7000", epoch=1, duration_s=6.0)
    >>> elector.hear(Answer(granted=True, lease=mine), sent_s=10.0, now_s=10.1)
    >>> elector.leads(13.9), elector.leads(14.0)
    (True, False)
    """

    def __init__(self, job: str, holder: str, address: str) -> None:
        self._job, self._holder, self._address = job, holder, address
        self._newest: Lease | None = None
        self._seen_epoch = 0
        self._until_s: float | None = None  # set while `_newest` is ours

    @property
    def newest(self) -> Lease | None:
        """The newest lease that was heard of, whoever's; it may be over."""
        return self._newest

    def leads(self, now_s: float) -> bool:
        """Whether this launcher may act as the leader, under the epoch of `newest`."""
        return self._until_s is not None and now_s < self._until_s

    def left_s(self, now_s: float) -> float:
        """For how long it may, in seconds; 0 if it may not."""
        return 0.0 if self._until_s is None else max(0.0, self._until_s - now_s)

    def ask(self, now_s: float, *, stand: bool = True) -> Ask:
        """The question to send now: for the lease, or, if it is not to `stand` for it, who has it."""
        leads = self.leads(now_s)
        return Ask(
            job=self._job, holder=self._holder, address=self._address, want="lead" if stand or leads else "look",
            carried=self._newest, holds=leads, seen_epoch=self._seen_epoch,
        )  # fmt: skip

    def hear(self, answer: Answer, *, sent_s: float, now_s: float) -> None:
        """Take the answer to what was asked at `sent_s`."""
        lease = answer.lease
        if lease is None or lease.job != self._job:
            return
        if lease.epoch < self._seen_epoch:
            return  # overtaken by what was heard meanwhile
        mine = answer.granted and lease.holder == self._holder
        until_s = sent_s + lease.duration_s * (1 - MARGIN_RATIO)
        known = self._newest is not None and lease.epoch == self._newest.epoch
        if not mine:
            if not known:
                self._take(lease)
        elif not known:
            self._take(lease)
            self._until_s = until_s
        elif self.leads(now_s):
            # A renewal that comes after the end is none: another launcher may have led meanwhile, granted by a
            # service that is gone, and one that has begun anew believed this question, which came before that one's.
            assert self._until_s is not None
            self._until_s = max(self._until_s, until_s)

    def fenced(self, epoch: int) -> None:
        """A node obeys a leader of `epoch`, which is not ours: stop leading, and stand again for a higher one."""
        self._seen_epoch = max(self._seen_epoch, epoch)
        self._until_s = None

    def resign(self, now_s: float) -> Ask | None:
        """Lead no longer; what to send so that another need not wait for the end. None if there is nothing to say."""
        if not self.leads(now_s):
            return None
        self._until_s = None
        return Ask(
            job=self._job, holder=self._holder, want="release", carried=self._newest, holds=True,
            seen_epoch=self._seen_epoch,
        )  # fmt: skip

    def _take(self, lease: Lease) -> None:
        self._newest, self._until_s = lease, None
        self._seen_epoch = max(self._seen_epoch, lease.epoch)


def retry_s(duration_s: float) -> float:
    """How long to wait between two questions, in seconds."""
    return duration_s * RETRY_RATIO
