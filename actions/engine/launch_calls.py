"""All that the engine asks of a launcher, and the one place where a launcher's errors are caught."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal, TypeVar

from trainwarden.errors import LauncherError, LauncherUnavailable
from trainwarden.protocols import Launcher, LauncherState
from trainwarden.records import ActionRecord
from trainwarden.self_metrics import SelfMetrics

log = logging.getLogger("trainwarden.engine")

STATE_AGE_S = 0.5  # how long an answer is taken as true: a tick asks for many incidents

Result = Literal["done", "refused", "away"]
T = TypeVar("T")


class LauncherCalls:
    """The launcher, with its errors turned into results and counted."""

    def __init__(self, launcher: Launcher, metrics: SelfMetrics) -> None:
        self._launcher, self._metrics = launcher, metrics
        self._states: dict[str, tuple[float, LauncherState | None]] = {}
        self._away_since_s: dict[str, float] = {}

    def carry_out(self, action: ActionRecord) -> tuple[Result, str]:
        """Ask for `action` under its own id, which the launcher carries out once; why not, if not."""
        result, why, _ = self._ask(lambda: call(self._launcher, action))
        return result, why

    def state(self, job: str, now_s: float) -> LauncherState | None:
        """What is true of `job`, at most `STATE_AGE_S` old; None while the launcher cannot be asked."""
        kept = self._states.get(job)
        if kept is None or not 0.0 <= now_s - kept[0] < STATE_AGE_S:
            _, _, found = self._ask(lambda: self._launcher.state(job))
            kept = self._states[job] = (now_s, found)
            if found is not None:
                self._away_since_s.pop(job, None)
            else:
                self._away_since_s.setdefault(job, now_s)
        return kept[1]

    def away_s(self, job: str, now_s: float) -> float:
        """For how long `job`'s launcher has not told its state."""
        return now_s - self._away_since_s.get(job, now_s)

    def forget_state(self, job: str) -> None:
        """What was known of `job` is no longer true: something was done to it."""
        self._states.pop(job, None)

    def _ask(self, question: Callable[[], T]) -> tuple[Result, str, T | None]:
        try:
            return "done", "", question()
        except LauncherUnavailable as error:
            self._count("unavailable")
            return "away", f"the launcher cannot be reached ({error})", None
        except LauncherError as error:
            self._count("refused")
            log.warning("launcher refused", extra={"fields": {"error": str(error)}})
            return "refused", str(error), None

    def _count(self, kind: str) -> None:
        self._metrics.count("launcher_errors_total", "Calls that the launcher did not do.", kind=kind)


def call(launcher: Launcher, action: ActionRecord) -> None:
    """The launcher call that carries out `action`; the plan in its record is all there is to it.

    Raises
    ------
    LauncherError
        If the launcher refuses or fails, or offers nothing of that kind.
    """
    match action.kind:
        case "rebalance":
            launcher.rebalance(action.job, action.id, [int(m) for m in action.plan["micro_batches"]], action.why)
        case "restart_process" | "restart_job":
            launcher.restart(action.job, action.id, None, action.why)
        case "stop_job":
            launcher.stop(action.job, action.id, None, action.why)
        case _:
            raise LauncherError(f"no launcher call for {action.kind}")
