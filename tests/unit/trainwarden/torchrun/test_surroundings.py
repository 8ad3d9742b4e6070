"""What stands still around ranks, a disk or a store, holds up neither the connection nor a look that is waited for."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.unit.trainwarden.hook.test_planted_files import in_time
from trainwarden.checkpoints.newest import Search
from trainwarden.torchrun import memory, surroundings
from trainwarden.torchrun.memory import MemoryFolder, NotFilled, Overtaken
from trainwarden.torchrun.surroundings import Surroundings


def test_a_ring_is_told_while_a_keeper_that_is_being_started_waits_for_the_disk(tmp_path: Path) -> None:
    environ = {"TRAINWARDEN_RUN_DIR": str(tmp_path), "TRAINWARDEN_CHECKPOINTS_STORE": str(tmp_path / "store")}
    around = Surroundings("j", "n", environ, print, alone=False)
    kept, ring = around._memory, tmp_path / "keeper" / "ring.json"
    assert kept is not None
    ring.parent.mkdir()
    with kept._guard:
        in_time(lambda: around.tell_keeper({"ring": {"round": 1}}))
        assert not ring.exists()
    until_s = time.monotonic() + 60.0
    while not ring.exists():
        assert time.monotonic() < until_s
        time.sleep(0.01)
    in_time(around.close)


def test_a_look_that_is_waited_for_comes_at_once_also_where_no_checkpoint_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surroundings, "LOOK_S", 600.0)
    monkeypatch.setattr(surroundings, "LOOKED_S", 5.0)
    environ = {"TRAINWARDEN_RUN_DIR": str(tmp_path), "TRAINWARDEN_CHECKPOINTS": str(tmp_path)}
    around, answers, looks = (
        Surroundings("j", "n", environ, lambda found: None),
        [(1, "step-1.pt", 1)],
        threading.Event(),
    )

    def newest(_folder: Path) -> tuple[int, str, int | None] | None:
        looks.set()
        return answers.pop() if answers else None

    around._newest = newest  # type: ignore[method-assign]
    around.start()
    assert looks.wait(60.0)
    for _ in range(4):
        looks.clear()
        around.look_again()
        assert looks.is_set()
    around.close()


@pytest.mark.thorough
def test_a_store_that_stands_still_is_left_once_another_round_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stands = threading.Event()
    monkeypatch.setattr(Search, "_run", lambda search, folder: stands.wait(600.0))
    environ = {"TRAINWARDEN_CHECKPOINT_MEMORY": str(tmp_path / "memory"), "TRAINWARDEN_KEEPER_TIMEOUT_S": "0.1"}
    made = MemoryFolder("j", str(tmp_path), environ, tmp_path, node="n", alone=True, found=print)
    asked: list[int] = []

    def fill(overtaken) -> type[Exception] | None:
        try:
            made.fill("key", 1, overtaken)
        except (NotFilled, Overtaken) as error:
            return type(error)
        return None

    assert in_time(lambda: fill(lambda: asked.append(1) or len(asked) > 5)) is Overtaken
    monkeypatch.setattr(memory, "_STILL_S", 0.5)
    assert in_time(lambda: fill(lambda: False)) is NotFilled
    stands.set()
