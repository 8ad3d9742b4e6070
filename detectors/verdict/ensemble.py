"""From votes to one verdict: who may open an incident alone, who needs company, and which phases explain what.

What a vote may do is its detector's `Role`; no detector is known here by name. Rule ``transom`` (Wu et al., TRANSOM,
2023, section IV-B): anomalous if the log window says so, or at least two of its three models do. Rule ``weighted``, the
default, counts every detector by a weight of its own. By both an abstention is not a "no", hard events and verified
changes, which that paper does not have, open an incident alone, and models must agree about one entity.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np

from trainwarden.detectors.job.common_mode import quiet_median
from trainwarden.detectors.job.window import Window, job_duration_s
from trainwarden.detectors.protocol import PROVISIONAL_SHARE, PROVISIONAL_TOGETHER, WENT_ON, Role
from trainwarden.detectors.verdict.rule import EnsembleConfig
from trainwarden.records import IncidentKind, Severity, Suspect, VerdictRecord, Vote

# Kinds that say what fails, the most specific first; slowness without a culprit is the least specific.
KIND_ORDER: Final[tuple[IncidentKind, ...]] = (
    "gpu_lost", "gpu_memory_error", "node_lost", "nvlink_error", "pcie_error", "nic_down", "nic_error", "storage",
    "cuda_out_of_memory", "out_of_memory", "data_stall", "checkpoint", "collective_mismatch", "silent_corruption",
    "user_error", "exception", "crash", "restart_loop", "hang", "gpu_throttle", "slow_link", "congestion",
    "host_contention", "memory_leak", "slow_compute", "log_storm", "slow_job", "data_quality", "pipeline",
    "metric_anomaly",
)  # fmt: skip
SLOW_KINDS: Final = frozenset({"slow_compute", "slow_link", "slow_job", "metric_anomaly", "congestion", "gpu_throttle"})
FAILURE_KINDS: Final = frozenset(
    {
        "crash", "exception", "hang", "cuda_out_of_memory", "out_of_memory", "user_error", "data_stall", "checkpoint",
        "collective_mismatch", "restart_loop",
    }
)  # fmt: skip
LINK_KINDS: Final = frozenset({"slow_link", "congestion"})
HANG_KINDS: Final = frozenset({"hang", "collective_mismatch"})
CLOCKS_S: Final = 1.0  # of two nodes may differ by so much; a standstill is a hang after 2 s at least (`HangConfig`)
SLOW_PHASES: Final = frozenset({"start", "restart", "exit", "ended"})
MAX_SUSPECTS: Final = 16


@dataclass(frozen=True, slots=True)
class Candidate:
    """What the believed votes of one family of kinds say together; the joiner makes incidents of these."""

    family: str
    kind: IncidentKind
    severity: Severity
    reason: str
    suspects: tuple[Suspect, ...]
    onset_s: float | None
    onset_step: int | None
    at_step: int | None
    score: float
    hard: bool
    metrics: tuple[str, ...]
    evidence: Mapping[str, Any] = field(default_factory=dict)


def family_of(kind: IncidentKind) -> str:
    """Kinds of one family are views of one problem: a crash is also an exception and a hang.

    Examples
    --------
    >>> family_of("hang"), family_of("slow_job"), family_of("nic_down")
    ('failure', 'slow', 'nic_down')
    """
    if kind in FAILURE_KINDS:
        return "failure"
    return "slow" if kind in SLOW_KINDS else kind


def stands_anew(kind: IncidentKind | None, onset_s: float | None, failure: Mapping[str, Any]) -> bool:
    """Whether a hang began once the others had gone on without the rank whose end has the evidence `failure`."""
    went_on_s = failure.get(WENT_ON)
    if onset_s is None or not isinstance(went_on_s, float):
        return False
    return kind in HANG_KINDS and onset_s > went_on_s - CLOCKS_S


def versions_used(votes: Mapping[str, Vote], window: Window) -> dict[str, str]:
    """Versions of the models whose votes these are."""
    return {
        name: version
        for name, version in window.model_versions.items()
        if name in votes and votes[name].opinion != "abstain"
    }


class Ensemble:
    """The rule of one job: its settings, and what each of its detectors may do.

    Parameters
    ----------
    config : EnsembleConfig
    roles : mapping of str to Role
        By detector; there is one for every vote.

    Examples
    --------
    >>> from trainwarden.detectors.job.state import JobState
    >>> window = JobState("j").window(now_s=1.0)
    >>> crash = Vote(opinion="anomalous", score=1.0, kind="crash", hard=True)
    >>> facts = Ensemble(EnsembleConfig(), {"facts": Role(reads="events", opens=("hard",))})
    >>> facts.judge(window, {"facts": crash}).kind
    'crash'
    """

    def __init__(self, config: EnsembleConfig, roles: Mapping[str, Role]) -> None:
        self.config = config
        self._roles = roles

    def weight(self, name: str) -> float:
        """What the votes of detector `name` weigh among those that need company, where nobody has measured it."""
        role = self._roles[name]
        by_rule = float(role.transom and not role.opens) if self.config.rule == "transom" else role.weight
        return self.config.weights.get(name, by_rule)

    def weight_of(self, name: str, suspect: Suspect) -> float:
        """What they weigh about `suspect`: by the settings, else as it was measured, else by the role."""
        if suspect.weight is None or name in self.config.weights or self.config.rule == "transom":
            return self.weight(name)
        return suspect.weight

    def idle(
        self, members: Mapping[str, float], measured: Mapping[str, Mapping[str, float]], asked: Collection[str]
    ) -> frozenset[str]:
        """Trained models that no verdict depends on and nobody has `asked` for: their scores need not be computed.

        Parameters
        ----------
        members : mapping of str to float
            What each model weighs in the mean of all.
        measured : mapping
            What their votes weigh by detector and family, where that was measured.
        """
        said = self.config.weights if self.config.rule == "weighted" else dict.fromkeys(members, 0.0)

        def weighs(name: str) -> bool:
            own = self.weight(name) if name in self._roles else 0.0
            return own > 0.0 if name in said or not measured.get(name) else any(measured[name].values())

        return frozenset(name for name, share in members.items() if not (share or name in asked or weighs(name)))

    def candidates(self, window: Window, votes: Mapping[str, Vote]) -> list[Candidate]:
        """The believed votes, joined by family, what comes first most urgent."""
        deciding = {name: vote for name, vote in votes.items() if vote.opinion == "anomalous" and _counts(window, vote)}
        believed = {name: vote for name, vote in deciding.items() if self._opens_alone(name, vote)}
        company = {name: vote for name, vote in deciding.items() if not vote.hard and self._weighs(name, vote) > 0.0}
        believed |= {name: vote for name, vote in self._agreeing(company).items() if name not in believed}
        joined = [_join(family, members) for family, members in _families(list(believed.values()))]
        return sorted(joined, key=lambda one: (not one.hard, _place(one.kind), -one.score))

    def judge(self, window: Window, votes: Mapping[str, Vote]) -> VerdictRecord:
        """The verdict on one window: its most urgent candidate, with every vote."""
        found = self.candidates(window, votes)
        first = found[0] if found else None
        recent_s = float(quiet_median(job_duration_s(window, slice(-10, None))))
        return VerdictRecord(
            id=hashlib.sha256(f"{window.job}/{window.now_s!r}/{first and first.kind}".encode()).hexdigest()[:20],
            job=window.job,
            time_s=window.now_s,
            window_s=float(window.end_s - window.ends_s[0]) if len(window.ends_s) else 0.0,
            anomalous=first is not None,
            reason=first.reason if first else _calm_reason(window, votes),
            votes=dict(votes),
            kind=first.kind if first else None,
            severity=first.severity if first else None,
            suspects=first.suspects if first else (),
            phase=window.phase,
            step=int(window.steps[-1]) if len(window.steps) else None,
            model_versions=versions_used(votes, window),
            iteration_s=recent_s if np.isfinite(recent_s) else None,
            rule=self.config.rule,
        )

    def _opens_alone(self, name: str, vote: Vote) -> bool:
        role = self._roles[name]
        opens = role.opens
        if self.config.weights.get(name) == 0.0:
            return False
        if vote.hard:
            return self.config.hard_opens and ("hard" in opens or "any" in opens)
        if "any" in opens and (role.transom or self.config.rule != "transom"):
            return self.config.log_opens
        return vote.verified and "verified" in opens and self.config.verified_opens

    def _weighs(self, name: str, vote: Vote) -> float:
        """The most that `vote` weighs about anybody."""
        return max((self.weight_of(name, suspect) for suspect in vote.suspects), default=self.weight(name))

    def _agreeing(self, company: Mapping[str, Vote]) -> dict[str, Vote]:
        """The votes that are enough together, each with those suspects alone that enough others agree on.

        Two votes about different entities do not support each other. A vote that names nobody is about the whole job
        and supports everyone. Provisional votes keep a share of their weight, and are a part of what is enough at most.
        """
        enough, shares = self.config.enough, dict.fromkeys(company, 1.0)
        if little := [name for name, vote in company.items() if vote.provisional]:
            together = sum(self._weighs(name, company[name]) for name in little)
            shares |= dict.fromkeys(little, min(PROVISIONAL_SHARE, PROVISIONAL_TOGETHER * enough / together))
        everyone = sum(shares[name] * self.weight(name) for name, vote in company.items() if not vote.suspects)
        totals: dict[tuple[Any, ...], float] = {}
        for name, vote in company.items():
            weights = {key: self.weight_of(name, suspect) for suspect in vote.suspects for key in _who(suspect)}
            for key, weight in weights.items():
                totals[key] = totals.get(key, everyone) + shares[name] * weight
        agreed = {key for key, total in totals.items() if total >= enough}
        found: dict[str, Vote] = {}
        for name, vote in company.items():
            suspects = tuple(suspect for suspect in vote.suspects if agreed.intersection(_who(suspect)))
            if suspects or (not vote.suspects and (agreed or everyone >= enough)):
                found[name] = msgspec.structs.replace(vote, suspects=suspects)
        return found


def _who(suspect: Suspect) -> list[tuple[Any, ...]]:
    """What `suspect` may be recognised by: its rank, its device; its node only if nothing finer is known."""
    keys: list[tuple[Any, ...]] = []
    if suspect.rank is not None:
        keys.append(("rank", suspect.rank))
    if suspect.device is not None:
        keys.append(("device", suspect.node, suspect.device))
    return keys or [("node", suspect.node)]


def _families(votes: list[Vote]) -> list[tuple[str, list[Vote]]]:
    """Votes by the problem that they are views of; slow links and slow ranks are two if no rank is both.

    So are the end of a rank, and a hang of the others after they had gone on without it.
    """
    groups: dict[str, list[Vote]] = {}
    hangs = [vote for vote in votes if any(stands_anew(vote.kind, vote.onset_s, other.evidence) for other in votes)]
    for vote in votes:
        if vote not in hangs:
            groups.setdefault(family_of(vote.kind or "metric_anomaly"), []).append(vote)
    apart = [("failure", hangs)] if hangs else []
    slow = groups.get("slow", [])
    links, others = ([vote for vote in slow if (vote.kind in LINK_KINDS) is wanted] for wanted in (True, False))
    ranks, named = ({one.rank for vote in part for one in vote.suspects if one.rank is not None}
                    for part in (links, others))  # fmt: skip
    if links and named and not ranks & named:
        groups["slow"] = others
        return [*groups.items(), ("slow", links), *apart]
    return [*groups.items(), *apart]


def _join(family: str, votes: list[Vote]) -> Candidate:
    ranked = sorted(votes, key=lambda vote: (not vote.hard, _place(vote.kind), -vote.score))
    first = ranked[0]
    same = [vote for vote in ranked if vote.kind == first.kind]
    onsets = [vote.onset_s for vote in same if vote.onset_s is not None]
    steps = [vote.onset_step for vote in same if vote.onset_step is not None]
    return Candidate(
        family=family,
        kind=first.kind or "metric_anomaly",
        severity=min(vote.severity or "sev3" for vote in same),
        reason=first.reason,
        suspects=_join_suspects(same),
        onset_s=min(onsets) if onsets else None,
        onset_step=min(steps) if steps else None,
        at_step=first.at_step,
        score=first.score,
        hard=first.hard,
        metrics=tuple(dict.fromkeys(name for vote in same for name in vote.metrics)),
        evidence=first.evidence,
    )


def _counts(window: Window, vote: Vote) -> bool:
    """False where the job's phase explains what the vote is about; facts are explained by nothing."""
    if vote.hard or vote.kind not in SLOW_KINDS:
        return True
    if vote.kind == "slow_compute" and vote.verified:
        return window.phase != "restart"  # a rank that differs from its peers does so in any phase
    return window.phase not in SLOW_PHASES


def _place(kind: IncidentKind | None) -> int:
    """How specific a kind is; 0 is the most."""
    return KIND_ORDER.index(kind) if kind in KIND_ORDER else len(KIND_ORDER)


def _join_suspects(votes: list[Vote]) -> tuple[Suspect, ...]:
    """Suspects of all votes of one kind; who is named twice keeps the higher score."""
    best: dict[tuple[int | None, str | None, str | None], Suspect] = {}
    for vote in votes:
        for suspect in vote.suspects:
            key = (suspect.rank, suspect.node, suspect.device)
            if key not in best or suspect.score > best[key].score:
                best[key] = suspect
    return tuple(sorted(best.values(), key=lambda suspect: -suspect.score)[:MAX_SUSPECTS])


def _calm_reason(window: Window, votes: Mapping[str, Vote]) -> str:
    if window.phase in SLOW_PHASES:
        return f"phase {window.phase} explains what is seen"
    abstained = [name for name, vote in votes.items() if vote.opinion == "abstain"]
    if len(abstained) == len(votes) and votes:
        return "no detector can tell yet"
    return "nothing unusual"
