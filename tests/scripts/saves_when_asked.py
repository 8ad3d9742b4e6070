"""An unchanged script that saves at SIGUSR1 alone, as schedulers have scripts do, and ends once `end` lies beside."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch

from trainwarden import hook

asked = []
signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))
folder = Path(os.environ["TRAINWARDEN_CHECKPOINTS"])
step = 0
if "TRAINWARDEN_RESUME_FROM" in os.environ:
    step = torch.load(os.environ["TRAINWARDEN_RESUME_FROM"], weights_only=True)["step"]
print(f"attempt {os.environ['TRAINWARDEN_ATTEMPT']} from {step}", flush=True)
while not Path("end").exists():
    hook.set_step(step)
    step += 1
    time.sleep(0.05)
    if asked:
        asked.clear()
        torch.save({"step": step}, folder / "unfinished.part")
        (folder / "unfinished.part").replace(folder / f"step-{step}.pt")
        print(f"saved {step}", flush=True)
