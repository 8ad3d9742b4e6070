"""The nodes of a job numbered anew: from two witnesses, once it pays, as approved, once; what is missing is said."""

from __future__ import annotations

import sys
from typing import Any, Final

import msgspec
import pytest

from tests.engine_doubles import Killed, Rig
from tests.property.test_move_plan import MEASURED, SLOW
from trainwarden.actions.remedies import moving
from trainwarden.launching import Accused, Capabilities, Findings, NodeState
from trainwarden.records import ActionRecord

NODES: Final = ("n0", "n1", "n2", "n3")
ABLE: Final = frozenset({"restart", "move", "validate"})
LOSES: Final[dict[str, Any]] = msgspec.to_builtins(MEASURED)  # 1.9 s in each iteration


def evidence(steps: int = 1000, **more: Any) -> dict[str, Any]:
    return {**LOSES, "slow_iterations": steps, **more}


def rig(able: frozenset[Any] = ABLE - {"validate"}, **settings: Any) -> Rig:
    made = Rig(**{"cool_down_s": 0.0, **settings})
    made.launcher.able, made.launcher.phase, made.launcher.pausable = Capabilities(can=able), "running", True
    made.launcher.nodes["job"] = tuple(NodeState(node=node, ranks=(rank,)) for rank, node in enumerate(NODES))
    return made


def slow_link(one: Rig, steps: int = 1000, **more: Any) -> Any:
    incident = one.incident(kind="slow_link", evidence=evidence(steps, **more))
    one.tell(incident)
    one.tick(1.0)
    return incident


def moves(one: Rig) -> list[ActionRecord]:
    return [action for action in one.bus.actions() if action.kind == "move_topology"]


def asked(one: Rig) -> list[str]:
    return [operation.kind for operation in one.launcher.operations]


def test_a_slow_link_that_has_cost_a_restart_is_moved_to_where_it_carries_little() -> None:
    one = rig()
    slow_link(one)
    (operation,) = one.launcher.operations
    order = operation.plan.node_order
    assert (operation.kind, operation.targets.nodes, sorted(order)) == ("move", (), sorted(NODES))
    assert {"n2", "n3"} not in ({*order[:2]}, {*order[2:]})
    started, done = moves(one)
    assert (started.outcome, done.outcome, done.severity, done.id) == ("started", "done", "sev2", "i1/move/1")
    assert (done.plan["before"], done.plan["node_order"]) == (list(NODES), list(order))
    assert done.plan["predicted_iteration_s"] < 0.65 < 2.5 < done.plan["iteration_s"]
    assert "1900 s lost, and with the nodes in another order an iteration should take 0.6" in done.why
    one.tick(1000.0)
    assert len(one.launcher.operations) == 1, "once in an incident"


def test_nothing_moves_before_it_has_cost_as_much_as_the_restart() -> None:
    one = rig()
    incident = slow_link(one, steps=300)
    assert (asked(one), moves(one)) == ([], [])
    one.tell(one.later(incident, evidence=evidence(320)))
    one.tick(1.0)
    assert asked(one) == ["move"]


def test_what_takes_away_but_a_part_of_the_loss_waits_until_that_part_has_cost_as_much() -> None:
    one = rig()
    slower = {"healthy_iteration_s": 0.3, "iteration_s": 2.51}  # 1.9 of 2.2 s
    incident = slow_link(one, steps=280, **slower)
    (held,) = moves(one)
    assert (asked(one), held.outcome, held.plan["held"]) == ([], "skipped", "gain")
    assert "of 619 s lost another order of the nodes would have saved 5" in held.why
    one.tell(one.later(incident, evidence=evidence(330, **slower)))
    one.tick(1.0)
    assert asked(one) == ["move"]


def test_of_slow_nodes_that_share_no_stage_all_go_into_one() -> None:
    one = rig(remedies={"slow_compute": [{"action": "move_topology"}]})
    links = [{**link, "byte_s": 1e-9} for link in LOSES["transfers"]["links"]]
    slow = {**LOSES["transfers"], "links": links, "working_s": [0.8, 0.4, 0.4, 0.8]}
    found = {"transfers": slow, "healthy_iteration_s": 0.71, "iteration_s": 1.11}
    one.tell(one.incident(kind="slow_compute", evidence=evidence(**found)))
    one.tick(1.0)
    (operation,) = one.launcher.operations
    assert {*operation.plan.node_order[:2]} in ({"n0", "n3"}, {"n1", "n2"})


# --- who has seen it -------------------------------------------------------------------------------------------------


def test_one_witness_moves_nobody() -> None:
    one = rig(remedies={"slow_link": [{"action": "move_topology"}]})
    incident = slow_link(one, steps=9)
    (held,) = moves(one)
    assert (asked(one), held.plan["held"], "told by one witness" in held.why) == ([], "unknown", True)
    one.tell(one.later(incident, evidence=evidence(10)))
    one.tick(1.0)
    assert asked(one) == ["move"]


LINK: Final = Accused(kind="slow_link", text="between n2 and n3", nodes=("n2", "n3"), ranks=(2, 3), link=(2, 3))


@pytest.mark.parametrize(
    ("findings", "then"),
    [
        (Findings(accused=(LINK,), judged=("links",), nodes=NODES), ["validate", "move"]),
        (Findings(judged=("links",), nodes=NODES), ["validate"]),
    ],
    ids=["confirmed", "cleared"],
)
def test_what_a_validation_has_cleared_is_not_moved_and_what_it_names_is_used(
    findings: Findings, then: list[str]
) -> None:
    one = rig(ABLE)
    one.launcher.findings = findings
    incident = one.incident(
        kind="slow_link", evidence=evidence(), suspects=[{"score": 1.0, "reason": "", "node": "n2"}]
    )
    one.tell(msgspec.convert(msgspec.to_builtins(incident), type(incident)))
    one.tick(1.0)
    assert asked(one) == then
    validated = next(action for action in reversed(one.bus.actions()) if action.kind == "validate")
    assert validated.plan.get("links") == ([["n2", "n3"]] if len(then) > 1 else None)


def test_a_launcher_that_can_neither_evict_nor_move_says_both_and_the_restart_follows() -> None:
    rungs = [{"action": kind} for kind in ("evict_node", "move_topology", "restart_job")]
    one = rig(frozenset({"restart"}), remedies={"slow_link": rungs})
    slow_link(one)
    for _ in range(3):
        one.tick(1.0)
    assert one.story()[:2] == [("i1/person/1", "skipped"), ("i1/move/1", "skipped")]
    assert asked(one) == ["restart"]


# --- what is missing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"layout": None}, "the job's layout is not known whole (no rank has reported it)"),
        ({"transfers": None}, "what groups exchange between nodes is not measured"),
        ({"transfers": {**LOSES["transfers"], "pp_bytes": 0.0}}, "what pipeline parallel groups exchange"),
        ({"transfers": {**LOSES["transfers"], "links": []}}, "nothing is measured of the links of n0"),
    ],
)
def test_what_is_missing_is_said_and_the_next_rung_has_its_turn(more: dict[str, Any], said: str) -> None:
    one = rig(remedies={"slow_link": [{"action": "move_topology"}, {"action": "restart_job"}]})
    slow_link(one, **more)
    (held,) = moves(one)
    assert held.why.startswith("where ranks should go is not known: ")
    assert said in held.why
    one.tick(1.0)
    assert asked(one) == ["restart"]


def test_where_no_order_is_better_nobody_moves() -> None:
    one = rig()
    links = [{**link, "byte_s": SLOW} for link in LOSES["transfers"]["links"]]
    slow_link(one, transfers={**LOSES["transfers"], "links": links}, iteration_s=3.2)
    (held,) = moves(one)
    assert (asked(one), held.plan["held"]) == ([], "gain")
    assert held.why == "no other order of the 4 nodes is predicted to be faster"


def test_without_numpy_it_is_said_and_nothing_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    moving._searched.cache_clear()
    monkeypatch.setitem(sys.modules, "trainwarden.actions.planners.move", None)
    one = rig()
    slow_link(one)
    (said,) = moves(one)
    assert (said.outcome, said.why) == ("skipped", "the plan needs numpy: pip install 'trainwarden[detect]'")


# --- as every other action -------------------------------------------------------------------------------------------


def test_a_person_approves_the_order_that_was_shown() -> None:
    one = rig(mode="confirm")
    slow_link(one)
    (shown,) = moves(one)
    assert (shown.outcome, asked(one)) == ("proposed", [])
    assert shown.plan_digest is not None
    one.tell(one.command("approve", shown.id))
    one.tick(1.0)
    assert list(one.launcher.operations[0].plan.node_order) == shown.plan["node_order"]


def test_an_order_that_was_shown_before_the_job_changed_is_asked_about_again() -> None:
    one = rig(mode="confirm")
    slow_link(one)
    (shown,) = moves(one)
    one.launcher.generation += 1
    one.tell(one.command("approve", shown.id))
    one.tick(1.0)
    assert (asked(one), moves(one)[-1].outcome) == ([], "proposed")
    assert moves(one)[-1].plan_digest != shown.plan_digest


def test_it_is_only_shown_in_observe_mode_and_stopped_by_a_stop() -> None:
    one = rig(mode="observe")
    slow_link(one)
    assert [action.outcome for action in moves(one)] == ["proposed"]
    one = rig()
    one.tell(one.command("stop"))
    slow_link(one)
    assert (asked(one), moves(one)[-1].plan["held"]) == ([], "stop")
    one.tell(one.command("resume"))
    one.tick(1.0)
    assert asked(one) == ["move"]


def test_an_engine_that_is_killed_while_it_asks_moves_once() -> None:
    one = rig()

    def die() -> None:
        raise Killed

    one.launcher.before = die
    with pytest.raises(Killed):
        slow_link(one)
    assert [action.outcome for action in moves(one)] == ["started"]
    one.launcher.before = lambda: None
    one.restart_engine()
    for _ in range(3):
        one.tick(5.0)
    assert (asked(one), moves(one)[-1].outcome) == (["move"], "done")


def test_a_job_that_is_down_is_not_moved() -> None:
    one = rig()
    one.launcher.phase = "restarting"
    slow_link(one)
    assert (asked(one), moves(one)) == ([], [])
