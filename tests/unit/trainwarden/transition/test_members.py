"""Who takes part: what a member waits for, for how long, and at what price."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from typing import Any

import pytest

from tests.unit.trainwarden.transition.harness import Ranks
from trainwarden.transition import TransitionError, members

pytestmark = pytest.mark.thorough  # members meet over a real store


def all_of(ranks: Ranks, world: int, **options: Any) -> list[members.Members]:
    for rank in range(world):
        ranks.start(lambda rank=rank: ranks.member(rank, world, **options))
    ranks.wait()
    return sorted(ranks.members, key=lambda one: one.rank)


def test_a_member_that_lives_and_does_not_come_is_named_and_then_given_up(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(members, "SAY_S", 0.2)
    first, _ = all_of(ranks, 2, patience_s=1.0)
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(TransitionError, match="rank 1 lives, and has not come in 1 s"),
    ):
        first.next_epoch(admit=False)
    assert caplog.messages == ["trainwarden: waiting for rank 1, which lives and has not come"]


def test_a_member_that_does_not_watch_gives_up_as_well(ranks: Ranks) -> None:
    _, second = all_of(ranks, 2, patience_s=1.0)
    with pytest.raises(TransitionError, match="rank 0 lives"):
        second.next_epoch(admit=False)


def test_a_member_at_its_end_is_not_waited_for(ranks: Ranks) -> None:
    first, second = all_of(ranks, 2, patience_s=5.0)
    ranks.start(second.close)
    assert first.next_epoch(admit=False).members == (first.name,)
    ranks.wait()


def test_one_member_watches_for_a_death_and_the_others_look_at_the_epoch_alone(ranks: Ranks) -> None:
    everybody = all_of(ranks, 8)
    gone, living = everybody[3], [*everybody[:3], *everybody[4:]]
    counts = {one.rank: Counter[str]() for one in living}
    for one in living:
        one.store = Counted(one.store, counts[one.rank])
        ranks.start(lambda one=one: one.next_epoch(admit=False))
    threading.Timer(0.5, ranks.dead.add, [gone.name]).start()
    ranks.wait()
    assert {one.epoch.members for one in living} == {tuple(one.name for one in living)}
    calls = {rank: count.total() for rank, count in counts.items()}
    assert max(count for rank, count in calls.items() if rank) <= 20  # own arrival, and whether the first is at its end
    assert calls[0] <= 40


def test_all_of_a_new_attempt_begin_anew_over_the_same_store(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks.dead.add(ranks.member(0, 1).name)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    again = ranks.member(0, 1)
    assert not again.is_newcomer
    assert again.epoch.members == (again.name,)


def test_ranks_of_two_nodes_whose_torch_counts_apart_find_each_other(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINWARDEN_ATTEMPT", "1")
    monkeypatch.setattr(members.Members.client, "__defaults__", (5.0,))
    first, second = threading.Event(), threading.Event()

    def come(rank: int, wait: threading.Event, then: threading.Event) -> None:
        wait.wait(20.0)
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(rank))
        threading.Timer(0.5, then.set).start()
        ranks.member(rank, 2)

    first.set()
    ranks.start(lambda: come(0, first, second))
    ranks.start(lambda: come(1, second, first))
    ranks.wait()
    assert not ranks.errors
    assert {len(one.epoch.members) for one in ranks.members} == {2}


def test_a_newcomer_waits_for_those_who_were_not_even_there_when_its_rank_died(ranks: Ranks) -> None:
    ranks.start(ranks.member, 1, 2)
    dead = ranks.first_of(1)
    ranks.dead.add(dead)
    newcomer = ranks.member(1, 2)
    ranks.start(newcomer.join)
    first = ranks.member(0, 2)
    assert first.next_epoch(admit=True).members == (first.name, newcomer.name)
    ranks.wait()
    assert newcomer.history == {0: (first.name, dead), 1: (first.name, newcomer.name)}


def test_a_newcomer_that_comes_after_the_end_of_the_job_ends_well(ranks: Ranks) -> None:
    """Else its launcher would take it for a failure, and start the whole job again."""
    first, second = all_of(ranks, 2)
    ranks.dead.add(second.name)
    newcomer = ranks.member(1, 2)
    first.close()
    with pytest.raises(SystemExit) as ended:
        newcomer.join()
    assert ended.value.code == 0


def test_a_newcomer_for_whom_nobody_is_left_gives_up(ranks: Ranks) -> None:
    ranks.dead |= {one.name for one in all_of(ranks, 2)}
    with pytest.raises(TransitionError, match="no rank is left"):
        ranks.member(1, 2).join()


def test_a_newcomer_of_another_machine_lives_once_its_beat_has_moved(ranks: Ranks) -> None:
    own = members.Members(0, 1, ("127.0.0.1", ranks.store.port))
    ranks.members.append(own)
    for name, value in {
        "who/9:x": json.dumps({"space": "elsewhere", "pid": 1, "started": "1"}), "beat/9:x": "4", "join/1": "9:x",
    }.items():  # fmt: skip
        own.store.set(name, value)
    own.store.add("joins", 1)
    assert [own.joins(), own.joins()] == [0, 0]
    assert own.next_epoch(admit=True).members == (own.name,)
    own.store.set("beat/9:x", "5")
    assert own.joins() == 1
    assert own.next_epoch(admit=True).members == (own.name, "9:x")


class Counted:
    """A store whose calls are counted, but for looks at whether an epoch is there."""

    def __init__(self, store: Any, count: Counter[str]) -> None:
        self._store, self._count = store, count

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._store, name)

        def call(*words: Any) -> Any:
            if (name, words) != ("check", (["epoch/1"],)):
                self._count[name] += 1
            return real(*words)

        return call
