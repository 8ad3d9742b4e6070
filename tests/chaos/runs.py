"""The two hundred runs that CI makes, and what they came to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from tests.chaos.history import RULES, History, broken

SEEDS: Final = range(200)
QUICK: Final = range(20)  # in `make check`


class Sum(msgspec.Struct):
    """Many runs together.

    Attributes
    ----------
    faults, actions, ends, done : Counter of str
        Faults by kind, operations that were carried out by kind, how the jobs ended, and what was seen done on the job
        of torchruns, by kind.
    violations : dict of str to list of str
        By rule, what broke it and in which run.
    """

    runs: int = 0
    faults: Counter[str] = msgspec.field(default_factory=Counter)
    actions: Counter[str] = msgspec.field(default_factory=Counter)
    ends: Counter[str] = msgspec.field(default_factory=Counter)
    done: Counter[str] = msgspec.field(default_factory=Counter)
    violations: dict[str, list[str]] = msgspec.field(default_factory=lambda: {name: [] for name in RULES})


def summed(histories: Iterable[History]) -> Sum:
    """What `histories` came to."""
    total = Sum()
    for one in histories:
        total.runs += 1
        total.faults += one.faults
        total.done += one.done
        total.actions.update(effect.kind for effect in one.effects)
        total.ends.update(one.ends.values())
        for rule, sentences in broken(one).items():
            total.violations[rule] += [f"run {one.seed}: {sentence}" for sentence in sentences]
    return total
