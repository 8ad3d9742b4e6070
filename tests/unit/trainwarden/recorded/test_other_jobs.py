"""What a node says of other jobs, users and processes is no part of the recorded job."""

from __future__ import annotations

import numpy as np
import pytest

from trainwarden.recorded.job import LogTable
from trainwarden.recorded.joining.other_jobs import without_other_jobs

CALLED = "Nov 12 08:07:11 g kernel: python3.9 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0"
MEMCG = "Nov 12 08:07:11 g kernel: oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/slurm/uid_{uid}/job_{job},task=python3.9,pid=99112,uid={uid}"  # noqa: E501
KILLED = "Nov 12 08:07:11 g kernel: Memory cgroup out of memory: Killed process 99112 (python3.9) total-vm:9kB, UID:{uid} pgtables:1kB"  # noqa: E501
STEP = "Nov 12 08:07:12 g slurmstepd[99100]: error: Detected 1 oom_kill event in StepId={job}.0. Some of the step tasks"


def log(file: str, *lines: str) -> LogTable:
    size = len(lines)
    return LogTable(file, np.zeros(size), (None,) * size, (None,) * size, lines)


def left(own: LogTable, *lines: str) -> list[str]:
    return [line for line in without_other_jobs([own, log("syslog", *lines)])[1].lines if line]


@pytest.mark.parametrize(
    "own",
    [
        log("slurm-70001.out", "step 1"),
        log("train.log", "SLURM_JOB_ID=70001 SLURM_NNODES=1"),
        log("train.log", "srun: job 70001 has been allocated resources"),
        log("train.log", "uid=4411(me) gid=4411(me)"),
    ],
)
def test_the_memory_of_anothers_job_is_none_of_ours(own: LogTable) -> None:
    lines = [CALLED, MEMCG.format(uid=5002, job=70010), KILLED.format(uid=5002)]
    assert left(own, *lines) == []


@pytest.mark.parametrize(
    "own", [log("slurm-70001.out", "step 1"), log("train.log", "SLURM_JOB_UID=4411"), log("train.log", "step 1")]
)
def test_the_memory_of_our_own_job_counts(own: LogTable) -> None:
    lines = [CALLED, MEMCG.format(uid=4411, job=70001), KILLED.format(uid=4411), STEP.format(job=70001)]
    assert left(own, *lines) == lines


def test_what_is_said_of_no_job_counts_beside_what_is_anothers() -> None:
    own = log("slurm-70001.out", "step 1")
    others = [CALLED, MEMCG.format(uid=5002, job=70010), KILLED.format(uid=5002), STEP.format(job=70010)]
    lost = "Nov 12 08:07:15 g kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=5, name=python, GPU has fallen off the bus."
    assert left(own, *others, lost) == [lost]


def test_a_process_of_the_system_that_the_whole_host_killed_counts() -> None:
    killed = "Nov 12 08:07:11 g kernel: Out of memory: Killed process 812 (node_exporter) total-vm:9kB, UID:998"
    assert left(log("train.log", "SLURM_JOB_UID=4411"), killed) == [killed]


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ("PBS_JOBID=1234.head", "g kernel: oom-kill:oom_memcg=/pbs_jobs.service/jobid/1235.head,pid=7"),
        ("LSB_JOBID=1234", "g kernel: oom-kill:oom_memcg=/lsf/cluster/job.1235.9.1,pid=7"),
        (
            "POD_UID=0a1b2c3d-0000-4000-8000-000000000001",
            "g kernel: oom-kill:oom_memcg=/kubepods.slice/kubepods-pod0a1b2c3d_0000_4000_8000_000000000002.slice,pid=7",
        ),
    ],
)
def test_other_schedulers_name_their_jobs_too(own: str, said: str) -> None:
    assert left(log("train.log", own), said) == []
    mine = said.replace("1235", "1234").replace("000000000002", "000000000001")
    assert left(log("train.log", own), mine) == [mine]


@pytest.mark.parametrize(
    "own", [log("slurm-70001.out", "step 1"), log("train.log", "SLURM_JOB_ID=70001", "uid=4411(me)")]
)
def test_the_time_of_a_kernel_is_no_job(own: LogTable) -> None:
    """dmesg puts seconds since the start in brackets, slurmstepd its step."""
    lines = [
        "[98765.432101] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.",
        "[1790063911.004213] mlx5_core 0000:3b:00.0: Port: 1 Link DOWN",
        "[70001.0] error: Detected 1 oom_kill event in StepId=70001.0. Some of the step tasks",
    ]
    others = [
        "[70010.0] error: Detected 1 oom_kill event",
        "[2026-11-12T08:07:12.101] [70010.batch] error: oom_kill event",
    ]
    assert left(own, *others, *lines) == lines


def test_a_job_that_submits_the_next_one_is_not_that_one() -> None:
    lines = [CALLED, MEMCG.format(uid=4411, job=70001), KILLED.format(uid=4411)]
    assert left(log("train.log", "step 1", "Submitted batch job 70002"), *lines) == lines


def test_a_number_of_the_program_s_own_is_no_user() -> None:
    lines = [CALLED, KILLED.format(uid=4411)]
    assert left(log("train.log", "resumed run uid=83729471 at step 10"), *lines) == lines
