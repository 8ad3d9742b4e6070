"""The burn-in: matrix products whose every element is known exactly, timed on the device."""

from __future__ import annotations

import time
from functools import cache
from typing import Any, NamedTuple

import torch

from trainwarden.actions.validation.results import RankReport
from trainwarden.actions.validation.running import processor

LEAST_REPEATS = 5
MOST_REPEATS = 10_000
_STANDARD_DEVIATION = 24.0  # of a product's elements: ten of them stay below 256, up to which bfloat16 holds integers


class Size(NamedTuple):
    """Side of the matrices, and products in one repeat: some 12 ms on a processor, 30 ms on an H100."""

    side: int
    products: int


ON_PROCESSOR = Size(512, 4)
ON_DEVICE = Size(4096, 100)


class BurnIn:
    """Operands of -1, 0 and 1 on `device`, and what the rows and columns of their product sum up to.

    Few elements are not 0 where the side is large, so all elements of the product are small integers: exact in any
    order of addition, in bfloat16 with tensor cores as well as in single precision on a processor. The sums are
    reckoned with integers on the host, from the operands alone.

    Examples
    --------
    >>> burn_in = BurnIn(torch.device("cpu"), Size(64, 1))
    >>> product = burn_in.product()
    >>> burn_in.right(product)
    True
    >>> product[3, 5] += 1
    >>> burn_in.right(product)
    False
    """

    def __init__(self, device: torch.device, size: Size | None = None) -> None:
        self._device = device
        self._size = size or (ON_PROCESSOR if device.type == "cpu" else ON_DEVICE)
        side = self._size.side
        share = min(1.0, _STANDARD_DEVIATION / side**0.5)
        generator = torch.Generator().manual_seed(20_261_122)
        left, right = (torch.randint(0, 2, (side, side), generator=generator) * 2 - 1 for _ in range(2))
        left, right = (one * (torch.rand(side, side, generator=generator) < share) for one in (left, right))
        self._rows = (left @ right.sum(1, keepdim=True)).squeeze(1)
        self._columns = (left.sum(0, keepdim=True) @ right).squeeze(0)
        kind = torch.float32 if device.type == "cpu" else torch.bfloat16
        self._left, self._right = left.to(device, kind), right.to(device, kind)

    @property
    def flop(self) -> float:
        """Floating-point operations of one repeat: a multiplication and an addition for each element and step."""
        return 2.0 * self._size.side**3 * self._size.products

    def product(self) -> Any:
        """One product of the operands, on the device."""
        return torch.mm(self._left, self._right)

    def right(self, product: Any) -> bool:
        """Whether rows and columns of `product` sum up to what they must."""
        exact = product.double()
        rows, columns = exact.sum(1).cpu(), exact.sum(0).cpu()
        return bool((rows == self._rows.double()).all() and (columns == self._columns.double()).all())

    def repeat(self) -> tuple[float, float, bool]:
        """Wall seconds, seconds of the device and whether it was right, of one repeat."""
        if self._device.type != "cpu":
            return self._repeat_on_device()
        start_s, busy_s = time.perf_counter(), time.thread_time()
        for _ in range(self._size.products):
            product = self.product()
        busy_s, wall_s = time.thread_time() - busy_s, time.perf_counter() - start_s
        return wall_s, busy_s, self.right(product)

    def _repeat_on_device(self) -> tuple[float, float, bool]:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start_s = time.perf_counter()
        begin.record()
        for _ in range(self._size.products):
            product = self.product()
        end.record()
        end.synchronize()
        wall_s = time.perf_counter() - start_s
        return wall_s, begin.elapsed_time(end) / 1000.0, self.right(product)


@cache
def _made(device: torch.device) -> BurnIn:
    """Operands and sums are the same in every round."""
    return BurnIn(device)


def burn_in(rank: int, device: torch.device, budget_s: float, limit_s: float) -> RankReport:
    """Repeats until `device` was busy for `budget_s`, five at least if half of `limit_s` allows it."""
    work = _made(device)
    work.repeat()  # the first product loads libraries and raises clocks
    wall: list[float] = []
    busy: list[float] = []
    wrong = 0
    until_s = time.monotonic() + limit_s / 2
    stood_s = processor.stood_still_s()
    while len(busy) < MOST_REPEATS and (sum(busy) < budget_s or len(busy) < LEAST_REPEATS):
        wall_s, busy_s, right = work.repeat()
        wall.append(wall_s)
        busy.append(busy_s)
        wrong += not right
        if time.monotonic() > until_s:
            break
    after_s = processor.stood_still_s()
    stood = after_s - stood_s if stood_s is not None and after_s is not None else None
    return RankReport(
        rank=rank, wall_s=tuple(wall), busy_s=tuple(busy), throttled_s=stood, flop=work.flop, wrong=wrong
    )  # fmt: skip
