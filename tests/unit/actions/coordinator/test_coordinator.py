"""The coordinator over real rendezvous tables: what follows from a node lost or back, a job launched or finished."""

from __future__ import annotations

import msgspec
import pytest

from tests.unit.actions.coordinator.cluster import Cluster
from trainwarden.records import CommandRecord, IncidentRecord
from trainwarden.topics import TASKS


@pytest.fixture
def cluster() -> Cluster:
    """Two jobs on four nodes: the heavier has the one that it can use, the lighter all others."""
    made = Cluster("n1", "n2", "n3", "n4")
    made.launch("a", weight=1.0)
    made.launch("b", most=1, weight=2.0)
    made.pass_s(20.0)
    return made


def test_launched_jobs_get_their_nodes_and_none_starts_before(cluster: Cluster) -> None:
    assert cluster.sizes() == {"a": 3, "b": 1}
    a, b = cluster.placed().values()
    assert not set(a) & set(b)
    assert {one.kind for one in cluster.operations} == {"uncordon"}


def test_a_lost_node_is_made_up_for_and_comes_back(cluster: Cluster) -> None:
    [lost] = cluster.placed()["b"]
    cluster.kill(lost)
    cluster.pass_s(20.0)
    assert cluster.sizes() == {"a": 2, "b": 1}
    assert cluster.orders()[-2][1] == "evict"
    assert cluster.orders()[-1] == ("b", "uncordon", cluster.orders()[-2][2])
    cluster.back(lost)
    cluster.pass_s(20.0)
    assert cluster.sizes() == {"a": 3, "b": 1}
    events = {one.plan["event"].rpartition("-")[0] for one in cluster.story()}
    assert {f"lost:{lost}", f"back:{lost}"} <= events


def test_a_finished_jobs_nodes_go_to_the_other_and_a_launched_one_gets_some(cluster: Cluster) -> None:
    cluster.finish("b")
    cluster.pass_s(20.0)
    assert cluster.sizes() == {"a": 4}
    assert cluster.tasks()["b"].finished
    cluster.launch("c", least=2, weight=9.0)
    cluster.pass_s(20.0)
    assert cluster.sizes() == {"a": 1, "c": 3}


def test_a_job_that_has_ended_is_reported_once_and_asked_for_no_more(cluster: Cluster) -> None:
    cluster.finish("b")
    cluster.pass_s(60.0)
    ended = [m.record for m in cluster.bus.read(TASKS) if m.record.job == "b" and m.record.finished]
    assert len(ended) == 1
    cluster.restart()
    assert set(cluster.coordinator._tasks) == {"a"}
    cluster.launch("b", weight=2.0)  # the name may come again
    cluster.pass_s(20.0)
    assert not cluster.tasks()["b"].finished
    assert cluster.sizes()["b"] > 0


def test_nothing_is_given_before_what_is_taken_is_free(cluster: Cluster) -> None:
    cluster.launch("c", least=2, weight=9.0)
    seen = []
    for _ in range(100):
        cluster.pass_s(0.2)
        placed = cluster.placed()
        seen.append(placed)
        nodes = [node for names in placed.values() for node in names]
        assert len(nodes) == len(set(nodes)), "a node runs ranks of two jobs"
    kinds = [kind for _, kind, _ in cluster.orders()]
    assert kinds[-4:] == ["evict", "evict", "uncordon", "uncordon"]
    assert cluster.sizes() == {"a": 1, "b": 1, "c": 2}


def test_observe_orders_nothing_and_shows_each_proposal_once() -> None:
    cluster = Cluster("n1", "n2", mode="observe")
    cluster.launch("a", most=2)
    cluster.pass_s(20.0)
    assert cluster.operations == []
    assert {one.outcome for one in cluster.story()} == {"proposed"}
    assert len({one.id for one in cluster.story()}) == len(cluster.story()) == 2
    assert cluster.tasks()["a"].status is not None
    assert cluster.tasks()["a"].status.planned == 2


def test_confirm_waits_for_a_word_on_each_order_and_does_it_once() -> None:
    cluster = Cluster("n1", mode="confirm")
    cluster.launch("a", most=1)
    cluster.pass_s(10.0)
    [shown] = cluster.story()
    assert (shown.outcome, cluster.operations) == ("proposed", [])
    assert shown.plan_digest
    cluster.say(
        CommandRecord(
            id="c", job="a", at_s=cluster.clock.now_s(), kind="approve", by="ann", action=shown.id,
            plan_digest=shown.plan_digest,
        )
    )  # fmt: skip
    cluster.pass_s(10.0)
    assert cluster.sizes() == {"a": 1}
    assert [one.outcome for one in cluster.story()] == ["proposed", "started", "done"]
    assert cluster.story()[-1].by == "ann"


def test_started_is_on_the_bus_before_the_launcher_hears_and_a_successor_orders_nothing_twice() -> None:
    cluster = Cluster("n1", "n2")
    cluster.launch("a", least=2, most=2)
    while not any(one.outcome == "started" for one in cluster.story()):
        cluster.pass_s(0.2)
        assert len(cluster.operations) <= sum(one.outcome == "started" for one in cluster.story())
    cluster.restart()
    cluster.pass_s(20.0)
    assert cluster.sizes() == {"a": 2}
    assert sorted(cluster.orders()) == [("a", "uncordon", "n1"), ("a", "uncordon", "n2")]
    cluster.restart()
    cluster.pass_s(20.0)
    assert len(cluster.operations) == 2


def test_a_stop_holds_orders_until_somebody_resumes(cluster: Cluster) -> None:
    cluster.say(CommandRecord(id="s", job="*", at_s=cluster.clock.now_s(), kind="stop", by="ann"))
    before = len(cluster.operations)
    cluster.finish("b")
    cluster.pass_s(10.0)
    assert len(cluster.operations) == before
    cluster.say(CommandRecord(id="r", job="*", at_s=cluster.clock.now_s(), kind="resume", by="ann"))
    cluster.pass_s(10.0)
    assert cluster.sizes() == {"a": 4}


def test_the_next_plan_waits_for_the_cool_down() -> None:
    cluster = Cluster("n1", "n2", cool_down_s=30.0)
    cluster.launch("a", most=2)
    cluster.pass_s(20.0)
    cluster.launch("b", weight=5.0)
    cluster.pass_s(10.0)
    assert cluster.sizes() == {"a": 2, "b": 0}
    cluster.pass_s(30.0)
    assert cluster.sizes() == {"a": 1, "b": 1}


def test_nothing_is_concluded_while_a_jobs_service_is_out_of_reach(cluster: Cluster) -> None:
    before, node = len(cluster.operations), cluster.placed()["a"][0]
    cluster.unreachable = {"b"}
    cluster.kill(node)
    cluster.pass_s(10.0)
    assert len(cluster.operations) == before


def test_a_closed_incident_plans_anew(cluster: Cluster) -> None:
    now_s = cluster.clock.now_s()
    incident = IncidentRecord(
        id="i1", job="a", kind="slow_job", severity="sev3", state="closed", revision=1, opened_at_s=now_s,
        updated_at_s=now_s, closed_at_s=now_s, reason="slow",
    )  # fmt: skip
    cluster.say(incident, msgspec.structs.replace(incident, revision=2))
    cluster.pass_s(10.0)
    status = cluster.tasks()["a"].status
    assert status is not None
    assert status.event == "closed:i1"


def test_an_incident_whose_job_is_still_down_by_it_plans_nothing_anew(cluster: Cluster) -> None:
    now_s = cluster.clock.now_s()
    down = IncidentRecord(
        id="i1", job="a", kind="crash", severity="sev2", state="closed", revision=1, opened_at_s=now_s,
        updated_at_s=now_s, closed_at_s=now_s, reason="it died", unresolved=True,
    )  # fmt: skip
    cluster.say(down)
    cluster.pass_s(10.0)
    status = cluster.tasks()["a"].status
    assert status is None or status.event != "closed:i1"
    cluster.say(msgspec.structs.replace(down, revision=2, unresolved=False))
    cluster.pass_s(10.0)
    status = cluster.tasks()["a"].status
    assert status is not None
    assert status.event == "closed:i1"


def test_waf_is_shown_beside_that_of_restart_only(cluster: Cluster) -> None:
    before = {job: task.status for job, task in cluster.tasks().items()}
    assert before["a"] is not None
    assert before["a"].waf == {"now": 3.0, "planned": 3.0, "restart_only": 3.0}
    assert before["a"].assumed == (1, 2, 3, 4)
    cluster.kill(cluster.placed()["a"][0])
    cluster.pass_s(20.0)
    status = {job: task.status for job, task in cluster.tasks().items()}
    assert status["a"] is not None
    assert (status["a"].waf["now"], status["a"].waf["restart_only"]) == (2.0, 0.0)
    assert status["a"].waf_s["now"] > status["a"].waf_s["restart_only"]
