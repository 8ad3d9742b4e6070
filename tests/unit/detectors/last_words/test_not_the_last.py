"""Tracebacks that their program goes on after, and ends that only follow from a call that ranks gave up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.detectors.last_words.judged import TIMED_OUT, answered, judged, only, raised, steps

BAD = "OSError: image file is truncated (14 bytes not processed)"
ENQUEUED = (
    "[rank{rank}]:[E1104 08:15:02.620111 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] {what} "
    "last enqueued NCCL work: {newest}, last completed NCCL work: 40."
)
GAVE_UP = "Exception (either an error or timeout) detected by watchdog at work: 41,"
SIGNAL = "Received a dump signal due to a collective timeout from rank 0 and we will try our best to dump."
ABORTED = [
    "E1104 08:15:07.902000 6990 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: -6) "
    "local_rank: 0 (pid: 7000) of binary: /srv/venv/bin/python",
    "Root Cause (first observed failure):",
    "  rank      : 0 (local_rank: 0)",
    "  exitcode  : -6 (pid: 7000)",
]


@pytest.mark.parametrize("behind", [1, 2])
@pytest.mark.parametrize("name", ["rank0.log", "train.log"])
def test_a_rank_that_makes_a_step_after_its_traceback_has_not_said_its_last(
    tmp_path: Path, behind: int, name: str
) -> None:
    lines = steps("08:05:00", 30)
    lines[-behind:-behind] = raised(0, BAD, "")
    assert answered(tmp_path, name, lines)[0] == "healthy"
    (tmp_path / "dead").mkdir()
    assert answered(tmp_path / "dead", name, [*steps("08:05:00", 30), *raised(0, BAD, "")])[0] == "incident"


@pytest.mark.parametrize(
    "word",
    [
        "2026-11-04 08:05:01,000 ERROR dataset: skipping corrupted sample shard-7.tar:3486",
        "WARNING:loader:read failed, retrying in 2 s",
        "[2026-11-04 08:05:01] ERROR: upload failed (non-fatal)",
    ],
)
def test_what_its_logger_says_is_skipped_or_retried_ends_nothing(tmp_path: Path, word: str) -> None:
    assert answered(tmp_path, "train.log", [*steps("08:05:00", 30), word, *raised(0, BAD, "")])[0] != "incident"
    other = "2026-11-04 08:05:01,000 ERROR dataset: cannot read shard-7.tar:3486"
    (tmp_path / "dead").mkdir()
    assert (
        answered(tmp_path / "dead", "train.log", [*steps("08:05:00", 30), other, *raised(0, BAD, "")])[0] == "incident"
    )


def test_the_rank_that_has_enqueued_less_hangs_whatever_the_launcher_says(
    tmp_path: Path,
) -> None:
    waiting = [line for rank in (0, 1, 3) for line in (
        TIMED_OUT.format(rank=rank, clock="08:15:02"), ENQUEUED.format(rank=rank, what=GAVE_UP, newest=41),
    )]  # fmt: skip
    behind = ENQUEUED.format(rank=2, what=SIGNAL, newest=40)
    (found,) = judged(tmp_path, {"logs.txt": [*steps("08:05:00", 30), *waiting, behind, *ABORTED]})
    assert (found.kind, [one.rank for one in found.suspects]) == ("hang", [2])
    assert found.onset_s == pytest.approx(1_793_780_102.0, abs=5.0), "as the watchdogs say it"


def test_ranks_that_all_enqueued_the_call_accuse_none_of_them(tmp_path: Path) -> None:
    waiting = [line for rank in range(4) for line in (
        TIMED_OUT.format(rank=rank, clock="08:15:02"), ENQUEUED.format(rank=rank, what=GAVE_UP, newest=41 + rank),
    )]  # fmt: skip
    (found,) = judged(tmp_path, {"logs.txt": [*steps("08:05:00", 30), *waiting, *ABORTED]})
    assert all(one.rank is None for one in found.suspects)


def test_one_witness_says_of_nobody_that_it_is_behind(tmp_path: Path) -> None:
    lines = [TIMED_OUT.format(rank=0, clock="08:15:02"), ENQUEUED.format(rank=0, what=GAVE_UP, newest=41)]
    behind = ENQUEUED.format(rank=2, what=SIGNAL, newest=40)
    (found,) = judged(tmp_path, {"logs.txt": [*steps("08:05:00", 30), *lines, behind, *ABORTED]})
    assert 2 not in [one.rank for one in found.suspects]


def test_deepspeeds_launcher_names_the_last_of_its_list_whichever_ended(tmp_path: Path) -> None:
    started = [
        f"[2026-11-04 08:04:00,021] [INFO] [launch.py:256:main] process 500{rank} spawned with command: "
        f"['/usr/bin/python3', '-u', 'train.py', '--local_rank={rank}']"
        for rank in range(2)
    ]
    ended = "[2026-11-04 08:05:06,202] [ERROR] [launch.py:325:sigkill_handler] ['python', '--local_rank=1'] exits with return code = 1"  # noqa: E501
    kind, rank = only(tmp_path, *started, *steps("08:05:00", 30), *raised(0, "KeyError: 'x'", ""), ended)
    assert (kind, rank) == ("exception", None)


def test_the_process_that_the_kernel_killed_is_the_rank_that_deepspeed_started_it_as(tmp_path: Path) -> None:
    started = [
        f"[2026-11-04 08:04:00,021] [INFO] [launch.py:256:main] process 500{rank} spawned with command: "
        f"['/usr/bin/python3', '-u', 'train.py', '--local_rank={rank}']"
        for rank in range(4)
    ]
    ended = "[2026-11-04 08:05:06,202] [ERROR] [launch.py:325:sigkill_handler] ['python', '--local_rank=3'] exits with return code = -9"  # noqa: E501
    killed = "[Wed Nov  4 08:05:03 2026] Out of memory: Killed process 5002 (python3) total-vm:9kB, anon-rss:8kB"
    files = {"train.log": [*started, *steps("08:05:00", 30), ended], "dmesg.txt": [killed]}
    (found,) = judged(tmp_path, files)
    assert (found.kind, [one.rank for one in found.suspects]) == ("out_of_memory", [2])


def test_a_paging_file_that_is_too_small_is_the_hosts_memory(tmp_path: Path) -> None:
    small = "OSError: [WinError 1455] The paging file is too small for this operation to complete."
    echo = "RuntimeError: DataLoader worker (pid(s) 18244, 3320) exited unexpectedly"
    lines = [*steps("08:05:00", 30), *raised(0, small, ""), *raised(0, echo, "")]
    assert only(tmp_path, *lines)[0] == "out_of_memory"


def test_a_client_that_its_file_system_evicted_names_the_rank_that_wrote(tmp_path: Path) -> None:
    dmesg = "[Wed Nov  4 08:05:01 2026] LustreError: 167-0: lfs1-OST0017: This client was evicted by lfs1-OST0017; in progress operations will fail."  # noqa: E501
    out = "OSError: [Errno 108] Cannot send after transport endpoint shutdown: '/lustre/ckpt/iter_230'"
    ended = [
        "Root Cause (first observed failure):",
        "  host      : gpu-c07",
        "  rank      : 5 (local_rank: 5)",
        "  exitcode  : 1 (pid: 7)",
    ]
    ended += ["srun: error: gpu-c07: task 0: Exited with exit code 1"]
    files = {"train.log": [*steps("08:05:00", 30), *raised(5, out), *ended], "dmesg.txt": [dmesg]}
    (found,) = judged(tmp_path, files)
    assert (found.kind, {one.rank for one in found.suspects}) == ("storage", {5})


def test_a_traceback_behind_stamps_and_tabs_is_read(tmp_path: Path) -> None:
    stamped = [f"2026-11-04T08:05:01.102Z\t{line}" for line in raised(0, "KeyError: 'x'", "")]
    end = "2026-11-04T08:05:02.102Z\t2026-11-04 08:05:02,909 sagemaker-training-toolkit ERROR ExecuteUserScriptError:"
    lines = [f"2026-11-04T08:04:01.102Z\t{line}" for line in steps("08:04:00", 20)]
    assert only(tmp_path, *lines, *stamped, end)[0] == "exception"
    (tmp_path / "well").mkdir()
    assert answered(tmp_path / "well", "cloudwatch.log", lines)[0] == "healthy"
