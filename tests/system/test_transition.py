"""Ranks that die at each moment of a step: the survivors finish it, with the parameters of a job that lost nobody."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.distributed import TCPStore

from tests.places import ROOT
from tests.system.runs import SCRIPTS
from tests.torch_forks import Forked, TorchForks

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]
RANKS, STOP, TOTAL = 4, 8, 12
PATIENCE_S = 240.0


class Ended(NamedTuple):
    """What the ranks of a job left: exit codes of all processes, parameters and notes of those that came to the end."""

    codes: dict[int, list[int]]
    weights: list[dict[str, torch.Tensor]]
    notes: dict[int, Any]

    def again(self) -> list[list[int]]:
        """Step and micro-batch of all that was computed again."""
        return sorted([number, index] for one in self.notes.values() for number, index, again in one["computed"] if again)


class Jobs:
    """Jobs of four ranks over a store of their own."""

    def __init__(self, folder: Path, forks: TorchForks) -> None:
        self.folder, self._forks, self._count = folder, forks, 0

    def run(self, *dies: str, renew: bool = False, stop: int = STOP) -> Ended:
        """Run a job to its end; with `renew`, a rank that has died is started again."""
        self._count += 1
        out = self.folder / str(self._count)
        out.mkdir()
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=datetime.timedelta(seconds=60))
        running = {rank: self._start(rank, store.port, out, stop, dies) for rank in range(RANKS)}
        codes: dict[int, list[int]] = {rank: [] for rank in running}
        deadline_s = time.monotonic() + PATIENCE_S
        while running:
            assert time.monotonic() < deadline_s, {one.name: one.read_text() for one in out.glob("*.log")}
            for rank, process in [*running.items()]:
                if (code := process.poll()) is None:
                    continue
                codes[rank].append(code)
                del running[rank]
                if code and renew:
                    running[rank] = self._start(rank, store.port, out, stop, dies)
            time.sleep(0.02)
        files = sorted(out.glob("rank-*.pt"))
        return Ended(
            codes, [torch.load(one) for one in files],
            {rank: json.loads((out / f"rank-{rank}.json").read_text()) for rank in codes if codes[rank][-1] == 0},
        )  # fmt: skip

    def _start(self, rank: int, port: int, out: Path, stop: int, dies: tuple[str, ...]) -> Forked:
        environ = {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True", "PYTHONPATH": str(ROOT),
            "TRAINWARDEN_HOOK": "0",
        }  # fmt: skip
        words = [str(SCRIPTS / "resilient_step.py"), str(stop), str(out), *dies]
        return self._forks.start(words, environ, folder=out, log=out / f"rank-{rank}.log")


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory, torch_forks: TorchForks) -> Jobs:
    return Jobs(tmp_path_factory.mktemp("jobs"), torch_forks)


@pytest.fixture(scope="module")
def whole(jobs: Jobs) -> Iterator[dict[str, torch.Tensor]]:
    ended = jobs.run()
    assert ended.codes == {rank: [0] for rank in range(RANKS)}
    assert not ended.again()
    yield ended.weights[0]


def same(ended: Ended, whole: dict[str, torch.Tensor]) -> bool:
    return all((one[name] - whole[name]).abs().max() <= 1e-6 for one in ended.weights for name in whole)


OWN = {rank: [*range(3 * rank, 3 * rank + 3)] for rank in range(RANKS)}


@pytest.mark.parametrize("where", ["forward", "backward", "reduce", "commit"])
@pytest.mark.parametrize("rank", [0, 2])
def test_the_survivors_finish_the_step_of_a_rank_that_dies(
    jobs: Jobs, whole: dict[str, torch.Tensor], where: str, rank: int
) -> None:
    ended = jobs.run(f"{rank}:5:{where}")
    assert ended.codes == {one: [-9] if one == rank else [0] for one in range(RANKS)}
    assert len(ended.weights) == RANKS - 1
    assert same(ended, whole)
    if where != "commit":
        assert ended.again() == [[5, index] for index in OWN[rank]]


@pytest.mark.parametrize(
    "dies",
    [("1:5:backward", "3:5:agree"), ("1:5:reduce", "2:5:reduce"), ("0:0:forward", "1:0:backward"), ("1:3:reduce", "2:6:commit")],
    ids=["in-the-transition", "two-at-once", "in-the-first-step", "one-after-the-other"],
)  # fmt: skip
def test_a_second_death_is_survived_as_well(
    jobs: Jobs, whole: dict[str, torch.Tensor], dies: tuple[str, str]
) -> None:
    ended = jobs.run(*dies)
    assert sorted(code for codes in ended.codes.values() for code in codes) == [-9, -9, 0, 0]
    assert same(ended, whole)


@pytest.mark.parametrize("where", ["backward", "reduce", "commit"])
def test_a_newcomer_joins_with_the_state_of_a_survivor(
    jobs: Jobs, where: str
) -> None:
    whole = jobs.run(stop=400)
    ended = jobs.run(f"2:5:{where}", renew=True, stop=400)
    assert ended.codes == {0: [0], 1: [0], 2: [-9, 0], 3: [0]}
    assert len(ended.weights) == RANKS
    assert same(ended, whole.weights[0])
    assert {one["members"] for one in ended.notes.values()} == {RANKS}
    first = min(number for number, _, _ in ended.notes[2]["computed"])
    assert 5 < first < 400
