"""Tables of a run whose step times have unusual names, or none; files of other tools that say little."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from trainwarden.detectors.logs.rules import shipped_rules
from trainwarden.detectors.recorded.facts import read_facts
from trainwarden.detectors.recorded.replay import replay
from trainwarden.formats.names import duration_factor, is_rate, metric_of
from trainwarden.formats.reading import read_job
from trainwarden.recorded.job import RecordedJob
from trainwarden.settings import DetectionSettings

T0 = 1_790_000_000


def read(folder: Path, name: str, text: str) -> RecordedJob:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return read_job(path)


def table(header: str, row: Callable[[int, float, float], str]) -> str:
    """Rows of a run that becomes four times slower at step 30: step, time since its start, duration."""
    lines, time_s = [header], 0.0
    for step in range(60):
        duration_s = (1.0 if step < 30 else 4.0) * (1.0 + 0.01 * (step % 3))
        time_s += duration_s
        lines.append(row(step, time_s, duration_s))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("epoch,step,train_loss,train_step_timing in s,val_loss", lambda i, t, d: f"0,{i},2.0,{d},"),
        ("step,loss,sec/step", lambda i, t, d: f"{i},2.0,{d}"),
        ("step,actor/pg_loss,timing_s/step", lambda i, t, d: f"{i},2.0,{d}"),
        ("step,loss,time_metrics/end_to_end(s)", lambda i, t, d: f"{i},2.0,{d}"),
        ("epoch,step,train/loss,train/time_per_batch_ms", lambda i, t, d: f"0,{i},2.0,{d * 1e3}"),
        ("step,loss,mfu", lambda i, t, d: f"{i},2.0,{0.4 / d}"),
        ("epoch,loss,epoch_time", lambda i, t, d: f"{i},2.0,{d}"),
        ("iter,loss,time,data_time", lambda i, t, d: f"{i},2.0,{d},0.01"),
        ("step,time", lambda i, t, d: f"{i},{T0 + t}"),
        ("step,elapsed", lambda i, t, d: f"{i},{t}"),
        ("step,created_at,lr", lambda i, t, d: f"{i},{T0 + t},0.1"),
        ("epoch,step,train_loss,train|time", lambda i, t, d: f"0,{i},2.0,{t}"),
    ],
)
def test_step_times_are_found_or_follow_from_times(
    header: str, row: Callable[[int, float, float], str], tmp_path: Path
):
    found = read(tmp_path, "metrics.csv", table(header, row)).iterations
    assert found is not None
    duration_s = found.duration_s[np.isfinite(found.duration_s)]
    assert np.median(duration_s[-20:]) / np.median(duration_s[:20]) == pytest.approx(4.0, rel=0.05)


@pytest.mark.parametrize(
    "name", ["time/batch", "time_step", "val_step_timing", "data_load_time_per_batch", "step_size"]
)
def test_what_is_no_time_of_a_step_is_not_taken_for_it(name: str):
    assert (duration_factor(name), is_rate(name)) == (None, False)


@pytest.mark.parametrize("header", ["step,lr", "epoch,step,lr-AdamW,val_loss", "epoch,accuracy,val_accuracy"])
def test_steps_with_nothing_to_judge_are_unread_with_the_reason(header: str, tmp_path: Path):
    job = read(tmp_path, "metrics.csv", table(header, lambda i, t, d: ",".join([str(i)] * len(header.split(",")))))
    assert (job.iterations, job.metrics, job.logs) == (None, None, ())
    assert "say nothing of the run" in job.unread[0].why


def test_losses_without_times_say_that_the_pace_was_not_judged(tmp_path: Path):
    job = read(tmp_path, "metrics.csv", table("step,loss", lambda i, t, d: f"{i},2.0"))
    assert "the pace was not judged" in job.notes[0]


def test_a_line_without_end_is_no_log(tmp_path: Path):
    job = read(tmp_path, "train.log", "a" * 1_000_000)
    assert (job.logs, len(job.unread)) == ((), 1)


def test_the_last_values_of_mlflow_are_named(tmp_path: Path):
    run = {"info": {"run_id": "ab", "start_time": T0 * 1000}, "data": {"metrics": [{"key": "loss", "step": "7"}]}}
    for number, whole in enumerate(({"run": run}, {"runs": [run]})):
        assert "MLflow" in read(tmp_path, f"run{number}.json", json.dumps(whole, indent=number or None)).unread[0].why


@pytest.mark.parametrize("label", ["node", "host", "hostname", "instance", "node_name", "pod"])
def test_a_stream_of_loki_gives_its_lines_their_node(label: str, tmp_path: Path):
    values = [[str(T0 * 10**9), "kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."]]
    streams = {"data": {"resultType": "streams", "result": [{"stream": {label: "a1"}, "values": values}]}}
    assert read(tmp_path, "loki.json", json.dumps(streams)).logs[0].nodes == ("a1",)


def test_the_console_of_cloudwatch_is_read(tmp_path: Path):
    text = "Full label,nvidia_smi_temperature_gpu gpu0,nvidia_smi_utilization_gpu gpu0\n"
    text += "".join(f"2026/09/21 14:5{minute}:00,6{minute},97\n" for minute in range(9))
    found = read(tmp_path, "cw.csv", text).metrics
    assert found is not None
    assert (found.devices, set(found.names)) == (("gpu0",), {"gpu_temperature_celsius", "gpu_utilization_ratio"})
    assert found.values[0, found.names.index("gpu_utilization_ratio")] == pytest.approx(0.97)


def test_an_exception_that_cuda_gdb_shows_is_a_log_line_with_a_rule(tmp_path: Path):
    lines = ["[New LWP 4300]", "CUDA Exception: Warp Illegal Address",
             'Thread 1 "python" received signal CUDA_EXCEPTION_14, Warp Illegal Address.']  # fmt: skip
    (log,) = read(tmp_path, "cudagdb.txt", "\n".join(lines) + "\n").logs
    rules = shipped_rules()
    assert [getattr(rules.match(line), "id", None) for line in log.lines[1:]] == ["cuda.illegal_access"] * 2


def test_growing_faults_of_a_port_are_judged_or_named(tmp_path: Path):
    text = "".join(
        f"2026-09-21T14:{minute}:00Z\nNIC statistics:\n     rx_packets: {100_000 * minute}\n"
        f"     port.rx_crc_errors: {900 * minute}\n     rx_fec_uncorrectable: {minute}\n"
        for minute in range(10, 20)
    )
    job = read(tmp_path, "ethtool_eth2.txt", text)
    assert job.metrics is not None
    assert "nic_receive_crc_errors_count" in job.metrics.names
    assert "rx_fec_uncorrectable" in job.notes[0]
    incidents = replay(job, DetectionSettings(), names=("device_limits",), facts=read_facts(job)).incidents
    assert [(one.kind, one.suspects[0].device) for one in incidents] == [("nic_error", "eth2")]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("     rx_corrected_bits_phy: {many}\n     rx_fec_uncorrectable_blocks: {few}\n", True),
        ("     rx_corrected_bits_phy: {many}\n     rx_fec_uncorrectable_blocks: 3\n", False),
        ("     rx_corrected_bits_phy: {many}\n     rx_pcs_symbol_err_phy: {few}\n", True),
    ],
)
def test_what_error_correction_repairs_is_no_fault_and_what_it_leaves_is(tmp_path: Path, text: str, told: bool):
    text = "".join(
        f"2026-09-21T14:{minute}:00Z\nNIC statistics:\n" + text.format(many=9_000_000 * minute, few=900 * minute)
        for minute in range(10, 20)
    )
    job = read(tmp_path, "ethtool_eth2.txt", text)
    found = replay(job, DetectionSettings(), names=("device_limits",), facts=read_facts(job)).incidents
    assert [one.kind for one in found] == ["nic_error"] * told


@pytest.mark.parametrize(
    "name", ["ERROR_DL_CRC", "ERROR_DL_REPLAY", "ERROR_DL_RECOVERY", "COUNT_LINK_RECOVERY_FAILED_EVENTS",
             "COUNT_RX_SYMBOL_ERRORS", "RX_SYMBOL_ERROR_TOTAL", "COUNT_EFFECTIVE_ERRORS", "EFFECTIVE_BER_RATIO",
             "COUNT_RX_MALFORMED_PACKET_ERRORS", "COUNT_LOCAL_LINK_INTEGRITY_ERRORS"]
)  # fmt: skip
def test_names_of_nvlink_in_dcgm_four_and_for_nvlink_five_are_known(name: str):
    heading = metric_of(f"DCGM_FI_DEV_NVLINK_{name}")
    assert heading is not None
    assert heading.name.startswith("gpu_nvlink_")


def records(**more: object) -> str:
    said = [{"time": T0 + step, "msg": f"step {step} loss 2.1", "rank": step % 4, "level": "INFO"} for step in range(8)]
    return "".join(f"{json.dumps(one)}\n" for one in (*said, {"time": T0 + 9, "rank": 2, "level": "ERROR", **more}))


TRACEBACK = "Traceback (most recent call last):\n  File 'x.py', line 7, in <module>\n    run()\nKeyError: 'input_ids'"


@pytest.mark.parametrize(
    "more",
    [{"msg": TRACEBACK}, {"msg": "it failed", "exc_info": TRACEBACK}, {"msg": "x", "error": {"stack": TRACEBACK}}],
)
def test_a_record_gives_its_rank_to_each_line_of_its_words(more: dict[str, object], tmp_path: Path):
    job = read(tmp_path, "train.jsonl", records(**more))
    (log,) = job.logs
    assert (log.lines[-1], log.ranks[-4:]) == ("KeyError: 'input_ids'", (2, 2, 2, 2))
    (incident,) = replay(job, DetectionSettings(), facts=read_facts(job)).incidents
    assert (incident.kind, incident.suspects[0].rank) == ("exception", 2)


@pytest.mark.parametrize("rank", [-1, "all", 10**9, None])
def test_what_is_no_rank_names_none(rank: object, tmp_path: Path):
    text = json.dumps([{"time": T0, "msg": "ready", "rank": rank}, {"time": T0 + 1, "msg": "go", "rank": "3"}])
    assert read(tmp_path, "log.json", text).logs[0].ranks == (None, 3)


def test_records_without_times_are_lines(tmp_path: Path):
    text = "".join(f"{json.dumps({'message': f'step {step} loss 2.1', 'rank': 1})}\n" for step in range(3))
    assert read(tmp_path, "out.jsonl", text).logs[0].ranks == (1, 1, 1)


def test_an_index_that_counts_samples_is_a_step_and_no_gpu(tmp_path: Path):
    text = "index,timestamp,value\n"
    text += "".join(f"{step}.0,{T0 + 3 * step},{'nan' if step > 90 else 2.1}\n" for step in range(120))
    job = read(tmp_path, "train_loss.csv", text)
    (incident,) = replay(job, DetectionSettings(), facts=read_facts(job)).incidents
    assert incident.kind == "silent_corruption"


@pytest.mark.parametrize(("looks", "told"), [(1, ["gpu2"]), (2, [])])
def test_uncorrectable_errors_that_a_single_look_shows_are_told(tmp_path: Path, looks: int, told: list[str]):
    cards = [{"gpu": gpu, "usage": {"gfx_activity": {"value": 97, "unit": "%"}}, "temperature": {"hotspot": 66},
              "ecc": {"total_uncorrectable_count": 3 if gpu == 2 else 0}} for gpu in range(4)]  # fmt: skip
    (tmp_path / "amd.json").write_text("\n".join([json.dumps(cards)] * looks))
    job = read_job(tmp_path)
    found = replay(job, DetectionSettings(), facts=read_facts(job)).incidents
    assert [one.suspects[0].device for one in found if one.kind == "gpu_memory_error"] == told
