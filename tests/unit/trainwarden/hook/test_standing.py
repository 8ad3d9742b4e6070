"""A loop that knows of nothing is held after an agreed step, and goes on whatever becomes of who asked."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.hook_doubles import HandClock, backward
from trainwarden import hook
from trainwarden.hook import ASK_PAUSE, Hook, ask_hook, read_header, read_steps
from trainwarden.hook.layout import AT_ACCELERATOR, AT_ERRORS, AT_STANDING


class Optimizer:
    """Whatever can be referred to weakly."""


class Rank:
    """A rank whose loop makes steps of 10 ms when the test says so; `naps` happens at each nap of one that is held."""

    def __init__(self, target: Hook, clock: HandClock, folder: Path) -> None:
        self.target, self.clock, self.pause = target, clock, folder / "pause.json"
        self.optimizer = Optimizer()
        self.standing = target.standing
        self.standing.file.path = str(self.pause)
        self.standing.sleep = self._nap
        self.naps: Callable[[], Any] = lambda: None
        self.stood: list[tuple[int, int]] = []  # the step in progress and the header's word, at each nap

    def _nap(self, seconds: float) -> None:
        self.clock.pass_ms(seconds * 1000)
        self.stood.append((self.target.step, self.target.words[AT_STANDING]))
        self.naps()

    def steps(self, number: int, optimizer: bool = True) -> None:
        for _ in range(number):
            backward(self.target, self.clock, 10.0)
            self.target.ends.optimizer_stepped(self.optimizer if optimizer else None)

    def ask(self, **request: Any) -> None:
        """Ask by the file, and have it read as the thread of requests does."""
        self.pause.write_text(json.dumps(request))
        self.standing.look()


@pytest.fixture
def rank(make: Callable[..., Hook], clock: HandClock, tmp_path: Path) -> Rank:
    (tmp_path / "run").mkdir()
    return Rank(make(), clock, tmp_path / "run")


def until_s(seconds: float = 60.0) -> float:
    return time.time() + seconds


def test_a_rank_stands_still_after_the_step_that_is_named_until_the_file_is_gone(rank: Rank) -> None:
    rank.steps(4)
    assert rank.target.words[AT_STANDING] == 1
    rank.ask(number=7, until_s=until_s(), step=6)
    rank.steps(2)
    assert rank.stood == []

    def let_go() -> None:
        if len(rank.stood) == 3:
            rank.pause.unlink()
        rank.standing.look()

    rank.naps = let_go
    rank.steps(1)
    assert rank.stood == [(7, 8)] * 3
    assert (rank.target.words[AT_STANDING], rank.standing.asked, rank.target.words[AT_ERRORS]) == (1, None, 0)
    rank.steps(5)
    rank.ask(number=7, until_s=until_s(), step=20)  # a request that was obeyed is over
    rank.steps(12)
    assert len(rank.stood) == 3


def test_the_time_held_is_a_pause_and_no_slow_step(rank: Rank) -> None:
    rank.steps(4)
    rank.ask(number=1, until_s=until_s(), step=4)
    rank.naps = lambda: (rank.pause.unlink(missing_ok=True), rank.standing.look()) if len(rank.stood) == 40 else None
    rank.steps(3)
    header, steps = read_header(rank.target.memory.path + ".hook"), read_steps(rank.target.memory.path + ".hook")
    assert header is not None
    assert steps is not None
    assert [round(step.duration_s - step.pause_s, 3) for step in steps] == [0.01] * 7
    assert [round(step.pause_s, 2) for step in steps] == [0.0] * 5 + [2.0, 0.0]
    assert [
        (one.phase, round(one.duration_s, 2)) for one in hook.read_pauses(rank.target.memory.path + ".hook") or ()
    ] == [("evaluation", 2.0)]


@pytest.mark.parametrize(
    ("seconds", "held_s"), [(5.0, 5.0), (1e12, 300.0)], ids=["by the file", "by the constant of the hook"]
)
def test_nobody_has_to_let_a_rank_go(rank: Rank, seconds: float, held_s: float) -> None:
    """The file stays, and no thread reads it again: its disk hangs, or the launcher was killed."""
    rank.steps(4)
    began = rank.clock()
    rank.ask(number=1, until_s=until_s(seconds), step=4)
    rank.steps(1)
    assert (rank.clock() - began) / 1e9 == pytest.approx(held_s, abs=0.2)
    assert rank.target.words[AT_STANDING] == 1


def test_a_rank_that_is_past_the_step_goes_on(rank: Rank) -> None:
    rank.steps(6)
    rank.ask(number=1, until_s=until_s(), step=5)
    rank.steps(2)
    assert (rank.stood, rank.standing.over) == ([], 1)
    rank.ask(number=2, until_s=until_s(), step=10)
    rank.target.number(50)  # the script's own numbers jump over it
    rank.steps(2)
    assert (rank.stood, rank.standing.over, rank.standing.asked) == ([], 2, None)


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", '{"number": 1, "until_s": 9e9}', '{"number": 0, "until_s": 9e9, "step": 8}',
        '{"number": 1, "until_s": "9e9", "step": 8}', '{"number": 1, "until_s": 9e9, "step": -8}',
        '{"number": 1, "until_s": 9e9, "step": true}', '{"number": 1, "until_s": 5.0, "step": 8}',
        '{"number": 1, "until_s": NaN, "step": 8}', '{"number": 1, "until_s": -Infinity, "step": 8}',
    ],
)  # fmt: skip
def test_what_is_half_written_or_no_request_holds_no_rank(rank: Rank, text: str) -> None:
    rank.steps(4)
    rank.pause.write_text(text)
    assert rank.standing.look() is False
    rank.steps(10)
    assert (rank.stood, rank.target.words[AT_ERRORS]) == ([], 0)


def test_an_end_of_a_step_that_is_no_optimizers_holds_no_rank(rank: Rank) -> None:
    """The end of a backward pass, or of a scaler's update, may be by an exception."""
    rank.steps(4)
    rank.ask(number=1, until_s=until_s(), step=4)
    rank.steps(1, optimizer=False)
    assert rank.stood == []


def test_a_rank_is_offered_only_where_it_can_be_held(
    make: Callable[..., Hook], clock: HandClock, tmp_path: Path
) -> None:
    def offered(target: Hook, optimizer: bool = True) -> int:
        Rank(target, clock, tmp_path).steps(80, optimizer)
        return int(target.words[AT_STANDING])

    alone, shared, device = make(world=1), make(rank=1), make(rank=2)
    assert (offered(alone), alone.standing.asked) == (0, None)
    shared.standing.leave_to_loop()
    (tmp_path / "pause.json").write_text(json.dumps({"number": 1, "until_s": until_s(), "step": 200}))
    assert (offered(shared), shared.standing.look()) == (0, False)
    (tmp_path / "pause.json").unlink()
    device.words[AT_ACCELERATOR] = 2  # no way is known to wait for what it has been given
    assert offered(device) == 0
    assert offered(make(rank=3), optimizer=False) == 0


def test_a_gpu_has_done_its_work_before_the_rank_says_that_it_stands(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_sync: list[int] = []
    cuda = SimpleNamespace(
        is_initialized=lambda: True, synchronize=lambda: at_sync.append(rank.target.words[AT_STANDING])
    )
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    rank.steps(4)
    rank.ask(number=1, until_s=until_s(1.0), step=4)
    rank.steps(1)
    assert (at_sync, rank.stood[0]) == ([1], (5, 2))
    rank.stood.clear()
    rank.target.device.captures.begins(SimpleNamespace())
    rank.ask(number=2, until_s=until_s(1.0), step=6)
    rank.steps(4)
    assert (rank.stood, rank.standing.over, at_sync) == ([], 2, [1])


def test_an_exception_of_a_signal_handler_ends_the_hold(rank: Rank) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    rank.steps(4)
    rank.ask(number=1, until_s=until_s(), step=4)
    rank.naps = stop
    with pytest.raises(KeyboardInterrupt):
        rank.steps(1)
    assert (rank.target.words[AT_STANDING], rank.target.thread.paused, rank.standing.over) == (1, 0, 1)


def test_the_thread_of_requests_reads_the_file_when_it_is_asked_and_again_until_it_is_over(rank: Rank) -> None:
    rank.steps(4)
    path = Path(rank.target.memory.path + ".hook")
    rank.pause.write_text(json.dumps({"number": 1, "until_s": until_s(), "step": 10_000}))
    assert rank.standing.asked is None
    assert ask_hook(path, os.getuid(), ASK_PAUSE)
    wait_until(lambda: rank.standing.asked is not None)
    rank.pause.unlink()  # nobody asks again
    wait_until(lambda: rank.standing.asked is None)
    assert rank.target.words[AT_ERRORS] == 0


def wait_until(what: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 10.0
    while not what():
        assert time.monotonic() < end_s
        time.sleep(0.005)
