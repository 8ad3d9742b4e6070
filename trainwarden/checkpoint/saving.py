"""`save`: copy this rank's state into memory while training goes on; never raise into training, never block for long.

Parameters and optimizer state change in `optimizer.step()` alone, so a thread copies them meanwhile and a hook waits
for it before the next step. Everything else (buffers, `extra`) is copied before `save` returns.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import mmap
import os
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from trainwarden.checkpoint.shard import (
    CHUNK_BYTES,
    CRC_HERE,
    CRCS,
    CheckpointError,
    Facts,
    Id,
    chunk_count,
    header_bytes,
    lay_out,
)
from trainwarden.checkpoint.slots import Busy, Slot, Slots, TooSmall, job_folder, seal
from trainwarden.checkpoint.state import DTYPES, Process, Refused, collect

log = logging.getLogger("trainwarden.checkpoint")
_POPULATE: Final = getattr(mmap, "MAP_POPULATE", 0)


def save(step: int, *, model: nn.Module, optimizer: Any = None, extra: object = None) -> bool:
    """Begin to save; call it after `optimizer.step()`, on every rank, with the number of steps done.

    Parameters
    ----------
    step : int
        Where training would go on.
    model : torch.nn.Module
        Plain, in DistributedDataParallel, or sharded by `fully_shard` (FSDP2).
    optimizer : torch.optim.Optimizer, optional
        Another kind of optimizer is saved before the call returns.
    extra : object
        Tensors and what JSON has, such as a scheduler's state.

    Returns
    -------
    bool
        False if this save was skipped; the reason is logged and counted, and training is not disturbed.
    """
    return _saver.save(step, model, optimizer, extra)


def wait() -> None:
    """Wait until the newest save has been copied; only needed before parameters change other than by a step."""
    _saver.wait()


def begin_attempt(attempt: int) -> None:
    """From now on saves belong to `attempt`; `restore` calls it once all ranks have agreed."""
    _saver.begin_attempt(attempt)


@dataclass(slots=True)
class _Mapped:
    """A slot's memory in this process; kept from save to save, since mapping 256 MB takes tens of milliseconds."""

    memory: mmap.mmap
    inode: int

    def fits(self, about: os.stat_result) -> bool:
        return self.inode == about.st_ino and len(self.memory) == about.st_size


class _Filler:
    """Copies tensors one after the other into a mapping, and takes each chunk's CRC from the source."""

    def __init__(self, memory: mmap.mmap, data_start: int) -> None:
        self._memory = memory  # kept alive as long as its address is used
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + data_start
        self._at, self._running, self.chunks = 0, 0, list[int]()

    def add(self, tensor: Tensor) -> None:
        """Append the bytes of `tensor`."""
        source = tensor.cpu().contiguous()  # no copies for most tensors of a CPU
        address, left, crc = source.data_ptr(), source.numel() * source.element_size(), CRCS[CRC_HERE]
        while left:
            size = min(left, CHUNK_BYTES - self._at % CHUNK_BYTES)
            self._running = crc((ctypes.c_char * size).from_address(address), self._running)
            ctypes.memmove(self._base + self._at, address, size)
            self._at, address, left = self._at + size, address + size, left - size
            if self._at % CHUNK_BYTES == 0:
                self.close_chunk()

    def close_chunk(self) -> None:
        self.chunks.append(self._running)
        self._running = 0

    def finish(self) -> list[int]:
        """The CRCs of all chunks."""
        if self._at % CHUNK_BYTES:
            self.close_chunk()
        return self.chunks


class Saver:
    """The saves of one process."""

    def __init__(self) -> None:
        self._slots: Slots | None = None
        self._mapped: dict[Slot, _Mapped] = {}
        self._copying: Future[None] | None = None
        # One thread that stays: starting one takes milliseconds on a busy machine. The end of a script waits for it.
        self._pool = ThreadPoolExecutor(1, "trainwarden-checkpoint")
        self._pid = os.getpid()
        self._attempt: int | None = None
        self._is_hooked = False
        self._said: set[str] = set()
        self._counts = {"saves": 0, "late": 0, "memory": 0, "refused": 0, "failed": 0}
        self._stall_s = self._last_stall_s = 0.0

    def save(self, step: int, model: nn.Module, optimizer: Any, extra: object) -> bool:
        """See the function of this name."""
        began = time.monotonic()
        try:
            return self._begin(step, model, optimizer, extra)
        except Exception as error:  # noqa: BLE001 - a checkpoint is never worth the training
            self._skip(error)
            return False
        finally:
            self._stall_s = time.monotonic() - began

    def wait(self, *_hook: object) -> None:
        """Wait for the copy that is under way; in a forked child there is none."""
        copying = self._copying
        if copying is None or self._pid != os.getpid():
            return
        began = time.monotonic()
        copying.result()
        self._copying = None
        self._last_stall_s = self._stall_s + time.monotonic() - began

    def begin_attempt(self, attempt: int) -> None:
        self.wait()
        self._attempt = attempt

    def _begin(self, step: int, model: nn.Module, optimizer: Any, extra: object) -> bool:
        if self._pid != os.getpid():
            raise Refused("save was called in a fork of the process that saves")
        if self._copying is not None and not self._copying.done():
            raise Busy("the save before is still being copied")
        process = Process.here()
        slots = self._slots = self._slots or Slots(job_folder(process.job))
        state = collect(model, optimizer, extra)
        facts = Facts(
            process.job, Id(self._attempt_of(process, slots), step), process.rank, process.world,
            state.topology(process.world), time.time(), json.dumps(state.tree),
        )  # fmt: skip
        names = sorted(state.tensors, key=state.deferred.__contains__)  # those to copy now come first
        laid = lay_out((name, DTYPES[(one := state.tensors[name]).dtype], tuple(one.shape)) for name in names)
        data_bytes = max((one.end for one in laid.values()), default=0)
        data_start = len(header_bytes(facts, laid, [0] * chunk_count(data_bytes)))
        with contextlib.ExitStack() as stack:
            slot = slots.next_of("own", process.rank)
            descriptor = stack.enter_context(slots.writing(slot))
            slots.allocate(descriptor, data_start + data_bytes)
            filler = _Filler(self._memory(slot, descriptor), data_start)
            synchronise(state.tensors.values())
            now = [name for name in names if name not in state.deferred]
            for name in now:
                filler.add(state.tensors[name])
            later = [state.tensors[name] for name in names[len(now) :]]

            def finish() -> None:
                for tensor in later:
                    filler.add(tensor)
                seal(descriptor, header_bytes(facts, laid, filler.finish()))

            self._go_on(finish, stack.pop_all(), in_thread=bool(later))
        return True

    def _go_on(self, finish: Any, stack: contextlib.ExitStack, *, in_thread: bool) -> None:
        def run() -> None:
            try:
                with stack:
                    finish()
                self._counts["saves"] += 1
                self._note()
            except Exception as error:  # noqa: BLE001 - the slot stays unsealed; the other one is complete
                self._skip(error)

        if not in_thread:
            run()
            return
        if not self._is_hooked:
            register_optimizer_step_pre_hook(self.wait)
            self._is_hooked = True
        self._copying = self._pool.submit(run)

    def _attempt_of(self, process: Process, slots: Slots) -> int:
        if self._attempt is None:
            left = [slot for slot in slots.sealed() if slot.kind == "own" and slot.rank == process.rank]
            if left:
                raise Refused(f"{slots.path} holds checkpoints of an earlier start: call checkpoint.restore first")
            self._attempt = process.attempt
        return self._attempt

    def _memory(self, slot: Slot, descriptor: int) -> mmap.mmap:
        about = os.fstat(descriptor)
        mapped = self._mapped.get(slot)
        if mapped is None or not mapped.fits(about):
            memory = mmap.mmap(descriptor, about.st_size, mmap.MAP_SHARED | _POPULATE)
            mapped = self._mapped[slot] = _Mapped(memory, about.st_ino)
        return mapped.memory

    def _skip(self, error: Exception) -> None:
        kinds = ((Busy, "late"), (TooSmall, "memory"), (Refused, "refused"))
        kind = next((kind for cause, kind in kinds if isinstance(error, cause)), "failed")
        self._counts[kind] += 1
        words = str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"
        if words not in self._said and len(self._said) < 100:
            self._said.add(words)
            log.warning("checkpoint skipped: %s", words)
        self._note()

    def _note(self) -> None:
        """Leave the counts where the keeper reads them."""
        with contextlib.suppress(OSError):
            if self._slots is not None:
                note = {**self._counts, "stall_s": self._last_stall_s}
                self._slots.write_note(f"trainer-{Process.here().rank}.json", note)


def synchronise(tensors: Iterable[Tensor]) -> None:
    """Let what the training's streams still compute be done before another thread reads it."""
    for device in {one.device for one in tensors if one.device.type == "cuda"}:
        torch.cuda.current_stream(device).synchronize()


_saver = Saver()
