"""Throughput of each job by number of nodes, from the steps that its ranks record while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

import msgspec

from trainwarden.actions.planners.profiles import LEAST_STEPS
from trainwarden.records import IterationRecord, TaskRecord

WARM_UP_STEPS: Final = 3  # of each process: they compile, and fill caches
KEPT_STEPS: Final = 200
LAG_S: Final = 2.0  # the launcher's state is asked twice a second: a process that is younger may be of a later round


class Curve(msgspec.Struct, frozen=True):
    """Work a second by number of nodes from 0; `assumed` are the numbers of nodes at which it was not measured."""

    throughput: tuple[float, ...]
    assumed: tuple[int, ...]


class _Process(msgspec.Struct):
    """Steps of one incarnation of a rank; `nodes` of its job, once that is certain."""

    seen_s: float
    durations: list[float]
    skipped: int = 0
    nodes: int | None = None


class ThroughputMeter:
    """Median step times by job and number of nodes."""

    def __init__(self) -> None:
        self._processes: dict[str, dict[str, _Process]] = {}
        self._step_s: dict[str, dict[int, float]] = {}
        self._fresh: set[str] = set()  # jobs with steps that no median holds yet

    def apply(self, record: IterationRecord, now_s: float) -> None:
        """Add a batch of a rank's steps."""
        of_job = self._processes.setdefault(record.job, {})
        one = of_job.setdefault(f"{record.rank}/{record.incarnation}", _Process(now_s, []))
        late = record.duration_s[max(0, WARM_UP_STEPS - one.skipped) :]
        one.skipped += len(record.duration_s) - len(late)
        one.durations = (one.durations + list(late))[-KEPT_STEPS:]
        self._fresh.add(record.job)

    def observe(self, job: str, nodes: int | None, now_s: float) -> None:
        """`job` runs on that number of nodes now; None: it does not run, or is about to change."""
        of_job = self._processes.get(job, {})
        if nodes is None:
            for one in of_job.values():
                one.seen_s = max(one.seen_s, now_s) if one.nodes is None else one.seen_s
            return
        for one in of_job.values():
            if one.nodes is None and now_s - one.seen_s >= LAG_S:
                one.nodes = nodes
                self._fresh.add(job)
        if job not in self._fresh:
            return
        self._fresh.discard(job)
        self._processes[job] = {name: one for name, one in of_job.items() if one.nodes in (None, nodes)}
        durations = [one for process in of_job.values() if process.nodes == nodes for one in process.durations]
        if len(durations) >= LEAST_STEPS:
            self._step_s.setdefault(job, {})[nodes] = median(durations)

    def forget(self, job: str) -> None:
        """`job` is over."""
        self._processes.pop(job, None)
        self._step_s.pop(job, None)
        self._fresh.discard(job)

    def curve(self, task: TaskRecord, per_node: float) -> Curve:
        """The throughput of `task` up to its maximum: as measured here, else as registered, else assumed.

        Between and beyond sizes that are known each node is assumed to bring as much as on the nearest of them;
        `per_node` is what it is assumed to bring where none is known.
        """
        known = {nodes: value for nodes, value in enumerate(task.throughput) if value is not None and nodes}
        if task.status is not None:  # measured by the coordinator before this one
            said = enumerate(task.status.throughput)
            known |= {nodes: value for nodes, value in said if value and nodes not in task.status.assumed}
        for nodes, step_s in self._step_s.get(task.job, {}).items():
            known[nodes] = task.work_per_step * (nodes if task.work_grows else 1) / step_s
        values, assumed = [0.0], []
        for nodes in range(1, task.maximum + 1):
            if nodes not in known:
                assumed.append(nodes)
            near = min(known, key=lambda size: (abs(size - nodes), size), default=None)
            values.append(nodes * (per_node if near is None else known[near] / near))
        return Curve(tuple(values), tuple(assumed))

    def curves(self, tasks: Sequence[TaskRecord]) -> dict[str, Curve]:
        """The curve of each of `tasks`; where nothing is known of one, its nodes bring the mean of the others'."""
        alone = {task.job: self.curve(task, 0.0) for task in tasks}
        firsts = (next((n for n, value in enumerate(one.throughput) if value), 0) for one in alone.values())
        shares = [one.throughput[n] / n for one, n in zip(alone.values(), firsts, strict=True) if n]
        mean = sum(shares) / len(shares) if shares else 1.0
        return {t.job: alone[t.job] if any(alone[t.job].throughput) else self.curve(t, mean) for t in tasks}
