"""What Prometheus is told of the jobs."""

from __future__ import annotations

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dashboards.exposition import families
from tests.web_doubles import Web, action, heartbeat, incident, verdict
from trainwarden.records import IterationRecord, Suspect, Vote


def told(web: Web) -> dict[str, dict[frozenset, float]]:
    """Every sample by name and labels."""
    text = generate_latest(web.metrics.registry).decode()
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
