"""One GPU's link whose errors grow, one host's clock that is off, stolen processors; each beside healthy peers."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from trainwarden.detectors.recorded.replay import replay
from trainwarden.formats.building import metric_table
from trainwarden.formats.gpu.link_errors import link_errors
from trainwarden.formats.reading import read_job
from trainwarden.settings import DetectionSettings

LOOKS = 60
COUNTERS = [f"DCGM_FI_DEV_NVLINK_{one}_ERROR_COUNT_TOTAL" for one in ("CRC_FLIT", "REPLAY", "RECOVERY")]


def incidents(path: Path) -> list[tuple[str, str | None, str | None]]:
    found = replay(read_job(path), DetectionSettings()).incidents
    return [(one.kind, one.suspects[0].node, one.suspects[0].device) for one in found]


def counters(name: str, per_look: dict[int, float], gpus: int = 8) -> str:
    lines = ["timestamp,Hostname,gpu," + name]
    for look in range(LOOKS):
        for gpu in range(gpus):
            count = int(per_look.get(gpu, 0.0) * max(0, look - 10))
            lines.append(f"{1_790_000_000 + 30 * look},a1,{gpu},{count}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", COUNTERS)
def test_errors_that_grow_on_one_gpu_alone_are_of_its_link(name: str, tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text(counters(name, {5: 30.0}), encoding="utf-8")
    assert incidents(path)[0] == ("nvlink_error", "a1", "gpu5")
    path.write_text(counters(name, {}), encoding="utf-8")
    assert incidents(path) == []


def looks(counts: dict[str, np.ndarray]) -> list[str]:
    rows = [{"time_s": 30.0 * look, "device": gpu, "gpu_nvlink_crc_flit_errors_count": float(value)}
            for gpu, own in counts.items() for look, value in enumerate(own)]  # fmt: skip
    return [line for log in link_errors(metric_table(pd.DataFrame(rows))) for line in log.lines]


def test_a_single_burst_errors_of_all_and_too_few_peers_accuse_nobody():
    still, rising = np.zeros(LOOKS), 30.0 * np.arange(LOOKS)
    well = {f"gpu{n}": still for n in range(7)}
    assert len(looks({**well, "gpu7": rising})) == 1
    assert looks({**well, "gpu7": np.where(np.arange(LOOKS) < 30, 0.0, 5_000.0)}) == []  # once
    assert looks({f"gpu{n}": rising for n in range(8)}) == []
    assert looks({**well, "gpu7": rising, "gpu0": rising, "gpu1": rising}) == []  # no two ends of a link
    assert looks({"gpu0": still, "gpu1": still, "gpu2": rising}) == []
    assert looks({**well, "gpu7": np.where(np.arange(LOOKS) % 2 == 0, rising, np.nan)}) != []  # looks that are missing


def clocks(offset_s: float, status: int, hosts: int = 5) -> dict[str, str]:
    text = "# TYPE node_timex_offset_seconds gauge\nnode_timex_offset_seconds {}\nnode_timex_sync_status {}\n"
    return {f"n{n}.prom": text.format(*((offset_s, status) if n == 3 else (2e-5 * n, 1))) for n in range(hosts)}


@pytest.mark.parametrize(
    ("offset_s", "status", "hosts", "found"),
    [
        (-1.87, 1, 5, [("data_quality", "n3", None)]),
        (2e-5, 0, 5, [("data_quality", "n3", None)]),
        (0.004, 1, 5, []),
        (float("nan"), 1, 5, []),
    ],
)
def test_a_clock_that_is_off_or_alone_not_synchronised_is_told(
    offset_s: float, status: int, hosts: int, found: list[tuple[str, str | None, None]], tmp_path: Path
):
    for name, text in clocks(offset_s, status, hosts).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        os.utime(tmp_path / name, (1.79e9, 1.79e9))
    assert [one for one in incidents(tmp_path) if one[0] != "metric_anomaly"] == found


def test_hosts_of_which_most_are_not_synchronised_tell_nothing_of_one(tmp_path: Path):
    for name in clocks(0.0, 0):
        (tmp_path / name).write_text("node_timex_offset_seconds 0\nnode_timex_sync_status 0\n", encoding="utf-8")
        os.utime(tmp_path / name, (1.79e9, 1.79e9))
    assert incidents(tmp_path) == []


def stolen(form: str, sick: bool) -> tuple[str, str]:
    hosts = ["i-0a", "i-0b", "i-0c"]
    header = {
        "wide": "timestamp," + ",".join(f"host:{host}" for host in hosts),
        "group": "timestamp,group,avg:system.cpu.stolen{*} by {host}",
        "sar": "timestamp,hostname,%steal",
    }[form]
    lines = [header]
    for look in range(90):
        share = [0.1, 25.0 if sick and look > 30 else 0.2, 0.15]
        time = 1_790_000_000 + 20 * look
        if form == "wide":
            lines.append(f"{time}," + ",".join(map(str, share)))
        else:
            key = "host:" if form == "group" else ""
            lines += [f"{time},{key}{host},{one}" for host, one in zip(hosts, share, strict=True)]
    return "avg_system.cpu.stolen by host.csv", "\n".join(lines) + "\n"


@pytest.mark.parametrize("form", ["wide", "group", "sar"])
def test_processors_that_are_stolen_are_read_in_each_layout(form: str, tmp_path: Path):
    for sick in (True, False):
        name, text = stolen(form, sick)
        (tmp_path / name).write_text(text, encoding="utf-8")
        found = incidents(tmp_path / name)
        assert [(kind, node) for kind, node, _ in found] == ([("host_contention", "i-0b")] if sick else [])


def test_cells_of_kubectl_top_are_numbers(tmp_path: Path):
    rows = [f"2026-09-21T14:0{look}:10Z,worker-{n},1{n}942m,41{n}238Mi" for look in range(9) for n in range(4)]
    (tmp_path / "t.csv").write_text("\n".join(["time,POD,CPU(cores),MEMORY(bytes)", *rows]) + "\n", encoding="utf-8")
    table = read_job(tmp_path / "t.csv").metrics
    assert table is not None
    assert sorted(filter(None, table.devices)) == [f"worker-{n}" for n in range(4)]
    assert float(table.values[0].min()) == pytest.approx(10.942)
