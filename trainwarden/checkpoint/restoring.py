"""`restore`: bring the newest checkpoint that every rank has into model and optimizer, and say from where it came.

The keeper, where one runs, puts this rank's shard into its slot from the neighbour or the store. The ranks agree on an
id by torch.distributed. All is checked before anything is written: a restore is whole or not at all.
"""

from __future__ import annotations

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
    descriptor = slots.open(slot)
    try:
        header = read_header(descriptor)
        # A private mapping: nothing that the training does later can reach the slot.
        memory = mmap.mmap(descriptor, header.size, mmap.MAP_PRIVATE)
    finally:
        os.close(descriptor)
    tensors = {name: _view(memory, header, name) for name in header.tensors}
    try:
        tree = json.loads(header.facts.state)
        saved_model = decode(tree["model"], tensors)
        targets = model_tensors(model)
        _compare(saved_model, targets)
        fields = None
        if optimizer is not None:
            if "optimizer" not in tree:
                raise CheckpointError(f"step {header.facts.id.step} was saved without an optimizer")
            clones = {name: one.clone() for name, one in tensors.items() if name.startswith("optimizer/")}
            fields = _like_parameters(decode(tree["optimizer"], clones), optimizer)
        extra = decode(tree["extra"], {n: one.clone() for n, one in tensors.items() if n.startswith("extra")})
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"step {header.facts.id.step} cannot be read: {error}") from error
    if fields is not None:
        try:
            optimizer.load_state_dict(fields)  # it compares the groups before it changes anything
        except ValueError as error:
            raise CheckpointError(f"the optimizer of step {header.facts.id.step} is another one: {error}") from error
    with torch.no_grad():
        for name, target in targets.items():
            local(target).copy_(saved_model[name])
    synchronise(local(one) for one in targets.values())
    return header.facts.id.step, extra


def _view(memory: mmap.mmap, header: Header, name: str) -> Tensor:
    one = header.tensors[name]
    dtype = next(torch_type for torch_type, named in DTYPES.items() if named == one.dtype)
    if one.start == one.end:
        return torch.empty(one.shape, dtype=dtype)
    # By bytes: a tensor may lie at any offset.
    data = torch.frombuffer(memory, dtype=torch.uint8, count=one.end - one.start, offset=header.data_start + one.start)
    if (header.data_start + one.start) % dtype.itemsize:
        data = data.clone()
    return data.view(dtype).reshape(one.shape)


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
