"""The store of a folder in memory: storage that all nodes share, with the files as their trainer wrote them.

Each node writes its files beside; once all have, they get their names, the trainer's mark last. Whoever looks for a
checkpoint there sees a whole one or none.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

from trainwarden.actions.keeper.parts import Entry, names_of, size_of, unpack
from trainwarden.actions.keeper.transfer import ReadInto
from trainwarden.checkpoint.shard import CheckpointError, Header, Id
from trainwarden.checkpoints.newest import Checkpoint, newest

_BESIDE: Final = ".trainwarden-unfinished"
_ID: Final = re.compile(r"step-([0-9]{1,15})-attempt-([0-9]{1,15})")
_DIRECT: Final = "direct"
_PIECE_BYTES: Final = 1024 * 1024


class Filed:
    """The folder `path` of checkpoints.

    Attributes
    ----------
    progress : int
        Grows with each piece that is copied from or to the folder, and with each file that gets its name.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.progress = path, 0

    def newest(self) -> Checkpoint | None:
        """The newest whole one."""
        return newest(self.path)

    def size(self, kept: Checkpoint) -> int:
        """Bytes of a checkpoint here."""
        return size_of(self.path, Entry(kept.path.name, kept.mark))

    def lacks(self, id_: Id) -> bool:
        """Whether a checkpoint as new is not there yet."""
        kept = self.newest()
        return kept is None or kept.step < id_.step

    def begun(self) -> list[Id]:
        """Checkpoints of which some nodes have written their files."""
        try:
            names = os.listdir(self.path / _BESIDE)
        except FileNotFoundError:
            return []
        found = (_ID.fullmatch(name) for name in names)
        return [Id(int(match[2]), int(match[1])) for match in found if match]

    def unfinished_bytes(self) -> int:
        """Bytes of checkpoints of which not all nodes have written their files."""
        found = (Path(at, name) for at, _, names in os.walk(self.path / _BESIDE) for name in names)
        total = 0
        for one in found:
            with suppress(FileNotFoundError):  # it has got its name
                total += one.stat().st_size
        return total

    def put(self, read: ReadInto, header: Header) -> bool:
        """Write one node's files beside; False if they are there."""
        beside = self.path / _BESIDE / str(header.facts.id)
        done = beside / f"node-{header.facts.rank}"
        if done.exists():
            return False
        part = beside / f".node-{header.facts.rank}"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(mode=0o700, parents=True)

        def counted(buffer: memoryview) -> int:
            self.progress += (got := read(buffer))
            return got

        unpack(counted, part, lambda _: True, sync=True)
        part.replace(done)
        return True

    def finish(self, id_: Id, entry: Entry, world: int) -> bool:
        """Give the files their names, if all nodes have written theirs; whether they have them now.

        One node does it, and again where it died at it: what has its name already is passed over.
        """
        beside = self.path / _BESIDE / str(id_)
        parts = [beside / f"node-{rank}" for rank in range(world)]
        if not all(part.is_dir() for part in parts):
            return False
        names = {name: part for part in parts for name in names_of(part, entry)}
        for name in sorted(names, key=lambda name: (name == entry.mark, name)):
            place = self.path / name
            place.parent.mkdir(parents=True, exist_ok=True)
            (names[name] / name).replace(place)
            self.progress += 1
        _sync(self.path / entry.name)
        _sync(self.path)
        for older in self.begun():  # of which some node's files never came
            if older <= id_:
                shutil.rmtree(self.path / _BESIDE / str(older), ignore_errors=True)
        return True

    def put_files(self, folder: Path, entry: Entry) -> None:
        """Write the files of `folder`, which the caller alone has."""
        part = self.path / _BESIDE / _DIRECT
        shutil.rmtree(part, ignore_errors=True)
        for name in names_of(folder, entry):
            self._copy(folder / name, part / name)
            _sync(part / name)
        for name in names_of(part, entry):
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            (part / name).replace(self.path / name)
            self.progress += 1
        _sync(self.path)

    def copied(self, into: Path) -> Path:
        """The newest checkpoint's files, copied to `into`.

        Raises
        ------
        CheckpointError
            If there is none.
        """
        kept = self.newest()
        if kept is None:
            raise CheckpointError("the store holds no checkpoint any more")
        shutil.rmtree(into, ignore_errors=True)
        for name in names_of(self.path, Entry(kept.path.name, kept.mark)):
            self._copy(self.path / name, into / name)
        return into

    def _copy(self, file: Path, to: Path) -> None:
        to.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with file.open("rb") as source, to.open("wb") as target:
            while piece := source.read(_PIECE_BYTES):
                target.write(piece)
                self.progress += len(piece)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
