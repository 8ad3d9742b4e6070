"""Operations, phases and the generation of one local job; processes are the node runner's.

Operations are carried out one after the other, each once by its id. Nothing here waits: `handle` answers at once and
`advance`, called ten times a second and at every end of a rank, goes on with what is under way.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Literal

from trainwarden import rundir
from trainwarden.actions.launchers.checkpoints.resumption import Resumption
from trainwarden.actions.launchers.local.control import CAPABILITIES, Poll, Reply, Request, Submit
from trainwarden.actions.launchers.local.journal import CUT_SHORT, Journal
from trainwarden.actions.launchers.local.microbatch_plan import PlanFile
from trainwarden.actions.launchers.local.node_runner import NodeRunner
from trainwarden.actions.launchers.local.ranks import LocalJob
from trainwarden.actions.launchers.local.run_events import EventFile
from trainwarden.actions.launchers.restart_check.here import CheckHere
from trainwarden.actions.launchers.restart_check.measuring import Measurement
from trainwarden.actions.launchers.restart_check.messages import Suspicions
from trainwarden.actions.launchers.restart_check.validating import Validating
from trainwarden.clock import Clock
from trainwarden.launching import JobPhase, LauncherState, NodeState, Operation, Report, refusal, refused
from trainwarden.settings import LaunchSettings

log = logging.getLogger("trainwarden.supervisor")

STOPPED_CODE = 143  # what a shell shows for SIGTERM
STARTED_OVER_CODE = 1  # of a job that was stopped because it did not go on from its checkpoint


class SupervisorConfig(LaunchSettings, frozen=True, kw_only=True):
    """How long to wait for whom, and in which mode: in ``observe`` nobody restarts."""

    mode: Literal["observe", "confirm", "auto"] = "observe"

    @property
    def failure_grace_s(self) -> float:
        """How long a failed job waits for a restart."""
        graces = {"observe": self.cascade_grace_s, "confirm": self.person_grace_s, "auto": self.engine_grace_s}
        return graces[self.mode]


class Coordinator:
    """The job's state machine; `exit_code` is the job's once `over`."""

    def __init__(
        self,
        place: LocalJob,
        runner: NodeRunner,
        clock: Clock,
        config: SupervisorConfig,
        suspicions: Suspicions | None = None,
    ) -> None:
        self._place, self._runner, self._clock, self._config = place, runner, clock, config
        self._plan = PlanFile(place.run_dir / rundir.PLAN)
        self._journal = Journal(place, self._plan.operation)
        self._events = EventFile(place)
        self._validating = Validating(place, runner, clock)
        self._check = CheckHere(place.node, runner, clock, lambda one: Measurement(place, one.checks), suspicions)
        self._validated_s = float("-inf")  # a job that is down waits again for whom may restart it
        self._waiting: deque[Operation] = deque()
        self._current: Operation | None = None
        self._resumption = Resumption(place.checkpoints, clock, config.resume_s, say=runner.say)
        self._noted: set[str] = set()
        self._failed_before: set[int] = set()  # ranks that the restart under way is not about
        self._unproven: Operation | None = None  # a restart that is carried out; whether the job goes on is not known
        self._ending: int | None = None  # the job is being stopped for good and will return this code

    def begin(self) -> None:
        """Start all ranks, in a new attempt if a launcher before this one was killed."""
        self._journal.save()
        self._resumption.wait()
        ranks, attempt = range(self._place.ranks), self._journal.attempt
        self._runner.start(ranks, attempt, self._resumption.begin(ranks, attempt))

    @property
    def phase(self) -> JobPhase:
        """``failed`` waits for a restart; ``ended`` is a job whose ranks are all gone for good."""
        if self._ending is not None:
            return "stopping" if self._runner.running else "ended"
        if self._validating.stage == "measures" and self._runner.running:
            return "paused"
        if self._current is not None and self._current.kind != "validate":
            return "stopping" if self._ends_the_job(self._current) else "restarting"
        if self._runner.failure is not None:
            return "failed"
        return "running" if self._runner.running else "ended"

    @property
    def over(self) -> bool:
        """Whether there is nothing left to wait for."""
        if self._ending is not None:
            return not self._runner.running
        return not self._runner.running and self._runner.failure is None and self._current is None

    @property
    def exit_code(self) -> int:
        """0 if every rank ended well, else the first failed rank's; 143 if the job was stopped without a failure."""
        return self._ending or 0

    def end(self, code: int = STOPPED_CODE) -> None:
        """Stop everything for good; the first failure's code wins over `code`."""
        if self._ending is None:
            self._ending = self._runner.failure.code if self._runner.failure is not None else code
            self._validating.cancel()
            self._check.cancel()
            self._runner.ask_to_stop(range(self._place.ranks))

    def close(self) -> None:
        """Note that nothing more will come of what is under way."""
        self._validating.cancel()
        self._check.cancel()
        for operation in self._journal.under_way:
            self._journal.end(operation, CUT_SHORT)

    def advance(self) -> None:
        """Do what is due now."""
        if self._ending is not None:
            return
        self._work()
        self._see_what_became_of_the_restart()
        failure = self._runner.failure
        if failure is None or self._current is not None or self._ending is not None:
            return
        nothing_to_wait_for = self._config.mode == "observe" and not self._runner.running
        since_s = max(failure.at_s, self._validated_s)
        if nothing_to_wait_for or self._clock.monotonic_s() - since_s >= self._config.failure_grace_s:
            self.end(failure.code)

    # --- what is asked -----------------------------------------------------------------------------------------------

    def handle(self, request: Request) -> Reply:
        """Answer one request from the control socket, at once."""
        if isinstance(request, Submit):
            return Reply(report=self._submit(request.operation))
        if request.job != self._place.job:
            return Reply(error=self._not_ours(request.job))
        if isinstance(request, Poll):
            return Reply(report=self._journal.report(request.operation))
        return Reply(state=self._state())

    def _submit(self, operation: Operation) -> Report:
        if operation.job != self._place.job:
            return refused(operation, "unknown_job", self._not_ours(operation.job))
        known = self._journal.report(operation.id)
        if known.state != "unknown":
            return known
        if (no := self._refusal(operation)) is not None:
            return no
        self._journal.accept(operation)
        self._waiting.append(operation)
        self._work()
        return self._journal.report(operation.id)

    def _refusal(self, operation: Operation) -> Report | None:
        if (no := refusal(operation, CAPABILITIES, self._journal.generation)) is not None:
            return no
        if self._ending is not None:
            return refused(operation, "over", "the job is being stopped")
        if operation.kind == "rebalance":
            why_not = self._plan.refusal(operation.plan.micro_batches, self._place.ranks)
            return None if why_not is None else refused(operation, "unfit", why_not)
        if operation.kind == "validate" and self._runner.failure is None and not self._validating.possible:
            return refused(operation, "unfit", "the training loop takes no part in pauses; a job that is down can be")
        if strangers := [node for node in operation.targets.nodes if node != self._place.node]:
            return refused(operation, "unknown_target", f"{strangers[0]} is no node of this launcher")
        wrong = [rank for rank in operation.targets.ranks or () if rank >= self._place.ranks]
        if wrong:
            why_not = f"rank {wrong[0]} is not one of the job's {self._place.ranks}"
            return refused(operation, "unknown_target", why_not)
        return None

    def _not_ours(self, job: str) -> str:
        return f"this launcher runs job '{self._place.job}', not '{job}'"

    def _state(self) -> LauncherState:
        return LauncherState(
            job=self._place.job,
            phase=self.phase,
            generation=self._journal.generation,
            attempt=self._journal.attempt,
            nodes=(NodeState(node=self._place.node, ranks=tuple(range(self._place.ranks))),),
            ranks_running=tuple(sorted(self._runner.running)),
            under_way=self._journal.under_way,
            step=self._runner.step(),
            micro_batches=self._plan.micro_batches,
            pausable=self._validating.possible,
        )

    # --- operations --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Take operations as far as they go now."""
        while self._current is not None or self._waiting:
            if self._current is None:
                self._current = self._waiting.popleft()
                self._begin(self._current)
            if self._current.kind == "validate":
                if not self._measured(self._current):
                    return
                continue
            left = [rank for rank in self._targets(self._current) if rank in self._runner.running]
            if left:  # waits for the ends of ranks that were asked to stop
                self._journal.running(self._current, f"waits for {len(left)} ranks to end")
                return
            if self._current.kind == "restart" and (waits := self._waits(self._current)) is not None:
                self._journal.running(self._current, waits)
                return
            self._finish(self._current)

    def _waits(self, restart: Operation) -> str | None:
        """What ranks that are gone wait for before they start again; nobody is measured beside others that run."""
        if not self._resumption.ready():
            return "looks for the newest checkpoint"
        return None if self._runner.running else self._check.advance(restart.id)

    def _targets(self, operation: Operation) -> Sequence[int]:
        if operation.kind in ("rebalance", "validate"):
            return ()
        ranks = operation.targets.ranks
        return range(self._place.ranks) if ranks is None else sorted(set(ranks))

    def _measured(self, operation: Operation) -> bool:
        """Whether the validation `operation`, one step further now, has come to its end."""
        outcome = self._validating.advance()
        if outcome is None:
            self._journal.running(operation, self._validating.stage)
            return False
        self._current, self._validated_s = None, self._clock.monotonic_s()
        self._journal.end(operation.id, outcome.error, outcome.findings)
        return True

    def _ends_the_job(self, operation: Operation) -> bool:
        return operation.kind == "stop" and len(self._targets(operation)) == self._place.ranks

    def _begin(self, operation: Operation) -> None:
        log.info("operation begins", extra={"fields": {"operation": operation.id, "why": operation.why}})
        if operation.kind == "restart":
            self._prove("it was restarted again before its first step")
            self._events.restart(operation, "started", self._journal.attempt + 1, self._clock.now_s())
            self._check.begin(operation.id)
        elif operation.kind == "validate":
            self._validating.begin(operation)
        self._runner.ask_to_stop(self._targets(operation))

    def _finish(self, operation: Operation) -> None:
        self._current = None
        try:
            self._carry_out(operation)
        except OSError as error:  # no memory or process slot for a rank, no room for the plan
            self._journal.end(operation.id, f"{operation.id}: {error}")
            log.exception("operation failed", extra={"fields": {"operation": operation.id}})
        else:
            if operation is not self._unproven:
                self._journal.end(operation.id)

    # --- whether a restart was one -----------------------------------------------------------------------------------

    def _see_what_became_of_the_restart(self) -> None:
        """End the job if it began anew; a restart that was carried out is done only once the job goes on."""
        watches = self._resumption.watches
        outcome = self._resumption.outcome(self._runner.first_steps()) if watches else None
        if outcome is not None and outcome.wrong is not None:
            log.error("the job started over", extra={"fields": {"reason": outcome.wrong}})
            self._runner.say(outcome.wrong)
            self._prove(outcome.wrong)
            self.end(STARTED_OVER_CODE)
        elif outcome is not None:
            self._prove()
            if outcome.note is not None and outcome.note not in self._noted:
                self._noted.add(outcome.note)
                log.warning("restart not verified", extra={"fields": {"reason": outcome.note}})
                self._runner.say(outcome.note)
        elif new := set(self._runner.failed) - self._failed_before:
            self._prove(f"rank {min(new)} failed before all had made a step")
        elif not self._runner.running and self._current is None:
            self._prove()

    def _prove(self, error: str | None = None) -> None:
        """The restart that was still to be proved has ended."""
        operation, self._unproven = self._unproven, None
        if operation is not None:
            self._journal.end(operation.id, error)

    def _carry_out(self, operation: Operation) -> None:
        if operation.kind == "rebalance":
            self._plan.put(operation.plan.micro_batches, operation.why, operation.id)
        elif operation.kind == "restart":
            attempt = self._journal.new_attempt()
            ranks = self._targets(operation)
            self._runner.start(ranks, attempt, self._resumption.begin(ranks, attempt))
            if self._resumption.awaited:
                self._unproven, self._failed_before = operation, set(self._runner.failed)
                self._journal.running(operation, "waits for the first step")
            self._events.restart(operation, "done", attempt, self._clock.now_s())
        elif not self._runner.running:
            self._ending = self._runner.failure.code if self._runner.failure is not None else STOPPED_CODE
