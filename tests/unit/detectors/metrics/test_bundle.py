"""Trained models on disk: saved, loaded, and refused when they are not what was saved."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from trainwarden.detectors.job.samples import Entity
from trainwarden.detectors.metrics.bundle.bundle import MANIFEST, ModelBundle
from trainwarden.detectors.metrics.bundle.members import VoteConfig
from trainwarden.errors import DetectorError
from trainwarden.settings import parse

SMALL = parse(VoteConfig, {"neighbor_profile": {"bags": 4, "bag_size": 4}, "dtw_samples": 20}, "models")


def series(count: int, start_s: float = 0.0, metrics: int = 2, samples: int = 300):
    found = []
    for one in range(count):
        random = np.random.default_rng(one)
        wave = np.sin(np.arange(samples)[:, None] / np.arange(3.0, 3.0 + metrics))
        values = wave + random.normal(0.0, 0.1, (samples, metrics))
        found.append((Entity("n", f"d{one}", one), np.arange(samples) + start_s, values))
    return found


@pytest.fixture(scope="module")
def bundle():
    families = {"gpu": series(4), "": series(1, metrics=3)}
    return ModelBundle.fit(families, {"gpu": ("a", "b"), "": ("x", "y", "z")}, SMALL, seed=0)


@pytest.fixture
def saved(bundle, tmp_path):
    bundle.save(tmp_path)
    return tmp_path


@pytest.mark.thorough
def test_peers_are_those_that_share_their_times(bundle):
    assert "dtw" in bundle.votes["gpu"].models
    assert "dtw" not in bundle.votes[""].models
    apart = [(who, times + 0.5 * place, values) for place, (who, times, values) in enumerate(series(4))]
    assert "dtw" not in ModelBundle.fit({"gpu": apart}, {"gpu": ("a", "b")}, SMALL, 0).votes["gpu"].models
    five = [*series(4), *series(1, start_s=7.0)]
    assert "dtw" in ModelBundle.fit({"gpu": five}, {"gpu": ("a", "b")}, SMALL, 0).votes["gpu"].models


@pytest.mark.thorough
def test_what_was_saved_is_loaded(bundle, saved):
    loaded = ModelBundle.load(saved)
    assert loaded.versions == bundle.versions
    assert set(loaded.votes) == {"gpu", ""}
    scaled = np.random.default_rng(0).normal(size=(4, 2, 40))
    for name, part in bundle.votes["gpu"].score(scaled).members.items():
        np.testing.assert_array_equal(loaded.votes["gpu"].score(scaled).members[name], part)


@pytest.mark.thorough
def test_versions_tell_models_apart_and_are_the_same_for_the_same(bundle):
    again = ModelBundle.fit(
        {"gpu": series(4), "": series(1, metrics=3)}, {"gpu": ("a", "b"), "": tuple("xyz")}, SMALL, 0
    )
    assert again.versions == bundle.versions
    other = ModelBundle.fit({"gpu": series(5)}, {"gpu": ("a", "b")}, SMALL, seed=0)
    assert all(other.versions[name] != bundle.versions[name] for name in other.versions)
    assert bundle.with_versions({"lof": "7"}).versions["lof"] == "7"


def test_nothing_to_learn_from_says_why():
    with pytest.raises(DetectorError, match=r"gpu.*constant"):
        ModelBundle.fit({"gpu": [(Entity(), np.arange(50.0), np.ones((50, 1)))]}, {"gpu": ("a",)}, SMALL, 0)
    with pytest.raises(DetectorError, match="no metrics"):
        ModelBundle.fit({}, {}, SMALL, 0)
    some = {"gpu": series(1), "nic": [(Entity(), np.arange(50.0), np.ones((50, 1)))]}
    assert set(ModelBundle.fit(some, {"gpu": ("a", "b"), "nic": ("c",)}, SMALL, 0).votes) == {"gpu"}


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def pickled(path: Path) -> None:
    np.savez(path, payload=np.array([object()], dtype=object))


@pytest.mark.parametrize("damage", [flipped, cut, pickled, Path.unlink])
def test_a_damaged_file_is_refused(saved, damage):
    damage(saved / "family-1.npz")
    with pytest.raises(DetectorError, match=r"family-1\.npz") as caught:
        ModelBundle.load(saved)
    assert "\n" not in str(caught.value)


def test_other_models_than_those_saved_are_refused(bundle, saved):
    path = saved / "family-0.npz"
    arrays = bundle.votes[""].to_arrays()
    arrays["calibration/pca/slope"] = arrays["calibration/pca/slope"] * 2.0
    np.savez_compressed(path, allow_pickle=False, **arrays)
    manifest = json.loads((saved / MANIFEST).read_text())
    manifest["files"][0]["bytes"] = path.stat().st_size
    (saved / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(DetectorError, match="checksum"):
        ModelBundle.load(saved)


def test_arrays_are_refused_that_need_pickle_even_with_the_right_checksum(saved):
    import hashlib

    pickled(saved / "family-0.npz")
    content = (saved / "family-0.npz").read_bytes()
    manifest = json.loads((saved / MANIFEST).read_text())
    manifest["files"][0] |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (saved / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(DetectorError, match="damaged"):
        ModelBundle.load(saved)


def test_models_that_do_not_fit_their_metrics_are_refused(bundle, tmp_path):
    from trainwarden.detectors.metrics.bundle.metric_vote import MetricVote

    one, other = bundle.votes["gpu"], bundle.votes[""]
    models = {**one.models, "pca": other.models["pca"]}
    odd = MetricVote(one.config, one.preparation, models, one.calibrations)
    ModelBundle({"gpu": odd}, {}).save(tmp_path)
    with pytest.raises(DetectorError):
        ModelBundle.load(tmp_path)


@pytest.mark.parametrize("name", ["../family-0.npz", "/etc/passwd", "family-0.npy", ""])
def test_files_outside_the_folder_are_refused(saved, name):
    manifest = json.loads((saved / MANIFEST).read_text())
    manifest["files"][0]["file"] = name
    (saved / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(DetectorError, match="no file of a bundle"):
        ModelBundle.load(saved)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": 3, "versions": {}, "files": []}'])
def test_a_damaged_manifest_is_refused(saved, text):
    (saved / MANIFEST).write_text(text)
    with pytest.raises(DetectorError, match=MANIFEST):
        ModelBundle.load(saved)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(DetectorError, match="holds no models"):
        ModelBundle.load(tmp_path)
