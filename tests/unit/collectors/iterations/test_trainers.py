"""Of several processes with a rank's name, the trainer is whoever trains."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainwarden import hook
from trainwarden.collectors.iterations.collector import TAKE_OVER_STEPS, Trainers
from trainwarden.collectors.iterations.hook_source import HookSource, Kernel

START_S = 1000.0


def header(pid: int, **said: object) -> hook.Header:
    fields: dict[str, object] = {
        "pid": pid, "rank": 0, "world_size": 1, "start_s": START_S, "incarnation": f"{pid}-1", "phase": "compute",
        "phase_since_s": START_S, "calls": 0, "p2p_calls": 0, "recorded": 0, "step": 0, "step_end_s": None,
        "micro_batches": None, "source": "optimizer", "plan": 0, "plan_step": 0, "pauses": 0, "role": "", "own_s": 0.0,
        "exit_code": None, "errors": 0, "attempt": 0,
    }  # fmt: skip
    fields |= said
    return hook.Header(**{"start_monotonic_s": fields["start_s"], **fields})  # type: ignore[arg-type]


class Rank:
    """Processes of rank 0, and who is taken for its trainer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trainers = Trainers(folder)
        self.sources: dict[int, HookSource] = {}
        self.seated: list[int] = []

    def begins(self, pid: int, at_s: float, *, parent: int = 1, source: str = "optimizer", attempt: int = 0) -> None:
        path = self.folder / f"rank-0-{pid}.hook"
        path.touch()
        (self.folder / str(pid)).mkdir(exist_ok=True)
        (self.folder / str(pid) / "stat").write_text(f"{pid} (python) S {parent} 0 0")
        made = self.sources[pid] = HookSource(path, at_s)
        made.kernel = Kernel("S", 0.0, pid)
        made.header = header(pid, start_s=at_s, phase_since_s=at_s, source=source, attempt=attempt)

    def steps(self, pid: int, count: int, at_s: float) -> int:
        """`pid` makes `count` steps by then, each seen; who trains."""
        for _ in range(count):
            known = self.sources[pid].header
            assert known is not None
            self.sources[pid].header = known._replace(
                recorded=known.recorded + 1, step_end_s=at_s, phase_since_s=max(at_s, known.phase_since_s)
            )
            self.look()
        return self.look()

    def ends(self, pid: int, at_s: float) -> None:
        self.sources[pid].kernel = Kernel("X")
        self.sources[pid].gone_since_s = at_s

    def look(self) -> int:
        self.seated += [source.header.pid for source in self.trainers.update(self.sources.values()) if source.header]
        (trains,) = [pid for pid, source in self.sources.items() if source.trains]
        return trains


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    made = Rank(tmp_path)
    made.begins(10, START_S)
    assert made.steps(10, 30, START_S + 30) == 10
    return made


def test_a_child_that_makes_no_steps_does_not_train(rank: Rank) -> None:
    rank.begins(11, START_S + 31, parent=10)
    assert rank.look() == 10
    rank.ends(11, START_S + 60)
    assert rank.look() == 10


def test_a_child_that_makes_many_steps_while_its_parent_goes_on_does_not_train(rank: Rank) -> None:
    rank.begins(11, START_S + 31, parent=10)
    for second in range(31, 61):
        rank.steps(11, TAKE_OVER_STEPS - 1, START_S + second)
        assert rank.steps(10, 1, START_S + second) == 10


def test_a_child_that_makes_a_few_steps_while_its_parent_waits_does_not_train(rank: Rank) -> None:
    """Also one step of the parent's more than it would need of anybody else's."""
    rank.begins(11, START_S + 31, parent=10)
    assert rank.steps(11, TAKE_OVER_STEPS + 1, START_S + 40) == 10


def test_an_inference_worker_does_not_train_however_busy(rank: Rank) -> None:
    """Steps guessed from collective calls are weaker than a trainer's own optimizer."""
    rank.begins(11, START_S + 31, source="calls")
    assert rank.steps(11, 10 * TAKE_OVER_STEPS, START_S + 60) == 10


def test_a_restart_follows_at_once_even_before_its_first_step(rank: Rank) -> None:
    rank.ends(10, START_S + 31)
    rank.begins(12, START_S + 31)
    assert rank.look() == 12
    assert rank.steps(12, 3, START_S + 40) == 12


def test_restarts_that_were_all_missed_follow_one_another(rank: Rank) -> None:
    for life in range(1, 4):
        rank.ends(10 + life - 1, START_S + 100 * life)
        rank.begins(10 + life, START_S + 100 * life)
        rank.sources[10 + life].header = header(
            10 + life, start_s=START_S + 100 * life, phase_since_s=START_S + 100 * life + 50, recorded=5
        )
    assert rank.look() == 13
    assert rank.seated == [10, 11, 12, 13]


def test_a_child_that_outlives_a_dead_trainer_does_not_stand_in_for_it(rank: Rank) -> None:
    rank.begins(11, START_S + 10, parent=10)
    rank.steps(11, 3, START_S + 31)
    rank.ends(10, START_S + 32)
    assert rank.steps(11, 3, START_S + 33) == 10
    rank.begins(12, START_S + 34)
    assert rank.look() == 12


def test_the_launchers_own_count_of_attempts_is_believed(rank: Rank) -> None:
    rank.begins(12, START_S + 31, attempt=1)
    assert rank.look() == 12
    assert rank.steps(10, 3 * TAKE_OVER_STEPS, START_S + 60) == 12


def test_a_relaunch_beside_a_process_that_hangs_takes_over(rank: Rank) -> None:
    """Stopped in the kernel for good, it cannot even be killed."""
    rank.begins(12, START_S + 60)
    assert rank.steps(12, TAKE_OVER_STEPS - 1, START_S + 80) == 10
    assert rank.steps(12, 2, START_S + 82) == 12


def test_the_real_training_in_a_child_of_a_wrapper_that_made_a_probe(tmp_path: Path) -> None:
    wrapped = Rank(tmp_path)
    wrapped.begins(10, START_S)
    wrapped.steps(10, 2, START_S + 2)
    wrapped.begins(11, START_S + 3, parent=10)
    assert wrapped.steps(11, TAKE_OVER_STEPS + 1, START_S + 30) == 11


def test_who_was_there_first_trains_from_its_first_step_on(tmp_path: Path) -> None:
    """A probe in a child while the parent still compiles its model."""
    compiling = Rank(tmp_path)
    compiling.begins(10, START_S)
    assert compiling.look() == 10
    compiling.begins(11, START_S + 5, parent=10)
    assert compiling.steps(11, 4, START_S + 8) == 10
    assert compiling.steps(11, TAKE_OVER_STEPS, START_S + 9) == 11
    assert compiling.steps(10, 1, START_S + 60) == 10


def test_an_agent_that_starts_again_believes_the_one_before(rank: Rank) -> None:
    rank.begins(12, START_S + 60)
    assert rank.steps(12, TAKE_OVER_STEPS + 1, START_S + 82) == 12
    kept = {pid: source.position() for pid, source in rank.sources.items()}
    for pid, source in rank.sources.items():
        source.trains = source.trained = False
        source.restore(kept[pid])
    rank.trainers = Trainers(rank.folder)
    assert rank.look() == 12
