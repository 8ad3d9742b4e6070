"""A command that fails is an incident, named by its output where no hook reports any rank."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.unit.detectors.detection_streams import START_S, Job, Run, event, log_lines
from trainwarden.detectors.facts.output import Output, Raised, Word, Writer
from trainwarden.detectors.job.object_codec import ObjectCodec
from trainwarden.detectors.job.window import LogLine
from trainwarden.detectors.logs.device_lines import Tasks
from trainwarden.detectors.logs.ends.endings import Ending, EndTable
from trainwarden.records import IncidentRecord, LogRecord, Record

END_S = START_S + 3.0
HEAD = "Traceback (most recent call last):"
IMPORT = (
    HEAD,
    '  File "/job/train.py", line 3, in <module>',
    "    import dta",
    "ModuleNotFoundError: No module named 'dta'",
)
PEER = (
    HEAD, '  File "/job/train.py", line 70, in step', "    dist.all_reduce(x)",
    "RuntimeError: [../gloo/transport/tcp/pair.cc:547] Connection reset by peer",
)  # fmt: skip
DIVIDED = (HEAD, '  File "/job/train.py", line 9, in main', "    1 / 0", "ZeroDivisionError: division by zero")
TABLE = (
    "Root Cause (first observed failure):", "[0]:", "  time      : 2026-11-26_10:00:00", "  host      : n",
    "  rank      : 1 (local_rank: 1)", "  exitcode  : 1 (pid: 4711)", "  error_file: <N/A>",
)  # fmt: skip
TORCHRUN = (
    HEAD, '  File "/usr/bin/torchrun", line 8, in <module>', "    sys.exit(main())",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", *TABLE,
)  # fmt: skip


def output(lines: tuple[str, ...], rank: int | None = None, *, at_s: float = END_S - 0.1, first: int = 1) -> LogRecord:
    return log_lines(rank, [(at_s, line) for line in lines], first=first)


def ended(
    *records: Record, code: int = 1, late: bool = False, command: str = "sh run.sh", **fields: object
) -> list[IncidentRecord]:
    """The incidents of a command that ends with `code`, having printed `records`, which may be read later."""
    job = Job()
    job.add(START_S, event("job_start", START_S, command=command))
    job.add(END_S + 0.4 if late else END_S - 0.1, *records)
    job.add(END_S, event("job_end", END_S, exit_code=code, **fields))
    return Run().play(job.records, END_S + 6.0).incidents


@pytest.mark.parametrize("late", [False, True])
def test_an_exception_before_the_first_step_is_told_with_its_frame(late: bool) -> None:
    (incident,) = ended(output(IMPORT), late=late)
    assert incident.kind == "user_error"
    assert "ModuleNotFoundError: No module named 'dta' at train.py:3 in <module>" in incident.reason
    assert incident.suspects[0].rank == 0
    assert incident.suspects[0].node == "node0"
    assert incident.evidence["output"][-1] == IMPORT[-1]
    assert incident.onset_s == pytest.approx(END_S - 0.1, abs=0.2)


@pytest.mark.parametrize(
    ("command", "rank"),
    [
        ("/usr/bin/python3.11 -u train.py --lr 1", 0),
        ("python train.py", 0),
        ("python -m torch.distributed.run train.py", None),
        ("torchrun train.py", None),
        ("sh train.sh", None),
    ],
)
def test_a_python_script_alone_is_rank_0_also_where_no_exception_was_printed(command: str, rank: int | None) -> None:
    said = ("usage: train.py [-h]", "train.py: error: unrecognized arguments: --learning-rat 1")
    (incident,) = ended(output(said), code=2, command=command)
    assert (incident.kind, incident.suspects[0].rank) == ("user_error", rank)


def test_the_rank_is_the_one_that_torchrun_calls_the_root() -> None:
    (incident,) = ended(output((*DIVIDED, *TORCHRUN)))
    assert (incident.kind, incident.suspects[0].rank) == ("exception", 1)
    assert "ZeroDivisionError: division by zero at train.py:9 in main" in incident.reason


def test_the_rank_is_the_one_that_prefixes_its_lines() -> None:
    (incident,) = ended(output(DIVIDED, 1), output(PEER, 0))
    assert (incident.kind, incident.suspects[0].rank) == ("exception", 1)


def test_the_root_that_torchrun_names_is_blamed_though_another_rank_printed_an_exception_later() -> None:
    (incident,) = ended(
        output(DIVIDED, 1, at_s=END_S - 0.9), output(IMPORT, 0, at_s=END_S - 0.5, first=20), output(TORCHRUN, first=40)
    )
    assert (incident.kind, incident.suspects[0].rank) == ("exception", 1)
    assert "ZeroDivisionError" in incident.reason


def test_an_interrupt_that_follows_an_exception_is_not_the_cause() -> None:
    interrupt = (HEAD, '  File "/job/train.py", line 9, in main', "    wait()", "KeyboardInterrupt")
    (incident,) = ended(output(DIVIDED, 0, at_s=END_S - 0.5), output(interrupt, 1, first=20))
    assert (incident.kind, incident.suspects[0].rank) == ("exception", 0)


def test_what_only_followed_is_told_where_nothing_else_is_known() -> None:
    (incident,) = ended(output(PEER))
    assert incident.kind == "crash"
    assert "Connection reset by peer" in incident.reason


@pytest.mark.parametrize(
    ("lines", "code", "kind", "said"),
    [
        ((), 3, "crash", "the command ended with exit code 3"),
        (("step 1",), 137, "crash", "the command was killed by SIGKILL"),
        (("train.sh: line 3: pyton: command not found",), 127, "user_error", "line 3: pyton: command not found"),
        (("sh: 1: pyton: not found",), 127, "user_error", "exit code 127: sh: 1: pyton: not found"),
        (("usage: train.py", "train.py: error: unrecognized arguments: --lr2"), 2, "user_error", "unrecognized"),
        (("OSError: [Errno 98] Address already in use",), 1, "user_error", "Address already in use"),
        (
            ("/usr/bin/python3.11: can't open file '/a/missing.py': [Errno 2] No such file or directory",),
            2,
            "user_error",
            "can't open file",
        ),
        (("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB",), 1, "cuda_out_of_memory", "2.00 GiB"),
        (("MemoryError",), 1, "out_of_memory", "MemoryError"),
    ],
)
def test_a_command_without_a_traceback_is_named_by_its_last_lines(
    lines: tuple[str, ...], code: int, kind: str, said: str
) -> None:
    (incident,) = ended(*([output(lines)] if lines else []), code=code)
    assert incident.kind == kind
    assert said in incident.reason


LONG = ("mpirun detected that one or more processes exited with non-zero status, thus causing",
        "the job to be terminated. The first process to do so was:", "", "  Process name: [[25717,1],2]",
        "  Exit code:    1")  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "rank", "said"),
    [
        (("ERROR:composer.cli.launcher:Rank 2 crashed with exit code 1.", "Global rank 0 (PID 7) exited with code -15"),
         2, "rank 2 exited with code 1"),
        (("Global rank 3 (PID 73) exited with code -9", "Global rank 0 (PID 70) exited with code -15"), 3, "SIGKILL"),
        (("mpirun noticed that process rank 2 with PID 72 on node gb exited on signal 9 (Killed).",), 2, "SIGKILL"),
        (LONG, 2, "rank 2 exited with code 1"),
        (("Primary job  terminated normally, but 1 process returned", "a non-zero exit code.", *LONG), 2, "rank 2"),
        (("[2026-11-04 08:05:05,101] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 7001",
          "[2026-11-04 08:05:06,101] [ERROR] [launch.py:325:sigkill_handler] ['python', '--local_rank=2'] exits with "
          "return code = -11"), None, "was killed by SIGSEGV"),
        (("srun: error: gb: task 2: Segmentation fault (core dumped)", "srun: Terminating StepId=4711.0",
          "slurmstepd: error: *** STEP 4711.0 ON gb CANCELLED AT 2026-11-04T11:20:01 ***",
          "srun: error: ga: tasks 0-1: Terminated"), 2, "rank 2 was killed by SIGSEGV"),
        (("srun: error: gb: tasks 0-3: Exited with exit code 3",), None, "exited with code 3"),
        (("torch/distributed/run.py:774] Setting OMP_NUM_THREADS", "srun: error: gb: task 2: Exited with exit code 1"),
         None, "exited with code 1"),
        (("torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with signal SIGKILL",),
         2, "SIGKILL"),
        (("E1104 torch/api.py:882] failed (exitcode: -9) local_rank: 1 (pid: 7001) of binary: python",), 1, "SIGKILL"),
        (("pdsh@head: gb: ssh exited with exit code 1",), None, "exited with code 1"),
        (("=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES", "=   RANK 2 PID 7002 RUNNING AT gb",
          "=   KILLED BY SIGNAL: 9 (Killed)"), 2, "rank 2 was killed by SIGKILL"),
    ],
)  # fmt: skip
def test_a_rank_that_ends_without_a_word_is_the_one_that_its_launcher_names(
    lines: tuple[str, ...], rank: int | None, said: str
) -> None:
    (incident,) = ended(output(("step 1 loss 2.1", *lines)))
    assert (incident.kind, incident.suspects[0].rank) == ("crash", rank), incident.reason
    assert said in incident.reason
    if any(" gb" in line or "AT gb" in line for line in lines):
        assert incident.suspects[0].node == "gb"


def test_lightning_names_the_rank_of_a_child_as_a_prefix() -> None:
    (incident,) = ended(output(("[rank: 2] Child process with PID 7002 terminated with code -9. Forcefully",), 2))
    assert (incident.suspects[0].rank, incident.reason.count("rank 2 was killed by SIGKILL")) == (2, 1)


def test_the_traceback_that_spawn_prints_is_of_the_process_that_it_names() -> None:
    spawned = (HEAD, '  File "train.py", line 12, in <module>', "    mp.spawn(run)",
               "torch.multiprocessing.spawn.ProcessRaisedException: ", "",
               "-- Process 2 terminated with the following error:", *DIVIDED)  # fmt: skip
    (incident,) = ended(output(spawned), command="python train.py")
    assert (incident.kind, incident.suspects[0].rank) == ("exception", 2)


@pytest.mark.parametrize(
    "lines",
    [("slurmstepd: error: *** STEP 4711.0 ON gb CANCELLED AT 2026-11-04T11:20:01 ***",
      "srun: error: gb: task 1: Killed"),
     ("srun: error: gb: tasks 0-3: Terminated",
      "slurmstepd: error: *** STEP 4711.0 ON gb CANCELLED AT 2026-11-04T11:20:01 DUE TO TIME LIMIT ***")],
)  # fmt: skip
def test_who_dies_after_the_scheduler_has_stopped_the_job_has_not_failed(lines: tuple[str, ...]) -> None:
    assert ended(output(lines)) == []


@pytest.mark.parametrize("code", [129, 130, 143, -2, -15, 0])
def test_a_command_that_was_stopped_or_ended_well_is_no_failure(code: int) -> None:
    assert ended(output(IMPORT), code=code) == []


@pytest.mark.parametrize(
    "line",
    ["slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-11-26T10:00:00 DUE TO TIME LIMIT ***",
     "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4711 got signal: 15"],
)  # fmt: skip
def test_a_scheduler_that_stops_the_job_is_no_failure(line: str) -> None:
    assert ended(output((*DIVIDED, line))) == []


def test_whoever_ran_the_command_knows_that_it_was_interrupted() -> None:
    assert ended(output(DIVIDED), interrupted="SIGINT") == []


def test_an_exception_that_was_survived_long_ago_is_not_the_cause() -> None:
    job = Job()
    job.add(START_S, event("job_start", START_S), output(DIVIDED, at_s=START_S))
    end_s = START_S + 90.0
    job.add(end_s, event("job_end", end_s, exit_code=4))
    (incident,) = Run().play(job.records, end_s + 5.0).incidents
    assert incident.kind == "crash"
    assert incident.reason.startswith("the command ended with exit code 4")


def test_a_rank_that_ends_without_a_hook_is_named_by_what_it_printed() -> None:
    job = Job()
    at_s = START_S + 3.0
    job.add(at_s, output(DIVIDED, 1, at_s=at_s), event("process_exit", at_s, 1, code=1))
    job.add(at_s + 0.5, event("process_exit", at_s + 0.5, 0, signal="SIGTERM"))
    job.add(at_s + 0.7, event("job_end", at_s + 0.7, exit_code=1))
    (incident,) = Run().play(job.records, at_s + 5.0).incidents
    assert (incident.kind, incident.suspects[0].rank) == ("exception", 1)
    assert "ZeroDivisionError: division by zero at train.py:9 in main" in incident.reason


def test_the_end_of_the_command_adds_nothing_to_a_known_failure() -> None:
    job = Job().run(10)
    at_s = job.end_s + 0.1
    job.add(at_s, event("process_exit", at_s, 2, signal="SIGKILL"))
    job.add(at_s + 1.0, event("job_end", at_s + 1.0, exit_code=1))
    (incident,) = Run().play(job.records, at_s + 6.0).incidents
    assert (incident.kind, incident.suspects[0].rank) == ("crash", 2)
    assert incident.state == "closed"


@pytest.mark.parametrize(("code", "stopped"), [(143, "SIGTERM"), (0, None), (1, "SIGINT")])
def test_a_rank_whose_end_nobody_saw_has_not_failed_where_the_command_was_stopped_or_ended_well(
    code: int, stopped: str | None
) -> None:
    job = Job().run(10)
    at_s = job.end_s + 0.1
    job.add(at_s, event("process_exit", at_s, 2))
    job.add(at_s + 0.8, event("job_end", at_s + 0.8, exit_code=code, interrupted=stopped))
    assert Run().play(job.records, at_s + 6.0).incidents == []


def test_a_rank_whose_end_nobody_saw_has_failed_where_the_others_go_on() -> None:
    job = Job().run(10)
    at_s = job.end_s + 0.1
    job.add(at_s, event("process_exit", at_s, 2))
    (incident,) = Run().play(job.records, at_s + 2.5).incidents
    assert (incident.kind, incident.suspects[0].rank) == ("crash", 2)


def test_a_traceback_behind_sruns_labels_is_read_while_the_job_runs() -> None:
    said = tuple(f"2: {line}" for line in DIVIDED)
    (incident,) = ended(output((*said, "srun: error: ge: task 2: Exited with exit code 1"), 2))
    assert incident.kind == "exception"
    assert incident.suspects[0].rank == 2
    assert "ZeroDivisionError" in incident.reason


def test_slurms_word_of_a_task_out_of_memory_names_the_tasks_node() -> None:
    said = (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=44.0. Some of the step tasks have been OOM Killed.",
        "srun: error: nid001277: task 3: Out Of Memory",
    )
    (incident,) = ended(output(said))
    assert incident.kind == "out_of_memory"
    assert (incident.suspects[0].node, incident.suspects[0].rank) == ("nid001277", 3)


def test_a_task_of_srun_that_is_a_nodes_torchrun_is_no_rank() -> None:
    said = (
        "W1104 08:00:00.000000 12 torch/distributed/run.py:793] Setting OMP_NUM_THREADS environment variable",
        "srun: error: nid001277: task 1: Out Of Memory",
    )
    (incident,) = ended(output(said))
    assert (incident.suspects[0].node, incident.suspects[0].rank) == ("nid001277", None)


TIME_LIMIT = "slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-11-26T10:00:00 DUE TO TIME LIMIT ***"
OUTLIVED = (
    "srun: error: n3: task 5: Exited with exit code 1",
    '        "exitCode": 1,',
    "Child process with PID 7 terminated with code 1.",
    "note: on BackoffLimitExceeded the operator restarts",
)


def ended_late(early: str, *last: str) -> list[IncidentRecord]:
    """The incidents of a job that goes on for 100 s after `early`, then prints `last` and ends."""
    job, end_s = Job(), START_S + 100.0
    job.add(START_S, event("job_start", START_S, command="sh run.sh"), output((early,), at_s=START_S))
    for step in range(100):
        at_s = START_S + 0.9 * step
        job.add(at_s, output((f"step {step} loss 2.1",), at_s=at_s, first=10 + step))
    job.add(end_s - 0.1, output(last, at_s=end_s - 0.1, first=200))
    job.add(end_s, event("job_end", end_s, exit_code=1))
    return Run().play(job.records, end_s + 6.0).incidents


@pytest.mark.parametrize("early", OUTLIVED)
def test_a_process_that_the_job_has_outlived_hides_no_time_limit(early: str) -> None:
    assert ended_late(early, TIME_LIMIT, "srun: error: n1: task 0: Killed") == []


@pytest.mark.thorough
@pytest.mark.parametrize("early", OUTLIVED)
def test_a_process_that_the_job_has_outlived_is_not_named_at_its_end(early: str) -> None:
    (incident,) = ended_late(early, "giving up")
    assert [one.rank for one in incident.suspects] in ([], [None])
    assert incident.reason.startswith("the command ended with exit code 1: giving up")
    (incident,) = ended_late(early, "srun: error: gb: tasks 2-3: Exited with exit code 9")
    assert "a process exited with code 9" in incident.reason


def test_a_task_is_no_rank_where_the_rank_of_its_number_is_heard_on_another_node() -> None:
    said = msgspec.structs.replace(output(("step 1",), 4), node="gpu-00")
    (incident,) = ended(said, output(("srun: error: gpu-07: task 4: Exited with exit code 1",), first=20))
    assert (incident.suspects[0].node, incident.suspects[0].rank) == ("gpu-07", None)


def test_lines_of_two_tables_are_not_mixed() -> None:
    read = Output()
    said = (("a", "Root Cause (first observed failure):"), ("a", "rank   : 3 (local_rank: 3)"),
            ("b", "rank   : 9 (local_rank: 1)"), ("a", "exitcode  : -9 (pid: 70)"))  # fmt: skip
    again, codec = Output(), ObjectCodec(EndTable, Ending, Raised, Tasks, Word, Writer)
    for node, text in said:
        read.read([LogLine(node, "job.log", None, text, 5.0)])
        codec.load(again, msgspec.msgpack.decode(msgspec.msgpack.encode(codec.dump(read))))
        read = again
    word = read.word(6.0)
    assert word is not None
    assert (word.rank, word.ending.signal, word.ending.first) == (3, 9, True)


def test_an_end_costs_no_look_at_every_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    class Counted(dict[str, Writer]):
        def values(self) -> Any:
            nonlocal looks
            looks += len(self)
            return super().values()

    read = Output()
    monkeypatch.setattr(read, "_writers", Counted())
    read.read(LogLine(f"n{one}", "job.log", None, "command terminated with exit code 1", 5.0) for one in range(64))
    assert looks == 0
