"""What ranks and nodes report of their checks, and what a validation ends with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from trainwarden.launching import Check, Rates
from trainwarden.records import IncidentKind, Rank


class RankInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that has come: where it is and what it computes on.

    `at_once` is how many ranks of its node may compute at once, None where each has a device of its own.
    """

    rank: Rank
    node: str
    local_rank: int
    device: str
    at_once: int | None = None

    @property
    def name(self) -> str:
        """How its baseline is called: the same place after a restart."""
        return f"{self.node}/{self.local_rank}"


class RankCommand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the leader asks of ranks; a rank that is not named waits for the next order."""

    number: int
    what: Literal["gemm", "links", "answer", "end"]
    ranks: tuple[Rank, ...] = ()
    pairs: tuple[tuple[Rank, Rank], ...] = ()
    budget_s: float = 0.0
    limit_s: float = 0.0


class RankReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rank's answer to an order.

    Each place of `wall_s`, `busy_s` and `waited_s` is one repeat. For a burn-in `busy_s` is what the device (for a
    processor: this thread) was busy; for a link the times are those of what this rank sent to `peer`, and `waited_s`
    is how long threads of both ends were ready and had no processor. `throttled_s` is how long the control group
    stood still meanwhile, absent where the kernel does not say. `flop` are the floating-point operations of one repeat
    of a burn-in. `error` is why there are no times.
    """

    rank: Rank
    wall_s: tuple[float, ...] = ()
    busy_s: tuple[float, ...] = ()
    waited_s: tuple[float, ...] = ()
    throttled_s: float | None = None
    flop: float | None = None
    wrong: int = 0
    peer: Rank | None = None
    message_bytes: int | None = None
    error: str | None = None

    @property
    def crowded(self) -> bool:
        """Whether its device had no memory left: a job that stands still keeps what it has."""
        return self.error is not None and "out of memory" in self.error.lower()


class NodeReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What disk and memory of one node answered; an entry of `wrong` is one sentence by check."""

    node: str
    mb_per_s: Mapping[str, float] = {}
    wrong: Mapping[Check, str] = {}
    left_out: Mapping[Check, str] = {}


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Somebody accused, with at least two witnesses: `ranks` on `nodes`, or the link between two of them."""

    kind: IncidentKind
    text: str
    ranks: tuple[Rank, ...] = ()
    nodes: tuple[str, ...] = ()
    link: tuple[Rank, Rank] | None = None
    ratio: float | None = None
    witnesses: tuple[str, ...] = ()


class ComputeTime(msgspec.Struct, frozen=True, kw_only=True):
    """What the burn-in of a rank's device took, the best of all repeats, and whether it is accused for it."""

    rank: Rank
    busy_s: float = msgspec.field(name="s")
    suspect: bool


class LinkTime(msgspec.Struct, frozen=True, kw_only=True):
    """What one direction of a link took for one message: its usual time, and its best without waits for a processor.

    `gbps` is 10^9 bits a second in the usual time, `suspect` whether the link or one of its ends is accused.
    """

    sender: Rank = msgspec.field(name="a")
    receiver: Rank = msgspec.field(name="b")
    gbps: float | None = None
    suspect: bool = False
    usual_s: float
    best_s: float


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """How a validation ended.

    `noted` is what a person should know though nobody is accused of it, `unjudged` what could not be compared with
    anything; `judged` are the checks in which all could. `compute`, `links` and `mb_per_s` (by node) are the
    measurements, `rates` those of devices and links in plain units; `took_s` is what each part of them took.
    """

    ranks: int
    accused: tuple[Finding, ...]
    noted: tuple[str, ...] = ()
    unjudged: tuple[str, ...] = ()
    judged: tuple[Check, ...] = ()
    nodes: Mapping[str, tuple[Rank, ...]] = {}
    devices: Mapping[Rank, str] = {}
    compute: tuple[ComputeTime, ...] = ()
    links: tuple[LinkTime, ...] = ()
    mb_per_s: Mapping[str, Mapping[str, float]] = {}
    passes: int = 0
    rates: Rates = Rates()
    took_s: Mapping[str, float] = {}
    wall_s: float = 0.0

    @property
    def exit_code(self) -> int:
        """1 where somebody is accused."""
        return 1 if self.accused else 0
