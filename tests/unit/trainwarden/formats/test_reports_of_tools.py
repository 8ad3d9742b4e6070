"""Reports of devices, Slurm's tables and ports: what failed is said, what is not judged is named."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from time import process_time
from typing import Any

import pytest

from trainwarden.errors import DataError
from trainwarden.formats.gpu.health_reports import HealthReport
from trainwarden.formats.protocol import Found
from trainwarden.formats.reading import read_job
from trainwarden.formats.scheduler.slurm import MAX_NODES, SlurmTable
from trainwarden.formats.source import Source

DIAG = "Successfully ran diagnostic for group.\n"


def report(folder: Path, text: str, name: str = "report.txt") -> Found:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return HealthReport().read(Source(path, name), {})


def lines(found: Found) -> list[str]:
    return [line.removeprefix("health check: ") for log in found.logs for line in log.lines]


def diag(*rows: tuple[str, str]) -> str:
    return DIAG + "".join(f"| {left:25} | {right:46} |\n" for left, right in rows)


def slurm(folder: Path, text: str) -> Found:
    path = folder / "slurm.txt"
    path.write_text(text, encoding="utf-8")
    return SlurmTable().read(Source(path, "slurm.txt"), {})


@pytest.mark.parametrize("status", ["Error", "ERROR", "Fail", "Warn", "Aborted", "Internal Error"])
def test_a_test_that_did_not_pass_has_failed_whatever_it_says(tmp_path: Path, status: str):
    found = lines(report(tmp_path, diag(("Diagnostic", "Result"), ("pcie", "Pass - All"), ("memory", status))))
    assert found == ["node passed", "node memory failed: memory"]


@pytest.mark.parametrize("status", ["Skip", "Not Run", "NOT_RUN", "SKIP - All"])
def test_a_test_that_was_not_run_says_nothing(tmp_path: Path, status: str):
    assert lines(report(tmp_path, diag(("pcie", "Pass - All"), ("memory", status)))) == ["node passed"]


def test_the_error_of_one_gpu_is_its_own_and_metadata_is_no_test(tmp_path: Path):
    text = diag(("Diagnostic", "Result")) + "|-----  Metadata  ----------+-----|\n"
    text += "| Vendor | Contoso |\n| Driver | beta |\n|-----  Hardware  ----------+-----|\n"
    text += "| memory | Error |\n|  | GPU0: Pass |\n|  | GPU1: Error |\n| Warning: GPU1 | it did not answer |\n"
    assert lines(report(tmp_path, text)) == ["gpu0 passed", "gpu1 memory failed: memory: GPU1: it did not answer"]


def results(*of: dict[str, Any]) -> str:
    return json.dumps({"DCGM Diagnostic": {"test_categories": [{"tests": [{"name": "memory", "results": list(of)}]}]}})


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"entity_group": "GPU", "entity_id": 1, "status": "ERROR"}, ["gpu1 memory failed: memory"]),
        ({"gpu_ids": "1,2", "status": "Fail"}, ["gpu1 memory failed: memory", "gpu2 memory failed: memory"]),
        ({"entity_group": "CPU", "entity_id": 0, "status": "Fail"}, ["node memory failed: memory"]),
        ({"gpu_id": "\u0663", "status": "Fail"}, ["node memory failed: memory"]),
    ],
)
def test_a_result_is_of_the_gpus_that_it_names(tmp_path: Path, result: dict[str, Any], expected: list[str]):
    text = results({"entity_group": "GPU", "entity_id": 0, "status": "PASS"}, result)
    assert lines(report(tmp_path, text, "diag.json")) == ["gpu0 passed", *expected]


def test_each_of_several_reports_of_links_counts(tmp_path: Path):
    one = "mlxlink -d mlx5_{}\nOperational Info\n----\nState                    : {}\nPhysical state           : {}\n"
    found = report(tmp_path, one.format(0, "Down", "Disabled") + one.format(1, "Active", "LinkUp"))
    assert lines(found) == ["mlx5_0 port failed: link is Down, Disabled: ", "mlx5_1 passed"]


@pytest.mark.parametrize(("ber", "failed"), [("15E-255", False), ("3E-13", False), ("2E-9", True), ("N/A", False)])
def test_a_port_that_is_up_fails_by_the_errors_that_correction_leaves(tmp_path: Path, ber: str, failed: bool):
    text = (
        "mlxlink -d mlx5_1 -c\nOperational Info\n----\nState                    : Active\n"
        f"Physical state           : LinkUp\nEffective Physical BER          : {ber}\n"
    )
    (line,) = lines(report(tmp_path, text))
    assert line.startswith("mlx5_1 port_errors failed: " if failed else "mlx5_1 passed")


def links(gpus: int, line: str, of: int = 0) -> str:
    return "".join(f"GPU {gpu}: H100 (UUID: GPU-{gpu})\n" + (f"\t Link 0: {line}\n" if gpu == of else
                   "\t Link 0: 26.562 GB/s\n") for gpu in range(gpus))  # fmt: skip


def test_crc_errors_are_named_as_not_judged_and_are_no_pass(tmp_path: Path):
    found = report(tmp_path, links(4, "CRC FLIT Error: 900000"))
    assert lines(found) == ["gpu1 passed", "gpu2 passed", "gpu3 passed"]
    assert "CRC errors of NVLinks are totals and not judged: gpu0" in found.notes


def test_links_of_two_gpus_are_compared_with_nothing(tmp_path: Path):
    with pytest.raises(DataError, match="links of fewer than 3 GPUs cannot be compared"):
        report(tmp_path, links(2, "<inactive>"))
    assert lines(report(tmp_path, links(2, "Replay Errors: 3"))) == [
        "gpu0 nvlink failed: NVLink 0 was replayed or recovered after errors"
    ]


def test_words_of_a_warning_are_bounded(tmp_path: Path):
    rows = [
        ("memory", "Fail - All"),
        *[("Warning", "GPU 3 " + "x" * 40)] * 8_000,
        *[("", f"GPU{n}: Fail") for n in range(900)],
    ]
    text = diag(*rows)
    start_s = process_time()
    found = lines(report(tmp_path, text))
    assert process_time() - start_s < 5.0
    assert len(found) == 900
    assert max(map(len, found)) < 450


def test_the_json_of_dcgmi_health_is_named_with_a_remedy(tmp_path: Path):
    path = tmp_path / "health.json"
    path.write_text('{"body": {"Overall Health": {"value": "Healthy"}}, "header": ["Health Monitor Report"]}')
    (unread,) = read_job(path).unread
    assert "dcgmi health -c" in unread.why


def test_nodes_of_a_whole_file_are_counted(tmp_path: Path):
    text = "NODELIST|STATE|REASON\n" + "a[1-9999]|down|x\n" * 80
    with pytest.raises(DataError, match=f"more than {MAX_NODES:,} nodes"):
        slurm(tmp_path, text)


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("a[1-2-3]", ["a[1-2-3]"]),
        ("a[3-1]", ["a[3-1]"]),
        ("a[1", ["a[1"]),
        ("n" * 100, ["n" * 100]),
        ("a[01-02,9],b", ["a01", "a02", "a9", "b"]),
        ("[1-9]" * 40, ["[1-9]" * 40]),
    ],
)
def test_a_host_list_is_spelt_out_or_stays_one_name(tmp_path: Path, listed: str, expected: list[str]):
    (log,) = slurm(tmp_path, f"NODELIST|STATE|REASON\n{listed}|down|x\n").logs
    assert list(log.nodes) == expected


def test_a_row_of_many_nodes_that_are_down_is_one_row(tmp_path: Path):
    found = slurm(tmp_path, "NODELIST|STATE|REASON\na[1-8]|down|x\nb1|idle|none\n")
    assert found.notes == ["1 of 2 rows end in a failure or are of nodes that are out of use"]


@pytest.mark.parametrize("state", ["drained", "draining", "drain", "drng", "idle+drain", "mixed+drain"])
def test_drained_nodes_are_named_with_their_reason(tmp_path: Path, state: str):
    found = slurm(tmp_path, f"NODELIST|STATE|REASON\na[1-2]|{state}|bad riser\nb1|idle|none\n")
    assert found.notes[1] == "2 nodes are drained: a1 (bad riser), a2 (bad riser)"


def test_a_table_without_nodes_says_nothing_of_jobs(tmp_path: Path):
    assert slurm(tmp_path, "NODELIST|STATE|REASON\n|idle|none\n").notes == ["it names no node"]


@pytest.mark.thorough
def test_counters_that_nobody_knows_are_no_columns(tmp_path: Path):
    blocks = ""
    for minute in range(10, 30):
        blocks += f"2026-09-21T14:{minute}:00Z\nNIC statistics:\n     rx_packets: {minute}\n"
        blocks += "".join(f"     rx_err_{minute}_{number}: {number}\n" for number in range(300))
        blocks += f"     odd_err: {7 if minute < 15 else 9}\n"
    path = tmp_path / "ethtool_eth2.txt"
    path.write_text(blocks)
    tracemalloc.start()
    job = read_job(path)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 3_500_000
    assert job.metrics is not None
    assert job.metrics.names == ("nic_receive_packets_count",)
    assert any(note.endswith("no rule judges: odd_err") for note in job.notes)


def test_inactive_links_of_one_gpu_are_told_though_nvidia_smi_lists_none(tmp_path: Path) -> None:
    up = "".join(f"\t Link {link}: 53.125 GB/s\n" for link in range(2))
    blind = "NVML: Unable to retrieve NVLink information as all links are inActive\n"
    title = "GPU {}: NVIDIA B200 (UUID: GPU-{})\n"
    whole = "".join(title.format(gpu, gpu) + (blind if gpu == 2 else up) for gpu in range(4))
    found = lines(report(tmp_path, whole))
    assert [line for line in found if "failed" in line] == [
        "gpu2 nvlink failed: NVLink 0, 1 is inactive and up on most other GPUs"
    ]
    nobody = "".join(title.format(gpu, gpu) + blind for gpu in range(4))
    with pytest.raises(DataError):
        report(tmp_path, nobody)


def test_states_of_gpud_are_judged_by_their_xids_and_ports(tmp_path: Path) -> None:
    reason = "XID 48 (Double Bit ECC Error) detected on GPU PCI:0000:6b:00 UUID:GPU-c4"
    states = [
        {"component": "accelerator-nvidia-error-xid", "states": [{"health": "Unhealthy", "reason": reason}]},
        {"component": "accelerator-nvidia-nvlink", "states": [{"health": "Degraded", "reason": "one replay"}]},
        {"component": "os", "states": [{"health": "Unhealthy", "reason": "many zombies"}]},
    ]
    path = tmp_path / "states.json"
    path.write_text(json.dumps(states), encoding="utf-8")
    job = read_job(path)
    assert [log.lines for log in job.logs] == [
        [f"NVRM: Xid (PCI:0000:6b:00): 48, {reason}", "health check: node passed"]
    ]
    assert any("os" in note for note in job.notes)


def test_counts_of_blocks_of_a_gpu_add_up(tmp_path: Path) -> None:
    path = tmp_path / "amd.prom"
    path.write_text(
        "# TYPE amd_gpu_ecc_uncorrect_sdma gauge\n"
        + "".join(
            f'amd_gpu_ecc_uncorrect_{block}{{gpu_id="{gpu}",hostname="h1"}} {gpu}\n'
            for block in ("sdma", "umc")
            for gpu in (0, 1)
        ),
        encoding="utf-8",
    )
    table = read_job(path).metrics
    assert table is not None
    assert (table.names, table.values[:, 0].tolist()) == (("gpu_ecc_uncorrectable_volatile_count",), [0.0, 2.0])
    assert list(zip(table.nodes, table.devices, strict=True)) == [("h1", "gpu0"), ("h1", "gpu1")]


@pytest.mark.parametrize("name", ["what.txt", "what"])
def test_a_text_of_no_known_form_is_judged_by_its_lines_alone(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("| 3 | Critical Interrupt | Bus Fatal Error | Asserted |\nnothing else\n", encoding="utf-8")
    (found,) = read_job(path).files
    assert found.format == "plain text"
    (tmp_path / "README.md").write_text(
        "A GPU has fallen off the bus: NVRM: Xid (PCI:0000:3b:00): 79\n", encoding="utf-8"
    )
    assert not read_job(tmp_path / "README.md").logs
