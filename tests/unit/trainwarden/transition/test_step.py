"""What a `ResilientStep` refuses, and that each micro-batch counts once whatever becomes of the ranks."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

from tests.unit.trainwarden.transition.harness import TOTAL, Died, Net, Ranks, until_it_asks
from trainwarden.transition import ResilientStep, TransitionError
from trainwarden.transition import step as of_step
from trainwarden.transition.buckets import Broken

pytestmark = pytest.mark.thorough  # they take seconds

ONCE = [1.0] * TOTAL


def made(total: int, model: torch.nn.Module | None = None) -> ResilientStep:
    model = torch.nn.Linear(1, 1) if model is None else model
    return ResilientStep(total, model, torch.optim.SGD(model.parameters()))


def test_fewer_micro_batches_than_ranks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ValueError, match="3 micro-batches leave some of 4 ranks without any"):
        made(3)


def test_a_store_that_dies_with_a_rank_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    with pytest.raises(TransitionError, match="outlives each of them"):
        made(2)


def test_a_model_that_is_not_on_the_cpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with pytest.raises(TransitionError, match="the model is on meta, and this was never run on NCCL"):
        made(2, torch.nn.Linear(1, 1, device="meta"))


def test_a_step_that_was_left_early_is_not_due_and_is_not_gone_on_with(ranks: Ranks) -> None:
    steps = ranks.make()
    for micro in steps.micro_batches():
        steps.model.count(micro)
    assert steps.due
    for micro in steps.micro_batches():
        steps.model.count(micro)
        if micro.index == 3:
            break
    assert not steps.due
    with pytest.raises(RuntimeError, match="left before its end: take them one at a time, to the end"):
        next(steps.micro_batches())


def test_gradients_of_micro_batches_that_were_taken_at_once_are_refused(ranks: Ranks) -> None:
    steps = ranks.make()
    taken = [*steps.micro_batches()]
    with pytest.raises(RuntimeError, match=r"outside of micro_batches.*one at a time, to the end"):
        steps.model.count(taken[0])
    steps.close()
    steps.model.count(taken[0])


def test_what_no_rank_has_a_gradient_of_gets_none(ranks: Ranks) -> None:
    model = Net()
    model.unused = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    steps = ranks.make(model=model)
    for micro in steps.micro_batches():
        model.count(micro)
    assert model.unused.grad is None
    assert model.w.grad.tolist() == ONCE


def test_a_gradient_that_one_rank_alone_has_is_every_rank_s(ranks: Ranks) -> None:
    def run(rank: int) -> None:
        model = Net()
        model.other = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
        steps = ranks.make(rank, 2, model)
        for micro in steps.micro_batches():
            model.count(micro)
            if micro.index == 0:
                model.other.sum().backward()
        assert model.other.grad is not None
        assert model.other.grad.item() == 1.0

    ranks.start(run, 0)
    ranks.start(run, 1)
    ranks.wait()
    assert not ranks.errors


def test_a_call_that_fails_in_every_group_ends_the_job_with_its_text(ranks: Ranks) -> None:
    for rank in (0, 1):
        ranks.start(lambda rank=rank: ranks.make(rank, 2, Net(torch.zeros(3, dtype=torch.int16))))
    ranks.wait()
    assert [type(one) for one in ranks.errors.values()] == [TransitionError] * 2
    assert all("Invalid scalar type" in str(one) for one in ranks.errors.values())


def test_whoever_waits_for_a_rank_that_does_not_connect_does_so_for_a_short_time(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other came to the epoch, and died before it connected."""
    monkeypatch.setattr(of_step, "CONNECT_S", 0.5)
    ranks.start(lambda: ranks.make(0, 2, timeout_s=600.0))
    other = ranks.member(1, 2)
    ranks.dead.add(other.name)
    ranks.wait()
    assert not ranks.errors
    assert ranks.steps[0]._members.epoch.members == (ranks.steps[0]._members.name,)


def test_a_call_may_take_longer_than_connecting(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_step, "CONNECT_S", 1.0)

    def run(rank: int) -> None:
        steps = ranks.make(rank, 2)
        for micro in steps.micro_batches():
            steps.model.count(micro)
            if micro.index == 0:
                time.sleep(2.0)
        assert steps.lost_s == []

    ranks.start(run, 0)
    ranks.start(run, 1)
    ranks.wait()
    assert not ranks.errors


def test_other_state_of_the_loop_is_handed_over(ranks: Ranks) -> None:
    found: dict[int, Any] = {}

    def run(rank: int) -> None:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        if rank == 0:
            optimizer.step()
            schedule.step()
        ranks._own.rank, ranks._own.world = rank, 2
        ranks.steps.append(ResilientStep(TOTAL, model, optimizer, also={"schedule": schedule}))
        found[rank] = schedule.last_epoch, optimizer.param_groups[0]["lr"]

    ranks.start(run, 0)
    ranks.start(run, 1)
    ranks.wait()
    assert not ranks.errors
    assert found == {0: (1, 0.1), 1: (1, 0.1)}


def test_what_is_reduced_everywhere_is_not_computed_again(ranks: Ranks) -> None:
    computed: list[int] = []

    def run(rank: int) -> None:
        steps = ranks.make(rank, 2)
        if rank == 1:
            finish = steps._buckets.finish

            def dies() -> None:
                finish()
                ranks.dead.add(steps._members.name)
                time.sleep(0.3)
                steps._group.leave()
                raise Died

            steps._buckets.finish = dies
        for micro in steps.micro_batches():
            steps.model.count(micro)
            if rank == 0:
                computed.append(micro.index)
        assert steps.model.w.grad.tolist() == ONCE

    ranks.start(run, 0)
    ranks.start(run, 1)
    ranks.wait()
    assert not ranks.errors
    assert computed == [*range(TOTAL // 2)]


def test_a_rank_that_missed_an_epoch_takes_the_step_s_beginning_from_one_that_computes(ranks: Ranks) -> None:
    """A newcomer dies once it has joined, and one rank alone has begun the next step by then."""
    counted: dict[int, list[float]] = {}
    joined = threading.Event()

    def newcomer() -> None:
        steps = ranks.make(0, 2)
        ranks.dead.add(steps._members.name)
        steps._group.leave()

    def run(rank: int) -> None:
        steps = ranks.make(rank, 2)
        agree = steps._agree

        def breaks() -> None:
            before = steps._base
            agree()
            if steps._members.epoch.number == 1 and rank == 0:
                steps._base = before  # as if its last call had failed
                while len(ranks.dead) == 0:
                    time.sleep(0.01)
                raise Broken

        steps._agree = breaks
        for number in steps.numbers(2):
            for micro in steps.micro_batches():
                steps.model.count(micro)
            if number == 1:
                counted[rank] = steps.model.w.grad.tolist()
            steps.optimizer.zero_grad()
            joined.wait()
            steps._waits = True

    ranks.start(run, 0)
    ranks.start(run, 1)
    ranks.first_of(0)
    ranks.start(newcomer)
    until_it_asks(ranks)
    joined.set()
    ranks.wait()
    assert not ranks.errors
    assert counted == {0: ONCE, 1: ONCE}


def test_a_newcomer_may_join_in_the_midst_of_a_step(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank has a reduced bucket by then, the other one none; the newcomer gets it, and computes nothing."""
    counted: list[list[float]] = []
    adopted: list[bool] = []

    def run(rank: int, *, new: bool = False) -> None:
        steps = ranks.make(rank, 2)
        finished, once = steps._finished, threading.Event()

        def breaks() -> bool:
            if new or once.is_set():
                return finished()
            once.set()
            steps._buckets.finish()
            if rank:
                steps._buckets.reduced.clear()
            until_it_asks(ranks)
            return False

        come = steps._members.next_epoch
        steps._finished, steps._members.next_epoch = breaks, lambda admit: come(admit=True)
        for micro in steps.micro_batches():
            assert not new
            steps.model.count(micro)
        counted.append(steps.model.w.grad.tolist())

    adopt = ResilientStep._adopt

    def adopting(self: ResilientStep, found: dict[str, Any]) -> None:
        if self._members.is_newcomer:
            adopted.append(found["model"]["w"].data_ptr() == self.model.w.data_ptr())
        adopt(self, found)

    monkeypatch.setattr(ResilientStep, "_adopt", adopting)
    ranks.start(run, 0)
    ranks.start(run, 1)
    ranks.first_of(0)
    ranks.start(lambda: run(0, new=True))
    ranks.wait()
    assert not ranks.errors
    assert counted == [ONCE] * 3
    assert adopted == [True]  # in place
