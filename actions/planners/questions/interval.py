"""How far apart checkpoints should be, by what a save costs and how often a job fails."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

import msgspec

from trainwarden.actions.planners.questions.protocol import Seconds

Positive = Annotated[float, msgspec.Meta(gt=0.0, le=3.2e9)]


class IntervalQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds that a save holds training up, mean seconds between failures, and seconds of a step if steps count."""

    stall_s: Seconds
    failure_s: Positive
    step_s: Positive | None = None


class IntervalAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Seconds of training between two saves, as whole steps too, and the share of time that saves and failures cost."""

    interval_s: float
    lost_share: float
    steps: int | None = None


class Interval:
    """The interval at which saving and training anew cost least together.

    Longer intervals save less often and lose more steps at a failure. No interval is below one step.

    References
    ----------
    Young, "A first order approximation to the optimum checkpoint interval" (1974); Daly, "A higher order estimate of
    the optimum checkpoint interval for restart dumps" (2006), whose estimate this is.

    Examples
    --------
    >>> answer = Interval().answer(IntervalQuestion(stall_s=0.5, failure_s=43_200.0, step_s=2.0))
    >>> round(answer.interval_s), answer.steps, round(answer.lost_share, 4)
    (208, 104, 0.0048)
    """

    question: ClassVar = IntervalQuestion
    example: ClassVar = '{"stall_s": 0.5, "failure_s": 43200, "step_s": 2.0}'

    def answer(self, question: IntervalQuestion) -> IntervalAnswer:
        """See `Planner.answer`."""
        best_s, step_s = best_interval_s(question.stall_s, question.failure_s), question.step_s
        steps = None if step_s is None else max(1, round(best_s / step_s))
        interval_s = best_s if steps is None or step_s is None else steps * step_s
        return IntervalAnswer(interval_s, lost_share(interval_s, question.stall_s, question.failure_s), steps)

    def line(self, answer: IntervalAnswer) -> str:
        """See `Planner.line`."""
        steps = "" if answer.steps is None else f" ({answer.steps} steps)"
        return f"save every {answer.interval_s:.3g} s{steps}: {100 * answer.lost_share:.2g} % of the time is lost"


def best_interval_s(stall_s: float, failure_s: float) -> float:
    """Daly's estimate of the best interval between the end of a save and the next.

    Parameters
    ----------
    stall_s, failure_s : float
        What a save costs, and the mean time between failures.
    """
    ratio = stall_s / (2.0 * failure_s)
    if ratio >= 1.0:
        return failure_s
    return math.sqrt(2.0 * stall_s * failure_s) * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - stall_s


def lost_share(interval_s: float, stall_s: float, failure_s: float) -> float:
    """Share of the time that goes into saves and steps done again, failures coming by chance (Daly, 2006)."""
    if interval_s <= 0.0:  # saves cost nothing, and nothing is lost
        return 0.0
    taken = failure_s * math.expm1(min(700.0, (interval_s + stall_s) / failure_s))
    return 1.0 - interval_s / taken
