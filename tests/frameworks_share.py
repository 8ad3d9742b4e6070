"""Whether a rebalanced job of a framework ends at the weights of the even split: by hand, where the framework is.

    python -m tests.frameworks_share --packages DIR

DIR as for `tests.frameworks`. Runs Accelerate's loop and Hugging Face's Trainer (the plain one, and `SharingTrainer` of
examples/hf_trainer.py) on two ranks, and prints the largest difference between weights, and the micro-batches that each
rank ran by the hook's account. Both use plain gradient descent: Adam would forgive losses that are weighted wrongly.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.places import ROOT
from tests.rank_environment import environment, put_plan
from trainwarden import rundir
from trainwarden.hook import read_steps

RANKS, MICRO_BATCHES, STEPS = 2, 8, 20
UNEVEN: Final = (2, 6)
JOBS: Final = {
    "accelerate": ROOT / "tests" / "scripts" / "frameworks" / "accelerate_share.py",
    "transformers Trainer": ROOT / "examples" / "hf_trainer.py",
}


def main() -> None:
    """Each job evenly and unevenly split."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True)
    packages = parser.parse_args().packages.absolute()
    sys.path.append(str(packages / "transformers"))
    failed = False
    for name, script in JOBS.items():
        with tempfile.TemporaryDirectory() as scratch:
            weights, ran = [], []
            for plan in ((), UNEVEN):
                folder = Path(scratch) / ("uneven" if plan else "even")
                weights.append(trained(script, folder, packages, plan))
                ran.append(micro_batches(folder))
            apart = largest_difference(*weights)
        print(f"{name}: {ran[0]} and {ran[1]} micro-batches a step; weights differ by {apart:.1e} at most", flush=True)
        failed = failed or apart > 1e-6 or ran != [[MICRO_BATCHES // RANKS] * RANKS, list(UNEVEN)]
    sys.exit(int(failed))


def trained(script: Path, folder: Path, packages: Path, plan: tuple[int, ...]) -> Path:
    """The weights at the end of a job."""
    for name in (rundir.HOOK, rundir.LOGS):
        (folder / name).mkdir(parents=True)
    if plan:
        put_plan(folder, plan)
    paths = [str(ROOT), str(packages / "transformers"), str(script.parent)]
    environ = {**environment(folder), "PYTHONPATH": os.pathsep.join(paths)}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), "--master-port", "29833"]
    words = ["--steps", str(STEPS), "--micro-batches", str(MICRO_BATCHES), "--folder", str(folder)]
    subprocess.run([*torchrun, str(script), *words], env=environ, cwd=folder, check=True, timeout=600)
    return folder / "model.safetensors"


def micro_batches(folder: Path) -> list[int | None]:
    """Of the last step, by rank."""
    found = [read_steps(path) for path in sorted((folder / rundir.HOOK).glob("rank-*.hook"))]
    return [steps[-1].micro_batches for steps in found if steps]


def largest_difference(one: Path, other: Path) -> float:
    """Between two files of the same tensors."""
    from safetensors.torch import load_file

    left, right = load_file(one), load_file(other)
    assert left.keys() == right.keys()
    return max(float((left[name] - right[name]).abs().max()) for name in left)


if __name__ == "__main__":
    main()
