"""When each remedy of a fail-slow falls due, and what that costs beside what hindsight would have paid."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from trainwarden.actions.planners.questions.protocol import Name, Seconds
from trainwarden.errors import DataError

REACHED = 1.0 - 1e-9  # ten losses of 0.1 s, added up, are a little less than 1 s


class Remedy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A strategy and the seconds of training that applying it costs."""

    name: Name
    overhead_s: Seconds


class LadderQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A healthy iteration's time, that of each slow iteration as it comes, and the strategies in any order."""

    healthy_s: Seconds
    slow_s: Annotated[list[Seconds], msgspec.Meta(max_length=10_000_000)]
    strategies: Annotated[list[Remedy], msgspec.Meta(max_length=1000)]


class Step(msgspec.Struct, frozen=True):
    """Apply strategy `name` after the slow iteration number `iteration`, counted from 1."""

    iteration: int
    name: str


class LadderAnswer(msgspec.Struct, frozen=True):
    """The steps, the seconds lost by following them, and the fewest that could have been lost."""

    steps: tuple[Step, ...]
    cost_s: float
    optimum_s: float


class LadderPlan:
    """Ski rental over several remedies: each falls due when the trouble has cost as much as it does.

    The dearest strategy ends the trouble (Falcon's table 3: only checkpoint-and-restart eliminates); what cheaper ones
    bring shows in the times of the iterations after them. After each iteration at most one strategy is applied. Who
    had known all times would have paid for the dearest strategy at once or let the trouble run its course, whichever
    is less. With k strategies the cost is at most k + 1 times that and the loss of k iterations; at most 3 times
    where each overhead is at least twice the one before.

    References
    ----------
    Wu et al., "Falcon" (2024), section 5.2, algorithm 1.

    Examples
    --------
    >>> question = LadderQuestion(1.0, [1.5] * 100, [Remedy("restart", 20.0), Remedy("rebalance", 5.0)])
    >>> answer = LadderPlan().answer(question)
    >>> [(step.iteration, step.name) for step in answer.steps], answer.cost_s, answer.optimum_s
    ([(10, 'rebalance'), (40, 'restart')], 45.0, 20.0)
    """

    question: ClassVar = LadderQuestion
    example: ClassVar = (
        '{"healthy_s": 1.0, "slow_s": [1.5, 1.5, 1.5, 1.5, 1.5, 1.5],'
        ' "strategies": [{"name": "rebalance", "overhead_s": 1.0}, {"name": "restart", "overhead_s": 60.0}]}'
    )

    def answer(self, question: LadderQuestion) -> LadderAnswer:
        """See `Planner.answer`."""
        names = [strategy.name for strategy in question.strategies]
        for name in names:
            if names.count(name) > 1:
                raise DataError(f"strategy '{name}' is named twice")
        left = sorted(question.strategies, key=lambda strategy: strategy.overhead_s, reverse=True)
        optimum_s = impact_s = paid_s = 0.0
        steps: list[Step] = []
        for iteration, slow_s in enumerate(question.slow_s, start=1):
            loss_s = max(0.0, slow_s - question.healthy_s)
            optimum_s += loss_s
            if steps and not left:
                continue  # the last one has ended it
            impact_s += loss_s
            if left and loss_s > 0.0 and impact_s >= left[-1].overhead_s * REACHED:
                strategy = left.pop()
                paid_s += strategy.overhead_s
                steps.append(Step(iteration, strategy.name))
        if question.strategies:
            optimum_s = min(optimum_s, max(strategy.overhead_s for strategy in question.strategies))
        return LadderAnswer(tuple(steps), impact_s + paid_s, optimum_s)

    def line(self, answer: LadderAnswer) -> str:
        """See `Planner.line`."""
        steps = [f"after slow iteration {step.iteration}: {step.name}" for step in answer.steps]
        paid = f"costs {answer.cost_s:.3f} s; with hindsight {answer.optimum_s:.3f} s"
        return "\n".join([*(steps or ["nothing falls due"]), paid])
