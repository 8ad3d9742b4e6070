"""The log of actions: who, what, when, why, on what evidence, approved by whom."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.engine_doubles import Rig
from trainwarden.commands.builders import on_node
from trainwarden.commands.trust import Trust
from trainwarden.dashboards.explain.action_log import (
    ActionLog,
    entry_lines,
    entry_object,
    taken,
    word_line,
    word_object,
)
from trainwarden.dashboards.explain.launcher_operations import job_word_line, job_word_object
from trainwarden.launching import Capabilities
from trainwarden.records import CommandRecord, EventRecord, Suspect
from trainwarden.topics import ACTIONS, COMMANDS, INCIDENTS


def log_of(rig: Rig, **more: Any) -> ActionLog:
    """The log of all that is on the rig's bus, as `trainwarden actions` reads it."""
    return taken([m for topic in (INCIDENTS, COMMANDS, ACTIONS) for m in rig.bus.read(topic)], Trust(), **more)


def asked(mode: str = "confirm") -> Rig:
    """An eviction that a person is asked for."""
    rig = Rig(mode=mode)
    rig.launcher.able = Capabilities(can=frozenset({"evict"}))
    rig.launcher.phase = "running"
    suspects = (
        Suspect(score=1.0, reason="Xid 79", rank=2, node="n7"),
        Suspect(score=0.2, reason="beside it", node="n8"),
    )
    rig.tell(rig.incident("i1", "gpu_lost", suspects=suspects, votes={"hard_event": 1.0}, metrics=("gpu_ecc",)))
    return rig


def test_what_a_person_asked_for_names_that_person_and_no_incident() -> None:
    rig = Rig(mode="confirm")
    rig.launcher.able = Capabilities(can=frozenset({"cordon"}))
    rig.tell(on_node("cordon", "n0", "job", "ann", at_s=1000.0, why="its fan is loud"))
    log = log_of(rig)
    (entry,), (word,) = log.entries(), log.words()
    assert list(entry_lines(entry)) == [
        f"1970-01-01 00:16:40 UTC cordon_node of node n0 of job job is done ({word.command.id}/cordon/1)",
        "    why: its fan is loud",
        "    by: the engine, as ann had said",
        "    when: started 1970-01-01 00:16:40 UTC, done 1970-01-01 00:16:40 UTC",
    ]
    assert word_line(word) == "1970-01-01 00:16:40 UTC ann said cordon of job job, node n0: its fan is loud"
    told = entry_object(entry)
    assert (told["incident"], told["command"], told["by"]) == (None, word.command.id, "ann")


def test_who_what_when_why_on_what_evidence_and_approved_by_whom() -> None:
    rig = asked()
    rig.clock.sleep(5.0)
    rig.tell(rig.command("approve", "i1/evict/1"))
    (entry,) = log_of(rig).entries()
    digest = entry.action.plan_digest
    assert list(entry_lines(entry)) == [
        "1970-01-01 00:16:40 UTC evict_node of node n7 of job job is done (i1/evict/1)",
        "    why: gpu_lost: rank 2 was killed",
        "    severity: sev1",
        "    evidence: incident i1, gpu_lost (sev2) since 1970-01-01 00:16:40 UTC: rank 2 was killed",
        "        rank 2, node n7 (likely to 100%): Xid 79",
        "        node n8 (likely to 20%): beside it",
        "        votes: hard_event 1.00",
        "        metrics most blamed: gpu_ecc",
        f"    by: the engine, approved by someone at 1970-01-01 00:16:45 UTC (plan {digest})",
        "    when: proposed 1970-01-01 00:16:40 UTC, started 1970-01-01 00:16:45 UTC, done 1970-01-01 00:16:45 UTC",
    ]
    told = entry_object(entry)
    assert told["approved_by"] == "someone"
    assert told["word"] == {"kind": "approve", "by": "someone", "at_s": 1005.0, "signed_by": None}
    assert [(step["outcome"], step["at_s"]) for step in told["history"]] == [
        ("proposed", 1000.0), ("started", 1005.0), ("done", 1005.0),
    ]  # fmt: skip
    assert told["evidence"]["suspects"][0]["node"] == "n7"
    assert {"id", "incident", "kind", "outcome", "at_s", "finished_at_s", "plan", "why"} <= told.keys()


def by(rig: Rig) -> str:
    (entry,) = log_of(rig).entries()
    return next(line for line in entry_lines(entry) if line.startswith("    by: "))


def test_by_whom_is_said_of_every_kind_of_end() -> None:
    assert by(asked("auto")) == "    by: the engine, by itself"
    assert by(asked("observe")) == "    by: nobody; it is only shown"
    rig = asked()
    assert by(rig) == "    by: nobody yet; it waits for a word: trainwarden actions approve i1/evict/1"
    rig.tell(rig.command("deny", "i1/evict/1"))
    assert by(rig) == "    by: denied by someone at 1970-01-01 00:16:40 UTC"


def test_an_approval_of_another_plan_is_none() -> None:
    rig = asked()
    rig.tell(msgspec.structs.replace(rig.command("approve", "i1/evict/1"), plan_digest="0123"))
    assert "waits for a word" in by(rig)


def test_what_was_held_says_by_which_brake_and_until_when() -> None:
    rig = Rig(actions_per_hour=0, policy={"maintenance": [{"to_utc": "01:00"}]})
    rig.tell(rig.incident())
    (entry,) = log_of(rig).entries()
    assert "    why: maintenance; it may go ahead from 1970-01-01 01:00:00 UTC" in list(entry_lines(entry))
    assert by(rig) == "    by: nobody"


def test_words_that_are_about_more_than_one_action() -> None:
    rig = asked()
    rig.tell(
        rig.command("stop", job="*"),
        CommandRecord(id="s", job="*", at_s=2000.0, kind="silence", by="ann", until_s=3600.0, node="n7"),
        CommandRecord(id="l", job="a", at_s=3000.0, kind="latch", by="engine", why="2 nodes were taken out"),
    )
    words = log_of(rig).words()
    assert [word_line(word) for word in words] == [
        "1970-01-01 00:16:40 UTC someone said stop of all jobs",
        "1970-01-01 00:33:20 UTC ann said silence of all jobs, node n7 until 1970-01-01 01:00:00 UTC",
        "1970-01-01 00:50:00 UTC engine said latch of job a: 2 nodes were taken out",
    ]
    assert word_object(words[0])["job"] is None
    assert [word.command.kind for word in log_of(rig, job="b").words()] == ["stop", "silence"]


def test_the_same_record_twice_is_one_step_and_old_ones_can_be_left_out() -> None:
    rig = asked()
    messages = [m for topic in (INCIDENTS, ACTIONS) for m in rig.bus.read(topic)]
    assert len(taken([*messages, *messages], Trust()).entries()[0].records) == 1
    assert taken(messages, Trust(), since_s=1001.0).entries() == []
    assert taken(messages, Trust(), job="other").entries() == []


def test_what_others_wrote_is_shown_and_not_obeyed() -> None:
    rig = Rig()
    rig.tell(rig.incident(reason="\x1b[2J\nbye" + "x" * 100_000))
    (entry,) = log_of(rig).entries()
    for line in entry_lines(entry):
        assert line.isprintable()
        assert len(line) < 700


def test_an_action_whose_incident_is_gone_says_so() -> None:
    rig = asked()
    (entry,) = taken(rig.bus.read(ACTIONS), Trust()).entries()
    assert "    evidence: the incident is no longer kept" in list(entry_lines(entry))
    assert entry_object(entry)["evidence"] is None


def operation(name: str, stage: str, at_s: float, node: str = "n1", **fields: str) -> EventRecord:
    """What `node` tells of an operation that its job's launcher was asked for."""
    said = {"operation": name, "stage": stage, "verb": "pause", "by": "bob (act)", "why": "hot", **fields}
    of = f"operation/{name}/{stage}"
    return EventRecord(id=of, job="job", node=node, time_s=at_s, kind="operation", fields=dict(said))


def test_a_word_to_the_launcher_itself_is_told_once_with_who_when_and_why() -> None:
    log = ActionLog()
    for node, late_s in (("n2", 1.0), ("n1", 0.0), ("n3", 2.0)):
        log.apply(operation("o", "accepted", 1000.0 + late_s, node))
        log.apply(operation("o", "done", 1003.0 + late_s, node))
    log.apply(operation("p", "accepted", 1010.0, verb="evict", target="n7", by="", why=""))
    log.apply(EventRecord(id="x", job="job", node="n1", time_s=0.0, kind="restart", fields={"operation": "q"}))
    log.apply(EventRecord(id="x", job="job", node="n1", time_s=0.0, kind="operation", fields={"operation": 3}))
    asked = log.asked_of_launchers()
    assert [job_word_line(one) for one in asked] == [
        "1970-01-01 00:16:40 UTC bob (act) asked the launcher of job job to pause: hot (done 1970-01-01 00:16:43 UTC)",
        "1970-01-01 00:16:50 UTC somebody without a name asked the launcher of job job to evict node n7"
        " (not seen done)",
    ]
    told = job_word_object(asked[0])
    assert (told["by"], told["kind"], told["done_at_s"], told["operation"]) == ("bob (act)", "pause", 1003.0, "o")
    log.forget(1005.0)
    assert [one.field("operation") for one in log.asked_of_launchers()] == ["p"]


def test_what_an_engine_asked_of_a_launcher_is_told_by_its_action_alone() -> None:
    rig = asked()
    log = log_of(rig)
    log.apply(operation("i1/evict/1", "accepted", 1000.0, verb="evict", target="n7", by="engine"))
    assert len(log.entries()) == 1
    assert log.asked_of_launchers() == []
