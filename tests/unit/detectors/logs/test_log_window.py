# ruff: noqa: E501 - log lines are quoted whole
"""Log rules on lines as they are seen in the field, and what the log window makes of them."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
import pytest

from tests.unit.detectors.detection_streams import JOB, START_S, Job, event, log_lines
from trainwarden.detectors.job.state import JobState
from trainwarden.detectors.logs.findings import Finding, finding_vote
from trainwarden.detectors.logs.log_window import LogWindow, LogWindowConfig
from trainwarden.detectors.logs.rules import RULES_FILE, LogRules, load_xids
from trainwarden.errors import ConfigError
from trainwarden.records import EventRecord, IterationRecord, Vote

RULES = LogRules()

LINES = [
    # line, rule, role
    ("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", "nvidia.xid", "root"),
    ("  traceback : Signal 11 (SIGSEGV) received by PID 4192", "torchrun.signal", "root"),
    ("  traceback : Signal 6 (SIGABRT) received by PID 4192", "noise.abort_of_others", "cascade"),
    ("NVRM: GPU at PCI:0000:3b:00: GPU has fallen off the bus and is not responding", "nvidia.fallen_off_bus", "root"),
    ("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", "nvidia.sxid", "root"),
    ("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20009, Non-fatal, Link 2", "nvidia.sxid_warning", "benign"),
    ("nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping", "nvidia.peermem", "app"),
    ("NVRM: GPU at PCI:0000:17:00: Failed to create a DMA mapping!", "nvidia.dma", "root"),
    ("mlx5_core 0000:5e:00.0: poll_health:739: device's health compromised - reached miss count", "mlx5.fatal", "root"),
    ("mlx5_core 0000:12:00.0: mlx5_cmd_out_err:803: ACCESS_REG(0x805) op_mod(0x1) failed, status bad", "noise.mlx5_access_reg", "benign"),
    ("mlx5_core 0000:5e:00.0: Port module event[error]: module 0, Cable error, High Temperature", "mlx5.warning", "root"),
    ("NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 3 timed out", "kernel.netdev_watchdog", "root"),
    ("pcieport 0000:64:00.0: AER: Uncorrected (Fatal) error received: 0000:65:00.0", "kernel.pcie_aer", "root"),
    ("Out of memory: Killed process 12345 (python3) total-vm:1234kB", "kernel.oom", "root"),
    ("Memory cgroup out of memory: Killed process 99 (python)", "kernel.oom", "root"),
    ("INFO: task nvme:123 blocked for more than 120 seconds.", "kernel.hung", "root"),
    ("watchdog: BUG: soft lockup - CPU#5 stuck for 22s! [python:123]", "kernel.hung", "root"),
    ("Kernel panic - not syncing: Fatal exception", "kernel.panic", "root"),
    ("nvme nvme0: I/O 23 QID 5 timeout, aborting", "kernel.storage", "root"),
    ("EXT4-fs (sda1): Remounting filesystem read-only", "kernel.storage", "root"),
    ("nfs: server fs1 not responding, still trying", "kernel.nfs", "root"),
    ("[E ProcessGroupNCCL.cpp:474] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600123 ms", "torch.watchdog_timeout", "cascade"),
    ("node1:42:77 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.1<4321> with error 12, opcode 0, len 0", "nccl.ib_retry_exceeded", "root"),
    ("node1:42:77 [0] NCCL WARN NET/IB : Got completion with error 5, opcode 0, len 0", "nccl.ib_flush", "cascade"),
    ("RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1", "net.peer_gone", "cascade"),
    ("torch.distributed.DistBackendError: NCCL error in: x.cpp:1970, remote process exited", "net.peer_gone", "cascade"),
    ("BrokenPipeError: [Errno 32] Broken pipe", "net.peer_gone", "cascade"),
    ("torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed", "net.peer_gone", "cascade"),
    ("RuntimeError: CUDA error: an illegal memory access was encountered", "cuda.illegal_access", "root"),
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "cuda.ecc", "root"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB", "cuda.out_of_memory", "root"),
    ("RuntimeError: DataLoader worker (pid 8182) is killed by signal: Killed.", "data.loader_killed", "root"),
    ("RuntimeError: Error(s) in loading state_dict for GPT:", "checkpoint.broken", "root"),
    ("OSError: [Errno 28] No space left on device", "storage.no_space", "root"),
    ("ModuleNotFoundError: No module named 'flash_attn'", "user.mistake", "root"),
    ("train.py: error: unrecognized arguments: --lr0", "user.mistake", "root"),
    ("Fatal Python error: Segmentation fault", "process.segfault", "root"),
    ("loss is nan at step 1200", "numeric.non_finite", "app"),
    ("ValueError: something odd", "python.exception", "app"),
    ("2024-01-01 12:00:00 ERROR cannot read shard 7", "generic.error", "app"),
    ("slurmstepd: error: *** JOB 123 ON node1 CANCELLED AT 2024-01-01T00:00:00 DUE TO TIME LIMIT ***", "slurm.time_limit", "phase"),
    ("slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2024-01-01T00:00:00 ***", "slurm.cancelled", "phase"),
    ("KeyboardInterrupt", "user.interrupt", "phase"),
    ("CUDA kernel errors might be asynchronously reported at some other API call", "advice.cuda_async", "benign"),
    ("For debugging consider passing CUDA_LAUNCH_BLOCKING=1", "advice.cuda_async", "benign"),
    ("UserWarning: error in the weather", "noise.future_warning", "benign"),
    ("validation finished, 0 errors", "noise.zero_errors", "benign"),
    ("health check: 0000:61:00.0 pcie failed: x8 of x16", "report.pcie", "root"),
    ("epoch 3 mean squared error 0.12", "noise.metric_names", "benign"),
]  # fmt: skip

ORDINARY = [
    "step 12 loss 3.2145 lr 3e-4 grad_norm 0.91 tokens/s 120345",
    " iteration      100/  500000 | consumed samples:        25600 | elapsed time per iteration (ms): 1234.5 |",
    "NCCL INFO Channel 00/02 :    0   1",
    "Saving checkpoint at step 400 to /ckpt/400",
    "loading checkpoint shard 3 of 8",
    "terminal width 80, inference mode, information: fine",
    "  5%|5         | 50/1000 [00:10<03:10,  5.0it/s]",
]


@pytest.mark.parametrize(("line", "rule", "role"), LINES, ids=[rule for _, rule, _ in LINES])
def test_lines_of_the_field_are_understood(line: str, rule: str, role: str) -> None:
    found = RULES.match(line)
    assert found is not None
    assert (found.id, found.role) == (rule, role)


@pytest.mark.parametrize("line", ORDINARY)
def test_ordinary_lines_mean_nothing(line: str) -> None:
    found = RULES.match(line)
    assert found is None or found.role == "benign"


def test_every_rule_that_can_open_something_names_its_kind() -> None:
    assert all(rule.kind is not None for rule in RULES.rules if rule.role in {"root", "cascade", "app"})
    assert len({rule.id for rule in RULES.rules}) == len(RULES.rules)


def test_hostile_lines_take_linear_time() -> None:
    for line in ("a" * 1_000_000, "Error: " * 100_000, "NVRM: Xid (PCI:" * 50_000, "\udcff\x00" * 10_000):
        RULES.match(line)


@pytest.mark.parametrize(
    "text", ["[[rule]]\nid='a'\npattern='('\nclass='A'\nrole='app'\n", "[[rule]]\nid='a'\n", "", "no toml"]
)
def test_a_broken_rules_file_is_one_clear_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"rules\.toml"):
        LogRules(path)


def test_an_operator_may_bring_rules(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(
        RULES_FILE.read_text()
        + "\n[[rule]]\nid='mine'\npattern='FROBNICATED'\nclass='H'\nrole='root'\nkind='storage'\n"
    )
    assert tomllib.loads(path.read_text())
    assert seen(LogWindow(LogWindowConfig(rules=str(path))), [(0.0, "FROBNICATED")]).kind == "storage"


def test_every_code_of_the_table_is_there() -> None:
    table = load_xids()
    assert table[79].class_ == "REBOOT"
    assert {code for code, xid in table.items() if xid.device_at_fault} >= {
        46,
        48,
        62,
        64,
        74,
        79,
        95,
        119,
        120,
        140,
        143,
    }
    assert not any(table[code].device_at_fault for code in (13, 31, 43, 45, 63, 94, 154))


def seen(detector: LogWindow, lines: list[tuple[float, str]], rank: int | None = 0, until_s: float = 0.0) -> Vote:
    """The vote after `lines` (seconds, text), as of the last line or `until_s`."""
    state = JobState(JOB)
    first = int(lines[0][0] * 1000) * 1000 + 1 if lines else 1
    state.feed(log_lines(rank, [(START_S + at_s, line) for at_s, line in lines], first=first))
    state.end_s = max(state.end_s, START_S + until_s)
    window = state.window(START_S)
    detector.update(window)
    return detector.score(window)


def test_a_hardware_line_is_told_at_once_and_for_a_while() -> None:
    detector = LogWindow(LogWindowConfig())
    vote = seen(detector, [(0.0, "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.")], rank=None)
    assert (vote.opinion, vote.kind, vote.severity) == ("anomalous", "gpu_lost", "sev1")
    assert seen(detector, [], until_s=30.0).opinion == "normal"


def test_an_xid_of_the_application_is_noted_only() -> None:
    detector = LogWindow(LogWindowConfig())
    assert seen(detector, [(0.0, "NVRM: Xid (PCI:0000:3b:00): 31, pid=7, MMU Fault")], rank=None).opinion == "normal"
    assert (detector.findings[0].class_, detector.findings[0].role) == ("A", "app")


def test_copies_are_one_finding_with_a_count_and_their_places() -> None:
    detector = LogWindow(LogWindowConfig())
    seen(detector, [(i * 0.1, "NET/IB : Got completion with error 12") for i in range(150)])
    (finding,) = detector.findings
    assert (finding.count, len(finding.line_numbers), finding.line_numbers[0]) == (150, 100, 1)


def test_several_kinds_take_turns() -> None:
    detector = LogWindow(LogWindowConfig())
    state = JobState(JOB)
    state.feed(
        log_lines(
            None, [(START_S, "Kernel panic - not syncing"), (START_S, "nvme nvme0: I/O 2 QID 5 timeout, aborting")]
        )
    )
    window = state.window(START_S)
    detector.update(window)
    kinds = [detector.score(window).kind]
    while detector.more:
        from dataclasses import replace

        window = replace(window, logs=())
        detector.update(window)
        kinds.append(detector.score(window).kind)
    assert sorted(kinds, key=str) == ["node_lost", "storage"]


def test_a_job_that_always_logs_errors_has_a_higher_norm() -> None:
    detector = LogWindow(LogWindowConfig())
    for second in range(120):
        lines = [(second + i / 12, f"ERROR retry {i}") for i in range(12)]
        vote = seen(detector, lines)
        if second > 10:
            assert vote.opinion == "normal", second
    burst = [(120 + i / 500, f"ERROR retry {i}") for i in range(1000)]
    assert seen(detector, burst).kind == "log_storm"


@pytest.mark.parametrize("code", [45, 31, 43])
def test_what_the_driver_ends_behind_a_program_is_no_storm(code: int) -> None:
    detector = LogWindow(LogWindowConfig())
    calm = [(float(second), f"kernel: audit {second}") for second in range(60)]
    assert seen(detector, calm).opinion == "normal"
    lines = [
        (60.0, f"NVRM: Xid (PCI:0000:ab:00): {code}, pid=41, name=python3, Ch {channel:08x}") for channel in range(400)
    ]
    assert seen(detector, lines).opinion == "normal"
    broken = [(90.0, f"NVRM: Xid (PCI:0000:ab:00): 63, pid=41, Row Remapper: row {row:x}") for row in range(400)]
    assert seen(detector, broken).kind == "log_storm"


def test_what_tasks_say_when_the_scheduler_ends_them_is_no_storm() -> None:
    detector = LogWindow(LogWindowConfig())
    calm = [(float(second), f"step {second}") for second in range(60)]
    assert seen(detector, calm).opinion == "normal"
    ends = [(60.5 + task / 512, f"srun: error: n1: task {task}: Killed by an error") for task in range(512)]
    cancelled = "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2024-01-01T00:00:00 ***"
    assert seen(detector, [(60.0, cancelled), *ends]).opinion == "normal"
    later = [(200.0 + task / 512, f"srun: error: n1: task {task}: Killed by an error") for task in range(512)]
    assert seen(detector, later).kind == "log_storm"


def test_in_the_first_minute_of_a_clock_that_begins_at_zero_nobody_has_ended_the_job() -> None:
    detector, state = LogWindow(LogWindowConfig()), JobState(JOB)
    state.feed(log_lines(0, [(3.0, "ModuleNotFoundError: No module named 'megatron'")]))
    detector.update(state.window(4.0))
    assert [(one.rule, one.role) for one in detector.findings] == [("user.mistake", "root")]


def test_what_dies_after_the_scheduler_ended_the_job_is_no_root() -> None:
    detector = LogWindow(LogWindowConfig())
    lines = [(0.0, "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2024-01-01T00:00:00 ***"),
             (0.5, "srun: error: n1: tasks 0-3: Killed")]  # fmt: skip
    assert seen(detector, lines, until_s=5.0).opinion == "normal"
    assert [(finding.class_, finding.role) for finding in detector.findings] == [("S", "phase"), ("A", "cascade")]
    fresh = LogWindow(LogWindowConfig())
    seen(fresh, lines[1:])
    assert fresh.findings[0].role == "root"


def test_ranks_that_share_a_file_have_windows_of_their_own() -> None:
    detector, state = LogWindow(LogWindowConfig()), JobState(JOB)
    for rank in range(40):
        line = (START_S, "gdrcopy: ERROR cannot be opened")
        record = log_lines(rank, [line], first=rank + 1)
        state.feed(msgspec.structs.replace(record, source="launcher.log"))
    window = state.window(START_S)
    detector.update(window)
    assert detector.score(window).opinion == "normal"


def test_of_a_line_whose_node_nobody_knows_the_file_is_named_and_no_node() -> None:
    found = Finding("r", "A", "root", "crash", "sev2", node="", source="logs.txt", rank=None, time_s=1.0, last_s=1.0, line="x")  # fmt: skip
    vote = finding_vote("crash", [found])
    assert vote.reason == "logs.txt logged (r): x"
    assert vote.suspects[0].node is None


def test_whom_no_line_names_is_no_suspect_beside_one_that_is_named() -> None:
    lines = [Finding("r", "A", "root", "crash", "sev2", node="", source="s", rank=rank, time_s=1.0, last_s=1.0, line="x") for rank in (None, 5)]  # fmt: skip
    assert [(one.rank, one.score) for one in finding_vote("crash", lines).suspects] == [(5, 1.0)]


# -- only consequences -------------------------------------------------------------------------------------------

CLOSED = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1"
TIMEOUT = (
    "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE) ran for 600123 ms"
)


def last_words(
    *spoken: tuple[int, float, str], last: bool = True, quiet_s: float = 1.0, events: tuple[EventRecord, ...] = ()
) -> Vote:
    """The vote on a job of which nothing is known but these lines of its ranks, `quiet_s` after the last of them."""
    state, detector = JobState(JOB), LogWindow(LogWindowConfig())
    for number, (rank, after_s, line) in enumerate(spoken, 1):
        state.feed(log_lines(rank, [(START_S + after_s, line)], first=number))
    for event_ in events:
        state.feed(event_)
    state.end_s = max(state.end_s, START_S + max(after_s for _, after_s, _ in spoken) + quiet_s)
    window = state.window(state.end_s, last=last)
    detector.update(window)
    restored = LogWindow(LogWindowConfig())
    restored.restore(detector.state())
    assert restored.score(window) == detector.score(window)
    return detector.score(window)


def test_a_job_that_stops_and_leaves_only_consequences_is_told_with_the_first_of_them() -> None:
    vote = last_words((1, 5.0, CLOSED), (3, 4.0, TIMEOUT), (0, 5.5, CLOSED))
    assert (vote.opinion, vote.kind, vote.onset_s) == ("anomalous", "hang", START_S + 4.0)
    assert vote.reason.startswith("only consequences seen; first was rank 3 at ")
    assert not vote.suspects  # whoever tells of another's end has witnessed it
    vote = last_words((1, 5.0, CLOSED), (0, 5.5, CLOSED))
    assert (vote.kind, vote.suspects) == ("crash", ())
    assert "first was rank 1 at " in vote.reason


RAISED = "[rank2]: KeyError: 'input_ids'"
AGENT = "E1120 10:00:04.900000 1234 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 3 (pid: 1238)"  # fmt: skip


def test_an_exception_that_one_consequence_follows_is_the_last_word_of_its_rank() -> None:
    for raised in (RAISED, f"2026-11-20T10:00:03.123456Z {RAISED}"):
        vote = last_words((2, 4.0, raised), (3, 4.5, RAISED), (0, 5.0, AGENT))
        assert (vote.kind, vote.severity, vote.onset_s) == ("exception", "sev2", START_S + 4.0)
        assert (vote.suspects[0].rank, vote.suspects[0].reason) == (2, raised)
        assert vote.reason.startswith("rank 2 raised, and did not go on: ")
    # One that was caught before is not taken for the last one, nor what the launcher raises in the end.
    caught = (1, 1.0, "[rank1]: ValueError: retrying")
    vote = last_words(caught, (2, 4.0, RAISED), (0, 5.0, AGENT), (0, 5.5, "ChildFailedException: train.py"))
    assert vote.suspects[0].rank == 2


def test_an_exception_is_no_news_without_a_consequence_or_long_before_one_or_where_the_job_goes_on() -> None:
    assert last_words((2, 4.0, RAISED)).opinion == "normal"
    assert last_words((2, 4.0, RAISED), (0, 15.0, AGENT)).opinion == "normal"
    assert last_words((2, 4.0, RAISED), (0, 5.0, AGENT), (0, 70.0, "step 12 | loss 3.1")).opinion == "normal"
    vote = last_words((2, 4.0, RAISED), (0, 15.0, CLOSED), (1, 15.5, CLOSED))
    assert vote.reason.startswith("only consequences seen; ")
    exited = event("process_exit", START_S + 6.0, 1, code=1)
    assert last_words((2, 4.0, RAISED), (0, 5.0, AGENT), events=(exited,)).opinion == "normal"


def test_an_exception_that_steps_went_on_after_is_no_cause() -> None:
    state, detector = JobState(JOB), LogWindow(LogWindowConfig())
    for record in (log_lines(0, [(START_S + 4.0, RAISED)]), steps(0, "node0", [4.0, 5.0, 6.0])):
        state.feed(record)
    detector.update(state.window(START_S + 6.5))
    for rank in (0, 1):
        state.feed(log_lines(rank, [(START_S + 8.0, CLOSED)], first=2))
    state.end_s = START_S + 9.0
    window = state.window(state.end_s, last=True)
    detector.update(window)
    assert detector.score(window).reason.startswith("only consequences seen; ")


def test_times_from_zero_on_hide_no_consequence() -> None:
    state, detector = JobState(JOB), LogWindow(LogWindowConfig())
    for rank in (0, 1):
        state.feed(log_lines(rank, [(5.0, CLOSED)]))
    window = state.window(6.0, last=True)
    detector.update(window)
    assert detector.score(window).opinion == "anomalous"


def test_silence_after_consequences_is_a_stop_only_when_it_lasts() -> None:
    spoken = ((1, 5.0, CLOSED), (0, 5.5, CLOSED))
    assert last_words(*spoken, last=False, quiet_s=100.0).opinion == "normal"
    assert last_words(*spoken, last=False, quiet_s=301.0).opinion == "anomalous"


def test_consequences_are_no_news_where_something_else_tells_or_the_job_goes_on() -> None:
    spoken = ((1, 5.0, CLOSED), (0, 5.5, CLOSED))
    oom = (2, 4.5, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB")
    assert last_words((1, 5.0, CLOSED)).opinion == "normal"  # one voice
    assert "only consequences" not in last_words(*spoken, oom).reason
    assert last_words(*spoken, (0, 70.0, "step 12 | loss 3.1")).opinion == "normal"  # it goes on
    cancelled = (0, 4.0, "slurmstepd: error: *** JOB 123 ON node1 CANCELLED AT 2024-01-01T00:00:00 ***")
    assert last_words(*spoken, cancelled).opinion == "normal"
    interrupted = (0, 4.0, "agent/server/api.py:719] Received Signals.SIGINT death signal, shutting down workers")
    assert last_words(*spoken, interrupted, (0, 4.5, "free(): invalid pointer")).opinion == "normal"
    for event_ in (event("process_exit", START_S + 6.0, 1, code=1), event("job_end", START_S + 6.0, exit_code=0)):
        assert last_words(*spoken, events=(event_,)).opinion == "normal"


def test_consequences_are_left_to_others_where_heartbeats_are_seen_and_forgotten_when_steps_go_on() -> None:
    job = Job().run(30)
    at_s = job.end_s - 3.0
    for rank in (0, 1):
        job.add(at_s, log_lines(rank, [(at_s, CLOSED)]))
    state, detector = JobState(JOB), LogWindow(LogWindowConfig())
    for _, record in job.records:
        state.feed(record)
    window = state.window(job.end_s, last=True)
    detector.update(window)
    assert detector.score(window).opinion == "normal"


# -- clocks of nodes a minute apart --------------------------------------------------------------------------------


def steps(rank: int, node: str, ends_s: list[float]) -> IterationRecord:
    """Steps of a second each of one rank, by its node's clock."""
    return IterationRecord(
        job=JOB, node=node, rank=rank, incarnation=f"{rank}-0", steps=tuple(range(len(ends_s))),
        end_s=tuple(START_S + end_s for end_s in ends_s), duration_s=(1.0,) * len(ends_s),
    )  # fmt: skip


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB"


@pytest.mark.parametrize("ahead_s", [-60.0, 0.0, 60.0])
def test_whether_a_rank_survives_is_told_by_its_own_clock(ahead_s: float) -> None:
    for goes_on in (False, True):
        state, detector = JobState(JOB), LogWindow(LogWindowConfig())
        opinions = []
        for second in range(30):
            for rank, node, skew_s in ((0, "node0", 0.0), (1, "node1", 0.0), (2, "node2", ahead_s)):
                if second <= 20 or goes_on:
                    state.feed(msgspec.structs.replace(steps(rank, node, [second + skew_s]), steps=(second,)))
            if second == 20:
                line = (START_S + 20.1 + ahead_s, OOM)
                state.feed(log_lines(2, [line], node="node2"))
            state.end_s = max(state.end_s, START_S + second + max(ahead_s, 0.0))
            window = state.window(state.end_s, last=second == 29)
            detector.update(window)
            opinions.append(detector.score(window).opinion)
        assert ("anomalous" in opinions) is not goes_on, opinions


def test_a_rank_a_minute_behind_is_given_the_time_to_survive() -> None:
    state, detector = JobState(JOB), LogWindow(LogWindowConfig())
    job = Job().run(30)
    for _, record in job.records:
        state.feed(record)
    detector.update(state.window(job.end_s))
    state.feed(log_lines(2, [(job.end_s - 60.0, OOM)]))
    state.end_s += 0.1
    window = state.window(state.end_s)
    detector.update(window)
    assert detector.score(window).opinion == "normal", "its next step has not been due yet"


@pytest.mark.parametrize(
    "prefix", ["", "[1,2]<stderr>:", "2: ", "(RayTrainWorker pid=7, ip=10.0.0.7) ", "[pod/w-1/main] "]
)
def test_an_exception_is_one_behind_any_launchers_prefix(prefix: str) -> None:
    detector = LogWindow(LogWindowConfig())
    seen(detector, [(0.0, f"{prefix}ValueError: odd")], rank=2)
    assert [finding.rule for finding in detector.findings] == ["python.exception"]


@pytest.mark.parametrize("heard", [None, "gpu-07", "gpu-07.cluster", "gpu-00"])
def test_a_task_is_a_rank_unless_that_rank_is_heard_on_another_node(heard: str | None) -> None:
    detector, state = LogWindow(LogWindowConfig()), JobState(JOB)
    if heard is not None:
        state.feed(msgspec.structs.replace(log_lines(4, [(START_S, "step 1")]), node=heard))
    state.feed(log_lines(None, [(START_S + 1.0, "srun: error: gpu-07: task 4: Out Of Memory")], first=9))
    detector.update(state.window(START_S))
    (finding,) = detector.findings
    assert (finding.node, finding.rank) == ("gpu-07", None if heard == "gpu-00" else 4)


def test_a_task_is_no_rank_where_its_heartbeats_come_from_another_node() -> None:
    job, detector, state = Job().run(3), LogWindow(LogWindowConfig()), JobState(JOB)
    for _, record in job.records:
        state.feed(record)
    state.feed(log_lines(None, [(job.end_s, "srun: error: gpu-07: task 1: Out Of Memory")], first=9))
    detector.update(state.window(job.end_s))
    assert [(finding.node, finding.rank) for finding in detector.findings] == [("gpu-07", None)]


def test_torchrun_in_any_file_of_the_job_makes_its_tasks_no_ranks() -> None:
    detector, state = LogWindow(LogWindowConfig()), JobState(JOB)
    agent = log_lines(None, [(START_S, "W1104 torch/distributed/run.py:793] Setting OMP_NUM_THREADS")])
    state.feed(msgspec.structs.replace(agent, source="other.log"))
    state.feed(log_lines(None, [(START_S + 1.0, "srun: error: gpu-07: task 4: Out Of Memory")], first=9))
    detector.update(state.window(START_S))
    (finding,) = detector.findings
    assert (finding.node, finding.rank) == ("gpu-07", None)
    again = LogWindow(LogWindowConfig())
    again.restore(detector.state())
    assert again.state() == detector.state()


@pytest.mark.parametrize(("nodes", "named"), [(("g1", "g1"), ["g1", "g1"]), (("g1", "g2"), []), (("", ""), [])])
def test_full_storage_of_one_node_names_it_and_storage_that_nodes_share_names_none(
    nodes: tuple[str, str], named: list[str]
) -> None:
    lines = [Finding("r", "S", "root", "storage", "sev2", node=node, source="s", rank=rank, time_s=1.0, last_s=1.0, line="x") for rank, node in enumerate(nodes)]  # fmt: skip
    assert [one.node for one in finding_vote("storage", lines).suspects] == named
