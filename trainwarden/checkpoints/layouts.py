"""What the checkpoints of known trainers look like on disk: one row a layout.

A trainer either keeps a file that names its newest whole checkpoint (`POINTERS`), or each checkpoint carries a mark of
its own that is written last (`ENTRIES`). What has no mark is half-written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

Mark = Literal["zip_end", "file", "json_step"]


@dataclass(frozen=True, slots=True)
class Pointer:
    """`file` in the folder holds, as text, what its trainer calls the newest whole checkpoint.

    `entry` makes the checkpoint's own name of that text; the step is the number that ends it.
    """

    trainer: str
    file: str
    text: re.Pattern[str]
    entry: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A checkpoint whose `name` fits and tells the step.

    `mark`: ``zip_end``, a file of `torch.save` with its end; ``file``, a folder in which `inside` exists and is not
    empty; ``json_step``, a folder whose JSON `inside` says the same step under `key`.
    """

    trainer: str
    name: re.Pattern[str]
    mark: Mark
    inside: str = ""
    key: str = ""


_ENDS_IN_A_NUMBER: Final = r"(?:.*[^0-9])?([0-9]{1,15})"

POINTERS: Final = (
    Pointer("Megatron-LM", "latest_checkpointed_iteration.txt", re.compile(r"([0-9]{1,15})"), "iter_{step:07d}"),
    Pointer("DeepSpeed", "latest", re.compile(rf"(?![.])(?:{_ENDS_IN_A_NUMBER})"), "{text}"),
)
ENTRIES: Final = (
    Entry("torch.save, one file a step", re.compile(r"step-([0-9]{1,15})\.pt"), "zip_end"),
    Entry("Lightning", re.compile(r"(?:.*[^A-Za-z])?step=([0-9]{1,15})(?:[^0-9].*)?\.ckpt"), "zip_end"),
    Entry(
        "Hugging Face Trainer", re.compile(r"checkpoint-([0-9]{1,15})"), "json_step", "trainer_state.json",
        "global_step",
    ),
    Entry("torch.distributed.checkpoint", re.compile(_ENDS_IN_A_NUMBER), "file", ".metadata"),
)  # fmt: skip
