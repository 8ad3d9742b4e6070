"""A suspicion in the middle of a job: its ranks stand still while it is measured, and go on with the next step."""

from __future__ import annotations

import os
import re
import subprocess
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.places import ROOT
from tests.system.runs import LEAN, WARDEN
from trainwarden import rundir
from trainwarden.bus.address import connect
from trainwarden.hook import Header, read_header
from trainwarden.records import ActionRecord, IncidentRecord, Suspect
from trainwarden.topics import ACTIONS, INCIDENTS

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

SHARES = """
    import time
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from trainwarden import hook

    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    share = hook.TrainingShare(8, model)
    for step in range(100_000):
        for micro in share.step(step):
            with micro.sync():
                model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.05)
        print(f"step {step}", flush=True)
"""
# Knows of nothing. Its only weight is a sum of inputs that floats hold exactly: one step twice or left out would show.
UNCHANGED = """
    import time
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        model.module.weight.zero_()
    optimizer = torch.optim.SGD(model.parameters(), 1 / 1024)
    for step in range(100_000):
        for micro in range(2):
            model.require_backward_grad_sync = micro == 1
            model(torch.full((1, 1), float((7 * step + 3 * dist.get_rank() + micro) % 16))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.05)
        print(f"step {step} weight {model.module.weight.item()}", flush=True)
"""


def weight_after(step: int) -> float:
    """Of the same steps without any pause."""
    inputs = ((7 * one + 3 * rank + micro) % 16 for one in range(step + 1) for rank in range(4) for micro in range(2))
    return -sum(inputs) / 4 / 1024


# Rank 3's products take twice as long, in the validation alone.
FAULT = """
    import sys
    from importlib.abc import MetaPathFinder
    from importlib.util import find_spec

    class Slow(MetaPathFinder):
        def find_spec(self, name, path, target=None):
            if name != "trainwarden.actions.validation.running.gemm":
                return None
            sys.meta_path.remove(self)
            spec = find_spec(name)
            load = spec.loader.exec_module
            def exec_module(module):
                load(module)
                burn_in = module.burn_in
                def slow(rank, *more):
                    import torch
                    product = torch.mm
                    if rank == 3:
                        torch.mm = lambda left, right: (product(left, right), product(left, right))[1]
                    return burn_in(rank, *more)
                module.burn_in = slow
            spec.loader.exec_module = exec_module
            return spec

    if "validate" in sys.orig_argv:
        sys.meta_path.insert(0, Slow())
"""


def headers(run_dir: Path) -> list[Header]:
    found = [read_header(path) for path in (run_dir / rundir.HOOK).glob("*.hook")]
    return [header for header in found if header is not None]


def wait_for(what: Callable[[], bool], job: subprocess.Popen[bytes], within_s: float = 240.0) -> None:
    until_s = time.monotonic() + within_s
    while not what():
        assert job.poll() is None
        assert time.monotonic() < until_s
        time.sleep(0.05)


@pytest.mark.parametrize("loop", [SHARES, UNCHANGED], ids=["takes part", "is held"])
def test_a_suspect_is_confirmed_while_training_stands_still_and_training_goes_on(tmp_path: Path, loop: str) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(textwrap.dedent(FAULT))
    (tmp_path / "train.py").write_text(textwrap.dedent(loop))
    run_dir = tmp_path / "run"
    environ = {
        **os.environ, "PYTHONPATH": f"{tmp_path / 'site'}:{ROOT}", "TRAINWARDEN_RUN_DIR": str(run_dir),
        "TRAINWARDEN_NODE": "node-b", **LEAN,
    }  # fmt: skip
    launch = ["launch", "--nproc", "4", "--job", "job", "--mode", "auto"]
    launch += ["--", "python", str(tmp_path / "train.py")]
    job = subprocess.Popen([*WARDEN, *launch], env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: [header.stands for header in headers(run_dir)] == [0] * 4, job)
        bus = connect(f"embedded:{rundir.bus_file(run_dir)}")
        now_s = time.time()
        suspicion = IncidentRecord(
            id="i1", job="job", kind="metric_anomaly", severity="sev3", state="opened", revision=0, opened_at_s=now_s,
            updated_at_s=now_s, reason="unlike others", suspects=(Suspect(score=0.9, reason="", node="node-b"),),
        )  # fmt: skip
        bus.publish(INCIDENTS, "job", suspicion)
        bus.flush()

        def actions() -> list[ActionRecord]:
            return [message.record for message in bus.read(ACTIONS)]

        wait_for(lambda: {header.stands for header in headers(run_dir)} == {1}, job)
        stood = {header.step for header in headers(run_dir)}
        assert len(stood) == 1
        wait_for(lambda: any(one.kind == "evict_node" for one in actions()), job)
        validated = next(one for one in actions() if one.kind == "validate" and one.outcome == "done")
        assert (validated.plan["verdict"], validated.plan["confirmed"]) == ("confirmed", ["node-b"])
        assert re.search(r"confirmed: rank 3 on node-b computes \d\.\d+ times as long as its peers", validated.why)
        assert actions()[-1].why == "this launcher cannot evict a node; a person must"
        wait_for(lambda: min(header.step for header in headers(run_dir)) > max(stood) + 10, job)
        assert [one.kind for one in actions() if one.outcome == "started"] == ["validate"]
        assert not (run_dir / rundir.PAUSE).exists()
        bus.close()
        for rank in range(4) if loop == UNCHANGED else ():
            said = re.findall(r"^step (\d+) weight (\S+)$", (run_dir / "logs" / f"rank-{rank}.log").read_text(), re.M)
            assert [int(step) for step, _ in said] == list(range(len(said)))
            assert [float(weight) for _, weight in said] == [weight_after(int(step)) for step, _ in said]
    finally:
        job.terminate()
        job.wait(60)
