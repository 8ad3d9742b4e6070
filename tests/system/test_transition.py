"""Ranks that die at each moment of a step: the survivors finish it, with the parameters of a job that lost nobody."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.system.torchrun_nodes import TorchrunNodes
from tests.torch_forks import TorchForks
from tests.transition_jobs import RANKS, SCRIPT, Ended, Jobs
from trainwarden import rundir
from trainwarden.topics import EVENTS

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory, torch_forks: TorchForks) -> Jobs:
    return Jobs(tmp_path_factory.mktemp("jobs"), torch_forks)


@pytest.fixture(scope="module")
def whole(jobs: Jobs) -> dict[str, torch.Tensor]:
    ended = jobs.run()
    assert ended.codes == {rank: [0] for rank in range(RANKS)}
    assert not ended.again()
    return ended.weights[0]


OWN = {rank: [*range(3 * rank, 3 * rank + 3)] for rank in range(RANKS)}


@pytest.mark.parametrize(
    ("rank", "where"), [(0, "forward"), (2, "backward"), (0, "reduce"), (3, "reduce"), (2, "commit")]
)
def test_the_survivors_finish_the_step_of_a_rank_that_dies(
    jobs: Jobs, whole: dict[str, torch.Tensor], rank: int, where: str
) -> None:
    ended = jobs.run(f"{rank}:5:{where}")
    assert ended.codes == {one: [-9] if one == rank else [0] for one in range(RANKS)}
    assert len(ended.weights) == RANKS - 1
    assert ended.is_as(whole)
    assert ended.again() == ([] if where == "commit" else [[5, index] for index in OWN[rank]])


@pytest.mark.parametrize(
    "dies",
    [
        ("1:5:backward", "3:5:agree"), ("1:5:reduce", "2:5:reduce"), ("0:0:forward", "1:0:backward"),
        ("1:3:reduce", "2:6:commit"),
    ],
    ids=["in-the-transition", "two-at-once", "in-the-first-step", "one-after-the-other"],
)  # fmt: skip
def test_a_second_death_is_survived_as_well(jobs: Jobs, whole: dict[str, torch.Tensor], dies: tuple[str, str]) -> None:
    ended = jobs.run(*dies)
    assert sorted(code for codes in ended.codes.values() for code in codes) == [-9, -9, 0, 0]
    assert ended.is_as(whole)


def test_a_newcomer_joins_with_the_state_of_a_survivor(jobs: Jobs) -> None:
    whole = jobs.run(stop=400)
    ended = jobs.run("2:5:reduce", renew=True, stop=400)
    assert ended.codes == {0: [0], 1: [0], 2: [-9, 0], 3: [0]}
    assert len(ended.weights) == RANKS
    assert ended.is_as(whole.weights[0])
    assert {one["members"] for one in ended.notes.values()} == {RANKS}
    first = min(number for number, _, _ in ended.notes[2]["computed"])
    assert 5 < first < 400


def test_plain_torchrun_starts_a_dead_rank_again_alone_and_its_job_ends_well(
    tmp_path: Path, torch_forks: TorchForks, jobs: Jobs
) -> None:
    """With our rendezvous. What becomes of ranks whose script has said nothing is in `test_torchrun`."""
    out = tmp_path / "ranks"
    out.mkdir()
    nodes = TorchrunNodes(tmp_path, str(SCRIPT), "400", str(out), "2:5:reduce", nodes=1, forks=torch_forks)
    try:
        nodes.start("a", PET_NPROC_PER_NODE=str(RANKS))
        assert set(nodes.codes().values()) == {0}, (tmp_path / "a.log").read_text()
    finally:
        nodes.close()
    left = Ended.read(out, RANKS)
    assert left.is_as(jobs.run(stop=400).weights[0])
    assert len(left.weights) == RANKS
    assert left.again() == [[5, index] for index in OWN[2]]
    lines = (nodes.run_dir("a") / rundir.EVENTS).read_bytes().splitlines()
    events = [EVENTS.decode(line) for line in lines]
    ends = [event for event in events if event.kind == "process_exit" and event.fields.get("code") != 0]
    assert [(one.rank, one.fields["signal"], one.fields["renewed"]) for one in ends] == [(2, "SIGKILL", True)]
    died, joined = (event.fields for event in events if event.kind == "transition")
    assert (died["gone"], died["step"], died["ranks"]) == ("2", 5, RANKS - 1)
    assert (joined["joined"], joined["source"], joined["ranks"]) == ("2", "0", RANKS)
    assert {"members_s", "group_s", "state_s", "again_s"} <= died.keys()
    assert not any(event.kind == "restart" for event in events)
