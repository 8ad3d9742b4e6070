"""Runs a keeper: a round a second, what Prometheus and `trainwarden checkpoints` are told, until it is stopped."""

from __future__ import annotations

import logging
import math
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from trainwarden.actions.keeper.copies import TIERS, Copies
from trainwarden.actions.keeper.folder import Folder
from trainwarden.actions.keeper.joining import Joined, Joining
from trainwarden.actions.keeper.keeper import Keeper
from trainwarden.actions.keeper.line import Listener, TlsPeer
from trainwarden.actions.keeper.silence import PEERS_S
from trainwarden.actions.keeper.store import Store
from trainwarden.checkpoint.shard import CheckpointError, Id
from trainwarden.checkpoint.slots import Busy, Slots, folder_job, job_folder, locked
from trainwarden.clock import Clock
from trainwarden.errors import ConfigError
from trainwarden.metrics_http.tls import PeerTls
from trainwarden.self_metrics import SelfMetrics

log = logging.getLogger("trainwarden.keeper")
_LOOK_S: Final = 0.1  # for a ring: ranks wait for it
ROUND_S: Final = 1.0  # a save is replicated at most so much later than the network could
_SKIPS: Final = ("late", "memory", "refused", "failed")
T = TypeVar("T")


class KeeperService:
    """A keeper that answers other nodes, its ranks and Prometheus.

    Parameters
    ----------
    ring : mapping of str to (host, port)
        Every node of the job with the address of its keeper, in the order of the ring; empty for one node alone.
    folder : bool
        Keep what an unchanged script writes to a folder in memory, instead of what `trainwarden.checkpoint` saves.
    joining : Joining, optional
        Tells the ring of each round, in place of `ring` and `tls`.

    Raises
    ------
    ConfigError
        If the ring lacks this node or its certificates, or another keeper runs here.
    """

    def __init__(
        self, *, job: str, node: str, ring: Mapping[str, tuple[str, int]], tls: PeerTls | None, clock: Clock,
        metrics: SelfMetrics, store: Path | None = None, memory: str | None = None, flush_every_s: float = 600.0,
        keep: int = 3, folder: bool = False, joining: Joining | None = None,
    ) -> None:  # fmt: skip
        if ring and node not in ring:
            raise ConfigError(f"--ring: it does not name this node, '{node}'")
        if len(ring) > 1 and tls is None:
            raise ConfigError("--tls-ca: other nodes are asked by mutual TLS only; see docs/checkpoints.md")
        job = folder_job(job) if folder else job
        try:
            self._slots = Slots(job_folder(job, memory))
            self._lock = locked(self._slots.descriptor)
            self._lock.__enter__()
        except Busy as error:
            raise ConfigError(f"a keeper of job '{job}' runs on this node already") from error
        except (OSError, CheckpointError) as error:
            raise ConfigError(f"the memory of job '{job}' cannot be used ({error})") from error
        asking = None if tls is None else tls.asking()
        peers = {
            name: TlsPeer(name, address, job, asking)
            for name, address in ring.items()
            if name != node and asking is not None
        }
        self.keeper = Keeper(
            self._slots, job=job, node=node, ring=list(ring) or [node], peers=peers, clock=clock,
            store=None if store is None or folder else Store(store, job), flush_every_s=flush_every_s, keep=keep,
        )  # fmt: skip
        self.folder = Folder(self.keeper, clock, store=store, flush_every_s=flush_every_s) if folder else None
        self._clock, self._metrics, self._tls = clock, metrics, tls
        self._address = ring.get(node) if len(ring) > 1 else None
        self._counted: dict[str, int] = {}
        self._joining, self._joined = joining, threading.Condition()
        self._round, self._closes = 0, threading.Event()
        self._news: Joined | None = None  # a ring that is not taken part in yet
        self._serving: ssl.SSLContext | None = None
        self._listens, self._no_ring = False, ""

    def run(self, stop: Callable[[], bool]) -> None:
        """Work until `stop` says so.

        Raises
        ------
        ConfigError
            If this node's address cannot be listened on.
        """
        listener = Listener(self.keeper, self.listed, self.folder, self._wait_for)
        try:
            listener.serve_ranks()
            if self._joining is not None:
                threading.Thread(target=self._join, args=(self._joining, listener), daemon=True).start()
            if self._address is not None and self._tls is not None:
                listener.serve_nodes(self._address, self._tls)
        except OSError as error:
            raise ConfigError(f"--ring: {self._address} cannot be listened on ({error.strerror or error})") from error
        filing = threading.Thread(target=self._file, name="keeper-store", daemon=True)
        filing.start()
        try:
            while not stop():
                began = self._clock.monotonic_s()
                if self._has_ring and self.round():
                    continue  # what was packed just now is to be sent
                self._clock.sleep(max(0.05, ROUND_S - (self._clock.monotonic_s() - began)))
        finally:
            self._closes.set()
            if self.folder is not None and self._has_ring:
                self.folder.close(self.round)
            while self.folder is None and filing.is_alive() and self.keeper.store_works:
                filing.join(_LOOK_S)  # a checkpoint without its manifest would be lost
            listener.close()
            self._lock.__exit__(None, None, None)

    @property
    def _has_ring(self) -> bool:
        """Until the first ring is known nothing is done here."""
        return self._joining is None or self._round > 0

    def _file(self) -> None:
        """Look after the store, which may hang: nothing else does."""
        file = self.keeper.file if self.folder is None else self.folder.file
        while not self._closes.is_set():
            if self._has_ring:
                self._tried(file, "the round of the store")
            self._closes.wait(ROUND_S if self._has_ring else _LOOK_S)

    def _join(self, joining: Joining, listener: Listener) -> None:
        """Learn of each ring as it comes."""
        while not self._closes.is_set():
            done = self._tried(lambda: self.look_for_ring(joining, listener), "the look for a ring")
            self._closes.wait(ROUND_S if done is None else _LOOK_S)

    def look_for_ring(self, joining: Joining, listener: Listener) -> bool:
        """Take part in a new ring, if there is one; what fails is tried again. Whether it was taken part in."""
        try:
            self._news = joining.news() or self._news
            if self._news is None:
                return False
            self._take_part(self._news, joining, listener)
        except (OSError, ConfigError) as error:
            if str(error) != self._no_ring:
                self._no_ring = str(error)
                log.warning("no ring", extra={"fields": {"why": self._no_ring}})
            return False
        fields = {"round": self._news.round, "nodes": ",".join(self._news.places)}
        log.info("ring", extra={"fields": fields})
        self._news, self._no_ring = None, ""
        return True

    def _take_part(self, joined: Joined, joining: Joining, listener: Listener) -> None:
        keeper = self.keeper
        others = {name: at for name, at in joined.places.items() if name != keeper.node}
        self._serving = joined.serving
        keeper.join(
            list(joined.places),
            {name: TlsPeer(name, at, keeper.job, joined.asking) for name, at in others.items()},
        )
        if not self._listens:
            listener.serve_nodes_by(joining.server, self._context)
            self._listens = True
        with self._joined:
            self._round = joined.round
            self._joined.notify_all()

    def _context(self) -> ssl.SSLContext:
        assert self._serving is not None  # nobody is answered before
        return self._serving

    def _wait_for(self, number: int) -> None:
        """Wait for the ring of the round `number`; 0 is none in particular."""
        with self._joined:
            if not self._joined.wait_for(lambda: self._round >= number, PEERS_S):
                raise CheckpointError(
                    f"the keepers of all nodes of this round were not known within {PEERS_S:.0f} s; one may not run"
                )

    def round(self) -> bool:
        """One round of the keeper; the next one tries again what failed. Whether that is due now."""
        done = self._tried(self._worked, "the round")
        if done is None:
            return False
        self._tell(done[0])
        return done[1]

    def _worked(self) -> tuple[Copies, bool]:
        copies = self.keeper.tick()
        return copies, self.folder is not None and self.folder.tick(copies)

    def _tried(self, step: Callable[[], T], what: str) -> T | None:
        """What `step` returns; None where it failed."""
        try:
            return step()
        except Exception:  # the marked place: a step that breaks is counted, and ends no thread of the keeper
            log.exception("%s failed", what)
            _OfJob(self._metrics, self.keeper.job).count("errors_total", "Rounds that failed.", 1)
            return None

    def listed(self) -> dict[str, Any]:
        """The object of `trainwarden checkpoints` for this job."""
        keeper = self.keeper
        found = listing(keeper, keeper.survey(), now_s := time.time())
        if self.folder is not None and (stored := self.folder.stored()) is not None:
            step, saved_at_s, name = stored
            back = {"id": name, "step": step, "age_s": round(max(0.0, now_s - saved_at_s), 3)}
            lost = found["if_lost"]
            lost["all nodes"] = back
            lost["a node"] = back if lost["a node"] is None or lost["a node"]["step"] < step else lost["a node"]
        return found

    def _tell(self, copies: Copies) -> None:
        keeper, totals, job = self.keeper, self.keeper.totals, _OfJob(self._metrics, self.keeper.job)
        ids = [id_ for id_ in copies.newest_first() if copies.is_complete(id_, "memory")][:2]
        if len(ids) == 2 and len(keeper.ring) > 1:  # one node alone replicates nothing
            gap_s = copies.saved_at_s(ids[0]) - copies.saved_at_s(ids[1])
            job.gauge("interval_seconds", "Time between the two newest checkpoints.", gap_s)
        if (newest := copies.newest("neighbour")) is not None:
            saved_at_s = copies.saved_at_s(newest)
            job.gauge("replicated_timestamp_seconds", "When the newest replicated checkpoint was saved.", saved_at_s)
        if (newest := copies.newest("store")) is not None:
            saved_at_s = copies.saved_at_s(newest)
            job.gauge("durable_timestamp_seconds", "When the newest durable checkpoint was saved.", saved_at_s)
        elif self.folder is not None and (stored := self.folder.stored()) is not None:
            job.gauge("durable_timestamp_seconds", "When the newest durable checkpoint was saved.", stored[1])
        size = sum(copy.size for copy in keeper.inventory())
        job.gauge("memory_bytes", "Sealed shards in this node's memory.", size)
        job.gauge("away", "Peers and stores that do not answer.", len(keeper.away))
        job.count("sent_total", "Shards that the next node has verified.", self._new("sent", totals.sent))
        job.count("sent_bytes_total", "Their bytes.", self._new("sent_bytes", totals.sent_bytes))
        job.count("flushed_total", "Shards written to the store.", self._new("flushed", totals.flushed))
        job.count("corrupt_total", "Shards that failed a checksum.", self._new("corrupt", totals.corrupt))
        notes = _trainers_notes(keeper)
        for reason in _SKIPS:
            skipped = sum(one for note in notes if isinstance(one := note.get(reason), int))
            job.gauge("skipped_saves", "Saves that the trainers here have skipped.", skipped, reason=reason)

    def _new(self, name: str, total: int) -> int:
        new, self._counted[name] = total - self._counted.get(name, 0), total
        return new


class _OfJob:
    """The metrics of one job."""

    def __init__(self, metrics: SelfMetrics, job: str) -> None:
        self._metrics, self._job = metrics, job

    def count(self, name: str, help_text: str, amount: float) -> None:
        self._metrics.count(name, help_text, amount, training_job=self._job)

    def gauge(self, name: str, help_text: str, value: float, **labels: str) -> None:
        self._metrics.gauge(name, help_text, value, training_job=self._job, **labels)


def listing(keeper: Keeper, copies: Copies, now_s: float) -> dict[str, Any]:
    """Every checkpoint by tier, newest first, and what would be lost now.

    `verified` is true where the bytes were checked on arrival; what the trainer wrote is checked when it is read.
    """
    rows = [
        {
            "id": str(id_), "step": id_.step, "attempt": id_.attempt, "tier": tier,
            "complete": copies.is_complete(id_, tier), "missing_ranks": copies.missing(id_, tier),
            "verified": None if tier == "memory" else True,
            "bytes": sum(copy.size for copy in copies.by_id[id_] if copy.tier == tier),
            "age_s": round(max(0.0, now_s - copies.saved_at_s(id_)), 3),
        }
        for id_ in copies.newest_first()
        for tier in TIERS
        if any(copy.tier == tier for copy in copies.by_id[id_])
    ]  # fmt: skip
    lost = {
        "a process": _back_to(copies, copies.newest(), now_s),
        "a node": _back_to(copies, copies.newest("neighbour", "store"), now_s),
        "all nodes": _back_to(copies, copies.newest("store"), now_s),
    }
    notes = _trainers_notes(keeper)
    stalls = [one for note in notes if isinstance(one := note.get("stall_s"), int | float) and 0.0 < one < math.inf]
    return {
        "job": keeper.job, "node": keeper.node, "checkpoints": rows, "if_lost": lost, "away": dict(keeper.away),
        **({"stall_s": max(stalls)} if stalls else {}),
    }  # fmt: skip


def _trainers_notes(keeper: Keeper) -> list[dict[str, Any]]:
    """What the ranks of this node have noted of their saves."""
    return [keeper.slots.note(f"trainer-{rank}.json") or {} for rank in {one.rank for one in keeper.slots.listed()}]


def _back_to(copies: Copies, id_: Id | None, now_s: float) -> dict[str, Any] | None:
    if id_ is None:
        return None
    return {"id": str(id_), "step": id_.step, "age_s": round(max(0.0, now_s - copies.saved_at_s(id_)), 3)}
