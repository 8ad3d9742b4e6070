"""Step times and losses among the samples of a time-series database: fields of ranks, as trainers send them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import pandas as pd

from trainwarden.formats import names
from trainwarden.formats.protocol import Found
from trainwarden.formats.steps import is_loss, steps_from

_OWNERS: Final = ("rank", "node")


class StepSample(NamedTuple):
    """One field of one rank at one time; `node` and `rank` are "" where nothing names them."""

    time_s: float
    node: str
    rank: str
    name: str
    value: float


def is_of_steps(name: str) -> bool:
    """Whether a field tells of training steps.

    Examples
    --------
    >>> [is_of_steps(name) for name in ("step_time_s", "step", "train_loss", "compute_s", "temperature_gpu")]
    [True, True, True, True, False]
    """
    return (
        names.known(name, names.STEP) or names.duration_factor(name) is not None or names.is_rate(name)
        or is_loss(name) or names.part_factor(name) is not None
    )  # fmt: skip


def steps_of_samples(samples: Iterable[StepSample]) -> Found | None:
    """Iterations and losses of samples; None where they tell of neither."""
    long = pd.DataFrame(samples, columns=list(StepSample._fields))
    if not len(long):
        return None
    keys = ["time_s", "node", "rank"]
    wide = long.pivot_table(index=keys, columns="name", values="value", aggfunc="last")
    wide = wide.reset_index().rename_axis(columns=None).sort_values("time_s", kind="stable")
    step = next((str(one) for one in wide.columns if names.known(str(one), names.STEP)), None)
    notes = []
    if step is None:
        wide["step"] = wide.groupby(["node", "rank"], sort=False).cumcount() + 1
        notes.append("no field holds the step: each sample of a rank is taken for one")
    else:
        wide = wide.rename(columns={step: "step"})
    for owner in _OWNERS:
        if not wide[owner].any():
            wide = wide.drop(columns=owner)
        else:
            wide[owner] = [one or None for one in wide[owner]]
    found = steps_from(wide, notes)
    if found is not None:
        found.notes += notes
        found.rows = len(wide)
    return found


def with_steps(samples: Iterable[StepSample], others: Callable[[], Found], are_others: bool) -> Found:
    """What `samples` tell of steps with what `others` tells, which is asked where there is something or no step.

    Raises
    ------
    DataError
        If there is nothing at all.
    """
    steps = steps_of_samples(samples)
    if steps is None:
        return others()
    found = others() if are_others else Found()
    found.iterations += steps.iterations
    found.logs += steps.logs
    found.notes += steps.notes
    found.rows += steps.rows
    return found
