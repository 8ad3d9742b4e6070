"""Transfers between nodes as an incident carries them, from `trainwarden.detectors.verdict.transfers`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Kind = Literal["tp", "dp", "pp"]
Seconds = Annotated[float, msgspec.Meta(gt=0.0, le=1e9)]
Bytes = Annotated[float, msgspec.Meta(ge=0.0, le=1e18)]


class Link(msgspec.Struct, frozen=True):
    """How long a byte takes between the ranks of a group that lie on `nodes`: as long as on its slowest link."""

    kind: Kind
    nodes: tuple[str, ...]
    byte_s: Seconds


class Transfers(msgspec.Struct, frozen=True, kw_only=True):
    """Groups whose ranks lie on several nodes, and what each rank computes.

    Attributes
    ----------
    tp_bytes, dp_bytes, pp_bytes : float
        What passes a rank's busiest link in an iteration: in its tensor-parallel and its data-parallel group, and with
        the next stage, both ways; 0 where nothing was seen between nodes.
    micro_batches : int
        Messages that a rank sends to the next stage in an iteration; 0 where none were seen.
    links : tuple of Link
        One or more for each group between nodes.
    ranks, working_s : tuple of int, tuple of float
        Seconds of an iteration that each of these ranks is in no transfer.
    """

    tp_bytes: Bytes = 0.0
    dp_bytes: Bytes = 0.0
    pp_bytes: Bytes = 0.0
    micro_batches: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    links: Annotated[tuple[Link, ...], msgspec.Meta(max_length=65_536)] = ()
    ranks: tuple[int, ...] = ()
    working_s: tuple[Seconds | None, ...] = ()

    def bytes_of(self, kind: Kind) -> float:
        """What passes a rank's busiest link in groups of that kind.

        Examples
        --------
        >>> Transfers(dp_bytes=4e9).bytes_of("dp")
        4000000000.0
        """
        return {"tp": self.tp_bytes, "dp": self.dp_bytes, "pp": self.pp_bytes}[kind]
