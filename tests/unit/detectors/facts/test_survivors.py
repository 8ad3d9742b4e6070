"""A rank that died, whose launcher starts it again alone while the others go on with the step."""

from __future__ import annotations

import pytest

from tests.unit.detectors.detection_streams import START_S, Job, Run, event
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
        self.state.feed(event("process_exit", START_S + 10.0, 1, **{"signal": "SIGKILL", **end}))

    def steps(self, count: int, since_s: float, *, first: int = 0, life: int = 0, without: int | None = None) -> None:
        """All ranks make steps, or those `without` one."""
        job = Job(ranks=3, step_s=0.2, life=life)
        for _, record in job.run(count, first=first, start_s=START_S + since_s).records:
            if without is None or without != getattr(record, "rank", None):
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
    story.steps(40, 10.5, first=50, without=1)
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


def test_the_words_of_a_rank_that_come_after_its_exit_change_nothing_of_how_the_others_went_on() -> None:
    story = Story(renewed=True, signal=None, code=1)
    story.vote_at(10.1)
    story.transition(10.3, "rank 1 died, and 2 ranks finished step 9", DIED)
    assert story.vote_at(10.4).kind == "crash"
    story.state.feed(event("exception", START_S + 9.99, 1, message="ValueError: boom"))
    told = story.vote_at(10.6)
    assert (told.kind, told.evidence["renewed"]) == ("exception", True)
    assert told.evidence["survived"] == ["rank 1 died, and 2 ranks finished step 9"]
    assert told.evidence["transition_seconds"]["again"] == 0.3
    story.steps(40, 10.5, first=50, without=1)
    assert story.vote_at(18.5).opinion == "anomalous"
    story.transition(19.0, "rank 1 joined at step 40", JOINED)
    assert story.vote_at(19.1).evidence["survived"][1:] == ["rank 1 joined at step 40"]
    assert story.vote_at(19.6).opinion == "normal"


def test_where_nobody_says_that_the_rank_has_joined_its_own_steps_do() -> None:
    """A full disk has lost that line."""
    story = Story(renewed=True)
    story.vote_at(10.1)
    story.steps(40, 10.5, first=50, without=1)
    story.state.feed(event("process_start", START_S + 17.0, 1, life=1))
    story.steps(5, 19.0, first=90, life=1)
    assert story.vote_at(20.2).opinion == "anomalous"  # the line may still be on its way
    story.steps(15, 20.0, first=95, life=1)
    assert story.vote_at(23.2).opinion == "normal"


def test_where_another_rank_is_started_too_all_begin_anew() -> None:
    """Their torchrun was killed meanwhile, and the scheduler has started it again."""
    story = Story(renewed=True)
    story.vote_at(10.1)
    story.state.feed(event("process_start", START_S + 60.0, 1, life=1))
    assert story.vote_at(60.1).opinion == "anomalous"
    story.state.feed(event("process_start", START_S + 60.0, 0, life=1))
    assert story.vote_at(60.2).opinion == "normal"


def test_of_two_ranks_that_died_each_is_waited_for() -> None:
    story = Story(renewed=True)
    story.state.feed(event("process_exit", START_S + 10.0, 2, signal="SIGKILL", renewed=True))
    assert len(story.vote_at(10.1).suspects) == 2
    story.state.feed(event("process_start", START_S + 17.0, 1, life=1))
    story.transition(19.0, "rank 1 joined at step 40", JOINED)
    story.vote_at(19.1)
    assert [suspect.rank for suspect in story.vote_at(19.6).suspects] == [2]


def test_who_died_again_after_it_had_joined_is_waited_for() -> None:
    story = Story(renewed=True)
    story.vote_at(10.1)
    story.state.feed(event("process_start", START_S + 17.0, 1, life=1))
    story.state.feed(event("process_exit", START_S + 19.2, 1, life=1, signal="SIGKILL", renewed=True))
    story.vote_at(19.3)
    story.transition(19.0, "rank 1 joined at step 40", JOINED)
    assert story.vote_at(19.5).evidence["survived"] == ["rank 1 joined at step 40"]
    told = story.vote_at(22.0)
    assert (told.opinion, told.onset_s, told.evidence["survived"]) == ("anomalous", START_S + 19.2, [])


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


@pytest.mark.thorough
def test_survivors_that_stand_still_later_are_a_hang_of_their_own() -> None:
    """While they go on without a rank nothing is asked for that, and would not be for a hang that is one with it."""
    before = Job(ranks=3, step_s=0.2).run(50)
    died_s = before.end_s + 0.05
    after = Job(ranks=2, step_s=0.2).run(40, first=50, start_s=died_s + 4.0)
    for tenth in range(1, 40):  # they wait for it meanwhile
        after.beat(died_s + tenth / 10, 50, phase="wait", calls=100)
    for tenth in range(100):
        after.beat(after.end_s + tenth / 10, 90, phase="wait", calls=180)
    after.add(died_s, event("process_exit", died_s, 2, signal="SIGKILL", renewed=True))
    message, at_s = "rank 2 died, and 2 ranks finished step 50", after.ends_s[0]
    after.add(at_s, event("transition", at_s, 0, **{**DIED, "gone": "2"}, message=message))
    run = Run().play([*before.records, *after.records], after.end_s)
    assert [one.kind for one in run.incidents] == ["crash"]
    run.play([one for one in after.records if one[0] > after.end_s], after.end_s + 9.0)
    assert [(one.kind, one.wants_action) for one in run.incidents] == [("crash", True), ("hang", True)]
    assert run.incidents[0].evidence["survived"] == [message]
