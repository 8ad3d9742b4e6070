"""What Prometheus is told of the jobs."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.fleet import Plain, fleet
from tests.web_doubles import Web, action, heartbeat, incident, verdict
from trainwarden.dashboards.exposition import families
from trainwarden.dashboards.exposition.jobs import STALE_S, JobsText
from trainwarden.records import EventRecord, IterationRecord, Suspect, TaskRecord, TaskStatus, Vote


def told(web: Web) -> dict[str, dict[frozenset, float]]:
    """Every sample by name and labels."""
    text = web.client.get("/metrics").text
    found: dict[str, dict[frozenset, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return found


def labels(**named: str) -> frozenset:
    return frozenset(named.items())


def test_every_kind_of_incident_is_born_at_0_and_only_open_ones_are_open():
    web = Web()
    web.tell(heartbeat())
    assert set(told(web)["trainwarden_incidents_total"].values()) == {0.0}
    web.tell(incident(suspects=(Suspect(score=0.8, reason="r", rank=2, node="n1"),)), action())
    found = told(web)
    place = labels(training_job="j", kind="hang", severity="sev2")
    assert found["trainwarden_incidents_total"][place] == found["trainwarden_incidents_open"][place] == 1.0
    suspect = labels(training_job="j", rank="2", node="n1", device="", kind="hang")
    assert found["trainwarden_suspect_score"] == {suspect: 0.8}
    assert found["trainwarden_actions_waiting"] == {labels(training_job="j"): 1.0}
    web.tell(incident(revision=1, state="closed"))
    found = told(web)
    assert found["trainwarden_incidents_open"][place] == 0.0
    assert "trainwarden_suspect_score" not in found


def test_nothing_is_told_of_jobs_before_their_history_is_read():
    """An incident that was closed long ago looks open while only half of it has been read, and would wake somebody."""
    web = Web()
    web.tell_of(incident(), action())
    assert not [name for name in told(web) if name.startswith(("trainwarden_incidents", "trainwarden_act"))]
    web.tell(incident(revision=1, state="closed"), action(outcome="done"))
    found = told(web)
    assert set(found["trainwarden_incidents_open"].values()) == {0.0}
    assert set(found["trainwarden_actions_waiting"].values()) == {0.0}


def test_models_that_vote_are_told_with_the_alias_by_which_they_serve():
    web = Web()
    votes = {"lof": Vote(opinion="normal", provisional=True), "pca": Vote(opinion="normal")}
    web.tell(heartbeat(), verdict(votes=votes, model_versions={"lof": "2", "pca": "7"}))
    found = told(web)["trainwarden_model_info"]
    assert found == {
        labels(detector="lof", version="2", alias="provisional"): 1.0,
        labels(detector="pca", version="7", alias="champion"): 1.0,
    }


def test_the_time_of_transitions_is_counted_by_phase():
    web = Web()
    fields = {"step": 5, "ranks": 3, "gone": "2", "members_s": 0.25, "again_s": 0.5}
    for number in range(2):
        web.tell(EventRecord(
            id=f"transition/j/0/{number}", job="j", node="n", time_s=web.clock.now_s(), kind="transition", rank=0,
            fields=fields,
        ))  # fmt: skip
    assert told(web)["trainwarden_transition_seconds_total"] == {
        labels(training_job="j", phase="members"): 0.5, labels(training_job="j", phase="again"): 1.0,
    }  # fmt: skip


def test_who_abstains_has_no_score():
    web = Web()
    web.tell(verdict(votes={"lof": Vote(opinion="normal", score=0.2), "pca": Vote(opinion="abstain")}))
    assert told(web)["trainwarden_detector_score"] == {labels(training_job="j", detector="lof"): 0.2}


def test_slow_ranks_are_told_and_no_more_than_ten():
    web = Web()
    fixed = {"job": "j", "node": "n", "incarnation": "a", "steps": (1,), "end_s": (web.clock.now_s(),)}
    for rank in range(40):
        columns = {"duration_s": (1.0,), "compute_s": (float(rank),), "wait_s": (None,)}
        web.tell(IterationRecord(rank=rank, **fixed, **columns))
    ranks = told(web)["trainwarden_rank_compute_seconds"]
    assert len(ranks) == 11
    assert ranks[labels(training_job="j", rank="39")] == 39.0
    assert ranks[labels(training_job="j", rank="median")] == 19.5


def test_hostile_names_stay_values_of_labels():
    web = Web()
    name = 'j"} 1\ntrainwarden_up{x="\\'
    web.tell(incident(job=name))
    assert labels(training_job=name, kind="hang", severity="sev2") in told(web)["trainwarden_incidents_open"]


def test_nothing_is_told_that_the_table_does_not_name():
    web = Web()
    web.tell(incident(), action(), verdict(), heartbeat())
    names = {family.name.removesuffix("_total") for family in families.OF_JOBS}
    own = {name for name in told(web) if not name.startswith("trainwarden_serve_")}
    assert {name.removesuffix("_total").removesuffix("_created") for name in own} <= names


@pytest.mark.thorough
def test_1500_nodes_are_told_in_fewer_than_50000_series():
    series = sum(len(samples) for name, samples in told(fleet()).items() if not name.endswith("_created"))
    assert 25_000 < series < 50_000


def parsed(text: bytes) -> list:
    found = text_string_to_metric_families(text.decode())
    return [(one.name, one.type, one.documentation, [tuple(sample) for sample in one.samples]) for one in found]


@pytest.mark.thorough
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1, max_size=4, unique=True))
def test_the_text_is_that_of_the_library(names):
    web = Web()
    for name in names:
        suspects = (Suspect(score=1 / 3, reason="r", rank=2, node=name),)
        web.tell(heartbeat(name, job=name), incident(name, job=name, suspects=suspects), action(name, job=name))
        web.tell(verdict(votes={name: Vote(opinion="normal", score=1e-9)}, job=name, iteration_s=1.5))
    registry = CollectorRegistry()
    registry.register(Plain(web.overview))
    text = JobsText(web.overview)
    assert parsed(text.render()) == parsed(generate_latest(registry))
    assert text.render() == text.render()


def test_a_name_that_no_text_can_hold_breaks_nothing():
    web = Web()
    web.tell(heartbeat(job="j\udcff"))
    assert b'training_job="j?"' in JobsText(web.overview).render()


def test_what_is_told_of_a_job_that_fell_silent_is_dropped():
    web = Web()
    web.tell(heartbeat(), verdict(votes={"lof": Vote(opinion="anomalous", score=0.9)}, iteration_s=1.0))
    web.clock.sleep(STALE_S)
    web.tell()
    assert told(web)["trainwarden_detector_anomalous"]
    web.clock.sleep(1.0)
    web.tell()
    found = told(web)
    gone = ("detector_score", "detector_anomalous", "verdict_anomalous", "iteration_seconds")
    assert not {f"trainwarden_{name}" for name in gone} & found.keys()
    assert found["trainwarden_node_seen_timestamp_seconds"]
    assert found["trainwarden_verdict_timestamp_seconds"]


def test_nobody_is_silent_by_another_clock():
    web = Web()
    web.overview.ready = True
    now_s = web.clock.now_s()
    web.tell(verdict(now_s + 60.0, {"lof": Vote(opinion="normal", score=0.2)}))
    for ago_s in (60.0, 59.0):  # another detector goes on, its clock and that of the node a minute behind
        web.tell(heartbeat(time_s=now_s - ago_s), verdict(now_s - ago_s, {"lof": Vote(opinion="normal", score=0.7)}))
    found = told(web)
    assert set(found["trainwarden_node_seen_timestamp_seconds"].values()) == {now_s}
    assert set(found["trainwarden_verdict_timestamp_seconds"].values()) == {now_s}
    assert set(found["trainwarden_detector_score"].values()) == {0.7}
    assert [node["state"] for node in web.ask("/api/v1/nodes")["nodes"]] == ["healthy"]


def test_when_the_coordinator_was_heard_is_told_while_it_has_jobs_alone():
    web = Web()
    web.tell(task := TaskRecord(id="a", job="a", at_s=1.0, maximum=2, status=TaskStatus()))
    assert told(web)["trainwarden_coordinator_seen_timestamp_seconds"] == {frozenset(): web.clock.now_s()}
    web.tell(msgspec.structs.replace(task, finished=True))
    assert "trainwarden_coordinator_seen_timestamp_seconds" not in told(web)
