"""Unicron's failure traces replayed on 16 nodes: accumulated WAF of one policy (methods 14; Unicron 7.5).

A trace is the same for all policies: when, what (SEV1 takes a node out until it is repaired, others stop a task), and
which node. Minutes are the paper's where it gives them; `Minutes` says which are ours.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from tests.benchmarks.cluster_profiles import CASES, GPUS_PER_NODE, throughput
from trainwarden.actions.planners.questions.cluster import Choice, Cluster, ClusterAnswer, ClusterQuestion, Task

NODES = 16
DAY_S, MINUTE_S = 86_400.0, 60.0


class Minutes(NamedTuple):
    """How long a task stands still, recomputing included.

    `ours`: 15 for what is computed again since the checkpoint (every 30 minutes, as the baseline's), 2 for noticing
    and starting again in place; an assumption about jobs of this size, so the benchmark varies it. The baseline's are
    the paper's: 30 until a hang is noticed, 9 resubmission, 14 set-up, 15 recomputing; a lost node is noticed at once.
    """

    ours: float = 17.0
    restart: float = 68.0
    restart_after_wait: float = 38.0


class Setting(NamedTuple):
    """A case of the paper's table 3, and the GPUs that a task may have at most.

    With few, as with 24, all six tasks train. Without a limit the objective gives nearly all GPUs to the heaviest task,
    since modelled curves hardly flatten, and a baseline that waits for a node then stops nearly the whole cluster.
    """

    case: int = 5
    most_gpus: int = NODES * GPUS_PER_NODE


class Failure(NamedTuple):
    """What happens to a node at a time; `repair_s` for SEV1."""

    at_s: float
    node: int
    repair_s: float | None


class Trace(NamedTuple):
    """How long, and what fails, in order."""

    span_s: float
    failures: tuple[Failure, ...]


def trace(name: str, seed: int, slower: float = 1.0) -> Trace:
    """Trace ``a``: 8 weeks, 10 SEV1 and 33 others, repaired in 1 to 7 days; ``b``: 7 days, 26 and 80, 20 x faster.

    `slower`: by how much repairs take longer than that; for ``b`` the paper says only "at a similar rate".
    """
    rng = random.Random(f"{name}{seed}")
    days, lost, others, faster = (56, 10, 33, 1) if name == "a" else (7, 26, 80, 20)
    span_s = days * DAY_S
    kinds = [True] * lost + [False] * others
    rng.shuffle(kinds)
    times = sorted(rng.uniform(0.0, span_s) for _ in kinds)
    return Trace(
        span_s,
        tuple(
            Failure(at_s, rng.randrange(NODES), rng.uniform(1, 7) * DAY_S * slower / faster if lost else None)
            for at_s, lost in zip(times, kinds, strict=True)
        ),
    )


@dataclass
class State:
    """Who has which node, which nodes are there, and until when each task stands still (infinite: it waits)."""

    setting: Setting
    owner: dict[int, int | None] = field(default_factory=lambda: dict.fromkeys(range(NODES)))
    until_s: list[float] = field(default_factory=lambda: [0.0] * 6)

    @property
    def sizes(self) -> tuple[float, ...]:
        return CASES[self.setting.case][0]

    @property
    def weights(self) -> tuple[float, ...]:
        return CASES[self.setting.case][1]

    def nodes(self, task: int) -> int:
        return sum(owner == task for owner in self.owner.values())

    def waf(self, task: int) -> float:
        return self.weights[task] * throughput(self.sizes[task], self.nodes(task) * GPUS_PER_NODE)

    def give(self, shares: Sequence[int], hit: int | None, until_s: float) -> None:
        """Change the nodes of tasks to `shares`; who is changed or hit stands still."""
        changed = [task for task, share in enumerate(shares) if share != self.nodes(task) or task == hit]
        for task in changed:
            for node in [node for node, owner in self.owner.items() if owner == task][shares[task] :]:
                self.owner[node] = None
        for task in changed:
            for node in [node for node, owner in self.owner.items() if owner is None][
                : shares[task] - self.nodes(task)
            ]:
                self.owner[node] = task
            self.until_s[task] = max(self.until_s[task], until_s)


class Policy:
    """Begins with a share of nodes by task, and answers to what happens."""

    def __init__(self, state: State, minutes: Minutes, running_s: float) -> None:
        self.state, self.minutes, self.running_s = state, minutes, running_s

    def begin(self) -> None:
        self.state.give(self.shares(None, joined=True), None, 0.0)

    def shares(self, hit: int | None, *, joined: bool) -> Sequence[int]:
        raise NotImplementedError

    def stopped(self, task: int, at_s: float) -> None:
        self.state.until_s[task] = max(self.state.until_s[task], at_s + self.minutes.ours * MINUTE_S)

    def lost(self, task: int | None, at_s: float) -> None:
        self.state.give(self.shares(task, joined=False), task, at_s + self.minutes.ours * MINUTE_S)

    def joined(self, at_s: float) -> None:
        self.state.give(self.shares(None, joined=True), None, at_s + self.minutes.ours * MINUTE_S)


@cache
def planned(setting: Setting, nodes: int, now: tuple[int, ...], seconds: tuple[float, float]) -> ClusterAnswer:
    """The planner's answer for tasks that have `now` nodes each; `seconds`: until the next change, and of a change."""
    tasks = [
        Task(str(place), [throughput(size, x) for x in range(setting.most_gpus + 1)], weight=weight, now=have * 8)
        for place, (size, weight, have) in enumerate(zip(*CASES[setting.case], now, strict=True))
    ]
    return Cluster().answer(ClusterQuestion(nodes * 8, seconds[0], seconds[1], tasks, step=8))


class Ours(Policy):
    """The table of the plan in force, looked up at each event."""

    answer: ClusterAnswer | None = None

    def shares(self, hit: int | None, *, joined: bool) -> Sequence[int]:
        state, seconds = self.state, (self.running_s, self.minutes.ours * MINUTE_S)
        setting, nodes = state.setting, len(state.owner)
        choice: Choice | ClusterAnswer
        if self.answer is None or (hit is None and not joined):  # the beginning, or a node that nobody had
            choice = planned(setting, nodes, tuple(map(state.nodes, range(6))), seconds)
        else:
            choice = self.answer.table["joined" if joined else f"lost:{hit}"]
        shares = tuple(choice.assignment[str(task)] // 8 for task in range(6))
        self.answer = planned(setting, nodes, shares, seconds)
        return shares


class Split(Policy):
    """Nodes by a fixed rule, in proportion, by largest remainders; our times for what is changed."""

    def __init__(
        self, state: State, minutes: Minutes, running_s: float, rule: Callable[[State], Sequence[float]]
    ) -> None:
        super().__init__(state, minutes, running_s)
        self.rule = rule

    def shares(self, hit: int | None, *, joined: bool) -> Sequence[int]:
        return proportional(self.rule(self.state), len(self.state.owner))


def proportional(parts: Sequence[float], nodes: int) -> list[int]:
    """`nodes` in proportion to `parts`, by largest remainders."""
    exact = [part * nodes / sum(parts) for part in parts]
    shares = [int(share) for share in exact]
    for place in sorted(range(len(parts)), key=lambda place: shares[place] - exact[place])[: nodes - sum(shares)]:
        shares[place] += 1
    return shares


class RestartOnly(Ours):
    """Begins with our plan; a task whose node is lost waits until it has as many again, first come first served."""

    def begin(self) -> None:
        super().begin()
        self.needed = [self.state.nodes(task) for task in range(6)]
        self.waiting: list[int] = []

    def stopped(self, task: int, at_s: float) -> None:
        self.state.until_s[task] = max(self.state.until_s[task], at_s + self.minutes.restart * MINUTE_S)

    def lost(self, task: int | None, at_s: float) -> None:
        if task is not None:
            self.state.until_s[task] = float("inf")
            if task not in self.waiting:
                self.waiting.append(task)
        self.joined(at_s)  # a node that nobody has may be taken

    def joined(self, at_s: float) -> None:
        state = self.state
        free = [node for node, owner in state.owner.items() if owner is None]
        for task in list(self.waiting):
            while free and state.nodes(task) < self.needed[task]:
                state.owner[free.pop()] = task
            if state.nodes(task) == self.needed[task]:
                self.waiting.remove(task)
                state.until_s[task] = at_s + self.minutes.restart_after_wait * MINUTE_S


RULES: dict[str, Callable[[State], Sequence[float]]] = {
    "equal": lambda state: [1.0] * len(state.sizes),
    "weighted": lambda state: state.weights,
    "sized": lambda state: state.sizes,
}
POLICIES = ("ours", *RULES, "restart-only")


def policy(name: str, setting: Setting, minutes: Minutes, running_s: float) -> Policy:
    """A policy at its beginning."""
    state = State(setting)
    made = {"ours": Ours, "restart-only": RestartOnly}.get(name)
    one = made(state, minutes, running_s) if made else Split(state, minutes, running_s, RULES[name])
    one.begin()
    return one


def waf(name: str, failures: Trace, minutes: Minutes, setting: Setting) -> tuple[float, float]:
    """Weighted FLOP that policy `name` achieves over the whole trace, and what it would have without a failure."""
    # Until the next change of the cluster, on average: each SEV1 is one, and its repair another.
    lost = sum(one.repair_s is not None for one in failures.failures)
    one = policy(name, setting, minutes, failures.span_s / (2 * lost))
    state, total, now_s = one.state, 0.0, 0.0
    unfailing = sum(map(state.waf, range(6))) * failures.span_s
    coming: list[tuple[float, int, Failure | None]] = [(f.at_s, f.node, f) for f in failures.failures]
    coming.append((failures.span_s, -1, None))
    heapq.heapify(coming)
    while True:
        at_s, node, failure = heapq.heappop(coming)
        total += sum(state.waf(task) * max(0.0, at_s - max(now_s, state.until_s[task])) for task in range(6))
        now_s = at_s
        if node < 0:
            return total, unfailing
        if failure is None:
            state.owner[node] = None
            one.joined(at_s)
        else:
            _fail(one, failure, coming)


@cache
def most_waf(setting: Setting, nodes: int) -> float:
    """The largest WAF a second that any assignment of `nodes` nodes has."""
    if not nodes:
        return 0.0
    sizes, weights = CASES[setting.case]
    best = planned(setting, nodes, (0,) * 6, (1.0, 0.0)).assignment  # no change costs anything
    return sum(
        weight * throughput(size, best[str(task)])
        for task, (size, weight) in enumerate(zip(sizes, weights, strict=True))
    )


def upper_bound(failures: Trace, setting: Setting) -> float:
    """Weighted FLOP that no policy exceeds: the best assignment of the nodes that are there, and no task ever stops."""
    up, total, now_s = set(range(NODES)), 0.0, 0.0
    coming: list[tuple[float, int, float | None]] = [
        (one.at_s, one.node, one.repair_s) for one in failures.failures if one.repair_s is not None
    ]
    coming.append((failures.span_s, -1, None))
    heapq.heapify(coming)
    while True:
        at_s, node, repair_s = heapq.heappop(coming)
        total += most_waf(setting, len(up)) * (at_s - now_s)
        now_s = at_s
        if node < 0:
            return total
        if repair_s is None:
            up.add(node)
        elif up:
            up.remove(node := down_at(node, up))
            heapq.heappush(coming, (at_s + repair_s, node, None))


def down_at(node: int, up: Collection[int]) -> int:
    """The node that a failure of `node` takes: the next one where it is down already."""
    while node not in up:
        node = (node + 1) % NODES
    return node


def _fail(one: Policy, failure: Failure, coming: list[tuple[float, int, Failure | None]]) -> None:
    node, owner = failure.node, one.state.owner
    if not owner:
        return  # nothing is left to fail
    node = down_at(node, owner)
    task = owner[node]
    if failure.repair_s is not None:
        del owner[node]
        heapq.heappush(coming, (failure.at_s + failure.repair_s, node, None))
        one.lost(task, failure.at_s)
    elif task is not None:
        one.stopped(task, failure.at_s)
