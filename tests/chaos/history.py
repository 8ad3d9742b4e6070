"""What happened, and the rules that no history may break: each a function that says in sentences what breaks it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, Literal

import msgspec

from trainwarden.records import ActionRecord

HOUR_S: Final = 3600.0
SKEW_S: Final = 6.0  # clocks of engines are up to half of it apart from the bus's
ONCE: Final = frozenset({"restart", "evict", "stop", "move"})
WORDS: Final = frozenset({"cordon", "uncordon"})  # of people, which use up no budget
JobEnd = Literal["goes on", "stopped"]


class Call(msgspec.Struct, frozen=True):
    """An engine asks a launcher for an operation for the first time, as far as the launcher's wire can tell.

    `told`: the bus says that it has begun; `sick`: its nodes are at fault in truth; `stopped`: a person's stop stood on
    the bus.
    """

    at_s: float
    id: str
    told: bool
    sick: bool
    stopped: bool


class Effect(msgspec.Struct, frozen=True):
    """A launcher carries an operation out. `needed` is whether there was anything to do in truth."""

    at_s: float
    id: str
    job: str
    kind: str
    nodes: tuple[str, ...]
    needed: bool
    share: int  # how many nodes of the job may be out


class Limits(msgspec.Struct, frozen=True):
    """What the engines were told to keep to."""

    actions_per_hour: int
    nodes_at_most: int
    within_s: float


class History(msgspec.Struct):
    """One run: what engines asked for, what was done, what is on the bus, and how each job ended.

    `steps` are attempts of the job on several nodes in the order in which they trained, `begun` those that each
    launcher process started, `leaders` how many launchers led at once at most, `aside` who took part, was set
    aside or was measured and was not to, `done` what was seen done there, `shut_out` which of its launchers lost a
    connection to strangers. `steps_lost` tells of steps that ranks ended and detection does not know.
    """

    seed: int
    limits: Limits
    calls: list[Call] = msgspec.field(default_factory=list)
    effects: list[Effect] = msgspec.field(default_factory=list)
    actions: list[ActionRecord] = msgspec.field(default_factory=list)
    ends: dict[str, JobEnd] = msgspec.field(default_factory=dict)
    down_since_s: dict[str, float] = msgspec.field(default_factory=dict)
    said_s: dict[str, float] = msgspec.field(default_factory=dict)
    over_why: dict[str, str] = msgspec.field(default_factory=dict)
    steps: list[tuple[int, int]] = msgspec.field(default_factory=list)
    begun: dict[str, list[tuple[int, int]]] = msgspec.field(default_factory=dict)
    leaders: int = 0
    aside: list[str] = msgspec.field(default_factory=list)
    shut_out: list[str] = msgspec.field(default_factory=list)
    steps_lost: list[str] = msgspec.field(default_factory=list)
    done: Counter[str] = msgspec.field(default_factory=Counter)
    faults: Counter[str] = msgspec.field(default_factory=Counter)


def acted_twice(history: History) -> list[str]:
    """An operation that is carried out a second time, or a remedy for what was remedied already."""
    times = Counter(one.id for one in history.effects)
    again = [f"{name} was carried out {count} times" for name, count in times.items() if count > 1]
    return again + [
        f"{one.id} was carried out at {one.at_s:.1f} though there was nothing left to do"
        for one in history.effects
        if one.kind in ONCE and not one.needed
    ]


def healthy_evicted(history: History) -> list[str]:
    """A node taken out that was well in truth when it was asked for."""
    well = {one.id for one in history.calls if not one.sick}
    return [
        f"{one.id} took {', '.join(one.nodes)} out, which was well"
        for one in history.effects
        if one.kind == "evict" and one.id in well
    ]


def budget_broken(history: History) -> list[str]:
    """More actions of a job within an hour, or more nodes taken out within their time, than is allowed."""
    limits, broken = history.limits, []
    for one in history.effects:
        before = [other for other in history.effects if other.at_s <= one.at_s]
        own = [o for o in before if o.job == one.job and o.kind not in WORDS]
        hour = [o for o in own if o.at_s > one.at_s - (HOUR_S - SKEW_S)]
        if one.kind not in WORDS and len(hour) > limits.actions_per_hour:
            broken.append(f"{one.id} is number {len(hour)} within an hour of {one.job}")
        within_s = one.at_s - (limits.within_s - SKEW_S)
        out = [other for other in before if other.kind == "evict" and other.at_s > within_s]
        if one.kind == "evict" and len({node for o in out for node in o.nodes}) > limits.nodes_at_most:
            broken.append(f"{one.id} takes out more than {limits.nodes_at_most} nodes")
        if one.kind == "evict" and len({node for o in out if o.job == one.job for node in o.nodes}) > one.share:
            broken.append(f"{one.id} takes out more than {one.share} nodes of {one.job}")
    return broken


def asked_unrecorded(history: History) -> list[str]:
    """A launcher that hears of what the bus does not know to have begun."""
    return [f"{one.id} was asked for before the bus knew" for one in history.calls if not one.told]


def asked_against_a_stop(history: History) -> list[str]:
    """A launcher that hears of an action though a person has stopped all acting."""
    return [f"{one.id} was asked for against a stop" for one in history.calls if one.stopped]


def stopped_without_a_word(history: History) -> list[str]:
    """A job that does not train in the end, and of which nothing on the bus since it went down says why."""
    silent = []
    for job, end in history.ends.items():
        if end == "goes on" or history.over_why.get(job):
            continue
        newest: Mapping[str, ActionRecord] = {one.id: one for one in history.actions if one.job == job}
        since_s = history.down_since_s.get(job, math.inf)
        words = [one for one in newest.values() if history.said_s.get(one.id, -math.inf) >= since_s - SKEW_S]
        if not any(_is_a_word(one) for one in words):
            silent.append(f"{job} is down since {since_s:.1f}, and nobody says why")
    return silent


def _is_a_word(action: ActionRecord) -> bool:
    """Whether it says why the job is left as it is."""
    return bool(action.why) and (action.outcome in ("skipped", "failed", "proposed") or action.kind == "stop_job")


def left_unfinished(history: History) -> list[str]:
    """An action that began and of whose end nothing was ever said."""
    begun = {one.id for one in history.actions if one.outcome == "started"}  # which may be written again after its end
    ended = {one.id for one in history.actions if one.outcome in ("done", "failed")}
    return [f"{name} began and has no end" for name in sorted(begun - ended)]


def attempts_mixed(history: History) -> list[str]:
    """An attempt started twice on a node, or that trains after a later one, or on nodes set aside; two leaders."""
    mixed = [f"{life} began {ids}" for life, ids in history.begun.items() if ids != sorted(set(ids))]
    if history.steps != sorted(history.steps):
        mixed.append(f"an older attempt trained after a newer one: {history.steps}")
    return mixed + history.aside + (["two launchers led at once"] if history.leaders > 1 else [])


RULES: Final[Mapping[str, Callable[[History], list[str]]]] = {
    "no action twice": acted_twice,
    "no healthy node evicted": healthy_evicted,
    "no budget broken": budget_broken,
    "nothing asked for before it is recorded": asked_unrecorded,
    "nothing asked for against a stop": asked_against_a_stop,
    "no job left stopped without a word": stopped_without_a_word,
    "nothing begun and forgotten": left_unfinished,
    "no attempt beside another": attempts_mixed,
    "no launcher shut out by strangers": lambda history: history.shut_out,
    "no step lost to its number": lambda history: history.steps_lost,
}


def broken(history: History) -> dict[str, list[str]]:
    """What breaks each rule, by its name; rules that hold are left out."""
    return {name: found for name, rule in RULES.items() if (found := rule(history))}
