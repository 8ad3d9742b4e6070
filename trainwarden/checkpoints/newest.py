"""Who chooses the checkpoint: the newest whole one in the folder that a person named, by its trainer's own mark.

The folder is written by others and may be anything: nothing in it is unpickled, reads are small, and whatever cannot be
read is no checkpoint. A file system may stand still for ever, so a `Search` runs in a thread of its own and whoever
waits for it gives up after a while.

What the checkpoints of known trainers look like on disk: one row a layout.

A trainer either keeps a file that names its newest whole checkpoint (`POINTERS`), or each checkpoint carries a mark of
its own that is written last (`ENTRIES`). What has no mark is half-written.
"""

from __future__ import annotations

import json
import os
import re
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import nlargest
from pathlib import Path
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


MOST_LISTED: Final = 1_000_000  # entries of the folder; more are not looked at
MOST_TRIED: Final = 256  # candidates, newest first: a folder of half-written ones is a defect of its own
MOST_SAID: Final = 3  # of those that are passed over
_POINTER_BYTES: Final = 4096
_JSON_BYTES: Final = 64 * 1024 * 1024  # a trainer's state holds its whole log
_ZIP_END: Final = b"PK\x05\x06"
_ZIP_TAIL_BYTES: Final = 65_557  # the end record and the longest comment after it


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A whole checkpoint: training goes on with step `step` or a later one.

    `passed_over` are names of newer ones that are not whole, the newest first. `mark` is the file in the folder that
    its trainer writes last; the checkpoint itself where it is one file.
    """

    path: Path
    step: int
    trainer: str
    passed_over: tuple[str, ...] = ()
    mark: str = ""

    @property
    def beside(self) -> str:
        """What is to be said of those; nothing, if there are none.

        Examples
        --------
        >>> Checkpoint(Path("/ckpt/step-60"), 60, "torch", ("step-100", "step-80")).beside
        'step-100 and step-80 are newer than step-60 and not whole, so they are passed over'
        """
        names = " and ".join(words(Path(one)) for one in self.passed_over[:MOST_SAID])
        more = len(self.passed_over) - MOST_SAID
        names += f" and {more} more" if more > 0 else ""
        are, they = ("are", "they are") if len(self.passed_over) > 1 else ("is", "it is")
        own = words(Path(self.path.name))
        return f"{names} {are} newer than {own} and not whole, so {they} passed over" if names else ""


def newest(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint in `folder`; None if there is none, whatever the reason.

    Examples
    --------
    >>> newest(Path("/no/such/folder")) is None
    True
    """
    for pointer in POINTERS:
        text = _read(folder / pointer.file, _POINTER_BYTES)
        if text is not None:  # its trainer alone says what is whole
            return _pointed(folder, pointer, text)
    tried = nlargest(MOST_TRIED, _candidates(folder), key=lambda found: found[0])
    passed_over: dict[str, int] = {}
    for step, entry, name in tried:
        path = folder / name
        if _whole(path, step, entry):
            newer = tuple(other for other, its_step in passed_over.items() if its_step > step)
            mark = f"{name}/{entry.inside}" if entry.inside else name
            return Checkpoint(path, step, entry.trainer, newer, mark)
        passed_over[name] = step  # names of several trainers may be alike
    return None


class Search:
    """`newest` on its way, from a thread that may never come back."""

    def __init__(self, folder: Path) -> None:
        self.found: Checkpoint | None = None
        self._thread = threading.Thread(target=self._run, args=(folder,), name="checkpoint-search", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether `found` is final."""
        return not self._thread.is_alive()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end, at most so long; whether it has come."""
        self._thread.join(timeout_s)
        return self.done

    def _run(self, folder: Path) -> None:
        self.found = newest(folder)


def _pointed(folder: Path, pointer: Pointer, text: bytes) -> Checkpoint | None:
    match = pointer.text.fullmatch(text.decode("utf-8", "replace").strip())
    if match is None:
        return None
    step = int(match[1])
    path = folder / pointer.entry.format(step=step, text=match[0])
    inside = path.parent == folder  # a name, not a way to somewhere else
    is_there = inside and _kind(path) == stat.S_IFDIR
    return Checkpoint(path, step, pointer.trainer, mark=pointer.file) if is_there else None


def steps(folder: Path) -> dict[str, int]:
    """The step of everything in `folder` that has a checkpoint's name, whole or not, newest first."""
    found = {name: step for step, _, name in _candidates(folder)}
    return dict(sorted(found.items(), key=lambda one: one[1], reverse=True))


def _candidates(folder: Path) -> Iterator[tuple[int, Entry, str]]:
    for name in _names(folder):
        for entry in ENTRIES:
            if (match := entry.name.fullmatch(name)) is not None:
                yield int(match[1]), entry, name


def _names(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            for count, entry in enumerate(entries):
                if count == MOST_LISTED:
                    return
                yield entry.name
    except OSError:
        return  # not there, not ours to read, or gone while we looked


def _whole(path: Path, step: int, entry: Entry) -> bool:
    if entry.mark == "zip_end":
        tail = _read(path, _ZIP_TAIL_BYTES, from_end=True)
        return tail is not None and _ZIP_END in tail
    content = _read(path / entry.inside, 1 if entry.mark == "file" else _JSON_BYTES)
    if not content:
        return False
    return entry.mark == "file" or _says_step(content, entry.key, step)


def _says_step(content: bytes, key: str, step: int) -> bool:
    try:
        state = json.loads(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(state, dict) and state.get(key) == step


def _read(path: Path, most: int, *, from_end: bool = False) -> bytes | None:
    """The first or last `most` bytes of a plain file; None if it is none, or cannot be read."""
    try:
        # A named pipe would wait for a writer; of what is no plain file nothing is read.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode):
                return None
            return os.pread(descriptor, most, max(0, about.st_size - most) if from_end else 0)
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return None


def _kind(path: Path) -> int | None:
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except (OSError, ValueError):
        return None


def words(path: Path) -> str:
    """`path` as it can be shown and sent: names need not be text."""
    return re.sub(r"[\x00-\x1f\x7f]", "?", os.fsencode(path).decode("utf-8", "replace"))
