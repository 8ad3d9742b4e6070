"""RUN_DIR/plan.json: the micro-batch plan in force, with the few before it.

Ranks adopt the newest plan that all of them have seen, which may be one before the newest; so those stay readable.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainwarden.state import load_json, save_json

KEPT_PLANS = 8


class PlanFile:
    """The plan file at `path`, whatever was there before included."""

    def __init__(self, path: Path) -> None:
        self._path = path
        kept = load_json(path)
        self._plan: dict[str, Any] = kept if isinstance(kept, dict) and "number" in kept else {}

    @property
    def number(self) -> int:
        """Number of the plan in force; 0 if there is none yet."""
        return int(self._plan.get("number", 0))

    @property
    def micro_batches(self) -> tuple[int, ...]:
        """Counts by rank of the plan in force; empty if there is none yet."""
        return tuple(self._plan.get("micro_batches", ()))

    @property
    def operation(self) -> str | None:
        """Id of the operation that put the plan in force; None if there is none yet."""
        return str(self._plan["operation"]) if "operation" in self._plan else None

    def refusal(self, micro_batches: Sequence[int], ranks: int) -> str | None:
        """One sentence if `micro_batches` is no plan for this job, else None."""
        if len(micro_batches) != ranks:
            return f"{len(micro_batches)} counts do not fit {ranks} ranks"
        total = sum(self.micro_batches)
        if total and sum(micro_batches) != total:
            return f"{sum(micro_batches)} micro-batches are not the global batch's {total}"
        return None

    def put(self, micro_batches: Sequence[int], why: str, operation: str) -> None:
        """Put `micro_batches` in force under the next number; once for each `operation`."""
        if self._plan.get("operation") == operation:
            return  # written, but the launcher was killed before it noted so
        earlier = [{"number": self.number, "micro_batches": self.micro_batches}] if self._plan else []
        self._plan = {
            "number": self.number + 1,
            "micro_batches": list(micro_batches),
            "why": why,
            "operation": operation,
            "history": [*self._plan.get("history", []), *earlier][-KEPT_PLANS:],
        }
        save_json(self._path, self._plan)
