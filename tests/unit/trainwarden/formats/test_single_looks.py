"""A single look at GPUs: what it shows by itself is reported, a clean one is a pass, and what needs time is neither."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from trainwarden.formats.building import metric_table
from trainwarden.formats.gpu.kept_errors import kept_errors
from trainwarden.formats.gpu.smi_text import NvidiaSmiText
from trainwarden.formats.source import Source

HOT, WIDTH, WIDEST = "gpu_temperature_celsius", "gpu_pcie_link_width_count", "gpu_pcie_link_width_max_count"


def look(gpus: int = 4, at: int = 1, times: int = 1, device: str = "gpu", **odd: float) -> list[str]:
    """Lines about `gpus` that are well but for what `odd` says of the one `at` its place."""
    well = {HOT: 55.0, WIDTH: 16.0, WIDEST: 16.0, **dict.fromkeys(odd, 0.0)}
    well = {name: {HOT: 55.0, WIDTH: 16.0, WIDEST: 16.0}.get(name, 0.0) for name in well}
    rows = [{"time_s": 1.79e9 + 10.0 * time, "device": f"{device}{n}", **well, **(odd if n == at else {})}
            for time in range(times) for n in range(gpus)]  # fmt: skip
    return [line.removeprefix("health check: ") for log in kept_errors(metric_table(pd.DataFrame(rows)))
            for line in log.lines]  # fmt: skip


def test_a_clean_look_is_a_pass_of_each_gpu():
    assert look() == [f"gpu{n} passed" for n in range(4)]


@pytest.mark.parametrize(
    "odd",
    [
        {HOT: 91.0}, {"gpu_throttle_thermal_state": 1.0}, {"gpu_throttle_hardware_state": 1.0}, {"gpu_xid_state": 13.0},
        {"gpu_row_remap_pending_state": 1.0}, {HOT: float("nan")},
    ],
)  # fmt: skip
def test_what_a_look_cannot_clear_is_no_pass(odd: dict[str, float]):
    assert look(**odd) == []


def test_several_looks_and_other_devices_are_left_to_the_detectors():
    assert look(times=3) == []
    assert look(device="mlx5_") == []


def test_memory_errors_and_missing_lanes_are_told():
    assert look(gpu_ecc_uncorrectable_volatile_count=2.0) == [
        "gpu1 memory failed: 2 uncorrectable errors since its reset"
    ]
    assert look(**{WIDTH: 4.0}) == ["gpu1 pcie failed: 4 lanes of 16, while 3 others have all"]


def test_lanes_are_missing_of_one_among_others_that_have_all_of_theirs():
    assert look(gpus=2, **{WIDTH: 4.0}) == []  # whether the board has more is not known
    assert look(gpus=1, at=0, **{WIDTH: 8.0}) == []
    assert look(**{WIDTH: float("nan")}) == [f"gpu{n} passed" for n in range(4)]


SCREEN = """Mon Sep 21 14:00:00 2026
| NVIDIA-SMI 550.54    Driver Version: 550.54    CUDA Version: 12.4 |
|   0  NVIDIA A100-SXM4-40GB          On  |   00000000:07:00.0 Off |                    0 |
| N/A   31C    P0             54W / 400W |       4MiB /  40960MiB |      0%      Default |
|   1  NVIDIA A100-SXM4-40GB          On  |   00000000:0F:00.0 Off |{ecc:>21} |
| {fan:>4}  {heat:>4}   P0       {power} / 400W |       4MiB /  40960MiB |      0%      Default |
"""


@pytest.mark.parametrize(
    ("ecc", "fan", "heat", "power", "lost"),
    [
        ("ERR!", "ERR!", "ERR!", "ERR!", True), ("0", "ERR!", "ERR!", "ERR!", True),
        ("0", "ERR!", "40C", "52W", False), ("N/A", "ERR!", "40C", "ERR!", False), ("0", "N/A", "40C", "52W", False),
    ],
)  # fmt: skip
def test_a_gpu_that_shows_errors_for_its_values_does_not_answer(
    tmp_path: Path, ecc: str, fan: str, heat: str, power: str, lost: bool
):
    path = tmp_path / "smi.txt"
    path.write_text(SCREEN.format(ecc=ecc, fan=fan, heat=heat, power=power) * 2, encoding="utf-8")
    found = NvidiaSmiText().read(Source(path, path.name), {})
    lines = [line for log in found.logs for line in log.lines]
    assert [line.partition(" failed: ")[0] for line in lines] == ["health check: gpu1 gpu"] * lost


HELD, CLOCK, USE = "gpu_throttle_hardware_state", "gpu_sm_clock_hertz", "gpu_utilization_ratio"


def clocks(*held: tuple[float, float, float]) -> list[str]:
    """Lines about GPUs of (whether held down, clock in MHz, use)."""
    rows = [{"time_s": 1.79e9, "device": f"gpu{n}", HOT: 60.0, HELD: state, CLOCK: 1e6 * mhz, USE: use}
            for n, (state, mhz, use) in enumerate(held)]  # fmt: skip
    return [line.removeprefix("health check: ") for log in kept_errors(metric_table(pd.DataFrame(rows)))
            for line in log.lines]  # fmt: skip


def test_a_gpu_that_is_held_down_far_below_busy_peers_is_reported():
    assert clocks((1, 735, 1), *[(0, 1950, 1)] * 3) == [
        "gpu0 clocks failed: its clocks are held down, 735 MHz where 3 others have 1950"
    ]


@pytest.mark.parametrize(
    "gpus",
    [
        ((1, 1800, 1), *[(0, 1950, 1)] * 3),  # for a moment, perhaps
        ((0, 735, 1), *[(0, 1950, 1)] * 3),  # other work
        ((1, 735, 0), *[(0, 1950, 1)] * 3),  # idle
        ((1, 735, 1), *[(0, 1950, 0)] * 3),  # beside idle ones
        ((1, 735, 1), *[(0, 1950, 1)] * 2),  # too few
    ],
)
def test_clocks_that_one_look_does_not_explain_accuse_nobody(gpus: tuple[tuple[float, float, float], ...]):
    assert not [line for line in clocks(*gpus) if "failed" in line]
