"""All that the engine asks of a launcher, and the one place where a launcher's errors are caught."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from trainwarden.errors import LauncherError, LauncherUnavailable
from trainwarden.launching import (
    MAX_SENTENCE_CHARS,
    Capabilities,
    Launcher,
    LauncherState,
    Operation,
    Plan,
    Report,
    Targets,
    Verb,
)
from trainwarden.records import ActionKind, ActionRecord, TaskRecord
from trainwarden.self_metrics import SelfMetrics

log = logging.getLogger("trainwarden.engine")

STATE_AGE_S = 0.5  # how long an answer is taken as true: a tick asks for many incidents
CAPABILITIES_AGE_S = 60.0
DIGEST_CHARS = 16  # 64 bits: nobody makes two plans of one action collide

VERBS: Final[Mapping[ActionKind, Verb]] = {
    "rebalance": "rebalance",
    "move_topology": "move",
    "restart_process": "restart",
    "restart_job": "restart",
    "evict_node": "evict",
    "checkpoint_job": "checkpoint",
    "stop_job": "stop",
    "cordon_node": "cordon",
    "uncordon_node": "uncordon",
    "validate": "validate",
}
RECONFIGURES: Final[tuple[Verb, ...]] = ("evict", "uncordon")
T = TypeVar("T")


class Unreachable(msgspec.Struct, frozen=True):
    """The launcher could not be reached, for the reason `why`; nothing follows from it."""

    why: str


class LauncherClient:
    """The launcher, with its errors turned into answers and counted."""

    def __init__(self, launcher: Launcher, metrics: SelfMetrics) -> None:
        self._launcher, self._metrics = launcher, metrics
        self._states: dict[str, tuple[float, LauncherState | None]] = {}
        self._capabilities: tuple[float, Capabilities] | None = None
        self._away_since_s: dict[str, float] = {}
        self._down_since_s: dict[str, float] = {}
        self._no_state: dict[str, str] = {}
        self._unknown: set[str] = set()
        for kind in ("unavailable", "refused", "failed", "broken"):
            metrics.count("launcher_errors_total", "Calls that the launcher did not do.", 0, kind=kind)

    def submit(self, action: ActionRecord, generation: int, by: str) -> Report | Unreachable:
        """Ask for `action` under its own id, as planned at `generation` and wanted by `by`."""
        self.forget_state(action.job)
        return self._report(action.id, lambda: self._launcher.submit(operation_of(action, generation, by)))

    def poll(self, action: ActionRecord) -> Report | Unreachable:
        """Ask how far `action` is."""
        return self._report(action.id, lambda: self._launcher.poll(action.job, action.id))

    def state(self, job: str, now_s: float) -> LauncherState | None:
        """What is true of `job`, at most `STATE_AGE_S` old; None while the launcher cannot be asked."""
        kept = self._states.get(job)
        if kept is None or not 0.0 <= now_s - kept[0] < STATE_AGE_S:
            found = self._ask(lambda: self._launcher.state(job), quiet=True)
            state = found if isinstance(found, LauncherState) else None
            self._say_why_not(job, found)
            kept = self._states[job] = (now_s, state)
            if state is not None:
                self._away_since_s.pop(job, None)
            else:
                self._away_since_s.setdefault(job, now_s)
            if state is not None and state.phase == "failed":
                self._down_since_s.setdefault(job, now_s)
            else:
                self._down_since_s.pop(job, None)
        return kept[1]

    def capabilities(self, now_s: float) -> Capabilities | None:
        """What the launcher can do, at most `CAPABILITIES_AGE_S` old; None while it cannot be asked."""
        kept = self._capabilities
        if kept is None or not 0.0 <= now_s - kept[0] < CAPABILITIES_AGE_S:
            found = self._ask(self._launcher.capabilities)
            kept = self._capabilities = (now_s, found) if isinstance(found, Capabilities) else None
        return kept[1] if kept else None

    def away(self, job: str, now_s: float) -> tuple[float, str]:
        """For how long `job`'s launcher has not told its state, and why not in one sentence."""
        return now_s - self._away_since_s.get(job, now_s), self._no_state.get(job, "")

    def down_s(self, job: str, now_s: float) -> float:
        """For how long `job` is known to be down."""
        return now_s - self._down_since_s.get(job, now_s)

    def unknown(self, job: str) -> bool:
        """Whether the launcher has last said that it knows no `job`; then waiting for it is of little use."""
        return job in self._unknown

    def ask_jobs(self, question: Callable[[], Sequence[TaskRecord]]) -> Sequence[TaskRecord]:
        """What a launcher says that it runs; nothing while it cannot be asked."""
        found = self._ask(question, quiet=True)
        return found if isinstance(found, Sequence) else ()

    def forget_state(self, job: str) -> None:
        """What was known of `job` is no longer true: something was done to it."""
        self._states.pop(job, None)

    def _report(self, operation: str, question: Callable[[], Report]) -> Report | Unreachable:
        found = self._ask(question)
        if isinstance(found, LauncherError):
            return Report(operation=operation, state="refused", text=str(found))
        if isinstance(found, Report) and found.state in ("refused", "failed"):
            self._count(found.state)
            log.warning("launcher did not do it", extra={"fields": {"operation": operation, "why": found.text}})
        return found

    def _say_why_not(self, job: str, found: LauncherState | Unreachable | LauncherError) -> None:
        """Log why a state is not told once, not at each of the two questions a second."""
        (self._unknown.add if isinstance(found, LauncherError) else self._unknown.discard)(job)
        if isinstance(found, LauncherState):
            self._no_state.pop(job, None)
            return
        why = found.why if isinstance(found, Unreachable) else str(found)
        if self._no_state.get(job) != why:
            self._no_state[job] = why
            log.warning("no state of a job", extra={"fields": {"job": job, "why": why}})

    def _ask(self, question: Callable[[], T], quiet: bool = False) -> T | Unreachable | LauncherError:
        try:
            return question()
        except LauncherUnavailable as error:
            self._count("unavailable")
            return Unreachable(f"the launcher cannot be reached ({error})")
        except LauncherError as error:
            self._count("refused")
            if not quiet:
                log.warning("launcher refused", extra={"fields": {"error": str(error)}})
            return error
        except Exception as error:  # the marked place: a launcher that is broken ends no engine
            self._count("broken")
            log.exception("launcher broke")
            return Unreachable(f"the launcher broke ({type(error).__name__}: {error})"[:MAX_SENTENCE_CHARS])

    def _count(self, kind: str) -> None:
        self._metrics.count("launcher_errors_total", "Calls that the launcher did not do.", kind=kind)


def verb_of(action: ActionRecord) -> Verb | None:
    """What a launcher is asked for `action`; a reconfiguration takes a node from its job, or gives it one.

    Examples
    --------
    >>> action = ActionRecord(id="c", job="j", kind="reconfigure", outcome="proposed", at_s=0.0, why="n3 is lost",
    ...     plan={"verb": "uncordon", "nodes": ["n2"]})
    >>> verb_of(action)
    'uncordon'
    """
    if action.kind == "reconfigure":
        return next((verb for verb in RECONFIGURES if verb == action.plan.get("verb")), None)
    return VERBS.get(action.kind)


def digest_of(action: ActionRecord) -> str:
    """What stands for all that `action` would do, and from where: kind, targets, plan and generation.

    Examples
    --------
    >>> action = ActionRecord(id="i1/restart/1", incident="i1", job="j", kind="restart_process", outcome="proposed",
    ...     at_s=0.0, why="crash", generation=4)
    >>> digest_of(action) == digest_of(msgspec.structs.replace(action, why="a longer story", at_s=9.0))
    True
    >>> digest_of(action) == digest_of(msgspec.structs.replace(action, generation=5))
    False
    """
    if verb_of(action) is not None:
        asked = operation_of(action, action.generation or 0, by="")
        done: object = (asked.kind, asked.job, asked.targets, asked.plan, action.generation)
    else:
        done = (action.kind, action.job)
    return hashlib.sha256(msgspec.json.encode(done)).hexdigest()[:DIGEST_CHARS]


def operation_of(action: ActionRecord, generation: int, by: str) -> Operation:
    """The operation that carries out `action`; the plan in its record is all there is to it.

    Raises
    ------
    LauncherError
        If nothing can be asked of a launcher for actions of that kind.

    Examples
    --------
    >>> action = ActionRecord(id="i1/evict/1", incident="i1", job="j", kind="evict_node", outcome="started", at_s=0.0,
    ...     why="gpu_lost", plan={"nodes": ["n7"]})
    >>> operation = operation_of(action, 4, "engine")
    >>> operation.kind, operation.targets.nodes, operation.expected_generation
    ('evict', ('n7',), 4)
    """
    verb = verb_of(action)
    if verb is None:
        raise LauncherError(f"no launcher call for {action.kind}")
    return Operation(
        id=action.id,
        job=action.job,
        kind=verb,
        expected_generation=generation,
        targets=Targets(nodes=tuple(action.plan.get("nodes", ()))),
        plan=Plan(
            micro_batches=tuple(int(count) for count in action.plan.get("micro_batches", ())),
            checks=tuple(action.plan.get("checks", ())),
            node_order=tuple(action.plan.get("node_order", ())),
        ),
        why=action.why[:MAX_SENTENCE_CHARS],
        by=by,
    )
