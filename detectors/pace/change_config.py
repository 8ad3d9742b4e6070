"""Settings of `change_point`: one set, for live jobs and recorded ones."""

from __future__ import annotations

from typing import Annotated

import msgspec

from trainwarden.detectors.pace.shifts.level_shifts import ShiftConfig
from trainwarden.detectors.pace.shifts.shift import Mechanism
from trainwarden.settings import Config

MAX_PLANNED = 10_000


class ChangePointConfig(Config, frozen=True, kw_only=True):
    """Thresholds of the job's own series and of the ranks' relative compute time.

    Attributes
    ----------
    minimum_deviation_s : float
        A rank's compute time must have grown by this much too.
    lasting_ratio : float
        A slowdown whose level settles below this is over.
    culprit_steps : int
        Where steps take longer though most ranks compute no longer than they did, so many slow ones are waited for: one
        of the ranks may be the cause, and is named by then.
    contended_steps, contended_s
        A slowdown that the host explains is told when it has lasted this long: the pace of a machine that is shared
        wanders.
    planned_steps : tuple of int
        Steps at which the program itself changes its pace (``[[planned_change]]`` of a recorded folder).
    leave_out : tuple of str
        Mechanisms that take no part in finding changes, of the job and of ranks (docs/change_points.md lists them).
    """

    job: ShiftConfig = msgspec.field(default_factory=ShiftConfig)
    ranks: ShiftConfig = msgspec.field(default_factory=ShiftConfig)
    minimum_deviation_s: Annotated[float, msgspec.Meta(ge=0.0)] = 0.0
    lasting_ratio: Annotated[float, msgspec.Meta(ge=1.0)] = 1.05
    culprit_steps: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 12
    contended_steps: Annotated[int, msgspec.Meta(ge=0)] = 30
    contended_s: Annotated[float, msgspec.Meta(ge=0.0)] = 30.0
    planned_steps: Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_PLANNED)] = ()
    leave_out: tuple[Mechanism, ...] = ()
