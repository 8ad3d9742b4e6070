"""An unchanged script: it saves with `torch.save` into a given folder, and ends with code 7 after `CRASH_AT` steps."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from trainwarden import hook

crash_at, last = int(sys.argv[1]), int(sys.argv[2])
folder = Path(os.environ["TRAINWARDEN_CHECKPOINTS"])
step = 0
if "TRAINWARDEN_RESUME_FROM" in os.environ:
    step = torch.load(os.environ["TRAINWARDEN_RESUME_FROM"], weights_only=True)["step"]
print(f"attempt {os.environ['TRAINWARDEN_ATTEMPT']} from {step} in {folder}", flush=True)
while step < last:
    hook.set_step(step)
    step += 1
    if step % 5 == 0:
        part = folder / "unfinished.part"
        torch.save({"step": step, "data": torch.full((100_000,), float(step))}, part)
        part.replace(folder / f"step-{step}.pt")
    if step == crash_at and os.environ["TRAINWARDEN_ATTEMPT"] == "0":
        sys.exit(7)
