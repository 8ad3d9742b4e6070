"""The detection service end to end on make-believe jobs: every fault named once, healthy jobs left in peace."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.doubles import metric_value
from tests.unit.detectors.detection_streams import (
    JOB,
    RESET,
    START_S,
    Job,
    RememberingBus,
    Run,
    crash,
    event,
    log_lines,
)
from tests.unit.detectors.logs.test_whole_messages import OUT_OF_MEMORY
from trainwarden.detectors import CATALOG
from trainwarden.detectors.service import DetectionHandler
from trainwarden.errors import ConfigError, DetectorError
from trainwarden.records import (
    CollectivesRecord,
    EventRecord,
    HeartbeatRecord,
    IncidentRecord,
    IterationRecord,
    LogRecord,
    MetricsRecord,
    Record,
)
from trainwarden.settings import DetectionSettings


def played(job: Job, after_s: float = 3.0) -> Run:
    return Run().play(job.records, job.end_s + after_s)


# -- healthy jobs ------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("noise", [0.02, 0.05, 0.12])
def test_a_healthy_job_is_left_in_peace(ranks: int, noise: float) -> None:
    step_s = {0.02: 1.2, 0.05: 0.12, 0.12: 0.4}[noise]
    job = Job(ranks=ranks, noise=noise, seed=ranks, step_s=step_s).run(60 if step_s > 1 else 120)
    assert played(job).revisions == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    "job",
    [
        Job(pause=lambda rank, step: 1.5 if rank == 0 and step % 20 == 10 else 0.0),
        Job(pause=lambda rank, step: 0.8 if step % 25 == 12 else 0.0),
        Job(slow=lambda rank, step: 3.0 if (step, rank) in {(40, 1), (77, 2)} else 1.0),
        Job(everyone=lambda step: 3.0 if step in {50, 90} else 1.0),
        Job(everyone=lambda step: 1.08 if step > 60 else 1.0),
        Job(roles=("p2p:first", "p2p:last"), ranks=2, slow=lambda rank, step: 1.0 + 0.6 * rank),
        Job(everyone=lambda step: 4.0 if step < 4 else 1.0),
    ],
    ids=["checkpoint-on-rank-0", "evaluation", "single-spikes", "data-reload", "small", "unequal-stages", "compile"],
)
def test_benign_twins_are_silent(job: Job) -> None:
    assert played(job.run(105)).revisions == []


def test_a_user_who_stops_the_job_is_no_incident() -> None:
    job = Job().run(40)
    exits = [event("process_exit", job.end_s + 0.1, rank, signal="SIGINT") for rank in range(4)]
    words = [event("exception", job.end_s + 0.08, 0, message="KeyboardInterrupt: ")]
    assert played(job.add(job.end_s + 0.15, *words, *exits), 6.0).revisions == []


def test_ranks_that_finish_are_no_incident() -> None:
    job = Job().run(40)
    for rank in range(4):
        job.add(job.end_s + 0.3 * rank, event("process_exit", job.end_s + 0.3 * rank, rank, code=0))
    job.add(job.end_s + 1.5, event("job_end", job.end_s + 1.5, exit_code=0))
    assert played(job, 12.0).revisions == []


# -- failures ----------------------------------------------------------------------------------------------------


def test_a_crash_is_told_at_once_with_its_root() -> None:
    run = played(crash(Job().run(40)))
    (incident,) = run.incidents
    assert (incident.kind, incident.severity, incident.suspects[0].rank) == ("crash", "sev2", 2)
    assert run.revisions[0].state == "opened"
    assert incident.opened_at_s - (incident.onset_s or 0) < 0.25


@pytest.mark.parametrize("late_s", [0.3, 0.8, 2.5])
def test_a_root_that_is_told_late_is_named_all_the_same(late_s: float) -> None:
    run = played(crash(Job().run(40), root_late_s=late_s), 5.0)
    (incident,) = run.incidents
    assert (incident.kind, incident.suspects[0].rank) == ("crash", 2)
    if late_s < 1.0:
        assert run.revisions[0].suspects[0].rank == 2


def test_an_exception_is_told_with_rank_message_and_frame_once() -> None:
    job = Job().run(40)
    at_s = job.end_s + 0.05
    job.add(at_s, event("exception", at_s, 3, message="ValueError: bad batch", frame="train.py:12 in step"))
    job.add(at_s + 0.1, *[event("exception", at_s + 0.05, rank, message=RESET) for rank in (0, 1, 2)])
    job.add(at_s + 0.5, *[event("process_exit", at_s + 0.4, rank, code=1) for rank in range(4)])
    (incident,) = played(job).incidents
    assert (incident.kind, incident.suspects[0].rank) == ("exception", 3)
    assert "ValueError: bad batch at train.py:12 in step" in incident.reason
    assert incident.opened_at_s - at_s < 0.2


def test_an_exception_stays_the_root_when_the_others_are_seen_to_hang() -> None:
    job = Job().run(40)
    at_s = job.end_s + 0.05
    job.add(at_s, event("exception", at_s, 2, message="ValueError: bad batch", frame="train.py:12 in step"))
    for tick in range(1, 40):  # the process takes long to end, and so do the others
        job.beat(at_s + 0.2 * tick, 40, phase="wait", calls=81, phases={2: "compute"}, cpu_s={2: 12.0})
    words = "rank 2 did not reach all_reduce 81"
    job.add(
        at_s + 4.0, event("flight_recorder", at_s + 3.9, 2, message=words, finding="hang", source="flight_recorder")
    )
    run = played(job, 9.0)
    (incident,) = run.incidents
    assert {one.kind for one in run.revisions} == {"exception"}
    assert "ValueError: bad batch at train.py:12 in step" in incident.reason
    assert incident.evidence["followed"] == [f"hang: {words}"]


def test_an_exit_that_is_told_before_its_exception_takes_the_exceptions_words() -> None:
    job = Job().run(40)
    at_s = job.end_s + 0.05
    job.add(at_s, event("process_exit", at_s, 3, code=1))
    job.add(at_s + 0.1, event("exception", at_s - 0.05, 3, message="ValueError: bad batch"))
    (incident,) = played(job).incidents
    assert (incident.kind, incident.suspects[0].rank) == ("exception", 3)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "cuda_out_of_memory"),
        ("MemoryError: ", "out_of_memory"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'x'", "user_error"),
        ("ZeroDivisionError: division by zero", "exception"),
    ],
)
def test_the_text_of_an_exception_names_the_kind(message: str, kind: str) -> None:
    job = Job().run(30)
    job.add(job.end_s + 0.1, event("exception", job.end_s + 0.05, 1, message=message))
    (incident,) = played(job).incidents
    assert incident.kind == kind


def test_a_full_disk_is_named_with_the_path_and_what_is_free() -> None:
    job = Job().run(30)
    disk = {"path": "/ckpt/last.pt", "mount": "/ckpt", "file_system": "ext4", "free_bytes": 4096, "size_bytes": 8e9}
    message = "RuntimeError: PytorchStreamWriter failed writing file data/0: file write failed"
    job.add(job.end_s + 0.1, event("exception", job.end_s + 0.05, 1, message=message, **disk))
    (incident,) = played(job).incidents
    assert incident.kind == "storage"
    assert "; /ckpt/last.pt is on /ckpt (ext4), where 4.1 kB of 8.0 GB are free" in incident.reason


def test_one_rank_ended_by_sigterm_is_a_crash_when_the_others_break_off() -> None:
    job = Job().run(40)
    at_s = job.end_s + 0.05
    job.add(at_s, event("process_exit", at_s, 2, signal="SIGTERM"))
    job.add(at_s + 0.1, *[event("exception", at_s + 0.04, rank, message=RESET) for rank in (0, 1, 3)])
    (incident,) = played(job).incidents
    assert (incident.kind, incident.suspects[0].rank) == ("crash", 2)


# -- hangs -------------------------------------------------------------------------------------------------------


def standstill(job: Job, culprit: int, until_s: float, *, state: str = "S", phase: str = "compute", cpu: bool = False,
               begun: int = 100) -> Job:  # fmt: skip
    """From the end of the last step on every rank waits but `culprit`."""
    at_s = job.end_s
    while at_s < job.end_s + until_s:
        at_s += 0.2
        ran_s = {rank: (at_s if cpu and rank == culprit else job.end_s) - START_S for rank in range(job.ranks)}
        phases = {rank: phase if rank == culprit else "wait" for rank in range(job.ranks)}
        job.beat(at_s, 40, phases=phases, calls=101, states={culprit: state}, cpu_s=ran_s, begun={culprit: begun})
    return job


def test_a_stopped_rank_is_named_within_three_iterations() -> None:
    job = Job(step_s=0.5).run(40)
    run = played(standstill(job, 1, 10.0, state="T"), 10.0)
    (incident,) = run.incidents
    assert (incident.kind, incident.suspects[0].rank, incident.severity) == ("hang", 1, "sev2")
    assert incident.opened_at_s - job.end_s < 3 * 0.5 + 0.3


@pytest.mark.thorough
def test_a_sleeping_rank_gets_more_patience_and_a_busy_one_most() -> None:
    slept = played(standstill(Job().run(40), 1, 12.0), 12.0).opened("hang")
    job = Job().run(40)
    busy = played(standstill(job, 1, 40.0, cpu=True), 40.0).opened("hang")
    assert 3.0 <= slept.opened_at_s - job.end_s < 4.5
    assert 30.0 <= busy.opened_at_s - job.end_s < 32.0


@pytest.mark.thorough
@pytest.mark.parametrize("phase", ["checkpoint", "evaluation"])  # data: `pace.test_phase_stalls`
def test_a_known_phase_may_last_a_minute(phase: str) -> None:
    assert played(standstill(Job().run(40), 0, 30.0, phase=phase), 30.0).revisions == []


def test_all_ranks_waiting_names_the_one_with_the_fewest_calls() -> None:
    job = Job().run(40)
    (incident,) = played(standstill(job, 2, 8.0, phase="wait"), 8.0).incidents
    assert (incident.kind, [suspect.rank for suspect in incident.suspects]) == ("hang", [2])


@pytest.mark.thorough
def test_a_hang_that_ends_is_closed_and_its_slowness_is_no_second_incident() -> None:
    job = standstill(Job().run(40), 1, 4.0, state="T")
    onset_s = job.end_s
    job.run(60, first=40, start_s=onset_s + 4.0)
    run = played(job, 4.0)
    (incident,) = run.incidents
    assert (incident.kind, incident.state) == ("hang", "closed")


@pytest.mark.thorough
def test_a_job_that_is_stopped_and_let_go_many_times_a_second_does_not_hang() -> None:
    job = Job(step_s=0.3, slow=lambda rank, step: 3.0 if rank == 1 and step >= 40 else 1.0).run(80)
    beats = [record for _, record in job.records if type(record).__name__ == "HeartbeatRecord"]
    assert beats
    stopped = []
    for at_s, record in job.records:
        if type(record).__name__ == "HeartbeatRecord" and at_s > job.ends_s[40] and int(at_s * 5) % 3:
            import msgspec

            record = msgspec.structs.replace(record, states=("S", "T", "S", "S"))  # noqa: PLW2901
        stopped.append((at_s, record))
    job.records = stopped
    assert [incident.kind for incident in played(job).incidents] == ["slow_compute"]


# -- slowness ----------------------------------------------------------------------------------------------------


QUICK = {(2, 1.5), (3, 2.0), (4, 1.5), (8, 3.0)}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("ranks", "factor"),
    [
        pytest.param(ranks, factor, marks=[] if (ranks, factor) in QUICK else pytest.mark.thorough)
        for ranks in (2, 3, 4, 8)
        for factor in (1.5, 2.0, 3.0)
    ],
)
def test_a_slow_rank_is_named_within_ten_iterations_and_let_go_on_relief(ranks: int, factor: float) -> None:
    job = Job(ranks=ranks, slow=lambda rank, step: factor if rank == 1 and 60 <= step < 90 else 1.0).run(130)
    run = played(job)
    (incident,) = run.incidents
    assert (incident.kind, incident.severity, incident.state) == ("slow_compute", "sev3", "closed")
    assert [suspect.rank for suspect in incident.suspects] == [1]
    assert incident.onset_step is not None
    assert abs(incident.onset_step - 60) <= 2
    assert incident.opened_step is not None
    assert incident.opened_step - 60 <= 10
    evidence = run.opened("slow_compute").evidence
    assert evidence["ranks"] == list(range(ranks))
    assert evidence["compute_s"][1] / evidence["compute_s"][0] == pytest.approx(factor, rel=0.2)
    assert evidence["iteration_s"] > evidence["healthy_iteration_s"]
    assert "micro_batches" not in evidence


@pytest.mark.thorough
def test_a_rank_slow_from_the_start_is_named_by_its_peers() -> None:
    incident = played(Job(slow=lambda rank, step: 1.6 if rank == 2 else 1.0).run(90)).opened("slow_compute")
    assert incident.suspects[0].rank == 2
    assert "from the start" in incident.reason


@pytest.mark.thorough
def test_a_rebalanced_slow_rank_stays_visible_until_it_is_well() -> None:
    job = Job(
        slow=lambda rank, step: 2.0 if rank == 1 and 50 <= step < 120 else 1.0,
        micro=lambda rank, step: 4 if step < 70 else 2 if rank == 1 else 5 if rank < 3 else 4,
    ).run(160)
    run = played(job)
    (incident,) = run.incidents
    assert incident.kind == "slow_compute"
    told = [record for record in run.revisions if record.evidence.get("micro_batches") == [5, 2, 5, 4]]
    assert told
    assert incident.closed_at_s is not None
    assert incident.closed_at_s > job.ends_s[119]


@pytest.mark.thorough
def test_everybody_slower_for_long_is_a_slow_job_without_suspects() -> None:
    run = played(Job(everyone=lambda step: 1.6 if 60 <= step < 160 else 1.0).run(230))
    (incident,) = run.incidents
    assert (incident.kind, incident.suspects, incident.state) == ("slow_job", (), "closed")


@pytest.mark.thorough
def test_a_restart_is_planned_and_what_was_normal_before_still_is() -> None:
    job = Job().run(60)
    at_s = job.end_s
    job.add(at_s + 0.1, event("restart", at_s + 0.1, operation="a", stage="started"))
    job.add(at_s + 0.3, *[event("process_exit", at_s + 0.2, rank, signal="SIGKILL") for rank in range(4)])
    job.life = 1
    job.everyone = lambda step: 4.0 if step < 44 else 1.0
    job.run(80, first=40, start_s=at_s + 6.0)
    job.add(at_s + 5.0, event("restart", at_s + 5.0, operation="a", stage="done"))
    job.records.sort(key=lambda entry: entry[0])
    assert played(job).revisions == []


@pytest.mark.thorough
def test_an_exit_code_is_told_though_the_launcher_starts_all_ranks_again_at_once() -> None:
    """Its exception was waited for, and the restart a tenth of a second later had all forgotten."""
    job = Job().run(60)
    at_s = job.end_s
    job.add(at_s + 0.2, event("process_exit", at_s + 0.1, 2, code=3))
    job.add(at_s + 0.3, *(event("restart", at_s + 0.2, operation="a", stage=stage) for stage in ("started", "done")))
    job.life = 1
    job.run(80, first=60, start_s=at_s + 1.0)
    job.records.sort(key=lambda entry: entry[0])
    (incident,) = played(job).incidents
    assert (incident.kind, incident.state) == ("crash", "closed")
    assert "rank 2 on node0 exited with code 3" in incident.reason


def restarted(job: Job, pace: float, *, kind: str = "restart") -> Job:
    """`job` with a restart behind its steps, after which every step takes `pace` times as long."""
    at_s = job.end_s
    if kind == "restart":
        job.add(at_s + 0.1, event("restart", at_s + 0.1, operation="a", stage="started"))
        job.add(at_s + 5.0, event("restart", at_s + 5.0, operation="a", stage="done"))
    elif kind == "job_start":
        job.add(at_s + 5.0, event("job_start", at_s + 5.0, world_size=job.ranks))
    job.add(at_s + 0.3, *[event("process_exit", at_s + 0.2, rank, code=0) for rank in range(job.ranks)])
    job.life = 1
    job.everyone = lambda step: (4.0 if step < 44 else 1.0) * pace
    job.run(100, first=40, start_s=at_s + 6.0)
    job.records.sort(key=lambda entry: entry[0])
    return job


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["restart", "workers"])
def test_a_job_that_comes_back_slower_from_a_restart_is_told(kind: str) -> None:
    job = restarted(Job(step_s=1.0).run(60), 1.4, kind=kind)
    (incident,) = played(job).incidents
    assert incident.kind == "slow_job"
    assert incident.evidence["ratio"] > 1.25


@pytest.mark.thorough
def test_a_program_that_was_started_anew_may_have_another_pace() -> None:
    assert played(restarted(Job(step_s=1.0).run(60), 1.4, kind="job_start")).revisions == []


@pytest.mark.thorough
def test_fewer_ranks_may_have_another_pace() -> None:
    job = Job(step_s=1.0).run(60)
    job.ranks = 3
    assert [one.kind for one in played(restarted(job, 1.4)).incidents if one.kind == "slow_job"] == []


@pytest.mark.thorough
def test_a_slow_rank_that_hangs_is_one_problem() -> None:
    job = Job(slow=lambda rank, step: 2.5 if rank == 1 and step >= 30 else 1.0).run(40)
    run = played(standstill(job, 1, 10.0, state="T"), 10.0)
    (incident,) = run.incidents
    assert incident.kind == "hang"
    assert incident.suspects[0].rank == 1


# -- nodes and devices -------------------------------------------------------------------------------------------


def test_a_silent_node_is_lost_and_what_the_others_do_then_is_not_another_incident() -> None:
    job = Job(node=lambda rank: f"node{rank // 2}").run(40)
    other = Job(ranks=2)
    at_s = job.end_s
    for beat in range(60):
        other.beat(at_s + 0.2 * beat, 40, phase="wait", calls=101)
    other.add(at_s + 4.0, *[event("exception", at_s + 4.0, rank, message=RESET) for rank in (0, 1)])
    job.records += other.records
    (incident,) = played(job, 11.0).incidents
    assert (incident.kind, incident.severity, incident.suspects[0].node) == ("node_lost", "sev1", "node1")
    assert incident.opened_at_s - at_s < 4.7


def test_a_service_that_was_stalled_itself_loses_no_node() -> None:
    job = Job(node=lambda rank: f"node{rank // 2}").run(40)
    run = Run().play(job.records, job.end_s - 1.0)
    run.clock.sleep(20.0)
    run.take(run.handler.tick(run.clock.now_s()))
    assert run.revisions == []


@pytest.mark.parametrize("code", [13, 31, 43, 45, 63, 94, 106, 152])
def test_an_xid_of_the_application_is_no_incident(code: int) -> None:
    job = Job().run(30)
    job.add(job.end_s, event("xid", job.end_s, device="GPU-1", xid=code))
    assert played(job).revisions == []


@pytest.mark.parametrize(
    ("code", "kind"), [(79, "gpu_lost"), (48, "gpu_memory_error"), (74, "nvlink_error"), (119, "gpu_lost")]
)
def test_an_xid_of_the_device_names_it_and_the_crash_that_follows_is_the_same_problem(code: int, kind: str) -> None:
    job = Job().run(30)
    at_s = job.end_s
    job.add(at_s + 0.1, event("xid", at_s + 0.1, device="GPU-1", xid=code))
    job.add(
        at_s + 0.9, event("exception", at_s + 0.8, 2, message="RuntimeError: CUDA error: unspecified launch failure")
    )
    (incident,) = played(job).incidents
    assert (incident.kind, incident.severity, incident.suspects[0].device) == (kind, "sev1", "GPU-1")


def test_many_nodes_whose_links_go_down_together_are_one_incident() -> None:
    job = Job(ranks=16, node=lambda rank: f"node{rank}").run(15)
    at_s = job.end_s
    for rank in range(8, 16):
        late_s = at_s + 0.2 * (rank - 8)
        job.add(late_s, event("link_down", late_s, device="mlx5_0", node=f"node{rank}"))
    run = Run().play(job.records, at_s + 2.0)
    (incident,) = run.incidents
    assert incident.kind == "nic_down"
    assert len(incident.suspects) == 8


# -- logs --------------------------------------------------------------------------------------------------------


def storm(job: Job, rank: int, line: Callable[[int], str], *, per_s: int = 100, for_s: int = 4) -> Job:
    for second in range(for_s):
        at_s = job.end_s - 8.0 + second
        first = 1 + second * per_s
        job.add(at_s + 1.0, log_lines(rank, [(at_s + i / per_s, line(first + i)) for i in range(per_s)], first=first))
    return job


def test_a_storm_of_errors_on_one_rank_is_named() -> None:
    job = storm(Job().run(80), 3, lambda i: f"ERROR: cannot read shard {i}, trying again")
    (incident,) = played(job).incidents
    assert (incident.kind, incident.suspects[0].rank) == ("log_storm", 3)


@pytest.mark.thorough
def test_ordinary_talk_is_no_storm() -> None:
    job = Job().run(120)
    for second in range(30):
        at_s, first = START_S + second, 1 + 60 * second
        lines = [(at_s + i / 60, f"step {first + i} loss 3.2{i} grad_norm 0.{i} mean error: 0.1") for i in range(60)]
        job.add(at_s + 1.0, log_lines(0, lines, first=first))
    assert played(job).revisions == []


def test_an_error_line_that_the_rank_survives_is_no_incident() -> None:
    job = Job().run(80)
    at_s = job.end_s - 10.0
    job.add(
        at_s, log_lines(1, [(at_s, "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB (caught, retrying)")])
    )
    assert played(job).revisions == []


@pytest.mark.thorough
@pytest.mark.parametrize("step_s", [0.3, 5.0, 20.0])
def test_whether_a_rank_survived_is_asked_of_its_next_step(step_s: float) -> None:
    job = Job(step_s=step_s).run(12)
    at_s = job.ends_s[8] - 0.9 * step_s
    job.add(at_s, log_lines(1, [(at_s, f"{OUT_OF_MEMORY} (caught, retrying)")]))
    assert played(job).revisions == []


@pytest.mark.thorough
def test_what_a_rank_survived_once_may_be_its_end_the_next_time() -> None:
    job = Job(step_s=5.0).run(12)
    first_s, last_s = job.ends_s[8] - 4.0, job.end_s + 1.0
    job.add(first_s, log_lines(1, [(first_s, OUT_OF_MEMORY)]))
    job.add(last_s, log_lines(1, [(last_s, OUT_OF_MEMORY)], first=2))
    for tick in range(100):
        job.beat(last_s + 0.2 * tick, 11, phase="wait", calls=23)
    run = played(job, 21.0)
    kinds = {incident.kind: incident for incident in run.incidents}
    assert kinds["cuda_out_of_memory"].suspects[0].rank == 1
    assert kinds["cuda_out_of_memory"].opened_at_s > last_s


@pytest.mark.thorough
def test_a_rank_that_ends_after_its_last_words_is_told_without_waiting_for_a_step() -> None:
    job = Job(step_s=20.0).run(6)
    at_s = job.end_s + 1.0
    job.add(at_s, log_lines(1, [(at_s, OUT_OF_MEMORY)]))
    job.add(at_s + 0.2, event("process_exit", at_s + 0.2, 1, code=1))
    (incident,) = played(job, 2.0).incidents
    assert incident.suspects[0].rank == 1
    assert "log_window" in incident.votes


# -- the bus -----------------------------------------------------------------------------------------------------


def shuffled(job: Job) -> list[tuple[float, Record]]:
    """Every record twice, the second time late and out of order."""
    return [*job.records, *[(at_s + 0.7 * (place % 3), record) for place, (at_s, record) in enumerate(job.records)]]


@pytest.mark.thorough
def test_doubled_and_disordered_records_change_nothing() -> None:
    job = Job(slow=lambda rank, step: 2.0 if rank == 1 and step >= 60 else 1.0).run(90)
    once, twice = played(job), Run().play(shuffled(job), job.end_s + 3.0)
    assert [incident.id for incident in twice.incidents] == [incident.id for incident in once.incidents]
    assert (metric_value(twice.metrics, "records_odd_total", kind="duplicates") or 0) > 100
    healthy = Job(seed=5).run(90)
    assert Run().play(shuffled(healthy), healthy.end_s + 3.0).revisions == []


@pytest.mark.thorough
@pytest.mark.parametrize("cut_s", [5.0, 21.0, 22.5, 24.0, 30.0])
def test_killed_at_any_moment_nothing_is_lost_and_nothing_told_twice(cut_s: float) -> None:
    job = Job(slow=lambda rank, step: 2.0 if rank == 1 and step >= 60 else 1.0).run(75)
    crash(job)
    whole = played(job, 4.0)
    bus = RememberingBus()
    first = Run(bus=bus)
    first.play(job.records, START_S + cut_s)
    opened_before = {record.id for record in first.revisions}
    verdicts_before = len(first.verdicts)
    second = Run(bus=bus)
    second.clock.set_s(START_S + cut_s + 0.5)
    second.take(second.handler.handle(bus.poll(10**9)))
    second.take(second.handler.tick(second.clock.now_s()))
    assert len(second.verdicts) == verdicts_before  # all of it was handled before, so nothing is told again
    again = [record for record in second.revisions if record.state == "opened" and record.id in opened_before]
    assert len(again) == len({record.id for record in again})
    second.play([entry for entry in job.records if entry[0] > START_S + cut_s], job.end_s + 4.0)
    kinds = [record.kind for record in second.revisions if record.state == "opened"]
    assert kinds == [record.kind for record in whole.revisions if record.state == "opened"]
    assert {incident.suspects[0].rank for incident in second.incidents} == {1, 2}


def test_a_fault_while_the_service_was_away_is_told_when_it_comes_back() -> None:
    job = crash(Job().run(40))
    bus = RememberingBus()
    Run(bus=bus).play(job.records, job.end_s - 1.0)
    rest = Run(bus=RememberingBus())
    rest.bus.log, rest.bus.committed_offset = list(bus.log), bus.committed_offset
    rest.clock.set_s(job.end_s + 30.0)
    pending = sorted((entry for entry in job.records if entry[0] > job.end_s - 1.0), key=lambda entry: entry[0])
    from trainwarden.protocols import Message
    from trainwarden.topics import topic_of

    for at_s, record in pending:
        rest.bus.log.append(Message(topic_of(record).name, 0, len(rest.bus.log), at_s, JOB, record))
    consumer: object = rest.bus
    rest.handler.start(rest.bus, consumer)  # type: ignore[arg-type]
    rest.take(rest.handler.handle(rest.bus.poll(10**9)))
    rest.take(rest.handler.tick(rest.clock.now_s()))
    (incident,) = rest.incidents
    assert (incident.kind, incident.suspects[0].rank) == ("crash", 2)


def test_a_failing_detector_abstains_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainwarden.detectors.pace.change_point import ChangePoint

    def broken(self: ChangePoint, window: object) -> None:
        raise DetectorError("broken by the test")

    monkeypatch.setattr(ChangePoint, "update", broken)
    run = played(crash(Job().run(40)))
    assert [incident.kind for incident in run.incidents] == ["crash"]
    assert run.verdicts[-1].votes["change_point"].opinion == "abstain"
    assert (metric_value(run.metrics, "detector_errors_total", detector="change_point") or 0) > 10


def test_verdicts_are_told_on_change_and_about_once_a_second() -> None:
    job = Job().run(60)
    run = played(job, 0.0)
    length_s = job.end_s - START_S
    assert 0.7 * length_s <= len(run.verdicts) <= 1.2 * length_s
    assert set(run.verdicts[-1].votes) == set(CATALOG)
    assert run.verdicts[-1].iteration_s == pytest.approx(0.31, rel=0.1)


def test_a_job_that_is_long_over_is_forgotten() -> None:
    job = Job().run(20)
    run = Run(DetectionSettings(ensemble={"forget_s": 20.0})).play(job.records, job.end_s + 3.0)
    assert metric_value(run.metrics, "jobs") == 1.0
    run.play([], job.end_s + 40.0)
    assert metric_value(run.metrics, "jobs") == 0.0


def test_a_job_that_nobody_hears_of_any_more_leaves_no_incident_open() -> None:
    job = crash(Job().run(20))
    run = Run(DetectionSettings(ensemble={"forget_s": 20.0})).play(job.records, job.end_s + 60.0)
    (incident,) = run.incidents
    assert (incident.kind, incident.state) == ("crash", "closed")


def test_records_of_all_kinds_and_of_no_use_are_taken() -> None:
    metrics = MetricsRecord(job=JOB, node="node0", time_s=START_S, devices=("g",), names=("x",), values=((1.0,),))
    odd = EventRecord(id="odd", job=JOB, node="node0", time_s=START_S, kind="clock_step")
    job = Job().run(5).add(START_S, metrics, odd)
    assert played(job).revisions == []


@pytest.mark.parametrize(
    "settings",
    [
        DetectionSettings(detectors={"nonesuch": {}}),
        DetectionSettings(detectors={"hard_event": {"root_patience_s": -1}}),
        DetectionSettings(detectors={"device_limits": {"table": "/nowhere/ours.toml"}}),
        DetectionSettings(detectors={"nonesuch": False}),
        DetectionSettings(ensemble={"window_every_s": 0}),
        DetectionSettings(ensemble={"weights": {"nonesuch": 0.5}}),
    ],
)
def test_wrong_settings_are_refused_at_the_start(settings: DetectionSettings) -> None:
    with pytest.raises(ConfigError):
        Run(settings)


def test_incidents_of_other_jobs_stay_their_own() -> None:
    bus = RememberingBus()
    bus.outputs.append(
        IncidentRecord(
            id="x", job="another", kind="crash", severity="sev2", state="opened", revision=1, opened_at_s=START_S,
            updated_at_s=START_S, reason="r",
        )
    )  # fmt: skip
    job = Job().run(20)
    run = Run(bus=bus).play(job.records, job.end_s + 2.0)
    assert [record.id for record in run.revisions] == ["x"]


def test_the_service_reads_all_that_the_memory_of_a_job_takes_in() -> None:
    read = {topic.record_type for topic in DetectionHandler.topics}
    assert read == {CollectivesRecord, EventRecord, HeartbeatRecord, IterationRecord, LogRecord, MetricsRecord}
