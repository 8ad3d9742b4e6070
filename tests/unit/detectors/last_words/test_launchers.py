"""How launchers say that a rank has ended: every row of the table, and tracebacks behind their prefixes."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from tests.unit.detectors.last_words.judged import judged, raised
from trainwarden import log_text
from trainwarden.detectors.logs.ends.endings import Endings, shipped_endings
from trainwarden.errors import ConfigError
from trainwarden.log_text import PREFIXES, label_of, writer_of

LABELLED = [f"{{rank}}: step {step} loss {2 - step / 100:.3f}" for step in range(20)]
TOLD = {
    "srun --label": (
        "{rank}: ",
        ["srun: error: ge: task 2: Exited with exit code 1", "srun: Terminating StepId=4711.0",
         "slurmstepd: error: *** STEP 4711.0 ON ge CANCELLED AT 2026-11-04T11:20:01 ***",
         "srun: error: ge: tasks 0-1,3: Terminated"],
    ),
    "mpirun tags": (
        "[1,{rank}]<stderr>:", ["mpirun detected that one or more processes exited with non-zero status, thus causing"],
    ),
    "mpirun long": (
        "[1,{rank}]<stderr>:", ["Primary job  terminated normally, but 1 process returned", "  Process name: [[25717,1],2]"],  # noqa: E501
    ),
    "composer": (
        "[rank{rank}]: ",
        ["ERROR:composer.cli.launcher:Rank 2 crashed with exit code 1.", "Global rank 0 (PID 7000) exited with code -15"],  # noqa: E501
    ),
    "accelerate": (
        "[rank{rank}]: ",
        ["Traceback (most recent call last):", '  File "/srv/venv/bin/accelerate", line 8, in <module>',
         "subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1."],
    ),
    "deepspeed": (
        "[rank{rank}]: ",
        ["[2026-11-04 08:05:05,101] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 7001",
         "[2026-11-04 08:05:06,101] [ERROR] [launch.py:325:sigkill_handler] ['python', '--local_rank=2'] exits with return code = 1"],  # noqa: E501
    ),
    "lightning": (
        "[rank{rank}]: ", ["[rank: 2] Child process with PID 7002 terminated with code 1. Forcefully terminating all others"],  # noqa: E501
    ),
    "kubectl": ("[pod/job-worker-0/main] [rank{rank}]: ", ["command terminated with exit code 1"]),
    "ray": (
        "(RayTrainWorker pid=700{rank}, ip=10.0.0.7) [rank{rank}]: ",
        ["ray.exceptions.RayTaskError(RuntimeError): ray::_RayTrainWorker__execute.get_next() (pid=7002, ip=10.0.0.7)"],
    ),
    "pdsh": ("gpu-07: [rank{rank}]: ", ["pdsh@head: gpu-07: ssh exited with exit code 1"]),
    "containerd": ("2026-11-04T08:05:00.000000000Z stderr F [rank{rank}]: ", ["2026-11-04T08:05:01.0Z stderr F Killed"]),  # noqa: E501
}  # fmt: skip


@pytest.mark.parametrize("launcher", TOLD)
def test_a_rank_that_raised_and_that_its_launcher_says_ended_is_the_cause(tmp_path: Path, launcher: str) -> None:
    prefix, ended = TOLD[launcher]
    steps = [
        f"{prefix.format(rank=rank)}step {step} loss {2 - step / 100:.3f}" for step in range(20) for rank in range(4)
    ]
    incidents = judged(tmp_path, {"logs.txt": [*steps, *raised(2, "RuntimeError: no index came", prefix), *ended]})
    assert [(one.kind, one.suspects[0].rank) for one in incidents] == [("exception", 2)], incidents


def test_the_traceback_that_spawn_prints_is_of_the_process_that_it_names(tmp_path: Path) -> None:
    parent = ["Traceback (most recent call last):", '  File "train.py", line 12, in <module>', "    mp.spawn(run)"]
    parent += [
        "torch.multiprocessing.spawn.ProcessRaisedException: ",
        "",
        "-- Process 2 terminated with the following error:",
    ]
    lines = [f"step {step} loss {2 - step / 100:.3f}" for step in range(20)]
    incidents = judged(tmp_path, {"logs.txt": [*lines, *parent, *raised(2, "RuntimeError: no index came", "")]})
    assert [(one.kind, one.suspects[0].rank) for one in incidents] == [("exception", 2)]


@pytest.mark.parametrize("row", shipped_endings().rows, ids=lambda row: row.id)
def test_every_row_reads_its_own_sample(row) -> None:
    said = shipped_endings().read(row.sample)
    assert said is not None
    assert (said.id, said.says) == (row.id, row.says)


@pytest.mark.parametrize("row", PREFIXES, ids=lambda row: row.source)
def test_every_prefix_is_read_from_its_own_sample(row) -> None:
    label = label_of([row.sample] * 4) if row.labelled else None
    assert writer_of(row.sample, label).rest != row.sample


def test_of_a_line_without_a_prefix_no_pattern_of_one_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    class Counted:
        groupindex: ClassVar[dict[str, int]] = {"rank": 1}

        def match(self, text: str) -> None:
            tried.append(text)

    for name in ("_ALWAYS", "_LABELS", "_RANK_LABELS"):
        monkeypatch.setattr(log_text, name, (Counted(),), raising=False)
    step = "iteration 7 | lm loss 3.2 | grad norm 1.2"
    for line in (step, f"2026-01-01 10:00:00,1 [INFO] {step}", f"[2026-01-01 10:00:00] {step}"):
        assert (log_text.behind_prefixes(line, None), tried) == (line, [])
    assert (log_text.behind_prefixes(step, 3), tried) == (step, [])
    log_text.behind_prefixes(f"[rank3]: {'x' * 1_500}", 3)  # no shape is remembered of such a long line
    assert tried


def test_a_broken_table_of_endings_is_one_clear_sentence(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text('[[ending]]\nid = "x"\npattern = "("\nsays = "failed"\nsample = ""\nsource = ""\n')
    with pytest.raises(ConfigError, match="ending x"):
        Endings(tmp_path / "e.toml")


WORKERS = (  # a process id that two nodes use
    "(TorchTrainer pid=70, ip=10.0.0.6) - (node_id=ab, ip=10.0.0.6, pid=7002) world_rank=0, local_rank=0, node_rank=0",
    "(TorchTrainer pid=70, ip=10.0.0.6) - (node_id=ac, ip=10.0.0.7, pid=7002) world_rank=1, local_rank=0, node_rank=1",
)


@pytest.mark.parametrize(
    ("ip", "expected"), [(", ip=10.0.0.7", (1, "10.0.0.7")), (", ip=10.0.0.6", (0, "10.0.0.6")), ("", (None, None))]
)
def test_a_worker_of_ray_is_known_by_its_process_on_its_node(
    tmp_path: Path, ip: str, expected: tuple[int | None, str | None]
) -> None:
    lines = raised(0, "KeyError: 'x'", f"(RayTrainWorker pid=7002{ip}) ")
    (incident,) = judged(tmp_path, {"logs.txt": [*WORKERS, *lines]})
    assert [(one.rank, one.node) for one in incident.suspects] in ([expected], [])
    assert expected[0] is None or incident.suspects


UNHEALTHY = "2026-11-04 16:03:15.140058: E coordination_service_agent.cc:725] Polled an error from coordination service: UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):"  # noqa: E501
FATAL = "F client.h:80] Terminating process because the JAX distributed service detected fatal errors."


@pytest.mark.parametrize("after", [(), (FATAL,)])
@pytest.mark.parametrize(("tasks", "rank"), [((7,), 7), ((5, 7), None)])
def test_a_task_that_sends_jax_no_heartbeats_is_named_and_of_several_none(
    tmp_path: Path, tasks: tuple[int, ...], rank: int | None, after: tuple[str, ...]
) -> None:
    missing = [f"/job:jax_worker/replica:0/task:{task}" for task in tasks]
    (incident,) = judged(tmp_path, {"logs.txt": [UNHEALTHY, *missing, *after]})
    assert incident.kind == "crash"
    assert (incident.suspects[0].rank if incident.suspects else None) == rank


@pytest.mark.parametrize(("code", "rank"), [(1, 2), (137, 2), (143, None)])
def test_the_code_in_mpiruns_block_says_whether_the_process_was_told_to_end(
    tmp_path: Path, code: int, rank: int | None
) -> None:
    block = [
        "mpirun detected that one or more processes exited with non-zero status, thus causing",
        "the job to be terminated. The first process to do so was:", "", "  Process name: [[25717,1],2]",
        f"  Exit code:    {code}",
    ]  # fmt: skip
    (incident,) = judged(tmp_path, {"logs.txt": block})
    assert (incident.suspects[0].rank if incident.suspects else None) == rank
    assert rank is None or ("SIGKILL" if code == 137 else f"code {code}") in incident.reason


@pytest.mark.parametrize("code", [0, 1, 2])
def test_an_exit_code_that_no_launcher_names_the_process_of_is_no_end(tmp_path: Path, code: int) -> None:
    steps = [
        f"iteration {number}/ 100000 | elapsed time per iteration (ms): 100.0 | lm loss: 2.1E+00 |"
        for number in range(1, 21)
    ]
    said = [*steps, "sample 19 failed in the sandbox:", f"  Exit code: {code}", "pass@1: 0.95"]
    assert judged(tmp_path, {"train.log": said}) == []


def test_a_stall_of_hours_before_is_not_the_cause_of_an_end(tmp_path: Path) -> None:
    stall = [
        "[2026-11-04 08:00:00] W horovod/common/stall_inspector.cc:107] One or more tensors were submitted to be "
        "reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks",
        "Missing ranks:", "2: [grad.1]",
    ]  # fmt: skip
    after = [f"[2026-11-04 {8 + minute // 60:02d}:{minute % 60:02d}:00] epoch goes on" for minute in range(2, 236)]
    end = "[2026-11-04 11:59:00] mpirun detected that one or more processes exited with non-zero status, thus causing"
    (incident,) = judged(tmp_path, {"train.log": [*stall, *after, end]})
    assert (incident.kind, [one.rank for one in incident.suspects]) == ("crash", [None])


@pytest.mark.parametrize("name", ["", "train - "])
def test_a_traceback_inside_a_loggers_lines_is_the_cause(tmp_path: Path, name: str) -> None:
    stamp = "2026-01-02 03:04:{second:02d},678 - "
    steps = [stamp.format(second=step) + f"train - INFO - step {step} loss {2 - step / 100:.3f}" for step in range(20)]
    lines = [stamp.format(second=30) + f"{name}ERROR - {line}" for line in raised(0, "KeyError: 'tokens'", "")]
    (one,) = judged(tmp_path, {"logs.txt": [*steps, *lines]})
    assert (one.kind, "KeyError: 'tokens'" in one.reason) == ("exception", True)
    went_on = [line.replace("03:04", "03:05") for line in steps]
    assert judged(tmp_path, {"logs.txt": [*steps, *lines, *went_on]}) == []


def test_colossalais_last_line_says_that_a_process_failed(tmp_path: Path) -> None:
    (row,) = (row for row in shipped_endings().rows if row.id == "colossalai.failed")
    steps = [f"step {step} loss {2 - step / 100:.3f}" for step in range(20)]
    (one,) = judged(tmp_path, {"logs.txt": [*steps, row.sample]})
    assert (one.kind, [suspect.rank for suspect in one.suspects]) == ("crash", [None])


_FOLDED = r"Traceback (most recent call last):\n  File 'train.py', line 10, in main\nKeyError: 'labels'"


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        (f"2026-11-20 10:00:09,000 ERROR train: {_FOLDED}", None),
        (f"[rank3]: 2026-11-20 10:00:09,000 ERROR {_FOLDED}", 3),
        (f'{{"time": "2026-11-20T10:00:09Z", "rank": 3, "message": "x", "exc_info": "{_FOLDED}"}}', 3),
        (f'{{"ts": "2026-11-20T10:00:09Z", "rank": "3", "exception": "{_FOLDED}", "pid": 7}}', 3),
        ("2026-11-20 10:00:09,000 ERROR train: " + _FOLDED.replace(r"\n", "\n"), None),
    ],
)
def test_a_traceback_within_one_line_is_the_cause_where_nothing_goes_on(
    tmp_path: Path, line: str, rank: int | None
) -> None:
    steps = [f"2026-11-20 10:00:0{second},000 INFO train: step {second} loss 2.3" for second in range(9)]
    (one,) = judged(tmp_path, {"logs.txt": [*steps, *line.split("\n")]})
    assert (one.kind, [suspect.rank for suspect in one.suspects][:1]) == ("exception", [rank])
    assert "KeyError: 'labels'" in one.reason
    who = "" if rank is None else f"[rank{rank}]: "
    more = [who + step.replace("10:00:0", "10:01:0") for step in steps]
    assert judged(tmp_path, {"logs.txt": [*steps, *line.split("\n"), *more]}) == []


def test_a_warning_that_the_driver_is_too_old_names_the_host_of_its_address(tmp_path: Path) -> None:
    said = "UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 11000)."
    ill = [f"10.0.7.22: {line}" for line in (said, *raised(3, "ValueError: no bf16 here", prefix=""))]
    end = "10.0.7.22: [2026-11-04 08:05:06,004] [ERROR] [launch.py:321] ['python'] exits with return code = 1"
    well = [
        f"10.0.7.{host}: [2026-11-04 08:05:0{host % 10},118] [INFO] cdb=None" for host in (21, 23) for _ in range(6)
    ]
    (incident,) = judged(tmp_path, {"a.log": well[:6], "b.log": [*ill, end], "c.log": well[6:]})
    assert (incident.kind, incident.suspects[0].node) == ("user_error", "10.0.7.22")


@pytest.mark.parametrize(("unit", "kinds"), [("trainer", ["crash"]), ("apt-daily", [])])
def test_a_unit_that_trains_and_fails_is_a_crash_and_another_unit_is_none(
    unit: str, kinds: list[str], tmp_path: Path
) -> None:
    steps = [f"Nov  4 08:0{n // 60}:{n % 60:02d} g1 trainer[31]: I step {n} loss=2.2 dt=1.0s" for n in range(120)]
    end = f"Nov  4 08:02:01 g1 systemd[1]: {unit}.service: Main process exited, code=exited, status=1/FAILURE"
    assert [one.kind for one in judged(tmp_path, {"journal.txt": [*steps, end]})] == kinds
