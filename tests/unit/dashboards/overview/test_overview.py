"""What the overview knows follows from what is on the bus, however often it is read."""

from __future__ import annotations

import threading

import msgspec
import pytest

from tests.doubles import ManualClock
from tests.web_doubles import NOW_S, Web, action, heartbeat, incident, verdict
from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.commands.keys import Trusted, new_signer
from trainwarden.commands.trust import Trust
from trainwarden.dashboards.overview.overview import FORGET_NODE_S, FORGET_S, MAX_JOBS, Overview
from trainwarden.dashboards.page.views import job_line
from trainwarden.dashboards.web.reads import job_object
from trainwarden.parallelism.claim import Claim, event_fields
from trainwarden.protocols import Message
from trainwarden.records import CommandRecord, EventRecord, IterationRecord, TaskRecord, TaskStatus
from trainwarden.self_metrics import SelfMetrics
from trainwarden.service_loop import ServiceLoop
from trainwarden.topics import ACTIONS, INCIDENTS, ITERATIONS, TASKS, VERDICTS, topic_of

PATIENCE_S = 60.0  # of whoever waits for a thread


def command(kind: str, job: str = "*", **more: str | float) -> CommandRecord:
    return CommandRecord(id=f"c/{kind}", job=job, at_s=NOW_S, kind=kind, by="somebody", **more)  # type: ignore[arg-type]


@pytest.fixture
def web():
    return Web()


def test_a_record_that_comes_twice_counts_once():
    overview = Overview(ManualClock(NOW_S))
    records = [incident(), action(), action(outcome="done"), verdict(), command("stop")]
    messages = [
        Message(topic_of(one).name, 0, number, NOW_S, "j", one) for number, one in enumerate([*records, *records[:1]])
    ]
    overview.handle(messages)
    news = overview.news
    overview.handle(messages)
    job = overview.jobs["j"]
    assert (overview.news, dict(job.incidents_total)) == (news, {("hang", "sev2"): 1})
    assert dict(job.actions_total) == {("restart_process", "proposed"): 1, ("restart_process", "done"): 1}


def test_words_that_do_not_count_stop_silence_and_approve_nothing():
    ann = new_signer("ann")
    overview = Overview(ManualClock(NOW_S), Trust([Trusted("ann", frozenset({"stop", "act"}), ann.public)]))
    words = [command("stop"), command("approve", action="a"), command("silence", until_s=2 * NOW_S)]
    messages = [Message("trainwarden.commands", 0, n, NOW_S, "*", one) for n, one in enumerate(words)]
    overview.handle(messages)
    assert (overview.stopped_by(), overview.said, overview.silences.standing(NOW_S)) == (None, {}, [])
    stop = ann.sign(msgspec.structs.replace(command("stop"), by="ann"), NOW_S)
    overview.handle([Message("trainwarden.commands", 0, 3, NOW_S, "*", stop)])
    assert overview.stopped_by() == "ann"


def test_a_word_that_does_not_count_makes_no_node_well():
    bob, plan = new_signer("bob"), {"nodes": ["n7"]}
    overview = Overview(ManualClock(NOW_S), Trust([Trusted("bob", frozenset({"act"}), bob.public)]))
    out = action("i1/evict/1", kind="evict_node", outcome="done", plan=plan, finished_at_s=NOW_S)
    well = command("set_healthy", node="n7")
    overview.handle([
        Message("trainwarden.actions", 0, 0, NOW_S, "j", out),
        Message("trainwarden.commands", 0, 0, NOW_S + 1.0, "*", well),
    ])  # fmt: skip
    assert [one["state"] for one in overview.nodes.objects(NOW_S)] == ["cordoned"]
    signed = bob.sign(msgspec.structs.replace(well, by="bob"), NOW_S)
    overview.handle([Message("trainwarden.commands", 0, 1, NOW_S + 1.0, "*", signed)])
    assert [one["state"] for one in overview.nodes.objects(NOW_S)] == ["healthy"]


def test_partitions_have_offsets_of_their_own():
    overview = Overview(ManualClock(NOW_S))
    for partition in (1, 0):
        one = incident(f"i{partition}")
        overview.handle([Message("trainwarden.incidents", partition, 0, NOW_S, "j", one)])
    assert sorted(overview.jobs["j"].incidents) == ["i0", "i1"]


def test_an_older_revision_does_not_come_back(web):
    web.tell(incident(revision=2, state="closed", closed_at_s=NOW_S), incident(revision=1))
    assert web.overview.jobs["j"].open_incidents() == []


def test_only_what_has_a_digest_waits_for_a_word(web):
    web.tell(incident(), action("a1"), action("a2", plan_digest=None), action("a3", outcome="skipped"))
    assert [one.id for one in web.overview.jobs["j"].waiting()] == ["a1"]


def test_a_stop_for_one_job_and_for_all(web):
    web.tell(command("stop"))
    assert (web.overview.stopped_by("j"), web.overview.stopped_by()) == ("somebody", "somebody")
    web.tell(command("resume"), command("stop", "j"))
    assert (web.overview.stopped_by("j"), web.overview.stopped_by("k"), web.overview.stopped_by()) == (
        "somebody", None, None,
    )  # fmt: skip


def test_a_stop_of_all_holds_whatever_is_said_of_one_job(web):
    """As the engine has it."""
    web.tell(command("stop"), command("resume", "j"))
    assert (web.overview.stopped_by("j"), web.overview.stopped_by("k")) == ("somebody", "somebody")


def test_a_listener_hears_what_is_new_until_it_goes(web):
    heard = []
    leave = web.overview.listen(heard.append)
    web.tell(incident(), incident(), heartbeat())
    leave()
    web.tell(incident("i2"))
    assert [one.id for one in heard] == ["i1"]


def test_silent_jobs_and_nodes_go_and_open_incidents_stay(web):
    web.tell(heartbeat(job="silent"), heartbeat("old", job="j"), incident(job="ill", updated_at_s=NOW_S))
    web.clock.sleep(FORGET_NODE_S + 60.0)
    web.tell(heartbeat("new", job="j"))
    assert list(web.overview.jobs["j"].nodes) == ["new"]
    web.clock.sleep(FORGET_S)
    web.tell(heartbeat("new", job="j"))
    assert sorted(web.overview.jobs) == ["ill", "j"]


def test_of_too_many_jobs_the_longest_silent_go(web):
    beats = [heartbeat(job=f"j{number}") for number in range(MAX_JOBS + 5)]
    web.overview.handle(
        [
            Message("trainwarden.heartbeats", 0, number, NOW_S + number / 100, "j", beat)
            for number, beat in enumerate(beats)
        ]
    )
    web.overview.tick(NOW_S + 60.0)
    assert len(web.overview.jobs) == MAX_JOBS
    assert "j4" not in web.overview.jobs
    assert "j5" in web.overview.jobs


def test_what_was_there_before_is_read_and_what_is_old_of_the_rest_is_not(tmp_path):
    """Incidents and actions whole, steps from half an hour ago; by the loop and a real bus."""
    clock = ManualClock(NOW_S)
    bus = EmbeddedBus(str(tmp_path / "bus.db"), clock=clock)
    try:
        bus.publish(INCIDENTS, "j", incident())
        bus.publish(VERDICTS, "j", verdict(NOW_S))
        bus.flush()
        clock.sleep(7_200.0)
        step = IterationRecord(
            job="j", node="n", rank=0, incarnation="a", steps=(1,), end_s=(clock.now_s(),), duration_s=(1.0,)
        )
        bus.publish(ITERATIONS, "j", step)
        bus.publish(ACTIONS, "j", action())
        bus.flush()
        overview = Overview(clock)
        loop = ServiceLoop(bus, overview, clock, SelfMetrics("serve"), poll_timeout_s=0.0)
        for _ in range(4):
            loop.step()
        job = overview.jobs["j"]
        assert (list(job.incidents), list(job.actions), job.verdict) == (["i1"], ["i1/restart_process/1"], None)
        assert (job.pace.ranks, overview.ready) == ([0], True)
    finally:
        bus.close()


def test_who_asks_waits_for_a_few_records_and_not_for_all():
    """Somebody else gets the lock in the middle of a long history."""
    inside, told = threading.Event(), threading.Event()

    class Pausing(ManualClock):
        def sleep(self, seconds: float) -> None:
            inside.set()
            assert told.wait(PATIENCE_S)

    overview = Overview(Pausing(NOW_S))
    messages = (Message("t", 0, number, NOW_S, "j", incident(f"i{number}")) for number in range(1_000))
    feeder = threading.Thread(target=overview.handle, args=(messages,))
    feeder.start()
    assert inside.wait(PATIENCE_S)
    assert overview.lock.acquire(timeout=PATIENCE_S)
    some = len(overview.jobs["j"].incidents)
    overview.lock.release()
    told.set()
    feeder.join(PATIENCE_S)
    assert 0 < some < len(overview.jobs["j"].incidents) == 1_000


def test_a_layout_is_shown_and_its_repeats_push_no_event_out(web):
    web.tell(EventRecord(id="x", job="j", node="n", time_s=NOW_S, kind="xid"))
    claim = Claim(source="arguments", framework="Megatron", world_size=8, started_s=NOW_S, tp=2, cp=1, pp=2)
    job = web.overview.jobs["j"]
    assert job_object(job, NOW_S)["layout"] is None
    fields = event_fields(claim)
    said = EventRecord(id="e", job="j", node="n", time_s=NOW_S, kind="parallel_layout", rank=0, fields=fields)
    for _ in range(3000):
        web.tell(said)
    assert [event.kind for event in job.events] == ["xid"]
    assert job_object(job, NOW_S)["layout"] == "tp 2 x pp 2 x dp 2; from Megatron arguments"
    assert job_line(job, NOW_S)["layout"] == job_object(job, NOW_S)["layout"]


def of_the_coordinator(number: int, at_s: float) -> Message:
    task = TaskRecord(id="a", job="a", at_s=at_s, maximum=2, status=TaskStatus())
    return Message("trainwarden.tasks", 0, number, at_s, "a", task)


def test_when_the_coordinator_was_heard_does_not_hang_on_its_clock():
    overview = Overview(ManualClock(NOW_S))
    overview.ready = True
    overview.handle([of_the_coordinator(0, NOW_S - 90.0)])
    assert overview.coordinator_s == NOW_S
    overview.handle([of_the_coordinator(1, NOW_S + 3600.0)])
    assert overview.coordinator_s == NOW_S


@pytest.mark.parametrize(("before_s", "known"), [(1900.0, True), (FORGET_NODE_S + 1.0, False)])
def test_a_coordinator_that_is_away_for_long_is_known_to_a_new_overview_for_a_day(tmp_path, before_s, known):
    clock = ManualClock(NOW_S - before_s)
    bus = EmbeddedBus(str(tmp_path / "bus.db"), clock=clock)
    bus.publish(TASKS, "a", of_the_coordinator(0, clock.now_s()).record)
    bus.flush()
    clock.sleep(before_s)
    overview = Overview(clock)
    overview.start(bus, bus.consumer(overview.topics, overview.group))
    assert (overview.coordinator_s == NOW_S - before_s, [*overview.tasks] == ["a"]) == (known, known)
    bus.close()
