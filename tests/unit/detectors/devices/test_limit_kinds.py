"""What a limit may be about besides a level and growth: another metric, the device's past, peers, the job's phase."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.detectors.devices.windows import EVERY_S, START_S, run, samples_of, window_of
from trainwarden.detectors.devices.device_limits import DeviceLimits
from trainwarden.detectors.devices.limit_memory import LimitMemory
from trainwarden.detectors.devices.limits import limits_in_force

LIMITS = {limit.id: limit for limit in limits_in_force()}
NAN = float("nan")


def judged(ticks, *, family="gpu", phase="", detector=None, first=0):
    """The votes of a detector that is shown `ticks`: values of every device by metric, 15 s apart."""
    detector, votes = detector or DeviceLimits(DeviceLimits.Config()), []
    for tick, values in enumerate(ticks, first):
        time_s = START_S + EVERY_S * tick
        window = replace(window_of(samples_of(family, values, time_s), now_s=time_s), phase=phase)
        detector.update(window)
        votes.append(detector.score(window))
    return votes


def test_a_limit_that_was_broken_is_broken_until_its_relief():
    celsius = [91.0] * 6 + [89.0, 91.0, 86.0, 89.0] + [84.0, 89.0, 89.0]
    votes = judged([{"gpu_temperature_celsius": [one, 60.0]} for one in celsius])
    assert [vote.opinion == "anomalous" for vote in votes] == [False] * 4 + [True] * 6 + [False] * 3


def test_growth_has_its_relief_too():
    memory, broken = LimitMemory(LIMITS["gpu.pcie_replay"]), []
    for tick, a_minute in enumerate([0.0, *[9.0] * 8, *[6.0] * 8, *[3.0] * 8, *[6.0] * 8]):
        at_s = np.array([START_S + 15.0 * tick])
        memory.observe(np.array([0]), np.array([a_minute / 60.0]), at_s)
        broken.append(bool(memory.broken(at_s[0]).size))
    assert [broken[tick] for tick in (8, 16, 24, 32)] == [True, True, False, False]


@pytest.mark.parametrize(
    ("lanes", "most", "use", "found"),
    [(8.0, 16.0, 0.9, True), (8.0, 8.0, 0.9, False), (8.0, 16.0, 0.0, False), (8.0, NAN, 0.9, False)],
)
def test_pcie_lanes_are_held_against_what_gpu_and_slot_can_reach(lanes, most, use, found):
    tick = {
        "gpu_pcie_link_width_count": [lanes],
        "gpu_pcie_link_width_max_count": [most],
        "gpu_utilization_ratio": [use],
    }
    vote = judged([tick] * 6)[-1]
    assert (vote.kind == "pcie_error") == found
    assert not found or "50% of the PCIe lanes" in vote.reason


def test_a_gpu_about_to_shut_down_is_graver_than_one_that_is_hot():
    tick = {"gpu_temperature_celsius": [91.0], "gpu_temperature_shutdown_celsius": [92.0]}
    assert judged([tick] * 6)[-1].severity == "sev2"
    assert judged([tick | {"gpu_temperature_shutdown_celsius": [105.0]}] * 6)[-1].severity == "sev3"


def test_what_was_down_from_the_start_is_made_so():
    down, up = {"gpu_nvlink_inactive_links_count": [2.0]}, {"gpu_nvlink_inactive_links_count": [0.0]}
    assert judged([down] * 9)[-1].opinion == "normal"
    vote = judged([up, *[down] * 6])[-1]
    assert vote.kind == "nvlink_error"
    assert "2 of its NVLinks" in vote.reason
    assert judged([up, *[down] * 6, up])[-1].opinion == "normal"


@pytest.mark.parametrize(("phase", "found"), [("", True), ("checkpoint", False), ("evaluation", False)])
def test_disks_are_slow_while_a_checkpoint_is_written(phase, found):
    votes = judged([{"host_io_stall_seconds": [0.9]}] * 12, family="", phase=phase)
    assert (votes[-1].kind == "storage") == found


def test_power_capped_is_told_of_one_whose_clock_is_far_below_its_peers():
    tick = {
        "gpu_utilization_ratio": [1.0] * 8,
        "gpu_throttle_power_state": [1.0] * 8,
        "gpu_sm_clock_hertz": [1.7e9] * 8,
    }
    assert judged([tick] * 12)[-1].opinion == "normal"
    slow = tick | {"gpu_sm_clock_hertz": [1.7e9] * 7 + [1.3e9]}
    vote = judged([slow] * 12)[-1]
    assert [one.node for one in vote.suspects] == ["n7"]
    for state in (0.0, NAN):  # not held down, and not known to be
        free = slow | {"gpu_throttle_power_state": [1.0] * 7 + [state]}
        assert judged([free] * 12)[-1].opinion == "normal"


@pytest.mark.parametrize(("most", "found"), [(5_000.0, ["n5"]), (900.0, []), (5_000.0, None)])
def test_congestion_is_what_one_port_has_far_more_of_than_its_peers(most, found):
    others = most if found is None else 30.0  # all alike: the way this fabric keeps its queues small
    vote = judged([{"nic_rdma_cnp_handled_count": [others] * 5 + [most]}] * 6, family="nic")[-1]
    assert [one.node for one in vote.suspects] == (found or [])
    assert not found or vote.kind == "congestion"


@pytest.mark.parametrize(("peers", "highest", "words"), [
    (8, 1.98e9, "SM clock 1200 MHz where its busy peers have 1700, 29% less"),
    (1, 1.98e9, "SM clock 1200 MHz of at most 1980, 39% less"),
    (1, NAN, None),
])  # fmt: skip
def test_throttling_is_told_with_the_clock_that_it_costs(peers, highest, words):
    size = peers + 1
    tick = {
        "gpu_utilization_ratio": [1.0] * size, "gpu_sm_clock_hertz": [1.2e9] + [1.7e9] * peers,
        "gpu_sm_clock_max_hertz": [highest] * size, "gpu_throttle_hardware_state": [1.0] + [0.0] * peers,
    }  # fmt: skip
    vote = judged([tick] * 6)[-1]
    assert vote.kind == "gpu_throttle"
    assert vote.reason.endswith(words or "(heat, power brake or fast trigger)")
    idle = judged([tick | {"gpu_utilization_ratio": [0.0] * size}] * 6)[-1]
    assert "SM clock" not in idle.reason


def test_a_clock_that_was_told_long_ago_is_no_peers():
    def tick(peer):
        return {
            "gpu_utilization_ratio": [1.0] * 9, "gpu_sm_clock_hertz": [1.2e9] + [peer] * 8,
            "gpu_throttle_hardware_state": [1.0] + [0.0] * 8,
        }  # fmt: skip

    votes = judged([tick(1.7e9), *[tick(NAN)] * 12])
    assert "SM clock 1200 MHz where its busy peers" in votes[6].reason
    assert "SM clock" not in votes[12].reason


def test_flickering_slowdowns_add_up():
    flicker = [{"gpu_throttle_hardware_state": [float(tick % 4 > 0)]} for tick in range(60)]
    votes = judged(flicker)
    assert votes[-1].opinion == "anomalous"  # 45 s of 60 are never a whole minute
    calm = judged([{"gpu_throttle_hardware_state": [float(tick % 4 == 0)]} for tick in range(60)])
    assert {vote.opinion for vote in calm} == {"normal"}


def test_a_network_that_sends_one_packet_in_fifty_again():
    sent = {"nic_receive_packets_count": [1e5] * 2, "nic_receive_errors_count": [2e3, 10.0]}
    vote = judged([sent] * 45, family="nic")[-1]
    assert vote.kind == "nic_error"
    assert "2.0% of the packets received" in vote.reason
    assert judged([sent | {"nic_receive_packets_count": [0.0] * 2}] * 45, family="nic")[-1].opinion == "normal"


def test_states_go_on_where_they_were_cut():
    celsius = [60.0] * 3 + [91.0] * 6 + [88.0] * 4
    clocks = {"gpu_sm_clock_hertz": [1.2e9, 1.7e9]}
    ticks = [
        clocks | {"gpu_temperature_celsius": [one, 60.0], "gpu_nvlink_inactive_links_count": [float(one > 90.0), 0.0]}
        for one in celsius
    ]
    whole = judged(ticks)
    for cut in range(1, len(ticks)):
        before = DeviceLimits(DeviceLimits.Config())
        judged(ticks[:cut], detector=before)
        after = DeviceLimits(DeviceLimits.Config())
        after.restore(before.state())
        assert judged(ticks[cut:], detector=after, first=cut) == whole[cut:]


def test_not_measured_is_no_evidence():
    holes = [{"gpu_temperature_celsius": [91.0 if tick % 2 else NAN, NAN]} for tick in range(12)]
    assert judged(holes)[-1].opinion == "anomalous"
    assert run(DeviceLimits(DeviceLimits.Config()), "gpu", "gpu_temperature_celsius", [[NAN] * 9]).opinion == "normal"


def test_clocks_an_hour_apart_change_nothing():
    detector, votes = DeviceLimits(DeviceLimits.Config()), []
    for tick in range(8):
        time_s = START_S + EVERY_S * tick
        values = {"gpu_temperature_celsius": [91.0, 60.0, 60.0], "gpu_memory_temperature_celsius": [97.0, 80.0, 80.0]}
        samples = samples_of("gpu", values, time_s)
        samples.times_s[0] -= 3600.0
        samples.times_s[1] += 3600.0
        window = window_of(samples, now_s=time_s)
        detector.update(window)
        votes.append(detector.score(window))
    assert [one.node for one in votes[-1].suspects] == ["n0"]
    assert [vote.opinion == "anomalous" for vote in votes] == [False] * 4 + [True] * 4
