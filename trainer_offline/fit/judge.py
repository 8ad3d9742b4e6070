"""What detectors would have said of the test jobs: alerts as on line, events found, false alarms, delay.

Where faults are annotated they are the events. On purely normal data false alarms are all that can be counted; there
anomalies of known size are added to copies of the test rows, and recall is that of finding those. An added step in a
few metrics is easier than most real faults: such a recall says that a model is alive, not how good it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.samples import FamilySamples
from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
from trainwarden.detectors.metrics.bundle.metric_vote import MetricVote
from trainwarden.detectors.metrics.hysteresis import REFERENCE_S
from trainwarden.detectors.metrics.scores import MetricScorer
from trainwarden.detectors.metrics.vote import ModelVoteConfig
from trainwarden.trainer_offline.data.grids import Flags, Floats, JobGrid
from trainwarden.trainer_offline.data.prepare_job import PreparedJob
from trainwarden.trainer_offline.fit.weights import Counted

BLOCK_CELLS: Final = 8_000_000  # values scored in one call: 64 MB
INJECTED_SAMPLES: Final = 30  # no time: models look back by samples of their own interval
INJECTED_EVERY: Final = 300  # samples from one added anomaly to the next
INJECTED_LEAST: Final = 60  # samples before the first one: the models' look-back
INJECTED_METRICS: Final = 1 / 3
SAME_EPISODE_SAMPLES: Final = 5  # alerts less than this many samples apart are one episode,
SAME_EPISODE_S: Final = 300.0  # or less than so much time: that many samples at `REFERENCE_S`, as of SMD's servers
SPELL_S: Final = 3_600.0  # false alarms of one hour of a job have one cause: a phase, a load, somebody at work
# A tenth of the time is injected: that many steps would teach a vote that they are usual, and it would be right.
EACH_ALONE: Final = ModelVoteConfig(usual_share=0.0)
KEPT_SCORES: Final = 5_000  # of each detector, for the plots


class Quality(msgspec.Struct, kw_only=True):
    """One detector on the test jobs. None where there was nothing to count.

    `by_chance` is the recall that false alarms as frequent as these would have at random moments (Poisson).
    `false_spells` are the hours of jobs in which there were false alarms. `missed_share` of the time there was a fault
    and no vote, which `accuracy` counts as wrong.
    """

    events: int = 0
    found: int = 0
    injected: bool = False
    judged: int = 0
    false_episodes: int = 0
    false_spells: int | None = None
    machine_days: float = 0.0
    accuracy: float | None = None
    missed_share: float | None = None
    precision: float | None = None
    recall: float | None = None
    false_alarms_per_machine_day: float | None = None
    delay_s: float | None = None
    by_chance: float | None = None


@dataclass(slots=True)
class Tally:
    """Counts while jobs are gone through, and a few scores for the plots."""

    quality: Quality = field(default_factory=Quality)
    delays_s: list[float] = field(default_factory=list)
    lasted_days: list[float] = field(default_factory=list)  # machine-days of each annotated event
    false_hours: set[tuple[str, int]] = field(default_factory=set)  # job, and hour of its time
    families: dict[str, Counted] = field(default_factory=dict)
    right: int = 0
    missed: int = 0
    quiet_scores: list[Floats] = field(default_factory=list)
    event_scores: list[Floats] = field(default_factory=list)
    lines: list[tuple[str, Floats, Floats, Flags]] = field(default_factory=list)  # job, times, scores, labels

    def done(self) -> Quality:
        one = self.quality
        one.false_spells = len(self.false_hours)
        if one.judged:
            one.accuracy = round(self.right / one.judged, 4)
            one.missed_share = round(self.missed / one.judged, 4)
        if one.machine_days > 0.0:
            one.false_alarms_per_machine_day = round(one.false_episodes / one.machine_days, 4)
        if one.events:
            one.recall = round(one.found / one.events, 4)
        if one.events and one.found + one.false_episodes:
            one.precision = round(one.found / (one.found + one.false_episodes), 4)
        if self.lasted_days and one.false_alarms_per_machine_day is not None:
            expected = one.false_alarms_per_machine_day * np.array(self.lasted_days)
            one.by_chance = round(float(-np.expm1(-expected).mean()), 4)
        if self.delays_s:
            one.delay_s = round(float(np.median(self.delays_s)), 3)
        return one


def judge(
    bundle: ModelBundle,
    jobs: Sequence[PreparedJob],
    sigma: float,
    seed: int,
    tell: Callable[[str, int], None] = lambda job, done: None,
) -> dict[str, Tally]:
    """Every detector of `bundle`, and the ``ensemble``, on the test jobs; `tell` hears of each that is done."""
    tallies: dict[str, Tally] = {}
    labelled = any(grid.fault.any() for job in jobs for grid in job.grids)
    rng = np.random.default_rng(seed)
    for done, job in enumerate(jobs):
        for grid in job.grids:
            vote = bundle.votes.get(grid.family)
            if vote is None or not grid.times_s.size:
                continue
            scores = scored(bundle, grid)
            _take(tallies, job.name, grid, scores, grid.fault)
            if not labelled:
                quiet = grid.part(_longest_quiet(grid))
                changed, labels, hit = _injected(quiet, vote, sigma, rng)
                if labels.any():
                    again = {name: one[hit : hit + 1] for name, one in scored(bundle, changed).items()}
                    _take_injected(tallies, quiet, again, labels)
        tell(job.name, done + 1)
    for tally in tallies.values():
        tally.done()
    return tallies


def _longest_quiet(grid: JobGrid) -> slice:
    """The longest stretch that is known to be free of faults."""
    spans = segments(grid.quiet)
    if not len(spans):
        return slice(0, 0)
    first, last = spans[int(np.argmax(spans[:, 1] - spans[:, 0]))].tolist()
    return slice(first, last + 1)


def scored(bundle: ModelBundle, grid: JobGrid) -> dict[str, Floats]:
    """Scores ``[r, n]`` of each detector and the ensemble, in one pass in time order."""
    scorer = MetricScorer(bundle)
    out: dict[str, list[Floats]] = {}
    for start, end in _blocks(grid):
        new = FamilySamples(
            family=grid.family, names=grid.names, rows=np.arange(len(grid.entities)), entities=grid.entities,
            roles=grid.roles, values=grid.values[:, :, start:end],
            times_s=np.tile(grid.times_s[start:end], (len(grid.entities), 1)),
        )  # fmt: skip
        for part in scorer.score((new,)):
            for name, values in (*part.scores.items(), ("ensemble", part.ensemble)):
                out.setdefault(name, []).append(values)
    return {name: np.concatenate(parts, axis=1) for name, parts in out.items()}


def alerts(scores: Floats, entities: int, every_s: float, config: ModelVoteConfig) -> Flags:
    """When each entity is anomalous ``[r, n]``: as the votes decide on line (`trainwarden.detectors.metrics.vote`)."""
    samples = np.full(scores.shape[1], every_s)
    return config.opened(scores, config.thresholds_of(entities, samples), samples)


def _begins(on: Flags) -> Flags:
    """Where an alert starts: one that has been on since before a fault has not found it."""
    return np.asarray(on & ~np.pad(on, ((0, 0), (1, 0)))[:, :-1], dtype=np.bool_)


def _blocks(grid: JobGrid) -> Iterator[tuple[int, int]]:
    width = max(64, BLOCK_CELLS // max(1, len(grid.entities) * len(grid.names)))
    for start in range(0, grid.times_s.size, width):
        yield start, min(start + width, grid.times_s.size)


def _take(tallies: dict[str, Tally], job: str, grid: JobGrid, scores: Mapping[str, Floats], labels: Flags) -> None:
    """Count one grid: events of the job as a whole, false alarms of each entity."""
    known = grid.quiet | labels
    for name, values in scores.items():
        if np.isnan(values).all():
            continue
        tally = tallies.setdefault(name, Tally())
        on = alerts(values, len(grid.entities), grid.every_s, ModelVoteConfig())
        begins = _begins(on)
        one, family = tally.quality, tally.families.setdefault(grid.family, Counted())
        before = one.found
        for first, last in segments(labels).tolist():
            one.events += 1
            family.events += 1
            tally.lasted_days.append(len(on) * (last + 1 - first) * grid.every_s / 86_400.0)
            hits = np.flatnonzero(begins[:, first : last + 1].any(axis=0))
            if hits.size:
                one.found += 1
                tally.delays_s.append(float(grid.times_s[first + hits[0]] - grid.times_s[first]))
        beside = min(same_episode(grid.every_s), labels.size)
        near = np.convolve(labels, np.ones(2 * beside + 1))[beside:-beside] > 0.5
        false = [
            first
            for row in on
            for first, last in episodes(row, grid.every_s).tolist()
            if grid.quiet[first] and not near[first : last + 1].any()
        ]
        one.false_episodes += len(false)
        # From the job's own first hour on, or two minutes around a full hour would be two spells.
        tally.false_hours |= (hours := {(job, int((grid.times_s[one] - grid.times_s[0]) // SPELL_S)) for one in false})
        family.found += one.found - before
        family.false_spells += len(hours)
        family.fault_s += float(labels.sum()) * grid.every_s
        family.judged_s += float((grid.quiet | labels).sum()) * grid.every_s
        # What was not judged (a warm-up) is no time without a false alarm.
        there = ~np.isnan(values)
        one.machine_days += int(there[:, grid.quiet].sum()) * grid.every_s / 86_400.0
        known = known & there.any(axis=0)
        tally.right += int((on.any(axis=0) == labels)[known].sum())
        tally.missed += int((labels & ~on.any(axis=0))[known].sum())
        one.judged += int(known.sum())
        _keep(tally, job, grid, values, labels)


def _keep(tally: Tally, job: str, grid: JobGrid, values: Floats, labels: Flags) -> None:
    there = ~np.isnan(values).all(axis=0)
    highest = np.full(values.shape[1], np.nan)
    highest[there] = np.nanmax(values[:, there], axis=0)
    for kept, mask in ((tally.quiet_scores, grid.quiet & ~labels), (tally.event_scores, labels)):
        part = highest[mask & there]
        kept.append(part[:: max(1, -(-part.size // KEPT_SCORES))])
    step = max(1, -(-highest.size // KEPT_SCORES))
    tally.lines.append((f"{job} {grid.family}".strip(), grid.times_s[::step], highest[::step], labels[::step]))


def _injected(grid: JobGrid, vote: MetricVote, sigma: float, rng: np.random.Generator) -> tuple[JobGrid, Flags, int]:
    """A copy with steps of `sigma` training spreads in a third of the metrics of one entity, labels, and the entity."""
    values = grid.values.copy()
    labels = np.zeros(grid.times_s.size, dtype=np.bool_)
    sizes = zip(vote.preparation.names, vote.preparation.scale.spread.tolist(), strict=True)
    there = [(grid.names.index(name), size) for name, size in sizes if name in grid.names]
    entity = int(rng.integers(len(grid.entities)))
    least = INJECTED_LEAST + vote.preparation.warm_up
    every = min(INJECTED_EVERY, max(3 * INJECTED_SAMPLES, (labels.size - least) // 3))
    for first in range(least, labels.size - INJECTED_SAMPLES, every):
        end = first + INJECTED_SAMPLES
        labels[first:end] = True
        count = max(1, round(INJECTED_METRICS * len(there)))
        for place in rng.choice(len(there), count, replace=False).tolist():
            column, size = there[place]
            values[entity, column, first:end] += sigma * size * rng.choice((-1.0, 1.0))
    return replace(grid, values=values), labels, entity


def _take_injected(tallies: dict[str, Tally], grid: JobGrid, scores: Mapping[str, Floats], labels: Flags) -> None:
    for name, values in scores.items():
        if np.isnan(values).all():
            continue
        tally = tallies.setdefault(name, Tally())
        tally.quality.injected = True
        begins = _begins(alerts(values, len(grid.entities), grid.every_s, EACH_ALONE))[0]
        tally.event_scores.append(values[0][labels & ~np.isnan(values[0])][:KEPT_SCORES])
        for first, last in segments(labels).tolist():
            tally.quality.events += 1
            hits = np.flatnonzero(begins[first : last + 1])
            if hits.size:
                tally.quality.found += 1
                tally.delays_s.append(float(grid.times_s[first + hits[0]] - grid.times_s[first]))


def segments(labels: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Runs of true values as ``[events, 2]``: first and last index.

    Examples
    --------
    >>> segments([0, 1, 1, 0, 1]).tolist()
    [[1, 2], [4, 4]]
    """
    flags = np.asarray(labels).astype(bool)
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    return np.stack([edges[::2], edges[1::2] - 1], axis=1).astype(np.int64)


def same_episode(every_s: float) -> int:
    """Samples, one every `every_s`, that lie between two episodes at least.

    Examples
    --------
    >>> [same_episode(every_s) for every_s in (1.0, 60.0, 300.0)]
    [300, 5, 5]
    """
    return max(SAME_EPISODE_SAMPLES, round(SAME_EPISODE_S / every_s))


def episodes(alerts: npt.ArrayLike, every_s: float = REFERENCE_S) -> npt.NDArray[np.int64]:
    """Alert samples, one every `every_s`, joined into episodes ``[n, 2]`` where less than `same_episode` lie between.

    Examples
    --------
    >>> episodes([1, 0, 0, 1, 0, 0, 0, 0, 0, 1]).tolist()
    [[0, 3], [9, 9]]
    >>> episodes([1, 0, 0, 1, 0, 0, 0, 0, 0, 1], every_s=1.0).tolist()
    [[0, 9]]
    """
    runs = segments(alerts)
    if len(runs) < 2:
        return runs
    apart = runs[1:, 0] - runs[:-1, 1] >= same_episode(every_s)
    return np.stack([runs[np.append(True, apart), 0], runs[np.append(apart, True), 1]], axis=1)
