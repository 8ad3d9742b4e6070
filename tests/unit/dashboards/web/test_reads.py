"""What can be asked: pages that lose and double nothing, and a sentence for each wrong word."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.web_doubles import NOW_S, Web, action, bearer, heartbeat, incident, verdict
from tests.web_doubles import OBSERVE as TOKEN
from trainwarden.records import Suspect, Vote


@pytest.fixture
def web():
    return Web()


def pages(web: Web, **query: Any) -> list[str]:
    """Ids over all pages."""
    found, cursor = [], None
    while True:
        answer = web.ask("/api/v1/incidents", **query, **({"cursor": cursor} if cursor else {}))
        found += [one["id"] for one in answer["incidents"]]
        cursor = answer["next"]
        if cursor is None:
            return found


@given(
    times_s=st.lists(st.sampled_from([0.1, 0.2, 1 / 3, 1e9, 1.7e9 + 1 / 3]), max_size=12),
    limit=st.integers(1, 5),
    odd=st.sampled_from(["", "_", "a_b/", "é "]),
)
def test_pages_lose_nothing_and_double_nothing(times_s, limit, odd):
    web = Web()
    ids = [f"{odd}{number}" for number in range(len(times_s))]
    web.tell(*(incident(name, opened_at_s=time_s) for name, time_s in zip(ids, times_s, strict=True)))
    found = pages(web, limit=limit)
    expected = sorted(zip(times_s, ids, strict=True), reverse=True)
    assert found == [name for _, name in expected]


def test_what_opens_between_two_pages_moves_none(web):
    web.tell(*(incident(f"i{number}", opened_at_s=float(number)) for number in range(4)))
    first = web.ask("/api/v1/incidents", limit=2)
    web.tell(incident("new", opened_at_s=99.0))
    second = web.ask("/api/v1/incidents", limit=2, cursor=first["next"])
    assert [one["id"] for one in first["incidents"] + second["incidents"]] == ["i3", "i2", "i1", "i0"]


def test_an_incident_whose_job_is_down_by_it_is_open(web):
    """As counts and alerts have it."""
    web.tell(incident("down", state="closed", closed_at_s=NOW_S - 50.0, unresolved=True))
    assert pages(web, open="true") == ["down"]
    assert pages(web, open="false") == []
    told = web.ask("/api/v1/incidents/down")
    assert (told["state"], told["unresolved"]) == ("closed", True)
    assert any("incidents --open" in one for one in web.ask("/api/v1/incidents/down/explain")["next"])


def test_filters(web):
    web.tell(
        incident("open"),
        incident("closed", state="closed", closed_at_s=NOW_S - 50.0, opened_at_s=NOW_S - 100.0),
        incident("elsewhere", job="k"),
    )
    assert pages(web, open="true", job="j") == ["open"]
    assert pages(web, open="false") == ["closed"]
    assert pages(web, since_s=NOW_S - 10.0, job="j") == ["open"]
    assert pages(web, job="none") == []


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/api/v1/incidents", {"limit": "0"}),
        ("/api/v1/incidents", {"limit": "1001"}),
        ("/api/v1/incidents", {"limit": "x"}),
        ("/api/v1/incidents", {"limit": "9" * 30}),
        ("/api/v1/incidents", {"since_s": "yesterday"}),
        ("/api/v1/incidents", {"since_s": "nan"}),
        ("/api/v1/incidents", {"since_s": "inf"}),
        ("/api/v1/incidents", {"since_s": "1" * 400}),
        ("/api/v1/incidents", {"open": "maybe"}),
        ("/api/v1/incidents", {"cursor": "x"}),
        ("/api/v1/incidents", {"cursor": "nan_x"}),
        ("/api/v1/incidents", {"opne": "true"}),
        ("/api/v1/verdicts", {"limit": "-1"}),
        ("/api/v1/verdicts", {"cursor": "1_x"}),
        ("/api/v1/actions", {"since": "1"}),
        ("/api/v1/jobs", {"job": "j"}),
        ("/api/v1/nodes", {"job": "j"}),
        ("/api/v1/incidents/i1", {"evidence": "true"}),
    ],
)
def test_a_wrong_word_is_told_and_not_passed_over(web, path, query):
    web.tell(incident())
    response = web.client.get(path, params=query, headers=bearer(TOKEN))
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/problem+json"
    assert len(response.json()["detail"]) < 300


def test_one_incident_with_its_actions(web):
    web.tell(incident("job/i 1?"), action(incident="job/i 1?"), action("other", incident="i2"))
    answer = web.ask("/api/v1/incidents/job/i%201%3F")
    assert (answer["id"], [one["id"] for one in answer["actions"]]) == ("job/i 1?", ["i1/restart_process/1"])
    assert web.client.get("/api/v1/incidents/i9", headers=bearer(TOKEN)).status_code == 404


def test_verdicts_the_newest_or_all_since(web):
    votes = {"lof": Vote(opinion="anomalous", score=0.9), "pca": Vote(opinion="abstain", reason="no model")}
    web.tell(verdict(NOW_S - 2.0), verdict(NOW_S - 1.0), verdict(NOW_S, votes))
    newest = web.ask("/api/v1/verdicts")["verdicts"]
    assert [one["at_s"] for one in newest] == [NOW_S]
    assert newest[0]["votes"]["pca"] == {"opinion": "abstain", "score": None, "reason": "no model"}
    assert len(web.ask("/api/v1/verdicts", job="j", since_s=NOW_S - 1.5)["verdicts"]) == 2
    assert web.client.get("/api/v1/verdicts?job=k", headers=bearer(TOKEN)).status_code == 404


def test_jobs_and_nodes(web):
    named = Suspect(score=0.9, reason="slowest", node="n1")
    web.tell(heartbeat("n0"), heartbeat("n1", (2, 3)), incident(suspects=(named,)), action())
    job = web.ask("/api/v1/jobs")["jobs"][0]
    assert (job["state"], job["ranks"], job["open_incidents"], job["actions_waiting"]) == ("running", 4, 1, 1)
    nodes = web.ask("/api/v1/nodes")["nodes"]
    assert [(one["node"], one["state"], one["kinds"]) for one in nodes] == [
        ("n0", "healthy", []), ("n1", "suspect", ["hang"]),
    ]  # fmt: skip
    web.clock.sleep(60.0)
    assert web.ask("/api/v1/jobs")["jobs"][0]["state"] == "silent"


def test_a_node_that_is_out_says_since_when_why_and_by_whom(web):
    """Also without heartbeats: its agent may go away with it."""
    out = action("command/c/cordon/1", incident=None, command="command/c", kind="cordon_node", outcome="done", by="ann",
                 plan={"nodes": ["n7"]}, why="its fan is loud", finished_at_s=NOW_S)  # fmt: skip
    web.tell(heartbeat("n0"), out)
    n0, n7 = web.ask("/api/v1/nodes")["nodes"]
    assert (n0["state"], n0["since_s"], n0["why"], n0["history"]) == ("healthy", None, None, [])
    assert (n7["node"], n7["state"], n7["since_s"], n7["seen_s"]) == ("n7", "cordoned", NOW_S, None)
    assert n7["why"] == "cordon_node done by ann: its fan is loud"
    assert [(one["what"], one["by"], one["job"]) for one in n7["history"]] == [("cordon_node done", "ann", "j")]
    back = action("command/d/uncordon/1", incident=None, command="command/d", kind="uncordon_node", outcome="done",
                  plan={"nodes": ["n7"]}, finished_at_s=NOW_S)  # fmt: skip
    web.tell(back)
    assert [one["node"] for one in web.ask("/api/v1/nodes")["nodes"]] == ["n0"]


def test_what_nodes_went_through_is_forgotten_after_a_week(web):
    web.tell(
        *(
            incident(
                f"i{n}", state="closed", closed_at_s=NOW_S, suspects=(Suspect(score=1.0, reason="r", node=f"n{n}"),)
            )
            for n in range(50)
        )
    )
    assert len(web.overview.nodes._nodes) == 50
    web.clock.sleep(8 * 86_400.0)
    web.tell(heartbeat("n0", time_s=web.clock.now_s()))
    assert set(web.overview.nodes._nodes) == {"n0"}
    assert web.overview.nodes._first == {}


def test_ready_once_the_bus_is_read_and_while_it_answers(web):
    assert web.client.get("/readyz").status_code == 503
    web.overview.ready = True
    web.tell(heartbeat())
    assert web.client.get("/readyz").json() == {"status": "ready", "jobs": 1}
    web.clock.sleep(60.0)
    assert web.client.get("/readyz").status_code == 503
