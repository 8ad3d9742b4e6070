"""Row models against slow plain twins and against scikit-learn, which fits them."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest
import sklearn.cluster
from sklearn.decomposition import PCA
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors

from trainwarden.detectors.metrics.bundle.members import ROW_MODELS
from trainwarden.detectors.metrics.models.kmeans import KMeans, KMeansConfig
from trainwarden.detectors.metrics.models.knn import NeighborSearch, sample_rows
from trainwarden.detectors.metrics.models.lof import Lof, LofConfig
from trainwarden.detectors.metrics.models.nearest import Nearest, NearestConfig
from trainwarden.detectors.metrics.models.pca import Pca, PcaConfig
from trainwarden.detectors.metrics.models.zlength import ZLength, ZLengthConfig
from trainwarden.errors import DetectorError


def plain_nearest(references, rows, k):
    distances = np.array([[np.sqrt(((row - one) ** 2).sum()) for one in references] for row in rows])
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(distances, order, axis=1), order


def plain_lof(references, rows, k):
    """Breunig et al., definitions 3 to 7, word by word."""
    own, near = plain_nearest(references, references, k + 1)
    own, near = own[:, 1:], near[:, 1:]

    def density(distances, neighbours):
        reach = [max(d, own[n, -1]) for d, n in zip(distances, neighbours, strict=True)]
        return 1.0 / (sum(reach) / len(reach) + 1e-10)

    densities = [density(d, n) for d, n in zip(own, near, strict=True)]
    out = []
    for distances, neighbours in zip(*plain_nearest(references, rows, k), strict=True):
        out.append(np.mean([densities[n] for n in neighbours]) / density(distances, neighbours))
    return np.array(out)


@pytest.fixture
def normal():
    random = np.random.default_rng(7)
    return np.concatenate([random.normal(size=(300, 5)), random.normal(4.0, 0.3, size=(100, 5))])


@pytest.fixture
def rows():
    return np.random.default_rng(8).normal(0.0, 3.0, size=(40, 5))


@pytest.mark.parametrize("count", [5, 17, 400, 1000])
@pytest.mark.parametrize("k", [1, 4])
def test_grouped_search_equals_plain(count, k):
    random = np.random.default_rng(count)
    references, queries = random.normal(size=(count, 3)), random.normal(0.0, 2.0, size=(30, 3))
    distances, indices = NeighborSearch(references).nearest(queries, k)
    expected, order = plain_nearest(references, queries, k)
    np.testing.assert_allclose(distances, expected, rtol=1e-12)
    np.testing.assert_array_equal(indices, order)


def test_search_far_from_the_origin_keeps_its_digits():
    references = np.random.default_rng(0).normal(1e6, 1.0, size=(500, 4))
    distances, _ = NeighborSearch(references).nearest(references[:5] + 1e-3, 1)
    np.testing.assert_allclose(distances[:, 0], 2e-3, rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("count", [200, 700])
def test_search_can_skip_the_row_itself(count):
    references = np.random.default_rng(0).normal(size=(count, 2))
    distances, indices = NeighborSearch(references).nearest(references, 3, skip=np.arange(count))
    assert not (indices == np.arange(count)[:, None]).any()
    expected, _ = plain_nearest(references, references, 4)
    np.testing.assert_allclose(distances, expected[:, 1:], rtol=1e-12)


@pytest.fixture
def in_float64(monkeypatch):
    """How many rows were left to the selection in float64."""
    rows_seen, selected = [], NeighborSearch._selected

    def counted(self, rows, k, skip):
        rows_seen.append(len(rows))
        return selected(self, rows, k, skip)

    monkeypatch.setattr(NeighborSearch, "_selected", counted)
    return rows_seen


def test_ties_come_lowest_index_first(in_float64):
    random = np.random.default_rng(3)
    references, rows = random.integers(0, 4, (900, 6)).astype(float), random.integers(0, 4, (40, 6)).astype(float)
    distances, indices = NeighborSearch(references).nearest(rows, 10)
    expected, order = plain_nearest(references, rows, 10)
    np.testing.assert_array_equal(distances, expected)
    np.testing.assert_array_equal(indices, order)
    assert in_float64 == []


def test_references_as_good_as_equally_near_are_left_to_float64(in_float64):
    random = np.random.default_rng(4)
    # 400 within 1e-4 of one place far from the middle of all: float32 cannot tell them apart there.
    tight = np.array([30.0, -40.0, 50.0]) + random.normal(0.0, 1e-4, size=(400, 3))
    references = np.concatenate([random.normal(size=(900, 3)), tight])
    rows = np.concatenate([random.normal(size=(30, 3)), tight[:10] + 1e-5, random.normal(size=(30, 3))])
    distances, indices = NeighborSearch(references).nearest(rows, 6)
    expected, order = plain_nearest(references, rows, 6)
    np.testing.assert_allclose(distances, expected, rtol=1e-9)
    np.testing.assert_array_equal(indices, order)
    assert in_float64 == [10]


def test_one_row_finds_what_it_finds_among_others(in_float64):
    random = np.random.default_rng(5)
    references = np.concatenate([random.normal(size=(900, 4)), np.full((300, 4), 7.0)])
    strange = np.repeat([[7.5], [1e12], [1e60]], 4, axis=1)  # among the duplicates, far out, beyond float32
    rows = np.concatenate([random.normal(0.0, 2.0, size=(50, 4)), strange])
    search = NeighborSearch(references)
    distances, _ = search.nearest(rows, 5)
    alone = np.concatenate([search.nearest(row[None], 5)[0] for row in rows])
    np.testing.assert_allclose(alone, distances, rtol=1e-14)
    np.testing.assert_allclose(distances, plain_nearest(references, rows, 5)[0], rtol=1e-12)
    assert in_float64 == [3, 1, 1, 1]  # the strange ones, together and one by one


@pytest.mark.parametrize("size", [1e-200, 1e-30, 1e30, 1e140])
def test_search_at_any_scale(size):
    random = np.random.default_rng(6)
    references, rows = random.normal(size=(800, 3)), random.normal(0.0, 3.0, size=(20, 3))
    expected, order = plain_nearest(references, rows, 4)
    distances, indices = NeighborSearch(references * size).nearest(rows * size, 4)
    if size > 1e-100:  # the squares of smaller ones are zero
        np.testing.assert_allclose(distances, expected * size, rtol=1e-12)
        np.testing.assert_array_equal(indices, order)
    assert np.isfinite(distances).all()


def test_a_reference_far_out_does_not_blur_the_others(in_float64):
    references = np.random.default_rng(0).normal(size=(800, 3))
    references[5] = 1e9
    rows = np.concatenate([references[10:50] + 0.1, [[4e8, 4e8, 4e8]]])
    distances, indices = NeighborSearch(references).nearest(rows, 4)
    expected, order = plain_nearest(references, rows, 4)
    np.testing.assert_allclose(distances, expected, rtol=1e-12)
    np.testing.assert_array_equal(indices[:40], order[:40])
    assert in_float64 == [1]


def test_search_refuses_more_neighbours_than_references():
    with pytest.raises(ValueError, match="k=4"):
        NeighborSearch(np.zeros((3, 1))).nearest(np.zeros((1, 1)), 4)


@pytest.mark.thorough
def test_lof_equals_its_definition(normal, rows):
    model = Lof.fit(normal, LofConfig(neighbors=10), seed=0)
    np.testing.assert_allclose(model.score(rows), plain_lof(normal, rows, 10), rtol=1e-9)


def test_lof_equals_scikit_learn(normal, rows):
    peer = LocalOutlierFactor(20, novelty=True).fit(normal)
    np.testing.assert_allclose(Lof.fit(normal, LofConfig(), seed=0).score(rows), -peer.score_samples(rows), rtol=1e-9)


def test_lof_survives_duplicates():
    model = Lof.fit(np.zeros((50, 3)), LofConfig(), seed=0)
    inside, outside = model.score([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    assert inside == pytest.approx(1.0)
    assert outside > 1e6


def test_pca_equals_scikit_learn(normal, rows):
    peer = PCA(0.9, svd_solver="full").fit(normal)
    expected = np.linalg.norm(rows - peer.inverse_transform(peer.transform(rows)), axis=1)
    np.testing.assert_allclose(Pca.fit(normal, PcaConfig(), seed=0).score(rows), expected, rtol=1e-9)


@pytest.mark.parametrize("metrics", [3, 20])
def test_what_equals_a_hundred_references_is_normal(metrics):
    """By products of matrices such rows are 1e-8 apart or not at all: densities of 1e7 beside 1e10, factors of 500."""
    random = np.random.default_rng(0)
    places = random.normal(size=(12, metrics))
    references = np.concatenate([np.repeat(places, 50, axis=0), random.normal(size=(200, metrics))])
    assert Lof.fit(references, LofConfig(), seed=0).score(places) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_every_fitted_model_scores_as_scikit_learn_does(seed):
    random = np.random.default_rng(seed)
    metrics = int(random.integers(2, 24))
    mixed = random.normal(size=(500, metrics)) @ random.normal(size=(metrics, metrics))
    mixed[random.integers(500)] *= 1e4  # one far out
    rows = mixed[:60] + random.normal(size=(60, metrics))
    peers = {
        "nearest": NearestNeighbors(n_neighbors=1).fit(mixed).kneighbors(rows)[0][:, 0],
        "lof": -LocalOutlierFactor(20, novelty=True, algorithm="kd_tree").fit(mixed).score_samples(rows),
    }
    for name, kind, config in (
        ("nearest", Nearest, NearestConfig()),
        ("lof", Lof, LofConfig()),
    ):
        np.testing.assert_allclose(kind.fit(mixed, config, 3).score(rows), peers[name], rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("kind", [Lof, Nearest, Pca])
def test_a_scorer_that_says_something_else_than_scikit_learn_is_refused(kind, normal, monkeypatch):
    true = kind.score
    for wrong in (1.01, np.nan):
        monkeypatch.setattr(kind, "score", lambda self, rows, by=wrong: true(self, rows) * by)
        with pytest.raises(DetectorError, match="is refused: it scores 64 of 64 rows unlike scikit-learn"):
            kind.fit(normal, kind.Config(), 0)


def test_rows_of_any_size_are_learnt_and_not_refused():
    random = np.random.default_rng(2)
    for size, offset in ((1e-9, 0.0), (1e9, 0.0), (1.0, 1e7), (0.0, 5.0)):
        rows = offset + size * random.normal(size=(300, 6))
        rows[:, 2] = 0.0
        for kind in (Lof, Nearest, Pca):
            assert np.isfinite(kind.fit(rows, kind.Config(), 2**40).score(rows)).all(), (kind, size)


@pytest.mark.thorough
def test_whoever_only_scores_does_not_import_what_fits(tmp_path, normal):
    for name, kind in ROW_MODELS.items():
        np.savez(tmp_path / f"{name}.npz", **kind.fit(normal, kind.Config(), 0).to_arrays())
    code = (
        "import sys, numpy as np, trainwarden.detectors.service, trainwarden.detectors.own_models.learner\n"
        "from trainwarden.detectors.metrics.bundle.members import ROW_MODELS\n"
        "for name, kind in ROW_MODELS.items():\n"
        f"    kind.from_arrays(dict(np.load({str(tmp_path)!r} + f'/{{name}}.npz'))).score(np.ones((3, 5)))\n"
        "print(sorted({one.partition('.')[0] for one in sys.modules} & {'sklearn', 'stumpy', 'numba', 'joblib'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"


def test_pca_always_leaves_something_to_explain():
    model = Pca.fit(np.random.default_rng(0).normal(size=(100, 1)), PcaConfig(variance=0.999), seed=0)
    assert model.score([[50.0]])[0] > 40.0


def test_kmeans_centres_are_nearly_as_near_as_those_of_whole_rounds(normal):
    """Mini-batches are a short cut to Lloyd's rounds over all rows, here the best of ten beginnings."""
    model = KMeans.fit(normal, KMeansConfig(clusters=6), seed=1)
    whole = sklearn.cluster.KMeans(6, n_init=10, random_state=0).fit(normal)
    assert (model.score(normal) ** 2).sum() < 1.15 * whole.inertia_


def test_kmeans_needs_no_more_centres_than_distinct_rows():
    assert len(KMeans.fit([[1.0], [1.0], [2.0]], KMeansConfig(), seed=0).to_arrays()["centers"]) == 2


def test_nearest_equals_plain(normal, rows):
    expected, _ = plain_nearest(normal, rows, 1)
    np.testing.assert_allclose(Nearest.fit(normal, NearestConfig(), 0).score(rows), expected[:, 0], rtol=1e-12)


def test_zlength_equals_plain(normal, rows):
    config = ZLengthConfig(least_spread=0.01)
    expected = [
        sum(((x - m) / (s + 0.01)) ** 2 for x, m, s in zip(row, normal.mean(0), normal.std(0), strict=True)) ** 0.5
        for row in rows
    ]
    np.testing.assert_allclose(ZLength.fit(normal, config, 0).score(rows), expected, rtol=1e-12)


@pytest.mark.parametrize("name", sorted(ROW_MODELS))
class TestEveryRowModel:
    def fitted(self, name, normal):
        kind = ROW_MODELS[name]
        return kind.fit(normal, kind.Config(), 3)

    def test_state_goes_through_npz_and_back(self, name, normal, rows):
        model, file = self.fitted(name, normal), io.BytesIO()
        np.savez(file, allow_pickle=False, **model.to_arrays())
        file.seek(0)
        with np.load(file, allow_pickle=False) as stored:
            restored = ROW_MODELS[name].from_arrays(dict(stored))
        np.testing.assert_array_equal(restored.score(rows), model.score(rows))
        np.testing.assert_array_equal(restored.blame(rows), model.blame(rows))
        assert restored.config == model.config

    def test_damaged_state_is_refused(self, name, normal):
        state = self.fitted(name, normal).to_arrays()
        for key in state:
            with pytest.raises(DetectorError):
                ROW_MODELS[name].from_arrays({other: value for other, value in state.items() if other != key})
            with pytest.raises(DetectorError):
                ROW_MODELS[name].from_arrays({**state, key: np.zeros((0, 2, 2))})

    def test_scoring_has_no_side_effect_and_fitting_is_seeded(self, name, normal, rows):
        model = self.fitted(name, normal)
        first = model.score(rows)
        model.score(rows[::-1] * 100)
        np.testing.assert_array_equal(model.score(rows), first)
        np.testing.assert_array_equal(self.fitted(name, normal).score(rows), first)

    def test_missing_is_not_strange_and_nothing_at_all_is_unknown(self, name, normal):
        model = self.fitted(name, normal)
        row = np.array([[0.1, 0.2, 0.0, -0.1, 0.1]])
        gap = row.copy()
        gap[0, 2] = np.nan
        assert model.score(gap)[0] < model.score(row + np.array([0, 0, 9.0, 0, 0]))[0]
        assert np.isnan(model.score(np.full((1, 5), np.nan))[0])
        assert (model.blame(gap)[0, 2], np.isfinite(model.blame(gap)).all()) == (0.0, True)

    def test_blame_names_the_moved_metric(self, name, normal):
        row = np.zeros((1, 5))
        row[0, 3] = 40.0
        assert self.fitted(name, normal).blame(row)[0].argmax() == 3

    def test_refuses_wrong_shapes(self, name, normal):
        model = self.fitted(name, normal)
        with pytest.raises(DetectorError):
            model.score(np.zeros((2, 6)))
        for bad in (np.zeros((0, 3)), np.zeros(3), np.full((30, 2), np.inf)):
            with pytest.raises(DetectorError):
                ROW_MODELS[name].fit(bad, ROW_MODELS[name].Config(), 0)


def test_sample_rows_keeps_order_and_is_seeded():
    rows = np.arange(100.0)[:, None]
    drawn = sample_rows(rows, 10, seed=4)
    assert (np.diff(drawn[:, 0]) > 0).all()
    np.testing.assert_array_equal(drawn, sample_rows(rows, 10, seed=4))
    assert sample_rows(rows, 100, seed=4) is rows
