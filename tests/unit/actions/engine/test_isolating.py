"""Suspicions are measured first: what is confirmed may be evicted, what is cleared or unknown may not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.engine_doubles import Killed, Rig
from tests.memory_launcher import MemoryLauncher
from trainwarden.actions.validation.question import answer
from trainwarden.launching import Accused, Capabilities, Findings, NodeState
from trainwarden.records import ActionRecord, IncidentRecord, Suspect

SUSPECTS = (Suspect(score=0.9, reason="unlike others", node="n7"), Suspect(score=0.2, reason="a little", node="n6"))
NODES = ("n5", "n6", "n7")
ALL = ("gemm", "links")
SLOW = Accused(kind="slow_compute", text="rank 3 on n7 computes 1.4 times as long", ranks=(3,), nodes=("n7",))
WELL = Findings(judged=ALL, nodes=NODES)
GUILTY = Findings(accused=(SLOW,), judged=ALL, nodes=NODES)


def rig(findings: Findings = WELL, remedies: dict[str, Any] | None = None, **settings: Any) -> Rig:
    made = Rig(remedies, **{"cool_down_s": 0.0, **settings})
    made.launcher.able = Capabilities(can=frozenset({"restart", "evict", "validate"}))
    made.launcher.phase, made.launcher.pausable, made.launcher.findings = "running", True, findings
    made.launcher.nodes["job"] = tuple(NodeState(node=f"n{number}") for number in range(10))
    return made


def suspicion(one: Rig, **more: Any) -> IncidentRecord:
    incident = one.incident(kind="metric_anomaly", **{"suspects": SUSPECTS, **more})
    one.tell(incident)
    return incident


def kinds(one: Rig) -> list[str]:
    return [operation.kind for operation in one.launcher.operations]


def last(one: Rig, kind: str) -> ActionRecord:
    return next(action for action in reversed(one.bus.actions()) if action.kind == kind)


def test_a_confirmed_suspect_is_evicted_and_the_record_says_by_what() -> None:
    one = rig(GUILTY)
    suspicion(one)
    one.tick(1.0)
    validate, evict = one.launcher.operations
    assert (validate.kind, validate.targets.nodes, validate.plan.checks) == ("validate", ("n7", "n6"), ALL)
    assert (evict.kind, evict.targets.nodes) == ("evict", ("n7",))
    asked, evicted = last(one, "validate"), last(one, "evict_node")
    assert (asked.outcome, asked.plan["verdict"], asked.plan["confirmed"]) == ("done", "confirmed", ["n7"])
    assert asked.why.endswith("confirmed: rank 3 on n7 computes 1.4 times as long")
    assert (evicted.after, evicted.blames, evicted.severity) == (asked.id, "n7", "sev1")
    assert f"{asked.id} has confirmed n7" in evicted.why


@pytest.mark.parametrize(
    ("findings", "verdict"),
    [
        (WELL, "cleared"),
        (Findings(judged=("gemm",), nodes=NODES), "undecided"),
        (Findings(judged=ALL, nodes=("n5", "n6")), "undecided"),
        (Findings(accused=(Accused(kind="crash", text="ended", nodes=("n7",)),), judged=ALL, nodes=NODES), "undecided"),
        (
            Findings(accused=(Accused(kind="slow_compute", text="n5", nodes=("n5",)),), judged=ALL, nodes=NODES),
            "cleared",
        ),
    ],
)
def test_whom_nothing_confirms_is_not_evicted_however_long_it_lasts(findings: Findings, verdict: str) -> None:
    one = rig(findings)
    incident = suspicion(one)
    for _ in range(4):
        one.tick(3000.0)
        one.tell(one.later(incident))
    assert kinds(one) == ["validate"]
    assert last(one, "validate").plan["verdict"] == verdict


def test_the_node_that_is_confirmed_is_evicted_not_the_one_that_was_suspected_most() -> None:
    guilty = Accused(kind="slow_link", text="every link of n6", nodes=("n6",))
    one = rig(Findings(accused=(guilty,), judged=ALL, nodes=NODES))
    suspicion(one)
    one.tick(1.0)
    assert one.launcher.operations[-1].targets.nodes == ("n6",)
    assert last(one, "evict_node").blames == "n6"


def test_of_a_slow_link_between_two_nodes_that_are_well_neither_is_evicted() -> None:
    link = Accused(kind="slow_link", text="between n6 and n7", nodes=("n6", "n7"), ranks=(2, 3), link=(2, 3))
    one = rig(Findings(accused=(link,), judged=ALL, nodes=NODES))
    suspicion(one)
    one.tick(1.0)
    assert kinds(one) == ["validate"]
    assert last(one, "validate").plan["verdict"] == "confirmed"


PORT = Accused(kind="slow_link", text="every link that was tried of n3 is slow", nodes=("n3",), ranks=(6, 7))


@pytest.mark.parametrize(
    ("findings", "verdict", "moved"),
    [
        (Findings(accused=(PORT,), judged=("links",), nodes=NODES), "confirmed", True),
        (Findings(judged=("links",), nodes=NODES), "cleared", False),
        (Findings(nodes=NODES), "undecided", True),
    ],
)
def test_congestion_that_nobody_is_suspected_of_is_looked_for_everywhere(
    findings: Findings, verdict: str, moved: bool
) -> None:
    one = rig(findings)
    lost = {"healthy_iteration_s": 0.3, "iteration_s": 0.6, "slow_iterations": 3000}
    one.tell(one.incident(kind="congestion", evidence=lost))
    one.tick(1.0)
    (asked,) = one.launcher.operations
    assert (asked.kind, asked.targets.nodes, asked.plan.checks) == ("validate", (), ("links",))
    answer = last(one, "validate")
    assert answer.plan["verdict"] == verdict
    assert ("n3" in answer.why) == (verdict == "confirmed")
    assert any(action.kind == "move_topology" for action in one.bus.actions()) == moved


WRONG = Accused(kind="silent_corruption", text="rank 5 on n2 reckons wrong", nodes=("n2",), ranks=(5,))


@pytest.mark.parametrize(("accused", "verdict"), [((WRONG,), "confirmed"), ((), "cleared")])
def test_numbers_that_went_wrong_have_all_devices_reckon_and_nobody_evicted(
    accused: tuple[Accused, ...], verdict: str
) -> None:
    one = rig(Findings(accused=accused, judged=("gemm",), nodes=NODES))
    one.tell(one.incident(kind="silent_corruption"))
    one.tick(1.0)
    (asked,) = one.launcher.operations
    assert (asked.kind, asked.targets.nodes, asked.plan.checks) == ("validate", (), ("gemm",))
    answer = last(one, "validate")
    assert (answer.plan["verdict"], "rank 5 on n2" in answer.why) == (verdict, bool(accused))
    assert kinds(one) == ["validate"]


def test_whom_new_evidence_no_longer_suspects_is_not_evicted() -> None:
    one = rig(GUILTY, policy={"modes": {"evict_node": "confirm"}})
    incident = suspicion(one)
    one.tick(1.0)
    one.tell(one.later(incident, suspects=SUSPECTS[1:]))
    one.tell(one.command("approve", last(one, "evict_node").id))
    one.tick(1.0)
    assert kinds(one) == ["validate"]


def test_a_job_that_cannot_stand_still_is_validated_once_it_is_down_before_it_is_restarted() -> None:
    one = rig(WELL)
    one.launcher.pausable = False
    suspicion(one)
    one.tick(1.0)
    held = last(one, "validate")
    assert (held.outcome, held.plan["held"]) == ("skipped", "pause")
    assert "once it is down" in held.why
    one.launcher.phase = "failed"
    one.tell(one.incident("i2", "crash"))
    one.tick(1.0)
    assert kinds(one) == ["validate", "restart"]
    assert one.story()[:3] == [("i1/validate/1", "skipped"), ("i1/validate/1", "started"), ("i1/validate/1", "done")]


def test_a_job_that_hangs_is_restarted_and_not_asked_to_stand_still() -> None:
    one = rig(WELL)
    one.tell(one.incident("i1", "hang", suspects=SUSPECTS), one.incident("i2", "metric_anomaly", suspects=SUSPECTS))
    one.tick(1.0)
    assert kinds(one) == ["restart"]


def test_ranks_that_are_left_are_not_ended_before_it_is_known_why_the_job_is_down() -> None:
    one = rig(WELL)
    one.launcher.state = lambda job: msgspec.structs.replace(  # type: ignore[method-assign]
        MemoryLauncher.state(one.launcher, job), ranks_running=(0, 1)
    )
    one.launcher.phase = "failed"
    suspicion(one)
    one.tick(5.0)
    assert kinds(one) == []
    one.tell(one.incident("i2", "crash"))
    assert kinds(one)[0] == "validate"


def test_a_job_is_not_validated_again_for_each_suspicion() -> None:
    one = rig(WELL)
    suspicion(one)
    one.tell(one.incident("i2", "metric_anomaly", suspects=SUSPECTS))
    one.tick(1.0)
    assert kinds(one) == ["validate"]
    (again,) = [action for action in one.bus.actions() if action.incident == "i2"]
    assert (again.outcome, again.plan["held"]) == ("skipped", "rest")
    one.tick(1800.0)
    assert kinds(one) == ["validate", "validate"]


def test_a_launcher_that_cannot_says_so_and_nobody_is_evicted() -> None:
    one = rig(GUILTY)
    one.launcher.able = Capabilities(can=frozenset({"evict"}))
    suspicion(one)
    one.tick(5000.0)
    (said,) = one.bus.actions()
    assert (said.kind, said.outcome) == ("validate", "skipped")
    assert said.why == "this launcher does not offer validate; a person may, with trainwarden validate"


def test_an_answer_that_never_came_is_asked_for_again_but_not_for_ever() -> None:
    one = rig(GUILTY, {"metric_anomaly": [{"action": "validate", "rest_s": 100}, {"action": "evict_node"}]})
    one.launcher.slow = True
    incident = suspicion(one)
    for _ in range(6):
        if one.launcher.state("job").under_way:
            one.launcher.finish(one.launcher.operations[-1].id, "the launcher was ended")
        one.tick(101.0)
        one.tell(one.later(incident))
    assert kinds(one) == ["validate"] * 3
    assert "the launcher was ended" in last(one, "validate").why


@pytest.mark.parametrize("heard", [False, True])
def test_an_engine_that_is_killed_asks_once_and_the_next_one_hears_the_answer(heard: bool) -> None:
    one = rig(GUILTY)
    killed = []

    def kill() -> None:
        if not killed:
            killed.append(True)
            if heard:
                one.launcher.before = lambda: None
                one.launcher.submit(operation_of_the_record(one))
            raise Killed

    one.launcher.before = kill
    with pytest.raises(Killed):
        suspicion(one)
    assert one.story() == [("i1/validate/1", "started")]
    one.restart_engine()
    one.tick(1.0)
    one.tick(1.0)
    assert kinds(one) == ["validate", "evict"]
    assert last(one, "validate").plan["verdict"] == "confirmed"


def operation_of_the_record(one: Rig) -> Any:
    from trainwarden.actions.engine.launcher_client import operation_of

    (action,) = one.bus.actions()
    assert action.generation is not None
    return operation_of(action, action.generation, "engine")


@pytest.mark.parametrize("plan", [{}, {"nodes": 5, "ranks": 3, "checks": None}, {"nodes": ["n7"], "ranks": [[1], "x"]}])
def test_an_answer_to_a_damaged_question_evicts_nobody(plan: dict[str, Any]) -> None:
    found = answer(plan, GUILTY)
    assert found.verdict != "confirmed" or found.nodes == ()


def test_what_is_observed_is_only_shown_and_what_is_confirmed_is_asked_first() -> None:
    shown = rig(GUILTY, mode="observe")
    suspicion(shown)
    shown.tick(1.0)
    assert (kinds(shown), shown.story()) == ([], [("i1/validate/1", "proposed")])
    asked = rig(GUILTY, mode="confirm")
    suspicion(asked)
    assert kinds(asked) == []
    asked.tell(asked.command("approve", "i1/validate/1"))
    assert kinds(asked) == ["validate"]
    assert asked.bus.actions()[-1].plan["verdict"] == "confirmed"
    asked.tick(1.0)
    assert (kinds(asked), last(asked, "evict_node").outcome) == (["validate"], "proposed")


def test_the_brake_on_nodes_does_not_count_mere_suspicions() -> None:
    one = rig()
    one.launcher.able = Capabilities(can=frozenset({"evict"}))
    for number in range(8):
        one.tell(
            one.incident(f"m{number}", "metric_anomaly", suspects=(Suspect(score=1.0, reason="", node=f"n{number}"),))
        )
    one.tell(one.incident("lost", "gpu_lost", suspects=(Suspect(score=1.0, reason="Xid 79", node="n9"),)))
    one.tick(1.0)
    assert kinds(one) == ["evict"]


def test_a_validation_is_no_remedy_that_failed_before_the_restart() -> None:
    one = rig(WELL, {"metric_anomaly": [{"action": "validate"}, {"action": "restart_job"}]})
    suspicion(one)
    one.tick(1.0)
    assert kinds(one) == ["validate", "restart"]
    assert last(one, "restart_job").after is None


@pytest.mark.parametrize(
    ("accused", "verdict"),
    [
        (SLOW, "confirmed"),
        (msgspec.structs.replace(SLOW, ranks=(5,)), "cleared"),
        (msgspec.structs.replace(SLOW, ranks=()), "confirmed"),
        (Accused(kind="hang", text="rank 1 hangs", ranks=(1,), nodes=("n5",)), "undecided"),
    ],
)
def test_a_suspect_is_meant_by_its_rank_where_both_name_ranks(accused: Accused, verdict: str) -> None:
    asked = {"nodes": ["n7"], "ranks": [3], "checks": ["gemm"]}
    assert answer(asked, Findings(accused=(accused,), judged=ALL, nodes=NODES)).verdict == verdict
