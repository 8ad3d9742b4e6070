"""`hook.TrainingShare` in real gloo jobs: replicas of two ranks, unequal numbers of tokens, pauses, refusals."""

from __future__ import annotations

import json
import re
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rank_environment import environment, put_plan
from tests.torch_forks import Forked, TorchForks
from trainwarden import rundir
from trainwarden.hook import Header, read_header

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

RANKS, TOTAL = 4, 6
SCRIPT = """
    import json, os, pathlib, sys, time
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from trainwarden import hook

    kind, steps = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pairs = [(0, 2), (1, 3)]  # a replica is ranks 0 and 1, or 2 and 3
    groups = [dist.new_group(pair, group_desc="DATA_PARALLEL_GROUP") for pair in pairs]
    members, group = pairs[rank % 2], groups[rank % 2]
    replica = [dist.new_group(ranks, group_desc="TENSOR_MODEL_PARALLEL_GROUP") for ranks in ((0, 1), (2, 3))][rank // 2]
    torch.manual_seed(rank % 2)
    layers = [torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)]
    network = torch.nn.Sequential(*layers, *([torch.nn.BatchNorm1d(1)] if kind == "norm" else [])).double()
    model = DistributedDataParallel(network, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    share = hook.TrainingShare(6, model, group=members)
    rows = [2, 7, 3, 9, 4, 5]  # of each micro-batch: its tokens
    for step in range(steps):
        done = 0
        for micro in share.step(step):
            torch.manual_seed(1000 * step + micro.index)
            data = torch.randn(rows[micro.index], 3, dtype=torch.float64)
            with micro.sync():
                out = model(data)
                dist.all_reduce(out.detach().clone()[:1], group=replica)  # its other half has come as far
                loss = (out - data.sum(1, keepdim=True)).square().mean()
                (loss * micro.weight_of(rows[micro.index], sum(rows))).backward()
            done += 1
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step} ran {done} at {time.time():.3f}", flush=True)
        if kind == "slow":
            time.sleep(0.02)
    pathlib.Path(f"weights-{rank}.json").write_text(json.dumps([one.tolist() for one in network.parameters()]))
    share.close()
    dist.barrier()
    dist.destroy_process_group()
"""


Run = Callable[..., Forked]


@pytest.fixture
def start(torch_forks: TorchForks) -> Run:
    def begin(run_dir: Path, kind: str = "plain", steps: int = 6, plan: tuple[int, ...] = ()) -> Forked:
        for folder in (rundir.HOOK, rundir.LOGS):
            (run_dir / folder).mkdir(parents=True)
        if plan:
            put_plan(run_dir, plan)
        (run_dir / "train.py").write_text(textwrap.dedent(SCRIPT))
        own = environment(run_dir)
        words = [str(run_dir / "train.py"), kind, str(steps)]
        return torch_forks.start(words, own, folder=run_dir, log=rundir.rank_log(run_dir, 0), ranks=RANKS)

    return begin


def ended(job: Forked, run_dir: Path) -> tuple[list[list[float]], list[int]]:
    """Weights of every rank, and how many micro-batches rank 0 ran in each step."""
    assert job.wait() == 0, rundir.rank_log(run_dir, 0).read_text()[-3000:]
    weights = [_flat(json.loads((run_dir / f"weights-{rank}.json").read_text())) for rank in range(RANKS)]
    return weights, [int(ran) for ran in re.findall(r" ran (\d+)", rundir.rank_log(run_dir, 0).read_text())]


def _flat(value: object) -> list[float]:
    return [number for one in value for number in _flat(one)] if isinstance(value, list) else [float(str(value))]


def headers(run_dir: Path) -> list[Header]:
    found = [read_header(path) for path in (run_dir / rundir.HOOK).glob("*.hook")]
    return [header for header in found if header is not None]


def test_replicas_of_two_ranks_with_unequal_tokens_end_at_the_same_weights(start: Run, tmp_path: Path) -> None:
    even, ran = ended(start(tmp_path / "even"), tmp_path / "even")
    assert set(ran) == {3}
    uneven, ran = ended(start(tmp_path / "uneven", plan=(1, 1, 5, 5)), tmp_path / "uneven")
    assert set(ran) == {1}
    for rank in range(RANKS):
        assert uneven[rank] == pytest.approx(even[rank], rel=1e-9, abs=1e-12)
        assert even[rank] == pytest.approx(even[(rank + 2) % RANKS], rel=1e-12)


def test_a_plan_that_takes_ranks_for_replicas_is_not_taken_up(start: Run, tmp_path: Path) -> None:
    """It fits each data-parallel group, and would let the halves of a replica wait for each other for ever."""
    _, ran = ended(start(tmp_path / "run", plan=(1, 2, 5, 4)), tmp_path / "run")
    assert set(ran) == {3}


def test_a_model_with_batch_norm_keeps_the_even_split_and_says_why(start: Run, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    _, ran = ended(start(run_dir, "norm", plan=(1, 1, 5, 5)), run_dir)
    assert set(ran) == {3}
    said = [json.loads(path.read_text()) for path in (run_dir / rundir.HOOK).glob("*.groups")]
    assert len(said) == RANKS
    assert all(one["uneven"].startswith("BatchNorm: ") for one in said)


def test_all_ranks_stand_still_before_one_step_and_go_on(start: Run, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    job = start(run_dir, "slow", 60)
    log = rundir.rank_log(run_dir, 0)
    deadline = time.monotonic() + 60.0
    while not (log.exists() and "step 2 " in log.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    request = run_dir / rundir.PAUSE
    request.with_suffix(".part").write_text(json.dumps({"number": 1, "until_s": time.time() + 60.0}))
    request.with_suffix(".part").replace(request)
    while {header.phase for header in headers(run_dir)} != {"evaluation"}:
        assert job.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    still = {header.step for header in headers(run_dir)}
    assert len(still) == 1
    time.sleep(0.5)
    assert {header.step for header in headers(run_dir)} == still
    request.unlink()
    _, ran = ended(job, run_dir)
    assert ran == [3] * 60


def test_a_pause_that_nobody_takes_back_is_over_in_time(start: Run, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / rundir.PAUSE).write_text(json.dumps({"number": 7, "until_s": time.time() + 5.0}))
    began_s = time.time()
    job = start(run_dir)
    ended(job, run_dir)
    assert time.time() - began_s > 4.9
