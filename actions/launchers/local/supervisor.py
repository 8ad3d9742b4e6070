"""The local launcher: starts the ranks of one job on this machine, reaps them, restarts them in place.

One thread, one selector: process ends (pidfds), the control socket and deadlines. Every operation is carried out
once by its id, which is kept in RUN_DIR/launcher.json before the answer goes out.
"""

from __future__ import annotations

import logging
import os
import selectors
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from actions.launchers.local import ranks as rank_processes
from actions.launchers.local.control import Answer, ControlServer, Operation, Rebalance, Reply, Request, Restart, State
from actions.launchers.local.plan import PlanFile
from actions.launchers.local.ranks import Place, RankProcess
from actions.launchers.local.run_events import EventFile
from trainwarden import rundir
from trainwarden.clock import Clock
from trainwarden.errors import ConfigError
from trainwarden.protocols import LauncherState
from trainwarden.settings import Config, PositiveSeconds
from trainwarden.state import load_json, save_json

log = logging.getLogger("trainwarden.supervisor")

LONGEST_WAIT_S = 0.1
KEPT_OPERATIONS = 1000
STOPPED_CODE = 143  # what a shell shows for SIGTERM
CANNOT_START_CODE = 126  # what a shell shows for a command that cannot be run


class SupervisorConfig(Config, frozen=True, kw_only=True):
    """How long to wait for whom.

    In ``observe`` mode nobody restarts: after a failure the job ends. Else the other ranks are left for the engine,
    in ``auto`` mode for `engine_grace_s`, in ``confirm`` mode for `person_grace_s`.
    """

    mode: Literal["observe", "confirm", "auto"] = "observe"
    engine_grace_s: PositiveSeconds = 60.0
    person_grace_s: PositiveSeconds = 3600.0
    cascade_grace_s: PositiveSeconds = 3.0
    stop_grace_s: PositiveSeconds = 3.0

    @property
    def failure_grace_s(self) -> float:
        """How long a failed job waits for a restart."""
        graces = {"observe": self.cascade_grace_s, "confirm": self.person_grace_s, "auto": self.engine_grace_s}
        return graces[self.mode]


class Supervisor:
    """Runs `command` as `ranks` processes until the job is over; `run` returns the job's exit code.

    Parameters
    ----------
    command : sequence of str
        The training command; ``python`` means the interpreter that runs us.
    ranks : int
        Processes to start (>= 1).
    run_dir : Path
        The run folder (`trainwarden.rundir.create`).
    environ : mapping, optional
        Environment to build the ranks' on; default this process's.

    Raises
    ------
    ConfigError
        If the command is empty, `ranks` is below 1 or another launcher runs in `run_dir`.
    """

    def __init__(
        self,
        command: Sequence[str],
        ranks: int,
        run_dir: Path,
        job: str,
        node: str,
        clock: Clock,
        environ: Mapping[str, str] | None = None,
        config: SupervisorConfig | None = None,
    ) -> None:
        if not command or ranks < 1:
            raise ConfigError(f"a launch needs a command and at least one process, not {ranks} of {list(command)}")
        self._place = Place(
            command=rank_processes.check_command(command), ranks=ranks, run_dir=run_dir, job=job, node=node
        )
        self._clock = clock
        self._environ = dict(os.environ if environ is None else environ)
        self._config = config or SupervisorConfig()
        rundir.prepare(run_dir)
        self._selector = selectors.DefaultSelector()
        self._running: dict[int, RankProcess] = {}
        self._port = 0
        self._failure: tuple[int, float] | None = None  # first failed rank's exit code, monotonic time
        self._ending: int | None = None  # the job is being stopped for good and will return this code
        self._kill_at_s: float | None = None
        self._waiting: deque[tuple[Operation, list[Answer]]] = deque()
        self._current: tuple[Operation, list[Answer]] | None = None
        kept = load_json(run_dir / rundir.LAUNCHER_STATE)
        kept = kept if isinstance(kept, dict) else {}
        self._attempt = int(kept.get("attempt", -1)) + 1  # goes on after a launcher that was killed
        self._operations: dict[str, None] = dict.fromkeys(map(str, kept.get("operations", ())))
        self._plan = PlanFile(run_dir / rundir.PLAN)
        self._events = EventFile(self._place)

    @property
    def phase(self) -> str:
        """``running``, ``failed`` (waiting for a restart), ``restarting``, ``stopping`` or ``ended``."""
        if self._ending is not None:
            return "stopping" if self._running else "ended"
        if self._current is not None:
            return "restarting"
        if self._failure is not None:
            return "failed"
        return "running" if self._running else "ended"

    def run(self, stop: Callable[[], bool] = lambda: False) -> int:
        """Start the ranks and look after them until the job is over or `stop()` is true.

        Returns
        -------
        int
            0 if every rank ended well, else the first failed rank's exit code as a shell shows it;
            143 if the job was stopped without a failure.
        """
        server = ControlServer(self._place.run_dir / rundir.LAUNCHER_SOCKET, self._selector, self._take)
        try:
            self._save()
            self._start(range(self._place.ranks))
            while self._running or self._failure is not None or self._current is not None:
                for key, _ in self._selector.select(LONGEST_WAIT_S):
                    key.data()
                if stop() and self._ending is None:
                    self._end(STOPPED_CODE)
                if not self._advance():
                    break
        finally:
            self._kill_all()
            self._answer_all("the job has ended")
            server.close()
            self._selector.close()
        return self._ending or 0

    def _advance(self) -> bool:
        """Do what is due; False once there is nothing left to wait for."""
        now_s = self._clock.monotonic_s()
        if self._kill_at_s is not None and now_s >= self._kill_at_s:
            self._kill_at_s = None
            for process in self._running.values():
                if process.asked_to_stop:
                    process.kill()
        if self._ending is not None:
            return bool(self._running)
        self._work()
        if self._failure is not None and self._current is None:
            code, since_s = self._failure
            nothing_to_wait_for = self._config.mode == "observe" and not self._running
            if nothing_to_wait_for or now_s - since_s >= self._config.failure_grace_s:
                self._end(code)
        return True

    # --- ranks -----------------------------------------------------------------------------------------------------

    def _start(self, ranks: Sequence[int]) -> None:
        if len(ranks) == self._place.ranks or not self._port:
            self._port = rank_processes.free_port()
        for rank in ranks:
            environ = rank_processes.environment(self._place, rank, self._attempt, self._port, self._environ)
            process = RankProcess(self._place, rank, environ)
            self._running[rank] = process
            self._selector.register(process.pidfd, selectors.EVENT_READ, lambda process=process: self._reap(process))
        log.info("ranks started", extra={"fields": {"ranks": len(ranks), "attempt": self._attempt}})

    def _reap(self, process: RankProcess) -> None:
        self._selector.unregister(process.pidfd)
        code = process.reap()
        del self._running[process.rank]
        self._events.exited(process, code, self._clock.now_s())
        if code != 0 and not process.asked_to_stop and self._failure is None:
            self._failure = (rank_processes.exit_code(code), self._clock.monotonic_s())
            log.warning("rank failed", extra={"fields": {"rank": process.rank, "code": code}})

    def _ask_to_stop(self, ranks: Sequence[int]) -> None:
        for rank in ranks:
            if rank in self._running:
                self._running[rank].ask_to_stop()
        self._kill_at_s = self._clock.monotonic_s() + self._config.stop_grace_s

    def _end(self, code: int) -> None:
        """Stop everything for good; the first failure's code wins over `code`."""
        self._ending = self._failure[0] if self._failure is not None else code
        self._ask_to_stop(range(self._place.ranks))

    def _kill_all(self) -> None:
        for process in list(self._running.values()):
            process.kill()
            self._reap(process)

    # --- operations ------------------------------------------------------------------------------------------------

    def _take(self, request: Request, answer: Answer) -> None:
        """One request from the control socket: answered at once, joined to the same one in progress, or queued."""
        if request.job != self._place.job:
            answer(Reply(error=f"this launcher runs job '{self._place.job}', not '{request.job}'"))
        elif isinstance(request, State):
            answer(Reply(state=self._state()))
        elif request.operation in self._operations:
            answer(Reply())
        elif (error := self._refusal(request)) is not None:
            answer(Reply(error=error))
        else:
            pending = [*self._waiting, *filter(None, [self._current])]
            for operation, answers in pending:
                if operation.operation == request.operation:
                    answers.append(answer)
                    return
            self._waiting.append((request, [answer]))
            self._work()

    def _refusal(self, request: Operation) -> str | None:
        """One sentence if `request` cannot be done, else None."""
        if self._ending is not None:
            return "the job is being stopped"
        if isinstance(request, Rebalance):
            return self._plan.refusal(request.micro_batches, self._place.ranks)
        wrong = [rank for rank in request.ranks or () if rank >= self._place.ranks]
        return f"rank {wrong[0]} is not one of the job's {self._place.ranks}" if wrong else None

    def _work(self) -> None:
        """Take operations as far as they go now."""
        while self._current is not None or self._waiting:
            if self._current is None:
                self._current = self._waiting.popleft()
                self._begin(self._current[0])
            operation = self._current[0]
            if not isinstance(operation, Rebalance) and any(rank in self._running for rank in self._targets(operation)):
                return  # waits for the ends of ranks that were asked to stop
            self._finish(operation)

    def _targets(self, operation: Operation) -> Sequence[int]:
        if isinstance(operation, Rebalance):
            return ()
        return range(self._place.ranks) if operation.ranks is None else sorted(set(operation.ranks))

    def _begin(self, operation: Operation) -> None:
        log.info("operation begins", extra={"fields": {"operation": operation.operation, "why": operation.why}})
        if isinstance(operation, Restart):
            self._events.restart(operation, "started", self._attempt + 1, self._clock.now_s())
        self._ask_to_stop(self._targets(operation))

    def _finish(self, operation: Operation) -> None:
        assert self._current is not None
        answers, self._current = self._current[1], None
        reply = Reply()
        try:
            self._carry_out(operation)
        except OSError as error:  # no memory or process slot for a rank, no room for the plan
            reply = Reply(error=f"{operation.operation}: {error}")
            log.exception("operation failed", extra={"fields": {"operation": operation.operation}})
        else:
            self._operations[operation.operation] = None
            self._save()
        for answer in answers:
            answer(reply)

    def _carry_out(self, operation: Operation) -> None:
        if isinstance(operation, Rebalance):
            self._plan.put(operation.micro_batches, operation.why, operation.operation)
        elif isinstance(operation, Restart):
            self._attempt += 1
            self._failure = (CANNOT_START_CODE, self._clock.monotonic_s())
            self._start(self._targets(operation))
            self._failure = None
            self._events.restart(operation, "done", self._attempt, self._clock.now_s())
        elif not self._running:
            self._ending = self._failure[0] if self._failure is not None else STOPPED_CODE

    def _answer_all(self, error: str) -> None:
        for _, answers in [*self._waiting, *filter(None, [self._current])]:
            for answer in answers:
                answer(Reply(error=error))

    # --- what others see -------------------------------------------------------------------------------------------

    def _state(self) -> LauncherState:
        return LauncherState(
            job=self._place.job,
            phase=self.phase,
            attempt=self._attempt,
            ranks_running=tuple(sorted(self._running)),
            operations=tuple(self._operations),
            step=max((header.step for process in self._running.values() if (header := process.header())), default=None),
            micro_batches=self._plan.micro_batches,
        )

    def _save(self) -> None:
        for old in list(self._operations)[:-KEPT_OPERATIONS]:
            del self._operations[old]
        kept = {"job": self._place.job, "pid": os.getpid(), "attempt": self._attempt, "ranks": self._place.ranks}
        try:
            save_json(self._place.run_dir / rundir.LAUNCHER_STATE, {**kept, "operations": list(self._operations)})
        except OSError as error:  # a full disk must not end the job; only a launcher after this one would miss it
            log.error("state not kept", extra={"fields": {"error": str(error)}})
