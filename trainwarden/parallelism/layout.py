"""The layout of one job: its sizes, which ranks belong together, and where all that was read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import msgspec

AXES: Final = ("tp", "cp", "dp", "pp")
"""What a rank has a place on, in the order of Megatron, torchtitan and DeepSpeed: ranks on `tp` are neighbours."""
WORDS: Final = {
    "tp": "tensor",
    "cp": "context",
    "dp": "data",
    "pp": "pipeline",
    "ep": "expert",
}  # a kind of group, and its name for people


class Layout(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A grid of ranks: the number of a rank counts through `order`, first axis fastest.

    Parameters
    ----------
    world_size : int
    sizes : dict of str to int
        Ranks of a group, by its kind; a kind that is missing is not known. `ep` cuts across `dp`, `cp` and `tp`, so it
        is no axis of the grid.
    order : tuple of str
        The four axes, fastest first.
    sources : tuple of str
        Where the sizes were read, most trusted first.
    uneven : tuple of str
        Why replicas of this job must not run unequal numbers of micro-batches.
    contradictions : tuple of str
        What sources say that cannot all be so. Then nothing is made of the layout.

    Examples
    --------
    >>> layout = Layout(world_size=8, sizes={"tp": 2, "cp": 1, "dp": 2, "pp": 2}, sources=("settings",))
    >>> layout.summary()
    'tp 2 x pp 2 x dp 2; from settings'
    >>> layout.groups("tp")[:2], layout.replicas()
    (((0, 1), (2, 3)), ((0, 1, 4, 5), (2, 3, 6, 7)))
    """

    world_size: int
    sizes: dict[str, int] = msgspec.field(default_factory=dict)
    order: tuple[str, ...] = AXES
    sources: tuple[str, ...] = ()
    uneven: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether it can be relied on: all axes are known, their product is the world, and nobody contradicts."""
        return not self.contradictions and not self.unknown and product(self.sizes) == self.world_size

    @property
    def unknown(self) -> tuple[str, ...]:
        """Axes whose size nobody has told."""
        return tuple(axis for axis in AXES if axis not in self.sizes)

    def groups(self, kind: str) -> tuple[tuple[int, ...], ...]:
        """Ranks of every group along one axis of a whole layout, by first rank."""
        return self._along((kind,))

    def replicas(self) -> tuple[tuple[int, ...], ...]:
        """Ranks of every data-parallel replica of a whole layout: each holds the model once."""
        return self._along(tuple(axis for axis in self.order if axis != "dp"))

    def stages(self) -> tuple[int, ...]:
        """The pipeline stage of every rank of a whole layout, by rank."""
        stride, size = self._stride("pp"), self.sizes["pp"]
        return tuple(rank // stride % size for rank in range(self.world_size))

    def summary(self) -> str:
        """One line for a person."""
        known = [f"{axis} {self.sizes[axis]}" for axis in ("tp", "cp", "pp", "dp") if self._worth_saying(axis)]
        if not self.sizes and not self.contradictions:
            return f"no parallel group known; unequal micro-batches would be wrong: {'; '.join(self.uneven)}"
        text = " x ".join(known) or "no parallel group known"
        if self.sizes.get("ep", 1) > 1:
            text += f"; expert {self.sizes['ep']}"
        if not self.contradictions and self.unknown:
            text += f"; {' and '.join(WORDS[axis] for axis in self.unknown)} not known"
        text += f"; from {' and '.join(self.sources)}" if self.sources else ""
        return text + "".join(f"; contradiction: {one}" for one in self.contradictions)

    def _worth_saying(self, axis: str) -> bool:
        return axis in self.sizes and (axis != "cp" or self.sizes[axis] > 1)

    def _stride(self, kind: str) -> int:
        return math.prod(self.sizes[axis] for axis in self.order[: self.order.index(kind)])

    def _along(self, kinds: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        offsets, firsts = [0], [0]
        for axis in self.order:  # slower axes later, so that both lists ascend
            steps = [place * self._stride(axis) for place in range(self.sizes[axis])]
            if axis in kinds:
                offsets = [step + rest for step in steps for rest in offsets]
            else:
                firsts = [step + rest for step in steps for rest in firsts]
        return tuple(tuple(first + offset for offset in offsets) for first in firsts)


def product(sizes: Mapping[str, int]) -> int:
    """Ranks of a grid of these sizes, as far as they are known.

    Examples
    --------
    >>> product({"tp": 2, "dp": 4, "ep": 4})
    8
    """
    return math.prod(sizes.get(axis, 1) for axis in AXES)
