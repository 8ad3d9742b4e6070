"""Limits on single devices: how long, how much, and against whom."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.detectors.devices.windows import START_S, run, samples_of, window_of
from trainwarden.detectors.devices.device_limits import DeviceLimits
from trainwarden.detectors.devices.limit_memory import LimitMemory
from trainwarden.detectors.devices.limits import limits_in_force, read_limits
from trainwarden.errors import ConfigError

LIMITS = {limit.id: limit for limit in limits_in_force()}


def limits(**config):
    return DeviceLimits(DeviceLimits.Config(**config))


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        ("gpu_temperature_celsius", [91.0] * 5, "gpu_throttle"),
        ("gpu_temperature_celsius", [91.0] * 4 + [89.0], None),
        ("gpu_temperature_celsius", [91.0, 89.0] * 8, None),
        ("gpu_row_remap_failure_state", [0.0, 1.0], "gpu_memory_error"),
        ("gpu_ecc_uncorrectable_volatile_count", [0.0, 0.0, 1 / 15], "gpu_memory_error"),
        ("gpu_pcie_replay_count", [0.0, 4 / 15, 4 / 15], None),  # eight within a minute
        ("gpu_pcie_replay_count", [0.0, 4 / 15, 5 / 15], "pcie_error"),
        ("gpu_pcie_replay_count", [0.0, *[1 / 15] * 60], None),  # four a minute, for ever
        ("gpu_throttle_hardware_state", [1.0] * 5, "gpu_throttle"),
        *((f"gpu_nvlink_{what}_count", [0.0, 0.0, 1 / 15], "nvlink_error")
          for what in ("malformed_packets", "buffer_overruns", "integrity_errors")),
        *((f"gpu_nvlink_{what}_errors_count", [0.0, 0.0, 1 / 15], None) for what in ("symbol", "effective")),
        *((f"gpu_nvlink_{what}_errors_count", [0.0, 0.0, 121 / 15], "nvlink_error")
          for what in ("symbol", "effective")),
        ("gpu_power_watts", [1e4] * 9, None),
    ],
)  # fmt: skip
def test_what_breaks_a_limit(name, values, kind):
    detector = limits()
    vote = run(detector, "gpu", name, [values, [0.0] * len(values)])
    assert vote.kind == kind
    assert (vote.opinion == "anomalous") == (kind is not None)
    if kind:
        assert [(one.node, one.device) for one in vote.suspects] == [("n0", "0")]
        assert vote.hard
        assert vote.metrics == (name,)


@pytest.mark.parametrize(
    ("share", "samples", "told"), [(0.31, 22, True), (0.31, 15, False), (0.08, 60, False), (0.0, 60, False)]
)
def test_processors_that_a_hypervisor_takes_for_long_are_told(share: float, samples: int, told: bool):
    vote = run(limits(), "host", "host_cpu_steal_ratio", [[share] * samples, [0.0] * samples])
    assert (vote.kind == "host_contention") == told


def test_a_board_whose_configuration_memory_is_damaged_is_told():
    vote = run(limits(), "gpu", "gpu_inforom_valid_state", [[0.0, 0.0], [1.0, 1.0]])
    assert (vote.kind, [one.device for one in vote.suspects]) == ("metric_anomaly", ["0"])


@pytest.mark.parametrize(
    ("generation", "width", "rate", "told"),
    [
        (3.0, 16.0, 0.6, True),
        (5.0, 16.0, 0.5, False),
        (5.0, 16.0, 0.6, True),
        (5.0, 8.0, 0.3, True),
        (np.nan, 16.0, 0.6, True),
    ],
)
def test_faster_and_wider_links_may_replay_as_much_more_often(generation, width, rate, told):
    """Replays a second: 8 a minute are the limit of generation 3 with 16 lanes, 32 of generation 5."""
    detector = limits()
    for tick in range(12):
        values = {
            "gpu_pcie_replay_count": [rate, 0.0],
            "gpu_pcie_link_generation_max_version": [generation, generation],
            "gpu_pcie_link_width_max_count": [width, width],
        }
        detector.update(window_of(samples_of("gpu", values, START_S + 15.0 * tick), now_s=START_S + 15.0 * tick))
        if tick == 6:
            restored = limits()
            restored.restore(detector.state())
            detector = restored
    vote = detector.score(window_of(now_s=START_S + 165.0))
    assert vote.kind == ("pcie_error" if told else None)


def test_an_efa_port_is_blamed_for_its_own_doing_alone():
    """Those whose remote died count errors and silent remotes as well, on every healthy node of the job."""
    vote = run(limits(), "nic", "nic_rdma_uncompleted_commands_count", [[0.0, 0.0, 1 / 15], [0.0] * 3])
    assert (vote.kind, vote.severity) == ("nic_error", "sev2")
    assert "never completed: 1;" in vote.reason
    for name in ("read_errors", "write_errors", "unresponsive_remotes", "impaired_connections", "retransmit_timeouts"):
        assert run(limits(), "nic", f"nic_rdma_{name}_count", [[0.0, *[100.0] * 9]] * 4).opinion != "anomalous"


def test_a_warm_fleet_is_no_fault_and_one_that_is_hotter_is():
    warm = [[87.0] * 30 for _ in range(8)]
    assert run(limits(), "gpu", "gpu_temperature_celsius", warm).opinion == "normal"
    vote = run(limits(), "gpu", "gpu_temperature_celsius", [[89.0] * 30, *([60.0] * 30 for _ in range(7))])
    assert vote.kind == "gpu_throttle"
    assert "hotter than its peers" in vote.reason


def test_busy_devices_are_not_held_against_idle_ones():
    def judged(sick):
        vote, detector = None, limits()
        for tick in range(10):
            time_s = START_S + 15.0 * tick
            values = {
                "gpu_memory_temperature_celsius": [45.0] * 12 + [97.0] * 7 + [sick],
                "gpu_utilization_ratio": [0.0] * 12 + [0.98] * 8,
            }
            window = window_of(samples_of("gpu", values, time_s), now_s=time_s)
            detector.update(window)
            vote = detector.score(window)
        return vote

    assert judged(97.0).opinion == "normal"
    assert [one.node for one in judged(104.0).suspects] == ["n19"]


def test_peers_are_peers_whose_samples_come_at_other_moments():
    memory = LimitMemory(LIMITS["gpu.memory_hot"])
    for tick in range(10):
        for row in range(6):
            hot = 97.0 if row == 3 else 80.0
            memory.observe(np.array([row]), np.array([hot]), np.array([START_S + 15.0 * tick + row]))
    assert memory.broken(START_S + 150.0).tolist() == [3]


def test_devices_that_are_gone_are_no_peers():
    memory = LimitMemory(LIMITS["gpu.memory_hot"])
    for tick in range(20):
        rows, celsius = (np.arange(6), 80.0) if tick < 10 else (np.arange(6, 9), 97.0)
        at_s = START_S + 15.0 * tick + (3600.0 if tick >= 10 else 0.0)
        memory.observe(rows, np.full(rows.size, celsius), np.full(rows.size, at_s))
    assert memory.broken(at_s).tolist() == []


@pytest.mark.parametrize("every_s", [5.0, 15.0, 40.0, 59.0, 60.0, 120.0, 300.0])
@pytest.mark.parametrize(("a_minute", "broken"), [(7.0, False), (9.0, True)])
def test_a_rate_is_the_same_however_far_apart_the_samples_are(every_s, a_minute, broken):
    memory = LimitMemory(LIMITS["gpu.pcie_replay"])
    for tick in range(1 + round(1200.0 / every_s)):
        time_s = START_S + every_s * tick
        memory.observe(np.array([0]), np.array([a_minute / 60.0]), np.array([time_s]))
    assert bool(memory.broken(time_s).size) == broken


def test_a_limit_is_no_longer_broken_when_its_time_is_over():
    memory = LimitMemory(LIMITS["gpu.pcie_replay"])
    rows = np.array([0])
    seen = []
    for tick in range(14):
        rate = 1.0 if tick == 2 else 0.0
        memory.observe(rows, np.array([rate]), np.array([1000.0 + 15.0 * tick]))
        seen.append(bool(memory.broken(1000.0 + 15.0 * tick).size))
    assert seen == [tick in range(2, 6) for tick in range(14)]


def test_one_error_long_before_is_not_where_a_counter_began_to_grow_beyond_its_limit() -> None:
    """As one symbol error an hour before a cable broke; while it lasts the onset stays."""
    limit = LIMITS["nic.symbol_errors"]
    memory, port, since_s = LimitMemory(limit), np.zeros(1, dtype=np.int64), []
    for place in range(240):
        rate = {10: 1 / 15}.get(place, 15.0 if place >= 200 else 0.0)
        memory.observe(port, np.array([rate]), np.array([15.0 * place]))
        since_s += memory.since_s[memory.broken(15.0 * place)].tolist()
    assert len(set(since_s)) == 1
    assert 200 * 15.0 - limit.over_s / 12 <= since_s[0] <= 200 * 15.0


def test_a_device_that_has_long_told_nothing_is_not_accused():
    memory = LimitMemory(LIMITS["gpu.row_remap_failure"])
    memory.observe(np.array([0, 1]), np.array([1.0, 0.0]), np.array([1000.0, 1000.0]))
    assert memory.broken(1500.0).tolist() == [0]
    assert memory.broken(1700.0).tolist() == []


def test_a_limit_can_be_left_out():
    detector = limits(leave_out=("gpu.hot",))
    assert run(detector, "gpu", "gpu_temperature_celsius", [[91.0] * 9] * 2).opinion == "normal"


def test_several_kinds_are_told_one_after_the_other():
    detector = limits()
    run(detector, "gpu", "gpu_row_remap_failure_state", [[1.0], [0.0]])
    first = run(detector, "gpu", "gpu_throttle_hardware_state", [[0.0] * 5, [1.0] * 5], first_s=15.0)
    assert first.kind == "gpu_memory_error"
    assert detector.more


ROW = "[[limit]]\nid = 'x'\nkind = 'crash'\nseverity = 'sev1'\nsource = ''\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[limit]]\nid = 'x'", "limit 1"),
        (f"{ROW}says = ''\nmetric = 'gpu_power_watts'", "either"),
        (f"{ROW}says = ''\nmetric = 'no'\nabove = 1.0", "no metric"),
        (f"{ROW}says = ''\nmetric = 'gpu_power_watts'\nabove = 1.0\nbelow = 2.0", "either above or below or total"),
        (f"{ROW}says = ''\nmetric = 'gpu_power_watts'\ntotal = 1.0", "needs over_s"),
        (
            f"{ROW}says = ''\nmetric = 'gpu_power_watts'\ntotal = 1.0\nover_s = 1.0\nof = 'gpu_power_limit_watts'",
            "growth",
        ),
        (f"{ROW}says = ''\nmetric = 'gpu_power_watts'\nabove = 1.0\nof = 'no'", "no metric 'no'"),
        (f"{ROW}says = ''\nmetric = 'gpu_power_watts'\nabove = 1.0\nrelief = 2.0", "beyond its bar"),
        (f"{ROW}says = ''\nmetric = 'gpu_power_watts'\nabove = 1.0\nnot_in = ['lunch']", "lunch"),
        (2 * f"{ROW}says = ''\nmetric = 'gpu_power_watts'\nabove = 1.0\n", "limit 2: there is a limit x before it"),
        ("[limits]\nx = 1", "nothing else"),
        (f"{ROW}says = '{{x}}'\nmetric = 'gpu_power_watts'\nabove = 1.0", "limit 1"),
        ("[[", "cannot be read"),
    ],
)
def test_a_table_with_a_mistake_is_refused_in_one_sentence(tmp_path, text, words):
    path = tmp_path / "limits.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_limits(path)


def test_an_operators_table_is_laid_over_ours(tmp_path):
    path = tmp_path / "ours.toml"
    path.write_text(
        """
        [[limit]]
        id = "gpu.hot"
        metric = "gpu_temperature_celsius"
        above = 70.0
        kind = "gpu_throttle"
        severity = "sev3"
        says = "warm"
        source = "our room"
        [[limit]]
        id = "gpu.fan"
        metric = "gpu_fan_speed_ratio"
        below = 0.1
        kind = "gpu_throttle"
        severity = "sev3"
        says = "its fan stands still"
        source = "our room"
        """
    )
    assert "warm" in run(limits(table=str(path)), "gpu", "gpu_temperature_celsius", [[75.0], [60.0]]).reason
    detector = limits(table=str(path))
    assert "gpu_fan_speed_ratio" in detector.role.metrics
    assert "stands still" in run(detector, "gpu", "gpu_fan_speed_ratio", [[0.0], [0.6]]).reason
    assert len(limits_in_force(str(path))) == len(LIMITS) + 1
    with pytest.raises(ConfigError, match=r"^detection\.detectors\.device_limits: .*none\.toml: cannot be read"):
        limits(table=str(tmp_path / "none.toml"))
