"""A node runner without processes: ranks end when the test says so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.doubles import ManualClock
from trainwarden.actions.launchers.local.control import AskState, Poll, Submit
from trainwarden.actions.launchers.local.coordinator import Coordinator, SupervisorConfig
from trainwarden.actions.launchers.local.node_runner import Failure
from trainwarden.actions.launchers.local.ranks import LocalJob
from trainwarden.actions.launchers.restart_check.messages import Suspicions
from trainwarden.launching import LauncherState, Operation, Plan, Report, Targets, Verb

RANKS = 3


class FakeRunner:
    """`starts` are (attempt, ranks) in order; what was asked to stop ends at `let_go`."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.failures: dict[int, Failure] = {}
        self.running: set[int] = set()
        self.asked: set[int] = set()
        self.starts: list[tuple[int, tuple[int, ...]]] = []
        self.broken: OSError | None = None
        self.resumed_from: list[Path | None] = []
        self.steps: dict[int, int | None] = {}
        self.said: list[str] = []
        self.beside: int | None = None
        self.standing: dict[int, int | None] = {}

    def start(self, ranks: Sequence[int], attempt: int, resume_from: Path | None = None) -> None:
        for rank in ranks:
            self.failures.pop(rank, None)
            self.failures[rank] = Failure(126, self._clock.monotonic_s())
        if self.broken is not None:
            raise self.broken
        self.starts.append((attempt, tuple(ranks)))
        self.resumed_from.append(resume_from)
        self.steps = {rank: step for rank, step in self.steps.items() if rank not in ranks}
        self.running |= set(ranks)
        self.asked -= set(ranks)
        for rank in ranks:
            del self.failures[rank]

    def ask_to_stop(self, ranks: Sequence[int]) -> None:
        self.asked |= set(ranks) & self.running

    def let_go(self) -> None:
        """Everything that was asked to stop has ended."""
        self.running -= self.asked
        self.asked.clear()

    def fail(self, rank: int, code: int) -> None:
        """`rank` ends with `code` by itself."""
        self.running.discard(rank)
        if code:
            self.failures.setdefault(rank, Failure(code, self._clock.monotonic_s()))

    @property
    def failure(self) -> Failure | None:
        return next(iter(self.failures.values()), None)

    @property
    def failed(self) -> set[int]:
        return set(self.failures)

    def step(self) -> int | None:
        return 7

    def first_steps(self) -> dict[int, int | None]:
        return self.steps

    def stands(self) -> dict[int, int | None]:
        return {rank: self.standing.get(rank) for rank in self.running}

    def say(self, sentence: str) -> None:
        self.said.append(sentence)


class Launch:
    """A coordinator on a fake runner in a run folder that outlives it; `kill` is kill -9 and a new launcher."""

    def __init__(
        self, run_dir: Path, mode: str = "auto", checkpoints: Path | None = None, suspicions: Suspicions | None = None
    ) -> None:
        self.clock = ManualClock(100.0)
        self._place = LocalJob(
            command=("true",), ranks=RANKS, run_dir=run_dir, job="job", node="n0", checkpoints=checkpoints
        )
        self._suspicions = suspicions
        self._config = SupervisorConfig(mode=mode)  # type: ignore[arg-type]
        self.runners: list[FakeRunner] = []
        self.kill()

    @property
    def runner(self) -> FakeRunner:
        return self.runners[-1]

    def kill(self) -> None:
        self.runners.append(FakeRunner(self.clock))
        self.coordinator = Coordinator(self._place, self.runner, self.clock, self._config, self._suspicions)
        self.coordinator.begin()

    def state(self) -> LauncherState:
        reply = self.coordinator.handle(AskState("job"))
        assert reply.state is not None
        return reply.state

    def submit(self, operation: Operation) -> Report:
        reply = self.coordinator.handle(Submit(operation))
        assert reply.report is not None
        return reply.report

    def poll(self, name: str) -> Report:
        reply = self.coordinator.handle(Poll("job", name))
        assert reply.report is not None
        return reply.report

    def operation(
        self,
        name: str = "op",
        kind: Verb = "restart",
        ranks: tuple[int, ...] | None = None,
        split: tuple[int, ...] = (),
        generation: int | None = None,
    ) -> Operation:
        """One planned from what is true now, or at `generation`."""
        return Operation(
            id=name,
            job="job",
            kind=kind,
            expected_generation=self.state().generation if generation is None else generation,
            targets=Targets(ranks=ranks),
            plan=Plan(micro_batches=split),
            why="the test says so",
        )
