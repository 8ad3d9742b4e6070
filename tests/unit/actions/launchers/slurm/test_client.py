"""The Slurm launcher against a Slurm in memory: refusals, persons' words, lost answers, rights, dry runs."""

from __future__ import annotations

import subprocess

import pytest

from tests.unit.actions.launchers.slurm.slurm_double import SlurmDouble
from trainwarden.actions.launchers.slurm import commands
from trainwarden.actions.launchers.slurm.client import SlurmConfig, SlurmLauncher
from trainwarden.errors import LauncherError, LauncherUnavailable
from trainwarden.launching import NODE_VERBS, Operation, Report, Targets, Verb
from trainwarden.protocols import Scope

DRAIN = "scontrol update NodeName=n1 State=DRAIN Reason=trainwarden:op why"


class Desk:
    """A launcher, its Slurm, and the clock that the launcher's pauses go by."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.slurm, self.now_s = SlurmDouble(), 0.0
        monkeypatch.setattr(commands, "run_program", self.run)
        monkeypatch.setattr("os.geteuid", lambda: 0)
        self.launcher = self.made()

    def run(self, argv: list[str], **more: object) -> object:
        return self.slurm.run(argv, **more)

    def made(self, **settings: object) -> SlurmLauncher:
        launcher = SlurmLauncher(SlurmConfig(**settings), Scope(job="job", node="n0", run_dir="."))  # type: ignore[arg-type]
        launcher._commands._monotonic_s = lambda: self.now_s
        return launcher

    def operation(self, kind: Verb = "evict", name: str = "op", node: str = "n1") -> Operation:
        targets = Targets(nodes=(node,)) if kind in NODE_VERBS else Targets()
        generation = self.launcher.state("job").generation
        return Operation(id=name, job="job", kind=kind, expected_generation=generation, targets=targets, why="why")

    def submit(self, kind: Verb = "evict", name: str = "op", node: str = "n1") -> Report:
        return self.launcher.submit(self.operation(kind, name, node))

    def poll(self, name: str = "op") -> Report:
        return self.launcher.poll("job", name)


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(monkeypatch)


@pytest.mark.parametrize("speaks_json", [False, True])
def test_an_eviction_step_by_step(desk: Desk, speaks_json: bool) -> None:
    desk.slurm.speaks_json = speaks_json
    desk.slurm.excluded = "n4"
    assert desk.submit().state == "running"
    assert desk.poll().text == "Slurm job 7 waits (job requeued in held state)"
    assert desk.poll().text == "Slurm job 7 waits (BeginTime)"
    assert desk.launcher.state("job").phase == "restarting"
    desk.slurm.nodes["n3"] = ("IDLE", "")
    desk.slurm.start()
    assert desk.poll().state == "done"
    assert desk.slurm.said == [
        DRAIN,
        "scontrol requeuehold 7",
        "scontrol update JobId=7 ExcNodeList=n4,n1",
        "scontrol release 7",
    ]
    assert (desk.slurm.on, desk.slurm.comment.split(" ")[0]) == (["n2", "n3"], "theirs")
    assert desk.made().poll("job", "op").state == "done"


def test_a_restart_is_one_requeue_and_done_once_the_job_runs(desk: Desk) -> None:
    operation = desk.operation("restart")
    assert [desk.launcher.submit(operation).state for _ in range(3)] == ["running"] * 3
    desk.slurm.start()
    assert desk.launcher.submit(operation).state == "done"
    assert desk.slurm.said == ["scontrol requeue 7"]


@pytest.mark.parametrize(
    ("state", "reason", "left"),
    [
        ("IDLE+DRAIN", "fan of anna", True),
        ("IDLE+FAIL", "Action:Replace", True),
        ("DOWN", "fan of anna", True),
        ("DOWN*", "Not responding", False),
        ("DOWN", "Node unexpectedly rebooted", False),
        ("IDLE", "", False),
    ],
)
def test_a_node_that_a_person_keeps_out_keeps_the_persons_reason(
    desk: Desk, state: str, reason: str, left: bool
) -> None:
    desk.slurm.nodes["n1"] = (state, reason)
    desk.submit()
    assert (desk.slurm.nodes["n1"] == (state, reason)) is left
    assert (DRAIN in desk.slurm.said) is not left
    assert "scontrol requeuehold 7" in desk.slurm.said


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "FAILED", "COMPLETED"])
def test_one_node_alone_is_cordoned_and_uncordoned(desk: Desk, state: str) -> None:
    desk.slurm.state = state
    for verb in ("cordon", "uncordon"):
        operation = desk.operation(verb, f"op/{verb}")  # type: ignore[arg-type]
        assert [desk.launcher.submit(operation).state for _ in range(3)] == ["done"] * 3
    assert desk.slurm.said == [DRAIN.replace(":op", ":op/cordon"), "scontrol update NodeName=n1 State=RESUME"]
    assert desk.slurm.state == state
    assert desk.submit("uncordon", "again").state == "done"
    assert len(desk.slurm.said) == 2


@pytest.mark.parametrize("state", ["IDLE+DRAIN", "IDLE+FAIL"])
def test_a_node_that_a_person_keeps_out_is_neither_cordoned_nor_uncordoned(desk: Desk, state: str) -> None:
    desk.slurm.nodes["n1"] = (state, "fan of anna")
    assert desk.submit("cordon", "on") == Report(operation="on", state="done", text="n1 is out already (fan of anna)")
    report = desk.submit("uncordon", "off")
    assert (report.state, report.reason) == ("refused", "unfit")
    assert report.text == (
        "n1 is out for another reason (fan of anna): whoever did so runs scontrol update NodeName=n1 State=RESUME"
    )
    assert desk.slurm.nodes["n1"] == (state, "fan of anna")
    assert desk.slurm.said == []


def test_a_node_that_the_job_is_not_on_is_drained_and_the_job_left_alone(desk: Desk) -> None:
    assert desk.submit(node="n3").state == "done"
    assert desk.slurm.said == [DRAIN.replace("n1", "n3")]
    assert desk.launcher.state("job").phase == "running"


def test_a_job_that_waits_is_kept_off_the_node_and_not_released(desk: Desk) -> None:
    desk.slurm.state, desk.slurm.why = "PENDING", "JobHeldUser"
    desk.submit()
    assert desk.poll().text == "Slurm job 7 waits (JobHeldUser)"
    assert desk.slurm.said == [DRAIN, "scontrol update JobId=7 ExcNodeList=n1"]


def test_a_host_with_its_domain_is_the_node_of_its_first_name(desk: Desk) -> None:
    assert desk.submit(node="n3.cluster.example").state == "done"
    assert desk.submit(name="other", node="n9.cluster.example").text == "Slurm knows no node n9.cluster.example"


@pytest.mark.parametrize("kind", ["restart", "evict", "stop"])
def test_a_job_that_failed_is_requeued_first_and_noted_then(desk: Desk, kind: Verb) -> None:
    desk.slurm.state = "FAILED"
    assert desk.launcher.state("job").phase == "failed"
    report = desk.submit(kind)
    assert desk.submit(kind).state == report.state == ("done" if kind == "stop" else "running")
    requeues = [said for said in desk.slurm.said if "requeue" in said]
    assert requeues == ([] if kind == "stop" else ["scontrol requeue 7"])


def test_a_job_that_may_not_be_requeued_is_refused_before_anything_is_done(desk: Desk) -> None:
    desk.slurm.requeue = 0
    for kind in ("evict", "restart"):
        report = desk.submit(kind, kind)
        assert (report.state, report.reason) == ("refused", "unfit")
        assert "was submitted with --no-requeue" in report.text
    assert desk.slurm.said == []
    desk.slurm.state = "FAILED"
    assert desk.launcher.state("job").phase == "ended"


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED", "TIMEOUT"])
def test_what_is_over_is_over(desk: Desk, state: str) -> None:
    desk.slurm.state = state
    assert desk.launcher.state("job").phase == "ended"
    assert desk.submit("restart").reason == "over"
    assert desk.slurm.said == []


def test_a_job_cancelled_meanwhile_ends_the_restart(desk: Desk) -> None:
    desk.submit("restart")
    desk.slurm.state = "CANCELLED"
    assert (desk.poll().state, desk.poll().text) == ("failed", "Slurm job 7 ended as CANCELLED")


def test_slurm_refusing_a_step_ends_it_with_slurms_words(desk: Desk) -> None:
    desk.submit("restart", "first")
    desk.slurm.start()
    desk.poll("first")
    run = desk.slurm.run

    def refuse_requeues(argv: list[str], **more: object) -> object:
        desk.slurm.refusing = "Access/permission denied for job 7" if "requeue" in argv else ""
        return run(argv, **more)

    desk.slurm.run = refuse_requeues  # type: ignore[method-assign,assignment]
    report = desk.submit("restart", "second")
    assert (report.state, report.text) == ("failed", "Slurm says: Access/permission denied for job 7")


def test_whoever_was_quicker_is_not_followed_by_a_second_requeue(desk: Desk) -> None:
    run = desk.slurm.run

    def somebody_first(argv: list[str], **more: object) -> object:
        if "requeue" in argv and desk.slurm.restarts == 0:
            desk.slurm.restarts, desk.slurm.state = 1, "PENDING"
        return run(argv, **more)

    desk.slurm.run = somebody_first  # type: ignore[method-assign,assignment]
    assert desk.submit("restart").state == "running"
    assert desk.slurm.restarts == 1


def test_a_lost_answer_is_made_up_for_at_the_next_look(desk: Desk) -> None:
    operation, run = desk.operation(), desk.slurm.run
    for lost in ("Comment", "NodeName", "requeuehold"):

        def lose(argv: list[str], lost: str = lost, **more: object) -> object:
            answer = run(argv, **more)
            if any(lost in word for word in argv[1:3]) or (lost == "Comment" and "Comment=" in argv[-1]):
                raise subprocess.TimeoutExpired(argv, 1.0)
            return answer

        desk.slurm.run = lose  # type: ignore[method-assign,assignment]
        with pytest.raises(LauncherUnavailable):
            desk.launcher.submit(operation)
        desk.now_s += 10.0
    desk.slurm.run = run  # type: ignore[method-assign]
    desk.launcher.submit(operation)
    desk.launcher.submit(operation)
    desk.slurm.start()
    assert desk.launcher.submit(operation).state == "done"
    assert desk.slurm.restarts == 1
    assert len([said for said in desk.slurm.said if "NodeName" in said]) == 1


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("slow", "Slurm did not answer squeue within 5 s"),
        ("away", "Slurm's controller is away: Unable to contact slurm controller (connect failure)"),
        ("broken", "Slurm's answer about"),
    ],
)
def test_a_slurm_that_is_away_is_said_in_one_sentence(desk: Desk, fault: str, words: str) -> None:
    launcher = desk.made(jobs={"job": 7}) if fault == "broken" else desk.launcher
    setattr(desk.slurm, fault, True)
    with pytest.raises(LauncherUnavailable, match=words.partition("(")[0]):
        launcher.state("job")


@pytest.mark.parametrize("said", ["what?", "7", "x RUNNING", "9" * 5000 + " RUNNING", "7 RUNNING\n\0"])
def test_a_list_of_jobs_that_is_none_is_no_answer(desk: Desk, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setattr(desk.slurm, "run", lambda argv, **_: subprocess.CompletedProcess(argv, 0, said, ""))
    with pytest.raises(LauncherError):
        desk.launcher.state("job")


@pytest.mark.parametrize("speaks_json", [False, True])
def test_a_job_that_slurm_has_forgotten_is_said_so_in_every_version(desk: Desk, speaks_json: bool) -> None:
    desk.slurm.speaks_json = speaks_json
    launcher = desk.made(jobs={"job": 8})
    for _ in range(2):
        with pytest.raises(LauncherError, match="Slurm says: Invalid job id specified"):
            launcher.state("job")
    assert desk.made(jobs={"job": 7}).state("job").phase == "running"


def test_while_slurm_is_silent_it_is_asked_half_of_the_time_at_most(desk: Desk) -> None:
    desk.slurm.slow = True
    for _ in range(5):
        with pytest.raises(LauncherUnavailable):
            desk.launcher.state("job")
    assert desk.slurm.calls == 1
    desk.now_s += 5.0
    desk.slurm.slow = False
    assert desk.launcher.state("job").phase == "running"


def test_an_older_state_is_no_state(desk: Desk) -> None:
    desk.slurm.restarts = 2
    desk.launcher.state("job")
    desk.slurm.restarts = 1
    with pytest.raises(LauncherUnavailable, match="older state: job 7 was requeued 2 times before, 1 times now"):
        desk.launcher.state("job")


def test_a_comment_that_a_person_overwrites_loses_no_operation(desk: Desk) -> None:
    operation = desk.operation()
    desk.launcher.submit(operation)
    desk.slurm.comment = "mine now"
    assert desk.launcher.submit(operation).state == "running"
    desk.slurm.start()
    assert desk.poll().state == "done"
    assert desk.slurm.comment.startswith("mine now trainwarden[")
    assert len([said for said in desk.slurm.said if "requeue" in said]) == 1


def test_two_jobs_of_one_name_are_nobodys_until_one_is_named(desk: Desk) -> None:
    desk.slurm.jobs = [(7, "RUNNING"), (9, "PENDING"), (5, "COMPLETED")]
    with pytest.raises(LauncherError, match="Slurm jobs 7, 9 are all named job: say which in"):
        desk.launcher.state("job")
    assert desk.made(jobs={"job": 7}).state("job").phase == "running"
    desk.slurm.jobs = [(5, "COMPLETED"), (7, "RUNNING")]
    assert desk.launcher.state("job").generation == 7_000_000
    operation = desk.operation()
    desk.slurm.jobs = []
    assert desk.launcher.submit(operation).reason == "unknown_job"


@pytest.mark.parametrize("name", ["", "-h", "a b", "x,y", "--name=z", "n" * 999])
def test_what_is_no_name_of_a_job_is_not_asked_for(desk: Desk, name: str) -> None:
    with pytest.raises(LauncherError, match="is no name of a job in Slurm"):
        desk.launcher.state(name)
    assert desk.slurm.calls == 0


@pytest.mark.parametrize(
    ("uid", "storage", "level", "may"),
    [
        (0, "none", "", True),
        (64030, "none", "", True),
        (1234567, "none", "Administrator", False),
        (1234567, "slurmdbd", "Administrator\n", True),
        (1234567, "slurmdbd", "Operator\n", False),
        (1234567, "slurmdbd", "", False),
    ],
)
def test_who_may_not_drain_cannot_evict_and_is_told_why(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, uid: int, storage: str, level: str, may: bool
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: uid)
    desk.slurm.storage, desk.slurm.level = storage, level
    able = desk.launcher.capabilities()
    assert ("evict" in able.can) is may
    assert {"restart", "stop"} <= able.can
    why = "user 1234567 may not drain nodes: Slurm lets root, slurm and users of AdminLevel Administrator"
    assert able.refusal("evict") == (None if may else why)
    if not may:
        report = desk.submit()
        assert (report.reason, report.text, desk.slurm.said) == ("unsupported", why, [])


def test_a_slurm_that_runs_as_root_names_root_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1234567)
    desk.slurm.owner = "root(0)"
    assert "Slurm lets root and users of" in (desk.launcher.capabilities().refusal("evict") or "")


@pytest.mark.parametrize(
    ("kind", "node", "words"),
    [
        ("evict", "n1", "drain n1, requeue Slurm job 7 and let it exclude it"),
        ("evict", "n3", "drain n3, leave Slurm job 7, which is RUNNING and let it exclude it"),
        ("restart", "", "requeue Slurm job 7"),
        ("stop", "", "cancel Slurm job 7"),
    ],
)
def test_a_dry_run_says_what_it_would_do_and_does_nothing(desk: Desk, kind: Verb, node: str, words: str) -> None:
    desk.launcher = desk.made(dry_run=True)
    before = desk.launcher.state("job")
    report = desk.submit(kind, node=node)
    assert (report.state, report.text) == (
        "refused", f"this is a dry run: nothing was done; else Slurm would be asked to {words}",
    )  # fmt: skip
    assert (desk.slurm.said, desk.slurm.comment, desk.launcher.state("job")) == ([], "theirs", before)


def test_a_comment_without_room_is_refused(desk: Desk) -> None:
    desk.slurm.comment = "x" * 1020
    report = desk.submit()
    assert (report.reason, report.text) == ("unfit", "the comment of Slurm job 7 has no room for our note")
    assert desk.slurm.said == []


def test_ranks_lie_on_nodes_in_their_order_if_that_is_said(desk: Desk) -> None:
    assert [node.ranks for node in desk.launcher.state("job").nodes] == [(), ()]
    state = desk.made(ranks_per_node=2).state("job")
    assert [node.ranks for node in state.nodes] == [(0, 1), (2, 3)]
    assert state.ranks_running == (0, 1, 2, 3)
