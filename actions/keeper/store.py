"""The store: a folder on storage that outlives all nodes. A checkpoint is durable once its manifest has its name."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from trainwarden.actions.keeper.copies import Copy, copy_of
from trainwarden.actions.keeper.transfer import reading, send
from trainwarden.checkpoint.shard import CheckpointError, Header, Id, read_header

_NAME: Final = re.compile(r"step-([0-9]{1,15})-attempt-([0-9]{1,15})")
_MANIFEST: Final = "manifest.json"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Every shard of one checkpoint, by what its header and all its bytes come down to."""

    job: str
    shards: list[Copy]


class Opened:
    """A shard that is open for reading. The end of the last reference closes it, as whoever opens it may give up."""

    def __init__(self, descriptor: int) -> None:
        self.read = reading(descriptor)
        self.close = weakref.finalize(self, os.close, descriptor)
        self.close.atexit = False


class Store:
    """The checkpoints of one job below a folder."""

    def __init__(self, folder: Path, job: str) -> None:
        self.job = job
        self._durable: dict[Id, list[Copy]] = {}
        self.path = folder / f"job-{quote(job, safe='')[:200]}"

    def put(self, descriptor: int, header: Header, check: Callable[[], None] = lambda: None) -> None:
        """Write one shard; it is there whole or not at all. `check` is called for each piece and may raise.

        Raises
        ------
        CheckpointError
            If the shard is damaged.
        OSError
            If the store cannot take it.
        """
        folder = self.path / str(header.facts.id)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _replacing(folder / _shard(header.facts.rank)) as file:

            def write(data: memoryview) -> None:
                check()
                _write(file, data)

            send(descriptor, header, write)
            check()

    def has(self, header: Header) -> bool:
        """Whether the shard is there already."""
        return self._digest(header.facts.id, header.facts.rank) == header.digest

    def seal(self, id_: Id, world: int) -> bool:
        """Write the manifest if every shard is there; whether the checkpoint is durable now."""
        if self._manifest(id_).exists():
            return True
        headers = [self._header(id_, rank) for rank in range(world)]
        shards = [copy_of(header, "store", "") for header in headers if header is not None]
        if len(shards) < world or len({(one.world, one.topology) for one in shards}) > 1:
            return False
        with _replacing(self._manifest(id_)) as file:
            _write(file, memoryview(msgspec.json.encode(Manifest(job=self.job, shards=shards))))
        return True

    def copies(self) -> list[Copy]:
        """Every shard of every durable checkpoint."""
        there = self._ids()
        self._durable = {id_: copies for id_, copies in self._durable.items() if id_ in there}
        for id_ in there:
            if id_ not in self._durable:  # a manifest never changes
                with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
                    manifest = msgspec.json.decode(self._manifest(id_).read_bytes(), type=Manifest)
                    self._durable[id_] = [one for one in manifest.shards if one.id == id_ and one.tier == "store"]
        return [copy for copies in self._durable.values() for copy in copies]

    def unfinished(self) -> list[Id]:
        """Checkpoints without a manifest, newest first: other nodes still write to them, or never will."""
        return [id_ for id_ in self._ids() if id_ not in self._durable and not self._manifest(id_).exists()]

    def open(self, copy: Copy) -> Opened:
        """The shard that a manifest names.

        Raises
        ------
        CheckpointError
            If another one lies there.
        """
        if self._digest(copy.id, copy.rank) != copy.digest:
            raise CheckpointError("the store's file is not the one of the manifest")
        return Opened(os.open(self.path / str(copy.id) / _shard(copy.rank), os.O_RDONLY | os.O_CLOEXEC))

    def prune(self, keep: int) -> None:
        """Leave the newest `keep` durable checkpoints and what is newer than the newest of them."""
        unfinished = set(self.unfinished())
        durable = [id_ for id_ in self._ids() if id_ not in unfinished]
        for id_ in durable[keep:] + [one for one in unfinished if durable and one < durable[0]]:
            with contextlib.suppress(OSError):
                self._manifest(id_).unlink(missing_ok=True)
                shutil.rmtree(self.path / str(id_))

    def _manifest(self, id_: Id) -> Path:
        return self.path / str(id_) / _MANIFEST

    def _ids(self) -> list[Id]:
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            return []
        found = (_NAME.fullmatch(name) for name in names)
        return sorted((Id(int(match[2]), int(match[1])) for match in found if match), reverse=True)

    def _digest(self, id_: Id, rank: int) -> str | None:
        header = self._header(id_, rank)
        return None if header is None else header.digest

    def _header(self, id_: Id, rank: int) -> Header | None:
        try:
            descriptor = os.open(self.path / str(id_) / _shard(rank), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        try:
            header = read_header(descriptor)
        except CheckpointError:
            return None
        finally:
            os.close(descriptor)
        return header if (header.facts.id, header.facts.rank, header.facts.job) == (id_, rank, self.job) else None


def _shard(rank: int) -> str:
    return f"rank-{rank:06d}.safetensors"


def _write(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


@contextmanager
def _replacing(path: Path) -> Iterator[int]:
    """Write to a file that takes `path`'s name once it is on the disk."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")  # nodes may share a pid
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            yield descriptor
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
