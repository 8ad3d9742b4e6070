"""When a job grows: what is lost against what it costs, and a checkpoint that is new."""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from actions.launchers.cluster import growing
from actions.launchers.cluster.growing import LOOK_S, UNSEEN_RESTART_S, CheckpointWatch, Growing
from tests.examples import examples
from trainwarden.checkpoints.newest import Checkpoint


@examples(100)
@given(st.lists(st.tuples(st.floats(0.01, 50.0), st.integers(0, 3)), max_size=30), st.integers(1, 100))
def test_what_is_lost_is_the_sum_of_its_moments(steps: list[tuple[float, int]], there: int) -> None:
    """Against the same added up moment by moment, anew whenever nobody waits."""
    growing, now_s, lost_s, before = Growing("worth"), 0.0, 0.0, 0
    for seconds, more in steps:
        now_s += seconds
        lost_s = lost_s + seconds * before / (there + before) if more else 0.0
        before = more
        growing.see(there, more, now_s)
        assert growing.lost_s == pytest.approx(lost_s)
        assert growing.due(1.0) == (more > 0 and growing.lost_s >= 1.0)
        assert growing.due(None) == (more > 0 and growing.lost_s >= UNSEEN_RESTART_S)


class Folder:
    """Searches of a folder of checkpoints that come to what they are told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.newest: Checkpoint | None = None
        self.stuck, self.looks = False, 0
        folder = self

        class Looked:
            def __init__(self, _folder: Path) -> None:
                folder.looks += 1
                self.found = folder.newest

            @property
            def done(self) -> bool:
                return not folder.stuck

        monkeypatch.setattr(growing, "Search", Looked)

    def holds(self, step: int) -> Checkpoint:
        self.newest = Checkpoint(Path(f"ckpt/step-{step}.pt"), step, "torch")
        return self.newest


def test_a_checkpoint_that_was_there_is_not_new_and_the_next_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(monkeypatch)
    folder.holds(10)
    watch = CheckpointWatch(Path("ckpt"), 0.0)
    assert watch.newer(0.1) is None
    assert watch.newer(LOOK_S) is None
    newer = folder.holds(20)
    assert watch.newer(LOOK_S + 0.1) is None
    assert folder.looks == 2
    assert watch.newer(2 * LOOK_S) is None
    assert watch.newer(2 * LOOK_S + 0.1) == newer


def test_the_first_checkpoint_of_a_job_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(monkeypatch)
    watch = CheckpointWatch(Path("ckpt"), 0.0)
    assert watch.newer(LOOK_S) is None
    first = folder.holds(0)
    assert watch.newer(2 * LOOK_S) is None
    assert watch.newer(2 * LOOK_S + 0.1) == first


def test_a_checkpoint_that_went_away_again_is_not_new(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(monkeypatch)
    folder.holds(20)
    watch = CheckpointWatch(Path("ckpt"), 0.0)
    assert watch.newer(LOOK_S) is None
    folder.holds(10)
    assert watch.newer(2 * LOOK_S) is None
    assert watch.newer(2 * LOOK_S + 0.1) is None


def test_a_folder_that_does_not_answer_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(monkeypatch)
    folder.stuck = True
    watch = CheckpointWatch(Path("ckpt"), 0.0)
    for second in range(100):
        assert watch.newer(float(second)) is None
    assert folder.looks == 1
