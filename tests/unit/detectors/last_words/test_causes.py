"""Causes long before what follows from them, tracebacks without stamps, ends that are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.detectors.last_words.judged import TIMED_OUT, answered, judged, only, raised, steps
from trainwarden.detectors.logs.ends.line_times import times_of_lines
from trainwarden.recorded.job import LogTable

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 2 has a total capacity of 79.10 GiB"
FAILED = (
    "E1104 {clock}.902000 6990 site-packages/torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: "
    "{code}) local_rank: {rank} (pid: 700{rank}) of binary: /srv/venv/bin/python"
)
STARTED = "W1104 08:00:01.381000 6990 site-packages/torch/distributed/run.py:774] Setting OMP_NUM_THREADS"
LOSSES = [f"{{'loss': {2.5 - i / 1000:.4f}, 'grad_norm': 0.5, 'epoch': {i / 100:.2f}}}" for i in range(30)]
GONE = (
    "[rank{rank}]:[W1104 12:00:01.222222 TCPStore.cpp:106] [c10d] recvValue failed on SocketImpl(fd=61, "
    "addr=[localhost]:51101, remote=[localhost]:29500): Connection reset by peer"
)


@pytest.mark.parametrize("waiting", [1, 3, 7])
@pytest.mark.parametrize("minutes", [10, 30])
def test_a_cause_is_believed_until_its_rank_is_heard_of_again(tmp_path: Path, waiting: int, minutes: int) -> None:
    late = [TIMED_OUT.format(rank=rank, clock=f"08:{5 + minutes}:02") for rank in range(8) if rank != 2][:waiting]
    assert only(tmp_path, *steps("08:04:55", 20), *raised(2, OOM), *late) == ("cuda_out_of_memory", 2)


def test_a_cause_that_training_went_on_after_is_none(tmp_path: Path) -> None:
    lines = [*steps("08:04:55", 20), *raised(2, OOM), *steps("08:09:55", 20)]
    lines += [TIMED_OUT.format(rank=rank, clock="08:30:02") for rank in (0, 1, 3)]
    incidents = judged(tmp_path, {"logs.txt": lines})
    assert [one.kind for one in incidents] == ["hang"]


@pytest.mark.parametrize(
    ("exception", "kind"),
    [
        (OOM, "cuda_out_of_memory"),
        ("KeyError: 'labels'", "exception"),
        ("ValueError: loss is nan at step 40, giving up", "exception"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "gpu_memory_error"),
        ("AssertionError: Rank 3: found NaN in local grad norm in backward pass", "silent_corruption"),
        ("RuntimeError: unable to write to file </torch_7102_12_3>: No space left on device (28)", "data_stall"),
    ],
)
def test_a_traceback_between_stamps_that_are_hours_apart_is_near_the_end_that_follows(
    tmp_path: Path, exception: str, kind: str
) -> None:
    ended = FAILED.format(clock="10:31:06", code=1, rank=3)
    incidents = judged(tmp_path, {"logs.txt": [STARTED, *LOSSES, *raised(3, exception), ended]})
    assert [(one.kind, one.suspects[0].rank) for one in incidents] == [(kind, 3)]
    assert incidents[0].onset_s == pytest.approx(1_793_788_266.0, abs=60.0), "at 10:31:06, not at 08:00:01"


def test_what_is_full_is_said_to_be_shared_memory(tmp_path: Path) -> None:
    full = raised(
        2, "RuntimeError: unable to open shared memory object </torch_7002_12> in read-write mode: No space left"
    )
    incidents = judged(
        tmp_path, {"logs.txt": [STARTED, *LOSSES, *full, FAILED.format(clock="09:00:00", code=1, rank=2)]}
    )
    assert "shared memory" in incidents[0].reason
    assert "--shm-size" in incidents[0].reason


@pytest.mark.parametrize(
    "done",
    [
        "{'train_runtime': 700.1, 'train_loss': 2.31, 'epoch': 1.0}",
        "`Trainer.fit` stopped: `max_epochs=1` reached.",
        "[after training is done] datetime: 2026-11-04 12:00:00",
        "2026-11-04 12:00:00,101 - root - INFO - Training completed",
        "",
    ],
)
def test_warnings_at_the_end_of_a_run_are_nothing(tmp_path: Path, done: str) -> None:
    assert judged(tmp_path, {"logs.txt": [*LOSSES, done, *(GONE.format(rank=rank) for rank in (1, 2))]}) == []


def test_the_same_warnings_before_a_launchers_word_follow_from_a_failure(tmp_path: Path) -> None:
    ended = FAILED.format(clock="12:00:03", code=-9, rank=0)
    assert only(tmp_path, *LOSSES, *(GONE.format(rank=rank) for rank in (1, 2)), ended) == ("crash", 0)


@pytest.mark.parametrize(("code", "word"), [(-6, "SIGABRT"), (-9, "SIGKILL"), (-11, "SIGSEGV"), (7, "code 7")])
def test_an_end_without_a_word_is_told_by_how_it_was(tmp_path: Path, code: int, word: str) -> None:
    incidents = judged(tmp_path, {"logs.txt": [*LOSSES, FAILED.format(clock="12:00:03", code=code, rank=1)]})
    assert [(one.kind, one.suspects[0].rank) for one in incidents] == [("crash", 1)]
    assert word in incidents[0].reason


def test_a_traceback_at_the_end_of_a_log_is_a_dead_job_and_one_that_is_survived_is_not(tmp_path: Path) -> None:
    assert only(tmp_path, *LOSSES, *raised(0, "KeyError: 'labels'")) == ("exception", 0)
    (tmp_path / "logs.txt").unlink()
    assert judged(tmp_path, {"logs.txt": [*LOSSES[:9], *raised(0, "KeyError: 'labels'"), *LOSSES[9:]]}) == []


def test_what_the_scheduler_or_a_person_ended_is_no_failure(tmp_path: Path) -> None:
    cancelled = "slurmstepd: error: *** STEP 4711.0 ON ge CANCELLED AT 2026-11-04T11:20:01 DUE TO TIME LIMIT ***"
    assert judged(tmp_path, {"logs.txt": [*LOSSES, cancelled, *raised(1, "RuntimeError: stopped in a save")]}) == []


def test_the_one_rank_that_did_not_wait_is_suspected_and_the_abort_of_another_is_not(tmp_path: Path) -> None:
    lines = [f"[rank{rank}]: 2026-11-04 08:00:0{at},101 - INFO - ready" for rank in range(4) for at in range(3)]
    lines += [TIMED_OUT.format(rank=rank, clock="08:10:05") for rank in (0, 1, 3)]
    lines += [
        "E1104 08:10:07.902000 6990 torch/api.py:882] failed (exitcode: -6) local_rank: 0 (pid: 7000) of binary: x"
    ]
    assert only(tmp_path, *lines) == ("hang", 2)


def test_of_several_silent_ranks_and_of_one_witness_none_is_suspected(tmp_path: Path) -> None:
    heard = [f"[rank{rank}]: 2026-11-04 08:00:00,101 - INFO - ready" for rank in range(4)]
    for name, waiting in (("several", (0, 1)), ("witness", (0,))):
        (tmp_path / name).mkdir()
        lines = [*heard, *(TIMED_OUT.format(rank=rank, clock="08:10:05") for rank in waiting)]
        incidents = judged(tmp_path / name, {"logs.txt": lines})
        assert not [one for each in incidents for one in each.suspects if one.rank in {2, 3}]


def test_a_job_that_never_came_together_is_told_without_accusing_who_says_so(tmp_path: Path) -> None:
    lines = raised(
        0, "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 3/4 clients joined."
    )
    assert only(tmp_path, *lines) == ("crash", None)


def test_what_jax_says_of_full_memory(tmp_path: Path) -> None:
    said = "jaxlib.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 34359738368 bytes."
    assert only(tmp_path, *raised(2, said)) == ("cuda_out_of_memory", 2)


def test_a_log_in_utf_16_is_read(tmp_path: Path) -> None:
    lines = [
        *steps("09:10:00", 12),
        *raised(2, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    ]
    (tmp_path / "train.log").write_bytes("\r\n".join([*lines, ""]).encode("utf-16"))
    (incident,) = judged(tmp_path, {})
    assert (incident.kind, incident.suspects[0].rank) == ("cuda_out_of_memory", 2)


def test_one_rank_that_gave_up_waiting_is_told_and_not_accused(tmp_path: Path) -> None:
    waited = "RuntimeError: [unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete"
    lines = [*LOSSES, *raised(0, waited), FAILED.format(clock="10:31:40", code=1, rank=0)]
    assert only(tmp_path, *lines) == ("hang", None)


def test_a_stale_file_handle_and_the_exit_that_follows_are_one(tmp_path: Path) -> None:
    lines = [
        *raised(0, "OSError: [Errno 116] Stale file handle: '/data/3.bin'"),
        FAILED.format(clock="10:31:40", code=1, rank=0),
    ]
    assert only(tmp_path, *lines) == ("storage", 0)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("5m  Normal   NodeNotReady  node/gpu-13  Node gpu-13 status is now: NodeNotReady", "node_lost"),
        (
            "2m  Warning  Evicted  pod/w-3  The node was low on resource: memory. Threshold quantity: 100Mi",
            "out_of_memory",
        ),
        ("      Reason:       OOMKilled", "out_of_memory"),
    ],
)
def test_what_kubectl_shows_is_read(tmp_path: Path, said: str, kind: str) -> None:
    (tmp_path / "events.txt").write_text(f"LAST SEEN   TYPE   REASON   OBJECT   MESSAGE\n{said}\n")
    (incident,) = judged(tmp_path, {})
    assert incident.kind == kind
    assert {one.node for one in incident.suspects} == ({"gpu-13"} if kind == "node_lost" else {None})


def test_a_report_of_pytest_is_no_run_and_the_same_words_of_a_run_are(tmp_path: Path) -> None:
    said = ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "PASSED   [ 70%]"]
    head = [f"{'=' * 27} test session starts {'=' * 26}", "collected 4 items", "tests/test_guard.py::test_full_gpu"]
    report = [*head, *said, f"{'=' * 30} 4 passed in 1.20s {'=' * 30}"]
    assert answered(tmp_path, "ci.log", report) == ("not judged", [])
    answer, found = answered(tmp_path, "train.log", [*steps("09:10:00", 12), *said[:1]])
    assert (answer, found[0].kind) == ("incident", "cuda_out_of_memory")


MISMATCH = (
    "[rank{rank}]: RuntimeError: Detected mismatch between collectives on ranks. Rank {rank} is running collective: "
    "CollectiveFingerPrint(SequenceNumber=7, OpType=ALLREDUCE), but Rank {other} is running collective: "
    "CollectiveFingerPrint(SequenceNumber=7, OpType=BROADCAST)."
)


@pytest.mark.parametrize(
    ("pairs", "rank"),
    [
        ([(0, 3), (1, 3)], 3),
        ([(0, 3), (1, 3), (2, 3), (3, 0)], 3),
        ([(0, 3)], 0),  # one witness: whoever raised
        ([(0, 1), (1, 0)], 0),
        ([(0, 3), (1, 3), (2, 4), (5, 4)], 0),  # two that differ
    ],
)
def test_the_rank_that_several_say_runs_another_collective_is_the_one(
    tmp_path: Path, pairs: list[tuple[int, int]], rank: int
) -> None:
    lines = [MISMATCH.format(rank=one, other=other) for one, other in pairs]
    assert only(tmp_path, *steps("08:00:00", 12), *lines) == ("collective_mismatch", rank)


def test_the_only_rank_between_others_that_is_never_heard_is_the_one_they_wait_for(tmp_path: Path) -> None:
    waiting = [TIMED_OUT.format(rank=rank, clock="08:10:05") for rank in (0, 1, 2, 4, 5, 6, 7)]
    assert only(tmp_path, *steps("08:00:00", 12), *waiting) == ("hang", 3)


@pytest.mark.parametrize(
    "said",
    [
        "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f01>",
        "--- Logging error ---",
        "Task exception was never retrieved",
    ],
)
def test_an_exception_that_python_only_prints_is_no_end(tmp_path: Path, said: str) -> None:
    lines = [
        *steps("09:10:00", 12),
        "`Trainer.fit` stopped: `max_epochs=6` reached.",
        said,
        "Traceback (most recent call last):",
        '  File "/srv/loader.py", line 1479, in __del__',
        "AssertionError: can only test a child process",
    ]
    assert not judged(tmp_path, {"train.log": lines})


def test_the_rank_whose_process_the_kernel_ended_goes_before_its_node(tmp_path: Path) -> None:
    kernel = "Nov  4 08:00:01 ge kernel: [991.{number}] {said}"
    files = {
        "train.log": [*steps("08:00:00", 12), FAILED.format(clock="08:00:05", code=-9, rank=2)],
        "kern.log": [
            kernel.format(number=101000, said="python invoked oom-killer: gfp_mask=0x140dca, order=0, oom_score_adj=0"),
            kernel.format(number=301000, said="Out of memory: Killed process 7002 (python) total-vm:81234kB"),
        ],
    }
    (incident,) = judged(tmp_path, files)
    assert (incident.kind, [one.rank for one in incident.suspects]) == ("out_of_memory", [2])


def test_a_kernel_log_beside_the_only_log_of_a_program_makes_no_second_node(tmp_path: Path) -> None:
    said = "Memory access fault by GPU node-3 (Agent handle: 0x5a5c) on address 0x7098. Reason: Write access to a page."
    files = {
        "train.log": [*LOSSES, said, FAILED.format(clock="10:31:40", code=-6, rank=1)],
        "dmesg.txt": ["[19277.975559] amdgpu 0000:3d:00.0: amdgpu: [mmhub0] no-retry page fault (src_id:0 ring:160)"],
    }
    (incident,) = judged(tmp_path, files)
    assert (incident.kind, incident.suspects[0].rank) == ("exception", 1)


STALE = "OSError: [Errno 116] Stale file handle: '/mnt/tokens/part-0017.bin'"


@pytest.mark.parametrize(("exception", "kind"), [(STALE, "storage"), ("KeyError: 'labels'", "exception")])
@pytest.mark.parametrize("name", ["train_rank6.err", "a_rank6.err"])
def test_last_words_in_a_ranks_own_file_without_stamps_belong_to_the_jobs_end(
    tmp_path: Path, exception: str, kind: str, name: str
) -> None:
    failed = FAILED.format(clock="08:13:51", code=1, rank=6)
    own = ["UserWarning: no TF32 here", *raised(6, exception)]
    (incident,) = judged(tmp_path, {"train.log": [*steps("08:13:40", 40), failed], name: own})
    assert (incident.kind, [one.rank for one in incident.suspects]) == (kind, [6])
    assert 0.0 < incident.opened_at_s % 86_400 - (8 * 3600 + 13 * 60 + 40) < 60.0


def test_what_was_caught_in_a_file_without_stamps_is_no_end_of_a_job_that_tells_of_none(tmp_path: Path) -> None:
    own = [*raised(6, "ConnectionError: tracker is away"), "went on without the tracker"]
    for words in (own, own[:-1]):
        assert not judged(tmp_path, {"train.log": steps("08:13:40", 40), "train_rank6.err": words})


def test_what_was_caught_is_no_end_of_a_job_that_says_that_it_is_done(tmp_path: Path) -> None:
    done = "[after training is done] datetime: 2026-11-04 08:13:50"
    own = raised(6, "ConnectionError: tracker is away")
    assert not judged(tmp_path, {"train.log": [*steps("08:13:40", 40), done], "train_rank6.err": own})


def test_lines_of_nobody_without_stamps_stay_where_the_job_began() -> None:
    failed = FAILED.format(clock="08:13:51", code=1, rank=6)
    train = LogTable("train.log", np.array([5.0, 90.0]), (None,) * 2, (None,) * 2, ["step 7 loss: 2.5", failed])
    for rank, place_s in ((None, 5.0), (6, 90.0)):
        own = LogTable("dmesg.txt", np.array([np.nan]), ("n1",), (rank,), [STALE])
        assert times_of_lines([train, own], 5.0)[1].tolist() == [place_s]


def test_a_bus_that_complains_before_its_device_is_lost_is_no_second_incident(tmp_path: Path) -> None:
    lines = [
        "2026-11-04T08:13:41.000000+00:00 n7 kernel: pcieport 0000:3a:00.0: AER: Uncorrected (Fatal) error received: "
        "0000:3b:00.0",
        "2026-11-04T08:13:43.000000+00:00 n7 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus",
    ]
    assert [one.kind for one in judged(tmp_path, {"n7.log": lines})] == ["gpu_lost"]
    assert [one.kind for one in judged(tmp_path, {"n7.log": lines[:1]})] == ["pcie_error"]
