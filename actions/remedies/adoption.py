"""Which ranks run by which split of micro-batches, by what their own processes have published."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from trainwarden.records import ActionRecord, EventRecord


class _Adopted(msgspec.Struct, frozen=True):
    """A rank's newest word: the split that it runs by, and when it took it up."""

    time_s: float
    micro_batches: tuple[int, ...]


class Adoptions:
    """The newest split of each rank of each job. Repeats and older words change nothing."""

    def __init__(self) -> None:
        self._of_job: dict[str, dict[int, _Adopted]] = {}

    def apply(self, event: EventRecord) -> None:
        """Take an event in; all but adoptions of a split are passed over."""
        if event.kind != "microbatch_plan" or event.rank is None:
            return
        counts = _counts(event.fields.get("micro_batches"))
        known = self._of_job.setdefault(event.job, {}).get(event.rank)
        if counts and (known is None or event.time_s >= known.time_s):
            self._of_job[event.job][event.rank] = _Adopted(event.time_s, counts)

    def missing(self, action: ActionRecord) -> tuple[int, ...]:
        """Ranks that do not run by the split of the rebalance `action`, as far as is known."""
        split = tuple(int(count) for count in action.plan.get("micro_batches", ()))
        of_job = self._of_job.get(action.job, {})
        return tuple(rank for rank in range(len(split)) if rank not in of_job or of_job[rank].micro_batches != split)

    def forget(self, jobs: set[str]) -> None:
        """Let go of all but `jobs`."""
        for job in self._of_job.keys() - jobs:
            del self._of_job[job]


def names(ranks: Sequence[int], most: int = 10) -> str:
    """Ranks as a person reads them.

    Examples
    --------
    >>> names([2]), names([0, 3]), names(range(16), 2)
    ('rank 2', 'ranks 0, 3', 'ranks 0, 1 and 14 more')
    """
    shown, more = ", ".join(map(str, ranks[:most])), len(ranks) - most
    return f"rank{'s' if len(ranks) != 1 else ''} {shown}" + (f" and {more} more" if more > 0 else "")


def _counts(text: object) -> tuple[int, ...]:
    """The counts that an event carries as text; empty if it carries none."""
    words = text.split(",") if isinstance(text, str) else []
    return tuple(map(int, words)) if all(word.isascii() and word.isdigit() for word in words) else ()
