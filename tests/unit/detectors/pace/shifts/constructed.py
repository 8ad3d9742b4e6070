"""Series in which one mechanism of the change points decides, by the mechanism's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from tests.benchmarks.detection.change_series import Floats
from trainwarden.detectors.pace.shifts.level_shifts import LevelShifts, ShiftConfig
from trainwarden.detectors.pace.shifts.shift import Mechanism, Shift


def noisy(length: int, width: float = 0.01, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(0.0, width, length)


def shifts_of(values: Floats, leave_out: tuple[Mechanism, ...] = ()) -> list[Shift]:
    shifts = LevelShifts(ShiftConfig(leave_out=leave_out))
    return [shift for seq, x in enumerate(values) for shift in shifts.update(seq, np.array([x]))]


def stepped(size: float, at: int = 200, length: int = 300, width: float = 0.01, seed: int = 0) -> Floats:
    values = noisy(length, width, seed)
    values[at:] += size
    return values


def bayes() -> Floats:
    """A step of 10 %: its noise breaks every row of values off the level."""
    return stepped(np.log(1.1), width=0.025)


def watch() -> Floats:
    """A step with a wild value in it, which makes the posterior begin its segment anew."""
    values = stepped(0.2)
    values[202] += 0.9
    return values


def periodic() -> Floats:
    """One slow step in every five, and a step of 12 %."""
    values = np.tile([0.0, 0.0, 0.0, 0.0, 0.35], 80) + noisy(400)
    values[250:] += np.log(1.12)
    return values


def drift() -> Floats:
    """10 % within 250 steps."""
    return noisy(700) + np.clip(np.arange(700) - 200, 0, 400) * np.log(1.1) / 250


def own_drift() -> Floats:
    """10 % in 1,000 steps, from the start on."""
    return noisy(1700) + np.arange(1700) * np.log(1.1) / 1000


def drift_wait() -> Floats:
    """A pause of 12 times a step, and slow steps after it: high enough for a slow rise before the step is believed."""
    values = noisy(300, 0.015, 3)
    values[200:213] += 0.35
    values[200] += 2.5
    return values


def relief() -> Floats:
    """16 % slower, and a way back that takes 60 steps for two thirds of it."""
    values = noisy(700)
    values[150:300] += 0.15
    values[300:] += 0.15 * np.exp(-(np.arange(400)) / 60.0)
    return values


def trimmed_mean() -> Floats:
    """Eight of fourteen steps are 13 % slower, in no order."""
    values = noisy(300)
    values[200 + np.array([0, 1, 3, 4, 6, 8, 11, 13])] += 0.12
    return values


def paired_noise() -> Floats:
    """Two paces in turn, and a step before that can be known for a pattern."""
    values = noisy(62, 0.005) + np.where(np.arange(62) % 2 == 0, 0.0, 0.15)
    values[40:] += 0.3
    return values


def separate() -> Floats:
    """A fifth of the steps before a step of 27 % have been as slow already."""
    values = stepped(0.24)
    values[104:200:10] += 0.3
    return values


def two_paces(length: int = 600, seed: int = 0) -> Floats:
    """Four steps in ten take 1.25 times as long, by chance, and half of them do as the one before."""
    rng, long = np.random.default_rng(seed), np.zeros(length, dtype=np.bool_)
    for place in range(1, length):
        long[place] = long[place - 1] if rng.random() < 0.5 else rng.random() < 0.4
    return rng.normal(0.0, 0.01, length) + np.log(1.25) * long


def wander() -> Floats:
    """Two paces by chance, often some steps of one in a row."""
    return two_paces(seed=1)


def gentle_gain() -> Floats:
    """14 % faster within 300 steps, without any step; then as slow as ever."""
    values = noisy(900) - np.clip(np.arange(900) - 100, 0, 300) * np.log(1.14) / 300
    values[480:] += np.log(1.14)
    return values


def cluster_wait() -> Floats:
    """Three slow steps and an unrelated fourth one."""
    values = noisy(300)
    values[200:203] += 0.5
    values[203] += 1.1
    return values


def restart_wait() -> Floats:
    """A pause of 15 times a step, then nine slow ones."""
    values = noisy(300)
    values[200] += np.log(15.0)
    values[201:210] += np.log(1.6)
    return values


def restart_drop() -> Floats:
    """15 % faster after a step of twice the length."""
    values = stepped(-np.log(1.15))
    values[199] += np.log(2.5)
    return values


def faster_wait() -> Floats:
    """A few fast steps after a validation."""
    values = noisy(300)
    values[200:206] -= 0.4
    return values


def excursion_wait() -> Floats:
    """Bursts of slow steps that come and go, the first after a pause."""
    values = noisy(500)
    for at in (100, 200, 300, 400):
        values[at : at + 7] += 0.4
    values[[100, 101]] += 1.5
    return values


def refine() -> Floats:
    """The first two steps of a change of 10 % are little slower than before it."""
    values = stepped(0.1)
    values[200:202] -= 0.04
    return values


def staircase() -> Floats:
    """Three stairs of 5 to 6 %."""
    values = noisy(500, 0.012, 3)
    values[220:] += np.log(1.05)
    values[260:] += np.log(1.06)
    values[310:] += np.log(1.05)
    return values


def late_onset() -> Floats:
    """10 % within 250 steps."""
    return drift()


def continuation() -> Floats:
    """A step of 12 %, and another one of 12 % sixty steps later."""
    values = stepped(np.log(1.12), length=400)
    values[260:] += np.log(1.12)
    return values


CASES: Final[dict[Mechanism, Callable[[], Floats]]] = {
    "bayes": bayes, "watch": watch, "periodic": periodic, "drift": drift, "own_drift": own_drift,
    "drift_wait": drift_wait, "relief": relief, "trimmed_mean": trimmed_mean, "paired_noise": paired_noise,
    "separate": separate, "wander": wander, "gentle_gain": gentle_gain, "cluster_wait": cluster_wait,
    "restart_wait": restart_wait, "restart_drop": restart_drop, "faster_wait": faster_wait,
    "excursion_wait": excursion_wait, "refine": refine, "staircase": staircase, "late_onset": late_onset,
    "continuation": continuation,
}  # fmt: skip
