"""Changes of a job's series put together by moment, for a person to say what they were."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from trainwarden.trainer_offline.data.annotation_rows import Annotation
from trainwarden.trainer_offline.suggest.change_points import Change, ChangeConfig, change_points
from trainwarden.trainer_offline.suggest.series import STEP, Series

STEPS: Final = ChangeConfig()
# A load's phases overlap; what asks for a person's time should hardly do so.
METRICS: Final = ChangeConfig(least_noises=5.0, least_sure=0.95)
TOGETHER_SAMPLES: Final = 5  # of the slower series: what changes within is one moment
SHOWN_SERIES: Final = 3  # of a moment, in the note


class Shift(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One series' change: levels in `unit`, times in seconds, `sure` as `Change.sure`.

    `step` is the first step of the new level; `returns` says that the level before the last change is back.
    """

    series: str
    unit: str
    before: float
    after: float
    sure: float
    from_s: float
    to_s: float | None = None
    step: int | None = None
    returns: bool = False


class Unlike(msgspec.Struct, frozen=True, kw_only=True):
    """How a stretch is unlike the rest: in which series most (three at most), and `Discord.times`."""

    series: tuple[str, ...]
    times: float


class Suggestion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A moment at which levels changed, and until when the first series' new level lasted (None: to the end).

    With `unlike` in place of `shifts` it is a stretch that no other of the recording is like.
    """

    job: str
    from_s: float
    to_s: float | None = None
    near_s: float = 0.0
    shifts: tuple[Shift, ...] = ()
    unlike: Unlike | None = None

    @property
    def note(self) -> str:
        """What changed, in words.

        Examples
        --------
        >>> slow = Shift(series="step duration", unit="s", before=1.0, after=1.5, sure=0.99, from_s=10.0, step=7)
        >>> Suggestion(job="j", from_s=10.0, shifts=(slow,)).note
        'step duration 1 to 1.5 s from step 7 (sure 0.99)'
        """
        if self.unlike is not None:
            most = ", ".join(self.unlike.series)
            return f"unlike the rest of the recording, {self.unlike.times:.2g} times what is usual, most of all {most}"
        words = [
            f"{one.series} {one.before:.4g} to {one.after:.4g}"
            + (f" {one.unit}" if one.unit else "")
            + (f" from step {one.step}" if one.step is not None else "")
            + (" again" if one.returns else "")
            + f" (sure {math.floor(100 * one.sure) / 100:g})"
            for one in self.shifts[:SHOWN_SERIES]
        ]
        more = len(self.shifts) - SHOWN_SERIES
        return "; ".join([*words, *([f"{more} more"] if more > 0 else [])])

    def annotation(self) -> Annotation:
        """As it is kept until a person has confirmed or refused it."""
        return Annotation(job=self.job, label="suggested", from_s=self.from_s, to_s=self.to_s, note=self.note)

    def is_told(self, known: Sequence[Annotation]) -> bool:
        """Whether an annotation of this job begins or ends here, or says to ignore the stretch: then it was decided.

        A stretch is also decided where a person has said anything of a part of it.
        """
        for one in known:
            edges = [edge for edge in (one.from_s, one.to_s) if edge is not None]
            if one.job == self.job and any(abs(edge - self.from_s) <= self.near_s for edge in edges):
                return True
            from_s, to_s = -math.inf if one.from_s is None else one.from_s, math.inf if one.to_s is None else one.to_s
            if one.job == self.job and one.label == "ignore" and from_s <= self.from_s < to_s:
                return True
            own_to_s = math.inf if self.to_s is None else self.to_s
            said = self.unlike is not None and one.label not in ("suggested", "refused")
            if one.job == self.job and said and from_s < own_to_s and self.from_s < to_s:
                return True
        return False


class _Found(NamedTuple):
    shift: Shift
    near_s: float


def suggestions(job: str, found: Iterator[Series]) -> list[Suggestion]:
    """The moments at which any of the job's series changed, in order of time.

    Where all that happens is that a level comes back, the stretch before has ended and nothing new is suggested.
    """
    shifts = sorted((one for series in found for one in _shifts(series)), key=lambda one: one.shift.from_s)
    moments: list[list[_Found]] = []
    for one in shifts:
        if moments and one.shift.from_s - moments[-1][0].shift.from_s <= max(one.near_s, moments[-1][0].near_s):
            moments[-1].append(one)
        else:
            moments.append([one])
    return [_suggestion(job, moment) for moment in moments if not all(one.shift.returns for one in moment)]


def _suggestion(job: str, moment: Sequence[_Found]) -> Suggestion:
    ordered = sorted(moment, key=lambda one: (one.shift.series != STEP, one.shift.returns, -one.shift.sure))
    first = ordered[0].shift
    near_s = max(one.near_s for one in moment)
    return Suggestion(
        job=job, from_s=first.from_s, to_s=first.to_s, near_s=near_s, shifts=tuple(one.shift for one in ordered)
    )


def _shifts(series: Series) -> Iterator[_Found]:
    is_step = series.name == STEP
    config = STEPS if is_step else METRICS
    changes = change_points(series.values, config, relative=is_step)
    if not changes:
        return
    near_s = TOGETHER_SAMPLES * float(np.median(np.diff(series.times_s)))
    away = False
    for place, one in enumerate(changes):
        away = returns = not away and place > 0 and _is_back(changes[place - 1], one)
        yield _Found(
            Shift(
                series=series.name,
                unit=series.unit,
                before=one.before,
                after=one.after,
                sure=one.sure,
                from_s=float(series.times_s[one.at]),
                to_s=None if one.end >= series.values.size else float(series.times_s[one.end]),
                step=None if series.steps is None else int(series.steps[one.at]),
                returns=returns,
            ),
            near_s,
        )


def _is_back(last: Change, now: Change) -> bool:
    """Whether `now` undoes `last`: nearer to the level before it than to the one between, by far."""
    return abs(now.after - last.before) < 0.25 * abs(now.before - last.before)
