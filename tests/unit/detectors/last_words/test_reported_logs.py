"""Kinds of logs that public reports of failed jobs hold, in words of our own: who is named, and who is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.detectors.last_words.judged import TIMED_OUT, judged, only, raised

TABLE = """Failures:
[1]:
  time      : 2026-11-04_13:02:58
  rank      : 3 (local_rank: 3)
  exitcode  : 1 (pid: 7003)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
[2]:
  rank      : 0 (local_rank: 0)
  exitcode  : -9 (pid: 7000)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 7000
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 7001)
  error_file: <N/A>"""
UNKNOWN_PREFIXES = (
    " 2026-11-04 08:10 {said}",  # a stamp to the minute
    "bench-giant.node-4 [stderr] {said}",
    "Epoch 0:  6%|#  | 320/5001 [6:28:43<94:39:17, 1.37it/s, loss=2.6]{said}",
)


def test_what_surrounds_a_row_of_torchruns_table_is_no_consequence(tmp_path: Path) -> None:
    assert only(tmp_path, *TABLE.splitlines()) == ("crash", 1)


@pytest.mark.parametrize("prefix", UNKNOWN_PREFIXES)
def test_torchs_prefix_names_a_rank_behind_anything(tmp_path: Path, prefix: str) -> None:
    heard = [prefix.format(said=f"[rank{rank}]: ready") for rank in range(4)]
    waited = [prefix.format(said=TIMED_OUT.format(rank=rank, clock="08:10:05")) for rank in (0, 1, 3)]
    assert only(tmp_path, *heard, *waited) == ("hang", 2)


def test_numbers_of_lines_are_no_ranks(tmp_path: Path) -> None:
    said = ["{'loss': 0.6, 'epoch': 0.3}", *(TIMED_OUT.format(rank=rank, clock="08:10:05") for rank in (0, 4, 3, 2))]
    (incident,) = judged(tmp_path, {"logs.txt": [f"[{80740 + place}] {line}" for place, line in enumerate(said)]})
    assert incident.kind == "hang"
    assert not incident.suspects


def test_whoever_tells_of_anothers_end_is_no_suspect(tmp_path: Path) -> None:
    mesh = "[rank{rank}]:[E421 02:05:38.76{rank}490322 ProcessGroupGloo.cpp:143] Gloo connectFullMesh failed with [pair.cc:144] no error"  # noqa: E501
    assert only(tmp_path, *(mesh.format(rank=rank) for rank in (4, 6))) == ("crash", None)


@pytest.mark.parametrize("done", ["worker-1 exited with code 0", "      Exit Code:    0"])
def test_a_container_that_ends_with_code_0_has_not_failed(tmp_path: Path, done: str) -> None:
    assert not judged(tmp_path, {"logs.txt": ["worker-1  | {'loss': 1.1, 'epoch': 0.02}", done]})


@pytest.mark.parametrize(
    ("said", "kind", "rank"),
    [
        ("[2026-11-04 15:45:13,982] [ERROR] [launch.py:321:sigkill_handler] ['python', '--local_rank=1', '--fp16'] exits with return code = -7", "crash", None),  # noqa: E501
        ("2026-11-04 16:03:15.140058: E coordination_service.cc:954] /job:jax_worker/replica:0/task:37 has been set to ERROR: UNAVAILABLE: Task /job:jax_worker/replica:0/task:37 heartbeat timeout.", "crash", 37),  # noqa: E501
        ("2026-11-04 02:10:11.120500: F client.h:80] Terminating process because the JAX distributed service detected fatal errors.", "crash", None),  # noqa: E501
        ("(raylet) [2026-11-04 15:18:33,592 E 30307 30344] (raylet) node_manager.cc:2963: System memory low at node with IP 172.17.0.2.", "out_of_memory", None),  # noqa: E501
        ('time="2026-11-04T09:32:29Z" level=info msg="Pod: team.job-worker-0 exited with code 1" job=team.job', "crash", None),  # noqa: E501
        ("[ 1632.420956] infiniband efa_0: Failed to process command ALLOC_PD (opcode 14) comp_status 1 err -12", "nic_error", None),  # noqa: E501
        ("[Wed Jun 28 13:19:08 2026] nvme nvme4: failed nvme_keep_alive_end_io error=10", "storage", None),
        ("h1:9:13 [4] ib_plugin.c:16 NCCL WARN NET/IBP:Got completion from peer 7.6.13.83<363> with status=12 vendor err 129", "nic_error", None),  # noqa: E501
    ],
)  # fmt: skip
def test_what_reports_show_is_read(tmp_path: Path, said: str, kind: str, rank: int | None) -> None:
    assert only(tmp_path, said) == (kind, rank)


def test_a_failing_disk_and_the_node_of_a_signal_are_named(tmp_path: Path) -> None:
    for name in ("disk", "signal"):
        (tmp_path / name).mkdir()
    said = "[  120.103133] nvme nvme0: I/O 900 QID 2 timeout, reset controller"
    (disk,) = judged(tmp_path / "disk", {"dmesg.txt": [said]})
    assert disk.suspects[0].device == "nvme0"
    lines = [
        "[ge:7000] Signal: Segmentation fault (11)",
        "mpiexec noticed that process rank 0 with PID 7000 on node ge exited on signal 11 (Segmentation fault).",
    ]
    (signal,) = judged(tmp_path / "signal", {"logs.txt": lines})
    assert (signal.suspects[0].rank, signal.suspects[0].node) == (0, "ge")


def test_a_zone_by_name_belongs_to_the_stamp(tmp_path: Path) -> None:
    lines = raised(1, "ZeroDivisionError: division by zero", "2026-11-04 04:05:06.101 UTC [default{rank}]:")
    ended = "2026-11-04 04:05:08.101 UTC E1104 04:05:08.101000 12 torch/api.py:882] failed (exitcode: 1) local_rank: 1 (pid: 99) of binary: x"  # noqa: E501
    assert only(tmp_path, *lines, ended) == ("exception", 1)


STALL = "[1,0]<stderr>:[2026-11-04 09:12:44.118531: W horovod/common/stall_inspector.cc:107] One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks for more than 60 seconds."  # noqa: E501
MISSING = ("[1,0]<stderr>:Missing ranks:", "[1,0]<stderr>:3: [grads_1_0, grads_2_0 ...]")
STEPS = [f"[1,0]<stdout>:step {step} loss 2.31" for step in range(100, 106)]


def test_a_stall_that_horovod_reports_blames_the_missing_rank_and_not_the_coordinator(tmp_path: Path) -> None:
    assert only(tmp_path, *STEPS, STALL, *MISSING) == ("hang", 3)


def test_a_stall_with_several_missing_ranks_names_none(tmp_path: Path) -> None:
    assert only(tmp_path, *STEPS, STALL, *MISSING, "[1,0]<stderr>:5: [grads_1_0 ...]") == ("hang", None)


def test_lines_of_another_file_name_no_missing_rank(tmp_path: Path) -> None:
    other = "2026-11-04 09:12:50,000 5: [debug] queue is empty"
    (incident,) = judged(tmp_path, {"a.txt": [*STEPS, STALL, *MISSING], "b.txt": [other]})
    assert [one.rank for one in incident.suspects] == [3]


def test_a_stall_that_the_job_outlives_is_no_incident(tmp_path: Path) -> None:
    assert not judged(tmp_path, {"logs.txt": [STALL, *MISSING, *STEPS]})


def test_a_job_that_ends_after_nothing_but_consequences_is_dead_and_blames_no_rank(tmp_path: Path) -> None:
    polled = "2026-11-04 09:12:44.118531: E coordination_service_agent.cc:525] Polled an error from the coordination service: UNAVAILABLE: failed to connect to all addresses; ipv4:10.0.0.5:8476: Connection refused"  # noqa: E501
    fatal = "2026-11-04 09:12:44.118600: F client.h:80] Terminating process because the JAX distributed service detected fatal errors."  # noqa: E501
    assert only(tmp_path, *STEPS, polled, fatal) == ("crash", None)


BROKE = "gn04:4100:4300 [2] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.1.0.9<38410> with status=12 opcode=0 len=0 vendor err 129 (Recv)"  # noqa: E501


@pytest.mark.parametrize(("host", "kinds"), [("gn04", ["nic_down"]), ("gn05", ["nic_down", "nic_error"])])
def test_a_host_whose_port_is_lost_does_not_accuse_its_peer(tmp_path: Path, host: str, kinds: list[str]) -> None:
    lost = f"{host}:4100:4190 [2] transport/net_ib.cc:94 NCCL WARN NET/IB : mlx5_2:1 Got async event : port error"
    incidents = judged(tmp_path, {"logs.txt": [lost, BROKE]})
    assert sorted(one.kind for one in incidents) == kinds


FULL = "OSError: [Errno 122] Disk quota exceeded: '/srv/checkpoints'"


@pytest.mark.parametrize(
    "before", [STEPS, [], ["Traceback (most recent call last):", '  File "x.py", line 3, in save']]
)
def test_the_only_task_that_ended_is_the_rank_of_a_full_disk(tmp_path: Path, before: list[str]) -> None:
    ended = "srun: error: gn07: task 5: Exited with exit code 1"
    (incident,) = judged(tmp_path, {"logs.txt": [*before, FULL, ended, "srun: Terminating StepId=12.0"]})
    assert (incident.kind, incident.suspects[0].rank, incident.suspects[0].node) == ("storage", 5, "gn07")


def test_of_several_tasks_that_ended_none_is_the_rank_of_a_full_disk(tmp_path: Path) -> None:
    ended = ("srun: error: gn07: task 5: Exited with exit code 1", "srun: error: gn08: task 9: Exited with exit code 1")
    assert only(tmp_path, FULL, *ended) == ("storage", None)


def test_a_gpu_that_is_lost_is_why_its_bus_complains_before_and_after(tmp_path: Path) -> None:
    bus = (
        "[  889.54200{at}] pcieport 0000:00:02.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer"
    )
    lost = "[  889.542005] NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus."
    (incident,) = judged(tmp_path, {"dmesg.txt": [bus.format(at=1), lost, bus.format(at=9)]})
    assert (incident.kind, incident.suspects[0].device) == ("gpu_lost", "0000:02:00")


def test_an_exception_behind_torch_s_own_prefix_is_one_that_nothing_caught(tmp_path: Path) -> None:
    assert only(tmp_path, "[rank4]: KeyError: 'input_ids'") == ("exception", 4)


@pytest.mark.parametrize("line", ["rank 4 got KeyError: 'input_ids'", "KeyError: 'input_ids'"])
def test_an_exception_that_may_have_been_caught_alone_ends_nothing(tmp_path: Path, line: str) -> None:
    assert not judged(tmp_path, {"logs.txt": [line]})


def test_what_training_outlives_was_no_end_where_no_step_has_a_time(tmp_path: Path) -> None:
    failed = "gn07:39:298 [0] include/alloc.h:48 NCCL WARN Cuda failure 'out of memory'"
    assert not judged(tmp_path, {"logs.txt": [failed, *(f"Train Epoch: 1 Loss: 2.{step}" for step in range(4))]})
    assert only(tmp_path, *(f"Train Epoch: 1 Loss: 2.{step}" for step in range(4)), failed)[0] == "cuda_out_of_memory"


@pytest.mark.parametrize(("skipped", "reported"), [(0, True), (1, False)])
def test_gradients_that_are_no_numbers_count_where_the_step_was_not_skipped(
    tmp_path: Path, skipped: int, reported: bool
):
    step = " iteration {at:8d}/ 900 | elapsed time per iteration (ms): 7613.1 | grad norm: nan | number of skipped iterations:   {skipped} | nan iterations: 0 |"  # noqa: E501
    lines = [step.format(at=at, skipped=skipped) for at in range(40, 44)]
    assert bool(judged(tmp_path, {"logs.txt": lines})) is reported


@pytest.mark.parametrize(
    ("said", "device"),
    [
        ("[   72.993269] habanalabs hl2: Failed to communicate with Device CPU (CPU-CP timeout)", "hl2"),
        ("[ 9172.113269] habanalabs 0000:1a:00.0: Failed to initialize hl2. Device is NOT usable !", "0000:1a:00.0"),
        (
            "[ 9172.113269] xe 0000:03:00.0: [drm] CRITICAL: Xe has declared device 0000:03:00.0 as wedged.",
            "0000:03:00.0",
        ),
    ],
)
def test_an_accelerator_that_its_driver_gives_up_is_lost_by_name(tmp_path: Path, said: str, device: str) -> None:
    (incident,) = judged(tmp_path, {"dmesg.txt": ["[   43.051361] habanalabs hl1: Successfully loaded firmware", said]})
    assert incident.kind == "gpu_lost"
    assert incident.suspects[0].device == device


STORES = (
    "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the UploadPart operation (reached max retries: 4): Please reduce your request rate.",  # noqa: E501
    "botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: ckpt",
    "google.api_core.exceptions.ServiceUnavailable: 503 POST upload: Backend Error",
    "azure.core.exceptions.ServiceResponseError: ('Connection aborted.', ConnectionResetError(104, 'reset'))",
)


@pytest.mark.parametrize("said", STORES)
def test_an_object_store_that_a_rank_dies_of_is_storage_and_one_that_it_outlives_is_none(tmp_path: Path, said: str):
    assert only(tmp_path, *raised(5, said)) == ("storage", 5)
    (tmp_path / "on").mkdir()
    went_on = [f"[rank5]: step {step} loss 2.{step}" for step in range(10, 40)]
    assert not judged(tmp_path / "on", {"logs.txt": [*raised(5, said), *went_on]})


def test_a_missing_object_is_no_matter_of_storage(tmp_path: Path) -> None:
    denied = (
        "botocore.exceptions.ClientError: An error occurred (AccessDenied) when calling the PutObject operation: no"
    )
    assert only(tmp_path, *raised(5, denied)) == ("exception", 5)


def test_blank_lines_are_no_storm(tmp_path: Path) -> None:
    steps = [f"2026-11-20 10:00:{second:02d},000 INFO step {second} loss 2.1 step time 1.0 s" for second in range(60)]
    gaps = [line for number in range(40) for line in (f"shard {number} is written", *[""] * 90)]
    assert not judged(tmp_path, {"logs.txt": [*steps, *gaps]})
