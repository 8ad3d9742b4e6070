"""Layouts in the command lines of Megatron-LM, DeepSpeed and torchtitan, and in the files that these name.

Read on 2026-11-22: Megatron-LM of 2026-08-22 (megatron/training/arguments.py, initialize.py), torchtitan of 2026-08-21
(config/configs.py, distributed/parallel_dims.py) and its TOML files of before, DeepSpeed of 2026-08-22
(deepspeed/__init__.py, runtime/config.py).
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec

from trainwarden.parallelism.board import EXPERTS, SHARDED
from trainwarden.parallelism.claim import Claim

ReadFile = Callable[[str], bytes | None]
"""The bytes of a file that the training process names; None if it cannot be read from here."""

_MEGATRON: Final = {
    "tp": "tensor-model-parallel-size",
    "cp": "context-parallel-size",
    "pp": "pipeline-model-parallel-size",
    "ep": "expert-model-parallel-size",
}
_MEGATRON_ORDER: Final = {False: "tp-cp-dp-pp", True: "tp-cp-pp-dp"}  # with --use-tp-pp-dp-mapping
_VIRTUAL: Final = ("num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank")
_TITAN: Final = {
    "tp": "tensor_parallel_degree",
    "cp": "context_parallel_degree",
    "pp": "pipeline_parallel_degree",
    "ep": "expert_parallel_degree",
    "shard": "data_parallel_shard_degree",
    "replicate": "data_parallel_replicate_degree",
}
_LOOPED: Final = ("interleaved", "looped", "zerobubble", "zbv", "dualpipe")  # schedules with several stages a rank
INTERLEAVED: Final = "interleaved pipeline: it wants a multiple of the stages from every replica"
PER_BATCH: Final = "Megatron without --calculate-per-token-loss: every replica counts the same, however much it did"
ENGINE: Final = "DeepSpeed pipeline: its engine runs one number of micro-batches everywhere"


def claim_of_command(words: Sequence[str], world_size: int, started_s: float, read: ReadFile) -> Claim | None:
    """What a training command says of its layout; None if it is none of those we know.

    Parameters
    ----------
    words : sequence of str
        The whole command line.
    read : callable
        Asked for the file of settings that the command names.

    Examples
    --------
    >>> command = "pretrain_gpt.py --tensor-model-parallel-size 8 --num-experts 64".split()
    >>> claim = claim_of_command(command, 128, 0.0, lambda path: None)
    >>> claim.tp, claim.pp, claim.cp, claim.uneven.split(":")[0]
    (8, 1, 1, 'experts (MoE)')
    """
    options = _options(words)
    for reader in (_megatron, _titan, _deepspeed):
        found = reader(options, read)
        if found is not None:
            framework, sizes, uneven, order = found
            known = {kind: size for kind, size in sizes.items() if 1 <= size <= 1_000_000}
            claim = Claim(source="arguments", framework=framework, world_size=world_size, started_s=started_s)
            return msgspec.structs.replace(claim, **known, uneven="; ".join(uneven), order=order)
    return None


_Found = tuple[str, dict[str, int], list[str], str] | None


def _options(words: Sequence[str]) -> dict[str, str]:
    """Options by name, of several the last; one without a value is an empty word."""
    found: dict[str, str] = {}
    for word, after in pairwise([*words, ""]):
        if word.startswith("--"):
            name, given, value = word[2:].partition("=")
            found[name] = value if given else ("" if after.startswith("--") else after)
    return found


def _megatron(options: Mapping[str, str], read: ReadFile) -> _Found:
    """Sizes that are not named are 1, as Megatron's own defaults are."""
    named = [option for option in (*_MEGATRON.values(), *_VIRTUAL) if option in options]
    if not named:
        return None
    sizes = {kind: size for kind, option in _MEGATRON.items() if (size := _size(options.get(option, "1"))) is not None}
    if sizes.get("ep") == 1:
        del sizes["ep"]
    uneven = []
    if any(options.get(option) for option in _VIRTUAL) and sizes.get("pp", 1) > 1:
        uneven.append(INTERLEAVED)
    if "num-experts" in options or "ep" in sizes:
        uneven.append(EXPERTS)
    if "use-torch-fsdp2" in options or "use-megatron-fsdp" in options:
        uneven.append(SHARDED)
    stage = _size(options.get("zero-stage", "")) or _stage(options, read)  # Megatron-DeepSpeed has both
    uneven += _zero(stage)
    if "calculate-per-token-loss" not in options:
        uneven.append(PER_BATCH)
    return "Megatron", sizes, uneven, _MEGATRON_ORDER["use-tp-pp-dp-mapping" in options]


def _titan(options: Mapping[str, str], read: ReadFile) -> _Found:
    """Its TOML file, and over it what is said by ``--parallelism.``; a recipe in Python tells us nothing more."""
    named = options.get("job.config_file") or options.get("job.config-file")
    said = {name.partition(".")[2].replace("-", "_"): value for name, value in options.items() if "." in name}
    if named is None and not any(name in said for name in _TITAN.values()):
        return None
    table: dict[str, Any] = {} if named is None else _toml(read(named)).get("parallelism", {})
    table = table if isinstance(table, dict) else {}
    sizes, whole = {}, named is not None and bool(table)
    for kind, name in _TITAN.items():
        size = _size(said.get(name, table.get(name, 1 if whole and kind != "shard" else None)))
        if size is not None:
            sizes[kind] = size
    shard, replicate = sizes.pop("shard", None), sizes.pop("replicate", None)
    uneven = [] if shard == 1 else [SHARDED]  # -1, all that is left, is what it does unasked
    if sizes.get("ep", 1) > 1:
        uneven.append(EXPERTS)
    schedule = str(said.get("pipeline_parallel_schedule", table.get("pipeline_parallel_schedule", ""))).lower()
    if sizes.get("pp", 1) > 1 and any(word in schedule for word in _LOOPED):
        uneven.append(INTERLEAVED)
    if shard is not None and replicate is not None and shard > 0:
        sizes["dp"] = shard * replicate
    if sizes.get("ep") == 1:
        del sizes["ep"]
    return "torchtitan", sizes, uneven, "tp-cp-dp-pp"


def _deepspeed(options: Mapping[str, str], read: ReadFile) -> _Found:
    """Its JSON file; pipelines are made in the script, so their size is not to be read anywhere."""
    named = options.get("deepspeed_config") or options.get("deepspeed")
    if not named:
        return None
    table = _json(read(named))
    sizes = {}
    tensor = table.get("tensor_parallel")
    if isinstance(tensor, dict) and (size := _size(tensor.get("autotp_size"))) is not None:
        sizes["tp"] = size
    if (size := _size(table.get("sequence_parallel_size"))) is not None:
        sizes["cp"] = size
    uneven = _zero(_stage(options, read))
    if "pipeline" in table:
        uneven.append(ENGINE)
    return "DeepSpeed", sizes, uneven, ""


def _stage(options: Mapping[str, str], read: ReadFile) -> int | None:
    named = options.get("deepspeed_config") or options.get("deepspeed")
    zero = _json(read(named)).get("zero_optimization") if named else None
    return _size(zero.get("stage")) if isinstance(zero, dict) else None


def _zero(stage: int | None) -> list[str]:
    return [f"ZeRO-{stage}: every micro-batch is a collective call of all replicas"] if stage in (2, 3) else []


def _size(value: Any) -> int | None:
    """A whole number that was given as one or as text."""
    if isinstance(value, bool):
        return None
    text = str(value).strip()
    return int(text) if text.removeprefix("-").isdecimal() and text.isascii() and len(text) <= 7 else None


def _json(data: bytes | None) -> dict[str, Any]:
    try:
        found = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _toml(data: bytes | None) -> dict[str, Any]:
    try:
        return tomllib.loads((data or b"").decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError):
        return {}
