"""What the votes of the trained models share: when enough of an entity's samples are strange, and what is said then."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final

import msgspec
import numpy as np
import numpy.typing as npt

from detectors.metric_scores import NO_MODELS
from detectors.models.calibration import squeeze, unsqueeze
from detectors.protocol import abstain, pack, unpack
from detectors.samples import Entity, Floats, ScoredSamples
from detectors.window import Window
from trainwarden.errors import DetectorError
from trainwarden.records import Suspect, Vote
from trainwarden.settings import Config

MAX_SUSPECTS: Final = 16
_PARTS: Final = ("recent", "below", "opened", "onset_s", "peak", "latest", "shared", "last_s")


REFERENCE_S: Final = 60.0
"""The servers that thresholds were chosen on are sampled once a minute (SMD) or every five (ASD)."""
_PACE_SAMPLES: Final = 1_000  # the sampling interval is the mean, in logarithms, over about so many samples


class ModelVoteConfig(Config, frozen=True, kw_only=True):
    """When a model's scores become a vote.

    The defaults, and the weights in `ensemble`, were chosen on SMD machines 1-2, 1-4, 1-6 and the odd ASD servers.

    Attributes
    ----------
    threshold : float
        Calibrated score from which a sample is strange, at one sample a minute or fewer; 0.41 is one normal sample in
        55, 0.5 is one in 10,000. Where samples come more often, one has to be as many times rarer, so that false votes
        a day do not grow with the sampling rate.
    fleet : int
        Up to so many entities of a family the threshold is as it stands. Of more, a sample has to be as many times
        rarer as there are more entities, so that false votes do not grow with the cluster.
    open_samples : int
        An entity is anomalous when so many of its last ``2 * open_samples - 1`` samples are strange.
    close_samples : int
        It is normal again after so many samples in a row that are not; gaps count neither way.
    """

    threshold: Annotated[float, msgspec.Meta(gt=0.0, lt=1.0)] = 0.41
    fleet: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 16
    open_samples: Annotated[int, msgspec.Meta(ge=1, le=16)] = 3
    close_samples: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 15

    def __post_init__(self) -> None:
        if self.close_samples < 2 * self.open_samples - 1:
            raise ValueError(
                f"close_samples must be at least {2 * self.open_samples - 1}, the samples that open_samples counts in"
            )

    def threshold_of(self, entities: int, every_s: float = REFERENCE_S) -> float:
        """The threshold for a family of so many entities that are sampled every `every_s` seconds.

        Examples
        --------
        >>> [round(ModelVoteConfig().threshold_of(entities), 3) for entities in (1, 16, 1024, 16384)]
        [0.41, 0.41, 0.488, 0.516]
        >>> [round(ModelVoteConfig().threshold_of(1, every_s), 3) for every_s in (300.0, 60.0, 10.0, 1.0)]
        [0.41, 0.41, 0.452, 0.488]
        """
        return float(self.thresholds_of(entities, np.array([every_s]))[0])

    def opened(self, scores: Floats, thresholds: Floats) -> npt.NDArray[np.bool_]:
        """When each entity is anomalous, for whole series: what `ModelVote` comes to sample by sample.

        Parameters
        ----------
        scores : float array [r, n]
            NaN counts neither way.
        thresholds : float array [n]

        Examples
        --------
        >>> scores = np.array([[0.1, 0.9, 0.9, 0.1, 0.1, 0.1]])
        >>> ModelVoteConfig(open_samples=2, close_samples=3).opened(scores, np.full(6, 0.5)).astype(int).tolist()
        [[0, 0, 1, 1, 1, 0]]
        """
        found = np.zeros(scores.shape, dtype=np.bool_)
        reach = 2 * self.open_samples - 1
        for row, out in zip(scores, found, strict=True):
            there = np.flatnonzero(~np.isnan(row))
            strange = row[there] >= thresholds[there]
            if int(strange.sum()) < self.open_samples:
                continue
            number = np.arange(there.size)
            dense = np.convolve(strange, np.ones(reach))[: there.size] > self.open_samples - 0.5
            last_strange = np.maximum.accumulate(np.where(strange, number, -self.close_samples))
            last_dense = np.maximum.accumulate(np.where(dense, number, -1))
            last_calm = np.maximum.accumulate(np.where(number - last_strange >= self.close_samples, number, -1))
            # Gaps keep what was before them.
            before = np.searchsorted(there, np.arange(row.size), side="right") - 1
            out[:] = np.where(before >= 0, (last_dense > last_calm)[before], False)
        return found

    def thresholds_of(self, entities: int, every_s: Floats) -> Floats:
        """The same for many sampling intervals."""
        rarer = max(1.0, entities / self.fleet) * np.maximum(1.0, REFERENCE_S / every_s)
        rarest = squeeze(unsqueeze(self.threshold) + np.log(rarer))
        return np.where(rarer > 1.0, rarest, self.threshold)


@dataclass(slots=True)
class _Family:
    """What is remembered of a family's entities, by the board's rows."""

    entities: list[Entity] = field(default_factory=list)
    size: int = 0  # entities seen
    recent: npt.NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))  # newest in bit 0
    below: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    opened: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    onset_s: Floats = field(default_factory=lambda: np.zeros(0))
    peak: Floats = field(default_factory=lambda: np.zeros(0))  # highest score since the onset
    latest: Floats = field(default_factory=lambda: np.zeros(0))
    shared: Floats = field(default_factory=lambda: np.zeros(0))  # the whole vote's highest score since the onset
    last_s: Floats = field(default_factory=lambda: np.zeros(0))
    blamed: dict[int, tuple[str, ...]] = field(default_factory=dict)
    pace: float = float(np.log(REFERENCE_S))  # logarithm of the sampling interval
    paced: int = 0  # samples that it was learnt from

    @property
    def every_s(self) -> float:
        """Seconds between two samples of an entity."""
        return float(np.exp(self.pace))

    def keep_pace(self, times_s: Floats, last_s: Floats) -> Floats:
        """Learn the sampling interval from times ``[r, k]`` after `last_s` ``[r]``; what it is at each sample."""
        elapsed_s = np.diff(times_s, axis=1, prepend=last_s[:, None])
        elapsed_s[~(elapsed_s > 0.0)] = np.nan
        known = ~np.isnan(elapsed_s).all(axis=0)
        middle = np.full(times_s.shape[1], np.nan)
        middle[known] = elapsed_s[0, known] if len(elapsed_s) == 1 else np.nanmedian(elapsed_s[:, known], axis=0)
        paces = np.empty(middle.size)
        for sample, pace in enumerate(np.log(middle).tolist()):
            if not math.isnan(pace):
                self.paced = min(self.paced + 1, _PACE_SAMPLES)
                self.pace += (pace - self.pace) / self.paced
            paces[sample] = self.pace
        return np.exp(paces)

    def widen(self, size: int) -> None:
        more = max(size, len(self.entities) + len(self.entities) // 2) - self.opened.size
        if size <= self.opened.size:
            return
        self.entities.extend([Entity()] * (self.opened.size + more - len(self.entities)))
        for part in _PARTS:
            array = getattr(self, part)
            fill = np.nan if array.dtype.kind == "f" else 0
            setattr(self, part, np.append(array, np.full(more, fill, dtype=array.dtype)))


class ModelVote:
    """The vote of one trained model over all entities; plug-ins name their `member` and what its silence means."""

    Config = ModelVoteConfig
    member: ClassVar[str] = ""
    silence: ClassVar[str] = "warm-up: no sample that the model could judge yet"
    more: Final = False

    def __init__(self, config: ModelVoteConfig) -> None:
        self._config = config
        self._families: dict[str, _Family] = {}
        self._why = NO_MODELS

    def update(self, window: Window) -> None:
        """Take in the new scores."""
        for scored in window.scored:
            if self.member in scored.scores:
                self._take(scored, scored.scores[self.member])
        self._why = self._silence(window)

    def score(self, window: Window) -> Vote:
        """Anomalous while an entity is; the suspects' order is the whole vote's, so that models can agree on a few."""
        del window
        found = [
            (float(family.shared[row]), float(family.peak[row]), name, row)
            for name, family in self._families.items()
            for row in np.flatnonzero(family.opened).tolist()
        ]
        if found:
            return self._anomalous(sorted(found, key=lambda one: (-one[0], -one[1], one[2], one[3])))
        latest = [family.latest[~np.isnan(family.latest)] for family in self._families.values()]
        if not any(one.size for one in latest):
            return abstain(self._why)
        highest = float(np.concatenate(latest).max())
        threshold = max(self._config.threshold_of(one.size, one.every_s) for one in self._families.values())
        return Vote(opinion="normal", score=highest, threshold=threshold)

    def turns(self, scored: ScoredSamples) -> npt.NDArray[np.int64]:
        """Samples of a whole recording at which an entity opens or closes; at no others the vote can change."""
        scores = scored.scores.get(self.member)
        if scores is None or not scores.size:
            return np.zeros(0, dtype=np.int64)
        entities = len(scored.rows)
        every_s = _Family().keep_pace(scored.times_s, np.full(entities, np.nan))
        opened = self._config.opened(scores, self._config.thresholds_of(entities, every_s))
        return np.flatnonzero(np.diff(opened, axis=1, prepend=False).any(axis=0))

    # -- internals -------------------------------------------------------------------------------------------

    def _silence(self, window: Window) -> str:
        """Why there is no opinion, if there is none."""
        if window.unscored is None:
            return NO_MODELS
        if window.unscored:
            return "; ".join(sorted(set(window.unscored.values())))
        if window.model_versions and self.member not in window.model_versions:
            return f"no {self.member} model was trained"
        if not window.scored and not self._families:
            return self._why if self._why != NO_MODELS else "no metrics to score yet"
        return self.silence

    def _take(self, scored: ScoredSamples, scores: Floats) -> None:
        family = self._families.setdefault(scored.family, _Family())
        rows = scored.rows
        if not rows.size or not scores.shape[1]:
            return
        family.widen(int(rows.max()) + 1)
        for row, entity in zip(rows.tolist(), scored.entities, strict=True):
            family.entities[row] = entity
        # Gathered, moved on sample by sample, and put back: one pass over all entities for each sample.
        part = {name: getattr(family, name)[rows] for name in _PARTS}
        family.size = max(family.size, int(rows.max()) + 1)
        thresholds = self._config.thresholds_of(family.size, family.keep_pace(scored.times_s, part["last_s"]))
        if not ((scores >= thresholds).any() or part["opened"].any() or part["recent"].any()):
            self._rest(part, scores, scored)
        else:
            for sample, threshold in enumerate(thresholds.tolist()):
                self._step(part, scores[:, sample], scored.ensemble[:, sample], scored.times_s[:, sample], threshold)
        for name, array in part.items():
            getattr(family, name)[rows] = array
        self._blame(family, scored, scores, float(thresholds[-1]))

    def _rest(self, part: dict[str, Any], scores: Floats, scored: ScoredSamples) -> None:
        """All samples at once, where none is strange and nothing is under way: what `_step` would come to."""
        measured = ~np.isnan(scores)
        part["below"] = part["below"] + measured.sum(axis=1)
        part["peak"] = np.fmax(part["peak"], np.fmax.reduce(scores, axis=1))
        part["shared"] = np.fmax(part["shared"], np.fmax.reduce(scored.ensemble, axis=1))
        newest = scores.shape[1] - 1 - np.argmax(measured[:, ::-1], axis=1)
        found = scores[np.arange(len(scores)), newest]
        part["latest"] = np.where(np.isnan(found), part["latest"], found)
        part["last_s"] = scored.times_s[:, -1]

    def _step(self, part: dict[str, Any], score: Floats, ensemble: Floats, times_s: Floats, threshold: float) -> None:
        """One sample of every entity."""
        config = self._config
        measured = ~np.isnan(score)
        strange = score >= threshold  # False where NaN
        mask = np.uint64((1 << (2 * config.open_samples - 1)) - 1)
        shifted = ((part["recent"] << np.uint64(1)) | strange.astype(np.uint64)) & mask
        before = part["recent"]
        recent = np.where(measured, shifted, before)
        # A run of strange samples begins where none of the last few was.
        begins = strange & (before == 0) & ~part["opened"]
        for name, value in (("onset_s", times_s), ("peak", score), ("shared", ensemble)):
            part[name] = np.where(begins, value, part[name])
        part["peak"] = np.where(measured, np.fmax(part["peak"], score), part["peak"])
        part["shared"] = np.fmax(part["shared"], ensemble)
        part["below"] = np.where(strange, 0, part["below"] + measured)
        opened = part["opened"] | (np.bitwise_count(recent) >= config.open_samples)
        closes = opened & (part["below"] >= config.close_samples)
        part["opened"] = opened & ~closes
        part["recent"] = np.where(closes, np.uint64(0), recent)
        part["latest"] = np.where(measured, score, part["latest"])
        part["last_s"] = times_s

    def _blame(self, family: _Family, scored: ScoredSamples, scores: Floats, threshold: float) -> None:
        """Remember what is to blame for the worst entity; asked once for each time that it is the worst."""
        family.blamed = {row: names for row, names in family.blamed.items() if family.opened[row]}
        opened = np.flatnonzero(family.opened)
        if not opened.size:
            return
        worst = int(opened[np.argmax(family.shared[opened])])
        places = np.flatnonzero(scored.rows == worst)
        if worst in family.blamed or not places.size:
            return
        place = int(places[0])
        ensemble = np.nan_to_num(scored.ensemble[place], nan=-1.0)
        strange = np.where(np.nan_to_num(scores[place]) >= threshold, ensemble, -2.0)
        family.blamed[worst] = scored.blamed(place, int(np.argmax(strange)))

    def _anomalous(self, found: list[tuple[float, float, str, int]]) -> Vote:
        _, peak, name, row = found[0]
        worst = self._families[name]
        names = worst.blamed.get(row, ())
        what = _called(worst.entities[row])
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        because = f", most of all in {', '.join(names[:3])}" if names else ""
        return Vote(
            opinion="anomalous",
            score=min(peak, 1.0),
            threshold=min(self._config.threshold_of(worst.size, worst.every_s), peak),
            reason=f"metrics of {what}{more} are unlike normal training for {self.member}{because}",
            kind="metric_anomaly",
            severity="sev3",
            suspects=tuple(self._suspect(*one) for one in found[:MAX_SUSPECTS]),
            metrics=names,
            onset_s=min(float(self._families[one[2]].onset_s[one[3]]) for one in found),
        )

    def _suspect(self, shared: float, peak: float, name: str, row: int) -> Suspect:
        del shared
        family = self._families[name]
        entity = family.entities[row]
        names = family.blamed.get(row, ())
        reason = f"{self.member} score {peak:.2f}" + (f", most of all in {', '.join(names[:3])}" if names else "")
        return Suspect(score=min(peak, 1.0), reason=reason, rank=entity.rank, node=entity.node, device=entity.device)

    # -- state -----------------------------------------------------------------------------------------------

    def state(self) -> bytes:
        """Everything that `restore` needs."""
        arrays: dict[str, npt.NDArray[Any]] = {}
        plain: dict[str, Any] = {"why": self._why, "families": []}
        for number, (name, family) in enumerate(self._families.items()):
            blamed = [[row, list(names)] for row, names in family.blamed.items()]
            entities = [list(one) for one in family.entities]
            plain["families"].append([name, family.size, family.pace, family.paced, entities, blamed])
            arrays |= {f"{number}/{part}": getattr(family, part) for part in _PARTS}
        return pack(self.member, plain, arrays)

    def restore(self, state: bytes) -> None:
        """Go on from `state`; raises DetectorError if it is another's or damaged."""
        plain, arrays = unpack(self.member, state)
        families: dict[str, _Family] = {}
        try:
            for number, (name, size, pace, paced, entities, blamed) in enumerate(plain["families"]):
                family = families[name] = _Family([Entity(*one) for one in entities], int(size))
                family.pace, family.paced = float(pace), int(paced)
                for part in _PARTS:
                    stored = arrays[f"{number}/{part}"].astype(getattr(family, part).dtype)
                    if stored.shape != (len(entities),):
                        raise DetectorError(f"state of {self.member} is damaged: {part} has shape {stored.shape}")
                    setattr(family, part, stored)
                family.blamed = {int(row): tuple(names) for row, names in blamed}
            self._families, self._why = families, str(plain["why"])
        except (KeyError, TypeError, ValueError) as error:
            raise DetectorError(f"state of {self.member} is damaged: {error}") from error


def _called(entity: Entity) -> str:
    """How a person would name it."""
    parts = [f"rank {entity.rank}" if entity.rank is not None else "", entity.device or "", entity.node or ""]
    said = [part for part in parts if part]
    return " of ".join(said) if said else "the job"
