"""Ranks of a job in the threads of one process, over a real store and gloo; a rank dies where a test says so."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch.distributed import PrefixStore, TCPStore

from trainwarden.transition import ResilientStep
from trainwarden.transition import step as of_step
from trainwarden.transition.members import Members

TOTAL = 12


class Died(BaseException):
    """A rank raises it where it dies; nothing of the library may catch it."""


class Net(torch.nn.Module):
    """A parameter with an entry for each micro-batch, whose gradient is how often that was counted."""

    def __init__(self, seen: torch.Tensor | None = None) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(TOTAL, dtype=torch.float64))
        if seen is not None:
            self.register_buffer("seen", seen)

    def count(self, micro: Any) -> None:
        (self.w[micro.index] * micro.weight * TOTAL).backward()


class Ranks:
    """Starts ranks; `errors` holds what each raised, by the order of starts."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.dead: set[str] = set()
        self.errors: dict[int, Exception] = {}
        self.members: list[Members] = []
        self.steps: list[ResilientStep] = []
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
        self._threads: list[threading.Thread] = []
        self._own = threading.local()
        patch.setenv("MASTER_ADDR", "127.0.0.1")
        patch.setenv("MASTER_PORT", str(self.store.port))
        patch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
        patch.setenv("RANK", "0")
        patch.setenv("WORLD_SIZE", "1")
        patch.setattr(of_step, "Members", self._members_of_thread)

    def member(self, rank: int, world: int, **options: Any) -> Members:
        """A member alone."""
        dead = self.dead

        class Mortal(Members):
            def _is_dead(self, name: str) -> bool:
                return name in dead

        made = Mortal(rank, world, ("127.0.0.1", self.store.port), **options)
        self.members.append(made)
        return made

    def first_of(self, rank: int) -> str:
        """The name of the member that had this rank at the beginning."""
        return str(self.met_in().get(f"first/{rank}").decode())

    def met_in(self) -> PrefixStore:
        """The part of the store in which the ranks of this attempt meet."""
        return PrefixStore(f"trainwarden-transition/{os.environ.get('TRAINWARDEN_ATTEMPT', '0')}/", self.store)

    def make(
        self, rank: int = 0, world: int = 1, model: torch.nn.Module | None = None, **options: Any
    ) -> ResilientStep:
        """A step of this thread's rank; comes back once all ranks are there."""
        self._own.rank, self._own.world = rank, world
        model = Net() if model is None else model
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        made = ResilientStep(TOTAL, model, optimizer, **{"timeout_s": 20.0, **options})
        self.steps.append(made)
        return made

    def start(self, run: Callable[..., None], *words: Any) -> None:
        """Run it in a thread."""
        number = len(self._threads)

        def running() -> None:
            try:
                run(*words)
            except Died:
                pass
            except Exception as error:
                self.errors[number] = error

        thread = threading.Thread(target=running, daemon=True)
        self._threads.append(thread)
        thread.start()

    def wait(self, patience_s: float = 30.0) -> None:
        """Until all have ended."""
        for one in self._threads:
            one.join(patience_s)
            assert not one.is_alive(), self.errors

    def close(self) -> None:
        for step in self.steps:
            if step._group is not None:
                step._group.leave()
        for one in self.members:
            one._stop()

    def _members_of_thread(
        self, _rank: int, _world: int, _where: tuple[str, int], least: int, patience_s: float
    ) -> Members:
        return self.member(self._own.rank, self._own.world, least=least, patience_s=patience_s)


def until_it_asks(ranks: Ranks) -> None:
    """A newcomer, to be admitted."""
    ranks.met_in().wait(["join/1"], timedelta(seconds=20))
