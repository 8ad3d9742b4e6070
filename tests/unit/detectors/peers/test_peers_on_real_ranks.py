"""Small copies of real jobs, by the product's own path, and time warping beside tslearn's comparison of all pairs."""

from __future__ import annotations

import csv
import gzip

import numpy as np
import numpy.typing as npt
import pytest
from tslearn.metrics import cdist_dtw

from tests.places import DATA
from tests.unit.detectors.peers.rank_series import healthy, watched
from trainwarden.detectors.metrics.models.dtw import Dtw, DtwConfig
from trainwarden.detectors.peers.roles import roles

FOLDER = DATA / "peers"
Floats = npt.NDArray[np.float64]


def table(name: str) -> list[dict[str, str]]:
    with gzip.open(FOLDER / name, "rt", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def alibaba() -> tuple[list[int], Floats]:
    rows = table("alibaba_job_1.csv.gz")
    times = sorted({int(row["time"]) for row in rows})
    work = np.full((len(times), 10), np.nan)
    for row in rows:
        work[times.index(int(row["time"])), int(row["worker"])] = float(row["batch_time_norm"]) / 1000.0
    return times, work


@pytest.fixture(scope="module")
def bytedance() -> Floats:
    return np.array([[float(row[str(rank)]) for rank in range(8)] for row in table("bytedance_ST_compute.csv.gz")])


def test_the_worker_that_straggles_in_the_middle_of_a_real_job(alibaba: tuple[list[int], Floats]) -> None:
    times, work = alibaba
    (spell,) = watched(work)
    assert (spell.rank, spell.basis, spell.evidence) == (6, "self", "duration")
    assert 1801 - 20 <= times[spell.from_step] <= 1801 + 20
    assert spell.reported_step - spell.from_step <= 5
    assert spell.to_step is not None
    assert 1941 - 30 <= times[spell.to_step] <= 1941 + 30
    assert spell.ratio == pytest.approx(1.75, abs=0.15)


@pytest.mark.parametrize("declared", [{}, {"tp": 1, "dp": 2, "pp": 4}])
def test_the_last_stage_of_a_real_job_is_too_long(bytedance: Floats, declared: dict[str, int]) -> None:
    found = watched(bytedance, lanes="compute", roles=roles(range(8), declared))
    assert [(one.rank, one.basis, one.from_step, one.to_step) for one in found] == [
        (6, "peers", 0, None),
        (7, "peers", 0, None),
    ]
    assert [one.ratio for one in found] == pytest.approx([1.62, 1.63], rel=0.02)


def named(distances: Floats, count: int) -> set[int]:
    return set(np.argsort(-distances)[:count].tolist())


def both_name(window: Floats, count: int) -> tuple[set[int], set[int]]:
    """The `count` ranks of work [rows, ranks] that each finds farthest away: ours, and the median of all pairs."""
    logs = np.log(window)
    series = (logs - np.median(logs, axis=1, keepdims=True)).T[:, None, :] / 0.03
    ours = Dtw(DtwConfig(), np.ones(1)).score(series)
    pairs = cdist_dtw(series.transpose(0, 2, 1), global_constraint="sakoe_chiba", sakoe_chiba_radius=5)
    return named(ours, count), named(np.median(pairs, axis=1), count)


def test_time_warping_names_who_all_pairs_name_in_real_jobs(
    alibaba: tuple[list[int], Floats], bytedance: Floats
) -> None:
    assert both_name(alibaba[1][176:192], 1) == ({6}, {6})
    assert both_name(bytedance[:16], 2) == ({6, 7}, {6, 7})


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (3, 4, 5))])
@pytest.mark.parametrize("ratio", [1.3, pytest.param(2.0, marks=pytest.mark.thorough)])
def test_time_warping_names_who_all_pairs_name_among_injected_faults(seed: int, ratio: float) -> None:
    random = np.random.default_rng(seed)
    work = healthy(seed, 40, 24)
    slow = random.choice(24, 1 + seed % 3, replace=False)
    work[15:, slow] *= ratio
    ours, theirs = both_name(work, len(slow))
    assert ours == theirs == set(slow.tolist())
