"""What a folder in memory does with its store, which may hang: nothing else waits for it.

Whoever asks for the newest checkpoint there gets what the last look has found. One thread looks and writes.
"""

from __future__ import annotations

import logging
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

from trainwarden.actions.keeper.filed import Filed
from trainwarden.actions.keeper.keeper import Keeper
from trainwarden.actions.keeper.parts import Entry
from trainwarden.actions.keeper.silence import Sending, unless_still, wait_s
from trainwarden.checkpoint.shard import CheckpointError, Header, Id
from trainwarden.checkpoint.slots import Busy, Slot
from trainwarden.checkpoints.newest import Checkpoint
from trainwarden.clock import Clock

log = logging.getLogger("trainwarden.keeper")


@dataclass(frozen=True, slots=True)
class Known:
    """What the last look has found in the store; `size` and `saved_at_s` are those of `kept`."""

    looked_at_s: float
    kept: Checkpoint | None
    size: int = 0
    saved_at_s: float = 0.0


class Filing:
    """See the module.

    Attributes
    ----------
    store : Filed
        Only who holds `lock` reads or writes it.
    known : Known, optional
        None before the first look.
    safe : Id, optional
        The newest safe checkpoint of the folder: it goes to the store when that is due.
    unfit : tuple of Id and Entry, optional
        A checkpoint for which memory has no slot: it goes there from the folder itself.
    newer_than : Id, optional
        The first safe one that is newer goes to the store at once.
    """

    def __init__(self, store: Path, keeper: Keeper, clock: Clock, flush_every_s: float) -> None:
        self.store, self.lock = Filed(store), threading.Lock()
        self.known: Known | None = None
        self.safe: Id | None = None
        self.unfit: tuple[Id, Entry] | None = None
        self.newer_than: Id | None = None
        self.flush_every_s, self._flushed_at_s = flush_every_s, -flush_every_s
        self._keeper, self._clock, self._said = keeper, clock, ""
        self._sending: Sending | None = None
        self._guard, self._copies = threading.Lock(), 0

    def wait_s(self) -> float:
        """How long to wait for the next look, before one goes on by the last."""
        return wait_s(None if self.known is None else self.known.looked_at_s, self._clock.monotonic_s())

    def round(self, folder: Path) -> None:
        """Look at the store, and write what is due there."""
        with self.lock:
            try:
                self._look()
                unfit, self.unfit = self.unfit, None
                if unfit is not None and self.store.lacks(unfit[0]):
                    self.store.put_files(folder, unfit[1])  # it is not lost with the node at least
                if self.safe is not None:
                    self._file(self.safe)
                self._look()
                self._said = ""
            except Busy:
                pass  # it is being written anew; the next round has the newer one
            except (CheckpointError, OSError) as error:
                if str(error) != self._said:
                    self._said = str(error)
                    log.warning("the store %s: %s", self.store.path, error)

    def give_way(self) -> None:
        """Let go of the slot from which nothing has been read for long, as the store hangs: others need it."""
        with self._guard:
            if self._sending is not None and self._sending.is_still:
                self._sending.let_go()

    def kept(self) -> Checkpoint | None:
        """The newest checkpoint in the store now.

        Raises
        ------
        CheckpointError
            If the store hangs.
        """
        return unless_still(self._kept, self._progress)

    def _kept(self) -> Checkpoint | None:
        with self.lock:
            return self.store.newest()

    def _progress(self) -> object:
        """Changes while whoever holds `lock` gets on. It asks the store nothing, as the store may hang."""
        return self.store.progress, self.known

    def copied(self, step: int, folder: Path, filling: str) -> tuple[Path, Entry] | None:
        """Copy the store's newest checkpoint beside `folder`'s files, if it is of `step`.

        Raises
        ------
        CheckpointError
            If the store hangs. What it gives after all is removed.
        """
        for left in folder.glob(f"{filling}*"):
            shutil.rmtree(left, ignore_errors=True)
        self._copies += 1
        into, given_up = folder / f"{filling}-{self._copies}", threading.Event()

        def copy() -> Entry | None:
            try:
                with self.lock:
                    kept = self.store.newest()
                    if kept is None or kept.step != step or given_up.is_set():
                        return None
                    self.store.copied(into)
                    return Entry(kept.path.name, kept.mark)
            finally:
                if given_up.is_set():
                    shutil.rmtree(into, ignore_errors=True)

        try:
            entry = unless_still(copy, self._progress)
        except Exception:
            given_up.set()
            shutil.rmtree(into, ignore_errors=True)  # `copy` may have ended just before it could see that
            raise
        return None if entry is None else (into, entry)

    def _look(self) -> None:
        now_s, kept, before = self._clock.monotonic_s(), self.store.newest(), self.known
        if kept is None:
            self.known = Known(now_s, None)
        elif before is not None and before.kept is not None and before.kept.path == kept.path:  # of many files
            self.known = Known(now_s, kept, before.size, before.saved_at_s)
        else:
            self.known = Known(now_s, kept, self.store.size(kept), kept.path.stat().st_mtime)

    def _file(self, safe: Id) -> None:
        """Write to the store what another node has begun, else the newest safe checkpoint when it is due."""
        begun, now_s = self.store.begun(), self._clock.monotonic_s()
        asked = self.newer_than is not None and safe > self.newer_than
        due = (asked or now_s - self._flushed_at_s >= self.flush_every_s) and self.store.lacks(safe)
        for slot, header in self._keeper.own():
            its, entry = header.facts.id, Entry.of(header.facts.topology)
            if entry is None or not (its in begun or (its == safe and due)):
                continue
            if self._put(slot, header):
                self._flushed_at_s = now_s
            if self._keeper.ring.index(self._keeper.node) == 0:
                self.store.finish(its, entry, header.facts.world)
                self.newer_than = None if asked and its == safe else self.newer_than
            return

    def _put(self, slot: Slot, header: Header) -> bool:
        with self._keeper.slots.reading(slot) as descriptor:
            sending = self._sending = Sending(slot, descriptor, self._clock)
            try:
                return self.store.put(sending.read, header)
            finally:
                with self._guard:
                    self._sending = None
