"""The share of a step that trainers say their data took, and from when on that was most of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from trainwarden.formats.text.step_times import line_time_s
from trainwarden.formats.verdicts import Verdict, line_of
from trainwarden.log_shapes import by_shape, unmasked
from trainwarden.recorded.job import Floats, IterationTable, LogTable

_N: Final = r"([0-9]{1,6}(?:\.[0-9]{1,9})?)"
# Meters of PyTorch's ImageNet example and of DALI's, MoCo, timm, torchvision's references, detectron2, mmengine and
# open_clip: the newest value stands first, an average in brackets behind it.
_TIME: Final = re.compile(r"(?i)(?:\b(?:batch_?|iter_?|step_?)?time|\bbatch \(t\))[:\s=]{1,4}" + _N)
_DATA: Final = re.compile(r"(?i)\bdata(?:_?time)?(?: \(t\))?[:\s=]{1,4}" + _N)
_WORDS: Final = ("time", "(t)")
USUAL_LINES: Final = 10  # that show what is usual
SKIPPED: Final = 2  # lines of a run's begin: the first batches start workers and fill queues
STALLED_LINES: Final = 8  # in a row
MOST_USUAL: Final = 0.35  # share of the step that is no stall
LEAST_STALLED: Final = 0.6
LEAST_LONGER: Final = 3.0  # times the usual time for data
LEAST_SLOWER: Final = 1.5  # times the usual step
MOST_LINES: Final = 2_000_000


class _Meter(NamedTuple):
    """What one line says."""

    place: int
    step_s: float
    data_s: float


def data_waits(logs: Iterable[LogTable], told: IterationTable | None = None) -> list[LogTable]:
    """Lines about the first time in which data took most of the steps, for each log in which there is one.

    Parameters
    ----------
    told : IterationTable, optional
        The steps that were read from the same logs: their times are those of lines without stamps.
    """
    found = []
    for log in logs:
        meters = list(_meters(log.lines)) if len(log.lines) <= MOST_LINES else []
        stall = stall_of([one.step_s for one in meters], [one.data_s for one in meters])
        if stall is None:
            continue
        usual, late = meters[: stall.start], meters[stall.start : stall.stop]
        words = (
            f"data take {_median(late, 'data_s'):.3g} s of {_median(late, 'step_s'):.3g} s of a step, "
            f"before {_median(usual, 'data_s'):.3g} s of {_median(usual, 'step_s'):.3g} s"
        )
        places = [one.place for one in meters]
        times_s = np.array([line_time_s(log, places, number, told) for number in stall])
        nobody = (None,) * len(stall)
        found.append(
            LogTable("data times", times_s, nobody, nobody, [line_of(Verdict("job", "data", words))] * len(stall))
        )
    return found


def stall_of(step_s: Sequence[float], data_s: Sequence[float]) -> range | None:
    """The first steps that wait for data, of a run that did not before; None where they do not or always did.

    Examples
    --------
    >>> stall_of([0.2] * 20 + [8.0] * 10, [0.01] * 20 + [7.8] * 10), stall_of([0.2] * 30, [0.15] * 30)
    (range(20, 30), None)
    """
    steps, data = np.array(step_s), np.array(data_s)
    if steps.size < SKIPPED + USUAL_LINES + STALLED_LINES:
        return None
    share = np.divide(data, steps, out=np.zeros_like(data), where=steps > 0.0)
    first = SKIPPED + USUAL_LINES
    usual = slice(SKIPPED, first)
    usual_s, usual_data_s = float(np.median(steps[usual])), float(np.median(data[usual]))
    if float(np.median(share[usual])) > MOST_USUAL:
        return None
    stalled = (share >= LEAST_STALLED) & (steps >= LEAST_SLOWER * usual_s) & (data >= LEAST_LONGER * usual_data_s)
    begun = first
    for number in range(first, steps.size + 1):
        if number < steps.size and stalled[number]:
            continue
        if number - begun >= STALLED_LINES:
            return range(begun, number)
        begun = number + 1
    return None


def _meters(lines: Iterable[str]) -> Iterable[_Meter]:
    for place, line in enumerate(lines):
        if not _may_tell(line):
            continue
        time, data = _TIME.search(line), _DATA.search(line)
        if time is not None and data is not None:
            yield _Meter(place, float(time[1]), float(data[1]))


def _tells(line: str) -> bool:
    lower = line.lower()
    return "data" in lower and any(word in lower for word in _WORDS) and _DATA.search(line) is not None


_may_tell = by_shape(lambda shape: _tells(unmasked(shape)))


def _median(meters: Sequence[_Meter], name: str) -> float:
    values: Floats = np.array([getattr(one, name) for one in meters])
    return float(np.median(values))
