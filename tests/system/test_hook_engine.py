"""Backward passes as torch's engine runs them, in real processes: what is seen, and that nothing else changes."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from tests.torch_forks import TorchForks
from trainwarden import hook

pytestmark = pytest.mark.system

pytest.importorskip("torch")

SCRIPT = """
    import json, sys, time, warnings
    warnings.filterwarnings("ignore")
    import torch
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    points = torch.randn(8, 4, requires_grad=True)

    def plain():
        model(points).sum().backward()

    def penalty():
        energy = model(points).sum()
        (force,) = torch.autograd.grad(energy, points, create_graph=True)
        (force.square().sum() + energy).backward()

    def recomputed():
        checkpoint(model, points, use_reentrant=True).sum().backward()

    def twice():
        loss = model(points).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()

    def engine():
        outputs = model(points)
        gradient = torch.ones_like(outputs)
        outputs.data = torch.empty((1,))
        torch.autograd.Variable._execution_engine.run_backward((outputs,), (gradient,), False, False, (), True, True)

    def compiled():
        forward = torch.compile(model, backend="aot_eager", fullgraph=True)
        forward(points).sum().backward()

    def functional():
        torch.func.hessian(lambda tensor: tensor.pow(3).sum())(torch.ones(3))
        torch.func.vmap(torch.func.grad(lambda tensor: tensor.square().sum()))(torch.ones(2, 3))
        torch.compile(torch.func.grad(lambda tensor: tensor.pow(3).sum()), backend="aot_eager", fullgraph=True)(
            torch.ones(3)
        )
        plain()

    def asked():
        for weight, gradient in zip(model.parameters(), torch.autograd.grad(model(points).sum(), model.parameters())):
            weight.grad = gradient

    def recompiled():
        def slow_backend(graph, inputs):
            time.sleep(0.8)
            return graph

        if step >= 2:
            torch._dynamo.reset_code_caches()
            torch.compile(model, backend=slow_backend)(points).sum().backward()
        else:
            plain()

    def compiled_autograd():
        with torch._dynamo.config.patch(compiled_autograd=True):
            compiled()

    for step in range(4):
        globals()[sys.argv[1]]()
        optimizer.step()
        optimizer.zero_grad()
    print(json.dumps([weight.tolist() for weight in model.parameters()]))
"""


def result(forks: TorchForks, folder: Path, kind: str, **environ: str) -> str:
    """What the script printed last."""
    script, out, err = folder / "script.py", folder / "out.txt", folder / "err.txt"
    script.write_text(textwrap.dedent(SCRIPT))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TRAINWARDEN_")}
    own = {**inherited, "OMP_NUM_THREADS": "1", **environ}
    ended = forks.start([str(script), kind], own, folder=folder, log=out, err=err)
    assert ended.wait() == 0, err.read_text()[-3000:]
    return out.read_text().splitlines()[-1]


@pytest.mark.parametrize(
    ("kind", "micro_batches"),
    [("penalty", 1), ("recomputed", 1), ("twice", 2), ("engine", 1), ("functional", 1), ("compiled_autograd", 1)],
)
def test_every_pass_is_seen_once_and_gives_what_it_gave(
    kind: str, micro_batches: int, torch_forks: TorchForks, tmp_path: Path
) -> None:
    expected = result(torch_forks, tmp_path, kind)
    (tmp_path / "hook").mkdir()
    assert result(torch_forks, tmp_path, kind, TRAINWARDEN_HOOK_DIR=str(tmp_path / "hook")) == expected
    (path,) = (tmp_path / "hook").glob("*.hook")
    header, rows = hook.read_header(path), hook.read_steps(path)
    assert header is not None
    assert rows is not None
    assert header.errors == 0
    assert [(row.source, row.micro_batches) for row in rows] == [("optimizer", micro_batches)] * 4


def test_steps_whose_gradients_were_asked_for_are_seen(torch_forks: TorchForks, tmp_path: Path) -> None:
    (tmp_path / "hook").mkdir()
    result(torch_forks, tmp_path, "asked", TRAINWARDEN_HOOK_DIR=str(tmp_path / "hook"))
    (path,) = (tmp_path / "hook").glob("*.hook")
    rows = hook.read_steps(path)
    assert rows is not None
    # Asking alone starts nothing: many do who do not train. The first optimizer's step does.
    assert [row.source for row in rows] == ["optimizer"] * 3


def test_a_compilation_is_a_pause_and_no_computing(torch_forks: TorchForks, tmp_path: Path) -> None:
    (tmp_path / "hook").mkdir()
    result(torch_forks, tmp_path, "recompiled", TRAINWARDEN_HOOK_DIR=str(tmp_path / "hook"))
    (path,) = (tmp_path / "hook").glob("*.hook")
    header, rows, pauses = hook.read_header(path), hook.read_steps(path), hook.read_pauses(str(path))
    assert header is not None
    assert rows is not None
    assert header.errors == 0
    assert [one.phase for one in pauses or ()] == ["compile"] * 2
    assert [row.pause_s >= 0.8 for row in rows] == [False, False, True, True]
    assert rows[3].duration_s >= 0.8 > rows[3].compute_s, "the one before imports the compiler"
