"""The table of checks: what is measured, in which unit, and what must hold."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

RANKS: Final = (2, 4)


@dataclass(frozen=True)
class Check:
    """One row. `bar` holds if the value is `at` ``most`` or ``least`` that; without one the value is for reading."""

    name: str
    unit: str
    what: str
    bar: float | None = None
    at: Literal["most", "least"] = "least"
    gloo: bool = False  # can be carried out without a GPU


@dataclass(frozen=True)
class Row:
    """A row of the report, as the contract has it, and `why` there is no value."""

    check: str
    value: float | None
    unit: str
    bar: float | None
    holds: bool | None
    seen_on_hardware: bool
    why: str | None = None

    def plain(self) -> dict[str, Any]:
        """As JSON; `why` only where there is something to say."""
        return {name: value for name, value in asdict(self).items() if name != "why" or value is not None}


def _per_ranks() -> list[Check]:
    return [
        check
        for ranks in RANKS
        for check in (
            Check(f"slow_rank_{ranks}", "named", "who computes twice as long is named, and no other", 1, gloo=True),
            Check(f"slow_rank_{ranks}_after", "iterations", "so many iterations after it began", 40, "most", gloo=True),
            Check(f"stopped_rank_{ranks}", "named", "who was sent SIGSTOP is named for a hang", 1, gloo=True),
            Check(f"stopped_rank_{ranks}_after", "iterations", "so many of its steps later", 3, "most", gloo=True),
            Check(f"skipped_{ranks}", "named", "who leaves out a collective is named, no victim", 1, gloo=True),
            Check(f"healthy_ddp_{ranks}", "incidents", "DDP in which nothing is wrong", 0, "most", gloo=True),
            Check(f"healthy_fsdp2_{ranks}", "incidents", "the same with fully_shard", 0, "most", gloo=True),
            Check(f"healthy_graph_{ranks}", "incidents", "the same with a captured graph", 0, "most"),
        )
    ]  # fmt: skip


CHECKS: Final[tuple[Check, ...]] = (
    Check("timed_ranks", "ranks", "ranks of two whose steps are timed by events of the device", 2),
    Check("step_time_error", "ratio", "device step time against the wall's, over many steps", 0.05, "most"),
    Check("wait_split_error", "ratio", "wait on the device against what is waited for", 0.3, "most"),
    *_per_ranks(),
    Check("slow_link_4", "named", "of two like groups the one with fewer channels is named for a slow link", 1),
    Check("graph_loss_error", "ratio", "loss of a captured graph against one without", 1e-3, "most"),
    Check("event_record_us", "us", "an event recorded", 10, "most"),
    Check("event_query_us", "us", "an event asked", 10, "most"),
    Check("event_elapsed_us", "us", "the time between two", 10, "most"),
    Check("hook_step_us", "us", "the hook's own reckoning of a step", 100, "most", gloo=True),
    Check("hook_overhead", "ratio", "step time with the hook against without, less 1", 0.01, "most", gloo=True),
    Check("plugin_overhead", "ratio", "the same with the hook and the profiler plug-in", 0.01, "most"),
    Check("collectives_recorded", "calls", "collective calls told by NCCL's profiler plug-in", 1),
    *(
        Check(f"nvml_{name}", "ratio", f"difference of our {name} to nvidia-smi's", bar, "most")
        for name, bar in (("temperature", 0.1), ("power", 0.3), ("sm_clock", 0.1), ("memory_used", 0.05))
    ),
)  # fmt: skip
NAMES: Final = tuple(check.name for check in CHECKS)


def row(check: Check, value: float | None, *, hardware: bool, why: str | None = None) -> Row:
    """`check` with its value; None with the reason where there is none.

    Examples
    --------
    >>> [row(check, 3.0, hardware=False).holds for check in (Check("a", "u", "", 3), Check("a", "u", "", 2, "most"))]
    [True, False]
    """
    holds = None
    if value is not None and check.bar is not None:
        holds = value >= check.bar if check.at == "least" else value <= check.bar
    return Row(
        check.name, value, check.unit, check.bar, holds, seen_on_hardware=hardware and value is not None, why=why
    )
