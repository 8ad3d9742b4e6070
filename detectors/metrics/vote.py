"""What the votes of the trained models share: who is anomalous, since when, and what is said then.

Which models vote is a table beside this (`trainwarden.detectors.metrics.votes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.object_codec import WholeMemory
from trainwarden.detectors.job.samples import Entity, Floats, ScoredSamples
from trainwarden.detectors.job.window import Window
from trainwarden.detectors.metrics.bundle.members import ALL_MODELS
from trainwarden.detectors.metrics.family_memory import PARTS, FamilyMemory, strange_now
from trainwarden.detectors.metrics.hysteresis import ModelVoteConfig, rarity
from trainwarden.detectors.metrics.scores import NO_MODELS
from trainwarden.detectors.protocol import Role, abstain
from trainwarden.records import Suspect, Vote

__all__ = ["MAX_SUSPECTS", "ModelVote", "ModelVoteConfig"]
MAX_SUSPECTS: Final = 16
IDLE: Final = "its votes weigh nothing, so it is not computed; name it in detection.detectors or --detectors to see it"
ABSENT_WHY: Final = "no sample of late that the model could judge"
TOGETHER: Final = (
    "most of the family became strange at once: the job does what training has not shown, or all suffer for one"
)
ENSEMBLE: Final = "ensemble"  # what the mean of all models is called among versions


class ModelVote(WholeMemory):
    """The vote of one trained model over all entities.

    Attributes
    ----------
    member : str
        Which model's; its name among detectors too.
    whole : bool
        True if the vote is about the weighted mean of all models instead.
    silence : str
        What it means that the model has no opinion of any sample.
    """

    Config: ClassVar[type[ModelVoteConfig]] = ModelVoteConfig
    role: ClassVar[Role] = Role(reads="scores")
    member: ClassVar[str] = ""
    whole: ClassVar[bool] = False
    silence: ClassVar[str] = "warm-up: no sample that the model could judge yet"
    more: Final = False
    HELD = (Entity, FamilyMemory)

    def __init__(self, config: ModelVoteConfig) -> None:
        self._config = config
        self._families: dict[str, FamilyMemory] = {}
        self._why = NO_MODELS
        self._provisional = False
        self._weights: Mapping[str, float] = {}

    def update(self, window: Window) -> None:
        """Observe the new scores; what is not computed any more is forgotten."""
        if self.member in window.idle:
            self._families.clear()
        for scored in window.scored:
            scores = self.scores_of(scored)
            if scores is not None:
                self._apply(scored, scores, window.end_s)
        for family in self._families.values():
            family.let_go(window.end_s)
        self._why = self._silence(window)
        called = ENSEMBLE if self.whole else self.member
        self._provisional, self._weights = called in window.provisional, window.weights.get(called, {})

    def score(self, window: Window) -> Vote:
        """Anomalous while an entity is; the suspects' order is the whole vote's, so that models can agree on a few."""
        del window
        found = [
            (float(family.shared[row]), float(family.peak[row]), name, row)
            for name, family in self._families.items()
            for row in np.flatnonzero(family.opened & ~family.common).tolist()
        ]
        if found:
            return self._anomalous(sorted(found, key=lambda one: (-one[0], -one[1], one[2], one[3])))
        latest = [family.latest[~np.isnan(family.latest)] for family in self._families.values()]
        if not any(one.size for one in latest):
            return abstain(self._why)
        highest = float(np.concatenate(latest).max())
        threshold = max(self._config.threshold_of(one.size, one.every_s) for one in self._families.values())
        together = TOGETHER if any(family.common.any() for family in self._families.values()) else ""
        return Vote(
            opinion="normal", score=highest, threshold=max(threshold, highest) if together else threshold,
            reason=together, provisional=self._provisional,
        )  # fmt: skip

    def scores_of(self, scored: ScoredSamples) -> Floats | None:
        """The scores ``[r, k]`` that this vote is about."""
        return scored.ensemble if self.whole else scored.scores.get(self.member)

    def turns(self, scored: ScoredSamples) -> npt.NDArray[np.int64]:
        """Samples of a whole recording at which an entity opens or closes; at no others the vote can change."""
        scores = self.scores_of(scored)
        if scores is None or not scores.size:
            return np.zeros(0, dtype=np.int64)
        entities = len(scored.rows)
        every_s = FamilyMemory().keep_pace(scored.times_s, np.full(entities, np.nan))
        opened = self._config.opened(scores, self._config.thresholds_of(entities, every_s), every_s)
        return np.flatnonzero(np.diff(opened, axis=1, prepend=False).any(axis=0))

    # -- internals -------------------------------------------------------------------------------------------

    def _silence(self, window: Window) -> str:
        """Why there is no opinion, if there is none."""
        if window.unscored is None:
            return NO_MODELS
        if window.unscored:
            return "; ".join(sorted(set(window.unscored.values())))
        if self.member in window.idle:
            return IDLE
        if self.member in ALL_MODELS and window.model_versions and self.member not in window.model_versions:
            return f"no {self.member} model was trained"
        if not window.scored and not self._families:
            return self._why if self._why != NO_MODELS else "no metrics to score yet"
        if any(np.isfinite(one.heard_s).any() for one in self._families.values()):
            return ABSENT_WHY
        return self.silence

    def _apply(self, scored: ScoredSamples, scores: Floats, now_s: float) -> None:
        family = self._families.setdefault(scored.family, FamilyMemory())
        rows = scored.rows
        if not rows.size or not scores.shape[1]:
            return
        family.resize(int(rows.max()) + 1)
        for row, entity in zip(rows.tolist(), scored.entities, strict=True):
            family.entities[row] = entity
        # Gathered, moved on sample by sample, and put back: one pass over all entities for each sample.
        part = {name: getattr(family, name)[rows] for name in PARTS}
        family.size = max(family.size, int(rows.max()) + 1)
        every_s = family.keep_pace(scored.times_s, part["last_s"])
        thresholds = self._config.thresholds_of(family.size, every_s)
        if not ((scores >= thresholds).any() or part["opened"].any() or part["recent"].any()):
            self._rest(part, scores, scored)
        else:
            there, others = ~np.isnan(scored.times_s), family.concerned(rows)
            for sample in range(len(thresholds)):
                before = part["opened"]
                begins = self._config.step(
                    part, scores[:, sample], float(thresholds[sample]), float(every_s[sample]), there[:, sample]
                )
                self._step(part, begins, scores[:, sample], scored.ensemble[:, sample], scored.times_s[:, sample])
                self._part_common(part, before, others)
        for name, array in part.items():
            getattr(family, name)[rows] = array
        family.observe(rows, scored.times_s, ~np.isnan(scores), now_s)
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
        there, any_ = ~np.isnan(scored.times_s), measured.any(axis=1)
        since = there & (np.arange(scores.shape[1]) > np.where(any_, newest, -1)[:, None])
        part["missing"] = np.where(any_, 0, part["missing"]) + since.sum(axis=1)
        part["last_s"] = np.fmax(part["last_s"], np.fmax.reduce(scored.times_s, axis=1))
        for nats in rarity(scores).T:
            part["usual"] = self._config.usual(part["usual"], nats)
        part["learnt"] = part["usual"]

    @staticmethod
    def _step(
        part: dict[str, Any], begins: npt.NDArray[np.bool_], score: Floats, ensemble: Floats, times_s: Floats
    ) -> None:
        """What is told of one sample of every entity."""
        for name, value in (("onset_s", times_s), ("peak", score), ("shared", ensemble)):
            part[name] = np.where(begins, value, part[name])
        measured = ~np.isnan(score)
        part["peak"] = np.where(measured, np.fmax(part["peak"], score), part["peak"])
        part["shared"] = np.fmax(part["shared"], ensemble)
        part["latest"] = np.where(measured, score, part["latest"])
        part["last_s"] = np.fmax(part["last_s"], times_s)

    def _part_common(self, part: dict[str, Any], before: npt.NDArray[np.bool_], others: tuple[int, int]) -> None:
        """Mark who has opened with most of the family; `others` of which are concerned, of so many that are known."""
        opens = part["opened"] & ~before
        if opens.any():
            known = others[1] + np.count_nonzero(~np.isnan(part["latest"]))
            concerned = others[0] + np.count_nonzero(strange_now(part["opened"], part["recent"]))
            part["common"] |= opens & (concerned > 1) & (concerned > self._config.common_share * known)
        part["common"] &= part["opened"]

    def _blame(self, family: FamilyMemory, scored: ScoredSamples, scores: Floats, threshold: float) -> None:
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
        called = f"{self.member} (provisional)" if self._provisional else self.member
        because = f", most of all in {', '.join(names[:3])}" if names else ""
        return Vote(
            opinion="anomalous",
            score=min(peak, 1.0),
            threshold=min(self._config.threshold_of(worst.size, worst.every_s), peak),
            reason=f"metrics of {what}{more} are unlike normal training for {called}{because}",
            provisional=self._provisional,
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
        weight = self._weights.get(name)
        return entity.suspect(min(peak, 1.0), reason, weight)


def _called(entity: Entity) -> str:
    """How a person would name it."""
    parts = [f"rank {entity.rank}" if entity.rank is not None else "", entity.device or "", entity.node or ""]
    said = [part for part in parts if part]
    return " of ".join(said) if said else "the job"
