"""A trainer's own files as one shard: each file of a checkpoint that lies on this node is a tensor of bytes."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from trainwarden.actions.keeper.transfer import ReadInto, chunks, read_prefix
from trainwarden.checkpoint.shard import (
    CHUNK_BYTES,
    CRC_HERE,
    CRCS,
    CheckpointError,
    Facts,
    Header,
    chunk_count,
    header_bytes,
    lay_out,
)
from trainwarden.checkpoint.slots import Slots, seal

_PIECE_BYTES: Final = 1024 * 1024
_TOPOLOGY: Final = "files of "


@dataclass(frozen=True, slots=True)
class Entry:
    """A checkpoint by its name in the folder, and the file that its trainer writes last."""

    name: str
    mark: str

    @property
    def topology(self) -> str:
        """What shards of one checkpoint have in common; nodes that hold no mark learn its name from it."""
        return _TOPOLOGY + json.dumps([self.name, self.mark])

    @classmethod
    def of(cls, topology: str) -> Entry | None:
        """The reverse of `topology`; None for anything else."""
        try:
            name, mark = json.loads(topology.removeprefix(_TOPOLOGY))
            plain = isinstance(name, str) and len(PurePosixPath(name).parts) == 1
            return cls(_inside(name), _inside(mark)) if plain and topology.startswith(_TOPOLOGY) else None
        except (ValueError, TypeError, RecursionError, CheckpointError):
            return None


def names_of(folder: Path, entry: Entry) -> list[str]:
    """The plain files of the checkpoint that lie here, the mark last; links are not followed."""
    path = folder / entry.name
    if path.is_dir() and not path.is_symlink():
        found = [Path(at, name) for at, _, names in os.walk(path) for name in names]
    else:
        found = [path]
    names = {str(one.relative_to(folder)) for one in [*found, folder / entry.mark] if _size(one) is not None}
    return sorted(names, key=lambda name: (name == entry.mark, name))


def size_of(folder: Path, entry: Entry) -> int:
    """Bytes of these files."""
    return sum(_size(folder / name) or 0 for name in names_of(folder, entry))


def pack(folder: Path, names: Sequence[str], slots: Slots, facts: Facts) -> None:
    """Copy the files into a slot.

    Raises
    ------
    CheckpointError
        If the trainer changes one meanwhile, or the memory does not suffice; the slot is not sealed then.
    """
    laid = lay_out((name, "U8", (_size(folder / name) or 0,)) for name in names)
    size = max((one.end for one in laid.values()), default=0)
    start = len(header_bytes(facts, laid, [0] * chunk_count(size)))
    with slots.writing(slots.next_of("own", facts.rank)) as descriptor:
        slots.allocate(descriptor, start + size)
        crcs, at = [0] * chunk_count(size), 0
        for name, one in laid.items():
            for data in _pieces(folder / name, one.start, one.end):
                crcs[at // CHUNK_BYTES] = CRCS[CRC_HERE](data, crcs[at // CHUNK_BYTES])
                _write(lambda rest, to=start + at: os.pwrite(descriptor, rest, to), data)  # type: ignore[misc]
                at += len(data)
        seal(descriptor, header_bytes(facts, laid, crcs))


def unpack(read: ReadInto, into: Path, wanted: Callable[[Header], bool], *, sync: bool = False) -> Header:
    """Write the files of a shard below `into`, if they are `wanted`.

    Raises
    ------
    CheckpointError
        If the shard is damaged or names files elsewhere; what was written is then not complete.
    """
    header = read_prefix(read)[1]
    places = {name: into / _inside(name) for name in header.tensors}
    if not wanted(header):
        return header
    stream, data = chunks(read, header), memoryview(b"")
    for name, one in sorted(header.tensors.items(), key=lambda one: (one[1].start, one[1].end)):
        places[name].parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(places[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            left = one.end - one.start
            while left:
                data = data or next(stream)[1]
                _write(lambda rest, to=descriptor: os.write(to, rest), data[:left])  # type: ignore[misc]
                data, left = data[left:], left - len(data[:left])
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return header


def lie_in(folder: Path, header: Header) -> bool:
    """Whether the folder has the shard's very files: their bytes have its CRCs."""
    crcs, at = [0] * len(header.chunks), 0
    try:
        for name, one in sorted(header.tensors.items(), key=lambda one: (one[1].start, one[1].end)):
            if _size(folder / _inside(name)) != one.end - one.start:
                return False
            for data in _pieces(folder / name, one.start, one.end):
                crcs[at // CHUNK_BYTES] = CRCS[header.crc](data, crcs[at // CHUNK_BYTES])
                at += len(data)
    except (OSError, CheckpointError):
        return False
    return tuple(crcs) == header.chunks


def _pieces(path: Path, start: int, end: int) -> Iterator[memoryview]:
    """The bytes of a file that lie at `start` to `end` of a shard; no piece crosses a chunk."""
    buffer = memoryview(bytearray(_PIECE_BYTES))
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        before = os.fstat(descriptor)
        at = start
        while at < end and (got := os.readv(descriptor, [buffer[: min(end - at, CHUNK_BYTES - at % CHUNK_BYTES)]])):
            yield buffer[:got]
            at += got
        after = os.fstat(descriptor)
        if at < end or (before.st_mtime_ns, end - start) != (after.st_mtime_ns, after.st_size):
            raise CheckpointError(f"{path.name} is being changed")
    finally:
        os.close(descriptor)


def _inside(name: str) -> str:
    if not isinstance(name, str) or "\0" in name or any(one in ("", ".", "..") for one in name.split("/")):
        raise CheckpointError("a file's name leads out of the folder")
    return name


def _size(path: Path) -> int | None:
    try:
        about = path.lstat()
    except (OSError, ValueError):
        return None
    return about.st_size if stat.S_ISREG(about.st_mode) else None


def _write(write: Callable[[memoryview], int], data: memoryview) -> None:
    while data:
        data = data[write(data) :]
