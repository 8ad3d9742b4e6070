"""Leases, each protection by the story that needs it. Times are seconds of one clock; a lease is for six."""

from __future__ import annotations

from actions.launchers.leases.elector import LeaderElector
from actions.launchers.leases.fence import Allegiance, EpochFence
from actions.launchers.leases.table import MOST_JOBS, LeaseTable
from actions.launchers.leases.words import Answer, Ask, Lease


def table(now_s: float = -6.0) -> LeaseTable:
    """A service; by default one that was there long before the story begins."""
    return LeaseTable(6.0, now_s)


def launcher(name: str) -> LeaderElector:
    return LeaderElector("job", name, f"{name}:7000")


def exchange(one: LeaderElector, service: LeaseTable, now_s: float, *, answer_s: float | None = None) -> Answer:
    """A question at `now_s`, answered at once; the answer comes at `answer_s`."""
    answer = service.answer(one.ask(now_s), now_s)
    one.hear(answer, sent_s=now_s, now_s=now_s if answer_s is None else answer_s)
    return answer


def epoch(one: LeaderElector) -> int:
    assert one.newest is not None
    return one.newest.epoch


def test_the_first_leads_the_others_learn_where_it_is_and_wait():
    service, first, second = table(), launcher("a"), launcher("b")
    exchange(first, service, 0.0)
    answer = exchange(second, service, 1.0)
    assert (first.leads(1.0), second.leads(1.0)) == (True, False)
    assert second.newest is not None
    assert (second.newest.address, answer.wait_s) == ("a:7000", 5.0)


def test_a_leader_that_renews_goes_on_under_the_same_epoch():
    service, first = table(), launcher("a")
    for now_s in range(20):
        exchange(first, service, float(now_s))
    assert first.leads(20.0)
    assert epoch(first) == 1


def test_a_leader_that_is_gone_is_followed_after_one_duration():
    service, first, second = table(), launcher("a"), launcher("b")
    exchange(first, service, 0.0)
    exchange(second, service, 5.9)
    assert not second.leads(5.9)
    exchange(second, service, 6.0)
    assert second.leads(6.0)
    assert not first.leads(6.0)
    assert epoch(second) == 2


def test_who_resigns_is_followed_at_once():
    service, first, second = table(), launcher("a"), launcher("b")
    exchange(first, service, 0.0)
    said = first.resign(1.0)
    assert said is not None
    assert not first.leads(1.0)
    service.answer(said, 1.0)
    exchange(second, service, 1.0)
    assert second.leads(1.0)
    assert first.resign(1.1) is None


def test_a_resignation_that_comes_late_ends_nobody_elses_lease():
    service, first, second, third = table(), launcher("a"), launcher("b"), launcher("c")
    exchange(first, service, 0.0)
    late = first.resign(3.0)
    exchange(second, service, 6.0)
    assert late is not None
    service.answer(late, 7.0)
    exchange(third, service, 7.0)
    assert second.leads(7.0)
    assert not third.leads(7.0)


def test_a_resignation_that_comes_late_ends_no_later_lease_of_the_same_launcher():
    service, first, second = table(), launcher("a"), launcher("b")
    exchange(first, service, 0.0)
    late = first.resign(1.0)
    exchange(first, service, 1.1)
    assert late is not None
    service.answer(late, 1.2)
    exchange(second, service, 1.3)
    assert first.leads(1.3)
    assert not second.leads(1.3)


def test_a_service_that_begins_anew_keeps_the_leader_and_grants_nobody_else_a_lease():
    """The leader does not notice; who asks before it does not get in."""
    first, second = launcher("a"), launcher("b")
    exchange(first, table(), 0.0)
    service = table(1.0)
    assert exchange(second, service, 1.1).wait_s > 5.8
    exchange(first, service, 1.2)
    exchange(second, service, 7.1)
    assert not second.leads(7.1)
    assert epoch(first) == 1
    assert first.leads(5.1)


def test_a_service_that_begins_anew_after_the_leader_is_gone_grants_the_next_epoch_after_one_duration():
    """By what the next one carries, or has heard of a node alone."""
    first, second, third = launcher("a"), launcher("b"), launcher("c")
    before = table()
    exchange(first, before, 0.0)
    exchange(second, before, 0.5)
    service = table(1.0)
    exchange(second, service, 6.9)
    assert not second.leads(6.9)
    exchange(second, service, 7.0)
    assert second.leads(7.0)
    assert epoch(second) == 2
    again = table(20.0)
    third.fenced(2)
    exchange(third, again, 26.0)
    assert epoch(third) == 3


def test_a_lease_counts_from_when_it_was_asked_for():
    """The answer was four seconds under way: the service lets the next one in when six are over since it answered."""
    service, first, second = table(), launcher("a"), launcher("b")
    exchange(first, service, 0.0, answer_s=3.9)
    assert first.leads(3.9)
    assert not first.leads(4.0)
    exchange(second, service, 6.0)
    assert second.leads(6.0)


def test_a_renewal_that_comes_after_the_end_is_none():
    """Its question was under way while another one led, and came to a service that knew nothing of that one."""
    before, first, second = table(), launcher("a"), launcher("b")
    exchange(first, before, 0.0)
    question = first.ask(3.9)
    exchange(second, before, 6.0)
    service = table(6.1)
    answer = service.answer(question, 6.2)
    assert answer.granted
    first.hear(answer, sent_s=3.9, now_s=6.3)
    assert not first.leads(6.3)
    exchange(second, service, 6.4)
    assert second.leads(9.9), "its epoch is higher than what the service believed"
    exchange(first, service, 6.5)
    assert not first.leads(6.5)


def test_who_was_led_by_a_higher_epoch_holds_nothing_by_a_lower_one():
    service, first, second = table(), launcher("a"), launcher("b")
    exchange(first, service, 0.0)
    question = first.ask(3.9)
    exchange(second, service, 6.0)
    answer = service.answer(question, 6.1)
    assert not answer.granted
    exchange(second, service, 6.2)
    assert second.leads(10.1)


def test_a_leader_whom_a_node_refuses_stops_and_comes_back_with_a_higher_epoch():
    service, first = table(), launcher("a")
    exchange(first, service, 0.0)
    first.fenced(7)
    assert not first.leads(0.1)
    exchange(first, service, 0.2)
    assert first.leads(0.2)
    assert epoch(first) == 8


def test_an_answer_that_was_overtaken_changes_nothing():
    service, first = table(), launcher("a")
    old = service.answer(first.ask(0.0), 0.0)
    exchange(first, service, 0.1)
    assert epoch(first) == 2
    first.hear(old, sent_s=0.0, now_s=0.2)
    assert epoch(first) == 2
    assert first.leads(4.0)


def test_another_process_of_the_node_is_another_holder():
    """What the one before it led is over when its time is, though nobody knows that it is gone."""
    service = table()
    exchange(launcher("n0/1"), service, 0.0)
    second = launcher("n0/2")
    exchange(second, service, 0.1)
    assert not second.leads(0.1)


def test_a_question_about_another_job_teaches_nothing_of_this_one():
    service, first = table(), launcher("a")
    exchange(first, service, 0.0)
    wrong = Ask(job="other", holder="b", carried=first.newest)
    assert service.answer(wrong, 0.1).lease.epoch == 1  # type: ignore[union-attr]


def test_to_look_gets_nobody_a_lease():
    service, first = table(), launcher("a")
    answer = service.answer(first.ask(0.0, stand=False), 0.0)
    assert (answer.granted, answer.lease) == (False, None)


def test_a_service_that_is_asked_for_ever_new_jobs_forgets_those_that_are_over():
    service = table()
    for number in range(MOST_JOBS + 10):
        service.answer(Ask(job=f"{number}", holder="a"), number / 1000)
    assert len(service.standing(10.0)) <= MOST_JOBS
    assert service.answer(Ask(job="0", holder="b", seen_epoch=1), 10.0).lease.epoch == 2  # type: ignore[union-attr]


def test_a_node_obeys_no_lower_epoch_and_one_holder_of_each():
    fence = EpochFence()
    assert fence.admit(Allegiance(epoch=2, holder="a"), left_s=0.0, now_s=0.0)
    assert not fence.admit(Allegiance(epoch=1, holder="b"), left_s=9.0, now_s=5.0)
    assert not fence.admit(Allegiance(epoch=2, holder="b"), left_s=9.0, now_s=5.0)
    assert fence.admit(Allegiance(epoch=2, holder="a"), left_s=0.0, now_s=5.0)


def test_a_node_leaves_a_leader_only_when_it_is_silent_or_says_farewell():
    fence = EpochFence()
    fence.admit(Allegiance(epoch=2, holder="a"), left_s=4.0, now_s=0.0)
    other = Allegiance(epoch=3, holder="b")
    assert not fence.admit(other, left_s=4.0, now_s=3.9)
    fence.farewell(Allegiance(epoch=1, holder="x"))
    assert not fence.admit(other, left_s=4.0, now_s=3.9)
    fence.farewell(Allegiance(epoch=2, holder="a"))
    assert fence.admit(other, left_s=4.0, now_s=3.9)


def test_a_leader_may_raise_its_own_epoch_at_any_time():
    fence = EpochFence(Allegiance(epoch=2, holder="a"))
    fence.admit(Allegiance(epoch=2, holder="a"), left_s=4.0, now_s=0.0)
    assert fence.admit(Allegiance(epoch=3, holder="a"), left_s=4.0, now_s=0.1)
    assert fence.allegiance == Allegiance(epoch=3, holder="a")


def test_who_led_before_the_service_began_anew_is_granted_nothing_beside_who_leads_now() -> None:
    """And who leads now, and knew of no epoch, is given one that those who know of a higher one obey."""
    table = LeaseTable(6.0, now_s=0.0)
    fresh, before = LeaderElector("j", "b", ""), LeaderElector("j", "a", "")
    old = Lease(job="j", holder="a", address="", epoch=4, duration_s=6.0)
    before.hear(Answer(granted=True, lease=old), sent_s=0.0, now_s=0.0)
    for asks, now_s in ((fresh, 7.0), (before, 8.0), (before, 8.5), (fresh, 9.0), (before, 9.5)):
        asks.hear(table.answer(asks.ask(now_s), now_s), sent_s=now_s, now_s=now_s)
        assert not (fresh.leads(now_s) and before.leads(now_s))
    assert fresh.leads(9.5)
    assert fresh.newest is not None
    assert fresh.newest.epoch == 5
    assert before.newest == fresh.newest
