"""Devices among their peers: two signs accuse, one does not, and other work is no fault."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.detectors.devices.windows import EVERY_S, START_S, samples_of, window_of
from trainwarden.detectors.devices.device_peers import DevicePeers

HEALTHY = {
    "gpu_utilization_ratio": 0.98, "gpu_sm_clock_hertz": 1.98e9, "gpu_power_watts": 640.0,
    "gpu_temperature_celsius": 62.0,
}  # fmt: skip


def judged(sick, *, size=16, who=(0,), ticks=12, roles=None, until=None, well=HEALTHY):
    """The vote at the end of a run in which the GPUs `who` have the values `sick`."""
    rng = np.random.default_rng(1)
    detector = DevicePeers(DevicePeers.Config())
    for tick in range(ticks):
        values = {}
        for name, usual in well.items():
            column = usual * (rng.normal(1.0, 0.005, size) if "limit" not in name else np.ones(size))
            column[list(who)] = sick.get(name, usual) if until is None or tick < until else usual
            values[name] = column.tolist()
        time_s = START_S + EVERY_S * tick
        window = window_of(samples_of("gpu", values, time_s, roles=roles), now_s=time_s)
        detector.update(window)
        vote = detector.score(window)
    return vote


SLOW_AND_HOT = {"gpu_sm_clock_hertz": 1.3e9, "gpu_temperature_celsius": 84.0, "gpu_power_watts": 610.0}


def test_two_signs_accuse():
    vote = judged(SLOW_AND_HOT)
    assert (vote.kind, vote.verified) == ("gpu_throttle", True)
    assert [(one.node, one.device) for one in vote.suspects] == [("n0", "0")]
    assert "1300 MHz" in vote.reason
    assert "84 °C" in vote.reason
    assert vote.onset_s == START_S


@pytest.mark.parametrize(
    ("sick", "more"),
    [
        ({"gpu_sm_clock_hertz": 1.3e9}, {}),
        ({"gpu_temperature_celsius": 84.0}, {}),
        ({"gpu_power_watts": 300.0}, {}),
        ({**SLOW_AND_HOT, "gpu_utilization_ratio": 0.0}, {}),  # idle
        ({**SLOW_AND_HOT, "gpu_power_watts": 700.0}, {}),  # harder work: more power at a lower clock
        (SLOW_AND_HOT, {"who": range(6)}),  # other work
        (SLOW_AND_HOT, {"size": 4}),  # too few to tell what is usual
        (SLOW_AND_HOT, {"ticks": 5}),  # too short
        (SLOW_AND_HOT, {"until": 5}),  # over
        (SLOW_AND_HOT, {"roles": ["H100"] * 3 + ["A100"] * 13}),  # another model
    ],
)
def test_nobody_is_accused_on_less(sick, more):
    assert judged(sick, **more).opinion == "normal"


def test_one_heavy_job_among_many_light_ones_accuses_nobody():
    detector = DevicePeers(DevicePeers.Config())
    for tick in range(12):
        values = {
            "gpu_utilization_ratio": [0.98] * 64,
            "gpu_power_watts": [250.0 + 60.0 * (gpu // 8) for gpu in range(56)] + [698.0] * 8,
            "gpu_sm_clock_hertz": [1.98e9] * 56 + [1.5e9] * 8,  # at the power limit
            "gpu_temperature_celsius": [55.0] * 56 + [76.0] * 8,
        }
        time_s = START_S + EVERY_S * tick
        window = window_of(samples_of("gpu", values, time_s), now_s=time_s)
        detector.update(window)
        assert detector.score(window).opinion == "normal"


@pytest.mark.parametrize(
    ("metric", "well", "ill", "words"),
    [
        ("gpu_pcie_link_generation_version", 5.0, 3.0, "PCIe generation 3 under load where its busy peers have 5"),
        ("gpu_pcie_link_width_count", 16.0, 8.0, "8 PCIe lanes where its peers have 16"),
    ],
)
@pytest.mark.parametrize("busy", [0.98, 0.0])
def test_a_link_below_its_peers_is_a_pcie_error_and_an_idle_one_may_be_slow(metric, well, ill, words, busy):
    detector = DevicePeers(DevicePeers.Config())
    for tick in range(12):
        values = {"gpu_utilization_ratio": [busy, *[0.98] * 7], metric: [ill, *[well] * 7]}
        time_s = START_S + EVERY_S * tick
        detector.update(window := window_of(samples_of("gpu", values, time_s), now_s=time_s))
        vote = detector.score(window)
    if busy or metric == "gpu_pcie_link_width_count":
        assert vote.kind == "pcie_error"
        assert words in vote.reason
        assert [one.device for one in vote.suspects] == ["0"]
    else:
        assert vote.opinion == "normal"


def ports(states, rates, ticks=10, gpus=None, models=None):
    """The vote on ports of one name, one a node; `gpus` by node."""
    detector = DevicePeers(DevicePeers.Config())
    gpus = gpus or [2] * len(states)
    nodes = [f"n{node}" for node, size in enumerate(gpus) for _ in range(size)]
    roles = [model for model, size in zip(models or [""] * len(gpus), gpus, strict=True) for _ in range(size)]
    for tick in range(ticks):
        time_s = START_S + EVERY_S * tick
        values = {"nic_rdma_link_state": states, "nic_rdma_rate_bytes_per_second": rates}
        own = samples_of("nic", values, time_s, devices=["mlx5_0:1"] * len(states))
        devices = [str(place) for place in range(len(nodes))]
        work = {"gpu_utilization_ratio": [0.98] * len(nodes)}
        others = samples_of("gpu", work, time_s, devices=devices, nodes=nodes, roles=roles)
        window = window_of(own, others, now_s=time_s)
        detector.update(window)
        vote = detector.score(window)
    return vote


def test_a_port_that_is_down_where_its_likes_are_up():
    vote = ports([4.0] * 7 + [1.0], [5e10] * 8)
    assert vote.kind == "nic_down"
    assert vote.suspects[0].node == "n7"


def test_a_port_that_is_slower_than_its_likes():
    vote = ports([4.0] * 8, [5e10] * 7 + [1.25e10])
    assert vote.kind == "nic_error"
    assert "100 Gb/s" in vote.reason
    assert "400" in vote.reason


def test_ports_of_nodes_that_are_fitted_out_otherwise_accuse_nobody():
    login = {"gpus": [8] * 10 + [0, 0]}
    assert ports([4.0] * 10 + [1.0, 1.0], [5e10] * 12, **login).opinion == "normal"
    assert ports([4.0] * 12, [5e10] * 10 + [1.25e10] * 2, **login).opinion == "normal"
    assert ports([4.0] * 12, [5e10] * 11 + [2.5e10], models=["H100"] * 11 + ["A100"]).opinion == "normal"
    assert ports([4.0] * 12, [5e10] * 9 + [1.25e10] + [1.25e10] * 2, **login).suspects[0].node == "n9"


def test_ports_that_are_used_here_and_not_there_accuse_nobody():
    assert ports([4.0] * 5 + [1.0] * 3, [5e10] * 8).opinion == "normal"
    assert ports([4.0] * 3 + [1.0], [5e10] * 4).opinion == "normal"


def test_nodes_whose_samples_come_at_other_moments_are_peers_all_the_same():
    detector = DevicePeers(DevicePeers.Config())
    for tick in range(14):
        for node in range(8):
            time_s = START_S + EVERY_S * tick + 1.7 * node
            sick = SLOW_AND_HOT if node == 5 else {}
            values = {name: [sick.get(name, usual)] for name, usual in HEALTHY.items()}
            part = samples_of("gpu", values, time_s, nodes=[f"n{node}"])
            part = part.__class__(
                **{**{name: getattr(part, name) for name in part.__slots__}, "rows": np.array([node])}
            )
            window = window_of(part, now_s=time_s)
            detector.update(window)
            vote = detector.score(window)
    assert vote.kind == "gpu_throttle"
    assert [one.node for one in vote.suspects] == ["n5"]


CAPPED = {**HEALTHY, "gpu_power_limit_watts": 700.0}


def test_a_power_limit_below_that_of_the_peers_is_named_also_where_nothing_says_how_much_they_work():
    vote = judged({"gpu_power_limit_watts": 400.0}, well=CAPPED)
    assert (vote.kind, [one.device for one in vote.suspects]) == ("gpu_throttle", ["0"])
    assert "its power limit is 400 W where its peers have 700" in vote.reason
    unused = {name: value for name, value in CAPPED.items() if "utilization" not in name}
    vote = judged({"gpu_power_limit_watts": 400.0, "gpu_power_watts": 399.0, "gpu_sm_clock_hertz": 1.1e9}, well=unused)
    assert "1100 MHz" in vote.reason


@pytest.mark.parametrize(
    ("sick", "more"),
    [
        ({"gpu_power_limit_watts": 690.0}, {}),  # a few watts less
        ({"gpu_power_limit_watts": 400.0}, {"who": range(8)}),  # two kinds of settings
        ({"gpu_power_limit_watts": 400.0}, {"roles": ["A"] * 1 + ["B"] * 15}),
    ],
)
def test_other_power_limits_accuse_nobody(sick, more):
    assert judged(sick, well=CAPPED, **more).opinion == "normal"
