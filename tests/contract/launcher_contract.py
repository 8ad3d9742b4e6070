"""What every launcher must do to real ranks: each operation once by its id, the truth on request, typed refusals.

What can be asked of a launcher without ranks is `trainwarden.testing.launcher`, which runs over the same stages.
A launcher's author writes a `Stage`, one class with a started job behind it, and a test class::

    class TestMine(LauncherContract):
        @pytest.fixture
        def stage(self, tmp_path):
            made = MyStage(tmp_path)
            yield made
            made.close()

`tests/contract/test_launchers.py` does so for every launcher of the CATALOG, and for one that is none of ours.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import pytest

from trainwarden.errors import LauncherUnavailable
from trainwarden.launching import (
    NODE_VERBS,
    Generation,
    Launcher,
    LauncherState,
    Operation,
    Plan,
    Report,
    Targets,
    Verb,
)

PATIENCE_S = 90.0


class Stage(Protocol):
    """A job of `ranks` ranks, started by `launcher`, and the means to see and to hurt it."""

    launcher: Launcher
    job: str
    ranks: int

    def starts(self) -> int:
        """How many times a rank of the job has been started, the first start of each included."""
        ...

    def cut(self) -> None:
        """From now on the launcher cannot be reached."""
        ...

    def close(self) -> None:
        """End the job; safe after `cut` and after the job has ended by itself."""
        ...


@dataclass
class Caller:
    """What an engine would do with the launcher of a stage."""

    stage: Stage
    names: list[str] = field(default_factory=list)

    def state(self) -> LauncherState:
        """But for what changes by itself."""
        return msgspec.structs.replace(self.stage.launcher.state(self.stage.job), attempt_age_s=None)

    def operation(
        self, kind: Verb, name: str = "", *, split: tuple[int, ...] = (), order: tuple[str, ...] = (),
        ranks: tuple[int, ...] | None = None,
    ) -> Operation:  # fmt: skip
        """One of a fresh name, planned from what is true now."""
        self.names.append(name or f"op-{len(self.names)}")
        nodes = (self.state().nodes[0].node,) if kind in NODE_VERBS else ()
        return Operation(
            id=self.names[-1],
            job=self.stage.job,
            kind=kind,
            expected_generation=self.state().generation,
            targets=Targets(ranks=ranks, nodes=nodes),
            plan=Plan(micro_batches=split, node_order=order),
            why="the contract",
        )

    def end(self, report: Report) -> Report:
        """The last word on what `report` is about."""
        self.until(lambda: self.stage.launcher.poll(self.stage.job, report.operation).ended)
        return self.stage.launcher.poll(self.stage.job, report.operation)

    def until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            assert time.monotonic() < deadline, self.state()
            time.sleep(0.02)

    def running(self) -> None:
        """Wait until every rank has been started."""
        self.until(lambda: self.stage.starts() == self.stage.ranks and self.state().phase == "running")

    def need(self, verb: Verb) -> None:
        """Skip what this launcher says that it does not do."""
        why_not = self.stage.launcher.capabilities().refusal(verb)
        if why_not is not None:
            pytest.skip(why_not)


class LauncherContract:
    """Subclass it and give it a `stage`."""

    @pytest.fixture
    def caller(self, stage: Stage) -> Caller:
        made = Caller(stage)
        made.running()
        return made

    # --- what it says of itself and of the job -----------------------------------------------------------------------

    def test_state_tells_what_is_true(self, caller: Caller) -> None:
        state = caller.state()
        assert (state.job, state.phase, state.under_way) == (caller.stage.job, "running", ())
        ranks = list(range(caller.stage.ranks))
        assert list(state.ranks_running) == ranks
        assert sorted(rank for node in state.nodes for rank in node.ranks) == ranks
        assert len({node.node for node in state.nodes}) == len(state.nodes) > 0

    def test_state_survives_the_wire(self, caller: Caller) -> None:
        state = caller.state()
        assert msgspec.json.decode(msgspec.json.encode(state), type=LauncherState) == state
        assert msgspec.convert(state.generation, Generation) == state.generation

    # --- once by its id ----------------------------------------------------------------------------------------------

    def test_a_submission_is_answered_at_once_and_polled_to_its_end(self, caller: Caller) -> None:
        caller.need("restart")
        before = caller.state()
        report = caller.stage.launcher.submit(caller.operation("restart"))
        assert report.state in ("accepted", "running", "done")
        assert caller.end(report).state == "done"
        caller.until(lambda: caller.stage.starts() == 2 * caller.stage.ranks)
        caller.until(lambda: caller.state().phase == "running")
        after = caller.state()
        assert (after.attempt, after.under_way) == (before.attempt + 1, ())
        assert after.generation > before.generation

    def test_an_operation_happens_once_however_often_it_is_submitted(self, caller: Caller) -> None:
        caller.need("restart")
        operation = caller.operation("restart")
        for _ in range(3):
            assert caller.stage.launcher.submit(operation).state != "refused"
        done = caller.end(caller.stage.launcher.submit(operation))
        assert caller.stage.launcher.submit(operation) == done  # a late repeat, its generation long past
        caller.until(lambda: caller.stage.starts() == 2 * caller.stage.ranks)
        time.sleep(0.2)
        assert caller.stage.starts() == 2 * caller.stage.ranks

    def test_the_same_operation_from_several_at_once_happens_once(self, caller: Caller) -> None:
        caller.need("restart")
        operation = caller.operation("restart")
        reports: list[Report] = []
        askers = [
            threading.Thread(target=lambda: reports.append(caller.stage.launcher.submit(operation))) for _ in range(4)
        ]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join(PATIENCE_S)
        assert [caller.end(report).state for report in reports] == ["done"] * 4
        caller.until(lambda: caller.stage.starts() == 2 * caller.stage.ranks)
        time.sleep(0.2)
        assert caller.stage.starts() == 2 * caller.stage.ranks

    def test_what_was_never_submitted_is_unknown(self, caller: Caller) -> None:
        assert caller.stage.launcher.poll(caller.stage.job, "nobody's").state == "unknown"

    def test_one_rank_alone_can_be_restarted_or_is_refused(self, caller: Caller) -> None:
        caller.need("restart")
        before = caller.state()
        report = caller.stage.launcher.submit(caller.operation("restart", ranks=(caller.stage.ranks - 1,)))
        if report.reason == "unfit":
            assert report.text
            assert caller.state() == before
            return
        assert caller.end(report).state == "done"
        caller.until(lambda: caller.stage.starts() == caller.stage.ranks + 1)
        caller.until(lambda: list(caller.state().ranks_running) == list(range(caller.stage.ranks)))

    # --- nodes -------------------------------------------------------------------------------------------------------

    def test_an_evicted_node_bears_no_rank_once_the_job_runs_again(self, caller: Caller) -> None:
        caller.need("evict")
        operation = caller.operation("evict")
        [bad] = operation.targets.nodes
        for _ in range(3):
            assert caller.stage.launcher.submit(operation).state in ("accepted", "running", "done")
        assert caller.end(caller.stage.launcher.submit(operation)).state == "done"
        caller.until(lambda: caller.stage.starts() == 2 * caller.stage.ranks and caller.state().phase == "running")
        after = caller.state()
        assert bad not in {node.node for node in after.nodes if node.ranks or node.state != "cordoned"}
        assert list(after.ranks_running) == list(range(caller.stage.ranks))
        assert (after.attempt, after.under_way) == (1, ())

    def test_a_node_is_cordoned_alone_and_put_back_by_whoever_cordoned_it(self, caller: Caller) -> None:
        caller.need("cordon")
        caller.need("uncordon")
        for verb, condition in (("cordon", "cordoned"), ("uncordon", "healthy")):
            before, operation = caller.state(), caller.operation(verb)
            [node] = operation.targets.nodes
            for _ in range(3):
                assert caller.stage.launcher.submit(operation).state in ("accepted", "running", "done")
            assert caller.end(caller.stage.launcher.submit(operation)).state == "done"
            # Slurm asks a node that was resumed whether it is there, and takes it for lost until it answers.
            caller.until(lambda: {one.node: one.state for one in caller.state().nodes}[node] == condition)  # noqa: B023
            after = caller.state()
            assert (after.phase, after.attempt, after.ranks_running) == ("running", 0, before.ranks_running)
            assert after.generation == before.generation + 1
        assert caller.stage.starts() == caller.stage.ranks

    @pytest.mark.parametrize("verb", ["evict", "cordon", "uncordon"])
    @pytest.mark.parametrize("names", [(), ("no-such-node",), ("ALL",), ("n[1-4]",), ("n1,n2",), ("-h",)])
    def test_what_is_no_node_is_taken_out_nowhere(self, caller: Caller, names: tuple[str, ...], verb: Verb) -> None:
        caller.need(verb)
        before = caller.state()
        operation = msgspec.structs.replace(caller.operation(verb), targets=Targets(nodes=names))
        report = caller.stage.launcher.submit(operation)
        assert (report.state, report.reason, bool(report.text)) == ("refused", "unknown_target", True)
        assert caller.state() == before

    # --- refusals ----------------------------------------------------------------------------------------------------

    def test_a_stale_generation_is_refused(self, caller: Caller) -> None:
        caller.need("restart")
        early, late = caller.operation("restart"), caller.operation("restart")
        assert caller.end(caller.stage.launcher.submit(late)).state == "done"
        caller.until(lambda: caller.stage.starts() == 2 * caller.stage.ranks)
        report = caller.stage.launcher.submit(early)
        assert (report.state, report.reason) == ("refused", "stale")
        assert report.text
        time.sleep(0.2)
        assert caller.stage.starts() == 2 * caller.stage.ranks

    @pytest.mark.parametrize(
        ("field", "reasons"),
        [
            ({"job": "another"}, {"unknown_job"}),
            ({"targets": Targets(ranks=(9999,))}, {"unknown_target"}),
        ],
    )
    def test_what_it_does_not_run_is_refused(self, caller: Caller, field: dict[str, object], reasons: set[str]) -> None:
        caller.need("restart")
        if "job" in field and caller.stage.launcher.job is None:
            pytest.skip("it runs any job")
        before = caller.state()
        report = caller.stage.launcher.submit(msgspec.structs.replace(caller.operation("restart"), **field))
        assert (report.state, report.reason in reasons) == ("refused", True)
        assert caller.state() == before

    # --- splits ------------------------------------------------------------------------------------------------------

    def test_a_new_split_is_in_force_and_no_late_repeat_undoes_it(self, caller: Caller) -> None:
        caller.need("rebalance")
        first = tuple(range(1, caller.stage.ranks + 1))
        second = tuple(reversed(first))
        early = caller.operation("rebalance", split=first)
        assert caller.end(caller.stage.launcher.submit(early)).state == "done"
        later = caller.operation("rebalance", split=second)
        assert caller.end(caller.stage.launcher.submit(later)).state == "done"
        assert caller.stage.launcher.submit(early).state == "done"
        assert caller.state().micro_batches == second

    @pytest.mark.parametrize("wrong", ["short", "long", "zero", "total"])
    def test_a_split_that_does_not_fit_is_refused(self, caller: Caller, wrong: str) -> None:
        caller.need("rebalance")
        good = (4,) * caller.stage.ranks
        caller.end(caller.stage.launcher.submit(caller.operation("rebalance", split=good)))
        bad = {"short": good[1:], "long": (*good, 4), "zero": (0, *good[1:]), "total": (5, *good[1:])}[wrong]
        report = caller.stage.launcher.submit(caller.operation("rebalance", split=bad))
        assert (report.state, report.reason) == ("refused", "unfit")
        assert caller.state().micro_batches == good

    # --- moves -------------------------------------------------------------------------------------------------------

    def test_after_a_move_all_nodes_have_their_ranks_in_the_order_that_was_asked_for(self, caller: Caller) -> None:
        caller.need("move")
        wanted = tuple(reversed(in_order(caller.state())))
        operation = caller.operation("move", order=wanted)
        for _ in range(3):
            assert caller.stage.launcher.submit(operation).state in ("accepted", "running", "done")
        assert caller.end(caller.stage.launcher.submit(operation)).state == "done"
        caller.until(lambda: caller.stage.starts() == 2 * caller.stage.ranks and caller.state().phase == "running")
        after = caller.state()
        assert (in_order(after), after.attempt, after.under_way) == (wanted, 1, ())
        assert list(after.ranks_running) == list(range(caller.stage.ranks))

    @pytest.mark.parametrize("wrong", ["none", "short", "twice", "stranger", "today"])
    def test_an_order_that_does_not_fit_is_refused(self, caller: Caller, wrong: str) -> None:
        caller.need("move")
        before, today = caller.state(), in_order(caller.state())
        orders: dict[str, tuple[str, ...]] = {
            "none": (), "short": today[1:], "twice": (today[-1], *today[1:]), "stranger": ("nobody", *today[1:]),
            "today": today,
        }  # fmt: skip
        report = caller.stage.launcher.submit(caller.operation("move", order=orders[wrong]))
        assert (report.state, report.reason, bool(report.text)) == ("refused", "unfit", True)
        assert caller.state() == before

    # --- ends --------------------------------------------------------------------------------------------------------

    def test_a_stop_ends_the_job_and_its_last_word_outlives_it(self, caller: Caller) -> None:
        caller.need("stop")
        report = caller.stage.launcher.submit(caller.operation("stop"))
        assert caller.end(report).state == "done"
        caller.until(lambda: gone(caller))
        assert caller.stage.launcher.poll(caller.stage.job, report.operation).state == "done"

    def test_a_launcher_that_cannot_be_reached_says_so(self, caller: Caller) -> None:
        operation = caller.operation("restart")
        caller.stage.cut()
        launcher = caller.stage.launcher
        for question in (
            lambda: launcher.state(caller.stage.job),
            lambda: launcher.submit(operation),
            lambda: launcher.poll(caller.stage.job, operation.id),
        ):
            with pytest.raises(LauncherUnavailable):
                question()


def in_order(state: LauncherState) -> tuple[str, ...]:
    """Nodes that have ranks, in the order of these."""
    return tuple(node.node for node in sorted(state.nodes, key=lambda one: one.ranks) if node.ranks)


def gone(caller: Caller) -> bool:
    """Whether the job is over, be it that nobody is left to say so."""
    try:
        return caller.state().phase == "ended"
    except LauncherUnavailable:
        return True
