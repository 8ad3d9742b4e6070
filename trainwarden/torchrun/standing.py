"""The ranks of one node, asked by their launcher to stand still after one and the same step; standard library only."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from trainwarden.hook import ASK_PAUSE, Header, ask_hook, read_steps
from trainwarden.torchrun.files import put_whole

LEAD_S: Final = 1.0  # from the choice of a step until every rank has read it: 0.1 s here, more on a busy machine
_STEPS: Final = 8  # whose pace is told


class Progress(NamedTuple):
    """How far ranks are: the lowest and highest step in progress, seconds a step, and by how much its number rises."""

    least: int
    most: int
    pace_s: float
    stride: int


def progress_of(files: Iterable[tuple[Path, Header]]) -> Progress | None:
    """How far the ranks with these hook files are; None where one of them does not tell."""
    found = [_progress(path, header) for path, header in files]
    return joined([one for one in found if one is not None]) if found and None not in found else None


def _progress(path: Path, header: Header) -> Progress | None:
    steps = read_steps(path, header.recorded - _STEPS, header) or []
    rises = {after.step - before.step for before, after in pairwise(steps)}
    if len(steps) < 2 or len(rises) > 1 or min(rises) < 1:
        return None
    pace_s, stride = median(step.duration_s for step in steps), min(rises)
    now = steps[-1].step + stride  # the header's is one more than the last, whatever the script's numbers rise by
    return Progress(now, now, pace_s, stride) if pace_s > 0.0 else None


def joined(parts: Collection[Progress]) -> Progress | None:
    """Several ranks as one; None if there are none, or their numbers do not rise alike.

    Examples
    --------
    >>> joined([Progress(7, 8, 0.5, 1), Progress(8, 9, 0.25, 1)])
    Progress(least=7, most=9, pace_s=0.5, stride=1)
    """
    if len({one.stride for one in parts}) != 1:
        return None
    return Progress(
        min(one.least for one in parts), max(one.most for one in parts), max(one.pace_s for one in parts),
        next(iter(parts)).stride,
    )  # fmt: skip


def step_ahead(now: Progress, lead_s: float = LEAD_S) -> int | None:
    """The number of a step that no rank will have finished within `lead_s`; None where ranks are too far apart.

    Ranks that count from different beginnings would stand still at different places.

    Examples
    --------
    >>> step_ahead(Progress(100, 101, 0.25, 1)), step_ahead(Progress(100, 101, 30.0, 1))
    (105, 102)
    >>> step_ahead(Progress(100, 110, 0.25, 1)) is None
    True
    """
    ahead = now.stride * math.ceil(lead_s / now.pace_s)
    return now.most + ahead if now.most - now.least <= max(ahead, 2 * now.stride) else None


def put_pause(path: Path, number: int, until_s: float, step: int | None, files: Iterable[tuple[Path, Header]]) -> None:
    """Ask the ranks with these hook files, by `path`, to stand still until the wall time `until_s`.

    Loops that take part read the file by themselves.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    put_whole(path, json.dumps({"number": number, "until_s": until_s, **({} if step is None else {"step": step})}))
    for file, _ in files:
        try:
            ask_hook(file, file.stat().st_uid, ASK_PAUSE)
        except OSError:  # its process has ended, which is seen by that
            continue
