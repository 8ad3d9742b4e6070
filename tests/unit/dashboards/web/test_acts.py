"""A person's word over HTTP: what reaches the bus, and what is answered when it cannot."""

from __future__ import annotations

import pytest

from tests.doubles import metric_value
from tests.web_doubles import APPROVE as APPROVER
from tests.web_doubles import NOW_S, OBSERVE, Web, action, heartbeat, incident

ID = "i1/restart_process/1"
APPROVE, DENY = f"/api/v1/actions/{ID}/approve", f"/api/v1/actions/{ID}/deny"


@pytest.fixture
def web():
    web = Web()
    web.tell(incident(), action())
    return web


@pytest.mark.parametrize(("path", "kind"), [(APPROVE, "approve"), (DENY, "deny")])
def test_a_word_on_the_plan_that_stands_reaches_the_bus(web, path, kind):
    response = web.act(path, {"plan_digest": "d1"})
    assert response.status_code == 202
    told = web.published[0]
    assert (told.kind, told.job, told.action, told.plan_digest, told.by) == (kind, "j", ID, "d1", "on-call")
    assert response.json()["command"]["id"] == told.id
    assert metric_value(web.metrics, "commands_total", kind=kind) == 1.0


def test_said_twice_the_answer_is_the_same_whatever_became_of_it(web):
    first = web.act(APPROVE, {"plan_digest": "d1"})
    web.clock.sleep(5.0)
    assert web.act(APPROVE, {"plan_digest": "d1"}).json() == first.json()
    web.tell(action(outcome="done", by="on-call"))
    assert web.act(APPROVE, {"plan_digest": "d1"}).json() == first.json()
    assert {(one.id, one.at_s) for one in web.published} == {(first.json()["command"]["id"], NOW_S)}


def test_said_before_this_server_started(web):
    said = web.act(APPROVE, {"plan_digest": "d1"})
    later = Web()
    later.tell(incident(), *web.published, action(outcome="done"))
    again = later.act(APPROVE, {"plan_digest": "d1"})
    assert (again.status_code, again.json()) == (202, said.json())
    assert later.published == []


@pytest.mark.parametrize("job", [None, "llama"])
def test_the_brake_on_nodes_is_reset(web, job):
    assert web.act("/api/v1/reset", {} if job is None else {"job": job}).json()["command"]["job"] == job
    (told,) = web.published
    assert (told.kind, told.job, told.by) == ("reset", job or "*", "on-call")


def test_words_on_a_node(web):
    web.tell(heartbeat("n7", job="old"))
    web.clock.sleep(1.0)
    web.tell(heartbeat("n7", job="llama"))
    assert web.act("/api/v1/nodes/n7/set-healthy", {"why": "burnt in"}).json()["command"]["node"] == "n7"
    assert web.act("/api/v1/nodes/n7/cordon", {"why": "its fan"}).status_code == 202
    assert web.act("/api/v1/nodes/n7/uncordon", {"job": "bert"}).json()["command"]["job"] == "bert"
    assert [(one.kind, one.job, one.node, one.why, one.by) for one in web.published] == [
        ("set_healthy", "*", "n7", "burnt in", "on-call"),
        ("cordon", "llama", "n7", "its fan", "on-call"),
        ("uncordon", "bert", "n7", "", "on-call"),
    ]


def test_a_node_that_was_taken_out_is_reached_through_the_job_that_it_was_in(web):
    plan = {"nodes": ["n7"]}
    web.tell(action("i1/evict/1", kind="evict_node", outcome="done", plan=plan, finished_at_s=NOW_S))
    assert web.act("/api/v1/nodes/n7/uncordon", {}).json()["command"]["job"] == "j"


@pytest.mark.parametrize("word", ["set-healthy", "cordon", "uncordon"])
def test_words_on_a_node_that_are_refused(web, word):
    assert web.act(f"/api/v1/nodes/n7/{word}", {}, token=OBSERVE).status_code == 403
    assert web.act(f"/api/v1/nodes/n7/{word}", {"for": 1}).status_code == 400
    assert web.act(f"/api/v1/nodes/n%07/{word}", {}).status_code == 422
    assert web.act(f"/api/v1/nodes/{'n' * 513}/{word}", {}).status_code == 422
    assert web.published == []
    if word != "set-healthy":
        said = web.act(f"/api/v1/nodes/n99/{word}", {})
        told = "nothing was heard of node n99: name a job that its launcher runs"
        assert (said.status_code, said.json()["detail"]) == (422, told)
    web.away = True
    assert web.act(f"/api/v1/nodes/n7/{word}", {} if word == "set-healthy" else {"job": "j"}).status_code == 503


def test_another_plan_stands(web):
    response = web.act(APPROVE, {"plan_digest": "older"})
    assert (response.status_code, response.json()["plan_digest"]) == (409, "d1")
    assert web.published == []


def test_a_plan_that_was_approved_and_then_replaced(web):
    web.act(APPROVE, {"plan_digest": "d1"})
    web.tell(action(plan_digest="d2"))
    response = web.act(APPROVE, {"plan_digest": "d1"})
    assert (response.status_code, response.json()["plan_digest"]) == (409, "d2")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"outcome": "started"}, "it is started"),
        ({"outcome": "skipped", "why": "denied by bob"}, "it is skipped: denied by bob"),
        ({"plan_digest": None}, "the engine only observes"),
    ],
)
def test_an_action_that_waits_for_nobody(web, more, said):
    web.tell(action(**more))
    response = web.act(APPROVE, {"plan_digest": "d1"})
    assert response.status_code == 409
    assert said in response.json()["detail"]
    assert web.published == []


def test_an_action_that_is_not_there(web):
    assert web.act("/api/v1/actions/none/approve", {"plan_digest": "d1"}).status_code == 404


@pytest.mark.parametrize(
    "body", [None, {}, {"plan_digest": ""}, {"plan_digest": None}, {"plan_digest": "d1", "force": True}, [], 7]
)
def test_an_approval_names_its_plan(web, body):
    assert web.act(APPROVE, body).status_code == 400
    assert web.published == []


def test_no_json(web):
    for content in (b"\xff", b"{", b"[" * 100_000):
        response = web.client.post(APPROVE, content=content, headers={"authorization": "Bearer acting-token-of-a-test"})
        assert response.status_code == 400


def test_who_only_looks_may_not_act(web):
    for path in (APPROVE, DENY, "/api/v1/stop", "/api/v1/resume", "/api/v1/silences"):
        assert web.act(path, {"plan_digest": "d1"}, token=OBSERVE).status_code == 403
    assert web.published == []


def test_who_approves_may_not_act(web):
    for path in ("/api/v1/stop", "/api/v1/resume", "/api/v1/silences", "/api/v1/nodes/n7/cordon"):
        assert web.act(path, {}, token=APPROVER).status_code == 403
    assert web.published == []
    for path in (APPROVE, DENY):
        assert web.act(path, {"plan_digest": "d1"}, token=APPROVER).status_code == 202
    assert {one.by for one in web.published} == {"pager"}


def test_a_word_that_the_engine_would_not_hear_from_here_is_refused_with_the_reason(web):
    web.refused = "stop: the engine would not hear it: it is not signed"
    for path, body in ((APPROVE, {"plan_digest": "d1"}), ("/api/v1/stop", None)):
        response = web.act(path, body)
        assert (response.status_code, response.json()["detail"]) == (403, web.refused)
    assert (web.published, web.overview.said) == ([], {})


def test_the_bus_is_away(web):
    web.away = True
    response = web.act(APPROVE, {"plan_digest": "d1"})
    assert (response.status_code, response.headers["retry-after"]) == (503, "5")
    web.away = False
    assert web.act(APPROVE, {"plan_digest": "d1"}).status_code == 202
    assert len(web.published) == 1


@pytest.mark.parametrize(
    ("body", "job"), [(None, "*"), ({}, "*"), ({"job": "j"}, "j"), ({"job": "unheard-of"}, "unheard-of")]
)
def test_stop_and_resume(web, body, job):
    for word in ("stop", "resume"):
        assert web.act(f"/api/v1/{word}", body).status_code == 202
    assert [(one.kind, one.job, one.by) for one in web.published] == [
        ("stop", job, "on-call"),
        ("resume", job, "on-call"),
    ]


def test_a_misspelt_job_does_not_stop_all(web):
    assert web.act("/api/v1/stop", {"jbo": "j"}).status_code == 400
    assert web.act("/api/v1/stop?job=j").status_code == 400
    assert web.published == []


def test_silences(web):
    asked = {"until_s": NOW_S + 600.0, "job": "j", "kind": "hang", "node": "n1"}
    response = web.act("/api/v1/silences", asked)
    assert response.status_code == 202
    assert web.ask("/api/v1/silences") == {"silences": []}  # not on the bus's way back yet
    web.tell(*web.published)
    told = web.ask("/api/v1/silences")["silences"]
    assert told == [response.json()["silence"]]
    assert {name: told[0][name] for name in asked} == asked
    web.act("/api/v1/silences", asked | {"until_s": 0.0})
    web.tell(web.published[-1])
    assert web.ask("/api/v1/silences") == {"silences": []}


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"until_s": NOW_S + 600.0},
        {"until_s": NOW_S + 90 * 86_400.0, "job": "j"},
        {"until_s": "soon", "job": "j"},
        {"until_s": -1.0, "job": "j"},
        {"until_s": NOW_S, "kind": "noise"},
        {"until_s": NOW_S, "job": ""},
    ],
)
def test_no_silence_of_everything_or_for_ever(web, asked):
    assert web.act("/api/v1/silences", asked).status_code in (400, 422)
    assert web.published == []
