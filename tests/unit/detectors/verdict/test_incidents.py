"""Joining: one incident per problem, revisions only on change, closed on relief, identities that can be found again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.unit.detectors.detection_streams import START_S, Job, event
from trainwarden.detectors.job.samples import Entity
from trainwarden.detectors.job.state import JobState
from trainwarden.detectors.job.window import Window
from trainwarden.detectors.logs.loss_watch import LossWatch
from trainwarden.detectors.pace.iteration_threshold import IterationThreshold
from trainwarden.detectors.protocol import Role
from trainwarden.detectors.verdict.ensemble import Candidate, Ensemble, family_of
from trainwarden.detectors.verdict.incidents import IncidentTracker, incident_id
from trainwarden.detectors.verdict.rule import EnsembleConfig
from trainwarden.records import IncidentKind, IncidentRecord, Suspect, Vote

CONFIG = EnsembleConfig()


def candidate(kind: IncidentKind, *ranks: int, onset_s: float = START_S, hard: bool = False, score: float = 1.0,
              node: str = "node0") -> Candidate:  # fmt: skip
    suspects = tuple(Suspect(score=score, reason="r", rank=rank, node=node) for rank in ranks)
    return Candidate(
        family=family_of(kind), kind=kind, severity="sev2" if hard else "sev3", reason=f"because {kind}",
        suspects=suspects, onset_s=onset_s, onset_step=3, at_step=9, score=score, hard=hard, metrics=(),
    )  # fmt: skip


class Story:
    """Windows of an idle job, and what the joiner says in them."""

    def __init__(self) -> None:
        self.state = JobState("job")
        self.joiner = IncidentTracker("job", CONFIG)
        self.told: list[IncidentRecord] = []

    def at(self, after_s: float, *found: Candidate, live: bool = True) -> list[IncidentRecord]:
        revisions = self.joiner.join(list(found), {}, self.window(after_s), live=live)
        self.told += revisions
        return revisions

    def window(self, after_s: float) -> Window:
        return self.state.window(START_S + after_s)

    def progress(self, until_s: float) -> None:
        for _, record in Job(ranks=1, step_s=0.2).run(5, start_s=START_S + until_s - 1.5).records:
            self.state.feed(record)


@pytest.mark.parametrize(("phase", "revisions"), [("", 1), ("exit", 0), ("ended", 0)])
def test_while_ranks_end_one_after_the_other_the_evidence_stays_as_it_was(phase: str, revisions: int) -> None:
    """Else a rebalance of those that are left is planned, which no launcher takes."""
    state, joiner = JobState("job"), IncidentTracker("job", CONFIG)
    for _, record in Job(ranks=3, micro=lambda rank, step: 6).run(30).records:
        state.feed(record)
    first = state.window(START_S + 20.0)
    joiner.join([candidate("slow_compute", 1)], {}, first)
    left = replace(first, now_s=first.now_s + 10.0, phase=phase, micro_batches=first.micro_batches - 1)
    assert len(joiner.join([candidate("slow_compute", 1)], {}, left)) == revisions


def test_a_problem_that_lasts_is_one_incident_and_closes_on_relief() -> None:
    story = Story()
    for tenth in range(0, 50, 5):
        story.at(tenth / 10, candidate("slow_compute", 1))
    assert [(one.state, one.revision) for one in story.told] == [("opened", 1)]
    assert story.at(5.0) == []
    (closed,) = story.at(9.0)
    assert (closed.state, closed.revision, closed.closed_at_s) == ("closed", 2, START_S + 9.0)
    assert story.joiner.open == []


@pytest.mark.parametrize("starts", [[], [1], [1, 1, 2], [2, 1]])
def test_an_incident_names_the_newest_start_of_all_ranks_that_was_heard_of(starts: list[int]) -> None:
    """By number, as clocks of nodes and engines differ; a job whose ranks were heard to start once is at its first."""
    story = Story()
    story.state.feed(event("process_start", START_S, rank=0))
    for place, attempt in enumerate(starts):
        for stage in ("started", "done"):
            story.state.feed(event("restart", START_S + 1.0 + 0.1 * place, stage=stage, attempt=attempt))
    (opened,) = story.at(2.0, candidate("hang", 1))
    assert opened.attempt == ([0, *starts])[-1]
    story.state.feed(event("restart", START_S + 3.0, stage="done", attempt=7))
    (updated,) = story.at(3.0, candidate("hang", 1, 2))
    assert updated.attempt == opened.attempt


def test_where_no_start_was_heard_of_or_a_strange_one_none_is_named() -> None:
    story = Story()
    for strange in ("x", -1, 1.5):
        story.state.feed(event("restart", START_S, stage="done", attempt=strange))
    (opened,) = story.at(2.0, candidate("hang", 1))
    assert opened.attempt is None


def test_how_the_others_went_on_without_a_rank_is_told_once_for_each_transition() -> None:
    story = Story()
    crash = replace(candidate("crash", 1, hard=True), evidence={"renewed": True, "survived": []})
    (opened,) = story.at(0.0, crash)
    assert opened.evidence == {"renewed": True, "survived": []}
    finished = replace(crash, evidence={"renewed": True, "survived": ["2 ranks finished step 9"]})
    (told,) = story.at(0.5, finished)
    assert (told.state, told.revision, told.evidence["survived"]) == ("updated", 2, ["2 ranks finished step 9"])
    assert story.at(1.0, finished) == []
    assert story.at(1.2, replace(crash, evidence={})) == []


@pytest.mark.parametrize(("after_s", "kinds"), [(2.5, ["crash"]), (4.5, ["crash", "hang"])])
def test_a_hang_is_another_problem_once_the_others_had_gone_on_without_the_rank(
    after_s: float, kinds: list[str]
) -> None:
    story = Story()
    evidence = {"renewed": True, "survived": ["2 ranks finished step 9"], "went_on_s": START_S + 4.0}
    crash = replace(candidate("crash", 1, hard=True), evidence=evidence)
    story.at(0.0, crash)
    hang = candidate("hang", onset_s=START_S + after_s)
    for at_s in (7.0, 7.5, 200.0):
        story.at(at_s, crash, hang)
        assert [one.kind for one in story.joiner.open] == kinds


def test_a_short_gap_does_not_close() -> None:
    story = Story()
    story.at(0.0, candidate("slow_compute", 1))
    story.at(1.5)
    story.at(2.0, candidate("slow_compute", 1))
    assert story.at(3.5) == []
    assert len(story.joiner.open) == 1


def test_slowness_whose_culprit_becomes_known_keeps_its_identity() -> None:
    story = Story()
    (first,) = story.at(0.0, candidate("slow_job"))
    (second,) = story.at(1.0, candidate("slow_compute", 2))
    assert second.id == first.id
    assert (second.kind, second.state, second.suspects[0].rank) == ("slow_compute", "updated", 2)
    assert story.at(2.0, candidate("slow_job")) == []


def test_a_second_slow_rank_is_told_under_the_same_incident_while_both_last() -> None:
    story = Story()
    story.at(0.0, candidate("slow_compute", 1))
    (again,) = story.at(1.0, candidate("slow_compute", 1, 3))
    assert [suspect.rank for suspect in again.suspects] == [1, 3]


def test_slow_ranks_that_have_nothing_in_common_are_two_problems() -> None:
    story = Story()
    story.at(0.0, candidate("slow_compute", 1))
    story.at(1.0, candidate("slow_compute", 2, onset_s=START_S + 60))
    assert len({one.id for one in story.told}) == 2


def test_what_a_failure_explains_is_not_another_incident() -> None:
    story = Story()
    story.at(0.0, candidate("crash", 1, hard=True))
    for kind in ("slow_job", "log_storm", "slow_compute"):
        assert story.at(1.0, candidate(kind, 0)) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(("earlier", "later"), [("slow_compute", "hang"), ("log_storm", "exception")])
def test_a_failure_takes_over_what_announced_it(earlier: Any, later: Any) -> None:
    story = Story()
    (first,) = story.at(0.0, candidate(earlier, 1))
    (second,) = story.at(5.0, candidate(later, 1, onset_s=START_S + 5, hard=later == "exception"))
    assert (second.id, second.kind) == (first.id, later)


def test_the_end_of_a_hung_job_does_not_rename_its_hang() -> None:
    story = Story()
    story.at(0.0, candidate("hang", 1))
    assert story.at(9.0, candidate("crash", 0, onset_s=START_S + 9, hard=True)) == []


def test_what_the_recorders_say_of_an_open_hang_becomes_its_reason() -> None:
    story = Story()
    story.at(0.0, candidate("hang", 1))
    told = replace(candidate("hang", 1, hard=True, score=0.9), reason="rank 1 did not reach all_reduce 812")
    (revised,) = story.at(1.0, told)
    assert (revised.revision, revised.reason) == (2, told.reason)
    assert story.at(2.0, told) == []  # once
    (mismatch,) = story.at(3.0, replace(candidate("collective_mismatch", 1, hard=True), reason="sizes differ"))
    assert (mismatch.id, mismatch.kind) == (revised.id, "collective_mismatch")


@pytest.mark.parametrize("later", ["hang", "collective_mismatch", "user_error"])
@pytest.mark.parametrize("kind", ["exception", "cuda_out_of_memory", "checkpoint"])
def test_a_root_once_known_stays_and_what_follows_is_added(kind: Any, later: Any) -> None:
    story = Story()
    (root,) = story.at(0.0, candidate(kind, 2, hard=True))
    # The hang began, as its heartbeats say, before the exception was told; its evidence came later.
    follows = candidate(later, 1, onset_s=START_S + (-0.5 if later == "hang" else 1.0), hard=True)
    (told,) = story.at(1.0, candidate(kind, 2, hard=True), follows)
    assert (told.id, told.kind, told.suspects, told.reason) == (root.id, kind, root.suspects, root.reason)
    assert told.evidence["followed"] == [f"{later}: because {later}"]
    for second in range(2, 6):
        assert story.at(second, follows, candidate(kind, 2, hard=True)) == []  # told once, in any order


@pytest.mark.parametrize("after_s", [40.0, 900.0])
def test_peers_that_wait_for_a_rank_whose_disk_is_full_are_no_second_incident(after_s: float) -> None:
    story = Story()
    story.at(0.0, candidate("storage", 1, hard=True))
    waits = candidate("hang", 1, onset_s=START_S + after_s, hard=True)
    story.at(after_s, candidate("storage", 1, hard=True), waits)
    assert [(one.kind, one.state) for one in story.told] == [("storage", "opened"), ("storage", "updated")]
    assert story.told[-1].evidence["followed"] == ["hang: because hang"]


@pytest.mark.parametrize(
    ("kind", "rank", "after_s"), [("storage", 2, 40.0), ("storage", 1, -40.0), ("storage", 1, 9e3)]
)
def test_a_hang_of_another_rank_or_time_is_a_second_incident(kind: Any, rank: int, after_s: float) -> None:
    story = Story()
    story.at(0.0, candidate(kind, 1, hard=True))
    hang = candidate("hang", rank, onset_s=START_S + after_s, hard=True)
    story.at(max(0.0, after_s), candidate("storage", 1, hard=True), hang)
    assert [one.kind for one in story.told] == ["storage", "hang"]


@pytest.mark.parametrize(
    "waits", [candidate("hang", onset_s=START_S + 9.0), candidate("hang", 1, onset_s=START_S + 9.0)]
)
@pytest.mark.parametrize("score", [1.0, 0.8])
def test_what_waits_for_a_failed_rank_is_an_echo_also_where_nobody_is_named(waits: Candidate, score: float) -> None:
    """Of a root that is not certain only a hang of the same rank is."""
    story = Story()
    story.at(0.0, candidate("storage", 1, hard=True, score=score))
    story.at(10.0, waits)
    kinds = {one.id: one.kind for one in story.told}
    assert list(kinds.values()) == (["storage"] if score == 1.0 or waits.suspects else ["storage", "hang"])
    if score == 1.0:
        assert story.told[-1].evidence["followed"] == ["hang: because hang"]


def test_a_hang_after_steps_is_no_echo_of_a_disk_that_was_full_before() -> None:
    story = Story()
    story.progress(-1.0)
    opened = story.at(0.0, candidate("storage", 1, hard=True))
    story.joiner.resume(replace_step(opened[0], 0))
    story.progress(80.0)
    story.at(82.0, candidate("hang", 1, onset_s=START_S + 81.0))
    assert [one.kind for one in story.told if one.state == "opened"] == ["storage", "hang"]


def replace_step(record: IncidentRecord, step: int) -> IncidentRecord:
    return msgspec.structs.replace(record, opened_step=step, revision=record.revision + 1)


@pytest.mark.parametrize("slow", [
    candidate("slow_job", onset_s=START_S + 60.0), replace(candidate("slow_job"), onset_s=None),
    candidate("slow_compute", 1),
])  # fmt: skip
def test_a_job_that_is_slow_while_a_rank_leaks_is_one_incident_in_either_order(slow: Candidate) -> None:
    story = Story()
    story.at(0.0, candidate("memory_leak", 1))
    story.at(61.0, candidate("memory_leak", 1), slow)
    assert len({one.id for one in story.told}) == 1
    assert story.told[-1].kind == "memory_leak"
    assert story.told[-1].evidence["followed"] == [f"{slow.kind}: because {slow.kind}"]
    other = Story()
    other.at(61.0, slow)
    other.at(62.0, slow, candidate("memory_leak", 1))
    assert [(one.id, one.kind) for one in other.told] == [
        (other.told[0].id, slow.kind),
        (other.told[0].id, "memory_leak"),
    ]


def test_a_rank_whose_memory_is_unlike_its_peers_is_the_leak_in_either_order() -> None:
    """What compares peers names the row of the rank, as its agent sends it."""
    row = Entity("node0", "rank-1", 1).suspect(1.0, "rank_anonymous_memory_bytes 1.6e+09 where its 3 peers have 4e+08")
    metrics = ("rank_anonymous_memory_bytes", "rank_resident_memory_bytes")
    unlike = replace(candidate("metric_anomaly", 1), suspects=(row,), metrics=metrics)
    leak = candidate("memory_leak", 1)
    for first, then in ((unlike, leak), (leak, unlike)):
        story = Story()
        story.at(0.0, first)
        story.at(1.0, first, then)
        assert [(one.id, one.kind) for one in story.told if one.kind == "memory_leak"] == [
            (story.told[0].id, "memory_leak")
        ]
        assert len({one.id for one in story.told}) == 1


@pytest.mark.parametrize(("fault", "metric", "one"), [
    ("memory_leak", "rank_threads_count", False), ("memory_leak", "rank_cpu_ratio", False),
    ("memory_leak", "gpu_memory_clock_hertz", False), ("memory_leak", "gpu_memory_used_bytes", True),
    ("host_contention", "rank_cpu_ratio", True), ("host_contention", "rank_run_queue_wait_ratio", True),
    ("host_contention", "rank_resident_memory_bytes", False), ("storage", "rank_threads_count", True),
])  # fmt: skip
def test_a_leak_explains_what_memory_shows_and_a_busy_host_what_pace_does(fault: Any, metric: str, one: bool) -> None:
    """In either order, of a busy host what is seen later; beside a metric that it does not explain, nothing."""
    found = candidate(fault, 1, hard=fault == "storage")
    for metrics, same in (((metric,), one), ((metric, "rank_major_faults_count"), fault == "storage")):
        odd = replace(candidate("metric_anomaly", 1), metrics=metrics)
        for first in (found, odd) if fault != "host_contention" else (found,):
            story = Story()
            story.at(0.0, first)
            story.at(1.0, odd, found)
            assert (len({told.id for told in story.told}) == 1) is same


def test_slowness_that_says_of_no_time_came_of_a_leak_since_it_was_seen_first() -> None:
    """However long it goes on; what begins anew long after the leak did not come of it."""
    leak, slow = candidate("memory_leak", 1), replace(candidate("slow_job"), onset_s=None)
    story = Story()
    for second in range(0, 4000, 20):
        story.at(float(second), leak, *([slow] if second >= 1200 else []))
    assert {one.kind for one in story.told} == {"memory_leak"}
    story.at(4100.0, leak)
    story.at(4200.0, leak, slow)
    assert [one.kind for one in story.joiner.open] == ["memory_leak", "slow_job"]


def test_a_slow_job_learns_its_rank_also_while_that_leaks() -> None:
    story, slow = Story(), candidate("slow_job")
    leak = candidate("memory_leak", 1, onset_s=START_S + 100.0)
    story.at(0.0, slow)
    story.at(100.0, slow, leak)
    story.at(102.0, leak, replace(candidate("slow_compute", 1), onset_s=None))
    assert [(one.kind, one.id == story.told[0].id) for one in story.joiner.open] == [
        ("slow_compute", True),
        ("memory_leak", False),
    ]


def test_a_score_that_grows_from_window_to_window_is_no_news_each_time() -> None:
    story = Story()
    for window in range(20):
        story.at(float(window), candidate("metric_anomaly", 1, score=0.75 + window / 128.0))
    assert [one.suspects[0].score * 128.0 for one in story.told] == [96.0, 103.0, 110.0]


def test_a_rank_that_is_slow_while_another_leaks_is_another_incident() -> None:
    story = Story()
    story.at(0.0, candidate("memory_leak", 1), candidate("slow_compute", 2))
    assert [one.kind for one in story.told] == ["memory_leak", "slow_compute"]


def test_a_hang_is_no_root_of_a_crash_without_words_but_what_explains_the_crash_is() -> None:
    story = Story()
    story.at(0.0, candidate("crash", 2, hard=True))
    (told,) = story.at(1.0, candidate("hang", 2, hard=True))
    assert told.kind == "crash"
    (told,) = story.at(2.0, candidate("exception", 2, onset_s=START_S, hard=True))
    assert told.kind == "exception"


def test_a_failure_from_before_the_hang_was_declared_is_its_root_however_late_it_is_told() -> None:
    story = Story()
    (hang,) = story.at(5.0, candidate("hang", 2))
    (told,) = story.at(6.0, candidate("exception", 2, onset_s=START_S + 0.1, hard=True))
    assert (told.id, told.kind) == (hang.id, "exception")
    assert story.at(7.0, candidate("hang", 2, hard=True))[0].kind == "exception"


def test_a_fact_corrects_a_guess_and_a_new_life_may_fail_of_something_else() -> None:
    story = Story()
    story.at(0.0, candidate("exception", 2))  # a log line's guess
    assert story.at(1.0, candidate("hang", 1, hard=True))[0].kind == "hang"
    story = Story()
    story.at(0.0, candidate("exception", 2, hard=True))
    story.state.feed(event("restart", START_S + 1, stage="begun"))
    (told,) = story.at(2.0, candidate("crash", 1, onset_s=START_S + 2, hard=True))
    assert (told.kind, told.suspects[0].rank) == ("crash", 1)


def test_the_same_failure_in_a_new_life_is_told_again_once() -> None:
    story = Story()
    (first,) = story.at(0.0, candidate("crash", 1, hard=True))
    assert story.at(0.5, candidate("crash", 1, hard=True)) == []
    story.state.feed(event("restart", START_S + 1, stage="begun"))
    (again,) = story.at(2.0, candidate("crash", 1, onset_s=START_S + 2, hard=True))
    assert (again.id, again.revision, again.suspects) == (first.id, first.revision + 1, first.suspects)
    assert story.at(2.5, candidate("crash", 1, onset_s=START_S + 2, hard=True)) == []


def test_a_guess_is_corrected_by_the_root() -> None:
    story = Story()
    (guess,) = story.at(0.0, candidate("crash", 0, hard=True, score=0.3))
    (right,) = story.at(1.0, candidate("crash", 2, hard=True))
    assert right.id == guess.id
    assert [suspect.rank for suspect in right.suspects] == [2]
    assert story.at(1.5, candidate("crash", 0, hard=True, score=0.3)) == []


def test_a_failure_closes_when_the_job_has_made_steps_again_and_its_echo_opens_nothing() -> None:
    story = Story()
    story.at(0.0, candidate("crash", 1, hard=True))
    assert story.at(30.0) == []
    story.progress(until_s=40.0)
    (closed,) = story.at(40.0)
    assert closed.state == "closed"
    assert story.at(41.0, candidate("crash", 1, hard=True)) == []
    (fresh,) = story.at(50.0, candidate("crash", 1, onset_s=START_S + 49, hard=True))
    assert (fresh.state, fresh.id != closed.id) == ("opened", True)


def test_a_device_fault_and_the_failure_that_follows_are_one_problem_in_either_order() -> None:
    for order in (("gpu_lost", "exception"), ("exception", "gpu_lost")):
        story = Story()
        for place, kind in enumerate(order):
            story.at(float(place), candidate(kind, 1, onset_s=START_S + place, hard=True))  # type: ignore[arg-type]
        assert {one.kind for one in story.joiner.open} == {"gpu_lost"}
        assert len({one.id for one in story.told}) == 1


def of_device(kind: IncidentKind, device: str | None = "mlx5_1:1", *, onset_s: float = START_S) -> Candidate:
    found = candidate(kind, 0, onset_s=onset_s, hard=kind != "metric_anomaly")
    return replace(found, suspects=(Suspect(score=1.0, reason="r", node="node0", device=device),))


@pytest.mark.parametrize("kind", ["nic_down", "gpu_memory_error", "host_contention", "storage"])
def test_what_is_unusual_of_a_device_whose_fault_is_known_is_no_other_incident(kind: Any) -> None:
    story, unusual = Story(), replace(of_device("metric_anomaly"), metrics=("host_cpu_utilization_ratio",))
    story.at(0.0, of_device(kind))
    for after_s in (1.0, 200.0):  # also what begins later, while it is open
        story.at(after_s, of_device(kind), replace(unusual, onset_s=START_S + after_s))
    assert [one.kind for one in story.joiner.open] == [kind]
    story.at(400.0)
    assert not story.joiner.open
    story.at(401.0, replace(unusual, onset_s=START_S + 5.0))  # an echo
    assert not story.joiner.open
    story.at(402.0, replace(unusual, onset_s=START_S + 390.0))
    assert [one.kind for one in story.joiner.open] == ["metric_anomaly"]


def test_a_device_fault_takes_over_what_began_with_it_and_nobody_could_explain() -> None:
    story = Story()
    story.at(0.0, of_device("metric_anomaly"))
    story.at(40.0, of_device("nic_down", onset_s=START_S + 20.0), of_device("metric_anomaly"))
    (incident,) = story.joiner.open
    assert (incident.kind, incident.severity, incident.reason) == ("nic_down", "sev2", "because nic_down")
    assert len({one.id for one in story.told}) == 1


@pytest.mark.parametrize("kind", ["congestion", "gpu_throttle", "slow_compute", "slow_job"])
@pytest.mark.parametrize(("after_s", "incidents"), [(60.0, 1), (400.0, 2)])
def test_what_was_unusual_long_before_is_not_where_a_fault_began(kind: Any, after_s: float, incidents: int) -> None:
    story, unusual = Story(), of_device("metric_anomaly")
    story.at(0.0, unusual)
    story.at(after_s, unusual)
    found = of_device(kind, onset_s=START_S + after_s)
    story.at(after_s + 5.0, replace(found, suspects=() if kind == "slow_job" else found.suspects))
    assert len({one.id for one in story.told}) == incidents
    (named,) = [one for one in story.joiner.open if one.kind == kind]
    assert named.onset_s == START_S + (after_s if incidents == 2 else 0.0)


@pytest.mark.parametrize(
    "other",
    [of_device("nic_down", "mlx5_2:1"), of_device("nic_down", onset_s=START_S + 60.0), of_device("nic_down", None)],
)
def test_a_device_fault_of_another_device_or_time_is_another_problem(other: Candidate) -> None:
    story = Story()
    story.at(0.0, of_device("metric_anomaly"))
    story.at(60.0, other, of_device("metric_anomaly"))
    assert sorted({one.id for one in story.told if one.state == "opened"}) == sorted({one.id for one in story.told})
    assert len({one.id for one in story.told}) == 2


def test_a_node_that_is_lost_explains_what_its_devices_show() -> None:
    story = Story()
    story.at(0.0, of_device("node_lost", None))
    story.at(1.0, of_device("node_lost", None), of_device("metric_anomaly"))
    assert [one.kind for one in story.joiner.open] == ["node_lost"]


def test_faults_of_different_nodes_far_apart_in_time_are_two() -> None:
    story = Story()
    story.at(0.0, candidate("gpu_lost", 1, hard=True))
    story.at(100.0, candidate("gpu_lost", 9, onset_s=START_S + 100, hard=True, node="node7"))
    assert len({one.id for one in story.told}) == 2


@pytest.mark.parametrize("skew_s", [-60.0, 60.0])
@pytest.mark.parametrize(
    ("first", "later"), [("nic_error", "nic_error"), ("node_lost", "exception"), ("exception", "node_lost")]
)
def test_what_two_nodes_tell_of_one_cause_is_one_problem_though_their_clocks_are_a_minute_apart(
    first: Any, later: Any, skew_s: float
) -> None:
    """Only the service tells of silence, on its own clock; every other onset is told on its node's."""

    def onset_s(kind: str, after_s: float) -> float:
        return START_S + after_s + (0.0 if kind == "node_lost" else skew_s)

    story = Story()
    story.at(0.0, candidate(first, 1, onset_s=onset_s(first, 0.0) if first != "nic_error" else START_S, hard=True))
    node = "node0" if later == "node_lost" else "node7"
    story.at(5.0, candidate(later, 9, onset_s=onset_s(later, 1.0), hard=True, node=node))
    assert len({one.id for one in story.told}) == 1


def test_faults_of_different_nodes_that_a_clock_brings_together_are_two() -> None:
    story = Story()
    story.at(0.0, candidate("gpu_lost", 1, hard=True))
    story.at(100.0, candidate("gpu_lost", 9, onset_s=START_S + 5.0, hard=True, node="node7"))
    assert len({one.id for one in story.told}) == 2


def test_what_names_no_place_joins_the_fault_that_does() -> None:
    story = Story()
    story.at(0.0, candidate("nic_error", 0))
    nowhere = candidate("nic_error", onset_s=START_S - 200.0)
    story.at(1.0, replace(nowhere, suspects=(Suspect(score=0.9, reason="the fabric"),)))
    assert len(story.joiner.open) == 1


def test_identities_are_deterministic() -> None:
    one, two = candidate("crash", 1), candidate("exception", 1)
    assert incident_id("job", one, 5.0) == incident_id("job", two, 5.01)  # one family, one moment, one suspect
    assert incident_id("job", one, 5.0) != incident_id("job2", one, 5.0)
    assert incident_id("job", one, 5.0) != incident_id("job", candidate("crash", 2), 5.0)


def test_reading_again_tells_nothing_that_was_told_and_everything_that_was_not() -> None:
    before = Story()
    (known,) = before.at(0.0, candidate("slow_compute", 1))
    after = Story()
    after.joiner.resume(known)
    assert after.at(0.5, candidate("slow_compute", 1, onset_s=START_S + 0.3), live=False) == []
    assert after.at(1.0, candidate("crash", 1, onset_s=START_S + 90, hard=True), live=False) == []
    (missed,) = after.joiner.unpublished()
    assert (missed.kind, missed.state) == ("crash", "opened")
    assert after.joiner.unpublished() == []
    (closed,) = after.at(9.0, candidate("crash", 1, onset_s=START_S + 90, hard=True))
    assert (closed.id, closed.state) == (known.id, "closed")


def test_what_was_found_while_reading_again_is_told_by_the_first_live_window() -> None:
    story = Story()
    assert story.at(0.0, candidate("slow_compute", 1), live=False) == []
    (told,) = story.at(0.5, candidate("slow_compute", 1))
    assert told.state == "opened"


# -- the vote ----------------------------------------------------------------------------------------------------


def vote(kind: IncidentKind, **more: Any) -> Vote:
    return Vote(opinion="anomalous", score=0.8, kind=kind, severity="sev3", reason="r", **more)


ROLES = {
    "logs": Role(reads="logs", opens=("any",), weight=0.0),
    "facts": Role(reads="events", opens=("hard",)),
    "pace": Role(reads="steps", opens=("verified",)),
    "evidence": Role(reads="samples", weight=0.0),
    **{name: Role(reads="scores") for name in "ab"},
}
CALM, SILENT = Vote(opinion="normal"), Vote(opinion="abstain", reason="warm-up")


def voted(votes: dict[str, Vote], config: EnsembleConfig = CONFIG, phase: str = "") -> bool:
    window = replace(JobState("job").window(START_S), phase=phase)
    return Ensemble(config, ROLES).judge(window, votes).anomalous


def test_the_rule() -> None:
    one, two = {"a": vote("slow_job")}, {"a": vote("slow_job"), "b": vote("slow_job")}
    assert not voted({**one, "b": CALM})
    assert not voted({**one, "b": SILENT})
    assert voted(two)
    assert not voted(two, EnsembleConfig(weights={"a": 0.5}))
    assert voted({"logs": vote("log_storm"), "b": CALM})
    assert voted({"pace": vote("slow_job", verified=True), "a": CALM})
    assert voted({"facts": vote("crash", hard=True)})
    assert not voted({"facts": vote("crash", hard=True)}, EnsembleConfig(hard_opens=False))
    assert not voted({"pace": vote("slow_job", verified=True)}, EnsembleConfig(weights={"pace": 0.0}))
    assert not voted({"logs": vote("log_storm")}, EnsembleConfig(weights={"logs": 0.0}))


@pytest.mark.parametrize("phase", ["start", "restart", "exit"])
def test_phases_explain_slowness_but_no_facts(phase: str) -> None:
    assert not voted({"pace": vote("slow_job", verified=True)}, phase=phase)
    assert voted({"facts": vote("crash", hard=True)}, phase=phase)


def test_facts_come_before_guesses_and_the_specific_before_the_vague() -> None:
    votes = {
        "pace": vote("slow_job", verified=True), "logs": vote("hang", verified=True), "facts": vote("crash", hard=True),
    }  # fmt: skip
    window = replace(JobState("job").window(START_S), phase="")
    ensemble = Ensemble(CONFIG, ROLES)
    assert [one.kind for one in ensemble.candidates(window, votes)] == ["crash", "slow_job"]
    del votes["facts"]
    assert ensemble.judge(window, votes).kind == "hang"


def test_a_vote_may_do_what_its_role_allows_and_no_more() -> None:
    """Facts and verified changes of a detector that may not open alone need company; evidence is shown and no more."""
    assert not voted({"a": vote("slow_job", verified=True)})
    assert voted({"a": vote("slow_job", verified=True), "b": vote("slow_job")})
    assert not voted({"a": vote("crash", hard=True)})
    assert not voted({"pace": vote("crash", hard=True)})
    evidence = {"evidence": vote("gpu_throttle"), "a": vote("slow_job")}
    assert not voted(evidence)
    assert voted(evidence, EnsembleConfig(weights={"evidence": 1.0}))
    assert voted({"a": vote("slow_job"), "logs": vote("log_storm")})


def test_a_loss_that_is_no_number_does_not_make_an_unverified_slowness_believed() -> None:
    """What the loss says names nobody, and would count in everybody's favour."""
    ensemble = Ensemble(CONFIG, {"loss_watch": LossWatch.role, "iteration_threshold": IterationThreshold.role})
    window = replace(JobState("job").window(START_S), phase="")
    slow = {"iteration_threshold": vote("slow_job")}
    lost = {"loss_watch": vote("silent_corruption", verified=True)}
    assert [one.kind for one in ensemble.candidates(window, slow | lost)] == ["silent_corruption"]
    assert ensemble.candidates(window, slow) == []


def test_one_weight_leaves_the_others_as_they_are() -> None:
    ensemble = Ensemble(EnsembleConfig(weights={"a": 0.5}), ROLES | {"half": Role(reads="scores", weight=0.25)})
    assert [ensemble.weight(name) for name in ("a", "b", "half", "logs")] == [0.5, 1.0, 0.25, 0.0]


def test_in_a_job_without_steps_a_failure_that_nothing_supports_fades_and_mutes_nothing_any_more() -> None:
    story = Story()
    story.at(0.0, candidate("out_of_memory", 1))
    assert story.at(200.0, candidate("slow_compute", 2, onset_s=START_S + 199.0)) == []
    (closed,) = story.at(301.0)
    assert (closed.kind, closed.state) == ("out_of_memory", "closed")
    (opened,) = story.at(302.0, candidate("slow_compute", 2, onset_s=START_S + 302.0))
    assert (opened.kind, opened.state) == ("slow_compute", "opened")


def test_where_steps_are_told_a_failure_lasts_until_they_go_on() -> None:
    story = Story()
    story.progress(0.0)
    story.at(0.0, candidate("out_of_memory", 1))
    assert story.at(1000.0) == []
    assert [one.kind for one in story.joiner.open] == ["out_of_memory"]


def all_gone(story: Story, found: Candidate, code: int = 1) -> None:
    """Two ranks that have ended a second after `found` was."""
    for _, record in Job(ranks=2).run(5, start_s=START_S - 8.0).records:
        story.state.feed(record)
    story.at(0.0, found)
    for rank in range(2):
        story.state.feed(event("process_exit", START_S + 1.0, rank, code=code))


def again(story: Story, after_s: float, steps: int) -> None:
    """Both ranks are started again, and make `steps`."""
    for rank in range(2):
        story.state.feed(event("process_start", START_S + after_s, rank))
    for _, record in Job(ranks=2, life=1).run(steps, start_s=START_S + after_s).records:
        story.state.feed(record)


@pytest.mark.parametrize(("kind", "code", "unresolved"), [
    ("slow_compute", 1, False), ("memory_leak", 1, False), ("crash", 1, True), ("gpu_lost", 1, True),
    ("hang", 0, False),
])  # fmt: skip
def test_where_all_ranks_are_gone_incidents_are_closed_with_the_reason(
    kind: IncidentKind, code: int, unresolved: bool
) -> None:
    """What has ended them is closed, too, and an engine may go on with it: they may be started again."""
    story, found = Story(), candidate(kind, 0)
    all_gone(story, found, code)
    for after_s in (1.5, 3.0, 7.0):
        assert story.at(after_s, found) == []
    (closed,) = (one for one in story.at(9.0, found) if one.state == "closed")
    assert (closed.evidence.get("closed"), closed.unresolved) == ("all ranks have ended", unresolved)
    assert (closed.closed_at_s, closed.wants_action) == (START_S + 9.0, unresolved)
    assert story.at(20.0, found) == []


def test_what_is_learnt_of_an_ended_job_later_is_told_of_the_closed_incident() -> None:
    story = Story()
    all_gone(story, candidate("crash", 0, hard=True))
    story.at(3.0)
    story.at(11.0)
    (better,) = story.at(12.0, candidate("out_of_memory", 0, onset_s=START_S, hard=True))
    assert (better.state, better.kind, better.unresolved) == ("closed", "out_of_memory", True)
    assert better.closed_at_s == START_S + 11.0


def test_an_unresolved_incident_is_resolved_once_the_job_trains_again() -> None:
    story = Story()
    all_gone(story, candidate("crash", 0, hard=True))
    story.at(3.0)
    story.at(11.0)
    again(story, 20.0, 8)
    (resolved,) = story.at(31.0)
    assert (resolved.state, resolved.revision, resolved.wants_action) == ("closed", 3, False)
    assert "closed" not in resolved.evidence
    assert resolved.closed_at_s == START_S + 31.0


@pytest.mark.parametrize("kind", ["nic_down", "gpu_lost"])
def test_an_unresolved_incident_lasts_again_where_the_job_runs_again_with_its_fault(kind: IncidentKind) -> None:
    story, found = Story(), candidate(kind, 0)
    all_gone(story, found)
    story.at(1.5, found)
    story.at(9.0, found)
    again(story, 20.0, 40)
    (lasts,) = story.at(22.0, found)
    assert (lasts.state, lasts.revision, lasts.unresolved, lasts.closed_at_s) == ("updated", 3, False, None)
    assert "closed" not in lasts.evidence
    assert story.at(23.0, found) == []


def test_an_unresolved_failure_is_not_told_again_by_what_is_still_said_of_its_old_processes() -> None:
    story, found = Story(), candidate("crash", 0)
    all_gone(story, found)
    story.at(1.5, found)
    story.at(9.0, found)
    story.state.feed(event("process_start", START_S + 20.0, 0))
    assert story.at(21.0, found) == []


def test_an_unresolved_fault_of_a_device_that_is_not_seen_any_more_lasts_until_the_job_trains_again() -> None:
    """Who has ended makes no signs of it; nor does it count what was trained before."""
    story, found = Story(), candidate("nic_down", 0)
    all_gone(story, found)
    story.progress(5.0)
    story.at(6.0, found)
    (closed,) = story.at(13.0, found)
    assert closed.unresolved
    assert [story.at(after_s) for after_s in (15.0, 17.0, 400.0)] == [[], [], []]
    again(story, 410.0, 1)
    assert story.at(421.0) == []
    again(story, 430.0, 8)
    (resolved,) = story.at(451.0)
    assert (resolved.state, resolved.revision, resolved.wants_action) == ("closed", 3, False)
    assert "closed" not in resolved.evidence


def test_a_job_that_made_no_steps_and_is_down_leaves_its_failure_unresolved_also_for_who_takes_over() -> None:
    story = Story()
    for rank in range(2):
        story.state.feed(event("process_start", START_S - 1.0, rank))
    story.at(0.0, found := candidate("crash", 0, hard=True))
    for rank in range(2):
        story.state.feed(event("process_exit", START_S + 1.0, rank, code=1))
    story.at(1.5, found)
    (closed,) = story.at(9.0, found)
    assert closed.unresolved
    other = IncidentTracker("job", CONFIG)
    other.resume(closed)
    assert [other.join([], {}, story.window(400.0 + after_s)) for after_s in (0.0, 1.0, 8.0)] == [[], [], []]
    assert [story.at(after_s) for after_s in (420.0, 800.0)] == [[], []]


def test_what_reading_again_finds_of_a_job_that_is_down_is_told_as_opened_first() -> None:
    story, found = Story(), candidate("crash", 0, hard=True)
    for _, record in Job(ranks=2).run(5, start_s=START_S - 8.0).records:
        story.state.feed(record)
    story.at(0.0, found, live=False)
    for rank in range(2):
        story.state.feed(event("process_exit", START_S + 1.0, rank, code=1))
    for after_s in (1.5, 9.0, 20.0):
        story.at(after_s, found, live=False)
    (opened,) = story.joiner.unpublished()
    assert (opened.kind, opened.state, opened.revision) == ("crash", "opened", 1)
    (closed,) = story.at(21.0, found)
    assert (closed.state, closed.revision, closed.unresolved) == ("closed", 2, True)


def test_an_unresolved_incident_lasts_again_where_the_job_fails_again_before_it_trains() -> None:
    story = Story()
    all_gone(story, candidate("crash", 0, hard=True))
    story.at(3.0)
    story.at(11.0)
    again(story, 20.0, 1)
    (lasts,) = story.at(22.0, candidate("out_of_memory", 0, onset_s=START_S + 21.5, hard=True))
    assert (lasts.id, lasts.state, lasts.closed_at_s) == (story.told[0].id, "updated", None)
    assert "closed" not in lasts.evidence


def test_an_unresolved_incident_of_a_job_that_is_over_wants_nothing_any_more() -> None:
    story = Story()
    all_gone(story, candidate("crash", 0, hard=True))
    story.at(3.0)
    story.at(11.0)
    (over,) = story.joiner.end(START_S + 900.0)
    assert (over.state, over.wants_action, over.closed_at_s) == ("closed", False, START_S + 11.0)
    assert over.evidence["closed"] == "all ranks have ended"


def test_whoever_takes_over_knows_an_unresolved_incident() -> None:
    story = Story()
    all_gone(story, found := candidate("crash", 0, hard=True))
    story.at(3.0)
    (closed,) = story.at(11.0)
    other = IncidentTracker("job", CONFIG)
    other.resume(closed)
    assert other.join([found], {}, story.window(12.0)) == []
    (over,) = other.end(START_S + 900.0)
    assert not over.wants_action


def test_a_job_that_nobody_hears_of_any_more_leaves_nothing_open() -> None:
    story = Story()
    story.at(0.0, candidate("out_of_memory", 1), candidate("nic_down", 1))
    assert [(one.state, one.closed_at_s) for one in story.joiner.end(START_S + 9.0)] == [("closed", START_S + 9.0)] * 2
    assert story.joiner.open == []


@pytest.mark.parametrize(("after_s", "incidents"), [(-1.0, 1), (0.5, 2)])
def test_an_incident_of_slowness_lends_a_rank_that_is_named_later_no_beginning(after_s: float, incidents: int) -> None:
    """What was open before the rank became slow is another problem; what was not is the same one, better known."""
    story = Story()
    (first,) = story.at(0.0, candidate("slow_job", onset_s=START_S - 30.0))
    named = candidate("slow_compute", 1, onset_s=START_S + after_s)
    (told,) = story.at(1.0, named)
    assert len({first.id, told.id}) == incidents
    assert told.onset_s == START_S + after_s
    ended = [one.id for one in story.at(3.5, named) if one.state == "closed"]
    assert ended == [first.id] * (incidents - 1)


LEAK = replace(candidate("memory_leak", 1, onset_s=START_S - 3600.0), metrics=("rank_anonymous_memory_bytes",))
OF_DEVICE = replace(LEAK, metrics=("gpu_memory_used_bytes",))
NO_MEMORY = candidate("out_of_memory", 1, onset_s=START_S + 5.0, hard=True)
KILLED = replace(candidate("crash", 1, onset_s=START_S + 5.0, hard=True), reason="rank 1 was killed by SIGKILL")


@pytest.mark.parametrize(("leak", "end"), [
    (LEAK, NO_MEMORY), (LEAK, KILLED),
    (OF_DEVICE, candidate("cuda_out_of_memory", 1, onset_s=START_S + 5.0, hard=True)),
])  # fmt: skip
def test_what_a_leak_ends_in_is_one_incident_with_it(leak: Candidate, end: Candidate) -> None:
    """However long it took; what the other ranks say of that end is part of it, too."""
    story = Story()
    story.progress(0.0)
    story.at(0.0, leak)
    story.progress(5.0)
    (ended,) = story.at(6.0, end, leak)
    assert (ended.kind, ended.severity, ended.state) == ("memory_leak", "sev2", "updated")
    assert ended.evidence["followed"] == [f"{end.kind}: {end.reason}"]
    story.at(7.0, candidate("hang", 0, onset_s=START_S + 5.5))
    story.at(8.0, candidate("exception", 0, onset_s=START_S + 6.0, hard=True))
    assert {one.id for one in story.told} == {ended.id}


@pytest.mark.parametrize(("leak", "end"), [
    (LEAK, candidate("out_of_memory", 0, onset_s=START_S + 5.0, hard=True)),
    (LEAK, candidate("exception", 1, onset_s=START_S + 5.0, hard=True)),
    (LEAK, candidate("crash", 1, onset_s=START_S + 5.0, hard=True)),
    (LEAK, candidate("cuda_out_of_memory", 1, onset_s=START_S + 5.0, hard=True)),
    (OF_DEVICE, NO_MEMORY),
])  # fmt: skip
def test_what_a_leak_does_not_explain_is_an_incident_of_its_own(leak: Candidate, end: Candidate) -> None:
    story = Story()
    story.at(0.0, leak)
    assert [one.kind for one in story.at(6.0, end, leak) if one.state == "opened"] == [end.kind]


def test_a_leak_that_is_known_after_the_end_is_its_root() -> None:
    story = Story()
    story.at(5.0, NO_MEMORY)
    (root,) = story.at(6.0, NO_MEMORY, LEAK)
    assert (root.kind, root.severity, root.onset_s) == ("memory_leak", "sev2", LEAK.onset_s)
    assert root.evidence["followed"] == ["out_of_memory: because out_of_memory"]
    assert story.at(7.0, NO_MEMORY, LEAK) == []


def test_a_leak_that_is_over_explains_no_later_end() -> None:
    story = Story()
    story.at(0.0, LEAK)
    assert [one.state for one in story.at(4.0)] == ["closed"]
    assert [one.kind for one in story.at(6.0, NO_MEMORY)] == ["out_of_memory"]


@pytest.mark.parametrize(("after_s", "kinds"), [(1800.0, {"memory_leak"}), (2000.0, {"memory_leak", "exception"})])
def test_what_fails_long_after_a_leak_has_ended_its_rank_is_an_incident_of_its_own(
    after_s: float, kinds: set[str]
) -> None:
    story = Story()
    story.at(0.0, LEAK)
    story.at(6.0, NO_MEMORY, LEAK)
    story.at(after_s, LEAK, candidate("exception", 0, onset_s=START_S + after_s, hard=True))
    assert {one.kind for one in story.told} == kinds


def test_a_leak_that_has_only_made_the_job_slow_has_ended_no_rank() -> None:
    story = Story()
    story.at(0.0, LEAK)
    slow = candidate("slow_compute", 1, onset_s=LEAK.onset_s or 0.0)
    (told,) = story.at(1.0, slow, LEAK)
    assert told.evidence["followed"]
    (other,) = story.at(2.0, LEAK, candidate("exception", 0, onset_s=START_S + 2.0, hard=True))
    assert (other.kind, other.state) == ("exception", "opened")


def test_a_leak_may_end_its_rank_again() -> None:
    """Also days later, and then others fail of that end."""
    story = Story()
    story.at(0.0, LEAK)
    story.at(6.0, NO_MEMORY, LEAK)
    story.at(9000.0, replace(NO_MEMORY, onset_s=START_S + 9000.0), LEAK)
    story.at(9001.0, LEAK, candidate("exception", 0, onset_s=START_S + 9001.0, hard=True))
    assert {one.kind for one in story.told} == {"memory_leak"}


def test_of_a_leak_that_has_ended_all_ranks_the_restart_is_wanted() -> None:
    story = Story()
    all_gone(story, LEAK)
    story.at(2.0, NO_MEMORY, LEAK)
    (closed,) = (one for one in story.at(12.0, NO_MEMORY, LEAK) if one.state == "closed")
    assert closed.unresolved


def test_a_leak_whose_ranks_have_ended_is_not_told_again_with_another_beginning() -> None:
    story = Story()
    all_gone(story, LEAK)
    story.at(3.0, LEAK)
    closed = [one for one in story.at(12.0, LEAK) if one.state == "closed"]
    assert [one.kind for one in closed] == ["memory_leak"]
    assert story.at(13.0, replace(LEAK, onset_s=START_S - 1800.0)) == []
    again = story.at(1900.0, replace(LEAK, onset_s=START_S + 1895.0))  # in a job without heartbeats nobody ever lives
    assert again[0].state == "opened"


@pytest.mark.parametrize(("stood_s", "known_s", "problems"), [(2.0, 40.0, 1), (90.0, 130.0, 2)])
def test_a_hang_that_is_known_long_after_the_node_was_lost_is_its_echo(
    stood_s: float, known_s: float, problems: int
) -> None:
    story = Story()
    lost = replace(
        candidate("node_lost", onset_s=START_S, hard=True), suspects=(Suspect(score=1.0, reason="", node="n7"),)
    )
    hang = replace(candidate("hang", onset_s=START_S + stood_s), suspects=())
    story.at(5.0, lost)
    story.at(known_s, lost, hang)
    assert len({one.id for one in story.told}) == problems
