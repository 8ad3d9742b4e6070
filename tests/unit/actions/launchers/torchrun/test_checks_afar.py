"""A job of several nodes is measured by its agents: which ranks stand still, what each agent does, how all go on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.doubles import ManualClock
from tests.unit.actions.launchers.torchrun.agents import World
from trainwarden.actions.launchers.torchrun.checks_afar import ChecksAfar
from trainwarden.actions.launchers.torchrun.in_job import CUT_SHORT
from trainwarden.actions.launchers.torchrun.messages import CheckBeat, CheckWord, RankProgress
from trainwarden.actions.launchers.torchrun.table import JobTable
from trainwarden.launching import Report

RESULT = json.dumps({"accused": [], "nodes": {"a": [0, 1], "b": [2, 3]}, "judged": ["gemm"], "rates": {}})
PROGRESS = RankProgress(100, 101, 0.5, 1)


class Job(World):
    """Two nodes of two ranks, whose agents do what they are told; `late` ones start their processes and no more."""

    def __init__(self) -> None:
        self.clock = ManualClock(100.0)
        self.checks = ChecksAfar(self.clock)
        self.late: set[str] = set()
        self.begun: list[str] = []
        super().__init__("a", "b", least=2, most=2, checks=self.checks)
        self.holds(True)
        self.pass_s(0.2)

    def pass_s(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            super().pass_s(0.05)
            self.clock.set_s(self.now_s)
            for node, agent in self.agents.items():
                if agent.reachable:
                    self._follow(node, self.talk[node].word(agent.life).check)

    def holds(self, holds: bool, *nodes: str) -> None:
        for node in nodes or ("a", "b"):
            self.say(node, holds=holds)

    def say(self, node: str, **fields: Any) -> None:
        self.agents[node].beat = msgspec.structs.replace(self.agents[node].beat, **fields)

    def _follow(self, node: str, word: CheckWord | None) -> None:
        if word is None:
            self.say(node, check=None)
            return
        agent = self.agents[node]
        said = agent.beat.check or CheckBeat(number=word.number)
        said = msgspec.structs.replace(said, port=7 if word.place == 0 else 0, progress=PROGRESS, ready=word.port == 7)
        if word.for_s is not None and node not in self.late:
            said = msgspec.structs.replace(said, stands=agent.beat.ranks)
        if word.measures and node not in self.begun:
            self.begun.append(node)
        self.say(node, check=said)

    def concludes(self, node: str, **fields: Any) -> None:
        said = self.agents[node].beat.check
        assert said is not None
        self.say(node, check=msgspec.structs.replace(said, **fields))
        self.pass_s(0.3)

    def word(self, node: str) -> CheckWord | None:
        return self.talk[node].word(self.agents[node].life).check

    def validated(self) -> Report:
        return next(one.report for one in reversed(self.table.memory.kept) if one.kind == "validate")

    @property
    def rounds(self) -> list[int]:
        return [len(agent.rounds) for agent in self.agents.values()]


@pytest.fixture
def job() -> Job:
    return Job()


def test_all_nodes_stand_still_then_all_measure_and_the_first_says_what_was_found(job: Job) -> None:
    job.late.add("b")
    assert job.state().pausable
    job.ask("validate")
    job.pass_s(1.0)
    asked = {node: job.word(node) for node in "ab"}
    assert [(one.place, one.nodes, one.host, one.port, one.step) for one in asked.values() if one is not None] == [
        (0, 2, "a", 7, 101 + 6), (1, 2, "a", 7, 101 + 6),
    ]  # fmt: skip
    assert (job.begun, job.validated().text) == ([], "waits for the ranks")
    job.late.clear()
    job.pass_s(0.5)
    assert (sorted(job.begun), job.state().phase) == (["a", "b"], "paused")
    job.concludes("a", result=RESULT)
    report = job.validated()
    assert (report.state, report.findings and report.findings.nodes) == ("done", ("a", "b"))
    assert [job.word(node) for node in "ab"] == [None, None]
    assert (job.state().phase, job.rounds) == ("running", [1, 1])


def one_is_cut(job: Job) -> None:
    job.cut("b")
    job.pass_s(2.5)


def one_is_killed(job: Job) -> None:
    job.kill("b")
    job.pass_s(1.0)


def one_fails(job: Job) -> None:
    job.agents["b"].fail()
    job.pass_s(0.3)


def one_cannot(job: Job) -> None:
    job.concludes("b", error="the validation could not be started (no memory)")


def one_goes_on(job: Job) -> None:
    job.late.add("b")
    job.concludes("b", stands=(2,))


def one_writes_nonsense(job: Job) -> None:
    job.concludes("a", result="{")


@pytest.mark.parametrize(
    ("happens", "text"),
    [
        (one_is_cut, "nothing is heard of b"),
        (one_is_killed, "the job failed, or another round was wanted, before all was measured"),
        (one_fails, "the job failed, or another round was wanted, before all was measured"),
        (one_cannot, "b: the validation could not be started (no memory)"),
        (one_goes_on, "rank 3 went on before all was measured"),
        (one_writes_nonsense, "the result of the validation cannot be understood"),
        (lambda job: job.pass_s(301.0), "it was not measured within 300 s"),
    ],
)
def test_whatever_becomes_of_it_all_are_told_to_go_on(job: Job, happens: Callable[[Job], None], text: str) -> None:
    job.ask("validate")
    job.pass_s(1.5)
    assert job.state().phase == "paused"
    happens(job)
    assert (job.validated().state, job.validated().text) == ("failed", text)
    assert [job.word(node) for node in job.agents] == [None] * len(job.agents)


def test_a_node_that_is_late_to_stand_still_has_all_let_go_soon(job: Job) -> None:
    job.late.add("b")
    job.ask("validate")
    job.pass_s(12.0)
    assert job.validated().text == "2 of 4 ranks did not stand still with the others"
    assert (job.word("a"), job.rounds) == (None, [1, 1])


def test_another_service_knows_of_none_and_lets_all_go_on(job: Job) -> None:
    job.ask("validate")
    job.pass_s(1.5)
    first = job.word("a")
    job.table = JobTable("j", job.lost_after_s, job.now_s)
    ChecksAfar(job.clock).attach(job.table)
    for node in "ab":
        job.connect(node, job.table)
    job.pass_s(0.5)
    assert [job.word(node) for node in "ab"] == [None, None]
    assert (job.validated().state, job.validated().text, job.rounds) == ("failed", CUT_SHORT, [1, 1])
    job.ask("validate")
    job.pass_s(0.5)
    again = job.word("a")
    assert first is not None
    assert again is not None
    assert again.number > first.number  # ranks stand still for no number twice


def test_what_cannot_be_held_is_refused(job: Job) -> None:
    job.holds(False, "b")
    job.pass_s(0.2)
    assert (job.state().pausable, job.ask("validate").reason) == (False, "unfit")
    job.holds(True, "b")
    job.pass_s(0.2)
    assert job.ask("validate", "c").reason == "unknown_target"
    assert job.ask("validate", "b").state == "running"
    job.pass_s(0.2)
    assert job.ask("validate").text == "the job is being measured already"


def test_a_round_waits_for_no_measurement(job: Job) -> None:
    job.ask("validate")
    job.pass_s(1.5)
    job.ask("restart")
    job.pass_s(1.0)
    assert (job.rounds, job.validated().state) == ([2, 2], "failed")
