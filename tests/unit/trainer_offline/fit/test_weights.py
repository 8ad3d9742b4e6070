"""What votes weigh comes from what the gate has counted, goes with the version, and is what the rule uses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from trainwarden.detectors.job.samples import Entity
from trainwarden.detectors.metrics.bundle.bundle import MANIFEST, ModelBundle
from trainwarden.detectors.metrics.bundle.members import VoteConfig
from trainwarden.detectors.metrics.vote import ENSEMBLE
from trainwarden.detectors.metrics.votes import VOTES
from trainwarden.errors import DetectorError
from trainwarden.trainer_offline.data.grids import JobGrid
from trainwarden.trainer_offline.fit import judge
from trainwarden.trainer_offline.fit.gate import weights_of
from trainwarden.trainer_offline.fit.weights import CEILING, ENOUGH, Counted, weighed
from trainwarden.trainer_offline.registry.parts import join, parts_of
from trainwarden.trainer_offline.registry.publish import _json_tag
from trainwarden.trainer_offline.registry.version import MAX_TAG

HALF = ENOUGH * CEILING


def counted(found: int, false: int, fault_share: float = 0.05) -> Counted:
    return Counted(found=found, false_spells=false, events=40, fault_s=fault_share * 1e6, judged_s=1e6)


@pytest.mark.parametrize(
    ("found", "false", "constant", "weight"),
    [
        (0, 0, 0.5, 0.5),  # nothing counted
        (1, 1, 0.5, 0.5),  # anything may be true
        (1, 1, 0.0, 0.242),  # what is right at least so often has a voice
        (30, 10, 0.0, HALF),  # and half of what is enough at most
        (2, 38, 1.0, 0.281),
        (0, 40, 1.0, 0.127),
        (0, 80, 1.0, 0.0),  # surely no better than alarms at random moments
    ],
)
def test_a_weight_moves_only_as_far_as_the_counts_ask(found: int, false: int, constant: float, weight: float) -> None:
    assert weighed(counted(found, false), constant).weight == pytest.approx(weight, abs=1e-3)


def test_more_right_alarms_never_weigh_less() -> None:
    for constant in (0.0, 0.5, 1.0):
        weights = [weighed(counted(found, 20), constant).weight for found in range(60)]
        assert weights == sorted(weights)
        assert all(0.0 <= weight <= HALF for weight in weights)


def test_one_vote_opens_alone_only_where_its_measured_precision_allows_it() -> None:
    assert weighed(counted(35, 22), 2.0, alone=True).weight == ENOUGH
    assert weighed(counted(6, 15), 2.0, alone=True).weight <= HALF
    assert weighed(counted(1, 0), 2.0, alone=True).weight <= HALF, "one of one is right 27 times in 100 at least"
    assert weighed(Counted(), 2.0, alone=True).weight <= HALF, "nobody has measured it"
    assert weighed(counted(400, 1), 1.0).weight <= HALF, "a single model has to be agreed with, however good"


def bundle_of(seed: int = 0) -> ModelBundle:
    values = np.random.default_rng(seed).normal(size=(400, 2))
    series = {family: [(Entity("n"), np.arange(400.0), values)] for family in ("", "gpu")}
    names = dict.fromkeys(series, ("power", "clock"))
    return ModelBundle.fit(series, names, VoteConfig(members={"kmeans": 1.0, "pca": 1.0}), seed)


WEIGHTS = {"pca": {"": 0.25, "gpu": 1.0}, ENSEMBLE: {"": 1.0}}


def test_weights_go_with_the_version_through_files_and_parts(tmp_path: Path) -> None:
    bundle = replace(bundle_of(), weights=WEIGHTS)
    bundle.save(tmp_path)
    assert ModelBundle.load(tmp_path).weights == WEIGHTS
    parts = parts_of(bundle)
    assert parts["kmeans"].weights == {}
    members = {name: part for name, part in parts.items() if name != ENSEMBLE}
    assert join(parts[ENSEMBLE], members, {}).weights == WEIGHTS
    older = parts_of(bundle_of())["pca"]
    assert join(parts[ENSEMBLE], {"pca": older}, {}).weights == {ENSEMBLE: {"": 1.0}}, "a version from before has none"


@pytest.mark.parametrize("weight", ["-1.0", "1e9", '"much"', "null"])
def test_a_weight_that_is_none_is_refused(tmp_path: Path, weight: str) -> None:
    replace(bundle_of(), weights={"pca": {"gpu": 0.25}}).save(tmp_path)
    manifest = tmp_path / MANIFEST
    manifest.write_text(manifest.read_text().replace("0.25", weight))
    with pytest.raises(DetectorError, match="damaged"):
        ModelBundle.load(tmp_path)


def test_a_manifest_without_weights_is_what_it_was(tmp_path: Path) -> None:
    bundle_of().save(tmp_path)
    assert "weights" not in (tmp_path / MANIFEST).read_text()
    assert ModelBundle.load(tmp_path).weights == {}


def test_the_gate_counts_each_family_by_itself() -> None:
    bundle = bundle_of()
    values, fault = np.zeros((1, 2, 600)), np.zeros(600, dtype=np.bool_)
    fault[100:130] = True
    times_s = np.arange(600.0) * 60.0
    grid = JobGrid("gpu", ("a", "b"), (Entity("n"),), ("",), 60.0, times_s, values, ~fault, ~fault, fault)
    scores = np.full((1, 600), 0.1)
    scores[0, 105:115] = scores[0, 300:310] = scores[0, 330:340] = scores[0, 500:510] = 0.9
    tallies: dict[str, judge.Tally] = {}
    judge._take(tallies, "job", grid, {"pca": scores}, fault)
    assert tallies["pca"].families["gpu"] == Counted(found=1, false_spells=2, events=1, fault_s=1800.0, judged_s=36e3)
    tally = judge.Tally(families={"gpu": counted(30, 10)})
    found = weights_of("pca", bundle, tally)
    assert found["gpu"].weight == HALF
    assert found[""].weight == VOTES["pca"].role.weight
    assert weights_of(ENSEMBLE, bundle, None)["gpu"].weight == HALF


def test_a_tag_holds_as_much_as_it_can() -> None:
    few = {"gpu": weighed(counted(3, 4), 1.0)}
    assert "right in 3 of 7 alarms" in _json_tag(few)
    many = {f"family-{number}": few["gpu"] for number in range(100)}
    assert len(_json_tag(many)) <= MAX_TAG
    assert msgspec.json.decode(_json_tag(many))["family-7"] == {"weight": few["gpu"].weight}
    assert _json_tag({f"family-{number}": few["gpu"] for number in range(9_000)}) == "{}"
