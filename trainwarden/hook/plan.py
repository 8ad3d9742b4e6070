"""What the launcher asks of the ranks by a file: another plan of micro-batches, when one of them is slow.

All ranks follow at once, as their loops agree on it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

from .layout import AT_MICRO, AT_PLAN, AT_PLAN_STEP
from .memory import let_through, read_beside
from .process import current
from .watches import hide

_MAX_BYTES = 8_000_000


@hide
def micro_batches(count: int) -> None:
    """Declare how many micro-batches this rank runs per iteration from now on."""
    try:
        hook = current()
        if hook is not None and count >= 1:
            hook.micro = int(count)
            if hook.live:
                hook.words[AT_MICRO] = hook.micro
    except Exception:
        let_through()


class MicroBatchPlan:
    """The launcher's wish of how many micro-batches each rank runs, read from ``plan.json`` of the run folder.

    All ranks must change at the same iteration. Let the training loop agree on the newest plan that everybody
    can read, then adopt that one; a rank that has read newer ones keeps the older::

        number = torch.tensor([plan.latest()])
        torch.distributed.all_reduce(number, op=torch.distributed.ReduceOp.MIN)
        if int(number) > adopted:
            adopted = int(number)
            shares = plan.adopt(adopted)

    Parameters
    ----------
    rank, world_size : int
        This process and how many there are.
    total : int
        Micro-batches of one iteration over all replicas; a plan that does not sum to it is passed over.
    group : sequence of int, optional
        Global ranks of this rank's data-parallel group, where a replica is more than one rank; else all ranks. Counts
        are those of its members, in their order: all ranks of a replica run the same number.

    Examples
    --------
    >>> MicroBatchPlan(0, 4, 10).adopt(0)
    (3, 3, 2, 2)
    >>> MicroBatchPlan(5, 8, 10, group=(1, 5)).adopt(0)
    (5, 5)
    """

    def __init__(self, rank: int, world_size: int, total: int, group: Sequence[int] | None = None) -> None:
        self.group = tuple(range(world_size) if group is None else group)
        self.place = self.group.index(rank)
        self.world_size, self.total = world_size, total
        share, rest = divmod(total, len(self.group))
        even = tuple(share + (place < rest) for place in range(len(self.group)))
        self.plans: dict[int, tuple[int, ...]] = {0: even}
        self.texts = {0: _text(even)} if group is None else {}  # of all ranks, as the plan was given
        self.in_force = even
        folder = os.environ.get("TRAINWARDEN_RUN_DIR") or os.path.dirname(os.environ.get("TRAINWARDEN_HOOK_DIR", ""))
        self.path = os.path.join(folder, "plan.json") if folder else ""
        self.seen: tuple[int, int, int] | None = None

    def latest(self) -> int:
        """Number of the newest plan that could be read; 0, the even split, if there is none. One stat per call."""
        try:
            if self.path:
                state = os.stat(self.path)
                seen = (state.st_ino, state.st_mtime_ns, state.st_size)
                if seen != self.seen:
                    self._read()
                    self.seen = seen
        except Exception:
            let_through()
        return max(self.plans)

    def adopt(self, number: int) -> tuple[int, ...]:
        """Micro-batches of every member of the group under plan `number`, which is in force from now on.

        A number that was never read leaves the list that is in force as it is.
        """
        try:
            self.in_force = self.plans.get(number, self.in_force)
            hook = current()
            if hook is not None and number in self.plans and (hook.live or hook.activate()):
                micro_batches(self.in_force[self.place])
                hook.words[AT_PLAN], hook.words[AT_PLAN_STEP] = number, hook.step
                if text := self.texts.get(number):
                    hook.note({"type": "plan", "plan": number, "micro_batches": text, "step": hook.step})
        except Exception:
            let_through()
        return self.in_force

    def _read(self) -> None:
        found = json.loads(read_beside(self.path, _MAX_BYTES))
        for plan in [*found.get("history", ()), found]:
            if not isinstance(plan, dict):
                continue
            number, shares = plan.get("number"), plan.get("micro_batches")
            if type(number) is int and 0 < number < 2**62 and number not in self.plans and self._valid(shares):
                counts: list[int] = shares or []
                self.plans[number] = tuple(counts[rank] for rank in self.group)
                self.texts[number] = _text(counts)

    def _valid(self, shares: Any) -> bool:
        return bool(
            isinstance(shares, list)
            and len(shares) == self.world_size
            and all(type(share) is int and share >= 1 for share in shares)
            and sum(shares[rank] for rank in self.group) == self.total
        )


def _text(shares: Iterable[int]) -> str:
    return ",".join(map(str, shares))
