"""A training script that fails in the way it is asked to: alone, as a rank, or in Hugging Face's Trainer."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
GUILTY = WORLD - 1 == RANK
FOLDER = Path(os.environ.get("FIRST_HOUR_FOLDER", "."))
STEPS = {
    "slow-rank": 160, "leak": 1_200, "leak-to-end": 3_000, "hang": 10_000, "load-8": 120, "ctrl-c": 3_000,
    "sigterm": 3_000, "detector-killed": 200,
}  # fmt: skip
LATE, EVERY = 25, 20
STEP_S = 0.1
LEAKED, LEAKED_STEPS = 1 << 20, 900
SLOWER = 4.0
_NEW_MOUNTS = 0x00020000  # CLONE_NEWNS of <sched.h>


def at_fault() -> None:
    """Note when the fault began, for the time to the answer."""
    if GUILTY:
        (FOLDER / "fault_at").write_text(repr(time.time()))


def at_start(what: str) -> None:
    """What goes wrong before the first step."""
    at_fault()
    if what == "missing-import":
        import no_such_module_of_mine  # noqa: F401
    elif what == "bad-argument":
        import argparse

        argparse.ArgumentParser().parse_args(["--learning-rat", "1"])
    elif what == "division":
        print(1 / 0)
    elif what == "missing-file":
        Path("/no/such/data.bin").read_bytes()
    elif what == "port-in-use":
        taken = socket.create_server(("127.0.0.1", 0))
        socket.create_server(taken.getsockname())
    elif what == "out-of-memory":
        bytearray(1 << 60)
    elif what == "child-fails":
        subprocess.run(["sh", "-c", "exit 3"], check=True)


class Faults:
    """What goes wrong on the way: called once before each step, by the rank that is to fail."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._leaked: list[bytearray] = []

    def before(self, step: int) -> None:
        """Do what is due at `step`."""
        if step == LATE and not self._what.startswith("loader-"):
            at_fault()
        if self._what == "leak-to-end" and step == LATE:
            limit_memory(LEAKED * LEAKED_STEPS)
        if self._what.startswith("leak"):
            self._leaked.append(bytearray(os.urandom(1024) * (LEAKED // 1024)))
        elif self._what == "slow-rank" and step >= LATE:
            time.sleep((SLOWER - 1.0) * STEP_S)
        elif step == LATE:
            self._once()

    def load(self, step: int) -> None:
        """Do what is due while the data of `step` are loaded."""
        if step == LATE and self._what.startswith("loader-"):
            at_fault()
            time.sleep(float(self._what.rpartition("-")[2]))

    def _once(self) -> None:
        if self._what == "exception":
            raise ValueError("labels do not fit")
        if self._what == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._what == "hang":
            while True:
                time.sleep(1.0)


def limit_memory(more: int) -> None:
    """Let this process have `more` bytes and no further, as a container does."""
    import resource

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, used + more))


def little_disk() -> Path:
    """A folder on a file system of one megabyte, which this process alone sees and which goes with it."""
    folder = FOLDER / "little"
    folder.mkdir(exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    for made in (
        lambda: libc.unshare(_NEW_MOUNTS),
        lambda: libc.mount(b"none", b"/", None, 0x40000 | 0x4000, None),  # MS_PRIVATE | MS_REC
        lambda: libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, b"size=1m"),
    ):
        if made() != 0:
            raise OSError(ctypes.get_errno(), "cannot mount a little disk")
    return folder


def alone(what: str) -> None:
    """A loop that marks its own steps, without torch."""
    from trainwarden import hook

    faults = Faults(what)
    for step in range(STEPS.get(what, 60)):
        faults.before(step)
        time.sleep(STEP_S)
        hook.iteration(step)


def rows(what: str, count: int, work_s: float) -> Any:
    """A data set each of whose rows stands for a step; loading one may be what goes wrong."""
    import torch

    class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
        faults = Faults(what)

        def __len__(self) -> int:
            return count

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            if GUILTY and work_s:
                self.faults.load(index)
            inputs = torch.randn(16)
            return {"inputs": inputs, "labels": inputs.sum(0, keepdim=True)}

    return Rows()


def model_of(what: str, work_s: float) -> Any:
    """A linear model one of whose passes takes as long as a device would, and in which things go wrong."""
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(16, 1)
            self.ballast = torch.nn.Parameter(torch.zeros(1 << 19 if what == "disk-full" else 1))
            self.faults, self.step = Faults(what), 0

        def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            if self.training:
                if GUILTY:
                    self.faults.before(self.step)
                self.step += 1
            time.sleep(work_s if self.training else work_s / 5)
            loss = (self.layer(inputs) - labels).square().mean() + self.ballast.sum() * 0.0
            if what == "nan-loss" and self.step > LATE:
                loss = loss * float("nan")
            return {"loss": loss}

    return Model()


def checkpointed(what: str) -> tuple[bool, Path]:
    """Whether a job saves checkpoints, and where to."""
    if what == "disk-full" and GUILTY:
        return True, little_disk()
    return what in {"pauses", "disk-full"}, FOLDER


def with_torch(what: str) -> None:
    """A loop of torch's: DDP under torchrun, one process else."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    saves, folder = checkpointed(what)
    plain = module = model_of(what, STEP_S)
    if WORLD > 1:
        dist.init_process_group("gloo")
        module = torch.nn.parallel.DistributedDataParallel(plain)
    optimizer = torch.optim.SGD(module.parameters(), 1e-3)
    loader = torch.utils.data.DataLoader(rows(what, STEPS.get(what, 60), STEP_S), batch_size=1)
    for step, batch in enumerate(loader):
        loss = module(**batch)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if RANK == 0:
            print(f"step {step} loss {float(loss):.4f}", flush=True)
        if saves and step % EVERY == EVERY - 1:
            pause(what, plain, folder)
    if WORLD > 1:
        dist.destroy_process_group()


def pause(what: str, model: Any, folder: Path) -> None:
    """Evaluate and save, as loops do between steps."""
    import torch

    model.eval()
    for batch in torch.utils.data.DataLoader(rows(what, 40, 0.0), batch_size=1):
        model(**batch)
    model.train()
    at_fault()
    if GUILTY:
        torch.save(model.state_dict(), folder / "checkpoint.pt")


def with_trainer(what: str) -> None:
    """Hugging Face's Trainer."""
    import torch
    from transformers import Trainer, TrainingArguments

    torch.set_num_threads(1)
    saves, folder = checkpointed(what)
    settings = TrainingArguments(
        output_dir=str(folder), max_steps=STEPS.get(what, 60), per_device_train_batch_size=1, use_cpu=True,
        report_to=[],
        logging_steps=1 if what == "nan-loss" else EVERY, logging_nan_inf_filter=False, disable_tqdm=True,
        eval_strategy="steps" if saves else "no", eval_steps=EVERY, save_steps=EVERY,
        save_strategy="steps" if saves else "no", remove_unused_columns=False,
    )  # fmt: skip
    at_fault()
    Trainer(
        model_of(what, STEP_S), settings, train_dataset=rows(what, STEPS.get(what, 60), STEP_S),
        eval_dataset=rows(what, 40, 0.0),
    ).train()  # fmt: skip


def main(what: str, how: str) -> None:
    if GUILTY:
        at_start(what)
    if how == "trainer":
        with_trainer(what)
    elif how == "alone":
        alone(what)
    else:
        with_torch(what)


if __name__ == "__main__":
    main(*sys.argv[1:])
