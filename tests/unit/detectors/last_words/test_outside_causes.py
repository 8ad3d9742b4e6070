# ruff: noqa: E501 - log lines are quoted whole
"""Causes outside of every rank, and the last words of accelerators and of hosts whose driver does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.detectors.last_words.judged import answered, judged, only, raised, steps

FAILED = "E1104 08:05:06.902000 6990 site-packages/torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: 1) local_rank: 2 (pid: 7002) of binary: /srv/venv/bin/python"
LIMITED = "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://hub.example/api/datasets/a"
TOO_OLD = "/srv/venv/torch/cuda/__init__.py:141: UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 11040)."
TEARDOWN = (
    "[ 8850.919248] efa 0000:a0:1a.0 rdmap160s26: Failed to process command DEREG_MR (opcode 8) comp_status 7 err -22"
)
EXPIRED = "botocore.exceptions.ClientError: An error occurred (ExpiredToken) when calling the PutObject operation: The provided token has expired."


def test_what_a_hub_refuses_to_several_ranks_is_the_fault_of_none(tmp_path: Path) -> None:
    lines = [line for rank in (2, 5, 6) for line in raised(rank, LIMITED)]
    assert only(tmp_path, *steps("08:05:00", 8), *lines, FAILED) == ("exception", None)


def test_a_stale_share_that_several_ranks_meet_accuses_none(tmp_path: Path) -> None:
    stale = "OSError: [Errno 116] Stale file handle: '/share/cache.arrow'"
    lines = [line for rank in (1, 9, 12) for line in raised(rank, stale)]
    incidents = judged(tmp_path, {"logs.txt": [*steps("08:05:00", 8), *lines, FAILED]})
    assert [(one.kind, one.suspects) for one in incidents] == [("storage", ())]


def test_expired_credentials_end_a_service_and_accuse_nobody(tmp_path: Path) -> None:
    said = [f"Feb 28 05:{i:02d}:00 n7 job[31]: step {i} loss 2.{i:02d}" for i in range(10, 20)]
    said += [f"Feb 28 05:20:00 n7 job[31]: E {EXPIRED}"]
    ended = ["Feb 28 05:20:01 n7 systemd[1]: job.service: Main process exited, code=exited, status=1/FAILURE"]
    answer, incidents = answered(tmp_path, "journal.txt", [*said, *ended])
    assert (answer, [one.kind for one in incidents]) != ("healthy", []), answer
    assert all(suspect.node is None and suspect.rank is None for one in incidents for suspect in one.suspects)


def test_credentials_that_are_renewed_end_nothing(tmp_path: Path) -> None:
    assert judged(tmp_path, {"logs.txt": [*steps("08:04:55", 20), EXPIRED, *steps("08:09:55", 20)]}) == []


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("libc++abi: terminating due to uncaught exception of type std::runtime_error: [METAL] Command buffer execution failed: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)", "cuda_out_of_memory"),
        ("libc++abi: terminating due to uncaught exception of type std::runtime_error: [METAL] Command buffer execution failed: Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)", "crash"),
        ("RuntimeError: MPS backend out of memory (MPS allocated: 17.9 GB, max allowed: 18.1 GB).", "cuda_out_of_memory"),
        (TOO_OLD, "user_error"),
        ("EZ9999[PID: 77] 2026-11-04-08:05:00.1 (EZ9999):  The error from device(chipId:1, dieId:0), there is an exception of aivec error, core id is 11", "exception"),
    ],
)  # fmt: skip
def test_last_words_of_a_device_before_the_shell_tells_the_end(tmp_path: Path, line: str, kind: str) -> None:
    incidents = judged(tmp_path, {"logs.txt": [*steps("08:05:00", 8), line, "zsh: abort      python train.py"]})
    assert [one.kind for one in incidents] == [kind]


def test_a_driver_that_does_not_fit_names_the_host_of_its_file(tmp_path: Path) -> None:
    starts = ["[2026-11-04 08:05:00,100] [INFO] [comm.py:637:init_distributed] cdb=None"]
    ended = "[2026-11-04 08:05:06,101] [ERROR] [launch.py:325:sigkill_handler] ['python', 'train.py', '--local_rank=3'] exits with return code = 1"
    files = {f"pdsh-10.0.7.{i}.log": starts for i in (21, 23)} | {"pdsh-10.0.7.22.log": [*starts, TOO_OLD, ended]}
    (incident,) = judged(tmp_path, files)
    assert (incident.kind, incident.suspects[0].node) == ("user_error", "10.0.7.22")


def test_a_name_that_is_not_resolved_names_the_pod_that_says_so(tmp_path: Path) -> None:
    said = raised(0, "ValueError: host not found: Name or service not known", "[team][job-worker-1] ")
    (incident,) = judged(tmp_path, {"logs.txt": said})
    assert (incident.kind, incident.suspects[0].node) == ("exception", "job-worker-1")


def test_what_is_taken_down_behind_a_process_that_is_gone_is_no_fault(tmp_path: Path) -> None:
    assert judged(tmp_path, {"logs.txt": steps("08:05:00", 8), "dmesg.txt": [TEARDOWN]}) == []


def test_neurons_memory_names_the_device_and_the_host_of_the_file(tmp_path: Path) -> None:
    fault = "2026-Nov-04 08:06:58.200978 41034:41301 ERROR  TDRV:exec_consume_infer_status_notifications  Uncorrectable memory error is detected on Neuron device: 5:1 metadata: 0x2. Failing execution."
    (incident,) = judged(tmp_path, {"ip-10-1-2-3.log": [fault], "ip-10-1-2-4.log": ["2026-Nov-04 08:06:57.1 ok"]})
    assert (incident.kind, incident.suspects[0].node, incident.suspects[0].device) == (
        "gpu_memory_error",
        "ip-10-1-2-3",
        "nd5",
    )


def test_records_among_which_a_library_prints_are_read_with_its_lines(tmp_path: Path) -> None:
    record = '{{"ts":"2026-11-04T08:10:{0:02d}Z","event":"train_step","step":{0},"loss":2.1,"step_time_s":1.0}}'
    warned = "n{0}:9:9 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer 10.2.1.2<54862> with status=12 opcode=0 len=0 vendor err 129 (Recv)"
    lines = [*(record.format(i) for i in range(30)), *(warned.format(i) for i in (1, 3, 4))]
    (incident,) = judged(tmp_path, {"train.jsonl.log": lines})
    assert (incident.kind, incident.suspects[0].node) == ("nic_error", "10.2.1.2")


def test_records_with_a_harmless_line_among_them_are_healthy(tmp_path: Path) -> None:
    record = '{{"ts":"2026-11-04T08:10:{0:02d}Z","event":"train_step","step":{0},"loss":2.1,"step_time_s":1.0}}'
    lines = ["n1:9:9 [4] NCCL INFO Bootstrap : Using eth0:10.2.1.1<0>"] * 5
    answer, incidents = answered(tmp_path, "train.jsonl.log", [*(record.format(i) for i in range(30)), *lines])
    assert (answer, incidents) == ("healthy", [])
