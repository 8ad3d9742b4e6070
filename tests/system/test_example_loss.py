"""The example job: uneven micro-batches and restarts change nothing about the loss; damaged checkpoints are skipped."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.places import ROOT
from tests.rank_environment import environment, put_plan
from tests.system.runs import TORCHRUN
from tests.torch_forks import TorchForks
from trainwarden import rundir
from trainwarden.hook import read_header

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

EXAMPLE = ROOT / "examples" / "train_gpt.py"
RANKS, STEPS, TOTAL = 3, 8, 9
LONG = 40  # a plan that is put down at step 2 has come long before
# Sums of float32 gradients in another order differ in the last places; a wrong scale or slice differs in the first.
TOLERANCE = 2e-4


Train = Callable[..., tuple[dict[int, float], str]]


@pytest.fixture(scope="module")
def train(torch_forks: TorchForks) -> Train:
    """Carries the example out in `run_dir`: loss by step, and what the ranks wrote."""

    def carry_out(
        run_dir: Path, *arguments: str, split: tuple[int, ...] = (), steps: int = STEPS
    ) -> tuple[dict[int, float], str]:
        for folder in (rundir.HOOK, rundir.LOGS):
            (run_dir / folder).mkdir(parents=True, exist_ok=True)
        if split:
            put_plan(run_dir, split)
        words = [str(EXAMPLE), "--steps", str(steps), "--micro-batches", str(TOTAL), "--micro-batch-ms", "1"]
        log = rundir.rank_log(run_dir, 0)
        before = len(log.read_text()) if log.exists() else 0
        own = environment(run_dir)
        job = torch_forks.start([*words, *arguments], own, folder=run_dir, log=log, ranks=RANKS)
        code = job.wait()
        text = log.read_text()[before:]
        assert code == 0, text[-2000:]
        return {
            int(step): float(loss) for step, loss in re.findall(r"^step (\d+) loss (\S+)", text, re.MULTILINE)
        }, text

    return carry_out


@pytest.fixture(scope="module")
def even(train: Train, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses of the even split without interruption."""
    losses, text = train(tmp_path_factory.mktemp("even"))
    assert "split (3, 3, 3)" in text
    assert sorted(losses) == list(range(STEPS))
    assert losses[0] > losses[STEPS - 1] + 0.5  # it learns, so equal losses mean equal updates
    return losses


def test_an_uneven_split_has_the_same_losses(train: Train, even: dict[int, float], tmp_path: Path) -> None:
    losses, text = train(tmp_path, split=(1, 6, 2))
    assert "split (1, 6, 2)" in text
    assert losses == pytest.approx(even, abs=TOLERANCE)


def test_a_plan_of_another_total_is_passed_over(train: Train, even: dict[int, float], tmp_path: Path) -> None:
    losses, text = train(tmp_path, split=(1, 1, 1), steps=2)
    assert "split (3, 3, 3)" in text
    assert losses == pytest.approx({step: even[step] for step in (0, 1)}, abs=TOLERANCE)


def test_resuming_gives_the_same_losses_and_a_cut_checkpoint_is_skipped(
    train: Train, even: dict[int, float], tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    arguments = ["--checkpoint-dir", str(folder), "--checkpoint-every", "2"]
    first, _ = train(tmp_path, *arguments, steps=6)
    assert first == pytest.approx({step: even[step] for step in range(6)}, abs=TOLERANCE)
    assert [path.name for path in sorted(folder.iterdir())] == [f"step-{step:08d}.pt" for step in (2, 4, 6)]
    newest = folder / "step-00000006.pt"
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    (folder / "step-00000005.pt").write_bytes(b"")
    second, text = train(tmp_path, *arguments)
    assert text.count("is damaged") == 2
    assert "training from step 4 to 8" in text
    assert second == pytest.approx({step: even[step] for step in range(4, STEPS)}, abs=TOLERANCE)


def test_a_plan_that_comes_while_training_is_taken_up_by_all_ranks_at_one_step(
    train: Train, even: dict[int, float], tmp_path: Path
) -> None:
    found: list[tuple[dict[int, float], str]] = []
    training = threading.Thread(target=lambda: found.append(train(tmp_path, steps=LONG)))
    training.start()
    log = rundir.rank_log(tmp_path, 0)
    deadline = time.monotonic() + 60.0
    while not (log.exists() and "step 2 " in log.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    put_plan(tmp_path, (1, 6, 2))
    training.join(90.0)
    losses, text = found[0]
    assert "split (3, 3, 3)" in text
    headers = [read_header(path) for path in (tmp_path / rundir.HOOK).glob("*.hook")]
    assert len(headers) == RANKS
    taken_up = {(header.plan, header.plan_step) for header in headers if header}
    assert len(taken_up) == 1
    ((number, step),) = taken_up
    assert number == 1
    assert 2 <= step < LONG - 1
    assert losses[STEPS - 1] == pytest.approx(even[STEPS - 1], abs=TOLERANCE)
    unbroken, _ = train(tmp_path / "even", steps=LONG)
    # Many updates carry rounding further.
    assert losses[LONG - 1] == pytest.approx(unbroken[LONG - 1], abs=50 * TOLERANCE)


def test_other_seeds_give_other_losses(train: Train, even: dict[int, float], tmp_path: Path) -> None:
    losses, _ = train(tmp_path, "--seed", "1", steps=1)
    assert abs(losses[0] - even[0]) > 10 * TOLERANCE


def test_it_runs_without_trainwarden(tmp_path: Path) -> None:
    """By any launcher, and where trainwarden is not installed."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "trainwarden.py").write_text("raise ImportError('not installed')")
    (tmp_path / "alone.py").write_bytes(EXAMPLE.read_bytes())
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    words = ("--steps", "2", "--micro-batches", "2", "--micro-batch-ms", "1")
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", str(tmp_path / "alone.py"), *words]
    ran = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "step 1 loss" in ran.stdout
    assert "split (1, 1)" in ran.stdout


def test_an_order_to_another_rank_may_vanish_at_any_moment(tmp_path: Path) -> None:
    """The rank that is meant takes the file away while the others look: it was there, and is not when it is read."""
    look = """
import pathlib, sys
sys.path.insert(0, sys.argv[1])
import train_gpt

class Vanishing(type(pathlib.Path())):
    def exists(self):
        return True

train_gpt.obey(Vanishing(sys.argv[2]), 1)
"""
    words = (sys.executable, "-c", look, str(EXAMPLE.parent), str(tmp_path / "fault.json"))
    looked = subprocess.run(
        words, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert looked.returncode == 0, looked.stderr
