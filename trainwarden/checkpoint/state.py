"""What of a training process is saved: tensors by name, and JSON for the rest. What neither can carry is refused.

A tensor is saved as this rank holds it: of a DTensor (FSDP2, tensor parallelism) the local part, with its placement.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn

from trainwarden.checkpoint.shard import CheckpointError, Id

_DTYPES: Final = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64", "F16": "float16",
    "BF16": "bfloat16", "F32": "float32", "F64": "float64", "U16": "uint16", "U32": "uint32", "U64": "uint64",
    "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn",
}  # fmt: skip
DTYPES: Final = {getattr(torch, ours): name for name, ours in _DTYPES.items() if hasattr(torch, ours)}
"""safetensors' name of each type of torch that has one."""
_TENSOR, _TUPLE, _ITEMS = "__tensor__", "__tuple__", "__items__"


class Refused(CheckpointError):
    """The state holds what a checkpoint without pickle cannot carry; the message names it."""


@dataclass(frozen=True, slots=True)
class Process:
    """Which job, attempt and rank this process is, from torch.distributed or the launcher's variables."""

    job: str
    attempt: int
    rank: int
    world: int

    @classmethod
    def here(cls) -> Process:
        env = os.environ
        ready = torch.distributed.is_available() and torch.distributed.is_initialized()
        return cls(
            job=env.get("TRAINWARDEN_JOB") or env.get("TORCHELASTIC_RUN_ID") or "default",
            attempt=int(env.get("TRAINWARDEN_ATTEMPT") or env.get("TORCHELASTIC_RESTART_COUNT") or 0),
            rank=torch.distributed.get_rank() if ready else int(env.get("RANK") or 0),
            world=torch.distributed.get_world_size() if ready else int(env.get("WORLD_SIZE") or 1),
        )


@dataclass(slots=True)
class State:
    """The tensors to save, and the JSON in which they are named.

    `deferred` names those that change in the optimizer's step alone, so that they may be copied until then.
    """

    tree: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    deferred: set[str] = field(default_factory=set)
    meshes: set[str] = field(default_factory=set)

    def topology(self, world: int) -> str:
        """How the state is spread over ranks; a checkpoint is restored into an equal one."""
        return ", ".join([f"world {world}", *sorted(self.meshes)])

    def encode(self, value: object, path: str, *, deferred: bool = False) -> Any:
        """Return `value` as JSON, and note its tensors under names that begin with `path`.

        Raises
        ------
        Refused
            If something in it is neither a tensor nor JSON.
        """
        if isinstance(value, Tensor):
            return {_TENSOR: self._note(value, path, deferred=deferred)}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, list | tuple):
            parts = [self.encode(one, f"{path}/{k}", deferred=deferred) for k, one in enumerate(value)]
            return parts if isinstance(value, list) else {_TUPLE: parts}
        if isinstance(value, Mapping):
            pairs = [(key, self.encode(one, f"{path}/{key}", deferred=deferred)) for key, one in value.items()]
            if all(isinstance(key, str) and not key.startswith("__") for key, _ in pairs):
                return dict(pairs)
            return {_ITEMS: [[self.encode(key, f"{path}/key"), one] for key, one in pairs]}
        raise Refused(
            f"{path} is a {type(value).__qualname__}: a checkpoint holds tensors and what JSON has (None, bool, int, "
            "float, str, list, tuple, dict)"
        )

    def _note(self, tensor: Tensor, path: str, *, deferred: bool) -> str:
        if (spec := placement(tensor)) is not None:
            self.meshes.add(spec)
        here = local(tensor)
        if here.dtype not in DTYPES or here.layout is not torch.strided or here.is_meta or here.is_quantized:
            raise Refused(f"{path} is a tensor of {here.dtype} ({here.layout}, {here.device}), which is not supported")
        name = path
        while name in self.tensors:  # keys 1 and "1" have one path
            name += "'"
        self.tensors[name] = here.detach()
        if deferred:
            self.deferred.add(name)
        return name


def collect(model: nn.Module, optimizer: Any, extra: object) -> State:
    """Everything to save.

    Raises
    ------
    Refused
        If a part of it is not supported.
    """
    state = State()
    # Only torch's own optimizers call the hook that waits for the copy before parameters change.
    waits = isinstance(optimizer, torch.optim.Optimizer)
    state.tree["model"] = _model(state, model, deferred=waits)
    if optimizer is not None:
        fields = optimizer.state_dict()
        if not isinstance(fields, dict):
            raise Refused(f"optimizer.state_dict() is a {type(fields).__qualname__}, not a dict")
        state.tree["optimizer"] = {
            key: state.encode(one, f"optimizer/{key}", deferred=waits and key == "state") for key, one in fields.items()
        }
    state.tree["extra"] = state.encode(extra, "extra")
    return state


def _model(state: State, model: nn.Module, *, deferred: bool) -> dict[str, Any]:
    entries = model_tensors(model)
    parameters = {local(one).data_ptr() for one in model.parameters()}
    return {
        name: state.encode(one, f"model/{name}", deferred=deferred and local(one).data_ptr() in parameters)
        for name, one in entries.items()
    }


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """`model.state_dict()`, of which each tensor is the parameter or buffer itself, so that it can be written to.

    Raises
    ------
    Refused
        If an entry is a copy or no tensor: FSDP of the first kind, quantised layers, extra state.
    """
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise Refused("FullyShardedDataParallel gathers its state; shard the model with fully_shard (FSDP2) instead")
    own = {local(one).data_ptr() for one in (*model.parameters(), *model.buffers())}
    entries: dict[str, Tensor] = {}
    for name, one in model.state_dict().items():
        if not isinstance(one, Tensor) or (one.numel() and local(one).numel() and local(one).data_ptr() not in own):
            raise Refused(f"model.state_dict() holds '{name}', which is neither a parameter nor a buffer of the model")
        entries[name] = one
    return entries


def decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """What `State.encode` was given; plain tensors stand for DTensors."""
    if isinstance(value, list):
        return [decode(one, tensors) for one in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        return tensors[value[_TENSOR]]
    if _TUPLE in value:
        return tuple(decode(one, tensors) for one in value[_TUPLE])
    if _ITEMS in value:
        return {decode(key, tensors): decode(one, tensors) for key, one in value[_ITEMS]}
    return {key: decode(one, tensors) for key, one in value.items()}


def local(tensor: Tensor) -> Tensor:
    """The part of the tensor that this rank holds."""
    to_local = getattr(tensor, "to_local", None)
    if to_local is None:
        return tensor
    here: Tensor = to_local()
    return here


def placement(tensor: Tensor) -> str | None:
    """How a DTensor's mesh is shaped; None for a plain tensor."""
    mesh = getattr(tensor, "device_mesh", None)
    return None if mesh is None else f"mesh {'x'.join(map(str, mesh.shape))} {tensor.placements}"


def newer(one: Id | None, other: Id | None) -> Id | None:
    """The newer of two ids, either of which may be absent."""
    return max((known for known in (one, other) if known is not None), default=None)
