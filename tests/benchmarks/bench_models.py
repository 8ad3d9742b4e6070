"""Speed of the model kernels beside their peers: same data, same run, medians of interleaved rounds."""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Final

import numpy as np
from threadpoolctl import threadpool_limits

from trainwarden.detectors.metrics.bundle.members import VoteConfig
from trainwarden.detectors.metrics.bundle.metric_vote import MetricVote
from trainwarden.detectors.metrics.models.dtw import Dtw, DtwConfig
from trainwarden.detectors.metrics.models.lof import Lof, LofConfig
from trainwarden.detectors.metrics.models.neighbor_profile import NeighborProfile, NeighborProfileConfig

NAMES: Final = (
    "lof_batch_1_vs_sklearn",
    "lof_batch_64_vs_sklearn",
    "lof_batch_1024_vs_sklearn",
    "neighbor_profile_updates_per_s",
    "neighbor_profile_vs_stumpi",
    "dtw_1024_ranks_vs_tslearn",
    "metric_vote_16384_ranks_s",
)
LOF_BARS: Final = {1: 5.0, 64: 1.2, 1024: 0.9}
BAND_SAMPLES: Final = 5


def benchmarks() -> list[dict[str, Any]]:
    """All of `NAMES`, in their order, each in the shape that ``trainwarden bench`` prints.

    One BLAS thread, as in the detection service: many short products on cores that others use too stall in OpenBLAS'
    barriers. The peers' own threads (OpenMP, numba) are left as they are, where not said otherwise.
    """
    with threadpool_limits(1, user_api="blas"):
        return [*lof(), *neighbor_profile(), dtw(), metric_vote()]


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _rounds(count: int, *calls: Callable[[], object]) -> list[list[float]]:
    """Seconds of each call in each round; the calls take turns, so that a busy moment hits all."""
    for call in calls:
        call()
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(count):
        for times, call in zip(taken, calls, strict=True):
            times.append(_seconds(call))
    return taken


def _spread(times: list[float]) -> float:
    """Half the range over the median."""
    return (max(times) - min(times)) / 2.0 / statistics.median(times)


def _row(
    name: str, value: float, unit: str, times: list[float], bar: str, holds: bool, **more: object
) -> dict[str, Any]:
    row = {"name": name, "value": value, "unit": unit, "rounds": len(times), "spread": _spread(times)}
    return {**row, "peer": None, "ratio": None, "bar": bar, "holds": holds, **more}


def _peer(name: str, value: float) -> dict[str, Any]:
    return {"name": name, "version": version(name), "value": value}


def lof() -> list[dict[str, Any]]:
    """Novelty scores against 10,000 x 20 reference rows; ours on one thread, the peer on one and on all it takes.

    The bar is held against the better of the two. Where other work runs on the cores the peer's threads wait for one
    another, and its one thread is the better.
    """
    from sklearn.neighbors import LocalOutlierFactor

    random = np.random.default_rng(0)
    reference = random.normal(size=(10_000, 20))
    ours = Lof.fit(reference, LofConfig(), seed=0)
    peer = LocalOutlierFactor(20, novelty=True).fit(reference)
    found = []
    for batch, bar in LOF_BARS.items():
        rows = random.normal(size=(batch, 20))
        np.testing.assert_allclose(ours.score(rows), -peer.score_samples(rows), rtol=1e-6)
        count = 51 if batch == 1 else 15
        mine, theirs, ratios = _one_and_all_threads(
            count, lambda rows=rows: ours.score(rows), lambda rows=rows: peer.score_samples(rows)
        )
        name, value, ratio = f"lof_batch_{batch}_vs_sklearn", statistics.median(mine), min(ratios)
        more = {"peer": _peer("scikit-learn", statistics.median(theirs)), "ratio": ratio}
        more |= {"ratio_one_thread": ratios[0], "ratio_all_threads": ratios[1]}
        found.append(_row(name, value, "s", mine, f"ratio >= {bar}", ratio >= bar, **more))
    return found


def _one_and_all_threads(
    count: int, ours: Callable[[], object], peer: Callable[[], object]
) -> tuple[list[float], list[float], list[float]]:
    """Seconds of both where the peer does better, and the ratios with one and with all OpenMP threads."""
    with threadpool_limits(1, user_api="openmp"):
        one = _rounds(count, ours, peer)
    both = [one, _rounds(count, ours, peer)]
    ratios = [statistics.median(theirs) / statistics.median(mine) for mine, theirs in both]
    mine, theirs = both[ratios.index(min(ratios))]
    return mine, theirs, ratios


def neighbor_profile() -> list[dict[str, Any]]:
    """Updates of many series on one shared bag of 100 x 16, and the same update by stumpy's incremental profile."""
    import stumpy

    random = np.random.default_rng(0)
    history = random.normal(size=4_000).cumsum() * 0.1 + np.sin(np.arange(4_000) / 5.0)
    config = NeighborProfileConfig(length=16, bags=100, bag_size=16)
    model = NeighborProfile.fit([history[:, None]], config, seed=0)
    series = 16_384
    newest = random.normal(size=(series, 1, config.length))
    stream = stumpy.stumpi(history[: config.bags * config.bag_size + config.length - 1], config.length)
    stream.update(0.5)  # compiles
    points = iter(random.normal(size=100_000))

    def one_by_one() -> None:
        for _ in range(50):
            stream.update(next(points))

    mine, theirs = _rounds(9, lambda: model.score(newest), one_by_one)
    rate, other = series / statistics.median(mine), 50 / statistics.median(theirs)
    first = _row("neighbor_profile_updates_per_s", rate, "1/s", mine, ">= 200000", rate >= 200_000)
    more = {"peer": _peer("stumpy", other), "ratio": rate / other}
    second = _row("neighbor_profile_vs_stumpi", rate, "1/s", mine, "ratio >= 50", rate / other >= 50.0, **more)
    return [first, second]


def dtw() -> dict[str, Any]:
    """The odd ranks of 1,024 by the median series, and by all pairs under the same band."""
    from tslearn.metrics import cdist_dtw

    random = np.random.default_rng(0)
    odd = [17, 300, 801]
    windows = np.sin(np.arange(60) / 4.0) + random.normal(0.0, 0.1, (1024, 1, 60))
    windows[odd] += np.linspace(0.0, 2.0, 60)
    model = Dtw(DtwConfig(band_samples=BAND_SAMPLES), np.full(1, 0.1))
    series = windows[:, 0, :]
    distances = np.zeros((0, 0))

    def all_pairs() -> None:
        nonlocal distances
        distances = cdist_dtw(series, global_constraint="sakoe_chiba", sakoe_chiba_radius=BAND_SAMPLES)

    cdist_dtw(series[:8], global_constraint="sakoe_chiba", sakoe_chiba_radius=BAND_SAMPLES)  # compiles
    ours, theirs = _rounds(15, lambda: model.score(windows))[0], [_seconds(all_pairs) for _ in range(3)]
    near = np.sort(distances, axis=1)[:, 5]  # fifth other rank; column 0 is the rank itself
    same = set(np.argsort(-near)[:3]) == set(np.argsort(-model.score(windows))[:3]) == set(odd)
    value, other = statistics.median(ours), statistics.median(theirs)
    more = {"peer": _peer("tslearn", other), "ratio": other / value, "same_ranks_named": same}
    bar = "ratio >= 1000 and the same ranks named"
    return _row("dtw_1024_ranks_vs_tslearn", value, "s", ours, bar, same and other / value >= 1000.0, **more)


def metric_vote() -> dict[str, Any]:
    """One window of 16,384 ranks x 20 metrics x 60 samples through every member, new samples scaled on the way."""

    random = np.random.default_rng(0)
    names = [f"metric_{number}" for number in range(20)]
    # Sixteen metrics that move slowly, four that switch fast, as on a training node.
    fade = np.repeat([0.9, 0.0], [16, 4])

    def metrics(*shape: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        values = random.normal(size=shape)
        for t in range(1, shape[0]):
            values[t] += fade * values[t - 1]
        return values

    vote = MetricVote.fit([metrics(2_000, 20) for _ in range(6)], names, VoteConfig(), seed=0, peers=True)
    scale = vote.start(16_384)
    samples = np.ascontiguousarray(metrics(60, 16_384, 20).transpose(1, 2, 0))
    scaled = vote.preparation.scale.apply(vote.preparation.values(samples))
    newest = samples[:, :, -1:]
    processor_s: list[float] = []

    def window() -> None:
        begun_s = time.process_time()
        vote.follow(newest, scale)
        vote.score(scaled)
        processor_s.append(time.process_time() - begun_s)

    (times,) = _rounds(3, window)
    value = statistics.median(times)
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in KiB on Linux
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    more = {"peak_bytes": memory, "processor_s": statistics.median(processor_s[1:])}
    bar = "< 2 s and < 4 GB"
    return _row("metric_vote_16384_ranks_s", value, "s", times, bar, value < 2.0 and memory < 4e9, **more)


if __name__ == "__main__":
    import json

    print(json.dumps(benchmarks(), indent=1))
