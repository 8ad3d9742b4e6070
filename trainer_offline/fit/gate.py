"""Who may serve: each detector's quality on the test jobs against absolute floors and against today's champion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
from trainwarden.detectors.metrics.vote import ENSEMBLE
from trainwarden.detectors.metrics.votes import VOTES, MetricMeanVote
from trainwarden.trainer_offline.data.card import DIGEST
from trainwarden.trainer_offline.data.prepare_job import PreparedJob
from trainwarden.trainer_offline.fit.floors import GateConfig, GateResult, decide
from trainwarden.trainer_offline.fit.judge import Tally, judge
from trainwarden.trainer_offline.fit.weights import Counted, Weight, weighed
from trainwarden.trainer_offline.progress import Tell, silent

FEWEST_NEW: Final = 60  # samples of the models' own interval, their look-back; of less there is nothing to compare by


@dataclass(frozen=True, slots=True)
class Champion:
    """Who serves today, and what it was trained on, as its data card says.

    Attributes
    ----------
    bundle : ModelBundle
    jobs, digests : frozenset of str
        Names, and the first `data.card.DIGEST` digits of the hashes of the jobs' content.
    before : frozenset of str
        Hashes of single jobs of which it was trained on the first part, and that are cut at the same place now: it is
        judged on what lies after.
    until_s : mapping of str to float
        The last time of each job that it has learnt from; jobs that are not in it it may have learnt to the end. A job
        that has grown since is judged on what lies after.

    Examples
    --------
    >>> one, nothing = PreparedJob("a", [], digest="f" * 64), ModelBundle({}, {})
    >>> Champion(nothing, frozenset({"a"})).covers(one), Champion(nothing, frozenset({"b"})).covers(one)
    (True, False)
    """

    bundle: ModelBundle
    jobs: frozenset[str] = frozenset()
    digests: frozenset[str] = frozenset()
    before: frozenset[str] = frozenset()
    until_s: Mapping[str, float] = field(default_factory=dict)

    def covers(self, job: PreparedJob) -> bool:
        """Whether there is nothing in a test job that is new to it."""
        return self.unseen(job) is None

    def unseen(self, job: PreparedJob) -> PreparedJob | None:
        """What of a test job it has not learnt from: all, what lies after, or nothing worth a comparison."""
        digest = job.digest[:DIGEST]
        if digest in self.before or not (digest in self.digests or job.name in self.jobs):
            return job
        until_s = self.until_s.get(job.name)
        if digest in self.digests or until_s is None:
            return None
        if all(until_s < grid.times_s[0] for grid in job.grids if grid.times_s.size):
            return job
        grids = [grid.part(grid.times_s > until_s) for grid in job.grids]
        grids = [grid for grid in grids if grid.times_s.size >= FEWEST_NEW]
        return replace(job, grids=grids) if grids else None


def gate(
    bundle: ModelBundle,
    champion: Champion | None,
    jobs: Sequence[PreparedJob],
    config: GateConfig,
    *,
    seed: int,
    tell: Tell = silent,
) -> tuple[dict[str, GateResult], dict[str, Tally]]:
    """Result for each detector of `bundle` and for the ``ensemble``, and what was counted (for plots).

    The champion is compared on test jobs that it was not trained on alone: on rows that it has learnt from it would
    seem better than it is. `tell` hears of every job that has been judged.
    """
    unseen = [(job, job if champion is None else champion.unseen(job)) for job in jobs]
    fair = [part for _, part in unseen if part is not None]
    rounds = len(jobs) if champion is None else len(jobs) + len(fair)
    ours = judge(bundle, jobs, config.injected_sigma, seed, lambda job, done: tell(f"judged on {job}", done, rounds))
    theirs: dict[str, Tally] = {}
    if champion is not None and fair:
        theirs = judge(
            champion.bundle, fair, config.injected_sigma, seed,
            lambda job, done: tell(f"champion judged on {job}", len(jobs) + done, rounds),
        )  # fmt: skip
    # The floors are for all test jobs; the comparison is made on those that neither side has learnt from.
    whole = all(part is job for job, part in unseen)
    beside = ours if whole or not theirs else judge(bundle, fair, config.injected_sigma, seed)
    names = [*dict.fromkeys(name for vote in bundle.votes.values() for name in vote.models), "ensemble"]
    results = {}
    for name in names:
        own, other, same = (one.quality if (one := part.get(name)) else None for part in (ours, theirs, beside))
        results[name] = decide(own, other, config, same, alone=name == "ensemble")
        results[name].reasons.extend(_left_out(unseen, champion))
        results[name].weights = weights_of(name, bundle, ours.get(name))
        if champion is not None and name in champion.bundle.provisional and other is not None:
            results[name].stand_in = decide(other, None, config, alone=name == "ensemble")
    return results, ours


def weights_of(name: str, bundle: ModelBundle, tally: Tally | None) -> dict[str, Weight]:
    """What the votes of detector `name` weigh, by each family that it has models for."""
    whole = name == ENSEMBLE
    constant = (MetricMeanVote if whole else VOTES[name]).role.weight
    counted = {} if tally is None else tally.families
    return {
        family: weighed(counted.get(family, Counted()), constant, alone=whole)
        for family, vote in bundle.votes.items()
        if whole or name in vote.models
    }


def _left_out(unseen: Sequence[tuple[PreparedJob, PreparedJob | None]], champion: Champion | None) -> list[str]:
    """What the champion was not compared on, since it was trained on it."""
    if champion is None:
        return []
    grown = [job.name for job, part in unseen if part is not None and part is not job]
    said = [
        f"compared with the champion on {name} after {champion.until_s[name]:.0f} s, up to which it was trained on it"
        for name in grown
    ]
    left_out = ", ".join(job.name for job, part in unseen if part is None)
    if left_out and all(part is None for _, part in unseen):
        said.append(f"not compared with the champion: it was trained on all test jobs ({left_out})")
    elif left_out:
        said.append(f"compared with the champion without {left_out}, which it was trained on")
    return said
