"""Stretches of a job that are unlike the rest of its recording, for a person to say what they were."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from trainwarden.trainer_offline.suggest.change_points import Floats
from trainwarden.trainer_offline.suggest.discords import Discord, DiscordConfig, discords
from trainwarden.trainer_offline.suggest.series import STEP, Series
from trainwarden.trainer_offline.suggest.suggestions import Suggestion, Unlike

STRETCH: Final = DiscordConfig()


def unlike_suggestions(
    job: str, series: Sequence[Series], changes: Sequence[Suggestion] = (), config: DiscordConfig = STRETCH
) -> list[Suggestion]:
    """The stretches unlike all others of each family of metrics, and of the steps; farthest first.

    Where a change of `changes` begins or ends the stretch is not suggested: whoever looks at the change sees it.
    """
    edges = np.array([edge for one in changes for edge in (one.from_s, one.to_s) if edge is not None])
    found = [_suggestion(job, part, one) for part in _families(series) for one in discords(_values(part), config)]
    new = [one for one in found if not ((one.from_s <= edges) & (edges <= (one.to_s or np.inf))).any()]
    return sorted(new, key=lambda one: -(0.0 if one.unlike is None else one.unlike.times))


def _families(series: Sequence[Series]) -> Iterator[list[Series]]:
    """What shares its times: the metrics of one family, or the steps."""
    families: dict[int, list[Series]] = {}
    for one in series:
        families.setdefault(id(one.times_s), []).append(one)
    yield from families.values()


def _values(part: Sequence[Series]) -> Floats:
    """``[d, n]``; of durations the logarithms, as of changes."""
    rows = [np.log(np.where(one.values > 0.0, one.values, np.nan)) if one.name == STEP else one.values for one in part]
    return np.stack(rows)


def _suggestion(job: str, part: Sequence[Series], found: Discord) -> Suggestion:
    times_s = part[0].times_s
    return Suggestion(
        job=job,
        from_s=float(times_s[found.at]),
        to_s=None if found.end >= times_s.size else float(times_s[found.end]),
        unlike=Unlike(series=tuple(part[column].name for column in found.columns), times=found.times),
    )
