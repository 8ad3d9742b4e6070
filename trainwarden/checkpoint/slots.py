"""The memory of a job on one node: a folder of preallocated files on tmpfs, which outlive trainer and keeper. No torch.

A rank has two slots of its own (`own-RANK-0`, `own-RANK-1`), and the previous node's ranks have two here (`kept-...`).
Files are 0600 in a folder of 0700 that belongs to this user; links are not followed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import stat
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

from trainwarden.checkpoint.shard import LENGTH_BYTES, CheckpointError, Header, Id, read_header

Kind = Literal["own", "kept"]
SLOTS: Final = 2  # of each rank and kind: one is complete while the other is written
SOCKET: Final = "keeper.sock"
_COMPLETE: Final = "complete.json"
_NAME: Final = re.compile(r"(own|kept)-([0-9]{1,9})-([01])\.safetensors")
_SPARE_BYTES: Final = 256 * 1024 * 1024  # left to the machine beside what is allocated
_BEGINNING_BYTES: Final = 64  # the length and the header's check
_MOST_JSON_BYTES: Final = 1024 * 1024


class TooSmall(CheckpointError):
    """The memory does not suffice; the message says how many bytes are needed."""


class Busy(CheckpointError):
    """The slot is in use: it is being copied to the next node, or being written."""


def job_folder(job: str, root: str | None = None) -> Path:
    """Where the slots of `job` are: below `root`, `TRAINWARDEN_CHECKPOINT_MEMORY` or /dev/shm."""
    root = root or os.environ.get("TRAINWARDEN_CHECKPOINT_MEMORY") or f"/dev/shm/trainwarden-{os.geteuid()}"
    return Path(root) / f"job-{quote(job, safe='')[:200]}"


def folder_job(job: str) -> str:
    """The name under which the files of `job` are kept whose script does not save by itself."""
    return f"{job}/files"


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot's file, by its name."""

    kind: Kind
    rank: int
    number: int

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.rank}-{self.number}.safetensors"


class Slots:
    """The folder of one job's memory; made if it is not there."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self._headers: dict[Slot, tuple[bytes, Header]] = {}
        for one in (folder.parent, folder):
            with contextlib.suppress(FileExistsError):
                one.mkdir(mode=0o700)
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._closing = weakref.finalize(self, os.close, self._folder)
        self._closing.atexit = False
        about = os.fstat(self._folder)
        if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o077:
            self.close()
            raise CheckpointError(f"{folder} must belong to this user alone (mode 0700)")

    @property
    def descriptor(self) -> int:
        """The open folder."""
        return self._folder

    def close(self) -> None:
        """Let go of the folder; so does the end of the last reference."""
        self._closing()

    def listed(self) -> list[Slot]:
        """Every slot that has a file."""
        found = (_NAME.fullmatch(name) for name in os.listdir(self._folder))
        return [Slot(match[1], int(match[2]), int(match[3])) for match in found if match]  # type: ignore[arg-type]

    def open(self, slot: Slot, *, write: bool = False) -> int:
        """A descriptor of the slot's file, made where `write`; of no link and no other user's file."""
        flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | (os.O_RDWR | os.O_CREAT if write else os.O_RDONLY)
        descriptor = os.open(slot.name, flags, 0o600, dir_fd=self._folder)
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_nlink != 1:
            os.close(descriptor)
            raise CheckpointError(f"{slot.name} is not a plain file of this user")
        return descriptor

    def header(self, slot: Slot) -> Header | None:
        """The header of a sealed slot; None for anything else.

        A header may have megabytes and is asked for every second, so it is read again only when its own check differs.
        """
        try:
            descriptor = self.open(slot)
        except (OSError, CheckpointError):
            return None
        try:
            beginning = os.pread(descriptor, _BEGINNING_BYTES, 0)
            known = self._headers.get(slot)
            if known is None or known[0] != beginning or known[1].size != os.fstat(descriptor).st_size:
                known = self._headers[slot] = (beginning, read_header(descriptor))
            return known[1]
        except (OSError, CheckpointError):
            return None
        finally:
            os.close(descriptor)

    def sealed(self) -> dict[Slot, Header]:
        """Every sealed slot with its header; the data is not verified."""
        found = {slot: self.header(slot) for slot in self.listed()}
        return {slot: header for slot, header in found.items() if header is not None}

    def remove(self, slot: Slot) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(slot.name, dir_fd=self._folder)

    def next_of(self, kind: Kind, rank: int) -> Slot:
        """The slot to write next: an empty one, else the oldest; never that of the newest complete id."""
        slots = [Slot(kind, rank, number) for number in range(SLOTS)]
        headers = [self.header(slot) for slot in slots]
        ids = [None if header is None else header.facts.id for header in headers]
        return slots[oldest(ids, self.newest_complete())]

    @contextlib.contextmanager
    def writing(self, slot: Slot) -> Iterator[int]:
        """The slot's file, locked against copying, and not sealed from the first moment on.

        Raises
        ------
        Busy
            If the file is being read by the keeper.
        """
        descriptor = self.open(slot, write=True)
        try:
            with locked(descriptor):
                unseal(descriptor)
                yield descriptor
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def reading(self, slot: Slot) -> Iterator[int]:
        """The slot's file, which is not written meanwhile.

        Raises
        ------
        Busy
            If it is being written.
        """
        descriptor = self.open(slot)
        try:
            with locked(descriptor, shared=True):
                yield descriptor
        finally:
            os.close(descriptor)

    def newest_complete(self) -> Id | None:
        """The newest id of which the keeper knows that every shard exists twice; None without a keeper."""
        fields = self.note(_COMPLETE)
        try:
            return None if fields is None else Id(int(fields["attempt"]), int(fields["step"]))
        except (KeyError, TypeError, ValueError):
            return None

    def set_newest_complete(self, newest: Id) -> None:
        self.write_note(_COMPLETE, {"attempt": newest.attempt, "step": newest.step})

    def note(self, name: str) -> dict[str, Any] | None:
        """A small JSON object beside the slots; None if it is absent or damaged."""
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._folder)
            try:
                value = json.loads(os.pread(descriptor, _MOST_JSON_BYTES, 0))
            finally:
                os.close(descriptor)
        except (OSError, ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None

    def write_note(self, name: str, fields: dict[str, Any]) -> None:
        """Replace the note in one step."""
        part = f".{name}.{os.getpid()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(part, flags, 0o600, dir_fd=self._folder)
        try:
            os.write(descriptor, json.dumps(fields).encode())
        finally:
            os.close(descriptor)
        os.replace(part, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def room_bytes(self) -> int:
        """What may still be allocated: on the tmpfs, of the machine's memory and of the control group's."""
        about = os.fstatvfs(self._folder)
        return min(about.f_bavail * about.f_frsize, _free_memory_bytes() - _SPARE_BYTES)

    def allocate(self, descriptor: int, size: int) -> None:
        """Give the file `size` bytes of memory now, so that writing to its mapping cannot fail.

        Raises
        ------
        TooSmall
            If they are not there.
        """
        about = os.fstat(descriptor)
        missing = size - about.st_blocks * 512
        if missing <= 0 and about.st_size == size:  # looking at each page again takes 40 us a MiB
            return
        room = self.room_bytes()
        if missing > room:
            raise TooSmall(
                f"{self.path}: a slot needs {size} bytes, of which {missing} are to be allocated, and {max(0, room)} "
                f"are free; two slots of each rank here and two of each rank of the previous node need "
                f"{2 * SLOTS * size} bytes a rank"
            )
        try:
            os.ftruncate(descriptor, size)
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            os.ftruncate(descriptor, 0)
            if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT):
                raise
            raise TooSmall(f"{self.path}: a slot of {size} bytes does not fit") from error


def oldest(ids: Sequence[Id | None], protected: Id | None) -> int:
    """Which of the slots with `ids` to write next.

    Examples
    --------
    >>> oldest([Id(0, 20), Id(0, 10)], protected=None), oldest([Id(0, 20), Id(0, 10)], protected=Id(0, 10))
    (1, 0)
    """
    free = [number for number, one in enumerate(ids) if one is None or one != protected]
    return min(free, key=lambda number: ids[number] or Id(-1, -1))


@contextlib.contextmanager
def locked(descriptor: int, *, shared: bool = False) -> Iterator[None]:
    """Hold the file's lock, if it is free.

    Raises
    ------
    Busy
        If another process holds it.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Busy("the slot to write is still being copied") from error
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # a mapping and a forked child keep the file open


def unseal(descriptor: int) -> None:
    """From here on the file counts as being written."""
    os.pwrite(descriptor, bytes(LENGTH_BYTES), 0)


def seal(descriptor: int, prefix: bytes) -> None:
    """Write the header, and its length last."""
    rest, at = memoryview(prefix)[LENGTH_BYTES:], LENGTH_BYTES
    while rest:
        done = os.pwrite(descriptor, rest, at)
        rest, at = rest[done:], at + done
    os.pwrite(descriptor, prefix[:LENGTH_BYTES], 0)


def _free_memory_bytes() -> int:
    rows = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    free = int(rows["MemAvailable"].split()[0]) * 1024
    with contextlib.suppress(OSError, ValueError, IndexError, KeyError):  # no control group, or one without a limit
        group = Path("/proc/self/cgroup").read_text(encoding="utf-8").split("::", 1)[1].splitlines()[0]
        folder = Path("/sys/fs/cgroup") / group.lstrip("/")
        most = int((folder / "memory.max").read_text(encoding="ascii"))
        used = int((folder / "memory.current").read_text(encoding="ascii"))
        parts = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
        free = min(free, most - used + int(parts["inactive_file"]))  # files read long ago make room
    return free
