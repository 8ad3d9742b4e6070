"""Simulated links, some of them slow: the pair, the rank or the group's nodes are named; else it is the network."""

from __future__ import annotations

import pytest

from tests.simulated_ranks.judged import Fault, Layout, Ranks, judged, window_of
from trainwarden.detectors.pace.change_point import ChangePoint
from trainwarden.detectors.transfers.collective_links import CollectiveLinks
from trainwarden.detectors.verdict.ensemble import Ensemble
from trainwarden.detectors.verdict.rule import EnsembleConfig
from trainwarden.records import Vote

WIDE = Layout(4, 2, 4)


def who(vote):
    return [(suspect.rank, suspect.node) for suspect in vote.suspects]


@pytest.mark.thorough
def test_a_pair_is_two_suspects_of_one_reason():
    told = judged(Ranks(WIDE, seed=1, faults=(Fault("pair", 5, 0.25, 25),)), 60)
    vote = told.newest["links"]
    assert (vote.kind, who(vote)) == ("slow_link", [(5, "node0"), (13, "node1")])
    assert len({suspect.reason for suspect in vote.suspects}) == 1
    assert "between ranks" in vote.reason
    assert "GB/s" in vote.reason


@pytest.mark.thorough
def test_the_rank_that_all_slow_links_share_is_named():
    told = judged(Ranks(WIDE, seed=1, noise=0.02, faults=(Fault("nic", 5, 0.4, 25),)), 60)
    assert who(told.newest["links"]) == [(5, "node0")]


def test_of_one_slow_group_all_nodes_are_as_likely():
    told = judged(Ranks(Layout(4, 8, 1), seed=1, faults=(Fault("dp", 2, 0.25, 25),)), 60)
    vote = told.newest["links"]
    assert vote.kind == "slow_link"
    assert who(vote) == [(None, f"node{number}") for number in range(4)]
    assert len({suspect.score for suspect in vote.suspects}) == 1


@pytest.mark.thorough
def test_many_groups_that_share_nobody_are_the_network():
    told = judged(Ranks(Layout(8, 2, 4), seed=1, faults=(Fault("fabric", 0, 0.3, 25),)), 60)
    vote = told.newest["links"]
    assert (vote.kind, vote.suspects, vote.verified) == ("congestion", (), True)


def test_a_group_without_likes_is_evidence_and_opens_nothing():
    """One group alone: its past is one witness."""
    told = judged(Ranks(Layout(1, 16, 1), seed=1, faults=(Fault("dp", 0, 0.5, 25),)), 60)
    assert told.links is None
    assert (told.newest["links"].opinion, told.newest["links"].verified) == ("anomalous", False)


def test_a_group_without_likes_and_a_slower_job_are_two_witnesses():
    layout = Layout(1, 16, 1)
    ensemble = Ensemble(EnsembleConfig(), {"links": CollectiveLinks.role, "pace": ChangePoint.role})
    link = judged(Ranks(layout, seed=1, faults=(Fault("dp", 0, 0.5, 25),)), 60).newest["links"]
    slower = Vote(opinion="anomalous", score=0.8, kind="slow_job", severity="sev3", verified=True)
    (found,) = ensemble.candidates(window_of(layout), {"links": link, "pace": slower})
    assert (found.kind, [one.node for one in found.suspects]) == ("slow_link", ["node0", "node1"])
    usual = Vote(opinion="normal")
    assert ensemble.candidates(window_of(layout), {"links": link, "pace": usual}) == []


@pytest.mark.thorough
def test_relief_is_seen():
    ranks = Ranks(WIDE, seed=1, faults=(Fault("pair", 5, 0.3, 20),))

    def spoil(calls, step):
        if step == 39:
            ranks.faults = ()
        return calls

    told = judged(ranks, 70, spoil)
    assert told.links is not None
    assert told.newest["links"].opinion == "normal"


def test_what_was_always_slow_is_not_accused():
    told = judged(Ranks(WIDE, seed=1, faults=(Fault("dp", 1, 0.5, 0),)), 50)
    assert told.links is None


def test_a_late_rank_is_no_slow_link():
    told = judged(Ranks(WIDE, seed=1, faults=(Fault("late", 5, 1.0, 20),)), 45)
    assert told.links is None


@pytest.mark.parametrize("ratio", [0.9, 1.0])
def test_a_ratio_that_is_none_is_refused(ratio):
    import msgspec

    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"ratio": ratio}, CollectiveLinks.Config)


def test_it_says_why_it_cannot_know():
    detector, base = CollectiveLinks(CollectiveLinks.Config()), window_of(WIDE)
    detector.update(base)
    assert "no rank tells" in detector.score(base).reason
