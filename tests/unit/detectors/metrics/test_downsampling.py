"""Models are shown samples at the interval that they were trained on, or say that they cannot judge."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.unit.detectors.metrics.test_model_votes import window
from trainwarden.detectors.job.samples import Entity, FamilySamples
from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
from trainwarden.detectors.metrics.bundle.members import VoteConfig
from trainwarden.detectors.metrics.bundle.sampling_interval import SamplingInterval
from trainwarden.detectors.metrics.downsampling import Downsampler
from trainwarden.detectors.metrics.scores import MetricScorer
from trainwarden.detectors.metrics.votes import PcaVote
from trainwarden.detectors.recorded.metrics import score_recorded
from trainwarden.errors import DetectorError
from trainwarden.recorded.folder import read_folder
from trainwarden.settings import parse
from trainwarden.trainer_offline.registry.parts import join, parts_of

NAMES = ("power", "clock", "gpu_energy_joules")
CONFIG = parse(VoteConfig, {"members": {"pca": 1.0, "kmeans": 1.0, "neighbor_profile": 1.0},
                            "neighbor_profile": {"bags": 6, "bag_size": 6}}, "models")  # fmt: skip
ENTITIES = 2
START_S = 1_000_000.0


def metrics(seed: int, seconds: float, every_s: float) -> Any:
    """A smooth process sampled every `every_s`, ``[d, n]``: at the same time it is the same whatever the interval."""
    times_s = np.arange(0.0, seconds, 0.1)
    random = np.random.default_rng(seed)
    noise = np.repeat(random.normal(0.0, 0.05, (3, times_s.size // 10 + 1)), 10, axis=1)[:, : times_s.size]
    waves = np.sin(times_s / np.array([[1.3], [1.9], [2.6]])) + noise
    return waves[:, :: round(every_s / 0.1)]


def trained(every_s: float = 1.0) -> ModelBundle:
    normal: list[Any] = []
    for one in range(3):
        values = metrics(one, 600.0 * every_s, every_s).T
        normal.append((Entity("n", f"d{one}"), START_S + every_s * np.arange(len(values)), values))
    return ModelBundle.fit({"": normal}, {"": NAMES}, CONFIG, seed=0)


@pytest.fixture(scope="module")
def bundle() -> ModelBundle:
    return trained()


def served(seconds: float, every_s: float) -> FamilySamples:
    values = np.stack([metrics(50 + one, seconds, every_s) for one in range(ENTITIES)])
    times_s = np.tile(START_S + every_s * np.arange(values.shape[2]), (ENTITIES, 1))
    entities = tuple(Entity("n", f"d{one}") for one in range(ENTITIES))
    return FamilySamples("", NAMES, np.arange(ENTITIES), entities, ("",) * ENTITIES, values, times_s)


def pieces(one: FamilySamples, sizes: list[int]) -> list[FamilySamples]:
    """As live samples come: a few at a time, with older ones before them."""
    found: list[FamilySamples] = []
    first = 0
    while first < one.fresh:
        end = min(one.fresh, first + sizes[len(found) % len(sizes)])
        older = max(0, first - 64)
        found.append(replace(one, values=one.values[:, :, older:end], times_s=one.times_s[:, first:end]))
        first = end
    return found


@pytest.mark.thorough
def test_what_is_sampled_less_often_than_in_training_is_not_judged_and_says_so(bundle: ModelBundle) -> None:
    vote = PcaVote(PcaVote.Config())
    scorer = MetricScorer(bundle)
    slow, judged, opinions = served(4_000.0, 10.0), 0, set()
    for one in pieces(slow, [1]):
        scored = scorer.score((one,))
        judged += sum(int((~np.isnan(part.ensemble)).any()) for part in scored)
        seen = window(*scored, unscored=dict(scorer.abstained), end_s=float(one.times_s.max()))
        vote.update(seen)
        opinions.add(vote.score(seen).opinion)
    assert judged <= 2, "until it is known how often it is sampled"
    assert "anomalous" not in opinions
    last = vote.score(seen)
    assert last.opinion == "abstain"
    assert "sampled every 10 s" in last.reason
    assert "trained on samples every 1 s" in last.reason


@pytest.mark.thorough
def test_what_is_sampled_more_often_is_judged_as_at_the_interval_of_training(bundle: ModelBundle) -> None:
    (plain,) = MetricScorer(bundle).score((served(120.0, 1.0),))
    (found,) = MetricScorer(bundle).score((served(120.0, 0.1),))
    taken = ~np.isnan(found.times_s)
    assert taken.sum(axis=1).tolist() == [120, 120]
    np.testing.assert_allclose(found.times_s[taken], plain.times_s.ravel())
    rates = NAMES.index("gpu_energy_joules")
    assert bundle.votes[""].preparation.names[rates] == "gpu_energy_joules"
    for name in plain.scores:
        apart = np.abs(found.scores[name][taken].reshape(2, -1) - plain.scores[name])
        assert np.nanmedian(apart) < 0.03, name


@pytest.mark.parametrize(("every_s", "judged"), [(0.1, False), (1.0, True), (10.0, False)])
def test_older_samples_of_another_interval_are_no_history(bundle: ModelBundle, every_s: float, judged: bool) -> None:
    """They come along with the first new one after a swap, and say by their times how often there is one."""
    whole = served(64.0 * max(every_s, 1.0), every_s)
    new = replace(whole, values=whole.values[:, :, :64], times_s=whole.times_s[:, 63:64], past_s=whole.times_s[:, :63])
    (found,) = MetricScorer(bundle).score((new,))
    assert bool(np.isfinite(found.scores["pca"]).all()) == judged


@pytest.mark.thorough
@pytest.mark.parametrize("every_s", [0.1, 0.5, 10.0])
def test_live_and_recorded_come_to_the_same(bundle: ModelBundle, every_s: float) -> None:
    whole = served(100.0 if every_s < 1.0 else 1_000.0, every_s)
    recorded = MetricScorer(bundle)
    (once,) = recorded.score((whole,))
    live = MetricScorer(bundle)
    parts: list[Any] = []
    for number, one in enumerate(pieces(whole, [1, 3, 7, 2])):
        if number == 9:  # another service goes on
            kept, live = live.state(), MetricScorer(bundle)
            live.restore(kept)
        parts += live.score((one,))
    np.testing.assert_array_equal(np.concatenate([one.times_s for one in parts], axis=1), once.times_s)
    joined = np.concatenate([one.ensemble for one in parts], axis=1)
    np.testing.assert_allclose(joined, once.ensemble, rtol=1e-4, atol=1e-6)
    assert live.abstained == recorded.abstained


def test_a_counter_is_the_mean_since_the_sample_before() -> None:
    pacing, values = Downsampler(), np.tile(np.arange(40.0), (1, 2, 1))
    names = ("power", "gpu_energy_joules")
    taken = pacing.select(np.array([0]), values, np.arange(40.0)[None] / 4.0, names, SamplingInterval(1.0, 1.0))
    assert np.flatnonzero(taken[0])[:4].tolist() == [0, 4, 8, 12]
    assert values[0, 0, taken[0]][:4].tolist() == [0.0, 4.0, 8.0, 12.0]
    assert values[0, 1, taken[0]][:4].tolist() == [0.0, 2.5, 6.5, 10.5]


def test_where_training_averaged_all_are_means() -> None:
    pacing, values = Downsampler(), np.tile(np.arange(40.0), (1, 1, 1))
    taken = pacing.select(
        np.array([0]), values, np.arange(40.0)[None] / 4.0, ("power",), SamplingInterval(1.0, 1.0, averaged=True)
    )
    assert values[0, 0, taken[0]][:3].tolist() == [0.0, 2.5, 6.5]


@pytest.mark.parametrize("seed", range(5))
def test_jitter_missing_samples_and_pauses_leave_nothing_out(seed: int) -> None:
    random = np.random.default_rng(seed)
    times_s = np.arange(500.0) + random.normal(0.0, 0.15, 500)
    times_s[300:] += 3_600.0
    times_s = times_s[random.random(500) > 0.2]
    values = random.normal(size=(1, 1, times_s.size))
    values[0, 0, 40:44] = np.nan
    taken = Downsampler().select(np.array([0]), values, times_s[None], ("power",), SamplingInterval(1.0, 1.0))
    assert taken[0, 20:].all(), "of the first few nobody knows yet what is usual"


def test_bundles_keep_the_interval_and_older_ones_are_served_as_before(bundle: ModelBundle, tmp_path: Any) -> None:
    bundle.save(tmp_path)
    loaded = ModelBundle.load(tmp_path)
    assert loaded.votes[""].pace == bundle.votes[""].pace == SamplingInterval(1.0, 1.0)
    loaded.votes[""].pace = None
    loaded.save(tmp_path)
    older = ModelBundle.load(tmp_path)
    assert older.votes[""].pace is None
    scorer = MetricScorer(older)
    (found,) = scorer.score((served(1_000.0, 10.0),))
    assert scorer.abstained == {}
    assert not np.isnan(found.ensemble[:, 40:]).any()


def test_parts_of_unlike_intervals_do_not_serve_together(bundle: ModelBundle) -> None:
    ours, others = parts_of(bundle), parts_of(trained(10.0))
    assert join(ours["ensemble"], {"pca": ours["pca"]}, {"pca": "1"}).votes[""].pace == SamplingInterval(1.0, 1.0)
    with pytest.raises(DetectorError, match="pca was trained on samples every 10 s and others on samples every 1 s"):
        join(ours["ensemble"], {"pca": others["pca"]}, {"pca": "1"})


def test_a_recording_of_another_interval_is_not_judged_either(bundle: ModelBundle, tmp_path: Any) -> None:
    rows = metrics(50, 4_000.0, 10.0).T
    lines = [f"{START_S + 10.0 * place},n,{a},{b},{place * 10.0}" for place, (a, b, _) in enumerate(rows.tolist())]
    (tmp_path / "metrics.csv").write_text("\n".join([f"time_s,node,{','.join(NAMES)}", *lines]) + "\n")
    scores = score_recorded(read_folder(tmp_path), bundle)
    assert scores is not None
    assert "sampled every 10 s" in scores.abstained[""]
    assert int((~np.isnan(scores.ensemble)).sum()) <= 2
