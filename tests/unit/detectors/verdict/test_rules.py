"""Two rules: TRANSOM's to the letter, and ours, which counts weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.unit.detectors.detection_streams import START_S
from trainwarden.detectors.configured_detectors import chosen, rule
from trainwarden.detectors.job.state import JobState
from trainwarden.detectors.verdict.ensemble import Ensemble
from trainwarden.detectors.verdict.rule import EnsembleConfig
from trainwarden.errors import ConfigError
from trainwarden.records import IncidentKind, Suspect, VerdictRecord, Vote
from trainwarden.settings import DetectionSettings

ROLES = {name: one.role for name, one in chosen(DetectionSettings()).items()}
SILENT = Vote(opinion="abstain", reason="warm-up")


def odd(node: str = "n0", kind: IncidentKind = "metric_anomaly", weight: float | None = None, **said: Any) -> Vote:
    suspect = Suspect(score=0.9, reason="r", node=node, weight=weight)
    return Vote(opinion="anomalous", score=0.9, kind=kind, severity="sev3", reason="r", suspects=(suspect,), **said)


def judged(votes: dict[str, Vote], **config: Any) -> VerdictRecord:
    window = replace(JobState("job").window(START_S), phase="")
    return Ensemble(EnsembleConfig(**({"rule": "transom"} | config)), ROLES).judge(window, votes)


@pytest.mark.parametrize("pair", [("lof", "neighbor_profile"), ("lof", "dtw"), ("neighbor_profile", "dtw")])
def test_by_transom_two_of_three_models_are_enough_and_one_is_not(pair: tuple[str, str]) -> None:
    first, second = pair
    assert judged({first: odd(), second: odd()}).anomalous
    assert judged({first: odd(), second: odd()}).rule == "transom"
    assert not judged({first: odd(), second: SILENT}).anomalous
    assert not judged({first: odd("n0"), second: odd("n1")}).anomalous


def test_by_transom_nothing_else_supports_or_opens_but_facts_and_verified_changes() -> None:
    for other in ("metric_mean", "metric_change", "kmeans", "pca", "metric_peers", "iteration_threshold"):
        assert not judged({other: odd(), "dtw": odd()}).anomalous, other
    assert not judged({"template_burst": odd(kind="log_storm")}).anomalous
    assert judged({"log_window": odd(kind="log_storm")}).anomalous
    assert not judged({"log_window": odd(kind="log_storm")}, log_opens=False).anomalous
    assert judged({"hard_event": odd(kind="crash", hard=True)}).anomalous
    assert judged({"change_point": odd(kind="slow_job", verified=True)}).anomalous
    assert judged({"still_metrics": odd(verified=True)}).anomalous


def test_by_weights_the_same_votes_open_otherwise() -> None:
    assert judged({"metric_mean": odd()}, rule="weighted").anomalous
    assert not judged({"lof": odd(), "dtw": odd()}, rule="weighted").anomalous
    assert judged({}, rule="weighted").rule == "weighted"


def test_provisional_votes_open_nothing_by_transom_either() -> None:
    votes = dict.fromkeys(("lof", "neighbor_profile", "dtw"), odd(provisional=True))
    assert not judged(votes).anomalous
    assert not judged({**votes, "dtw": odd()}).anomalous


def test_a_weight_of_0_silences_by_transom_too_and_another_is_refused() -> None:
    assert not judged({"lof": odd(), "dtw": odd()}, weights={"lof": 0.0}).anomalous
    with pytest.raises(ConfigError, match="the weight of lof can only be 0"):
        rule(DetectionSettings(ensemble={"rule": "transom", "weights": {"lof": 0.5}}))
    with pytest.raises(ConfigError, match="'majority' at rule"):
        rule(DetectionSettings(ensemble={"rule": "majority"}))


def test_metric_votes_is_of_the_weighted_rule_alone() -> None:
    assert judged({"lof": odd(), "dtw": odd()}, metric_votes=5.0).anomalous
    assert not judged({"lof": odd(), "dtw": SILENT}, metric_votes=0.5).anomalous


def test_a_measured_weight_goes_before_the_roles_and_behind_the_settings() -> None:
    lof, change = odd(weight=1.0), odd()
    assert judged({"lof": lof, "metric_change": change}, rule="weighted").anomalous, "it has earned a voice"
    assert not judged({"lof": lof, "metric_change": change}, rule="weighted", weights={"lof": 0.5}).anomalous
    assert not judged({"dtw": odd(weight=0.9), "metric_change": change}, rule="weighted").anomalous
    assert judged({"dtw": odd(weight=0.9), "lof": odd(weight=0.0)}).anomalous, "by transom each has one vote"


def test_the_mean_opens_alone_only_with_the_weight_for_it() -> None:
    assert judged({"metric_mean": odd()}, rule="weighted").anomalous, "versions from before the gate measured it"
    assert judged({"metric_mean": odd(weight=2.0)}, rule="weighted").anomalous
    assert not judged({"metric_mean": odd(weight=1.0)}, rule="weighted").anomalous
    assert judged({"metric_mean": odd(weight=1.0), "metric_change": odd()}, rule="weighted").anomalous


def test_each_suspect_has_the_weight_of_its_family() -> None:
    gpu, nic = (Suspect(score=0.9, reason="r", node=node, weight=weight) for node, weight in (("n0", 1.0), ("n1", 0.2)))
    both = replace_suspects(odd(), gpu, nic)
    votes = {"pca": both, "metric_change": replace_suspects(odd(), gpu, nic)}
    assert [one.node for one in judged(votes, rule="weighted").suspects] == ["n0"]


def test_provisional_votes_keep_their_share_of_a_measured_weight() -> None:
    votes = {name: odd(weight=1.0, provisional=True) for name in ("lof", "pca", "kmeans", "nearest", "dtw")}
    assert not judged(votes, rule="weighted").anomalous
    assert not judged({**votes, "metric_change": odd()}, rule="weighted").anomalous


def replace_suspects(vote: Vote, *suspects: Suspect) -> Vote:
    return msgspec.structs.replace(vote, suspects=suspects)
