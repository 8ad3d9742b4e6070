"""Ranks that torchrun starts again alone: by torch's own contexts of processes, and its own handler of signals."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.api import (
    MultiprocessContext,
    SignalException,
    SubprocessContext,
    _terminate_process_handler,
)
from torch.distributed.elastic.rendezvous.api import RendezvousParameters

from trainwarden.torchrun.exits import Exits, Renewals
from trainwarden.torchrun.rendezvous import _most_renewed, _renew_ranks

PATIENCE_S = 60.0
LIVES = "import os, sys, time; print('life of', os.getpid(), flush=True); time.sleep(600)"
HEALTHY = "healthy"


def live() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as `Handler._forked` does
    print("life of", os.getpid(), flush=True)
    time.sleep(600)


def until(true) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Agent:
    """torch's agent as far as the look goes, with `ranks` that have offered to be started again."""

    def __init__(self, patch, folder, *, forked=False, redirects=Std.NONE, most=3, restarts=10) -> None:
        self.ends = []
        self.exits = Exits(lambda number, said: None, self.ends.append, Renewals(folder, most))
        patch.setattr(LocalElasticAgent, "_monitor_workers", lambda agent, group: HEALTHY)
        _renew_ranks(self.exits)
        logs = DefaultLogsSpecs(log_dir=str(folder / "logs"), redirects=redirects)
        shape = {"envs": {0: {}, 1: {}}, "logs_specs": logs}
        if forked:
            self.context = MultiprocessContext("rank", live, {0: (), 1: ()}, start_method="fork", **shape)
        else:
            words = ("-S", "-c", LIVES)
            self.context = SubprocessContext("rank", sys.executable, {0: words, 1: words}, **shape)
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        self.context.start()
        for number, handler in before.items():
            signal.signal(number, handler)
        self.exits.begin(1)
        self.workers = [SimpleNamespace(id=pid, global_rank=rank) for rank, pid in self.context.pids().items()]
        for rank, worker in enumerate(self.workers):
            self.exits.started(worker.id, rank, 2)
            (folder / f"resilient-{os.getpid()}-0-{rank}").touch()
        self.torchs = SimpleNamespace(_pcontext=self.context, _remaining_restarts=restarts)

    def look(self):
        return LocalElasticAgent._monitor_workers(self.torchs, SimpleNamespace(workers=self.workers))

    def kill(self, rank: int) -> int:
        pid = self.workers[rank].id
        os.kill(pid, signal.SIGKILL)
        until(lambda: self.exits._dead or self.ends)  # its thread, which torch's look gives a tenth of a second
        return pid

    def end_of(self, pid: int):
        until(lambda: any(end.pid == pid for end in self.ends))
        return next(end for end in self.ends if end.pid == pid)


@pytest.fixture
def agents(monkeypatch, tmp_path):
    made = []

    def make(**more) -> Agent:
        made.append(Agent(monkeypatch, tmp_path, **more))
        return made[-1]

    yield make
    for agent in made:
        agent.context.close(signal.SIGKILL)


@pytest.mark.parametrize(
    ("said", "most"),
    [
        ({}, 2), ({"max_failures": "1"}, 0), ({"max_failures": "4"}, 3), ({"max_failures": "4", "renew": "no"}, 0),
        ({"renew": "yes"}, 2),
    ],
)  # fmt: skip
def test_ranks_start_again_alone_as_often_as_all_would(said, most):
    assert _most_renewed(RendezvousParameters("trainwarden", "h:1", "job", 1, 1, **said)) == most


@pytest.mark.parametrize("forked", [False, True])
def test_a_rank_that_dies_is_started_again_and_its_words_of_the_death_before_are_gone(agents, forked):
    agent = agents(forked=forked)
    error_file = agent.context.error_files[1]
    with open(error_file, "w") as file:
        file.write("{}")
    old = agent.kill(1)
    assert agent.look() == HEALTHY
    assert agent.workers[1].id not in (old, agent.workers[0].id)
    assert agent.context.pids() == {0: agent.workers[0].id, 1: agent.workers[1].id}
    assert agent.end_of(old).renewed
    assert not os.path.exists(error_file)
    assert agent.torchs._remaining_restarts == 9
    assert agent.context.wait(0) is None


@pytest.mark.thorough
@pytest.mark.parametrize("more", [{"most": 0}, {"restarts": 0}, {"forked": True, "redirects": Std.OUT}, {"numa": True}])
def test_a_rank_is_not_started_again_alone_where_that_is_not_wanted_or_not_safe(agents, more):
    """A second fork would empty the file of the rank's output, and be bound to another device's cores."""
    numa = more.pop("numa", False)
    agent = agents(**more)
    if numa:
        agent.context._numa_options = object()
    old = agent.kill(1)
    assert agent.look() == HEALTHY
    assert agent.workers[1].id == old
    failed = agent.context.wait(0)  # as torch does after our look
    assert set(failed.failures) >= {1}
    end = agent.end_of(old)
    assert (end.renewed, end.asked, agent.end_of(agent.workers[0].id).asked) == (False, False, True)


def test_a_rank_in_a_process_of_its_own_goes_on_writing_to_its_file(agents):
    agent = agents(redirects=Std.OUT)
    path = Path(agent.context.stdouts[1])
    until(lambda: path.read_text().count("\n") == 1)
    old = agent.kill(1)
    agent.look()
    until(lambda: path.read_text().count("\n") == 2)
    assert path.read_text() == f"life of {old}\nlife of {agent.workers[1].id}\n"


def test_a_death_after_which_no_process_can_be_started_ends_all(agents, monkeypatch, caplog):
    agent = agents()

    def full(args, env):
        raise BlockingIOError("no process can be made")

    monkeypatch.setattr(agent.context.subprocess_handlers[1], "_popen", full)
    old = agent.kill(1)
    with caplog.at_level(logging.WARNING):
        assert agent.look() == HEALTHY
    assert "could not be started again alone" in caplog.text
    assert set(agent.context.wait(0).failures) >= {1}
    end = agent.end_of(old)
    assert (end.renewed, end.asked, agent.end_of(agent.workers[0].id).asked) == (False, False, True)


@pytest.mark.parametrize("moment", ["look", "start", "event"])
def test_a_signal_that_ends_torchrun_does_so_wherever_our_part_is(agents, monkeypatch, moment):
    agent = agents()

    def ended(*_args):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(PATIENCE_S)

    before = signal.signal(signal.SIGTERM, _terminate_process_handler)
    try:
        if moment == "look":
            monkeypatch.setattr("trainwarden.torchrun.rendezvous._has_failed", ended)
        elif moment == "start":
            monkeypatch.setattr(agent.context.subprocess_handlers[1], "_popen", ended)
            old = agent.kill(1)
        else:
            record = logging.LogRecord("torchelastic-events-null", logging.INFO, __file__, 1, "{}", None, None)
            monkeypatch.setattr(record, "getMessage", ended)
        with pytest.raises(SignalException):
            agent.exits.emit(record) if moment == "event" else agent.look()
        if moment == "start":
            assert not agent.end_of(old).renewed
    finally:
        signal.signal(signal.SIGTERM, before)
