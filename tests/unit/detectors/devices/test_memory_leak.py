"""Memory that grows steadily over a rank's steps is a leak; warm-ups, sawteeth, caches and noise are none."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.detectors.detection_streams import Run
from trainwarden.detectors.devices.floors import Floors
from trainwarden.detectors.devices.memory_leak import GROUP_LEFT, RANK, START_S, MemoryLeak, leak_records
from trainwarden.detectors.testing.checks import windows_of
from trainwarden.records import MetricsRecord

pytestmark = pytest.mark.thorough  # they take seconds

Floats = npt.NDArray[np.float64]
SECONDS = np.arange(1200.0)
MB = 1e6


def found(memory: Floats, every_s: float = 1.0) -> list[tuple[int, float]]:
    """When series ``[ranks, samples]`` are first taken for leaks, and their rate then."""
    floors, rows, out = Floors(), np.arange(len(memory)), dict[int, tuple[int, float]]()
    for sample, values in enumerate(memory.T):
        floors.observe(rows, np.full(len(memory), 1e6 + every_s * sample), values)
        if sample % 5:
            continue
        floors.judge()
        for row in np.flatnonzero((floors.rate > 0.0).sum(axis=1)[: len(memory)]).tolist():
            out.setdefault(row, (row, float(floors.rate[row].max())))
    return [out[row] for row in sorted(out)]


def base(mb: float = 1500.0) -> Floats:
    return np.full(SECONDS.size, mb * MB)


def sawtooth(high_mb: float, period_s: float) -> Floats:
    return np.asarray(high_mb * MB * (SECONDS % period_s) / period_s)


@pytest.mark.parametrize("mb_a_s", [0.5, 2.0, 10.0, 100.0])
def test_a_steady_growth_is_found_with_its_rate_whatever_comes_and_goes(mb_a_s: float) -> None:
    noise = np.random.default_rng(0).normal(0.0, 2 * MB, SECONDS.size)
    leak = base() + mb_a_s * MB * SECONDS + sawtooth(50.0, 3.0) + noise
    ((row, rate),) = found(np.stack([base(), leak]))
    assert row == 1
    assert rate == pytest.approx(mb_a_s * MB, rel=0.25)


@pytest.mark.parametrize(
    "memory",
    [
        base() + 800 * MB * (1.0 - np.exp(-SECONDS / 40.0)),  # an allocator that warms up
        base() + sawtooth(900.0, 70.0),  # collected now and then
        base() + 2000 * MB * (SECONDS % 300.0 > 250.0),  # evaluations
        base() + 2000 * MB * (SECONDS > 400.0),  # a cache, at once
        base() + 300 * MB * (SECONDS // 200.0),  # one more buffer at each evaluation
        base() + 5 * MB * SECONDS / 60.0,  # 100 MB in twenty minutes
    ],
    ids=["warm-up", "sawtooth", "evaluations", "cache", "buffers", "little"],
)
def test_what_healthy_jobs_do_is_no_leak(memory: Floats) -> None:
    assert found(memory[None]) == []


@given(
    seed=st.integers(0, 2**32 - 1), base_mb=st.floats(200, 20_000), wander=st.floats(0, 0.02),
    saw=st.floats(0, 0.5), period_s=st.floats(2, 75), warm=st.floats(0, 1.0), tau_s=st.floats(1, 60),
)  # fmt: skip
@example(seed=25657, base_mb=544.0, wander=0.015625, saw=0.5, period_s=50.0, warm=0.0, tau_s=1.0)
@settings(max_examples=15, deadline=None)
def test_drawn_healthy_memory_is_no_leak(
    seed: int, base_mb: float, wander: float, saw: float, period_s: float, warm: float, tau_s: float
) -> None:
    """Noise around a level, a sawtooth and a warm-up that fades within the steps that are not judged."""
    noise = np.random.default_rng(seed).normal(0.0, wander, SECONDS.size)
    seconds = SECONDS + 5.0 * tau_s  # judged from the 20th step on
    memory = base_mb * (1.0 + noise + warm * (1.0 - np.exp(-seconds / tau_s))) + base_mb * sawtooth(saw, period_s) / MB
    assert found(memory[None] * MB) == []


def test_a_leak_that_stops_is_let_go() -> None:
    leak = base() + 20 * MB * np.minimum(SECONDS, 200.0)
    floors, rows, on = Floors(), np.array([0]), []
    for second, value in enumerate(leak[:400]):
        floors.observe(rows, np.array([float(second)]), np.array([value]))
        floors.judge()
        on.append(bool(floors.rate[0].any()))
    assert any(on[:200])
    assert not any(on[330:])


def test_gaps_are_not_judged_over() -> None:
    leak = base() + 20 * MB * SECONDS
    leak[100:] = np.where(SECONDS[100:] % 40.0 < 8.0, np.nan, leak[100:])
    gone = np.where(SECONDS < 40.0, leak, np.nan)
    assert found(gone[None]) == []


def test_the_incident_says_how_fast_and_how_long_there_is_memory_left() -> None:
    records = leak_records(sick=True)
    (incident,) = Run(now_s=START_S).play(records, START_S + 165.0).incidents
    assert (incident.kind, incident.severity) == ("memory_leak", "sev3")
    assert [one.rank for one in incident.suspects] == [1]
    assert incident.reason.startswith("memory of rank 1 grows by ")
    assert " MB a step, " in incident.reason
    assert "; the 64.0 GB that are left on node0 are used up in " in incident.reason
    assert incident.metrics == ("rank_anonymous_memory_bytes",)
    assert incident.onset_s is not None
    assert START_S + 30.0 < incident.onset_s < START_S + 80.0


@pytest.mark.parametrize(("shared", "minutes"), [(True, 1.0), (False, 2.0)])
def test_the_room_in_the_control_group_counts_where_it_is_less_than_the_nodes(shared: bool, minutes: float) -> None:
    """Two ranks leak 20 MB/s each: of one group they use up the same room, of two each its own."""
    records = [
        sent for sent in leak_records(sick=False)
        if not (isinstance(sent[1], MetricsRecord) and sent[1].names == (RANK,))
    ]  # fmt: skip
    for second in range(160):
        used, left = 1.5e9 + 20e6 * second, (2.4e9, 2.4e9 + (0.0 if shared else 1.0))
        records.append((START_S + second + 1.0, MetricsRecord(
            job="job", node="node0", time_s=START_S + second + 1.0, devices=("rank-0", "rank-1"), ranks=(0, 1),
            names=(RANK, GROUP_LEFT), values=((used, used), left),
        )))  # fmt: skip
    (incident,) = Run(now_s=START_S).play(records, START_S + 165.0).incidents
    words = f"; the 2.4 GB that are left in its control group are used up in {60.0 * minutes:.0f} s"
    if minutes == 2.0:
        words = words.replace("120 s", "2 min")
    assert [words in one.reason for one in incident.suspects] == [True, True], incident.suspects


def test_a_device_leaks_against_its_own_memory_and_mapped_files_are_no_leak() -> None:
    records = [sent for sent in leak_records(sick=False) if not isinstance(sent[1], MetricsRecord)]
    for second in range(160):
        at_s, used = START_S + second + 1.0, 20e9 + 100e6 * max(0, second - 40)
        records.append((at_s, MetricsRecord(
            job="job", node="node0", time_s=at_s, devices=("GPU-a",), ranks=(2,),
            names=("gpu_memory_used_bytes", "gpu_memory_free_bytes", "gpu_utilization_ratio"),
            values=((used,), (80e9 - used,), (0.9,)),
        )))  # fmt: skip
        records.append((at_s, MetricsRecord(
            job="job", node="node0", time_s=at_s, devices=("rank-3",), ranks=(3,),
            names=("rank_resident_memory_bytes",), values=((1e9 + 50e6 * second,),),
        )))  # fmt: skip
    detector = MemoryLeak(MemoryLeak.Config())
    votes = []
    for window in windows_of(records):
        detector.update(window)
        votes.append(detector.score(window))
    vote = [one for one in votes if one.opinion == "anomalous"][-1]
    assert [(one.rank, one.device) for one in vote.suspects] == [(2, "GPU-a")]
    assert " that are left of the device are used up in " in vote.reason
