"""What Slurm 22.05 (text) to 25.11 (JSON) says of jobs and nodes is read the same; no text of a user is a state."""

from __future__ import annotations

import re
import time
from statistics import median
from typing import Any

import pytest

from trainwarden.actions.launchers.slurm.answers import (
    SlurmJob,
    jobs_of_json,
    jobs_of_text,
    nodes_of_json,
    nodes_of_text,
)

# As slurmctld 22.05.8 of Debian 12 said it, shortened in the middle.
JOB_22_05 = """JobId=7 JobName={name}
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   Priority=4294901759 Nice=0 Account=(null) QOS=(null)
   JobState={state} Reason={reason} Dependency=(null)
   Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:0
   Partition=all AllocNode:Sid=vm:3371
   ReqNodeList=(null) ExcNodeList=n[1,5]
   NodeList=n[2-3]
   BatchHost=n2
   NumNodes=2 NumCPUs=2 NumTasks=2 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   Command=/scratch/night/job.sh NodeList=n9
   WorkDir=/scratch/night
   Comment={comment}\x20
   StdErr=/scratch/night/out
   Power=
"""
NODE_22_05 = """NodeName=n1 Arch=x86_64 CoresPerSocket=1\x20
   CPUAlloc=0 CPUEfctv=1 CPUTot=1 CPULoad=3.72
   NodeAddr=127.0.0.1 NodeHostName=vm Port=27011 Version=22.05.8
   OS=Linux 6.18.44 #1 SMP PREEMPT_DYNAMIC State=DOWN
   State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=all\x20
   Reason={reason} [root@2026-11-22T13:23:11]

NodeName=n2 CoresPerSocket=1\x20
   State=IDLE ThreadsPerCore=1
"""
READ = SlurmJob(
    id=7, states=frozenset({"RUNNING"}), why="None", restarts=2, requeueable=True, nodes="n[2-3]", excluded="n[1,5]",
    comment="night run", owner=(0, 0), partition="all",
)  # fmt: skip


def number(value: int) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": value}


def job_json(**more: Any) -> dict[str, Any]:
    said = {
        "job_id": 7, "job_state": ["RUNNING"], "batch_flag": True, "requeue": True, "restart_cnt": 2,
        "user_id": 0, "group_id": 0, "partition": "all", "account": "",
        "nodes": "n[2-3]", "excluded_nodes": "n[1,5]", "comment": "night run", "state_reason": "None",
        "state_description": "", "priority": number(239256), "hold": False,
    }  # fmt: skip
    return {"jobs": [{**said, **more}], "errors": [], "warnings": []}


@pytest.mark.parametrize(
    "said",
    [
        job_json(job_state="RUNNING"),  # 23.02, data_parser v0.0.39
        job_json(),  # from 23.11
        job_json(restart_cnt=number(2), job_id=number(7)),  # numbers as other fields have them
    ],
)
def test_a_job_is_read_alike_from_each_version(said: dict[str, Any]) -> None:
    assert jobs_of_json(said) == [READ]
    text = JOB_22_05.format(name="llama", state="RUNNING", reason="None", comment="night run")
    assert jobs_of_text(text) == [READ]


def test_a_job_that_a_requeue_holds_is_told_from_one_that_a_person_holds() -> None:
    held = JOB_22_05.format(name="j", state="PENDING", reason="job_requeued_in_held_state", comment="")
    persons = JOB_22_05.format(name="j", state="PENDING", reason="JobHeldAdmin", comment="")
    assert [jobs_of_text(text)[0].held for text in (held, persons)] == [True, False]
    for more, is_held in (
        ({"state_description": "job requeued in held state"}, True),
        ({"job_state": ["PENDING", "REQUEUE_HOLD"]}, True),
        ({"hold": True, "state_reason": "JobHeldUser"}, False),
        ({"job_state": ["PENDING", "SPECIAL_EXIT"], "state_description": "job requeued in special exit state"}, False),
    ):
        assert jobs_of_json(job_json(**{"job_state": ["PENDING"], **more}))[0].held is is_held


def test_flags_beside_a_state_do_not_end_a_job() -> None:
    for flag in ("LAUNCH_FAILED", "RECONFIG_FAIL", "EXPEDITING", "POWER_UP_NODE"):
        assert not jobs_of_json(job_json(job_state=["PENDING", flag]))[0].finished
    assert jobs_of_json(job_json(job_state=["FAILED", "LAUNCH_FAILED"]))[0].finished
    assert not jobs_of_json(job_json(job_state=["FAILED", "COMPLETING"]))[0].finished


@pytest.mark.parametrize(
    "theirs", ["x JobState=FAILED Restarts=99", "a\nb  JobState=FAILED", "n=1 ExcNodeList=n9", "(null)", "ünï"]
)
def test_no_text_of_a_user_is_taken_for_a_state(theirs: str) -> None:
    [job] = jobs_of_text(JOB_22_05.format(name=theirs, state="RUNNING", reason="None", comment=theirs))
    assert (job.states, job.restarts, job.excluded, job.nodes) == (READ.states, 2, "n[1,5]", "n[2-3]")
    assert job.comment == theirs


@pytest.mark.parametrize(
    ("text", "json", "out", "down"),
    [
        ("IDLE", ["IDLE"], False, False),
        ("IDLE+DRAIN", ["IDLE", "DRAIN"], True, False),
        ("ALLOCATED+DRAIN", ["ALLOCATED", "DRAIN"], True, False),
        ("MIXED+COMPLETING", ["MIXED", "COMPLETING"], False, False),
        ("DOWN*", ["DOWN", "NOT_RESPONDING"], False, True),
        ("DOWN*+DRAIN", ["DOWN", "DRAIN", "NOT_RESPONDING"], True, True),
        ("IDLE*", ["IDLE", "NOT_RESPONDING"], False, True),
        ("IDLE~", ["IDLE"], False, False),
        ("IDLE+FAIL", ["IDLE", "FAIL"], True, False),
        ("UNKNOWN+DRAIN", ["UNKNOWN", "DRAIN"], True, False),
    ],
)
def test_a_node_is_read_alike_from_each_version(text: str, json: list[str], out: bool, down: bool) -> None:
    first, second = nodes_of_text(NODE_22_05.format(state=text, reason="fan of it [2], State=IDLE"))
    assert (first.name, second.name) == ("n1", "n2")
    assert first.reason == "fan of it [2], State=IDLE"
    assert second.states == {"IDLE"}
    [told] = nodes_of_json({"nodes": [{"name": "n1", "state": json, "reason": first.reason}]})
    assert told == first
    # sinfo's way in 22.05: one word in small letters, and flags beside it.
    [old] = nodes_of_json(
        {"nodes": [{"name": "n1", "state": json[0].lower(), "state_flags": json[1:], "reason": first.reason}]}
    )
    assert old == first
    assert (first.out, first.down) == (out, down)


@pytest.mark.parametrize("broken", [{}, {"jobs": [{}]}, {"jobs": 3}, {"jobs": [{"job_id": "x", "job_state": []}]}])
def test_what_cannot_be_read_is_an_error_of_the_expected_kinds(broken: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        jobs_of_json(broken)


@pytest.mark.thorough
def test_ten_thousand_nodes_are_read_while_nobody_notices() -> None:
    """Beside a plain search through the same text, for its time goes up and down with the machine's."""
    one = NODE_22_05.partition("\n\n")[0].format(state="IDLE", reason="x")
    text = "\n\n".join(one.replace("NodeName=n1", f"NodeName=n{number}") for number in range(10_000))
    ratios = []
    for _ in range(3):
        begun_s = time.process_time()
        assert len(nodes_of_text(text)) == 10_000
        read_s = time.process_time()
        assert len(re.findall(r"(\w+)=(\S+)", text)) > 10_000
        ratios.append((read_s - begun_s) / (time.process_time() - read_s))
    assert median(ratios) < 4.0  # 0.7 on this machine


@pytest.mark.parametrize("broken", ["JobId=x JobName=j\n   JobState=RUNNING\n", "JobId=7 JobName=j\n"])
def test_so_is_a_text_that_was_cut(broken: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        jobs_of_text(broken)
