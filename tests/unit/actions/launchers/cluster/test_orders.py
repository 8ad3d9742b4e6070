"""A node's side, by the stories that need it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from actions.launchers.cluster.orders import NodeOrders, Ranks
from actions.launchers.cluster.words import Attempt, Order, Over, Patience
from actions.launchers.leases.fence import EpochFence

FIRST: Final = Attempt(epoch=1, number=1, roster=("a", "b"), master="host-a", port=7000)
SECOND: Final = msgspec.structs.replace(FIRST, number=2)
ISOLATED_S: Final = 12.0
GIVE_UP_S: Final = 600.0


class Node:
    """Node ``a``; its ranks do what they are told to."""

    def __init__(self) -> None:
        self.orders = NodeOrders("a", EpochFence(), Patience(isolated_s=ISOLATED_S, give_up_s=GIVE_UP_S), now_s=0.0)
        self.now_s, self.ranks = 0.0, Ranks()

    def hear(self, attempt: Attempt | None = None, *, run: bool = True, **what: Any) -> bool:
        order = Order(**{"holder": "l", "epoch": 1, "left_s": 4.0, "attempt": attempt, "run": run, **what})
        return self.orders.hear(order, self.now_s)

    def decide(self) -> Attempt | str | None:
        """Carried out at once, but for a stop."""
        todo = self.orders.decide(self.ranks, self.now_s)
        if isinstance(todo, Attempt):
            self.ranks = Ranks(alive=2)
        return todo

    def follow(self, *orders: Attempt) -> None:
        for attempt in orders:
            self.hear(attempt)
            self.decide()


def test_an_attempt_is_started_once_however_often_it_is_ordered() -> None:
    node = Node()
    node.hear(FIRST)
    assert node.decide() == FIRST
    node.follow(FIRST, FIRST)
    node.ranks = Ranks()
    assert node.decide() is None
    assert node.orders.state == "done"
    node.hear(FIRST)
    assert node.decide() is None


def test_another_attempt_waits_until_the_ranks_of_the_one_before_are_gone() -> None:
    node = Node()
    node.follow(FIRST)
    node.hear(SECOND)
    assert node.decide() == "stop"
    assert node.decide() is None
    node.ranks = Ranks(alive=1)
    assert node.decide() is None
    node.ranks = Ranks()
    assert node.decide() == SECOND
    assert node.orders.ran == SECOND.id
    assert node.orders.state == "running"


def test_a_spare_runs_nothing_but_knows_what_runs() -> None:
    node = Node()
    node.hear(msgspec.structs.replace(FIRST, roster=("b", "c")))
    assert node.decide() is None
    assert node.orders.newest is not None
    assert node.orders.state == "idle"


def test_a_failed_rank_is_told_while_others_run_on() -> None:
    node = Node()
    node.follow(FIRST)
    node.ranks = Ranks(alive=1, code=9)
    assert node.decide() is None
    assert (node.orders.state, node.orders.code) == ("failed", 9)
    node.hear(FIRST, run=False)
    assert node.decide() == "stop"
    node.ranks = Ranks(code=9)
    node.decide()
    assert (node.orders.state, node.orders.code) == ("failed", 9)


def test_ranks_that_were_asked_to_stop_have_not_failed() -> None:
    node = Node()
    node.follow(FIRST)
    node.hear(FIRST, run=False)
    node.decide()
    node.ranks = Ranks(alive=1, code=143)
    node.decide()
    node.ranks = Ranks(code=143)
    node.decide()
    assert node.orders.state == "stopped"


def test_an_attempt_that_cannot_be_started_has_failed() -> None:
    node = Node()
    node.hear(FIRST)
    node.decide()
    node.ranks = Ranks(alive=0, code=126)
    node.decide()
    assert (node.orders.state, node.orders.code) == ("failed", 126)


def test_an_older_attempt_is_never_started_after_a_newer_one() -> None:
    node = Node()
    node.follow(SECOND)
    node.ranks = Ranks()
    node.decide()
    node.hear(FIRST)
    assert node.decide() is None
    assert node.orders.newest == SECOND


def test_a_node_that_hears_of_nobody_stops_its_ranks_and_starts_them_no_more() -> None:
    node = Node()
    node.follow(FIRST)
    node.now_s = ISOLATED_S
    assert node.decide() == "stop"
    node.ranks = Ranks()
    node.decide()
    assert node.orders.state == "stopped"
    node.hear(FIRST)
    assert node.decide() is None
    node.hear(SECOND)
    assert node.decide() == SECOND


def test_a_leader_that_lost_its_lease_is_obeyed_no_more_but_training_goes_on() -> None:
    node = Node()
    node.follow(FIRST)
    for _ in range(100):
        node.now_s += 1.0
        assert not node.hear(SECOND, leads=False)
        assert node.decide() is None
    assert node.orders.state == "running"


def test_an_old_leader_that_is_cut_off_with_a_node_is_no_contact() -> None:
    node = Node()
    node.follow(FIRST)
    while node.now_s < ISOLATED_S - 1.0:
        node.now_s += 1.0
        node.hear(FIRST, leads=False, cut_off=True)
        assert node.decide() is None
    node.now_s += 1.0
    assert node.decide() == "stop"


def test_a_leader_of_a_lower_epoch_and_one_beside_the_leader_are_refused() -> None:
    node = Node()
    node.hear(FIRST, epoch=3)
    assert not node.hear(SECOND, epoch=2, holder="m")
    assert not node.hear(SECOND, epoch=4, holder="m")
    assert node.decide() == FIRST
    node.hear(None, epoch=3, leads=False)
    assert node.hear(SECOND, epoch=4, holder="m")


def test_what_is_over_stays_over() -> None:
    node = Node()
    node.follow(FIRST)
    node.hear(FIRST, run=False, over=Over(7, "why"))
    assert node.decide() == "stop"
    node.hear(SECOND)
    node.ranks = Ranks()
    assert node.decide() is None
    assert node.orders.over == Over(7, "why")
    node.orders.wish(Over(143))
    assert node.orders.over == Over(7, "why")


def test_a_persons_stop_stops_the_ranks_here_at_once() -> None:
    node = Node()
    node.follow(FIRST)
    node.orders.wish(Over(143))
    assert node.decide() == "stop"


def test_a_node_that_hears_of_nobody_for_long_gives_up_with_a_word() -> None:
    """The job may have ended while it was cut off, and its leader and lease service with it."""
    node = Node()
    node.follow(FIRST)
    node.now_s = GIVE_UP_S - 1.0
    node.decide()
    assert node.orders.over is None
    node.now_s = GIVE_UP_S
    node.decide()
    assert node.orders.over == Over(1, "nobody was heard of for 600 s")
