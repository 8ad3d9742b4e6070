"""The launcher of all jobs, and an engine's way to it, which errs, times out after it acted, and answers late."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

import msgspec

from tests.chaos.history import Call, Effect, History
from tests.chaos.scheduled import ScheduledJob
from trainwarden.errors import LauncherError, LauncherUnavailable
from trainwarden.launching import (
    NODE_VERBS,
    Accused,
    Capabilities,
    Findings,
    LauncherState,
    Operation,
    Report,
    refusal,
    refused,
)

ABLE: Final = Capabilities(
    can=frozenset({"restart", "stop", "evict", "validate", "cordon", "uncordon", "move", "checkpoint"}),
    cannot={"rebalance": "nobody splits batches"},
)
UNREACHABLE: Final = 0.03  # shares of calls
BROKEN: Final = 0.005
OLDER: Final = 0.05
TIMED_OUT: Final = 0.12
LATE: Final = 0.08
ERRS: Final = 0.02
LONGEST_S: Final = {"restart": 8.0, "evict": 25.0, "validate": 15.0, "stop": 4.0, "move": 8.0, "checkpoint": 20.0}


class _Accepted(msgspec.Struct):
    """An operation that was accepted, and kept on disk: it outlives the launcher's process."""

    operation: Operation
    ends_s: float
    report: Report


class Platform:
    """Carries each operation out once, by its id, whichever of its processes is asked."""

    def __init__(self, jobs: dict[str, ScheduledJob], random: Random, history: History, share: int) -> None:
        self.jobs, self.random, self.history, self.share = jobs, random, history, share
        self.now_s = 0.0
        self.away_until_s = float("-inf")
        self.accepted: dict[str, _Accepted] = {}
        self.late: list[tuple[float, Operation]] = []
        self.older: dict[str, LauncherState] = {}
        self._generations = dict.fromkeys(jobs, 1)

    def kill(self, away_s: float) -> None:
        """kill -9: it comes back after a while, goes on with what it had accepted, and is of another generation."""
        self.away_until_s = self.now_s + away_s
        for job in self._generations:
            self._generations[job] += 1
        for one in self.accepted.values():
            one.ends_s = max(one.ends_s, self.away_until_s + 1.0)

    def advance(self, now_s: float) -> None:
        """Time passes: what comes late arrives, what was begun ends."""
        self.now_s = now_s
        if now_s < self.away_until_s:
            return
        arrived = [operation for at_s, operation in self.late if at_s <= now_s]
        self.late = [one for one in self.late if one[0] > now_s]
        for operation in arrived:
            self.accept(operation)
        for one in self.accepted.values():
            operation = one.operation
            job = self.jobs[operation.job]
            if not one.report.ended and now_s >= one.ends_s:
                one.report = self._ended(operation, job)

    def _ended(self, operation: Operation, job: ScheduledJob) -> Report:
        if (error := job.finish(operation.kind)) is not None:
            return Report(operation=operation.id, state="failed", text=error)
        findings = self._found(operation, job) if operation.kind == "validate" else None
        return Report(operation=operation.id, state="done", findings=findings)

    def _found(self, operation: Operation, job: ScheduledJob) -> Findings:
        """What measuring says: the truth, or nothing."""
        if self.random.random() < 0.2:
            return Findings()
        nodes = tuple(job.nodes)
        guilty = [node for node in operation.targets.nodes if node in job.sick]
        accused = [Accused(kind="slow_compute", text=f"{node} is slow", nodes=(node,)) for node in guilty]
        if job.slow is not None and "links" in operation.plan.checks and job.slow.issubset(job.placed):
            ends = tuple(sorted(job.placed.index(node) for node in job.slow))
            named = tuple(job.placed[place] for place in ends)
            accused.append(Accused(kind="slow_link", text="a link is slow", nodes=named, ranks=ends, link=ends))  # type: ignore[arg-type]
        return Findings(accused=tuple(accused), judged=operation.plan.checks, nodes=nodes)

    def state(self, job: str) -> LauncherState:
        if job not in self.jobs:
            raise LauncherError(f"there is no job {job}")
        of_job = self.jobs[job]
        open_ = [name for name, one in self.accepted.items() if one.operation.job == job and not one.report.ended]
        return LauncherState(
            job=job, phase=of_job.phase, generation=self._generations[job], attempt=of_job.attempt,
            nodes=of_job.states(), under_way=tuple(open_), pausable=True,
            ranks_running=(0,) if of_job.phase == "running" else (),
        )  # fmt: skip

    def accept(self, operation: Operation) -> Report:
        """Begin with it, unless it was accepted before or has to be refused."""
        if (known := self.accepted.get(operation.id)) is not None:
            return known.report
        job, kind, nodes = self.jobs[operation.job], operation.kind, operation.targets.nodes
        if (no := refusal(operation, ABLE, self._generations[operation.job])) is not None:
            return no
        if job.phase in ("ended", "stopping"):
            return refused(operation, "over", "the job is over")
        if kind in NODE_VERBS and not set(job.nodes).issuperset(nodes):
            return refused(operation, "unknown_target", "no node of the job was named")
        order = operation.plan.node_order
        if kind == "move" and (job.phase != "running" or sorted(order) != sorted(job.placed)):
            return refused(operation, "unfit", "the job does not run on these nodes")
        self._generations[operation.job] += 1
        self.history.effects.append(
            Effect(self.now_s, operation.id, job.name, kind, nodes, job.needs(kind, nodes), self.share)
        )
        job.begin(kind, nodes, order)
        takes_s = self.random.uniform(0.0, LONGEST_S.get(kind, 1.0))
        report = Report(operation=operation.id, state="running", text="on its way")
        self.accepted[operation.id] = _Accepted(operation, self.now_s + takes_s, report)
        return report

    def poll(self, name: str) -> Report:
        one = self.accepted.get(name)
        return Report(operation=name, state="unknown") if one is None else one.report


class Wire:
    """One engine's way to the platform: a `trainwarden.launching.Launcher`.

    Parameters
    ----------
    point : callable
        Called wherever the engine may be killed.
    asked : callable
        Makes the `Call` of what is asked for, by what is true at that moment.
    is_cut_off : callable
        Whether this engine alone cannot reach the platform.
    """

    job = None

    def __init__(
        self, platform: Platform, point: Callable[[], None], asked: Callable[[Operation], Call],
        is_cut_off: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._platform, self._point, self._asked, self._is_cut_off = platform, point, asked, is_cut_off
        self.calm = False

    def _draw(self, share: float, fault: str) -> bool:
        drawn = not self.calm and self._platform.random.random() < share
        if drawn:
            self._platform.history.faults[fault] += 1
        return drawn

    def _reach(self) -> None:
        self._point()
        away = self._is_cut_off() or self._platform.now_s < self._platform.away_until_s
        if away or self._draw(UNREACHABLE, "API unreachable"):
            raise LauncherUnavailable("connection refused")
        if self._draw(BROKEN, "API client broken"):
            raise RuntimeError("a mistake in the client")

    def capabilities(self) -> Capabilities:
        self._reach()
        return ABLE

    def state(self, job: str) -> LauncherState:
        self._reach()
        older, state = self._platform.older.get(job), self._platform.state(job)
        if older is not None and self._draw(OLDER, "API answers with an older state"):
            return older
        if self._platform.random.random() < 0.3:
            self._platform.older[job] = state
        return state

    def submit(self, operation: Operation) -> Report:
        platform = self._platform
        platform.history.calls.append(self._asked(operation))
        self._reach()
        if self._draw(ERRS, "API refuses for no reason"):
            raise LauncherError("500: try later")
        if self._draw(LATE, "request arrives late"):
            platform.late.append((platform.now_s + platform.random.uniform(1.0, 30.0), operation))
            raise LauncherUnavailable("timed out")
        report = platform.accept(operation)
        self._point()
        if self._draw(TIMED_OUT, "API times out after having acted"):
            raise LauncherUnavailable("timed out")
        return report

    def poll(self, job: str, operation: str) -> Report:
        self._reach()
        report = self._platform.poll(operation)
        self._point()
        return report
