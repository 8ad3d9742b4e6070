"""A rank that died, whose launcher starts it again alone while the others go on with the step."""

from __future__ import annotations

from tests.unit.detectors.detection_streams import START_S, Job, event
from trainwarden.detectors.facts.hard_event import HardEvent, HardEventConfig
from trainwarden.detectors.job.state import JobState
from trainwarden.records import Vote

DIED = {"step": 9, "ranks": 2, "gone": "1", "members_s": 0.1, "group_s": 0.02, "state_s": 0.01, "again_s": 0.3}
JOINED = {"step": 40, "ranks": 3, "joined": "1", "source": "0", "members_s": 0.05, "group_s": 0.02, "state_s": 0.5}


class Story:
    """A job of three ranks that makes five steps a second, whose rank 1 dies after ten seconds."""

    def __init__(self, **end: object) -> None:
        self.state, self.facts = JobState("job"), HardEvent(HardEventConfig())
        self.steps(50, 0.0)
        self.vote_at(10.0)
        self.state.feed(event("process_exit", START_S + 10.0, 1, signal="SIGKILL", **end))

    def steps(self, count: int, since_s: float) -> None:
        for _, record in Job(ranks=3, step_s=0.2).run(count, start_s=START_S + since_s).records:
            self.state.feed(record)

    def transition(self, after_s: float, message: str, fields: dict[str, object]) -> None:
        self.state.feed(event("transition", START_S + after_s, 0, **fields, message=message))

    def vote_at(self, after_s: float) -> Vote:
        window = self.state.window(START_S + after_s)
        self.facts.update(window)
        return self.facts.score(window)


def test_the_incident_lasts_until_the_rank_has_joined_and_says_how_the_others_went_on() -> None:
    story = Story(renewed=True)
    died = story.vote_at(10.1)
    assert (died.kind, died.suspects[0].rank, died.evidence["renewed"], died.evidence["survived"]) == (
        "crash", 1, True, [],
    )  # fmt: skip
    story.transition(10.4, "rank 1 died, and 2 ranks finished step 9", DIED)
    assert story.vote_at(10.5).evidence["survived"] == ["rank 1 died, and 2 ranks finished step 9"]
    story.steps(40, 10.5)
    story.state.feed(event("process_start", START_S + 17.0, 1, life=1))
    assert story.vote_at(18.5).opinion == "anomalous"
    story.transition(19.0, "rank 1 joined at step 40 with the state of rank 0", JOINED)
    last = story.vote_at(19.1)
    assert last.evidence["survived"][1] == "rank 1 joined at step 40 with the state of rank 0"
    assert last.evidence["transition_seconds"] == {"members": 0.15, "group": 0.04, "state": 0.51, "again": 0.3}
    assert story.vote_at(19.6).opinion == "normal"


def test_another_ranks_transition_ends_nothing() -> None:
    story = Story(renewed=True)
    story.vote_at(10.1)
    story.transition(10.4, "rank 2 joined at step 9", {**JOINED, "joined": "2"})
    assert story.vote_at(10.5).evidence["survived"] == []
    assert story.vote_at(11.5).opinion == "anomalous"


def test_where_all_are_started_again_after_all_that_ends_it() -> None:
    story = Story(renewed=True)
    story.vote_at(10.1)
    for stage in ("started", "done"):
        story.state.feed(event("restart", START_S + 12.0, stage=stage, attempt=1))
    assert story.vote_at(12.5).opinion == "normal"


def test_a_rank_that_nothing_is_said_of_is_outlived_by_the_steps_of_the_others() -> None:
    story = Story()
    assert "renewed" not in story.vote_at(10.1).evidence
    story.steps(40, 10.5)
    assert story.vote_at(18.5).opinion == "normal"
