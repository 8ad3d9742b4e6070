"""A folder in memory for scripts that are not changed: what its trainer finishes there is kept as shards are.

Each node packs the files that lie on it, one shard a node, and the keeper copies shards to the next node. The store
gets the files as their trainer wrote them, the mark last. Before ranks start, every node's folder is given all files of
the newest checkpoint: a script expects a folder that all nodes share.
"""

from __future__ import annotations

import logging
import re
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trainwarden.actions.keeper.copies import Choice, Copies, Copy, Tier
from trainwarden.actions.keeper.filing import Filing
from trainwarden.actions.keeper.keeper import Keeper, place_of
from trainwarden.actions.keeper.parts import Entry, lie_in, names_of, pack, unpack
from trainwarden.actions.keeper.silence import PEERS_S
from trainwarden.actions.keeper.transfer import reading
from trainwarden.checkpoint.shard import CheckpointError, Facts, Header, Id
from trainwarden.checkpoint.slots import SLOTS, Busy, TooSmall
from trainwarden.checkpoints.newest import newest, steps
from trainwarden.clock import Clock

log = logging.getLogger("trainwarden.keeper")
FOLDER: Final = "files"
NOTE: Final = "folder.json"
_LEFT: Final = 2  # checkpoints that stay in the folder: the newest, and one that is being written
_CLOSE_S: Final = 20.0  # without a byte from other nodes, at the end of the job
_FILLING: Final = ".trainwarden-filling"
_NUMBER: Final = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True)
class Filled:
    """Where the newest checkpoint lies now, and its step; `folder` is the one for the script."""

    folder: Path
    path: Path | None
    step: int | None
    words: str


class Folder:
    """The files of a job on this node.

    Parameters
    ----------
    keeper : Keeper
        It holds the shards, and has no store of its own.
    store : Path, optional
        Storage that all nodes share. Nothing in it is ever deleted.
    """

    def __init__(self, keeper: Keeper, clock: Clock, *, store: Path | None, flush_every_s: float) -> None:
        self.keeper, self.path = keeper, keeper.slots.path / FOLDER
        self.path.mkdir(mode=0o700, exist_ok=True)
        self._clock = clock
        self._filing = None if store is None else Filing(store, keeper, clock, flush_every_s)
        self._lock = threading.Lock()
        note = keeper.slots.note(NOTE) or {}
        self._attempt, self._filled = int(note.get("attempt", 0)), note.get("filled")
        self._choice: tuple[str, Choice] | None = None
        self._said = self._filling = ""

    @property
    def _rank(self) -> int:
        return self.keeper.ring.index(self.keeper.node)

    @property
    def _world(self) -> int:
        return len(self.keeper.ring)

    def tick(self, copies: Copies) -> bool:
        """One round of work, after the keeper's; whether that has something to send now."""
        packed = False
        if not self._lock.acquire(blocking=False):
            return packed  # ranks are about to start: nothing new lies here
        try:
            packed = self._pack(copies)
            safe = self._newest(copies, self.keeper.safe_tier)
            if safe is not None:
                self._note(*safe)
                self._trim(safe[0].step, safe[1])
            if self._filing is not None:
                self._filing.safe = None if safe is None else safe[0]
        except (CheckpointError, OSError) as error:
            self._say(f"a checkpoint is not kept: {error}")
        finally:
            self._lock.release()
        return packed

    def file(self) -> None:
        """One round of the store, where there is one; it hangs as long as that does, and `tick` goes on meanwhile."""
        if self._filing is not None:
            self._filing.round(self.path)

    def close(self, work: Callable[[], object]) -> None:
        """The keeper ends, as its job does: the store gets the newest checkpoint now, by rounds of `work`.

        A checkpoint of several nodes is whole once each has written its part: wait while any of them writes.
        """
        if self._filing is None:
            return
        self._filing.flush_every_s, store = 0.0, self._filing.store
        for _ in range(2):  # the second has what the first has packed
            work()
            self.file()
        before, since_s = -1, self._clock.monotonic_s()
        while self._world > 1 and (last := self._last()) and store.lacks(last):
            work()
            self.file()
            written, now_s = store.unfinished_bytes(), self._clock.monotonic_s()
            if written != before:
                before, since_s = written, now_s
            elif now_s - since_s >= _CLOSE_S:
                log.warning("step %d is not in the store: the other nodes have not written their part", last.step)
                return
            self._clock.sleep(0.5)

    def _last(self) -> Id | None:
        """The newest checkpoint of this node's files in memory."""
        return max((copy.id for copy in self.keeper.inventory() if copy.tier == "memory"), default=None)

    def keep_soon(self) -> None:
        """Ranks have been asked to save: what they save reaches the store at once, where no other node holds a copy."""
        if self._filing is not None and self._world == 1:
            self._filing.newer_than = self._last() or Id(-1, -1)

    def stored(self) -> tuple[int, float, str] | None:
        """Step, time and name of the newest checkpoint that was seen in the store."""
        known = None if self._filing is None else self._filing.known
        return (
            None if known is None or known.kept is None else (known.kept.step, known.saved_at_s, known.kept.path.name)
        )

    def choose(self, key: str) -> Choice:
        """From what the ranks go on that start with `key`: the same for all nodes, which ask the first of the ring."""
        with self._lock:
            if self._choice is None or self._choice[0] != key:
                self._choice = (key, self._chosen(None))
            return self._choice[1]

    def fill(self, key: str) -> Filled:
        """Give the folder the newest checkpoint that all nodes can have, and nothing that is newer.

        Raises
        ------
        CheckpointError
            If it cannot be had here.
        """
        self._filling = key
        choice = self._asked(key)
        with self._lock:
            if self._filling != key:
                raise CheckpointError("another round has begun meanwhile")
            while True:
                try:
                    filled = self._fill(choice)
                    break
                except (CheckpointError, OSError) as error:
                    if choice.id is None or self._world > 1:  # others have the same one already
                        raise CheckpointError(str(error)) from error
                    choice = self._chosen(Id(*choice.id), f"step {choice.step} is passed over, as {error}")
            self._attempt, self._filled = choice.attempt, None if filled.path is None else filled.path.name
            self._note(None if choice.id is None else Id(*choice.id), self._filled)
            return filled

    def _asked(self, key: str) -> Choice:
        """What the first node of the ring has chosen; it may learn of the ring later than we do."""
        deadline_s = self._clock.monotonic_s() + PEERS_S
        while True:
            first = self.keeper.ring[0]
            try:
                return self.choose(key) if first == self.keeper.node else self.keeper.peer(first).choose(key)
            except (CheckpointError, OSError) as error:
                if self._clock.monotonic_s() >= deadline_s:
                    raise CheckpointError(f"{first} has not chosen a checkpoint: {error}") from error
            self._clock.sleep(0.5)

    def _chosen(self, below: Id | None, words: str = "") -> Choice:
        """Wait for nodes and a store that do not answer yet: what they hold may be newer."""
        since_s, filing = self._clock.monotonic_s(), self._filing
        while True:
            copies = self.keeper.survey()
            old_s = 0.0 if filing is None else filing.wait_s()
            if self._clock.monotonic_s() - since_s >= (PEERS_S if self.keeper.away else old_s):
                break
            self._clock.sleep(0.5)
        said = "; ".join(
            [words] * bool(words)
            + [f"{one} does not answer ({why})" for one, why in self.keeper.away.items()]
            + ["the store does not answer, or is being written to"] * bool(old_s)
        )
        attempt = max((id_.attempt for id_ in copies.by_id), default=self._attempt - 1) + 1
        held = self._newest(copies, "memory", "neighbour", below=below)
        known = None if filing is None else filing.known
        if held is None and filing is not None and known is None:
            raise CheckpointError(f"memory holds no whole checkpoint, and the store has not answered: {said}")
        kept = None if known is None else known.kept
        if known is not None and kept is not None and (small := self._too_small(known.size)):
            return Choice(attempt, None, kept.step, small, said)
        if held is not None and (kept is None or kept.step <= held[0].step):
            return Choice(attempt, (held[0].attempt, held[0].step), held[0].step, "", said)
        return Choice(attempt, None, None if kept is None else kept.step, "", said)

    def _newest(self, copies: Copies, *tiers: Tier, below: Id | None = None) -> tuple[Id, str] | None:
        """The newest checkpoint of files that is complete in `tiers`, with its name."""
        for id_ in copies.newest_first():
            entry = Entry.of(copies.by_id[id_][0].topology)
            if entry is not None and (below is None or id_ < below) and copies.is_complete(id_, *tiers):
                return id_, entry.name
        return None

    def _pack(self, copies: Copies) -> bool:
        """Pack the newest that is whole here, or of which another node has seen the mark: it is written last.

        Returns
        -------
        bool
            Whether there was one.
        """
        own = self._last() or Id(-1, -1)
        found = newest(self.path)
        wanted = [
            (id_, Entry.of(copies.by_id[id_][0].topology))
            for id_ in copies.by_id
            if id_.attempt == self._attempt
        ]  # fmt: skip
        if found is not None and found.path.name != self._filled:
            wanted.append((Id(self._attempt, found.step), Entry(found.path.name, found.mark)))
        id_, entry = max(wanted, key=lambda one: one[0], default=(own, None))
        if entry is None or id_ <= own:
            return False
        try:
            self._pack_one(id_, entry)
        except Busy:  # a shard is being sent; the next round has the newer one
            if self._filing is not None:
                self._filing.give_way()
            return False
        except TooSmall:
            if self._world == 1 and self._filing is not None:
                self._filing.unfit = id_, entry
                if (stored := self.stored()) is not None and stored[0] >= id_.step:
                    self._note(id_, entry.name)
            raise
        return True

    def _pack_one(self, id_: Id, entry: Entry) -> None:
        ring = self.keeper.ring
        facts = Facts(self.keeper.job, id_, ring.index(self.keeper.node), len(ring), entry.topology, time.time())
        found = newest(self.path)
        names = names_of(self.path, entry)
        if found is None or found.path.name != entry.name:  # a mark here, if any, names an older checkpoint
            names = [name for name in names if name != entry.mark]
        pack(self.path, names, self.keeper.slots, facts)

    def _fill(self, choice: Choice) -> Filled:
        if self._filing is not None:
            self._filing.give_way()
            if choice.direct and (kept := self._filing.kept()) is not None:
                return Filled(kept.path.parent, kept.path, kept.step, choice.direct)
        here = newest(self.path)
        if self._world == 1 and here is not None and here.step >= (choice.step or 0):
            name, words = here.path.name, f"step {here.step} lies in memory"
        elif choice.id is not None:
            name, places = self._bring(Id(*choice.id))
            words = f"step {choice.step} is restored from {' and '.join(sorted(places)) or 'memory'}"
        elif choice.step is not None:
            name, words = self._copy_stored(choice.step), f"step {choice.step} is restored from the store"
        else:
            self._remove_newer(-1, None if here is None else here.path.name)
            return Filled(self.path, None, None, choice.words or "no checkpoint is complete")
        step = here.step if here is not None and here.path.name == name else choice.step
        self._remove_newer(step or 0, name)
        return Filled(self.path, self.path / name, step, "; ".join(filter(None, (words, choice.words))))

    def _copy_stored(self, step: int) -> str:
        """The store's newest checkpoint into the folder, if it is of `step`; returns its name."""
        copied = None if self._filing is None else self._filing.copied(step, self.path, _FILLING)
        if copied is not None:
            self._swap(*copied)
            return copied[1].name
        raise CheckpointError(f"step {step} is not in the store any more")

    def _too_small(self, size: int) -> str:
        """What is missing for checkpoints of `size` bytes; nothing, if all fit."""
        copies = _LEFT + SLOTS * (2 if self._world > 1 else 1)
        has = sum(one.stat().st_blocks * 512 for one in self.keeper.slots.path.rglob("*") if one.is_file())
        room = max(0, self.keeper.slots.room_bytes() + has)
        if size * copies <= room:
            return ""
        return (
            f"{self.keeper.slots.path}: checkpoints of {size} bytes need {size * copies} bytes of memory ({copies} "
            f"copies) and {room} are free, so ranks read and write the store itself"
        )

    def _bring(self, id_: Id) -> tuple[str, set[str]]:
        """Every node's files of the checkpoint into the folder; returns its name, and what came from other nodes."""
        copies = self.keeper.survey()
        into = self.path / _FILLING
        shutil.rmtree(into, ignore_errors=True)
        entry = Entry.of(copies.by_id[id_][0].topology) if copies.is_complete(id_) else None
        if entry is None:
            raise CheckpointError(f"step {id_.step} is not complete any more")
        world = copies.by_id[id_][0].world  # nodes may have become more or fewer since
        order = sorted(range(world), key=self._rank.__eq__)  # our own files last
        places: set[str] = set()
        headers = [self._unpack(copies.sources(id_, rank, self.keeper.node), into, places) for rank in order]
        named = {name for header in headers for name in header.tensors}
        for name in names_of(self.path, entry):
            if name not in named:
                (self.path / name).unlink()
        self._swap(into, entry)
        return entry.name, places

    def _unpack(self, sources: list[Copy], into: Path, places: set[str]) -> Header:
        """One node's files, with where they were if that is another; what lies in the folder is not read again."""
        troubles = []
        for copy in sources:

            def wanted(header: Header, copy: Copy = copy) -> bool:
                if header.digest != copy.digest:
                    raise CheckpointError("it is another shard than was listed")
                if lie_in(self.path, header):
                    return False
                if header.size > self.keeper.slots.room_bytes():
                    raise TooSmall(f"{self.path}: {header.size} bytes are needed and are not free")
                return True

            try:
                if copy.rank == self._rank and copy.world == self._world:
                    self.keeper.bring(copy)  # into a slot of ours, from which it is copied to the next node again
                    with self.keeper.offer(copy.digest) as (descriptor, _):
                        header = unpack(reading(descriptor), into, wanted)
                else:
                    with self.keeper.opened(copy) as read:
                        header = unpack(read, into, wanted)
                if copy.node != self.keeper.node and header.tensors:
                    places.add(place_of(copy, self.keeper.node))
                return header
            except (CheckpointError, OSError) as error:
                troubles.append(str(error))
        raise CheckpointError("; ".join(troubles) or "no copy is left")

    def _swap(self, filled: Path, entry: Entry) -> None:
        """Move what was filled to its place, the mark last; no rank runs meanwhile."""
        for name in names_of(filled, entry):
            place = self.path / name
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            (filled / name).replace(place)
        shutil.rmtree(filled, ignore_errors=True)

    def _remove_newer(self, step: int, like: str | None) -> None:
        for name, its_step in self._alike(like).items():
            if its_step > step:
                _remove(self.path / name)

    def _alike(self, like: str | None) -> dict[str, int]:
        """Checkpoints of the same trainer as `like`, newest first: other files may end in a number too."""
        if like is None:
            return {}
        return {
            name: step for name, step in steps(self.path).items() if _NUMBER.sub("#", name) == _NUMBER.sub("#", like)
        }

    def _trim(self, safe_step: int, like: str) -> None:
        """Free what is older than the newest safe checkpoint, but for one: memory is for few."""
        for name in [name for name, step in self._alike(like).items() if step <= safe_step][_LEFT:]:
            _remove(self.path / name)

    def _note(self, safe: Id | None, name: str | None) -> None:
        """Leave what a restart would go on from where the launcher reads it; kept over our own restart."""
        note: dict[str, Any] = {"attempt": self._attempt, "filled": self._filled}
        if safe is not None and name is not None:
            note |= {"step": safe.step, "path": str(self.path / name)}
            if self._world > 1:
                note["outlives"] = safe.step
            elif (stored := self.stored()) is not None:
                note["outlives"] = stored[0]
        if note != self.keeper.slots.note(NOTE):
            self.keeper.slots.write_note(NOTE, note)

    def _say(self, words: str) -> None:
        if words != self._said:
            self._said = words
            log.warning("%s", words)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
