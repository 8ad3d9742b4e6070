"""How ranks end, by real processes and torch's own events."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from trainwarden import hook
from trainwarden.collectors.processes.begun import Begun
from trainwarden.rundir import EVENTS as EVENTS_FILE
from trainwarden.topics import EVENTS
from trainwarden.torchrun import exits as of_exits
from trainwarden.torchrun.exits import Exit, Exits, Renewals, _remembered
from trainwarden.torchrun.surroundings import Surroundings

PATIENCE_S = 60.0


class Rig:
    """Exits whose ranks are real children; `said` and `ends` are what was told."""

    def __init__(self, folder) -> None:
        self.said, self.round, self.ends, self._folder = {}, None, [], folder
        self._changed = threading.Condition()
        self.exits = Exits(self._publish, self._end, Renewals(folder, 2))
        self.exits.begin(1)
        self.processes = []

    def _publish(self, number, said):
        with self._changed:
            self.said, self.round = said, number
            self._changed.notify_all()

    def _end(self, end):
        with self._changed:
            self.ends.append(end)
            self._changed.notify_all()

    def until(self, true):
        with self._changed:
            assert self._changed.wait_for(true, PATIENCE_S), (self.said, self.ends)

    def ranks(self, *codes):
        """Start a rank for each code; each ends once its input does."""
        for rank, code in enumerate(codes):
            script = f"import sys; sys.stdin.read(); sys.exit({code})"
            self.processes.append(subprocess.Popen([sys.executable, "-S", "-c", script], stdin=subprocess.PIPE))
            self.exits.emit(start(self.processes[-1].pid, rank, len(codes)))

    def offer(self, *ranks):
        for rank in ranks:
            (self._folder / f"resilient-{os.getpid()}-0-{rank}").touch()

    def let_end(self, *ranks):
        for rank in ranks:
            self.processes[rank].stdin.close()

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdin.close()


def start(pid: int, rank: int, ranks: int, state: str = "START") -> logging.LogRecord:
    """An event as torch 2.6 to 2.15 write it, of one node."""
    more = {"group_world_size": 1, "entry_point": "train.py", "local_rank": [rank], "role_world_size": [ranks]}
    metadata = {"global_rank": rank, "worker_id": str(pid), "state": state, "metadata": json.dumps(more)}
    event = {"name": "torchelastic.worker.status.START", "source": "WORKER", "timestamp": 0, "metadata": metadata}
    return logging.LogRecord("torchelastic-events-null", logging.INFO, __file__, 1, json.dumps(event), None, None)


@pytest.fixture
def rig(tmp_path):
    made = Rig(tmp_path)
    yield made
    made.close()


def test_ranks_that_all_end_well_have_finished(rig):
    rig.ranks(0, 0)
    assert (rig.round, rig.said["ranks"], rig.said["alive"]) == (1, [0, 1], [0, 1])
    rig.let_end(0)
    rig.until(lambda: rig.said["alive"] == [1])
    assert not rig.said["finished"]
    rig.let_end(1)
    rig.until(lambda: rig.said["finished"] and len(rig.ends) == 2)
    assert {(end.rank, end.code, end.signal, end.asked) for end in rig.ends} == {
        (0, 0, None, False),
        (1, 0, None, False),
    }


def test_the_first_that_fails_is_named_and_whom_torchrun_then_ends_is_not(rig):
    rig.ranks(0, 7)
    rig.let_end(1)
    rig.until(lambda: rig.said["failure"] is not None)
    rig.processes[0].terminate()
    rig.until(lambda: len(rig.ends) == 2)
    assert rig.said["failure"] == {"rank": 1, "how": "ended with code 7"}
    assert [(end.rank, end.code, end.signal, end.asked) for end in rig.ends] == [
        (1, 7, None, False), (0, None, "SIGTERM", True),
    ]  # fmt: skip


def test_a_rank_that_is_killed_from_outside_has_failed_and_one_that_has_to_stop_has_not(rig):
    rig.ranks(0, 0)
    rig.processes[1].kill()
    rig.until(lambda: rig.said["failure"] is not None)
    assert rig.said["failure"]["how"] == "was ended by SIGKILL"
    rig.exits.begin()
    rig.ranks(0)
    rig.exits.end(requested=True)
    rig.processes[-1].terminate()
    rig.until(lambda: any(end.pid == rig.processes[-1].pid for end in rig.ends))
    assert rig.said["failure"] is None


def test_a_rank_that_others_go_on_without_has_not_failed_and_its_new_process_is_followed(rig):
    rig.offer(1)
    rig.ranks(0, 7)
    old = rig.processes[1]
    rig.let_end(1)
    os.waitid(os.P_PID, old.pid, os.WEXITED | os.WNOWAIT)
    assert rig.exits.is_to_renew(old.pid)
    old.wait(PATIENCE_S)
    rig.processes.append(subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE))
    rig.exits.renewed(old.pid, rig.processes[2].pid)
    rig.until(lambda: bool(rig.ends))
    assert rig.ends == [Exit(1, old.pid, rig.ends[0].at_s, 7, None, False, True)]
    assert (rig.said["alive"], rig.said["failure"]) == ([0, 1], None)
    assert rig.exits.running() == [rig.processes[0].pid, rig.processes[2].pid]
    assert rig.exits.all_started() == (1, [rig.processes[0].pid, rig.processes[2].pid])
    rig.processes[2].kill()
    rig.until(lambda: rig.said["failure"] is not None)
    assert (rig.said["failure"]["rank"], rig.said["alive"], rig.ends[1].renewed) == (1, [0], False)


def test_no_rank_is_started_again_alone_once_torchrun_ends_all(rig):
    rig.offer(0, 1)
    rig.ranks(3, 0)
    rig.exits.end(requested=True)
    rig.let_end(0)
    rig.until(lambda: bool(rig.ends))
    assert (rig.ends[0].renewed, rig.ends[0].asked) == (False, True)
    assert not rig.exits.is_to_renew(rig.processes[0].pid)


@pytest.mark.parametrize("tried", [False, True])
def test_a_death_that_torchrun_does_not_renew_is_the_failure_and_whom_it_then_ends_is_not(rig, tried):
    """It comes between our look and torch's, or no process can take its place."""
    rig.offer(0, 1, 2)
    rig.ranks(0, 0, 0)
    one = rig.processes[1]
    one.kill()
    until(lambda: rig.exits._dead)
    if tried:
        assert rig.exits.is_to_renew(one.pid)
    one.wait(PATIENCE_S)
    for rank in (0, 2):
        rig.processes[rank].terminate()
        rig.processes[rank].wait(PATIENCE_S)
    if tried:
        time.sleep(0.1)
        assert rig.ends == []
        rig.exits.given_up(one.pid)
    rig.until(lambda: len(rig.ends) == 3)
    assert not any(end.renewed for end in rig.ends)
    assert (rig.said["failure"]["rank"], rig.said["alive"], rig.exits.running()) == (1, [], [])


def test_nobody_waits_to_hear_of_a_death_where_no_rank_offers_to_be_started_again(rig):
    rig.ranks(0, 7)
    rig.let_end(1)  # and torchrun does not look
    rig.until(lambda: rig.said["failure"] is not None)
    assert (rig.said["failure"]["rank"], rig.said["alive"]) == (1, [0])


def test_an_offer_counts_for_the_torchrun_alone_to_which_it_was_made(tmp_path):
    ours = tmp_path / f"resilient-{os.getpid()}-0-2"
    for old in (ours, tmp_path / "resilient-0-2", tmp_path / "resilient-1-0-2"):
        old.touch()
    renewals = Renewals(tmp_path, 3)  # a torchrun before had our pid
    assert not renewals.is_offered(2, 0)
    assert not renewals.is_due(2, 0)
    ours.touch()
    assert renewals.is_offered(2, 0)
    assert not Renewals(tmp_path / "none", 3).is_due(2, 0)


def test_a_rank_is_started_again_alone_as_often_as_all_would_be(tmp_path, monkeypatch):
    now_s = [1000.0]
    monkeypatch.setattr(of_exits.time, "monotonic", lambda: now_s[0])
    renewals = Renewals(tmp_path, 2)

    def dies(rank=5, attempt=1):
        (tmp_path / f"resilient-{os.getpid()}-1-5").touch()
        return renewals.is_due(rank, attempt)

    assert not renewals.is_due(5, 1)  # its script has said nothing
    assert [dies(6), dies(attempt=0)] == [False, False]
    assert [dies(), dies(), dies()] == [True, True, False]
    assert not renewals.is_due(5, 1)  # it has not said so again
    now_s[0] += of_exits.FORGIVEN_S
    assert dies()
    (tmp_path / f"resilient-{os.getpid()}-1-5").touch()
    assert not Renewals(tmp_path, 0).is_offered(5, 1)


def test_they_are_left_for_torchrun_to_reap(rig):
    rig.ranks(3)
    rig.let_end(0)
    rig.until(lambda: bool(rig.ends))
    assert rig.processes[0].wait(PATIENCE_S) == 3


@pytest.mark.thorough
def test_a_rank_lives_though_no_descriptor_is_left(rig, monkeypatch):
    """`pidfd_open` fails where the limit of descriptors is reached, and where a container's rules know no such call."""
    for number in (errno.EMFILE, errno.EPERM, errno.ENOSYS):
        monkeypatch.setattr(os, "pidfd_open", lambda _pid, number=number: (_ for _ in ()).throw(OSError(number, "no")))
        rig.said, rig.ends[:] = {}, []
        rig.exits.begin()
        first = len(rig.processes)
        rig.ranks(0, 7)
        rig.until(lambda: rig.said.get("ranks") == [0, 1])
        time.sleep(0.1)
        assert (rig.said["alive"], rig.ends) == ([0, 1], [])
        rig.let_end(first + 1)
        rig.until(lambda: rig.said["failure"] == {"rank": 1, "how": "ended with code 7"})
        rig.let_end(first)
        rig.until(lambda: len(rig.ends) == 2)


def test_one_that_torchrun_has_reaped_first_is_known_where_the_kernel_remembers():
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", "import sys; sys.stdin.read(); sys.exit(9)"], stdin=subprocess.PIPE
    )
    pidfd = os.pidfd_open(process.pid)
    process.stdin.close()
    process.wait(PATIENCE_S)
    assert _remembered(pidfd) in ((9, None), (None, None))  # kernels before 6.15 forget
    os.close(pidfd)


@pytest.mark.parametrize("text", ["", "no json", "[]", "{}", '{"metadata": null}', '{"metadata": {"state": "START"}}'])
def test_events_of_another_form_are_passed_over(rig, text):
    rig.exits.emit(logging.LogRecord("torchelastic-events-null", logging.INFO, __file__, 1, text, None, None))
    rig.exits.emit(start(os.getpid(), 0, 1, state="SUCCEEDED"))
    assert rig.said == {}


def test_a_start_is_known_where_torch_has_no_event_of_it_and_counts_once_where_it_has(rig, monkeypatch):
    """torch 2.6 has none, 2.9 has; what starts the ranks is the same in all."""
    pytest.importorskip("torch")
    from torch.distributed.elastic.agent.server.api import Worker, WorkerGroup, WorkerSpec
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    from trainwarden.torchrun.rendezvous import _tell_of_starts

    process = subprocess.Popen([sys.executable, "-S", "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    rig.processes.append(process)
    monkeypatch.setattr(LocalElasticAgent, "_start_workers", lambda self, group: {0: process.pid})
    _tell_of_starts(rig.exits)
    group = WorkerGroup(WorkerSpec("default", 1, rdzv_handler=None, entrypoint="rank"))
    group.workers = [Worker(local_rank=0, global_rank=3)]
    assert LocalElasticAgent._start_workers(None, group) == {0: process.pid}
    assert rig.said["alive"] == [3]
    rig.exits.emit(start(process.pid, 3, 1))
    rig.let_end(0)
    rig.until(lambda: rig.said["finished"])
    assert len(rig.ends) == 1


def test_it_hears_events_though_torchrun_was_told_to_log_less(rig):
    logger = logging.getLogger("torchelastic-events-null")
    before = logger.level, logger.handlers[:], logger.propagate
    try:
        logger.setLevel(logging.ERROR)
        rig.exits.listen()
        rig.exits.listen()
        assert (logger.isEnabledFor(logging.INFO), logger.handlers.count(rig.exits)) == (True, 1)
    finally:
        logger.level, logger.handlers[:], logger.propagate = before
        for name in ("console", os.environ.get("PET_EVENT_LOG_HANDLER", "null")):
            other = logging.getLogger(f"torchelastic-events-{name}")
            if rig.exits in other.handlers:
                other.removeHandler(rig.exits)


# --- what the node's agent is told -----------------------------------------------------------------------------------


def until(true):
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def surroundings(tmp_path, **more) -> Surroundings:
    return Surroundings("j", "n", {"TRAINWARDEN_RUN_DIR": str(tmp_path / "run"), **more}, more.get("found", print))


def test_an_end_is_an_event_of_ours_named_as_the_hook_names_the_process(tmp_path):
    around = surroundings(tmp_path)
    around.ended(Exit(3, 4242, 1_700_000_000.0, None, signal.SIGKILL.name, False))
    (line,) = (tmp_path / "run" / EVENTS_FILE).read_bytes().splitlines()
    event = EVENTS.decode(line)
    assert (event.kind, event.rank, event.job, event.node) == ("process_exit", 3, "j", "n")
    assert event.fields == {"pid": 4242, "incarnation": "4242-1700000000000", "signal": "SIGKILL"}
    around.close()


def test_an_end_before_training_has_the_name_by_which_the_agent_tells_of_the_exception(tmp_path):
    around = surroundings(tmp_path)
    begun = tmp_path / "run" / "hook" / "rank-3-4242.begun"
    begun.write_text('{"pid": 4242, "ticks": 77, "namespace": 1, "rank": 3}\n{"code": 1}\n')
    around.ended(Exit(3, 4242, 1_700_000_000.0, 1, None, False))
    begun.write_text("nonsense")
    around.ended(Exit(3, 4242, 1_700_000_000.0, 1, None, False))
    lines = (tmp_path / "run" / EVENTS_FILE).read_bytes().splitlines()
    names = [EVENTS.decode(one).fields["incarnation"] for one in lines]
    assert names == ["4242-t77", "4242-1700000000000"]
    assert Begun(pid=4242, ticks=77, namespace=1, rank=3).incarnation == names[0]
    around.close()


def test_a_new_round_and_what_was_asked_for_by_whom_are_events_of_ours(tmp_path):
    around, path = surroundings(tmp_path), tmp_path / "run" / EVENTS_FILE
    around.started(2, "rank 0 ended with code 7 on n")
    until(lambda: path.exists() and path.read_bytes().count(b"\n") == 2)
    report, why = {"operation": "o", "state": "accepted"}, "its fan is loud"
    around.note({"kind": "evict", "report": report, "by": "ann (act)", "why": why, "target": "n7"}, "accepted")
    until(lambda: path.read_bytes().count(b"\n") == 3)
    begun, done, asked = map(EVENTS.decode, path.read_bytes().splitlines())
    assert [(one.kind, one.fields["stage"], one.fields["attempt"]) for one in (begun, done)] == [
        ("restart", "started", 2), ("restart", "done", 2),
    ]  # fmt: skip
    assert (begun.message, asked.message) == (
        "rank 0 ended with code 7 on n", "evict of n7, asked for by ann (act): accepted",
    )  # fmt: skip
    assert asked.fields == {
        "operation": "o", "stage": "accepted", "verb": "evict", "by": "ann (act)", "why": "its fan is loud",
        "target": "n7",
    }  # fmt: skip
    around.close()


def test_what_was_noted_before_the_end_is_there_after_it_and_in_order(tmp_path):
    around, path = surroundings(tmp_path), tmp_path / "run" / EVENTS_FILE
    for number in range(300):
        report = {"operation": f"o{number}", "state": "done"}
        around.note({"kind": "stop", "report": report, "by": "ann (act)", "why": ""}, "done")
    around.close()
    events = [EVENTS.decode(line) for line in path.read_bytes().splitlines()]
    assert [one.fields["operation"] for one in events] == [f"o{number}" for number in range(300)]


def test_in_a_folder_that_somebody_watches_the_job_bears_their_name_for_it(tmp_path):
    around = surroundings(tmp_path, TRAINWARDEN_JOB="watch-1")
    around.ended(Exit(0, 1, 1.0, 3, None, False))
    assert EVENTS.decode((tmp_path / "run" / EVENTS_FILE).read_bytes().strip()).job == "watch-1"
    around.close()


def test_ranks_find_their_surroundings(tmp_path):
    environ = {"TRAINWARDEN_RUN_DIR": str(tmp_path / "run"), "PYTHONPATH": "mine", "TRAINWARDEN_RESUME_FROM": "old"}
    around = Surroundings("j", "n", environ, print)
    for _ in range(2):
        around.prepare(4, None)
    inject, mine = environ["PYTHONPATH"].split(os.pathsep)
    assert (os.path.exists(f"{inject}/sitecustomize.py"), mine) == (True, "mine")
    assert (environ["TRAINWARDEN_ATTEMPT"], environ["TRAINWARDEN_JOB"]) == ("4", "j")
    assert os.path.isdir(environ["TRAINWARDEN_HOOK_DIR"])
    assert "TRAINWARDEN_RESUME_FROM" not in environ
    around.prepare(5, "/c/step-3.pt")
    assert environ["TRAINWARDEN_RESUME_FROM"] == "/c/step-3.pt"
    around.close()
    assert (tmp_path / "run").is_dir()


def test_a_run_folder_of_our_own_goes_with_torchrun():
    around = Surroundings("j", "n", {}, print)
    assert (around.run_dir / "hook").is_dir()
    memory = (around.run_dir / "hook").resolve()
    around.close()
    assert not around.run_dir.exists()
    assert not memory.exists()


def test_ranks_can_read_a_plan_before_it_is_said_to_be_there(tmp_path, monkeypatch):
    around, done = surroundings(tmp_path), threading.Event()
    monkeypatch.setenv("TRAINWARDEN_RUN_DIR", str(tmp_path / "run"))
    plan = hook.MicroBatchPlan(0, 2, 4)
    split = {"micro_batches": [1, 3], "why": "", "operation": "o"}
    around.put_splits([{**split, "number": 1}, {**split, "number": 2, "micro_batches": [3, 1]}], lambda _: done.set())
    assert done.wait(PATIENCE_S)
    assert (plan.latest(), plan.adopt(2), plan.adopt(1)) == (2, (3, 1), (1, 3))
    around.close()


def test_the_newest_checkpoint_is_told_whenever_it_is_another(tmp_path):
    found, told = [], threading.Event()

    def tell(one):
        found.append(one["step"])
        told.set()

    for step in (3, 20):
        folder = tmp_path / "checkpoints" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    environ = {"TRAINWARDEN_RUN_DIR": str(tmp_path), "TRAINWARDEN_CHECKPOINTS": str(tmp_path / "checkpoints")}
    around = Surroundings("j", "n", environ, tell)
    around.start()
    assert told.wait(PATIENCE_S)
    around.close()
    assert (found, around.looks) == ([20], True)


def test_a_round_waits_for_the_look_that_it_asked_for(tmp_path):
    """Else ranks would start without a checkpoint that lies there, or from the one before the newest."""
    found = []
    environ = {"TRAINWARDEN_RUN_DIR": str(tmp_path / "run"), "TRAINWARDEN_CHECKPOINTS": str(tmp_path / "checkpoints")}
    around = Surroundings("j", "n", environ, lambda one: found.append(one["step"]))
    for step in (3, 20):
        folder = tmp_path / "checkpoints" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        if step == 3:
            around.start()
        around.look_again()
        assert found[-1] == step
    around.close()


def test_newer_checkpoints_that_are_not_whole_are_said_to_be_passed_over(tmp_path, caplog):
    for step in (20, 30):
        (tmp_path / f"checkpoint-{step}").mkdir()
    (tmp_path / "checkpoint-20" / "trainer_state.json").write_text(json.dumps({"global_step": 20}))
    told = threading.Event()
    environ = {"TRAINWARDEN_RUN_DIR": str(tmp_path / "run"), "TRAINWARDEN_CHECKPOINTS": str(tmp_path)}
    around = Surroundings("j", "n", environ, lambda _: told.set())
    around.start()
    assert told.wait(PATIENCE_S)
    around.close()
    assert [one.message for one in caplog.records] == [
        "trainwarden: checkpoints: checkpoint-30 is newer than checkpoint-20 and not whole, so it is passed over"
    ]


def test_a_folder_that_does_not_answer_holds_nobody_up(tmp_path, monkeypatch):
    """The ranks start without it, and what it says at last is of no further interest."""
    answers, asked = threading.Event(), threading.Event()

    def silent(folder):
        asked.set()
        answers.wait(PATIENCE_S)

    monkeypatch.setattr("trainwarden.checkpoints.newest.newest", silent)
    monkeypatch.setattr("trainwarden.torchrun.surroundings.SEARCH_S", 0.05)
    told = []
    environ = {"TRAINWARDEN_RUN_DIR": str(tmp_path / "run"), "TRAINWARDEN_CHECKPOINTS": str(tmp_path)}
    around = Surroundings("j", "n", environ, told.append)
    began_s = time.monotonic()
    around.start()
    assert asked.wait(PATIENCE_S)
    around.look_again()
    around.prepare(1, None)
    around.close()
    assert time.monotonic() - began_s < PATIENCE_S / 2
    answers.set()
    assert ("TRAINWARDEN_RESUME_FROM" in environ, told) == (False, [])


def test_a_kill_that_torchrun_noticed_first_is_the_ranks_own_end(rig):
    """On a busy machine torchrun may have ended the others before the thread that waits for the rank runs."""
    rig.ranks(0, 0)
    rig.exits.end(requested=False)
    rig.processes[1].kill()
    rig.processes[0].terminate()
    rig.until(lambda: len(rig.ends) == 2)
    assert rig.said["failure"] == {"rank": 1, "how": "was ended by SIGKILL"}
    assert {end.rank: end.asked for end in rig.ends} == {0: True, 1: False}


def test_what_ignored_the_first_signal_is_killed_by_torchrun(rig, monkeypatch):
    monkeypatch.setattr(of_exits, "KILLS_AFTER_S", 0.0)
    rig.ranks(0, 7)
    rig.let_end(1)
    rig.until(lambda: rig.said["failure"] is not None)
    rig.processes[0].kill()
    rig.until(lambda: len(rig.ends) == 2)
    assert {end.rank: end.asked for end in rig.ends} == {0: True, 1: False}


def test_who_is_ended_for_the_next_round_is_so_however_late_that_is_seen(rig):
    rig.ranks(0)
    rig.exits.begin(2)
    rig.processes[0].terminate()
    rig.until(lambda: len(rig.ends) == 1)
    assert rig.ends[0].asked
