"""Stretches unlike all others: found where they are, none where nothing can be compared, and bounded whatever comes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.trainer_offline.suggest.recordings import plain_nearest
from trainwarden.trainer_offline.data.annotations import Annotation
from trainwarden.trainer_offline.suggest import discords as module
from trainwarden.trainer_offline.suggest.change_points import Floats
from trainwarden.trainer_offline.suggest.discords import DiscordConfig, discords
from trainwarden.trainer_offline.suggest.series import Series
from trainwarden.trainer_offline.suggest.suggestions import Shift, Suggestion
from trainwarden.trainer_offline.suggest.unlike import unlike_suggestions

CONFIG = DiscordConfig()


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Without the half a minute that compiling takes."""
    if "thorough" not in request.keywords:
        monkeypatch.setattr(module, "nearest", plain_nearest)


def load(samples: int = 400, metrics: int = 3) -> Floats:
    rng, time = np.random.default_rng(0), np.arange(samples)
    waves = [np.sin(time / (5.0 + column)) for column in range(metrics)]
    return np.stack(waves) + rng.normal(0.0, 0.05, (metrics, samples))


def test_a_short_fault_of_one_metric_is_found_and_named() -> None:
    values = load()
    values[1, 250:262] += 4.0
    [one] = discords(values, CONFIG)
    assert one.at <= 250 < 262 <= one.end
    assert one.end - one.at <= 48
    assert (one.columns[0], one.times > 2.0) == (1, True)


def test_a_load_that_comes_and_goes_is_usual() -> None:
    assert discords(load(), CONFIG) == []


def test_one_sample_of_thousands_is_not_thinned_away() -> None:
    values = load(8_000, 1)
    values[0, 5_345] = 9.0
    one = discords(values, DiscordConfig(max_points=400))[0]
    assert one.at <= 5_345 < one.end


@pytest.mark.parametrize(
    "values",
    [
        np.zeros((0, 500)),
        np.zeros((3, 0)),
        np.zeros((2, 1)),
        np.full((2, 500), 7.0),
        np.full((2, 500), 0.1) + 1e-17,
        np.full((2, 500), np.nan),
        np.full((2, 500), np.inf),
        np.random.default_rng(0).normal(size=(2, 100)),
    ],
    ids=["no metric", "no sample", "one row", "constant", "rounding", "missing", "infinite", "short"],
)
def test_where_nothing_can_be_compared_nothing_is_suggested(values: Floats) -> None:
    assert discords(values, CONFIG) == []


def test_what_is_missing_infinite_or_huge_tells_nothing_and_hides_nothing() -> None:
    values = load()
    values[0, 250:262] += 4.0
    values[1, :150] = np.nan  # comes late
    values[2, 100], values[2, 101], values[2, 350] = np.inf, -np.inf, 1e308
    [one] = discords(values, CONFIG)
    assert one.at <= 250 < one.end
    assert one.columns[0] == 0


def test_values_near_what_a_float_can_hold_do_not_overflow() -> None:
    values = load()
    values[0, 250:262] += 4.0
    with np.errstate(all="raise"):
        assert [one.columns[0] for one in discords(values * 1e306, CONFIG)] == [0]


def test_the_unit_of_a_metric_changes_nothing() -> None:
    values = load()
    values[1, 250:262] += 4.0
    scaled = values * np.array([[1e-9], [1e9], [1.0]]) + 3.0
    assert [one[:2] for one in discords(values, CONFIG)] == [one[:2] for one in discords(scaled, CONFIG)]


def series(values: Floats) -> list[Series]:
    times_s = np.arange(values.shape[1], dtype=np.float64)
    return [Series(f"gpu/m{column}", "", times_s, row) for column, row in enumerate(values)]


def test_where_a_change_is_suggested_the_stretch_is_not() -> None:
    values = load()
    values[1, 250:262] += 4.0
    [one] = unlike_suggestions("job", series(values))
    assert (one.from_s <= 250.0, one.unlike is not None and one.unlike.series[0]) == (True, "gpu/m1")
    shift = Shift(series="gpu/m1", unit="", before=0.0, after=4.0, sure=1.0, from_s=250.0)
    assert unlike_suggestions("job", series(values), [Suggestion(job="job", from_s=250.0, shifts=(shift,))]) == []


@pytest.mark.parametrize(("label", "told"), [("fault", True), ("normal", True), ("suggested", False)])
def test_a_stretch_of_which_a_part_was_said_is_told(label: str, told: bool) -> None:
    values = load()
    values[1, 250:262] += 4.0
    [one] = unlike_suggestions("job", series(values))
    kind = "hang" if label == "fault" else None
    said = Annotation(job="job", label=label, from_s=255.0, to_s=256.0, kind=kind)  # type: ignore[arg-type]
    assert one.is_told([said]) is told


@pytest.mark.thorough
def test_stumpy_says_what_its_slow_plain_twin_says() -> None:
    values = load(400, 1)[0]
    values[100] = np.nan
    np.testing.assert_allclose(module.nearest(values, 16), plain_nearest(values, 16), atol=1e-6)
    gap = np.full(200, np.nan)
    assert not module.nearest(gap, 16).any()
