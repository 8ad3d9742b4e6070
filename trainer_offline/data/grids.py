"""One recorded job as what models are trained and judged on: which rows are normal, which are faults, on which grid.

The rules for what is missing, in order: an infinite value counts as missing; a sample without any value is left out; of
a grid up to `fill_samples` empty places repeat the sample before; a longer gap ends a stretch; single missing values
stay missing (every model fills them with its own normal value); a metric measured in less than half of the rows is not
trained on (`trainwarden.detectors.metrics.bundle.preparation`).
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.samples import Entity
from trainwarden.detectors.recorded.grids import MetricGrid
from trainwarden.settings import Config
from trainwarden.trainer_offline.data.annotation_rows import Culprit

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Span = tuple[float, float]

IRREGULAR: Final = 0.5  # samples further than half an interval off its multiples are laid on a grid
LEAST_ENTITIES: Final = 4  # of a job; fewer could not be compared with each other
LOOK_BACK: Final = 62  # samples before a fault that the models need to judge its first one


class PrepareConfig(Config, frozen=True, kw_only=True):
    """How recorded jobs become training data.

    Attributes
    ----------
    leave_out : tuple of str
        Domain knowledge: catalogue metrics that say what a device is, not how it does; patterns with ``*``.
    every_s : float or None
        Grid to resample to; None keeps a family's own interval and resamples only what is irregular.
    fill_samples, gap_samples : int
        Empty places of a grid that are filled, and how many make two stretches of one.
    least_samples : int
        Shorter normal stretches teach nothing.
    start_share : float
        An initialisation phase is looked for in this first part; a level that has not settled by then is the job's own.
    test_share : float
        Jobs (or of a single job the time) kept for the gate.
    max_rows, max_entities : int
        Rows to train on in all, and entities of one family of one job; more are thinned to evenly spread stretches, so
        that memory is bounded whatever the archive holds.
    max_cells : int
        Values of one job that are read (rows times columns); of a larger job evenly spread stretches of as many nodes
        as can be seen for long enough. A process that prepares a job needs up to 100 bytes for each.
    """

    leave_out: tuple[str, ...] = ("*_version", "*_limit_watts", "*_total_bytes", "*_limit_hertz")
    every_s: Annotated[float, msgspec.Meta(gt=0.0)] | None = None
    fill_samples: Annotated[int, msgspec.Meta(ge=0, le=100)] = 2
    gap_samples: Annotated[int, msgspec.Meta(ge=1)] = 10
    least_samples: Annotated[int, msgspec.Meta(ge=8)] = 30
    start_share: Annotated[float, msgspec.Meta(gt=0.0, le=0.5)] = 0.2
    test_share: Annotated[float, msgspec.Meta(gt=0.0, lt=1.0)] = 0.3
    max_rows: Annotated[int, msgspec.Meta(ge=1_000)] = 400_000
    max_entities: Annotated[int, msgspec.Meta(ge=4)] = 256
    max_cells: Annotated[int, msgspec.Meta(ge=1_000)] = 10_000_000


@dataclass(frozen=True, slots=True)
class JobGrid:
    """Rows of one family of one job.

    Attributes
    ----------
    values : float array [r, d, n]
        Counters as rates; NaN = not measured.
    times_s : float array [n]
    normal, quiet, fault : bool array [n]
        What is known of each time: fit to learn from, free of faults, within a fault. A time that is none of them is
        left out of everything.
    """

    family: str
    names: tuple[str, ...]
    entities: tuple[Entity, ...]
    roles: tuple[str, ...]
    every_s: float
    times_s: Floats
    values: Floats
    normal: Flags
    quiet: Flags
    fault: Flags

    def part(self, keep: Flags | slice) -> JobGrid:
        """The times `keep` alone."""
        return replace(
            self,
            times_s=self.times_s[keep],
            values=self.values[:, :, keep],
            normal=self.normal[keep],
            quiet=self.quiet[keep],
            fault=self.fault[keep],
        )

    @property
    def normal_rows(self) -> int:
        """Entity-rows that are normal and measured."""
        return int((~np.isnan(self.values[:, :, self.normal]).all(axis=1)).sum())

    def digest(self) -> str:
        """Hash of the content: the same for the same rows wherever they lie."""
        digest = hashlib.sha256()
        digest.update(repr((self.family, self.names, self.entities, self.roles)).encode())
        for part in (self.times_s, self.values, self.normal, self.quiet, self.fault):
            digest.update(np.ascontiguousarray(part).tobytes())
        return digest.hexdigest()


def on_grid(grid: MetricGrid, every_s: float | None, fill_samples: int) -> tuple[Floats, Floats, float]:
    """Times ``[m]``, values ``[r, d, m]`` and the interval; regular samples of the wanted interval stay as they are.

    Of several samples in one place of the grid the mean counts.
    """
    times_s, values = grid.column_s, np.where(np.isinf(grid.values), np.nan, grid.values)
    there = ~np.isnan(values).all(axis=(0, 1))
    times_s, values = times_s[there], values[:, :, there]
    steps = np.diff(times_s)
    steps = steps[steps > 0.0]
    own_s = interval_of(times_s)
    step_s = every_s or own_s
    off = np.abs(steps / step_s - np.maximum(np.round(steps / step_s), 1.0))
    if not times_s.size or (abs(own_s / step_s - 1.0) < 0.1 and not (off > IRREGULAR * 0.5).mean() > 0.01):
        return times_s, values, step_s
    # Plain sums: pandas' group means and resampling add with compensation, which moves the last digit of what models
    # learn from, and a frame up to the last sample would hold every place of every pause.
    cells = np.round((times_s - times_s[0]) / step_s).astype(np.int64)
    occupied, first = np.unique(cells, return_index=True)
    measured = ~np.isnan(values)
    counts = np.add.reduceat(measured, first, axis=2)
    sums = np.add.reduceat(np.where(measured, values, 0.0), first, axis=2)
    means = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    # Empty places after each occupied one, as far as they are filled.
    empty = np.minimum(np.diff(occupied, append=occupied[-1] + 1) - 1, fill_samples)
    source = np.repeat(np.arange(occupied.size), empty + 1)
    offset = np.arange(source.size) - np.repeat(np.cumsum(empty + 1) - (empty + 1), empty + 1)
    return times_s[0] + (occupied[source] + offset) * step_s, means[:, :, source], step_s


def interval_of(times_s: Floats) -> float:
    """Seconds between samples taken at ``times_s [n]``, most of the time.

    Examples
    --------
    >>> interval_of(np.array([0.0, 10.0, 20.0, 20.0, 90.0]))
    10.0
    """
    steps = np.diff(times_s)
    steps = steps[steps > 0.0]
    return float(np.median(steps)) if steps.size else 1.0


def inside(times_s: Floats, spans: Sequence[Span]) -> Flags:
    """Which times lie in one of `spans`, ``[from_s, to_s)``.

    Examples
    --------
    >>> inside(np.arange(5.0), [(1.0, 3.0)]).tolist()
    [False, True, True, False, False]
    """
    found = np.zeros(times_s.size, dtype=np.bool_)
    for from_s, to_s in spans:
        found |= (times_s >= from_s) & (times_s < to_s)
    return found


def stretches(grid: JobGrid, config: PrepareConfig) -> list[slice]:
    """Normal stretches without a gap, long enough to teach something."""
    if not grid.times_s.size:
        return []
    gap = np.diff(grid.times_s, prepend=grid.times_s[0]) > (config.gap_samples + 1) * grid.every_s
    change = np.diff(grid.normal, prepend=grid.normal[0]) | gap
    starts = np.concatenate([[0], np.flatnonzero(change[1:]) + 1])
    ends = np.append(starts[1:], grid.times_s.size)
    return [
        slice(int(start), int(end))
        for start, end in zip(starts, ends, strict=True)
        if grid.normal[start] and end - start >= config.least_samples
    ]


def thinned(grid: JobGrid, rows: int, config: PrepareConfig, seed: int, named: Sequence[Culprit] = ()) -> JobGrid:
    """The same grid with about `rows` entity-rows at most: fewer entities, then evenly spread stretches.

    Faults stay, with what the models look back on before them, in up to half of the rows; so do entities that are
    `named` in annotations.
    """
    rng = np.random.default_rng(seed)
    # Of very many jobs each may give little: fewer entities then, since a stretch has to be long enough to teach.
    most = int(np.clip(rows // config.least_samples, LEAST_ENTITIES, config.max_entities))
    if len(grid.entities) > most:
        places = _chosen(grid.entities, most, named, rng)
        grid = replace(
            grid,
            entities=tuple(grid.entities[place] for place in places),
            roles=tuple(grid.roles[place] for place in places),
            values=grid.values[places],
        )
    wanted, have = max(rows // len(grid.entities), config.least_samples), grid.times_s.size
    if have <= wanted:
        return grid
    keep = _faults(grid, wanted // 2, config)
    around = ~keep & ~grid.fault  # the rest of a long fault would count as another one
    others = np.flatnonzero(around)
    wanted = max(wanted - int(keep.sum()), config.least_samples)
    if others.size <= wanted:
        return grid.part(keep | around)
    blocks = int(np.clip(wanted // (4 * config.least_samples), 1, 20))
    for first, last in _blocks(grid.part(around), wanted, blocks, config, rng):
        keep[others[first:last]] = True
    return grid.part(keep)


def _chosen(
    entities: Sequence[Entity], most: int, named: Sequence[Culprit], rng: np.random.Generator
) -> npt.NDArray[np.intp]:
    """Places of `most` entities, those that are named first."""
    wanted = np.array([any(one.is_of(entity) for one in named) for entity in entities], dtype=np.bool_)
    first, rest = np.flatnonzero(wanted), np.flatnonzero(~wanted)
    if first.size > most:
        first = rng.choice(first, most, replace=False)
    return np.sort(np.concatenate([first, rng.choice(rest, most - first.size, replace=False)]))


def _faults(grid: JobGrid, wanted: int, config: PrepareConfig) -> Flags:
    """Faults and what lies right before them, `wanted` samples in all at most: of long ones the beginning."""
    keep = np.zeros(grid.times_s.size, dtype=np.bool_)
    edges = np.flatnonzero(np.diff(np.pad(grid.fault, 1).astype(np.int8)))
    spans = edges.reshape(-1, 2)
    most = max(1, wanted // config.least_samples)
    if len(spans) > most:
        spans = spans[np.arange(most) * len(spans) // most]
    length = wanted // max(1, len(spans))
    before = min(LOOK_BACK, length // 2)
    for first, last in spans.tolist():
        keep[max(0, first - before) : min(last, first - before + length)] = True
    return keep


def _blocks(
    grid: JobGrid, wanted: int, blocks: int, config: PrepareConfig, rng: np.random.Generator
) -> list[tuple[int, int]]:
    """Evenly spread blocks with `wanted` samples in all, each inside of what was recorded without a gap if it can be.

    A block that lay across a gap would be two short stretches, of which models can learn little or nothing.
    """
    have, length = grid.times_s.size, wanted // blocks
    gaps = np.flatnonzero(np.diff(grid.times_s) > (config.gap_samples + 1) * grid.every_s) + 1
    edges = np.concatenate([[0], gaps, [have]])
    if gaps.size:
        # Where nothing is long enough: more of what there is, whole.
        length = min(length, max(config.least_samples, int(np.median(np.diff(edges)))))
        blocks = wanted // length
        wide = [(int(first), int(last)) for first, last in itertools.pairwise(edges) if last - first >= length]
        if len(wide) >= blocks:
            places = [wide[(2 * block + 1) * len(wide) // (2 * blocks)] for block in range(blocks)]
            starts = [first + int(rng.integers(0, last - first - length + 1)) for first, last in places]
            return [(first, first + length) for first in starts]
    pitch = have // blocks
    starts = [block * pitch + int(rng.integers(0, max(pitch - length, 0) + 1)) for block in range(blocks)]
    return [(first, first + length) for first in starts]
