"""Who and when, where another file or another line than the first tells it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.detectors.last_words.judged import judged, only, steps

LOSSES = ["{{'loss': {loss}, 'grad_norm': {norm}, 'learning_rate': 1e-05, 'epoch': 0.{step:02d}}}"] * 60


def own_times(rank: int, slow: float, since: int = 30) -> list[str]:
    """Step lines of one rank, whose own work takes `slow` times as long as usual."""
    own = [2.0 * (slow if step >= since else 1.0) for step in range(60)]
    return [
        f"2026-11-04 08:{step // 10:02d}:{step % 10 * 6:02d},001 - root - INFO - [gh0{rank}][rank {rank}] step: {step:4d}  "  # noqa: E501
        f"loss: 2.50  step_time: 4.500s  compute: {one:.3f}s  comm_wait: {4.5 - one:.3f}s"
        for step, one in enumerate(own)
    ]


def test_the_rank_whose_own_work_takes_longer_is_named_by_the_step_lines_of_all(tmp_path: Path) -> None:
    files = {f"rank{rank}.log": own_times(rank, 2.0 if rank == 2 else 1.0) for rank in range(4)}
    found = [one for one in judged(tmp_path, files) if one.kind == "slow_compute"]
    assert [one.suspects[0].rank for one in found] == [2]


@pytest.mark.parametrize(("ranks", "slow"), [(4, ()), (4, (1, 2)), (2, (1,))])
def test_even_several_and_few_ranks_accuse_none(tmp_path: Path, ranks: int, slow: tuple[int, ...]) -> None:
    files = {f"rank{rank}.log": own_times(rank, 2.0 if rank in slow else 1.0) for rank in range(ranks)}
    assert not [one for one in judged(tmp_path, files) if one.kind == "slow_compute"]


def test_the_gradient_that_was_no_number_before_the_loss_is_what_is_told(tmp_path: Path) -> None:
    values = [("2.1", "0.5")] * 40 + [("9.8", "nan")] * 3 + [("0.0", "nan")] * 5
    lines = [LOSSES[0].format(loss=loss, norm=norm, step=step) for step, (loss, norm) in enumerate(values)]
    (found,) = judged(tmp_path, {"train.log": lines})
    assert "gradient norm is nan" in found.reason
    well = [LOSSES[0].format(loss="2.1", norm="nan" if step == 40 else "0.5", step=step) for step in range(60)]
    (tmp_path / "well").mkdir()
    assert not judged(tmp_path / "well", {"train.log": well})


def test_who_aborts_as_another_ranks_heartbeats_are_missed_is_no_witness_of_its_end(tmp_path: Path) -> None:
    missed = "2026-11-04 08:07:27.140058: E coordination_service.cc:954] UNAVAILABLE: Task /job:jax_worker/replica:0/task:37 heartbeat timeout."  # noqa: E501
    (found,) = judged(tmp_path, {"worker-0.log": [*steps("08:05:00", 30), missed, "Fatal Python error: Aborted"]})
    assert (found.kind, found.suspects[0].rank) == ("crash", 37)
    assert "sent no heartbeats" in found.reason
    (tmp_path / "own").mkdir()
    assert only(tmp_path / "own", *steps("08:05:00", 30), "Fatal Python error: Aborted", missed)[0] == "crash"


def test_each_node_that_slurmctld_lists_is_named(tmp_path: Path) -> None:
    said = "[2026-11-04T08:05:30.000] error: Nodes node[03,05] not responding, setting DOWN"
    (found,) = judged(tmp_path, {"slurmctld.log": [said], "train.log": steps("08:05:00", 30)})
    assert (found.kind, [one.node for one in found.suspects]) == ("node_lost", ["node03", "node05"])
