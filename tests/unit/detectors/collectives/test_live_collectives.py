"""Dumps and RAS answers of a job that hangs: the same incident as from a recording, and none from a healthy job."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.places import DATA
from tests.unit.detectors.detection_streams import JOB, START_S, Job, Run, event
from trainwarden.collectors.collectives.call_records import pack
from trainwarden.detectors.collectives.flight_dump import read_dump
from trainwarden.detectors.collectives.flight_recorder import analyse
from trainwarden.detectors.collectives.live import LiveCollectives
from trainwarden.detectors.recorded.facts import read_facts
from trainwarden.detectors.recorded.replay import replay
from trainwarden.recorded.folder import read_folder
from trainwarden.records import EventRecord, HeartbeatRecord, IncidentRecord
from trainwarden.settings import DetectionSettings

FOLDER = DATA / "flight_recorder"


def call(seq: int, op: str = "all_reduce", *, done: bool = True, at_s: float = START_S) -> dict[str, Any]:
    return {
        "collective_seq_id": seq, "process_group": ["0", "default_pg"], "profiling_name": f"gloo:{op}",
        "input_sizes": [[8]], "output_sizes": [[8]], "input_dtypes": ["Float"], "output_dtypes": ["Float"],
        "state": "scheduled", "retired": done, "time_created_ns": int((at_s + seq) * 1e9), "is_p2p": False,
    }  # fmt: skip


def dump(rank: int, at_s: float, *calls: dict[str, Any], asked: bool = True, node: str = "node0") -> EventRecord:
    packed = pack({"pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}},
                   "entries": list(calls)}, 32)  # fmt: skip
    return EventRecord(
        id=f"flight_dump/{rank}/{at_s}", job=JOB, node=node, time_s=at_s, kind="flight_recorder", rank=rank,
        fields={"dump": packed, "asked": asked},
    )  # fmt: skip


def skipped(job: Job, *, missing: int = 2, asked: bool = True, without: tuple[int, ...] = ()) -> Job:
    """All ranks stand still after the last step: rank `missing` has not come to collective 5."""
    last_s, step = job.end_s, len(job.ends_s)
    for tick in range(1, 60):
        phases = {rank: "wait" for rank in range(job.ranks) if rank != missing}
        cpu_s = dict.fromkeys(range(job.ranks), 1.0)
        job.records.append((last_s + 0.2 * tick, _still(job, last_s, last_s + 0.2 * tick, step, phases, cpu_s)))
    for rank in range(job.ranks):
        waits = () if rank == missing else (call(5, done=False),)
        if rank not in without:
            job.add(last_s + 1.1, dump(rank, last_s + 1.1, *[call(seq) for seq in range(1, 5)], *waits, asked=asked))
    return job


def _still(job: Job, since_s: float, at_s: float, step: int, phases: dict[int, str], cpu_s: dict[int, float]) -> Any:
    ranks = tuple(range(job.ranks))
    return HeartbeatRecord(
        job=JOB, node="node0", time_s=at_s, ranks=ranks, pids=tuple(1000 + rank for rank in ranks),
        incarnations=tuple(job.incarnation(rank) for rank in ranks), steps=(step,) * job.ranks,
        step_end_s=(since_s,) * job.ranks, phases=tuple(phases.get(rank, "compute") for rank in ranks),  # type: ignore[arg-type]
        phase_since_s=(since_s + 0.05,) * job.ranks, calls=(2 * step + 1,) * job.ranks, states=("S",) * job.ranks,
        cpu_s=tuple(cpu_s[rank] for rank in ranks),
    )  # fmt: skip


def test_a_hang_is_explained_by_the_dumps_that_were_asked_for() -> None:
    job = skipped(Job().run(40))
    run = Run().play(job.records, job.end_s + 8.0)
    (incident,) = run.incidents
    assert (incident.kind, incident.suspects[0].rank, incident.suspects[0].node) == ("hang", 2, "node0")
    assert "did not reach all_reduce 5 of group 0 default_pg" in incident.reason
    assert run.revisions[0].reason == incident.reason  # known when it was told first


@pytest.mark.parametrize("asked", [False, True])
def test_dumps_open_nothing_while_the_job_goes_on(asked: bool) -> None:
    job = Job().run(40)
    at_s = job.end_s + 0.1
    for rank in range(4):
        waits = () if rank == 2 else (call(5, done=False),)
        job.add(at_s, dump(rank, at_s, *[call(seq) for seq in range(1, 5)], *waits, asked=asked))
    job.run(40, first=40, start_s=job.end_s)
    assert Run().play(job.records, job.end_s + 2.0).incidents == []


@pytest.mark.parametrize("asked", [False, True])
def test_a_rank_that_cannot_answer_is_waited_for_and_then_missed(asked: bool) -> None:
    job = skipped(Job().run(40), asked=asked, without=(2,))
    if not asked:  # PyTorch's own dumps come long after the last step
        job.records = [(at_s + 6.0 * (one.kind == "flight_recorder"), one) if isinstance(one, EventRecord)
                       else (at_s, one) for at_s, one in job.records]  # fmt: skip
    run = Run().play(job.records, job.end_s + 11.5)
    (incident,) = run.incidents
    assert (incident.kind, incident.suspects[0].rank) == ("hang", 2)


def recorded_incidents(folder: Path, dumps: dict[int, Any]) -> list[IncidentRecord]:
    (folder / "flight_recorder").mkdir()
    for rank, raw in dumps.items():
        (folder / "flight_recorder" / f"rank_{rank}.json").write_text(json.dumps(raw))
    job = read_folder(folder)
    return list(replay(job, DetectionSettings(), facts=read_facts(job)).incidents)


@pytest.mark.parametrize("case", ["gpu_error", "lock_gil"])
def test_live_and_recorded_dumps_give_the_same_incident(case: str, tmp_path: Path) -> None:
    with gzip.open(FOLDER / f"{case}.json.gz") as file:
        dumps = {int(rank): raw for rank, raw in json.load(file).items()}
    (recorded,) = recorded_incidents(tmp_path, dumps)
    records = [
        (START_S + 1.0, EventRecord(
            id=f"d{rank}", job=JOB, node="n", time_s=START_S + 1.0, kind="flight_recorder", rank=rank,
            fields={"dump": pack(raw, 32), "asked": False},
        ))
        for rank, raw in dumps.items()
    ]  # fmt: skip
    (live,) = Run().play(records, START_S + 6.0).incidents
    assert (live.kind, live.severity, live.reason) == (recorded.kind, recorded.severity, recorded.reason)
    told = [[(one.rank, one.score, one.reason) for one in record.suspects] for record in (live, recorded)]
    assert told[0] == told[1]


@pytest.mark.parametrize("case", ["gpu_error", "lock_gil"])
def test_what_the_agent_keeps_of_a_dump_says_the_same(case: str) -> None:
    with gzip.open(FOLDER / f"{case}.json.gz") as file:
        dumps = {int(rank): raw for rank, raw in json.load(file).items()}
    kept = {rank: zlib.decompress(base64.b85decode(pack(raw, 8))) for rank, raw in dumps.items()}
    assert analyse(kept, 16) == analyse(dumps, 16)


def test_a_service_that_was_killed_tells_the_incident_once_and_the_same() -> None:
    job = skipped(Job().run(40))
    first = Run().play(job.records, job.end_s + 5.0)
    (told,) = first.incidents
    second = Run(bus=first.bus)
    second.clock.sleep(job.end_s + 5.0 - second.clock.now_s())
    second.play([], job.end_s + 8.0)
    assert [record.id for record in second.incidents] == [told.id]
    assert second.revisions[-1].reason == told.reason


def test_one_damaged_dump_does_not_spoil_the_others() -> None:
    job = skipped(Job().run(40), without=(3,))
    broken = dump(3, job.end_s + 1.1)
    broken.fields["dump"] = base64.b85encode(zlib.compress(b'{"entries": 7}')).decode()
    job.add(job.end_s + 1.1, broken)
    (incident,) = Run().play(job.records, job.end_s + 8.0).incidents
    assert incident.suspects[0].rank == 2


@pytest.mark.thorough
def test_bytes_that_unpack_to_far_too_much_are_left_alone() -> None:
    bomb = base64.b85encode(zlib.compress(b" " * (33 << 20))).decode()
    job = skipped(Job().run(40), without=(3,))
    huge = dump(3, job.end_s + 1.1)
    huge.fields["dump"] = bomb
    job.add(job.end_s + 1.1, huge)
    (incident,) = Run().play(job.records, job.end_s + 8.0).incidents
    assert incident.kind == "hang"


def test_a_restart_forgets_dumps() -> None:
    kept = LiveCollectives(JOB)
    kept._apply(dump(0, START_S, call(1, done=False)), START_S)
    kept._apply(event("restart", START_S + 1.0, stage="begin"), START_S + 1.0)
    assert not kept._dumps
    assert kept._held == 0


def test_ranks_in_equal_steps_are_read_back() -> None:
    members = list(range(1, 4096, 8))
    record = {"pg_config": {"7": {"name": "7", "desc": "dp", "ranks": str(members)}}, "entries": []}
    packed = pack(record, 4)
    assert len(packed) < 300
    read = read_dump(1, zlib.decompress(base64.b85decode(packed)))
    (key,) = read.describes
    assert key.members == tuple(members)


# -- RAS ---------------------------------------------------------------------------------------------------------


def ras(at_s: float, *counts: int, dead: int | None = None, silent: bool = False) -> EventRecord:
    ranks = [{"rank": rank, "host": "h", "pid": 100 + rank, "collective_counts": {"AllReduce": count},
              "status": {"considered_dead": rank == dead}} for rank, count in enumerate(counts)]  # fmt: skip
    missing = [{"rank": len(counts), "host": "h", "pid": 100 + len(counts)}] if silent else []
    comm = {"hash": "0xa", "size": len(counts) + silent, "missing_ranks": missing, "ranks": ranks}
    text = json.dumps({"communicators": [comm]})
    return EventRecord(
        id=f"nccl_ras/{at_s}", job=JOB, node="node0", time_s=at_s, kind="flight_recorder",
        fields={"ras": base64.b85encode(zlib.compress(text.encode())).decode(), "still": True},
    )  # fmt: skip


def test_two_like_ras_answers_of_a_job_that_stands_still_name_the_rank_behind() -> None:
    at_s = START_S + 1.0
    records = [(at_s, ras(at_s, 7, 7, 6, 7)), (at_s + 30.0, ras(at_s + 30.0, 7, 7, 6, 7))]
    assert Run().play(records, at_s + 29.0).incidents == []
    (incident,) = Run().play(records, at_s + 31.0).incidents
    assert (incident.kind, incident.suspects[0].rank) == ("hang", 2)
    assert "AllReduce" in incident.reason


def test_a_rank_that_ras_has_given_up_is_told_at_once_unless_steps_go_on() -> None:
    at_s = START_S + 1.0
    (incident,) = Run().play([(at_s, ras(at_s, 7, 7, 7, 7, dead=1))], at_s + 1.0).incidents
    assert (incident.kind, incident.suspects[0].rank) == ("hang", 1)
    busy = Job().run(40)
    busy.add(busy.end_s - 2.0, ras(busy.end_s - 2.0, 7, 7, 7, 7, dead=1))
    assert Run().play(busy.records, busy.end_s + 1.0).incidents == []


def test_a_rank_that_is_silent_for_one_answer_is_no_news() -> None:
    at_s = START_S + 1.0
    once = [(at_s, ras(at_s, 7, 7, silent=True)), (at_s + 30.0, ras(at_s + 30.0, 8, 8, 8))]
    assert Run().play(once, at_s + 31.0).incidents == []
    twice = [*once[:1], (at_s + 30.0, ras(at_s + 30.0, 7, 7, silent=True))]
    (incident,) = Run().play(twice, at_s + 31.0).incidents
    assert (incident.kind, incident.suspects[0].rank) == ("hang", 2)
