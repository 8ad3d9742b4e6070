"""Which task of a cluster gets how many GPUs, now and after every single event that may come next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden.actions.planners.allocation import best
from trainwarden.actions.planners.questions.protocol import Name, Seconds
from trainwarden.errors import DataError

MAX_UNITS = 20_000  # the programme is quadratic in them where options cannot be ruled out
MAX_TASKS = 1000
MAX_COUNT = 10_000_000

Floats = npt.NDArray[np.float64]
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
Throughput = Annotated[float, msgspec.Meta(ge=0.0, le=1e30)]  # FLOP/s of any cluster, with room to spare


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A task as it is: `throughput` by number of GPUs from 0, in any unit, null where it was not measured.

    `minimum`: GPUs below which it does not run; `now`: GPUs that it has; `faulted`: one of them has just failed.
    """

    name: Name
    throughput: Annotated[list[Throughput | None], msgspec.Meta(min_length=1)]
    weight: Annotated[float, msgspec.Meta(ge=0.0, le=1e6)] = 1.0
    minimum: Count = 0
    now: Count = 0
    faulted: bool = False


class ClusterQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """GPUs that can be had, in steps of how many they are handed out, and the tasks.

    `running_s`: seconds that the cluster is expected to run until the next fault or change: a number, or by number of
    GPUs (a list from 0, or an object; between two counts on the line, beyond them as the nearest). `transition_s`:
    seconds that a task stands still when it is changed.
    """

    gpus: Count
    running_s: Seconds | list[Seconds] | dict[Count, Seconds]
    transition_s: Seconds
    tasks: Annotated[list[Task], msgspec.Meta(min_length=1, max_length=MAX_TASKS)]
    step: Literal[1, 8] = 1


class Choice(msgspec.Struct, frozen=True):
    """GPUs by task, and what that is worth by methods' objective: weighted throughput times seconds."""

    assignment: dict[str, int]
    value: float


class ClusterAnswer(msgspec.Struct, frozen=True):
    """The best assignment, and by event what is best once it is in force and that event comes."""

    assignment: dict[str, int]
    value: float
    table: dict[str, Choice]


class Cluster:
    """Maximises ``sum F(t, x') D_running(n') - F(t, x) [x' != x or t faulted] D_transition``.

    ``F`` is weight times throughput from the minimum on, else 0. The table holds, from the answer's own assignment
    on, the events `lost:NAME` (a step of GPUs of that task), `joined` (a step more) and `finished:NAME`, so that the
    decision takes a look-up. A task keeps what it has only if that is a whole number of steps.

    References
    ----------
    He et al., "Unicron" (2023), section 5, equations 2 to 5.

    Examples
    --------
    >>> task = Task("a", [0.0, 1.0, 3.0, 4.0], now=3, faulted=True)
    >>> answer = Cluster().answer(ClusterQuestion(gpus=2, running_s=100.0, transition_s=10.0, tasks=[task]))
    >>> answer.assignment, answer.value, answer.table["joined"]
    ({'a': 2}, 260.0, Choice(assignment={'a': 3}, value=370.0))
    """

    question: ClassVar = ClusterQuestion
    example: ClassVar = (
        '{"gpus": 24, "step": 8, "running_s": 86400, "transition_s": 120, "tasks": ['
        '{"name": "large", "weight": 1.0, "minimum": 16, "now": 24, "faulted": true, "throughput": [0,'
        " null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, 4.1,"
        " null, null, null, null, null, null, null, 6.0]}, "
        '{"name": "small", "weight": 0.5, "minimum": 8, "now": 8, "throughput": [0,'
        " null, null, null, null, null, null, null, 2.2]}]}"
    )

    def answer(self, question: ClusterQuestion) -> ClusterAnswer:
        """See `Planner.answer`."""
        tasks, gpus, step = question.tasks, question.gpus, question.step
        state = _state(question)
        everyone = list(range(len(tasks)))
        now = _choice(question, state, everyone, gpus)
        units = np.array([now.assignment[task.name] / step for task in tasks])
        lost = state.waf[everyone, units.astype(np.int64)] * question.transition_s
        table = {}
        for place, task in enumerate(tasks):
            if gpus >= step:
                hit = _State(state.waf, units, lost, np.arange(len(tasks)) == place)
                table[f"lost:{task.name}"] = _choice(question, hit, everyone, gpus - step)
        healthy = _State(state.waf, units, lost, np.zeros(len(tasks), dtype=bool))
        for place, task in enumerate(tasks):
            others = [other for other in everyone if other != place]
            table[f"finished:{task.name}"] = _choice(question, healthy, others, gpus)
        table["joined"] = _choice(question, healthy, everyone, gpus + step)
        return ClusterAnswer(now.assignment, now.value, table)

    def line(self, answer: ClusterAnswer) -> str:
        """See `Planner.line`."""
        rows = [("now", Choice(answer.assignment, answer.value)), *answer.table.items()]
        return "\n".join(
            f"{event}: {', '.join(f'{name} {gpus}' for name, gpus in choice.assignment.items())}  ({choice.value:.6g})"
            for event, choice in rows
        )


class _State(NamedTuple):
    """By task: F in steps of GPUs [tasks, columns]; what it has, in steps; F(now) D_transition; whether it is hit."""

    waf: Floats
    units: Floats
    lost: Floats
    hit: npt.NDArray[np.bool_]


def choose(question: ClusterQuestion) -> Choice:
    """The best assignment of now, without the table of what may come next."""
    return _choice(question, _state(question), list(range(len(question.tasks))), question.gpus)


def _state(question: ClusterQuestion) -> _State:
    _check(question)
    tasks, step = question.tasks, question.step
    return _State(
        waf=_waf(tasks, question.gpus // step + 1, step),
        units=np.array([task.now / step for task in tasks]),
        lost=np.array([_now_waf(task) for task in tasks]) * question.transition_s,
        hit=np.array([task.faulted for task in tasks]),
    )


def _check(question: ClusterQuestion) -> None:
    names = [task.name for task in question.tasks]
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise DataError(f"task '{twice}' is named twice")
    if question.gpus // question.step > MAX_UNITS:
        raise DataError(f"{question.gpus} GPUs in steps of {question.step} are more than {MAX_UNITS} steps; use step 8")
    if isinstance(question.running_s, list | dict) and not question.running_s:
        raise DataError("running_s names no number of GPUs")


def _waf(tasks: Sequence[Task], columns: int, step: int) -> Floats:
    """Weighted throughput [tasks, columns + 1] by steps of GPUs, one more for `joined`; -inf where there is none."""
    waf = np.full((len(tasks), columns + 1), -np.inf)
    for place, task in enumerate(tasks):
        measured = np.array(task.throughput[::step][: columns + 1], dtype=np.float64)  # None becomes NaN
        row = np.where(np.isnan(measured), -np.inf, measured * task.weight)
        row[: min(len(row), -(-task.minimum // step))] = -np.inf
        waf[place, : len(row)] = row
        if not np.isfinite(waf[place, 0]):
            waf[place, 0] = 0.0  # without GPUs a task does nothing
    return waf


def _now_waf(task: Task) -> float:
    """What the task brings now."""
    if task.now < task.minimum:
        return 0.0
    throughput = task.throughput[task.now] if task.now < len(task.throughput) else None
    if throughput is None and task.now == 0:
        return 0.0
    if throughput is None:
        raise DataError(f"task '{task.name}' has {task.now} GPUs now, but its throughput with so many is not given")
    return throughput * task.weight


def _choice(question: ClusterQuestion, state: _State, among: Sequence[int], gpus: int) -> Choice:
    """The best assignment of `gpus` GPUs to the tasks `among`."""
    if not among:
        return Choice({}, 0.0)
    waf = state.waf[among, : gpus // question.step + 1]
    possible = np.isfinite(waf)
    running_s = _running_s(question.running_s, gpus)
    worth = np.multiply(waf, running_s, where=possible, out=waf.copy()) - state.lost[among][:, None]
    for row, place in enumerate(among):
        kept = int(state.units[place])
        if not state.hit[place] and kept == state.units[place] and kept < waf.shape[1]:
            worth[row, kept] = waf[row, kept] * running_s if possible[row, kept] else -np.inf
    units, value = best(worth)
    names = [question.tasks[place].name for place in among]
    return Choice(dict(zip(names, (units * question.step).tolist(), strict=True)), value)


def _running_s(given: float | list[float] | dict[int, float], gpus: int) -> float:
    if isinstance(given, int | float):
        return float(given)
    known = dict(enumerate(given)) if isinstance(given, list) else dict(sorted(given.items()))
    return float(np.interp(gpus, list(known), list(known.values())))
