"""Pauses of the training thread: saving, waiting for data, evaluation, compiling. Long ones are kept in their ring.

And where a checkpoint failed for lack of space: the path, its file system, and how much of it is free.
"""

from __future__ import annotations

import errno
import os
import weakref
from typing import Any

from .layout import AT_PAUSES, AT_PHASE, AT_RECORDED, AT_STEP, EVALUATION, PAUSE_RING, PAUSE_WORDS, PAUSES_BEGIN
from .memory import Memory, let_through
from .thread import Tally, TrainingThread, clock, thread_id

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
# Of torch's and Rust's writers, whose exceptions carry neither number nor path.
_NO_SPACE_WORDS = (
    "No space left on device",
    "Disk quota exceeded",
    "PytorchStreamWriter failed writing",
    "enforce fail at inline_container",
    "os error 28",
)
_MAX_PATH_CHARS = 1000
_MAX_CHAIN = 8
_MAX_MOUNT_BYTES = 1_000_000
_FULL_SHARE = 0.01  # of a file system, that is left: one nobody has named is to blame only if it is full
_LONG_NS = 500_000_000  # pauses that long are worth an event


class Pauses:
    """Time that is neither computing nor waiting; of pauses within each other the outermost counts."""

    __slots__ = ("began", "count", "memory", "tally", "thread")

    def __init__(self, memory: Memory, thread: TrainingThread, tally: Tally) -> None:
        self.memory = memory
        self.thread = thread
        self.tally = tally
        self.began = 0
        self.count = 0  # kept in the ring

    def begin(self, phase: int) -> tuple[int, int] | None:
        """A pause begins on the training thread, what `end` needs; None elsewhere."""
        thread = self.thread
        if thread_id() != thread.owner or thread.inside:
            return None
        now = clock()
        before = thread.phase
        if not thread.paused:
            self.began = now
            self.tally.paused_wait_ns = 0
        thread.paused += 1
        thread.phase = phase
        self.memory.words[AT_PHASE] = now << 3 | phase
        return before, now

    def end(self, token: tuple[int, int], phase: int) -> None:
        """The pause that gave `token` ended."""
        now = clock()
        before, began = token
        thread = self.thread
        thread.paused -= 1
        if not thread.paused:
            self.tally.pause_ns += now - self.began
        thread.phase = before
        self.memory.words[AT_PHASE] = now << 3 | before
        if now - began >= _LONG_NS:
            try:
                self._keep(phase, began, now - began)
            except Exception:
                self.memory.failed()

    def abandon(self, depth: int, phase: int) -> None:
        """A signal handler raised in the midst of `begin` or `end`: back to `depth` pauses and `phase`."""
        thread = self.thread
        if thread_id() == thread.owner:
            thread.paused, thread.phase = depth, phase
            self.memory.words[AT_PHASE] = clock() << 3 | phase

    def _keep(self, phase: int, began: int, took: int) -> None:
        memory = self.memory
        serial = self.count + 1
        at = PAUSES_BEGIN + (self.count % PAUSE_RING) * PAUSE_WORDS.size
        step = memory.words[AT_STEP]
        PAUSE_WORDS.pack_into(memory.buffer, at, serial, phase, began + memory.offset_ns, took, step, serial)
        memory.words[AT_PAUSES] = self.count = serial

    def cut(self, now: int) -> None:
        """A step ends in the middle of a pause: what is over of it belongs to that step."""
        self.tally.pause_ns += now - self.began
        self.began, self.tally.paused_wait_ns = now, 0

    def undo(self, token: tuple[int, int]) -> bool:
        """The pause that gave `token` was none: its waits were waits. True if it has been a short one up to now."""
        before, began = token
        thread = self.thread
        thread.paused -= 1
        thread.phase = before
        if not thread.paused:
            self.tally.wait_ns += self.tally.paused_wait_ns
            self.memory.words[AT_PHASE] = clock() << 3 | before
        return clock() - began < _LONG_NS


class Evaluation:
    """The pause from ``model.eval()`` to ``model.train()``."""

    __slots__ = ("exempt", "module", "pauses", "token")

    def __init__(self, pauses: Pauses) -> None:
        self.pauses = pauses
        self.token: tuple[int, int] | None = None
        self.module: Any = None  # weak reference to the module that is evaluated
        self.exempt: Any = weakref.WeakSet()  # frozen parts of a model, which are never trained

    def mode_changed(self, module: Any, training: bool) -> None:
        """``module.train(training)`` is about to run, outermost, on the training thread."""
        if training:
            if self.token is not None:
                token, self.token = self.token, None
                self.pauses.end(token, EVALUATION)
        elif self.token is None and module.training and self._may_be(module):
            self.token = self.pauses.begin(EVALUATION)
            if self.token is not None:
                self.module = weakref.ref(module)

    def _may_be(self, module: Any) -> bool:
        """Before the first step models are put together, and some are frozen for good."""
        return self.pauses.memory.words[AT_RECORDED] > 0 and module not in self.exempt

    def disprove(self) -> None:
        """A backward pass came after ``eval()``: that module is a frozen part of the model, or train() is missing."""
        token, self.token = self.token, None
        if token is not None:
            short = self.pauses.undo(token)
            module = self.module()
            if module is not None and short:
                self.exempt.add(module)


def path_of_save(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Where a call of ``torch.save`` or of a distributed checkpoint wrote to; empty if that is no path.

    Examples
    --------
    >>> path_of_save(({}, "/ckpt/last.pt"), {}), path_of_save(({},), {"checkpoint_id": "/ckpt/7"}), path_of_save((), {})
    ('/ckpt/last.pt', '/ckpt/7', '')
    """
    target = kwargs.get("f", kwargs.get("checkpoint_id", args[1] if len(args) > 1 else None))
    if not isinstance(target, str | os.PathLike):
        target = getattr(target, "name", "")  # of an open file
    path = os.fspath(target) if isinstance(target, str | os.PathLike) else ""
    return path if isinstance(path, str) else ""


def lack_of_space(error: BaseException, saving: str) -> dict[str, Any]:
    """The file system that was full as `error` was raised; empty if it is about something else.

    Parameters
    ----------
    error : BaseException
        What ends the process.
    saving : str
        Path of the newest checkpoint that could not be written, or empty.
    """
    named, found, one = [saving], False, error
    for _ in range(_MAX_CHAIN):
        if isinstance(one, OSError):
            found = found or one.errno in _NO_SPACE
            named += [name for name in (one.filename,) if isinstance(name, str)]
        found = found or any(words in _words(one) for words in _NO_SPACE_WORDS)
        before = one.__cause__ or one.__context__
        if before is None:
            break
        one = before
    if not found:
        return {}
    for path in named:
        if path and (known := file_system(path)):
            return known
    for path in (os.environ.get("TRAINWARDEN_CHECKPOINTS", ""), os.curdir):
        known = file_system(path) if path else {}
        if known and known["free_bytes"] <= _FULL_SHARE * known["size_bytes"]:
            return known
    return {}


def file_system(path: str) -> dict[str, Any]:
    """`path`, its mount point and kind of file system, and its bytes; empty if the system does not say.

    Examples
    --------
    >>> sorted(file_system("/proc/self/no/such/file"))
    ['file_system', 'free_bytes', 'mount', 'path', 'size_bytes']
    """
    path = os.path.abspath(path)[:_MAX_PATH_CHARS]
    there = path
    try:
        while not os.path.exists(there) and there != os.path.dirname(there):
            there = os.path.dirname(there)
        sizes = os.statvfs(there)
        while not os.path.ismount(there) and there != os.path.dirname(there):
            there = os.path.dirname(there)
        return {
            "path": path,
            "mount": there,
            "file_system": _kind_of(there),
            "free_bytes": sizes.f_bavail * sizes.f_frsize,
            "size_bytes": sizes.f_blocks * sizes.f_frsize,
        }
    except (OSError, ValueError):
        return {}


def _kind_of(mount: str) -> str:
    """What is mounted there, as ``ext4``."""
    with open("/proc/self/mounts", "rb") as file:
        lines = file.read(_MAX_MOUNT_BYTES).decode("utf-8", "replace").splitlines()
    escaped = mount.replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011")
    kinds = [parts[2] for line in lines if len(parts := line.split(" ")) > 2 and parts[1] == escaped]
    return kinds[-1][:40] if kinds else ""  # what was mounted last hides the others


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:
        let_through()
        return ""
