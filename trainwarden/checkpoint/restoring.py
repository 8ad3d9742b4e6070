"""`restore`: bring the newest checkpoint that every rank has into model and optimizer, and say from where it came.

The keeper, where one runs, puts this rank's shard into its slot from the neighbour or the store. The ranks agree on an
id by torch.distributed. All is checked before anything is written: a restore is whole or not at all.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import mmap
import os
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from trainwarden.checkpoint.saving import begin_attempt, synchronise
from trainwarden.checkpoint.shard import CheckpointError, Header, Id, read_header, verify
from trainwarden.checkpoint.slots import SOCKET, Slot, Slots, job_folder
from trainwarden.checkpoint.state import DTYPES, Process, collect, decode, local, model_tensors, newer

log = logging.getLogger("trainwarden.checkpoint")
_PATIENCE_S: Final = 600.0  # a shard may come from the store
_MOST_ANSWER_BYTES: Final = 1024 * 1024
_TYPES: Final = {named: torch_type for torch_type, named in DTYPES.items()}
_ALIGNMENT: Final = 64  # of a tensor in memory: a cache line, as torch has it


@dataclass(frozen=True, slots=True)
class Restored:
    """What was restored.

    Parameters
    ----------
    step : int
        The number that `save` was given: training goes on there.
    extra : object
        What `save` was given as `extra`.
    source : str
        From where it came and what was passed over, in one sentence.
    """

    step: int
    extra: Any
    source: str


@dataclass(frozen=True, slots=True)
class _Found:
    """What this rank can restore, and the newest attempt of which there is a trace."""

    slot: Slot | None = None
    id: Id | None = None
    attempt: int | None = None
    words: str = ""
    other_topology: str = ""


def restore(*, model: nn.Module, optimizer: Any = None) -> Restored | None:
    """Restore before the first step, on every rank; with more than one rank after `init_process_group`.

    Returns
    -------
    Restored or None
        None if no checkpoint is complete: training begins anew.

    Raises
    ------
    CheckpointError
        If there is one which does not fit: another number of ranks, other tensors.
    """
    process = Process.here()
    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    if process.world > 1 and not ready:
        raise CheckpointError("checkpoint.restore needs init_process_group first: the ranks agree on a checkpoint")
    topology = collect(model, optimizer, None).topology(process.world)
    slots = Slots(job_folder(process.job))
    found = _agree(slots, process, topology)
    if found.slot is None:
        log.info("nothing restored: %s", found.words or "no checkpoint is complete on all ranks")
        return None
    step, extra = _load(slots, found.slot, model, optimizer)
    if process.rank == 0:
        log.warning("%s", found.words)
    return Restored(step, extra, found.words)


def _agree(slots: Slots, process: Process, topology: str) -> _Found:
    """The newest id that all ranks have: each proposes its newest one, and the oldest proposal is the next bound."""
    bound: Id | None = None
    attempt = process.attempt
    while True:
        found = _ask_keeper(slots, process, topology, bound) or _look(slots, process, topology, bound)
        rows = _gather((found.id.attempt, found.id.step) if found.id else (-1, -1), found.attempt, found.other_topology)
        attempt = max(attempt, *(seen + 1 for _, _, seen, _ in rows))
        if any(row[0] < 0 for row in rows):
            begin_attempt(attempt)
            if any(row[0] >= 0 for row in rows):
                log.warning("some ranks have a checkpoint and others have none that matches: nothing is restored")
            if any(row[3] for row in rows):
                other = found.other_topology or "another one"
                raise CheckpointError(
                    f"the checkpoint was saved by ranks laid out as '{other}' and this job is '{topology}': memory "
                    "holds each rank's own part; resume from one that can be resharded (torch.distributed.checkpoint)"
                )
            return _Found(words=found.words)
        proposals = {Id(row[0], row[1]) for row in rows}
        if len(proposals) == 1:
            begin_attempt(attempt)
            return found
        bound = min(proposals)


def _gather(id_: tuple[int, int], attempt: int | None, other_topology: str) -> list[tuple[int, int, int, int]]:
    row = (*id_, -1 if attempt is None else attempt, int(bool(other_topology)))
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [row]
    device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
    mine = torch.tensor(row, dtype=torch.int64, device=device)
    all_rows = [torch.empty_like(mine) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(all_rows, mine)
    return [(one[0], one[1], one[2], one[3]) for one in (other.tolist() for other in all_rows)]


def _look(slots: Slots, process: Process, topology: str, bound: Id | None) -> _Found:
    """The newest of our own slots that verifies."""
    newest, seen, other, words = None, None, "", []
    for slot, header in sorted(slots.sealed().items(), key=lambda one: one[1].facts.id, reverse=True):
        facts = header.facts
        if slot.kind != "own" or slot.rank != process.rank or facts.job != process.job:
            continue
        seen = newer(seen, facts.id)
        if facts.topology != topology:
            other = facts.topology
        elif newest is None and (bound is None or facts.id <= bound):
            try:
                _verify(slots, slot)
                newest = (slot, facts.id)
            except (CheckpointError, OSError) as error:
                words.append(f"step {facts.id.step} is passed over, as {error}")
    attempt = None if seen is None else seen.attempt
    if newest is None:
        return _Found(attempt=attempt, words="; ".join(words), other_topology=other)
    said = "; ".join([f"step {newest[1].step} is restored from memory", *words])
    return _Found(newest[0], newest[1], attempt, said)


def _verify(slots: Slots, slot: Slot) -> None:
    descriptor = slots.open(slot)
    try:
        verify(descriptor, read_header(descriptor))
    finally:
        os.close(descriptor)


def _ask_keeper(slots: Slots, process: Process, topology: str, bound: Id | None) -> _Found | None:
    """What the node's keeper has put into our slots; None where no keeper runs."""
    question = {
        "ask": "stage", "rank": process.rank, "world": process.world, "topology": topology,
        "at_most": None if bound is None else [bound.attempt, bound.step],
    }  # fmt: skip
    try:
        with _connected(slots) as line:
            line.sendall(json.dumps(question).encode() + b"\n")
            answer = json.loads(line.makefile("rb").readline(_MOST_ANSWER_BYTES))
        error, staged = answer.get("error"), answer.get("id")
        if error is not None:
            raise ValueError(error)
        if staged is None:
            return _Found(
                attempt=answer["attempt"], words=answer["words"], other_topology=answer.get("other_topology", "")
            )
        slot = Slot("own", process.rank, int(answer["slot"]))
        return _Found(slot, Id(int(staged[0]), int(staged[1])), answer["attempt"], answer["words"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("no keeper answers (%r): only this node's memory is searched", error)
        return None


def _connected(slots: Slots) -> socket.socket:
    """A connection to the keeper; one that starts with the job is waited for as long as the environment says."""
    deadline_s = time.monotonic() + float(os.environ.get("TRAINWARDEN_KEEPER_TIMEOUT_S") or 0)
    while True:
        line = socket.socket(socket.AF_UNIX)
        try:
            line.settimeout(_PATIENCE_S)
            line.connect(f"/proc/self/fd/{slots.descriptor}/{SOCKET}")  # a path of any length
            return line
        except OSError:
            line.close()
            if time.monotonic() >= deadline_s:
                raise
            time.sleep(0.2)


def _load(slots: Slots, slot: Slot, model: nn.Module, optimizer: Any) -> tuple[int, Any]:
    with slots.reading(slot) as descriptor:
        header = read_header(descriptor)
        step = header.facts.id.step
        laid = header.tensors.items()
        try:
            # Tensors of the model are read into the model itself, once everything else has been found to fit.
            shapes = {name: torch.empty(one.shape, dtype=_TYPES[one.dtype], device="meta") for name, one in laid}
            tree = json.loads(header.facts.state)
            names = {name: one["__tensor__"] for name, one in tree["model"].items()}
            targets = model_tensors(model)
            _compare({name: shapes[names[name]] for name in names}, targets)
            fields = None
            if optimizer is not None:
                if "optimizer" not in tree:
                    raise CheckpointError(f"step {step} was saved without an optimizer")
                mine = _read(descriptor, header, [name for name in shapes if name.startswith("optimizer/")])
                fields = _like_parameters(decode(tree["optimizer"], mine), optimizer)
            extra = decode(tree["extra"], _read(descriptor, header, [n for n in shapes if n.startswith("extra")]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"step {step} cannot be read: {error}") from error
        if fields is not None:
            try:
                optimizer.load_state_dict(fields)  # it compares the groups before it changes anything
            except ValueError as error:
                raise CheckpointError(f"the optimizer of step {step} is another one: {error}") from error
        with torch.no_grad():
            for name, target in targets.items():
                _read_into(descriptor, header, names[name], local(target))
    synchronise(local(one) for one in targets.values())
    return step, extra


def _read(descriptor: int, header: Header, names: Iterable[str]) -> dict[str, Tensor]:
    """The tensors `names`, in memory of their own.

    It is one mapping of huge pages: clearing small ones takes the kernel several times as long as copying the bytes.
    """
    starts, size = {}, 0
    for name in names:
        starts[name] = size
        one = header.tensors[name]
        size += -(-(one.end - one.start) // _ALIGNMENT) * _ALIGNMENT
    memory = mmap.mmap(-1, max(size, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    found = {}
    for name, start in starts.items():
        one = header.tensors[name]
        length = one.end - one.start
        if length:
            _fill(descriptor, header.data_start + one.start, memoryview(memory)[start : start + length])
            flat = torch.frombuffer(memory, dtype=torch.uint8, count=length, offset=start)
            found[name] = flat.view(_TYPES[one.dtype]).reshape(one.shape)
        else:
            found[name] = torch.empty(one.shape, dtype=_TYPES[one.dtype])
    return found


def _read_into(descriptor: int, header: Header, name: str, target: Tensor) -> None:
    """Overwrite `target`, without a copy in between where it lies in this machine's memory in one piece."""
    one = header.tensors[name]
    if target.device.type != "cpu" or not target.is_contiguous():
        target.copy_(_read(descriptor, header, [name])[name])
    elif one.end > one.start:
        bytes_of = (ctypes.c_char * (one.end - one.start)).from_address(target.data_ptr())
        _fill(descriptor, header.data_start + one.start, memoryview(bytes_of))
        torch.autograd.graph.increment_version(target)


def _fill(descriptor: int, at: int, buffer: memoryview) -> None:
    while buffer:
        done = os.preadv(descriptor, [buffer], at)
        if not done:
            raise CheckpointError("the shard is cut off")
        buffer, at = buffer[done:], at + done


def _compare(saved: dict[str, Tensor], targets: dict[str, Tensor]) -> None:
    names: Iterable[str] = sorted(saved.keys() ^ targets.keys())
    if first := next(iter(names), None):
        has, lacks = ("the checkpoint", "the model") if first in saved else ("the model", "the checkpoint")
        raise CheckpointError(f"{has} has '{first}' and {lacks} has not")
    for name, target in targets.items():
        here = local(target)
        if saved[name].shape != here.shape or saved[name].dtype != here.dtype:
            one = saved[name]
            raise CheckpointError(f"'{name}' was {one.dtype} {tuple(one.shape)}, is {here.dtype} {tuple(here.shape)}")


def _like_parameters(fields: dict[str, Any], optimizer: Any) -> dict[str, Any]:
    """Optimizer state in the form of its parameters: parts of DTensors become DTensors again."""
    groups = getattr(optimizer, "param_groups", [])
    parameters = [one for group in groups for one in group["params"]]
    for index, state in fields.get("state", {}).items():
        if isinstance(index, int) and index < len(parameters) and hasattr(parameters[index], "device_mesh"):
            like = parameters[index]
            for name, one in state.items():
                if isinstance(one, Tensor) and one.shape == local(like).shape and one.dim():
                    state[name] = _dtensor(one.to(local(like).device), like)
    return fields


def _dtensor(part: Tensor, like: Any) -> Tensor:
    from torch.distributed.tensor import DTensor

    made: Tensor = DTensor.from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    return made
