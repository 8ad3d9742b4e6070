"""The trained models at work on one job: every entity's own scale and history, and calibrated scores of what is new.

Which entities of a family are compared with each other when some of them have new samples, and whom nobody can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.packed import pack, unpack
from trainwarden.detectors.job.samples import FamilySamples, ScoredSamples, name_of
from trainwarden.detectors.metrics.baseline_freeze import ARRAYS as HELD
from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
from trainwarden.detectors.metrics.bundle.lined_up import interval_s
from trainwarden.detectors.metrics.bundle.metric_vote import MetricVote, Scores
from trainwarden.detectors.metrics.bundle.peers import CachedComparison, PeerContext
from trainwarden.detectors.metrics.downsampling import PARTS as PACING_PARTS
from trainwarden.detectors.metrics.downsampling import Downsampler, stretches, thinned
from trainwarden.detectors.metrics.entity_history import EntityHistory, Shown
from trainwarden.detectors.metrics.models.rows import Floats
from trainwarden.errors import DetectorError


def scored_beside(one: FamilySamples, family: EntityHistory, joined: Floats, joined_s: Floats, fresh: int) -> Scores:
    """Scores of the `fresh` newest of z-scores ``joined [r, d, m + k]``, taken at ``joined_s [r, m + k]``.

    Whoever has nothing new now stands beside them with what it has shown.
    """
    vote, rows = family.vote, one.rows
    if "dtw" not in vote.models:
        return vote.score_block(joined, fresh)
    stride = vote.config.dtw_stride
    age = int(family.age[rows].max())
    others, until_s = np.zeros(0, dtype=np.int64), np.zeros(0)
    if stride - age - 1 < fresh:
        others, until_s = family.others(rows, float(joined_s[:, -fresh].min()), stride)
    everybody = np.concatenate([rows, others])
    roles = [family.roles[row] for row in everybody.tolist()]
    groups = np.unique(roles, return_inverse=True)[1] if any(roles) else None
    apart = family.apart(interval_s((joined_s,)))[everybody]
    held = CachedComparison(family.raw[rows], age)
    beside = PeerContext(groups, held, joined_s, family.history[others], family.times_s[others], until_s, apart)
    scores = vote.score_block(joined, fresh, beside)
    if scores.held is not None:
        family.raw[rows], family.age[rows] = scores.held.raw, scores.held.age
    return scores


def why_apart(one: FamilySamples, family: EntityHistory) -> str:
    """Who of those that have new samples cannot be compared for its times; empty if nobody."""
    if "dtw" not in family.vote.models:
        return ""
    every_s = float(np.median(family.every_s[one.rows]))
    places = np.flatnonzero(family.apart(every_s)[one.rows])
    if not places.size:
        return ""
    who = one.entities[int(places[0])]
    usual_s = float(np.nanmedian(family.lead_s))
    off_s = float(family.lead_s[one.rows[places[0]]]) - usual_s
    more = f" (and {places.size - 1} more)" if places.size > 1 else ""
    way = "ahead of" if off_s > 0.0 else "behind"
    return (
        f"the times of {name_of(*who)}{more} are {abs(off_s):.3g} s {way} those of its peers as they come, which is "
        f"more than the {every_s:.3g} s between two samples: by dtw it is compared with nobody"
    )


Rows = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Part = tuple[slice, Floats, Scores]
Idle = Callable[[ModelBundle], frozenset[str]]

NO_MODELS: Final = "no model is loaded: run trainwarden train"
METRICS_SHARE: Final = 0.5  # with fewer of the metrics that its models were trained on a family abstains
BLAMED: Final = 3
AHEAD: Final = 256  # samples that are scored before it is known who is held after each
_ARRAYS: Final = ("known", "count", "mean", "squares", "history", "age", "raw", "last_s", "every_s")
_TIMES: Final = ("times_s", "lead_s")  # what was kept before they were has none


class MetricScorer:
    """Scores what is new of one job's metrics by a cluster's trained models.

    Each entity's scale starts at that of training and follows its samples, as the models were measured
    (`scale.Scale`): a sample moves it by one part in all that were seen before. While an entity is strange its scale
    does not follow (`holding.Holding`), so that a fault does not become what is normal. Where the models were trained
    on entities that are unlike, it starts from nothing, and an entity is judged once enough of its own samples are
    there; `abstained` says so until the first is.

    Parameters
    ----------
    bundle : ModelBundle or None
        The models in use; without any nothing is scored and every family is in `abstained`.
    idle : callable
        Which members of a bundle are not to be computed; the attribute has those of today's.

    Examples
    --------
    >>> from trainwarden.detectors.metrics.bundle.members import VoteConfig
    >>> from trainwarden.detectors.job.samples import Entity
    >>> random = np.random.default_rng(0)
    >>> normal = {"gpu": [(Entity("n", "GPU-0"), np.arange(400.0), random.normal(size=(400, 2)))]}
    >>> bundle = ModelBundle.fit(normal, {"gpu": ("power", "clock")}, VoteConfig(members={"kmeans": 1.0}), seed=0)
    >>> values = random.normal(size=(1, 2, 50)); values[0, 1, 30:] += 9.0
    >>> new = FamilySamples("gpu", ("power", "clock"), np.array([0]), (Entity("n", "GPU-0"),), ("",), values,
    ...                     np.arange(50.0)[None])
    >>> (scored,) = MetricScorer(bundle).score((new,))
    >>> bool(scored.ensemble[0, 45] > 0.5 > scored.ensemble[0, 20]), scored.blamed(0, 45)[0]
    (True, 'clock')
    """

    def __init__(self, bundle: ModelBundle | None, idle: Idle = lambda bundle: frozenset()) -> None:
        self._idle_of = idle
        self.holds = True  # scales stand still while an entity is strange
        self._serve(bundle)
        self._families: dict[str, EntityHistory] = {}
        self._pacings: dict[str, Downsampler] = {}
        self._columns: dict[tuple[str, tuple[str, ...]], Rows] = {}
        self.abstained: dict[str, str] = {}

    def has_held(self) -> bool:
        """Whether somebody's scale has stood still."""
        return any(family.holding.ever for family in self._families.values())

    def swap(self, bundle: ModelBundle | None) -> None:
        """Score by other models from now on; histories are built anew from older samples that come with new ones.

        What entities have shown of their own scales says nothing of models and is kept for those that need it too.
        """
        before = self._families
        self._serve(bundle)
        self._families, self._columns, self.abstained = {}, {}, {}
        for pacing in self._pacings.values():
            pacing.forget()
        for name, family in before.items():
            vote = self._votes.get(name)
            if vote is not None and vote.preparation.warm_up and family.vote.preparation.warm_up:
                self._families[name] = family.moved_to(vote)

    def score(self, samples: Sequence[FamilySamples], now_s: float | None = None) -> tuple[ScoredSamples, ...]:
        """Scores of the new samples, one entry for each of `samples` that has models; `abstained` has the others.

        They came at `now_s`, where somebody knows: who has times unlike the others' then is not compared with them.
        """
        new = []
        for one in samples:
            if (family := self._family(one)) is not None and one.fresh and len(one.rows):
                new.append((one, family))
                if now_s is not None:
                    family.observe(one.rows, one.times_s[:, -1], now_s)
        return tuple(self._paced(one, family) for one, family in new)

    # -- internals -------------------------------------------------------------------------------------------

    def _serve(self, bundle: ModelBundle | None) -> None:
        self.bundle = bundle
        self.idle = frozenset() if bundle is None else self._idle_of(bundle)
        self._votes = {} if bundle is None else {name: vote.without(self.idle) for name, vote in bundle.votes.items()}

    def _family(self, one: FamilySamples) -> EntityHistory | None:
        """The memory of a family; None, and a reason in `abstained`, where it cannot be scored."""
        name = one.family or "rows without device"
        vote = self._votes.get(one.family)
        if vote is None:
            self.abstained[one.family] = NO_MODELS if self.bundle is None else f"no model was trained for {name}"
            return None
        kept, there = vote.preparation.names, set(one.names)
        missing = [metric for metric in kept if metric not in there]
        if len(kept) - len(missing) < METRICS_SHARE * len(kept):
            few = f"{len(missing)} of the {len(kept)} metrics trained on are missing for {name}"
            self.abstained[one.family] = f"{few}: {missing[0]}, ..."
            return None
        self.abstained.pop(one.family, None)
        if one.family not in self._families:
            self._families[one.family] = EntityHistory(vote)
        return self._families[one.family]

    def _as_trained(self, one: FamilySamples, vote: MetricVote, part: slice) -> Floats:
        """Values in the order of training ``[r, d_all, ...]``, NaN for metrics that are not there."""
        key = (one.family, one.names)
        columns = self._columns.get(key)
        if columns is None:
            place = {name: column for column, name in enumerate(one.names)}
            columns = np.array([place.get(name, -1) for name in vote.preparation.all_names], dtype=np.int64)
            self._columns[key] = columns
        values = one.values[:, np.maximum(columns, 0), part]
        values[:, columns < 0] = np.nan
        return values

    def _paced(self, one: FamilySamples, family: EntityHistory) -> ScoredSamples:
        """Scores at the interval that the models were trained at; what is left out has neither score nor time."""
        vote = family.vote
        values = self._as_trained(one, vote, slice(one.values.shape[2] - one.fresh, None))
        taken, thins = self._taken(one, vote, values)
        if thins:
            # Nobody knows which of the older samples would have been taken.
            one = replace(one, values=one.values[:, :, -one.fresh :], past_s=None)
        scores = {name: np.full(taken.shape, np.nan) for name in vote.models}
        ensemble, shown = np.full(taken.shape, np.nan), Shown(vote.window_samples)
        for rows, samples in stretches(taken):
            part = thinned(one, rows, samples)
            new = values if part is one else values[np.ix_(rows, np.arange(values.shape[1]), samples)]
            for columns, joined, found in self._scored(part, family, new):
                place = np.ix_(rows, samples[columns])
                ensemble[place] = found.ensemble
                for name, member in found.members.items():
                    scores[name][place] = member
                shown.add(rows, samples[columns], joined)

        def blamed(row: int, sample: int) -> tuple[str, ...]:
            window = shown.before(row, sample)
            return () if window is None else tuple(vote.blamed(window, BLAMED)[0])

        return ScoredSamples(
            family=one.family,
            rows=one.rows,
            entities=one.entities,
            times_s=np.where(taken, one.times_s, np.nan),
            scores=scores,
            ensemble=ensemble,
            blamed=blamed,
            versions={name: version for name, version in self._versions().items() if name in scores},
        )

    def _taken(self, one: FamilySamples, vote: MetricVote, values: Floats) -> tuple[Flags, bool]:
        """Which of new ``values [r, d_all, k]`` the models see, and whether others lie between; means are put in."""
        if vote.pace is None:
            return np.ones(one.times_s.shape, dtype=np.bool_), False
        names, pacing = vote.preparation.all_names, self._pacings.setdefault(one.family, Downsampler())
        pacing.learn(one.rows, one.past_s, len(names))
        taken = pacing.select(one.rows, values, one.times_s, names, vote.pace)
        if pacing.slow_s is not None:
            self.abstained[one.family] = (
                f"{one.family or 'rows without device'}: sampled every {pacing.slow_s:.3g} s, which models that were "
                f"trained on samples every {vote.pace.summary} cannot judge"
            )
        return taken, pacing.thins

    def _scored(self, one: FamilySamples, family: EntityHistory, values: Floats) -> Iterator[Part]:
        """Scores of the new samples, whose `values` are in the order of training."""
        rows, vote, fresh = one.rows, family.vote, one.fresh
        family.resize(int(rows.max()) + 1)
        for row, role in zip(rows.tolist(), one.roles, strict=False):
            family.roles[row] = role
        before = one.values.shape[2] - fresh
        new = ~family.known[rows]
        if before and new.any():
            # The models have changed, or were not there before: what is remembered elsewhere makes up for it.
            past_s = None if one.past_s is None else one.past_s[new]
            family.remember(rows[new], self._as_trained(one, vote, slice(0, before))[new], past_s)
        family.known[rows] = True
        yield from self._parts(one, family, values)
        self._explain(one, family)

    def _explain(self, one: FamilySamples, family: EntityHistory) -> None:
        """Say who is not judged yet, or not with the others."""
        least = family.vote.preparation.warm_up
        if least and (most := family.waited()) < least:
            what = one.family or "entities"
            self.abstained[one.family] = (
                f"warm-up: {what} differ in level, so each needs {least} samples of its own first, there are {most}"
            )
        if apart := why_apart(one, family):
            self.abstained[one.family] = apart

    def _parts(self, one: FamilySamples, family: EntityHistory, values: Floats) -> Iterator[Part]:
        """New samples, their z-scores and scores, cut where somebody's scale begins or ends to follow its samples.

        Some are scored ahead, and again from there on: a sample decides about those after it.
        """
        rows, first = one.rows, 0
        while first < one.fresh:
            end, kept, learns = min(first + AHEAD, one.fresh), family.kept(rows), family.holding.learns[rows]
            joined, scores = self._part(one, family, values[:, :, first:end], first, learns)
            times_s = one.times_s[:, first:end]
            turn = first + family.holding.observe(rows, scores.ensemble, times_s) if self.holds else end
            if turn < end:
                family.put_back(rows, kept)
                joined, scores = self._part(one, family, values[:, :, first:turn], first, learns)
            last_s = one.times_s[:, turn - 2] if turn > 1 else family.last_s[rows]
            family.last_s[rows] = one.times_s[:, turn - 1]
            family.every_s[rows] = one.times_s[:, turn - 1] - last_s
            yield slice(first, turn), joined, scores
            first = turn

    def _part(
        self, one: FamilySamples, family: EntityHistory, values: Floats, first: int, learns: Flags
    ) -> tuple[Floats, Scores]:
        fresh = values.shape[2]
        joined, joined_s = family.follow(one.rows, values, one.times_s[:, first : first + fresh], learns)
        return joined, scored_beside(one, family, joined, joined_s, fresh)

    # -- state -----------------------------------------------------------------------------------------------

    def state(self) -> bytes:
        """Everything that `restore` needs; of no use with other models."""
        arrays: dict[str, npt.NDArray[Any]] = {}
        roles: dict[str, list[str]] = {}
        for number, (name, family) in enumerate(self._families.items()):
            roles[name] = family.roles
            arrays |= {f"{number}/{part}": getattr(family, part) for part in (*_ARRAYS, *_TIMES)}
            arrays |= {f"{number}/held/{part}": getattr(family.holding, part) for part in HELD}
            pacing = self._pacings.get(name, Downsampler())
            arrays |= {f"{number}/pacing/{part}": getattr(pacing, part) for part in PACING_PARTS}
        plain: Mapping[str, Any] = {"roles": roles, "abstained": self.abstained, "versions": self._versions()}
        return pack("metric_scorer", plain, arrays)

    def restore(self, state: bytes) -> None:
        """Go on from `state`; with other models than it was made by, histories are built anew instead.

        Raises
        ------
        DetectorError
            If `state` is not one of a scorer's.
        """
        plain, arrays = unpack("metric_scorer", state)
        families: dict[str, EntityHistory] = {}
        pacings: dict[str, Downsampler] = {}
        try:
            if plain["versions"] != self._versions() or self.bundle is None:
                self.swap(self.bundle)
                return
            for number, (name, roles) in enumerate(plain["roles"].items()):
                family = families[name] = EntityHistory(self._votes[name], roles=list(roles))
                for part in (*_ARRAYS, *_TIMES):
                    empty = getattr(family, part)
                    unknown = {part: np.full((len(roles), *empty.shape[1:]), np.nan) for part in _TIMES}
                    stored = arrays[key] if (key := f"{number}/{part}") in arrays else unknown[part]
                    if stored.shape != (len(roles), *empty.shape[1:]):
                        raise DetectorError(f"state of the scorer is damaged: {part} has shape {stored.shape}")
                    setattr(family, part, stored.astype(empty.dtype))
                for part in HELD:
                    stored = arrays[f"{number}/held/{part}"]
                    if stored.shape != (len(roles),):
                        raise DetectorError(f"state of the scorer is damaged: {part} has shape {stored.shape}")
                    setattr(family.holding, part, stored.astype(getattr(family.holding, part).dtype))
                pacings[name] = Downsampler.of({part: arrays[f"{number}/pacing/{part}"] for part in PACING_PARTS})
            self._families, self._pacings, self.abstained = families, pacings, dict(plain["abstained"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DetectorError(f"state of the scorer is damaged: {error}") from error

    def _versions(self) -> dict[str, str]:
        versions = {} if self.bundle is None else self.bundle.versions
        return {name: version for name, version in versions.items() if name not in self.idle}
