"""Series laid into arrays: units, resets, blanks, stamps, jobs; and the facts that follow."""

from __future__ import annotations

import numpy as np
import pytest

from trainwarden.prometheus.client import Series
from trainwarden.prometheus.facts import facts_of, silent_nodes
from trainwarden.prometheus.fleet import FamilyGrid
from trainwarden.prometheus.lanes import lanes_of

START_S = 1_000_000.0
COLUMNS = 40


def series(values, *, gpu="0", node="n0", every_s=15.0, first_s=1.0, **labels):
    own = {"gpu": gpu, "UUID": f"GPU-{node}-{gpu}", "Hostname": node, "modelName": "H100", **labels}
    pairs = [(START_S + first_s + every_s * place, str(value)) for place, value in enumerate(values)]
    return Series(own, [(stamp, value) for stamp, value in pairs if value != "None"])


def port(values, device="mlx5_0", node="n0"):
    pairs = [(START_S + 1.0 + 15.0 * place, str(value)) for place, value in enumerate(values)]
    return Series({"device": device, "port": "1", "instance": f"{node}:9100"}, pairs)


def grid(per="gpu", by=None, step_s=15.0, interval_s=15.0):
    return FamilyGrid(per, START_S, step_s, COLUMNS, interval_s, {}, by)


def laid(alias, found, **kinds):
    one = grid(**kinds)
    one.lay(alias, lanes_of(found, START_S))
    return one.finished()


@pytest.mark.parametrize(
    ("alias", "value", "name", "expected"),
    [
        ("DCGM_FI_DEV_SM_CLOCK", 1980, "gpu_sm_clock_hertz", 1.98e9),
        ("DCGM_FI_DEV_SM_CLOCK_HERTZ", 1.98e9, "gpu_sm_clock_hertz", 1.98e9),
        ("DCGM_FI_DEV_GPU_UTIL", 97, "gpu_utilization_ratio", 0.97),
        ("DCGM_FI_DEV_GPU_UTIL_RATIO", 0.97, "gpu_utilization_ratio", 0.97),
        ("DCGM_FI_DEV_GPU_UTIL_RATIO", 97, "gpu_utilization_ratio", 0.97),  # DCGM 4.6 calls percents so, too
        ("DCGM_FI_DEV_GPU_TEMP", 900, "gpu_temperature_celsius", np.nan),
        ("DCGM_FI_DEV_GPU_TEMP", 2147483634, "gpu_temperature_celsius", np.nan),
    ],
)
def test_values_are_in_our_units_and_blanks_are_absent(alias, value, name, expected):
    found = laid(alias, [series([value] * COLUMNS)])
    assert found.of(name)[0] == pytest.approx(expected, rel=1e-6, nan_ok=True)
    assert found.models == ("H100",)


def test_an_idle_gpu_of_a_node_that_gives_percents_is_idle():
    found = laid("DCGM_FI_DEV_GPU_UTIL_RATIO", [series([97] * 4), series([1] * 4, gpu="1"), series([1], node="n1")])
    assert found.of("gpu_utilization_ratio")[:, 0].tolist() == pytest.approx([0.97, 0.01, 1.0])


def test_counters_are_growth_and_a_reset_is_none():
    found = laid("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", [series([10, 10, 40, 5, 5, "NaN", 35])])
    rates = found.of("gpu_pcie_replay_count")[0, :7].tolist()
    assert rates == pytest.approx([np.nan, 0.0, 2.0, np.nan, 0.0, np.nan, 1.0], nan_ok=True)


def test_small_growth_of_a_large_counter_is_not_lost():
    found = laid("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", [series([9e12 + 9_600_000 * place for place in range(5)])])
    assert found.of("gpu_energy_joules")[0, 1:5] == pytest.approx(640.0)


def test_growth_of_several_samples_in_a_column_is_summed():
    found = laid("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", [series([0, 5, 5, 5, 20], every_s=5.0)])
    assert found.of("gpu_pcie_replay_count")[0, :2].tolist() == pytest.approx([0.5, 1.5])


def test_one_stamp_counts_once_whatever_the_order_and_the_pieces():
    one = series([1, 2, 3])
    twice = Series(one.metric, [*reversed(one.values), *one.values])
    for found in ([one], [twice], [one, one]):
        assert laid("DCGM_FI_DEV_GPU_TEMP", found).of("gpu_temperature_celsius")[0, :3].tolist() == [1.0, 2.0, 3.0]
    assert laid("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", [twice]).of("gpu_pcie_replay_count")[0, 1] == pytest.approx(1 / 15)


def test_slower_exporters_are_held_until_their_next_sample_and_no_longer():
    found = laid("DCGM_FI_DEV_GPU_TEMP", [series([50, 60, 70], every_s=60.0)], interval_s=60.0)
    known = np.isfinite(found.of("gpu_temperature_celsius")[0])
    assert known[:14].all()
    assert not known[15:].any()


def test_a_gpu_of_two_jobs_is_a_row_in_each_and_gone_from_neither():
    labels = [series([50] * 20, hpc_job="a"), series([50] * 20, hpc_job="b", first_s=301.0)]
    found = laid("DCGM_FI_DEV_GPU_TEMP", [*labels, series([50] * 40, gpu="1", hpc_job="a")], by="hpc_job")
    assert found.groups == ("a", "b", "a")
    assert facts_of({"gpu": found}, "fleet") == []


def test_a_new_xid_is_a_changed_value_or_a_series_that_comes_late():
    temperature = [series([50] * 40, gpu=str(gpu)) for gpu in range(4)]
    xids = [
        series([0] * 10 + [79] * 30, gpu="0"),
        series([63] * 40, gpu="1"),  # from before
        series(["None"] * 20 + [94] * 20, gpu="2", err_code="94"),
        series([31] * 10, gpu="3", err_code="31"),
        series(["None"] * 10 + [48] * 30, gpu="3", err_code="48"),
    ]
    one = grid()
    one.lay("DCGM_FI_DEV_GPU_TEMP", lanes_of(temperature, START_S))
    one.lay("DCGM_FI_DEV_XID_ERRORS", lanes_of(xids, START_S))
    found = facts_of({"gpu": one.finished()}, "fleet")
    assert [(event.kind, event.device, event.fields["xid"]) for event in found] == [
        ("xid", "0", 79), ("xid", "3", 48), ("xid", "2", 94),
    ]  # fmt: skip
    assert found[0].fields["uuid"] == "GPU-n0-0"


def test_a_series_that_ends_beside_living_siblings_is_lost_an_exporter_that_ends_is_not():
    found = laid(
        "DCGM_FI_DEV_GPU_TEMP",
        [
            series([50] * 40),
            series([50] * 20, gpu="1"),
            *(series([50] * 20, gpu=str(gpu), node="n1") for gpu in range(2)),
        ],
    )
    (event,) = facts_of({"gpu": found}, "fleet")
    assert (event.kind, event.node, event.device) == ("device_lost", "n0", "1")
    assert event.time_s == pytest.approx(START_S + 1.0 + 20 * 15.0)
    assert silent_nodes({"gpu": found}) == ["exporters that answer no more (gpu): n1"]


def told(*found, **kinds):
    return laid("DCGM_FI_DEV_GPU_TEMP", [series([50] * 40, gpu="9"), *found], **kinds)


def late(count, **labels):
    return series([50] * count, first_s=1.0 + 15.0 * (40 - count), **labels)


def test_a_gpu_that_is_divided_otherwise_is_not_lost():
    before = [series([50] * 20, UUID="A", GPU_I_ID=str(part)) for part in range(7)]
    after = [late(18, UUID="A", GPU_I_ID="1"), late(18, UUID="A", GPU_I_ID="9")]
    assert facts_of({"gpu": told(*before, *after)}, "fleet") == []
    assert facts_of({"gpu": told(*before, late(18, UUID="A"))}, "fleet") == []
    (event,) = facts_of({"gpu": told(*before)}, "fleet")
    assert (event.device, event.fields["uuid"]) == ("0", "A")


def test_a_gpu_that_was_exchanged_is_not_lost():
    assert facts_of({"gpu": told(series([50] * 20, UUID="A"), late(18, UUID="B"))}, "fleet") == []


def test_of_gpus_with_new_numbers_the_one_without_is_lost():
    before = [series([50] * 20, gpu=str(number), UUID=name) for number, name in enumerate("ABC")]
    after = [late(18, gpu="0", UUID="B"), late(18, gpu="1", UUID="C")]
    (event,) = facts_of({"gpu": told(*before, *after)}, "fleet")
    assert (event.device, event.fields["uuid"]) == ("0", "A")


def test_an_xid_of_the_job_before_is_not_one_of_the_next():
    xids = [
        series([0] * 10 + [79] * 10, hpc_job="a"),
        series(["None"] * 20 + [79] * 20, hpc_job="b"),
        series(["None"] * 30 + [48] * 10, hpc_job="b"),
    ]
    one = grid(by="hpc_job")
    one.lay("DCGM_FI_DEV_GPU_TEMP", lanes_of([series([50] * 20, hpc_job="a"), late(20, hpc_job="b")], START_S))
    one.lay("DCGM_FI_DEV_XID_ERRORS", lanes_of(xids, START_S))
    found = one.finished()
    assert [event.fields["xid"] for event in facts_of({"gpu": found.part([0])}, "a")] == [79]
    assert [event.fields["xid"] for event in facts_of({"gpu": found.part([1])}, "b")] == [48]


def test_an_exporter_that_is_scraped_more_rarely_is_not_silent():
    every = [series([50] * 40, node=f"n{number}") for number in range(4)]
    found = laid("DCGM_FI_DEV_GPU_TEMP", [*every, series([50] * 5, node="rare", every_s=120.0)])
    assert silent_nodes({"gpu": found}) == []
    found = laid("DCGM_FI_DEV_GPU_TEMP", [*every, series([50] * 2, node="rare", every_s=60.0)])
    assert silent_nodes({"gpu": found}) == ["exporters that answer no more (gpu): rare"]


def test_a_gap_is_no_loss():
    found = laid("DCGM_FI_DEV_GPU_TEMP", [series([50] * 40), series([50] * 10 + ["None"] * 20 + [50] * 10, gpu="1")])
    assert facts_of({"gpu": found}, "fleet") == []


def test_links_go_down_and_up_but_those_that_never_worked_are_left_alone():
    states = [port([4] * 10 + [1] * 10 + [4] * 20), port([1] * 40, "mlx5_1"), port([1] * 5 + [4] * 35, "mlx5_2")]
    found = facts_of({"nic": laid("node_infiniband_state_id", states, per="nic")}, "fleet")
    assert [(event.kind, event.device) for event in found] == [("link_down", "mlx5_0:1"), ("link_up", "mlx5_0:1")]


def test_throttle_states_follow_from_the_mask():
    found = laid("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", [series([0x4, 0x20, 0x8])])
    assert found.of("gpu_throttle_thermal_state")[0, :3].tolist() == [0.0, 1.0, 0.0]
    assert found.of("gpu_throttle_hardware_state")[0, :3].tolist() == [0.0, 0.0, 1.0]
