"""The metric board: what is kept of every entity, what is shown and when, how counters become rates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trainwarden.detectors.job.board import MetricBuffer
from trainwarden.detectors.job.family import family_of_row
from trainwarden.detectors.job.samples import Entity, FamilySamples
from trainwarden.detectors.job.state import JobState
from trainwarden.errors import DetectorError
from trainwarden.records import MetricsRecord

POWER, CLOCK, ENERGY = "gpu_power_watts", "gpu_sm_clock_hertz", "gpu_energy_joules"


def record(
    time_s: float, values: dict[str, Any], node: str = "n0", devices: tuple[str, ...] = ("GPU-a",), **more: Any
) -> MetricsRecord:
    lanes = tuple(tuple(lane) if isinstance(lane, list) else (lane,) * len(devices) for lane in values.values())
    return MetricsRecord(
        job="j", node=node, time_s=time_s, devices=devices, names=tuple(values), values=lanes, **more
    )  # fmt: skip


def fed(*records: MetricsRecord, samples: int = 8) -> MetricBuffer:
    board = MetricBuffer(samples)
    for one in records:
        board.feed(one)
    return board


def only(board: MetricBuffer) -> FamilySamples:
    (found,) = board.pop_new()
    return found


def column(found: FamilySamples, name: str) -> Any:
    return found.values[:, found.names.index(name)].tolist()


def test_every_sample_is_shown_once_with_older_ones_before_it() -> None:
    board = fed(record(0.0, {POWER: 1.0}), record(1.0, {POWER: 2.0}))
    first = only(board)
    assert (first.fresh, column(first, POWER)) == (2, [[1.0, 2.0]])
    assert board.pop_new() == []
    board.feed(record(2.0, {POWER: 3.0}))
    second = only(board)
    assert (second.fresh, column(second, POWER), second.times_s.tolist()) == (1, [[1.0, 2.0, 3.0]], [[2.0]])


def test_history_is_bounded_by_what_is_asked_and_by_the_ring() -> None:
    board = fed(*(record(float(t), {POWER: float(t)}) for t in range(20)))
    found = only(board)
    assert (found.fresh, column(found, POWER)) == (8, [[float(t) for t in range(12, 20)]])
    board.feed(record(20.0, {POWER: 20.0}))
    (found,) = board.pop_new(history=3)
    assert column(found, POWER) == [[17.0, 18.0, 19.0, 20.0]]


def test_entities_are_grouped_by_the_number_of_new_samples_and_keep_their_rows() -> None:
    board = fed(
        record(0.0, {POWER: 1.0}, node="n0"), record(0.1, {POWER: 2.0}, node="n1"), record(1.0, {POWER: 3.0}, node="n1")
    )
    one, two = board.pop_new()
    assert [(one.rows.tolist(), one.fresh), (two.rows.tolist(), two.fresh)] == [([0], 1), ([1], 2)]
    board.feed(record(2.0, {POWER: 4.0}, node="n1"))
    found = only(board)
    assert (found.rows.tolist(), found.entities) == ([1], (Entity("n1", "GPU-a", None),))


def test_collectors_that_report_at_one_time_are_one_sample_and_the_last_word_wins() -> None:
    board = fed(
        record(0.0, {POWER: 1.0, CLOCK: 5.0}), record(0.0, {POWER: 2.0}), record(0.0, {CLOCK: None, "gpu_x": 7.0})
    )
    found = only(board)
    assert found.fresh == 1
    assert column(found, POWER) == [[2.0]]
    assert column(found, CLOCK) == [[5.0]]


def test_what_is_older_than_the_newest_is_counted_and_dropped() -> None:
    board = fed(record(1.0, {POWER: 1.0}), record(0.5, {POWER: 9.0}), record(2.0, {POWER: 2.0}))
    assert column(only(board), POWER) == [[1.0, 2.0]]
    assert board.late == 1


def test_counters_become_rates_and_a_reset_is_not_measured() -> None:
    board = fed(*(record(2.0 * t, {ENERGY: value}) for t, value in enumerate([10.0, 30.0, 5.0, 9.0, None, 19.0])))
    board.feed(record(10.0, {ENERGY: 21.0}))  # the same time again: the last word wins
    rates = np.array(column(only(board), ENERGY)[0])
    np.testing.assert_array_equal(rates, [np.nan, 10.0, np.nan, 2.0, 3.0])


def test_a_metric_that_comes_later_was_not_measured_before() -> None:
    board = fed(record(0.0, {POWER: 1.0, CLOCK: None}), record(1.0, {POWER: 2.0, CLOCK: 4.0}))
    np.testing.assert_array_equal(column(only(board), CLOCK), [[np.nan, 4.0]])


@pytest.mark.parametrize(
    ("device", "names", "family"),
    [
        ("GPU-1", (POWER,), "gpu"),
        ("mlx5_0", ("nic_receive_bytes",), "nic"),
        ("rank-3", ("rank_cpu_ratio",), "rank"),
        ("", (POWER,), ""),
        ("pump 12", ("flow",), "pump"),
        ("12", ("flow",), "device"),
        ("agent", ("agent_lag_seconds",), None),
    ],
)
def test_families(device: str, names: tuple[str, ...], family: str | None) -> None:
    assert family_of_row(device, names) == family


def test_we_ourselves_are_left_out_and_disks_are_no_hosts() -> None:
    board = fed(
        record(0.0, {"agent_lag_seconds": 1.0}, devices=("agent",)),
        record(0.0, {"host_cpu_ratio": [0.5, None], "host_disk_x": [None, 3.0]}, devices=("host", "disk:sda")),
    )
    found = {one.family: one for one in board.pop_new()}
    assert "agent" not in found
    assert all(np.isfinite(one.values).all() for one in found.values())
    assert sum(len(one.rows) for one in found.values()) == 2


def test_models_come_along_beside_roles_and_through_a_restart() -> None:
    devices = ("GPU-a", "GPU-b")
    board = fed(record(1.0, {POWER: 1.0}, devices=devices, models=("H100", ""), ranks=(0, None)))
    (found,) = board.pop_new({0: "stage-1"})
    assert found.roles == ("stage-1 H100", "")
    board.feed(record(2.0, {POWER: 1.0}, devices=devices))  # another collector's record, which does not say it
    again = MetricBuffer()
    again.restore(board.state())
    again.feed(record(3.0, {POWER: 1.0}, devices=devices))
    assert again.pop_new()[0].roles == ("H100", "")


def test_ranks_and_roles_come_along_and_may_change() -> None:
    devices = ("GPU-a", "GPU-b")
    board = fed(record(0.0, {POWER: 1.0}, devices=devices), record(1.0, {POWER: 2.0}, devices=devices, ranks=(4, None)))
    (found,) = board.pop_new({4: "stage-1"})
    assert [entity.rank for entity in found.entities] == [4, None]
    assert found.roles == ("stage-1", "")
    assert found.rows.tolist() == [0, 1]


def test_damaged_records_are_counted() -> None:
    board = fed(MetricsRecord(job="j", node="n", time_s=0.0, devices=("a", "b"), names=("x",), values=((1.0,),)))
    assert (board.odd, board.pop_new()) == (1, [])
    board.feed(record(0.0, {}))
    assert board.pop_new() == []
    board.feed(record(0.0, {POWER: float("inf")}))
    assert board.pop_new() == []


def test_state_goes_on_as_if_nothing_had_happened() -> None:
    records = [
        record(float(t), {POWER: [float(t), None], ENERGY: [t * 3.0, t * 5.0]}, devices=("a", "b"), ranks=(0, 1))
        for t in range(13)
    ]
    whole, cut = fed(*records[:6]), fed(*records[:6])
    whole.pop_new()
    cut.pop_new()
    restored = MetricBuffer()
    restored.restore(cut.state())
    for one in records[6:]:
        whole.feed(one)
        restored.feed(one)
    left, right = only(whole), only(restored)
    assert (left.entities, left.names, left.family) == (right.entities, right.names, right.family)
    np.testing.assert_array_equal(left.values, right.values)
    np.testing.assert_array_equal(left.times_s, right.times_s)


@pytest.mark.parametrize("state", [b"", b"x", b"\x81\xa4kind\xacmetric_board"])
def test_foreign_state_is_refused(state: bytes) -> None:
    with pytest.raises(DetectorError):
        MetricBuffer().restore(state)


def test_a_job_shows_its_samples_once_and_counts_what_was_late() -> None:
    state = JobState("j")
    state.feed(record(1_000.0, {POWER: 1.0}))
    state.feed(record(999.0, {POWER: 1.0}))
    state.feed(record(1e12, {POWER: 1.0}))
    (found,) = state.window(1_000.0).samples
    assert column(found, POWER) == [[1.0]]
    assert state.window(1_000.5).samples == ()
    assert state.window(1_000.5).phase == ""
    assert state.take_counts() == {"late": 1, "odd": 1}
