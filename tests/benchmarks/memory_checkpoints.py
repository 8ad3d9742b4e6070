"""Checkpoints in memory beside peers of the same run: stall of a save, time of a restore; medians of mixed rounds.

The stall is the time that a save adds to a step: the call, and the wait before the next optimizer step. Between them
lies emulated device time (sleep), in which copying may go on.

    python -m tests.benchmarks.memory_checkpoints --mib 128 --rounds 7 --device-s 0.3 --packages DIR

Each peer has its best settings without a GPU: memory that is shared and not pinned, and what it allocates is kept. DIR
holds `torch_checkpointing`, where ``pip install --no-deps --target DIR torch_checkpointing`` has put it.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import logging
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from tests.servers.ports import free_ports
from trainwarden.checkpoint import restoring, saving

UNPINNED = (False, True, False, False)  # of StagingOptions: pinned, shared, asynchronous, non-blocking


class Peers:
    """One state of `mib` MiB (parameters and Adam's two moments), and each way to save it."""

    def __init__(self, mib: int, folder: Path, device_s: float = 0.0, *, trained: bool = True) -> None:
        self.folder, self.device_s = folder, device_s
        count = mib * 1024 * 1024 // 4 // 3
        self.model = torch.nn.ParameterList(torch.randn(count // 8) for _ in range(8))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        if trained:
            for one in self.model:
                one.grad = torch.randn_like(one)
            self.optimizer.step()
        self.state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        self.bytes = sum(one.nbytes for one in self.tensors())
        self.target = torch.empty(self.bytes, dtype=torch.uint8)
        self.target.fill_(1)  # its pages are there
        self.step = 0
        self._asked: Any = None
        self._stager: DefaultStager | None = None
        self._shared: DefaultStager | None = None
        self._manager: Any = None

    def tensors(self) -> list[torch.Tensor]:
        moments = [one for state in self.optimizer.state.values() for one in state.values()]
        return [one.detach() for one in self.model] + moments

    def memcpy(self) -> Callable[[], None]:
        at = self.target.data_ptr()
        for one in self.tensors():
            ctypes.memmove(at, one.data_ptr(), one.nbytes)
            at += one.nbytes
        return lambda: None

    def ours(self) -> Callable[[], None]:
        self.step += 1
        assert saving.save(self.step, model=self.model, optimizer=self.optimizer)
        return saving.wait

    def torch_save(self) -> Callable[[], None]:
        torch.save(self.state, self.folder / "torch.pt")
        return lambda: None

    def dcp_async(self) -> Callable[[], None]:
        """As it is by default: staged on the training's thread, written by another one."""
        self._asked = dcp.async_save(self.state, checkpoint_id=str(self.folder / "dcp"))
        return lambda: None

    def dcp_kept_stager(self) -> Callable[[], None]:
        """With memory for the copy that is allocated once."""
        self._stager = self._stager or DefaultStager(StagingOptions(*UNPINNED))
        saved = dcp.async_save(self.state, checkpoint_id=str(self.folder / "dcp"), async_stager=self._stager)
        self._asked = getattr(saved, "upload_completion", saved)
        return lambda: None

    def dcp_process(self) -> Callable[[], None]:
        """The same, written by another process."""
        self._shared = self._shared or DefaultStager(StagingOptions(*UNPINNED))
        saved = dcp.async_save(
            self.state, checkpoint_id=str(self.folder / "dcp"), async_stager=self._shared,
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
        )  # fmt: skip
        self._asked = getattr(saved, "upload_completion", saved)
        return lambda: None

    def torch_checkpointing(self) -> Callable[[], None]:
        """Copied by a thread while the device computes, written by another process."""
        import torch_checkpointing as package

        self._manager = self._manager or package.CheckpointManager()
        self._asked = self._manager.save(str(self.folder / "dcp"), self.state)

        def wait() -> None:
            with self._manager.lock():  # as around the optimizer's step
                pass

        return wait

    def stall(self, save: Callable[[], Callable[[], None]]) -> float:
        """Seconds that training stands still."""
        self.settle()
        shutil.rmtree(self.folder / "dcp", ignore_errors=True)
        began = time.perf_counter()
        wait = save()
        called = time.perf_counter() - began
        time.sleep(self.device_s)
        began = time.perf_counter()
        wait()
        return called + time.perf_counter() - began

    def settle(self) -> None:
        """Wait for what is still being written."""
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.result()

    def close(self) -> None:
        """End the processes of peers."""
        for one in (self._stager, self._shared, self._manager):
            if one is not None:
                one.close()

    def torch_load(self) -> None:
        state = torch.load(self.folder / "torch.pt", weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def restore(self) -> None:
        assert restoring.restore(model=self.model, optimizer=self.optimizer) is not None


def in_a_process(work: Callable[[], float]) -> float:
    """What `work` returns in a fork of its own: a rank that restores has just been started."""
    ours, theirs = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(theirs, repr(work()).encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as answer:
        text = answer.read()
    assert os.waitpid(pid, 0)[1] == 0
    return float(text)


def loads(mib: int, rounds: int, folder: Path) -> dict[str, list[float]]:
    """Seconds of each way to load, each in a process that has just made its model."""

    def saved() -> float:
        saving._saver = saving.Saver()  # that of this process
        peers = Peers(mib, folder)
        peers.torch_save()
        peers.ours()()
        return 0.0

    def load(name: str) -> float:
        peers = Peers(mib, folder, trained=False)
        began = time.perf_counter()
        getattr(peers, name)()
        return time.perf_counter() - began

    in_a_process(saved)
    found: dict[str, list[float]] = {"torch_load": [], "restore": []}
    for _ in range(rounds):
        for name, times in found.items():
            times.append(in_a_process(lambda name=name: load(name)))  # type: ignore[misc]
    return found


def measured(mib: int, rounds: int, device_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        for folder in ("loads", "saves"):
            Path(name, folder).mkdir()
        os.environ["TRAINWARDEN_CHECKPOINT_MEMORY"] = str(Path(name, "loads"))
        loaded = loads(mib, rounds, Path(name))  # first: what forks has no threads yet
        os.environ["TRAINWARDEN_CHECKPOINT_MEMORY"] = str(Path(name, "saves"))
        place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
        os.environ.update(place)  # a job of one rank: DCP's process joins it
        torch.distributed.init_process_group("gloo")
        peers = Peers(mib, Path(name), device_s)
        saves = [peers.memcpy, peers.ours, peers.torch_save, peers.dcp_async, peers.dcp_kept_stager, peers.dcp_process]
        saves += [peers.torch_checkpointing] if importlib.util.find_spec("torch_checkpointing") else []
        stalls: dict[str, list[float]] = {save.__name__: [] for save in saves}
        for number in range(rounds + 2):  # the first two allocate
            for save in saves:
                stall = peers.stall(save)
                if number >= 2:
                    stalls[save.__name__].append(stall)
        peers.settle()
        peers.close()
        slots = sum(path.stat().st_size for path in Path(name, "saves").rglob("own-*.safetensors"))
        found = {
            key: {"median_ms": round(statistics.median(one) * 1000, 2), "worst_ms": round(max(one) * 1000, 2)}
            for key, one in {**stalls, **loaded}.items()
        }
        ratios = {
            "stall_of_a_bare_copy": round(found["ours"]["median_ms"] / found["memcpy"]["median_ms"], 2),
            "restore_of_torch_load": round(found["restore"]["median_ms"] / found["torch_load"]["median_ms"], 2),
        }
        return {"state_mib": peers.bytes >> 20, "rounds": rounds, "device_s": device_s, "torch": torch.__version__,
                "cores": os.cpu_count(), "load": os.getloadavg()[0], "own_slots_mib": slots >> 20,
                **found, **ratios}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device-s", type=float, default=0.3)
    parser.add_argument("--packages", default="")
    words = parser.parse_args()
    if words.packages:  # processes that peers start read it too
        sys.path.append(words.packages)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), words.packages)))
    logging.disable(logging.WARNING)
    print(json.dumps(measured(words.mib, words.rounds, words.device_s), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
