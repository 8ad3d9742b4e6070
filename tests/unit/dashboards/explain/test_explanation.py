"""An incident in plain words: from what is known, whatever is missing or hostile."""

from __future__ import annotations

import shlex
import subprocess
from typing import get_args

import pytest

from tests.web_doubles import NOW_S, Web, action, incident, verdict
from trainwarden.cli.main import COMMANDS
from trainwarden.dashboards.explain.explanation import explain, opening
from trainwarden.dashboards.explain.sentences import MOST_CHARS
from trainwarden.records import IncidentKind, Suspect, Vote

SLOW = incident(
    "j/slow/1",
    kind="slow_compute",
    onset_step=40,
    reason="rank 2 computes 1.9 times as long as its peers",
    suspects=(
        Suspect(score=0.95, reason="longest compute, least wait", rank=2, node="n1", device="GPU-7"),
        Suspect(score=0.2, reason="same node", rank=3, node="n1"),
    ),
    metrics=("gpu_sm_clock_hertz",),
    evidence={"iteration_s": 1.9, "healthy_iteration_s": 1.0, "ranks": [0, 2], "compute_s": [0.9, 1.8]},
)
VOTES = {
    "peer_deviation": Vote(opinion="anomalous", score=0.9, reason="rank 2 is slower"),
    "lof": Vote(opinion="normal", score=0.1),
    "pca": Vote(opinion="abstain", reason="no model for this job"),
}


def test_what_where_evidence_why_not_others_and_next():
    told = explain(SLOW, [action("j/slow/1/move/1", kind="move_topology")], verdict(votes=VOTES, anomalous=True))
    assert told.what.endswith("rank 2 computes 1.9 times as long as its peers")
    assert told.where == "rank 2, node n1, device GPU-7"
    evidence = "\n".join(told.evidence)
    for said in (
        "step 40",
        "1.90 times",
        "rank 2 computes longest, 1.8 s; the other rank 0.9 s",
        "peer_deviation finds it strange",
        "hertz",
    ):
        assert said in evidence
    assert told.why_not_others == (
        "rank 3, node n1 is less likely (20%): same node",
        "lof finds nothing strange, 0.10 where 0.50 is the limit",
        "pca abstains: no model for this job",
    )
    assert told.next[0] == "trainwarden actions approve j/slow/1/move/1  # move_topology"
    assert any(line.startswith("ssh n1 nvidia-smi") for line in told.next)


def test_how_a_job_went_on_without_a_rank_and_how_long_each_part_took():
    survived = ["rank 2 died, and 3 ranks finished step 5", "rank 2 joined at step 6 with the state of rank 0"]
    crash = incident(kind="crash", evidence={
        "renewed": True, "survived": survived, "transition_seconds": {"members": 0.25, "state": 0.5},
    })  # fmt: skip
    told = explain(crash).evidence
    assert [line for line in told if "went on" in line] == [f"the job went on: {one}" for one in survived]
    assert "transitions took 0.750 s: members 0.250 s, state 0.500 s" in told
    going = explain(incident(kind="crash", evidence={"renewed": True, "survived": []})).evidence
    assert "the other ranks go on, and the launcher starts it again alone" in going


def test_scores_are_those_that_the_incident_and_so_the_page_has():
    """The verdict that opened it is older than the incident's newest revision."""
    told = explain(
        incident(kind="slow_compute", votes={"peer_deviation": 0.88}), (), verdict(votes=VOTES, anomalous=True)
    )
    assert any(line.startswith("peer_deviation finds it strange, 0.88 ") for line in told.evidence)


def test_nobody_singled_out_and_votes_no_longer_kept():
    told = explain(incident(kind="slow_job"))
    assert told.where is None
    assert told.why_not_others[0].startswith("nobody stands out")
    assert told.why_not_others[-1] == "how the other detectors voted is no longer kept"


@pytest.mark.parametrize("kind", get_args(IncidentKind))
def test_every_kind_has_a_next_step_that_exists(kind):
    suspects = (Suspect(score=1.0, reason="r", rank=1, node="n1"),)
    for state in ("opened", "closed"):
        told = explain(incident(kind=kind, state=state, suspects=suspects))
        assert told.next
        assert told.runbook.startswith(f"# {kind}\n")
        assert "\n## What you do\n" in told.runbook
        for line in told.next:
            words = shlex.split(line, comments=True)
            assert words[0] in ("ssh", "ping", "trainwarden")
            assert words[0] != "trainwarden" or words[1] in COMMANDS


@pytest.mark.parametrize("has_gpu", [True, False])
def test_on_its_own_node_nobody_goes_by_ssh_or_is_sent_to_a_tool_that_is_not_there(monkeypatch, has_gpu):
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}" if has_gpu or name != "nvidia-smi" else None)
    suspects = (Suspect(score=1.0, reason="r", rank=1, node="n1"),)
    told = explain(incident(kind="gpu_lost", suspects=suspects), here="n1")
    assert not any(line.startswith("ssh ") for line in told.next)
    assert any(line.startswith("nvidia-smi -L") for line in told.next) is has_gpu
    assert explain(incident(kind="gpu_lost", suspects=suspects), here="n2").next[0].startswith("ssh n1 ")


def test_hostile_names_are_shown_and_not_obeyed():
    evil = "n1; rm -rf / #\x1b[2J\n$(reboot)"
    told = explain(
        incident(kind="hang", job=evil, reason=evil * 100, suspects=(Suspect(score=1.0, reason=evil, node=evil),)),
        [action(evil, why=evil)],
    )
    for line in (told.what, told.where or "", *told.evidence, *told.why_not_others):
        assert line.isprintable()
        assert len(line) <= MOST_CHARS
    for line in told.next:
        assert shlex.split(line, comments=True)[0] in ("ssh", "ping", "trainwarden")
        assert line.isprintable()
        split = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], check=True, capture_output=True, text=True)
        assert evil in split.stdout.split("\0")


DAMAGED = [
    {"ranks": 7, "compute_s": "x"},
    {"ranks": [], "compute_s": []},
    {"ranks": [1], "compute_s": [None]},
    {"followed": 3},
    {"iteration_s": "long"},
    {"iteration_s": 1.0, "healthy_iteration_s": 0.0},
]


@pytest.mark.parametrize("evidence", DAMAGED)
def test_damaged_evidence_is_passed_over(evidence):
    assert explain(incident(evidence=evidence, opened_at_s=1e300)).evidence == ()


def test_the_verdict_that_opened_it():
    of_kind = verdict(NOW_S + 1.0, anomalous=True, kind="hang")
    others = [
        verdict(NOW_S, anomalous=True, kind="crash"),
        verdict(NOW_S, anomalous=False),
        verdict(NOW_S, anomalous=True, kind="hang", job="k"),
        verdict(NOW_S + 61.0, anomalous=True, kind="hang"),
    ]
    assert opening(incident(), [*others, of_kind]) is of_kind
    assert opening(incident(), others[1:]) is None


def test_over_http():
    web = Web()
    web.tell(verdict(votes=VOTES, anomalous=True, kind="slow_compute"), SLOW)
    told = web.ask("/api/v1/incidents/j/slow/1/explain")
    assert told["incident"] == "j/slow/1"
    assert "pca abstains: no model for this job" in told["why_not_others"]
    assert set(told) >= {"incident", "what", "where", "evidence", "why_not_others", "next"}


def test_the_two_ends_of_a_slow_link_are_as_likely():
    reason = "the transfer between ranks 5 and 13 takes 1.30 times as long as it did and as its likes do"
    pair = tuple(Suspect(score=1.0, reason=reason, rank=rank, node=f"n{rank}") for rank in (5, 13))
    votes = {
        "collective_links": Vote(opinion="anomalous", score=0.7, reason=reason, kind="slow_link"),
        "collective_waits": Vote(opinion="normal", reason="16 ranks compared over 40 sampled steps"),
    }
    told = explain(incident("j/slow/2", kind="slow_link", reason=reason, suspects=pair), [], verdict(votes=votes))
    assert told.why_not_others[0] == f"rank 13, node n13 is as likely: {reason}"
    assert told.why_not_others[1].endswith(": 16 ranks compared over 40 sampled steps")
    assert any("nvlink" in line for line in told.next)


def test_evidence_says_where_times_come_from():
    told = explain(incident(kind="slow_job", evidence={"basis": "host", "accelerator": "cuda"}))
    assert any("on cuda it does not wait" in line for line in told.evidence)
    hostile = explain(incident(kind="slow_job", evidence={"basis": "host", "accelerator": "\x1b[2J"}))
    assert any("on a device it does not wait" in line for line in hostile.evidence)
    assert not any("times of steps" in line for line in explain(incident(evidence={"basis": 7})).evidence)
