"""A validation with the restart of a Slurm job: what is refused, what ends it, and that nothing of it is ever left."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.unit.actions.launchers.slurm.test_client import Desk
from trainwarden.actions.launchers.slurm import validating
from trainwarden.actions.launchers.slurm.answers import SlurmJob
from trainwarden.actions.launchers.slurm.note import Entry
from trainwarden.actions.launchers.slurm.validating import ValidateConfig, name_of
from trainwarden.errors import LauncherUnavailable
from trainwarden.launching import Operation, Plan, Report, Targets

NAME = name_of(SlurmJob(id=7, states=frozenset()), Entry(id="op", kind="validate", stage="reserve"))
CLEAR = b'{"accused": [], "nodes": {"n1": [0, 1], "n2": [2, 3]}, "judged": ["gemm"]}'
SLOW = b'{"accused": [{"kind": "slow_compute", "text": "n1 is slow", "nodes": ["n1"]}], "nodes": {"n1": [0]}}'


class Bench(Desk):
    """A desk whose launcher measures; `now_s` is its time of day too."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder, self.user = folder, os.getuid()
        super().__init__(monkeypatch)
        self.slurm.config = "AuthInfo = cred_expire=100\n"

    def made(self, **settings: object) -> object:  # type: ignore[override]
        launcher = super().made(
            **{"ranks_per_node": 2, "validate": ValidateConfig(folder=str(self.folder)), **settings}
        )
        if launcher._validating is not None:
            launcher._validating._now_s = lambda: self.now_s
        launcher._commands.becomes = lambda owner: self.user
        return launcher

    def ask(self, *nodes: str) -> Operation:
        generation = self.launcher.state("job").generation
        return Operation(id="op", job="job", kind="validate", expected_generation=generation, why="why",
                         targets=Targets(nodes=nodes or ("n1",)), plan=Plan(checks=("gemm",)))  # fmt: skip

    def begin(self) -> Report:
        return self.launcher.submit(self.ask())

    def result(self, text: bytes) -> None:
        (self.folder / f"{NAME}.json").write_bytes(text)
        self.slurm.others = [(8, "COMPLETED")]

    @property
    def words(self) -> list[str]:
        """The first two words of each change."""
        return [" ".join(said.split()[:2]) for said in self.slurm.said]

    def nothing_left(self) -> bool:
        live = [state for _, state in self.slurm.others if state == "RUNNING"]
        return not self.slurm.reservations and not live and "held" not in self.slurm.why


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    return Bench(monkeypatch, tmp_path)


@pytest.mark.parametrize("speaks_json", [False, True])
def test_nodes_are_reserved_the_job_requeued_and_measured_and_all_is_undone(bench: Bench, speaks_json: bool) -> None:
    bench.slurm.speaks_json = speaks_json
    assert bench.begin().state == "running"
    assert bench.poll().state == "running"
    assert [node.node for node in bench.launcher.state("job").nodes] == ["n1", "n2"]
    bench.result(CLEAR)
    report = bench.poll()
    assert report.findings is not None
    assert (report.state, report.findings.nodes, report.findings.judged) == ("done", ("n1", "n2"), ("gemm",))
    assert bench.made().poll("job", "op") == report  # type: ignore[attr-defined]
    assert bench.words == [
        "scontrol create", "scontrol requeue", "scontrol update", "scontrol update", f"sbatch --job-name={NAME}",
        "scontrol delete", "scontrol update",
    ]  # fmt: skip
    assert bench.slurm.said[0] == (
        f"scontrol create reservation ReservationName={NAME} StartTime=now Duration=15 Nodes=n1,n2 Users={os.getuid()} "
        "Flags=MAINT,IGNORE_JOBS,PURGE_COMP=5"
    )
    assert bench.nothing_left()


def test_the_job_begins_by_itself_if_nobody_comes_back(bench: Bench) -> None:
    """It is not held, and no sooner than Slurm has its credentials expired."""
    bench.begin()
    assert bench.slurm.said[2] == "scontrol update JobId=7 StartTime=now+600"
    assert bench.slurm.why == "BeginTime"
    bench.now_s += 40.0
    bench.slurm.submitted_s = 0
    bench.result(CLEAR)
    bench.poll()
    assert bench.slurm.said[-1] == "scontrol update JobId=7 StartTime=now+61"


def test_who_is_accused_can_be_taken_out_before_the_job_begins_again(bench: Bench) -> None:
    bench.begin()
    bench.poll()
    bench.now_s += 150.0
    bench.slurm.submitted_s = 0
    bench.result(SLOW)
    assert bench.poll().state == "done"
    assert bench.slurm.said[-1] == "scontrol update JobId=7 StartTime=now+30"
    assert bench.submit("evict", "out").state == "running"
    assert bench.slurm.restarts == 1, "no second requeue"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("shared", "Slurm job 9 runs on nodes of job 7 too"),
        ("few", "2 ranks cannot be compared with each other; it takes 4"),
        ("drained", "n2 is out of service"),
        ("waits", "Slurm job 7 is PENDING"),
        ("stranger", "n3 is no node of Slurm job 7"),
        ("fixed", "was submitted with --no-requeue"),
    ],
)
def test_what_would_measure_something_else_is_refused_and_nothing_is_done(bench: Bench, fault: str, words: str) -> None:
    if fault == "shared":
        bench.slurm.beside = "7\n9\n7\n"
    elif fault == "few":
        bench.launcher = bench.made(ranks_per_node=1)  # type: ignore[assignment]
    elif fault == "drained":
        bench.slurm.nodes["n2"] = ("IDLE+DRAIN", "fan")
    elif fault == "waits":
        bench.slurm.state = "PENDING"
    elif fault == "fixed":
        bench.slurm.requeue = 0
    report = bench.launcher.submit(bench.ask("n3" if fault == "stranger" else "n1.cluster.example"))
    assert (report.state, report.reason) == ("refused", "unfit")
    assert words in report.text
    assert bench.slurm.said == []


def test_a_job_that_slips_in_before_the_reservation_is_found_after_it(bench: Bench) -> None:
    run = bench.slurm.run

    def slip(argv: list[str], **more: object) -> object:
        if "create" in argv:
            bench.slurm.beside = "9\n"
        return run(argv, **more)

    bench.slurm.run = slip  # type: ignore[method-assign,assignment]
    report = bench.begin()
    assert (report.state, report.text) == ("failed", "Slurm job 9 runs on nodes of job 7 too")
    assert (bench.slurm.restarts, bench.nothing_left()) == (0, True)


@pytest.mark.parametrize("refused", ["create", "requeue", "sbatch"])
def test_slurm_refusing_a_step_leaves_nothing(bench: Bench, refused: str) -> None:
    run = bench.slurm.run

    def refuse(argv: list[str], **more: object) -> object:
        bench.slurm.refusing = "Access/permission denied" if refused in argv or argv[0] == refused else ""
        return run(argv, **more)

    bench.slurm.run = refuse  # type: ignore[method-assign,assignment]
    bench.begin()
    report = bench.poll()
    assert report.state == ("done" if refused == "sbatch" else "failed")
    said = report.text if report.findings is None else report.findings.accused[0].text
    assert "Access/permission denied" in said
    assert (bench.slurm.restarts, bench.nothing_left()) == (int(refused == "sbatch"), True)


@pytest.mark.parametrize("what", ["no result", "never ends", "gone", "stopped"])
def test_where_nothing_is_measured_the_job_is_let_go_and_nobody_judged(bench: Bench, what: str) -> None:
    bench.begin()
    bench.poll()
    if what == "no result":
        bench.slurm.others = [(8, "FAILED")]
        assert bench.poll().state == "running", "a shared file system may show it later"
        bench.now_s += validating.SEEN_S
    elif what == "never ends":
        bench.now_s += validating.WHOLE_S - 1
        assert bench.poll().text == "its nodes are measured by Slurm job 8"
        bench.now_s += 1
    elif what == "gone":
        bench.slurm.others = []
        bench.poll()
        bench.now_s += validating.SEEN_S
    else:
        bench.slurm.state = "CANCELLED"
    report = bench.poll()
    assert report.findings is not None
    assert (report.state, [one.kind for one in report.findings.accused], report.findings.nodes) == (
        "done",
        ["hang"],
        (),
    )
    assert bench.nothing_left()


@pytest.mark.parametrize("lost", ["create", "requeue", "sbatch", "delete", "Comment"])
def test_an_answer_that_is_lost_repeats_nothing(bench: Bench, lost: str) -> None:
    operation, run, left = bench.ask(), bench.slurm.run, [lost]

    def lose(argv: list[str], **more: object) -> object:
        answer = run(argv, **more)
        if left and (lost in argv or argv[0] == lost or f"{lost}=" in argv[-1]):
            left.clear()
            raise subprocess.TimeoutExpired(argv, 1.0)
        return answer

    bench.slurm.run = lose  # type: ignore[method-assign,assignment]
    for _ in range(5):
        try:
            bench.launcher.submit(operation)
            if bench.slurm.others:
                bench.result(CLEAR)
        except LauncherUnavailable:
            bench.now_s += 10.0
            bench.launcher = bench.made()  # type: ignore[assignment]
    assert bench.poll().state == "done"
    assert (bench.slurm.restarts, bench.nothing_left()) == (1, True)
    assert [said.split()[0] for said in bench.slurm.said].count("sbatch") == 1


def test_it_is_offered_where_the_settings_say_how(bench: Bench) -> None:
    assert "validate" in bench.launcher.capabilities().can
    for settings in ({"validate": None}, {"ranks_per_node": None}):
        able = bench.made(**settings).capabilities()  # type: ignore[attr-defined]
        assert "do not say how nodes are measured" in (able.refusal("validate") or "")


def test_a_result_that_is_none_judges_nobody(bench: Bench) -> None:
    bench.begin()
    bench.poll()
    bench.user += 1
    bench.result(SLOW)
    assert bench.poll().state == "running", "another user has put it there"
    bench.user -= 1
    for text in (b"", b"[]", b'{"accused": 3}', b"\xff" * 99, b'{"nodes": {}}'):
        bench.result(text)
        assert bench.poll().state == "running"
