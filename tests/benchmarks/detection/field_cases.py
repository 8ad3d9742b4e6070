"""Cases that jobs in the field meet and that neither recorded runs nor `change_synthetic` hold often enough.

Each class is one for which a rule of the change points was made, so the ablation's table can show what is lost where
the rule is left out. Sizes, lengths and places are drawn anew for every series, and the noise is that of
`change_synthetic` without recorded residuals: all of it is seeded and needs no shared data. No figure of these says how
good the whole is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from tests.benchmarks.detection.change_series import Floats, Series, TrueChange
from tests.benchmarks.detection.change_synthetic import noise

SEED: Final = 5_511
LENGTH: Final = (900, 1300)
Shape = tuple[list[TrueChange], list[tuple[int, int]]]
Draw = Callable[[np.random.Generator, Floats], Shape]


def field_cases(per_class: int, seed: int = SEED) -> list[Series]:
    """`per_class` series of each class.

    Examples
    --------
    >>> [(one.what, len(one.changes)) for one in field_cases(1)]
    [('clusters', 0), ('dips', 1), ('gentle_relief', 2), ('gain_and_drift', 1), ('two_paces', 1)]
    """
    out = []
    for place, (what, draw) in enumerate(CLASSES.items()):
        for number in range(per_class):
            rng = np.random.default_rng((seed, place, number))
            length = int(rng.integers(*LENGTH))
            log = np.log(0.5) + noise(rng, length, ())
            changes, ignores = draw(rng, log)
            marks, name = (tuple(changes), tuple(ignores)), f"{what}-{number}"
            out.append(Series(name, "field", name, np.arange(length), np.exp(log), *marks, what=what))
    return out


def clusters(rng: np.random.Generator, log: Floats) -> Shape:
    """Three to five slow steps that have nothing to do with each other, every 60 to 200: saving, evaluating."""
    at = 150
    while at < len(log) - 20:
        size = int(rng.integers(3, 6))
        log[at : at + size] += np.log(rng.uniform(1.2, 3.0, size))
        at += int(rng.integers(60, 200))
    return [], []


def dips(rng: np.random.Generator, log: Floats) -> Shape:
    """A slow job that is as fast as before for four to nine steps now and then; the first time may be told."""
    at, ratio = int(rng.integers(120, 200)), float(rng.uniform(1.2, 2.0))
    size, every = int(rng.integers(4, 10)), int(rng.integers(50, 150))
    first = at + int(rng.integers(60, 120))
    log[at:] += np.log(ratio)
    for place in range(first, len(log) - size - 40, every):
        log[place : place + size] -= np.log(ratio)
    return [TrueChange(at, at, ratio, "step")], [(first - 10, first + size + 30)]


def gentle_relief(rng: np.random.Generator, log: Floats) -> Shape:
    """A slow job whose way back takes 30 to 300 steps: it must be told, or the incident never ends."""
    at, ratio = int(rng.integers(150, 300)), float(rng.uniform(1.12, 2.0))
    end, rows = at + int(rng.integers(60, 200)), int(rng.integers(30, 300))
    places = np.arange(len(log))
    log += np.where(places < at, 0.0, np.log(ratio) * np.clip(1.0 - (places - end) / rows, 0.0, 1.0))
    return [TrueChange(at, at, ratio, "step"), TrueChange(end, end + rows, 1.0 / ratio, "drift")], []


def gain_and_drift(rng: np.random.Generator, log: Floats) -> Shape:
    """A program that gets 12 to 40 % faster within 150 to 400 steps, and then a fail-slow that comes as gently."""
    at, rows, gain = int(rng.integers(100, 200)), int(rng.integers(150, 400)), float(rng.uniform(1.12, 1.4))
    first = at + rows + int(rng.integers(60, 150))
    ratio, slope = float(rng.uniform(1.15, 1.4)), np.log(1.1) / rng.uniform(60, 250)
    places = np.arange(len(log))
    log -= np.log(gain) * np.clip((places - at) / rows, 0.0, 1.0)
    log += np.clip((places - first) * slope, 0.0, np.log(ratio))
    passed = first + int(np.ceil(np.log(1.1) / slope))
    return [TrueChange(first, passed, ratio, "drift")], [(at - 10, at + rows + 30)]


def two_paces(rng: np.random.Generator, log: Floats) -> Shape:
    """Each step takes 1.25 times as long by chance, often some in a row; then a step of 30 to 80 % on top of it."""
    share, stays, long = float(rng.uniform(0.25, 0.6)), float(rng.uniform(0.0, 0.5)), False
    for place in range(len(log)):
        long = long if rng.random() < stays else bool(rng.random() < share)
        log[place] += np.log(1.25) * long
    at, ratio = int(rng.integers(400, 700)), float(rng.uniform(1.3, 1.8))
    log[at:] += np.log(ratio)
    return [TrueChange(at, at, ratio, "step")], []


CLASSES: Final[dict[str, Draw]] = {
    "clusters": clusters, "dips": dips, "gentle_relief": gentle_relief, "gain_and_drift": gain_and_drift,
    "two_paces": two_paces,
}  # fmt: skip
