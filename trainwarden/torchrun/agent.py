"""What one torchrun knows of its job: its place, what it was told last, and what it says of itself. No torch here."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from trainwarden.torchrun.line import Endpoints, Fields, Line

FORGET_S: Final = 0.5  # between two looks at whether to give up


class Over(Exception):
    """The job is over for all agents; `code` is torchrun's own exit code then."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class Unreachable(Exception):
    """No service serves us."""


class Place(NamedTuple):
    """Whose agent this is; `host` is where others find us, None: by the address that the service is reached from.

    The rest is what a person has asked for (`trainwarden.actions.launchers.torchrun.messages.Hello`); None: nothing was
    said.
    """

    job: str
    node: str
    least: int
    most: int
    host: str | None = None
    last_call_s: float = 30.0
    place: int | None = None
    spares: int | None = None
    failures: int | None = None
    grow: str | None = None
    weight: float | None = None
    held: bool | None = None


class Begin(NamedTuple):
    """Our place in a round."""

    round: int
    rank: int
    world: int
    host: str
    port: int
    resume: str | None

    @classmethod
    def of(cls, said: Fields) -> Begin:
        """What a service has said.

        Raises
        ------
        ValueError
            If it is no place in a round.
        """
        found = cls._make(said.get(name) for name in cls._fields)
        numbers = found.round, found.rank, found.world, found.port
        texts = found.host, found.resume or ""
        if all(isinstance(one, int) for one in numbers) and all(isinstance(one, str) for one in texts):
            return found
        raise ValueError("the service names no place in a round")


class Agent:
    """Takes part in the rendezvous.

    Parameters
    ----------
    put_splits : callable
        Called, in the line's own thread, with plans of micro-batches that are new.
    watch : callable, optional
        Called there with the bus to which this node is to be watched.
    note : callable, optional
        Called there with an operation that the service has accepted since we came, and its stage; each once.
    """

    def __init__(
        self, place: Place, endpoints: Endpoints, put_splits: Callable[[list[Fields]], None],
        watch: Callable[[str], None] = lambda bus: None,
        note: Callable[[Fields, str], None] = lambda operation, stage: None,
    ) -> None:  # fmt: skip
        self._place, self._put_splits, self._watch, self._note = place, put_splits, watch, note
        self.tell_keeper: Callable[[Fields], None] = lambda said: None
        """Called there with what this node's keeper is to know: by which ``host`` others find us, or the ``ring``."""
        self.save: Callable[[], None] = lambda: None
        """Called there when our ranks are to save a checkpoint now, once for each operation."""
        self.check: Callable[[Fields | None], None] = lambda word: None
        """Called there with our part in a validation, by each word; None: there is none."""
        self._save: str | None = None
        self._noted: set[tuple[str, str]] | None = None
        self.life = f"{place.node[:200]}/{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._changed = threading.Condition()
        self._beat: Fields = {"do": "beat"}
        self._word: Fields = {}
        self._memory: Fields | None = None
        self._begin: Begin | None = None
        self.stop_requested_s: float | None = None  # since when our ranks are to end
        self._line = Line(endpoints, self._hello, self._current_beat, self._handle)

    def start(self) -> None:
        """Connect, and stay connected."""
        self._line.start()

    def close(self) -> None:
        """Say that we leave. The service tells no agent of the end of a stop, as all have left by then."""
        self.update(left=True)
        self._line.close()
        with self._changed:
            kept = (self._memory or {}).get("kept", ()) if self._word.get("over") is not None else ()
        for one in kept:
            key = (one["report"]["operation"], "done")
            if one["kind"] == "stop" and self._noted is not None and key not in self._noted:
                self._noted.add(key)
                self._note(one, "done")

    def forget(self) -> None:
        """In a forked child."""
        self._line.forget()

    def update(self, **fields: Any) -> None:
        """Change what we say of ourselves, and say it now."""
        with self._changed:
            self._beat = {**self._beat, **fields}
        self._line.wake()

    def update_round(self, number: int, **fields: Any) -> None:
        """Change what we say of our ranks, if they are still those of the round `number`."""
        with self._changed:
            if self.round != number or self._beat.get("waits"):
                return
            self._beat = {**self._beat, **fields}
        self._line.wake()

    @property
    def round(self) -> int:
        """The round that our ranks are of; 0 before the first."""
        return int(self._beat.get("at", 0))

    @property
    def answered_s(self) -> float:
        """When a service was heard last, by the monotonic clock."""
        return self._line.answered_s

    @property
    def reason(self) -> str:
        """Why the newest round was wanted."""
        with self._changed:
            return str((self._memory or {}).get("reason", ""))

    @property
    def has_to_stop(self) -> bool:
        """Whether our ranks are to end, as a new round is wanted or the job is over."""
        with self._changed:
            return bool(self._word.get("stop")) and not self._beat.get("waits")

    def wait_for_round(self, port: int, patience_s: float) -> Begin:
        """Our place in the next round; the store that others would use, were we the first, listens at `port`.

        Raises
        ------
        Over
            If there will be none.
        Unreachable
            If a service refuses us, or none has answered for `patience_s`.
        """
        # What failed is said until we have a place: else this could overtake it, and nobody would know which rank did.
        self.update(waits=True, port=port, ranks=[], alive=[], finished=False, first_step=None, restored=None)
        with self._changed:
            while True:
                code, found = self._word.get("over"), self._begin
                if code is not None:
                    raise Over(code, str(self._word.get("why", "")))
                if found is not None and found.round > self.round:
                    break
                if self._line.refused is not None:
                    raise Unreachable(self._line.refused)
                if time.monotonic() - self._line.answered_s > patience_s:
                    raise Unreachable(f"no rendezvous service has answered for {patience_s:.0f} s")
                self._changed.wait(FORGET_S)
            self.stop_requested_s = None
        self.update(at=found.round, waits=False, failure=None)
        return found

    def _hello(self, own_host: str) -> Fields:
        place = self._place
        self.tell_keeper({"host": place.host or own_host})
        asked = {name: getattr(place, name) for name in ("place", "spares", "failures", "grow", "weight", "held")}
        with self._changed:
            hello = {
                **{name: value for name, value in asked.items() if value is not None},
                "do": "hello", "job": place.job, "life": self.life, "node": place.node, "least": place.least,
                "most": place.most, "host": place.host or own_host, "last_call_s": place.last_call_s,
                "beat": self._beat,
            }  # fmt: skip
            return hello if self._memory is None else {**hello, "memory": self._memory}

    def _current_beat(self) -> Fields:
        with self._changed:
            return self._beat

    def _handle(self, word: Fields) -> None:
        splits, memory, begin = word.get("splits"), word.get("memory"), word.get("begin")
        found = None if begin is None else Begin.of(begin)
        stages = None if memory is None else _stages(memory)
        if not isinstance(word.get("over") or 0, int):
            raise ValueError("the service names no exit code")
        with self._changed:  # all that is kept has the form that is expected
            self._word, self._begin = word, found
            self._memory = memory or self._memory
            if not (word.get("stop") and not self._beat.get("waits")):
                self.stop_requested_s = None
            elif self.stop_requested_s is None:
                self.stop_requested_s = time.monotonic()
            self._changed.notify_all()
        self.check(word.get("check"))
        if splits:
            self._put_splits(splits)
        if stages is not None:
            self._note_operations(stages)
        if ring := word.get("ring"):
            self.tell_keeper({"ring": ring})
        if bus := word.get("bus"):
            self._watch(str(bus))
        if (save := word.get("save")) and save != self._save:
            self._save = save
            self.save()

    def _note_operations(self, stages: dict[tuple[str, str], Fields]) -> None:
        """Note each stage of an operation once; what was asked for before we came, others have noted."""
        if self._noted is not None:
            for key, one in stages.items():
                if key not in self._noted:
                    self._note(one, key[1])
        self._noted = set(stages)


def _stages(memory: Fields) -> dict[tuple[str, str], Fields]:
    """The operations of `memory` by id and stage."""
    return {
        (one["report"]["operation"], stage): one
        for one in memory.get("kept", ())
        for stage in ("accepted", "done")
        if one["kind"] and (stage == "accepted" or one["report"]["state"] == "done")
    }
