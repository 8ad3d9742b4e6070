"""The shared file of this rank: made, mapped, and named after the rank as soon as that is known for sure."""

from __future__ import annotations

import contextlib
import errno
import functools
import mmap
import os
import signal
import stat
import sys
import time
from collections.abc import Iterator
from typing import Any

from .layout import (
    AT_ATTEMPT,
    AT_CODE,
    AT_ERRORS,
    AT_MAGIC,
    AT_MICRO,
    AT_OFFSET_NS,
    AT_PHASE,
    AT_PID,
    AT_PID_NAMESPACE,
    AT_RANK,
    AT_START_NS,
    AT_START_TICKS,
    AT_STEP,
    AT_VERSION,
    AT_WORLD,
    FILE_BYTES,
    HEADER_BYTES,
    MAGIC,
    MAX_RANK,
    NO_CODE,
    VERSION,
)


class Memory:
    """What this process shares with the agent. `words` is the header, `buffer` the whole file; None before `open`."""

    __slots__ = (
        "buffer",
        "folder",
        "live",
        "off",
        "offset_ns",
        "owner",
        "path",
        "rank_known",
        "saving",
        "shared",
        "ticks",
        "uneven",
        "words",
    )

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.live = False  # the file is open, and it is this process that writes it
        self.off = False  # a forked child, or the file could not be made: never again
        self.path = ""  # without the suffix
        self.words: Any = None
        self.buffer: Any = None
        self.offset_ns = 0  # wall time less monotonic time
        self.rank_known = False
        self.saving = ""  # path of the newest checkpoint whose writing failed
        self.ticks = 0  # start of this process by the kernel's reckoning
        self.uneven = ""  # why this rank must run as many micro-batches as all others, if it has said so
        self.owner = -1  # of files that this process makes in the folder, as the file system names it
        self.shared = 0  # rights on the folder that its owner gives to the group, or to others by an access list

    def open(self, step: int, micro: int, phase: int) -> int:
        """Make and map the file with what is known already; the monotonic time of it. Whatever the system raises."""
        rank, world, self.rank_known = who_am_i()
        self.ticks, self.shared = _start_ticks(), os.stat(self.folder).st_mode & 0o060
        self.path = self._free_path(rank)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path + ".hook")  # of this very process, before it ran another program by exec
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.path + ".hook", flags, self.readable)
        try:
            # Really allocated: a full tmpfs must fail here and not kill the process by SIGBUS at a later store.
            os.posix_fallocate(descriptor, 0, FILE_BYTES)
            self.owner = os.fstat(descriptor).st_uid
            with off_streams():
                self.buffer = mmap.mmap(descriptor, FILE_BYTES)  # holds a descriptor of its own
        finally:
            os.close(descriptor)
        words = self.words = memoryview(self.buffer)[:HEADER_BYTES].cast("q")
        now, wall = time.monotonic_ns(), time.time_ns()
        self.offset_ns = wall - now
        words[AT_VERSION], words[AT_PID], words[AT_RANK], words[AT_WORLD] = VERSION, os.getpid(), rank, world
        words[AT_START_NS], words[AT_OFFSET_NS], words[AT_PHASE] = (
            _start_ns(self.ticks, wall),
            wall - now,
            now << 3 | phase,
        )
        words[AT_START_TICKS], words[AT_PID_NAMESPACE] = self.ticks, _pid_namespace()
        words[AT_CODE], words[AT_ATTEMPT] = NO_CODE, _integer("TRAINWARDEN_ATTEMPT") or 0
        words[AT_STEP], words[AT_MICRO] = step, micro
        words[AT_MAGIC] = MAGIC  # last, so that a reader never takes half a header for one
        return now

    def settle_rank(self) -> None:
        """Take the rank from torch.distributed once it is known, where the environment did not say."""
        rank, world, known = who_am_i()
        self.rank_known = True  # asked once, at the first collective: later it will not be known any better
        self.words[AT_WORLD] = world
        if known and rank != self.words[AT_RANK]:
            path = self._free_path(rank)
            for kind in (".fault", ".last", ".ask", ".hook"):
                with contextlib.suppress(FileNotFoundError):
                    os.rename(self.path + kind, path + kind)
            self.words[AT_RANK], self.path = rank, path

    @property
    def readable(self) -> int:
        """Mode of files that the agent reads: whoever the folder lets in may read what lies there."""
        return 0o600 | self.shared & 0o040

    def leave(self, kind: str, data: bytes) -> None:
        """Write a file of this `kind` beside the shared one, whole or not at all. Whatever the system raises."""
        partial = f"{self.path}{kind}.tmp"
        descriptor = self.fresh(partial)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
            os.rename(partial, self.path + kind)
        except OSError:
            os.unlink(partial)
            raise

    def fresh(self, path: str) -> int:
        """Open `path` for writing, as a new file of our own: whatever lies there goes. Whatever the system raises."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, self.readable)

    def more(self, path: str) -> int:
        """Open `path` to write at its end; a file of our own or none. Whatever the system raises."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        return checked(os.open(path, flags, self.readable), stat.S_IFREG, (self.owner,))

    def _free_path(self, rank: int) -> str:
        """Where the files of this process go, without the suffix.

        A container begins each time with the same pids: what an earlier process has left is not overwritten.
        """
        path = os.path.join(self.folder, f"rank-{rank}-{os.getpid()}")
        taken = any(os.path.lexists(path + kind) for kind in (".hook", ".last"))
        return f"{path}-{self.ticks}" if taken else path

    def failed(self) -> None:
        """Count the error that is being handled, one of our own: it must go no further."""
        let_through()
        if self.words is not None:
            self.words[AT_ERRORS] += 1


@contextlib.contextmanager
def off_streams() -> Iterator[None]:
    """Descriptors made meanwhile are none of the three of the standard streams, which the program may have closed.

    Else what it writes there later, or puts in their place, would meet files of ours. Whatever the system raises.
    """
    held: list[int] = []
    try:
        while len(held) < 3 and not all(map(_is_open, range(3))):
            held.append(os.open("/", os.O_PATH | os.O_CLOEXEC))  # as good as closed for who reads or writes
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def checked(descriptor: int, kind: int, owners: tuple[int, ...], links: int = 1) -> int:
    """`descriptor`, if it is a file of this `kind` and of one of `owners`; else it is closed, and `OSError` raised.

    Others may write into the folder: a pipe, a device or somebody's own file may lie under any name. Of a file that is
    only read more `links` may be allowed: copies of a folder share its files.
    """
    found = os.fstat(descriptor)
    if stat.S_IFMT(found.st_mode) == kind and found.st_uid in owners and found.st_nlink <= links:
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EPERM, "no file of ours")


def read_beside(path: str, limit: int) -> bytes:
    """At most `limit` bytes of the regular file `path`, of whoever owns its folder, of root or of us; never waits."""
    owners = (os.geteuid(), 0, os.stat(os.path.dirname(path) or ".").st_uid)
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = checked(os.open(path, flags), stat.S_IFREG, owners)
    try:
        return os.read(descriptor, limit)
    finally:
        os.close(descriptor)


def let_through() -> None:
    """Raise the error that is being handled again if a signal handler of the program raised it: it is not ours."""
    error = sys.exc_info()[1]
    trace = error.__traceback__ if error is not None else None
    if trace is None or trace.tb_next is None:
        return
    codes = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    while codes and trace is not None:
        if trace.tb_frame.f_code in codes:
            raise error  # type: ignore[misc]  # there is one
        trace = trace.tb_next


def _code_of(handler: Any) -> Any:
    """The code that runs when `handler` is called, as far as it is Python's."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    function = getattr(handler, "__func__", handler)
    called = vars(type(function)).get("__call__")  # of an object that is no function
    return getattr(function, "__code__", None) or getattr(called, "__code__", None)


def who_am_i() -> tuple[int, int, bool]:
    """(rank, world size, known for sure)."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size(), True
    except Exception:
        let_through()
    # SLURM_PROCID is that of the launcher, not of the rank, under torchrun and the like: hence last.
    pairs = (
        ("RANK", "WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
    )
    for name, size in pairs:
        rank = _integer(name)
        if rank is not None and rank < MAX_RANK:
            return rank, _integer(size) or 1, name == "RANK"
    return 0, 1, False


def _integer(name: str) -> int | None:
    value = os.environ.get(name, "")
    return int(value) if value.isascii() and value.isdigit() else None


def _start_ticks() -> int:
    """Start of this process in ticks since boot, as everybody else reads it in /proc/PID/stat; 0 if it is not known."""
    try:
        with open("/proc/self/stat", "rb") as file:
            text = file.read()
        return int(text[text.rfind(b")") + 2 :].split()[19])
    except Exception:
        let_through()
        return 0


def _start_ns(ticks: int, otherwise: int) -> int:
    """Wall time of this process's start by the kernel's reckoning, as everybody else names it, whole 10 ms."""
    try:
        with open("/proc/stat", "rb") as file:
            boot_s = next(int(line.split()[1]) for line in file if line.startswith(b"btime "))
        return boot_s * 1_000_000_000 + ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK") if ticks else otherwise
    except Exception:
        let_through()
        return otherwise


def _pid_namespace() -> int:
    """The namespace in which this process has its pid; 0 if the kernel does not say."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0
