"""A launcher in memory: the smallest that keeps the contract, with knobs for tests of the engine."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from trainwarden.errors import LauncherError, LauncherUnavailable
from trainwarden.launching import (
    NODE_VERBS,
    Capabilities,
    Findings,
    JobPhase,
    LauncherState,
    NodeState,
    Operation,
    Progress,
    Report,
    Verb,
    refusal,
    refused,
)

ALONE: frozenset[Verb] = frozenset({"cordon", "uncordon"})
ALL_ITS_VERBS: frozenset[Verb] = frozenset({"restart", "rebalance", "stop"})


class MemoryLauncher:
    """Carries each operation out once and counts how often it was asked.

    `failing` is raised by `submit`, `unreachable` by everything; `before` is called when an operation arrives. With
    `slow` an operation goes on until `finish`; else it is done at once. `only` makes it the launcher of that one job.
    `nodes` are those of jobs that have more than one; `findings` is how the next validation ends.
    """

    def __init__(self, ranks: int = 4, only: str | None = None) -> None:
        self.job = only
        self.phase: JobPhase = "failed"
        self.attempt, self.generation = 0, 1
        self.able = Capabilities(
            can=ALL_ITS_VERBS,
            cannot={
                "evict": "this launcher cannot evict a node; a person must",
                "move": "this launcher cannot move ranks; a person must",
            },
        )
        self.micro_batches: tuple[int, ...] = ()
        self.asked: list[tuple[str, str]] = []
        self.done: list[str] = []
        self.operations: list[Operation] = []
        self.starts = ranks
        self.cordoned: set[str] = set()
        self.failing: LauncherError | None = None
        self.unreachable = False
        self.slow = False
        self.splits: list[tuple[int, ...]] = []
        self.before: Callable[[], object] = lambda: None
        self.nodes: dict[str, tuple[NodeState, ...]] = {}
        self.polls = 0
        self.pausable = False
        self.attempt_age_s: float | None = None
        self.failures = 0
        self.findings = Findings()
        self._ranks = ranks
        self._under_way: dict[str, Operation] = {}
        self._failed: dict[str, str] = {}
        self._found: dict[str, Findings] = {}

    def capabilities(self) -> Capabilities:
        self._reach()
        return self.able

    def state(self, job: str) -> LauncherState:
        self._reach()
        if self.job not in (None, job):
            raise LauncherError(f"there is no job {job}")
        return LauncherState(
            job=job, phase=self.phase, generation=self.generation, attempt=self.attempt,
            micro_batches=self.micro_batches,
            nodes=self._nodes(job),
            ranks_running=tuple(range(self._ranks)) if self.phase == "running" else (),
            under_way=tuple(self._under_way),
            pausable=self.pausable, attempt_age_s=self.attempt_age_s, failures=self.failures,
        )  # fmt: skip

    def _nodes(self, job: str) -> tuple[NodeState, ...]:
        only = (NodeState(node="n0", ranks=tuple(range(self._ranks))),)
        return tuple(
            msgspec.structs.replace(one, state="cordoned") if one.node in self.cordoned else one
            for one in self.nodes.get(job, only)
        )

    def submit(self, operation: Operation) -> Report:
        self.before()
        self._reach()
        self.asked.append((operation.kind, operation.id))
        if self.failing is not None:
            raise self.failing
        known = self._report(operation.id)
        if known.state != "unknown":
            return known
        if (no := self._refusal(operation)) is not None:
            return no
        self.generation += 1
        self.operations.append(operation)
        self._under_way[operation.id] = operation
        if not self.slow:
            self.finish(operation.id)
        return self._report(operation.id)

    def poll(self, job: str, operation: str) -> Report:
        self._reach()
        self.polls += 1
        return self._report(operation)

    def finish(self, name: str, error: str | None = None) -> None:
        """Bring an operation to its end."""
        operation = self._under_way.pop(name)
        if error is not None:
            self._failed[name] = error
            return
        self.done.append(name)
        if operation.kind == "rebalance":
            self.micro_batches = operation.plan.micro_batches
            self.splits.append(self.micro_batches)
        elif operation.kind in ("restart", "move"):
            self._number(operation.job, operation.plan.node_order)
            self.phase = "running"
            self.attempt += 1
            self.starts += self._ranks if operation.targets.ranks is None else len(operation.targets.ranks)
        elif operation.kind == "cordon":
            self.cordoned.update(operation.targets.nodes)
        elif operation.kind == "uncordon":
            self.cordoned.difference_update(operation.targets.nodes)
        elif operation.kind == "validate":
            self._found[name] = self.findings
        elif operation.kind == "stop":
            self.phase = "ended"

    def _number(self, job: str, node_order: tuple[str, ...]) -> None:
        """Ranks on nodes in that order, if one was asked for."""
        ranks = sorted(node.ranks for node in self._nodes(job) if node.ranks)
        if node_order:
            self.nodes[job] = tuple(NodeState(node=one, ranks=own) for one, own in zip(node_order, ranks, strict=True))

    def _reach(self) -> None:
        if self.unreachable:
            raise LauncherUnavailable("gone")

    def _refusal(self, operation: Operation) -> Report | None:
        if self.job not in (None, operation.job):
            return refused(operation, "unknown_job", f"there is no job {operation.job}")
        if (no := refusal(operation, self.able, self.generation)) is not None:
            return no
        if any(rank >= self._ranks for rank in operation.targets.ranks or ()):
            return refused(operation, "unknown_target", "no such rank")
        counts, total = operation.plan.micro_batches, sum(self.micro_batches)
        if operation.kind == "rebalance" and (len(counts) != self._ranks or (total and sum(counts) != total)):
            return refused(operation, "unfit", "the counts do not fit the job")
        placed = sorted(node.node for node in self._nodes(operation.job) if node.ranks)
        if operation.kind == "move" and sorted(operation.plan.node_order) != placed:
            return refused(operation, "unfit", "that is no order of the job's nodes")
        nodes = operation.targets.nodes
        own = {node.node for node in self._nodes(operation.job)}
        if operation.kind in NODE_VERBS and (not nodes or (operation.kind in ALONE and not own.issuperset(nodes))):
            return refused(operation, "unknown_target", "no node of its own was named")
        return None

    def _report(self, name: str) -> Report:
        if name in self._under_way:
            return Report(operation=name, state="running", text="on its way")
        if name in self._failed:
            return Report(operation=name, state="failed", text=self._failed[name])
        state: Progress = "done" if name in self.done else "unknown"
        return Report(operation=name, state=state, findings=self._found.get(name))
