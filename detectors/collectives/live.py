"""Who broke a collective, while the job is still there: dumps, RAS answers and counts come in, findings go out.

Nothing is kept but what records say, so a service that reads the log again finds the same.
"""

from __future__ import annotations

import base64
import binascii
import logging
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
import numpy as np

from trainwarden.detectors.collectives import flight_recorder
from trainwarden.detectors.collectives import ras as nccl_ras
from trainwarden.detectors.collectives.count_watch import CountWatch
from trainwarden.detectors.collectives.findings import EVENT_KIND, CollectiveFinding, to_event
from trainwarden.detectors.collectives.flight_dump import read_dump
from trainwarden.detectors.collectives.watchdog import WatchdogLines
from trainwarden.detectors.job.window import Window, job_duration_s
from trainwarden.errors import DataError
from trainwarden.records import EventRecord, Vote

log = logging.getLogger("trainwarden.detection")

MAX_DUMP_BYTES: Final = 32 << 20  # unpacked, of one rank: the agent keeps 16 calls of each group
MAX_RAS_BYTES: Final = 64 << 20
MAX_HELD_BYTES: Final = 256 << 20  # packed, of one job: 16,384 ranks with 3 kB each take 50 MB
COMPLETE_S: Final = 0.1  # after the last rank's dump
PATIENCE_S: Final = 3.0  # for ranks that cannot answer: stopped, dead, or with the interpreter locked
STANDSTILL_S: Final = 5.0  # a job that is slower than this between steps is not running
STANDSTILL_STEPS: Final = 3.0
OUTLIVED_S: Final = 2.0
RAS_PAIR_S: Final = (2.0, 600.0)  # apart
_CERTAIN: Final = 1.0  # the score of a rank that RAS has given up
_PAUSES: Final = frozenset({"checkpoint", "evaluation", "compile", "data", "restart"})
_HANGS: Final = frozenset({"hang", "collective_mismatch"})
_STARTS: Final = frozenset({"restart", "job_start"})


class Dump(msgspec.Struct):
    """One rank's newest record, as it came."""

    time_s: float
    asked: bool
    packed: str


class LiveCollectives:
    """Dumps, RAS answers and counts of calls of one job, and what they say.

    A dump that a rank was asked for only explains a hang that another detector sees, as asking happens on suspicion;
    one that PyTorch wrote by itself, as its watchdog gave up, RAS and counts speak for themselves if the job stands
    still.

    Parameters
    ----------
    job : str
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self._dumps: dict[int, Dump] = {}
        self._held = 0
        self._fresh_since_s: float | None = None  # dumps that have not been analysed
        self._explanation: tuple[EventRecord, ...] = ()
        self._ras: tuple[float, bytes] | None = None
        self._ras_before: tuple[float, bytes] | None = None
        self._counts = CountWatch()
        self._counted: tuple[EventRecord, ...] = ()  # what the counts say to explain a hang
        self._watchdog = WatchdogLines()

    def follow(self, window: Window) -> tuple[EventRecord, ...]:
        """Apply the window's events; findings that are certain by themselves, to be judged with this window."""
        for event in window.events:
            self._apply(event, window.now_s)
        self._outlive(window)
        out: list[EventRecord] = []
        if self._ras is not None:
            out.extend(self._of_ras(window))
            self._ras_before, self._ras = self._ras, None
        if self._is_due(window):
            self._fresh_since_s = None
            asked = all(dump.asked for dump in self._dumps.values())
            found = self._of_dumps(window) if asked or self._stands_still(window, self._last_dump_s()) else ()
            if asked:
                self._explanation = found
            else:
                self._explanation = ()
                out.extend(found)
        return (*out, *self._of_watchdog(window), *self._of_counts(window))

    def _of_watchdog(self, window: Window) -> tuple[EventRecord, ...]:
        """What the log lines of PyTorch's watchdog tell of a job that stands still, where its dumps do not."""
        found, since_s = self._watchdog.follow(window), self._watchdog.since_s
        if not found or since_s is None or self._dumps or not self._stands_still(window, since_s):
            return ()
        return self._events(found, window, since_s, "torch_watchdog")

    def _of_counts(self, window: Window) -> tuple[EventRecord, ...]:
        """What the counts tell by themselves; what only explains a hang that others see is kept for `explain`."""
        said, certain = self._counts.follow(window)
        found = () if said is None else self._events([said], window, window.end_s, "nccl_counts")
        self._counted = () if certain else found
        return found if certain else ()

    def explain(self, votes: Mapping[str, Vote]) -> tuple[EventRecord, ...]:
        """What counts and the dumps that were asked for say, once, if some of `votes` sees a hang."""
        if not self._explanation and not self._counted:
            return ()
        if not any(vote.opinion == "anomalous" and vote.kind in _HANGS for vote in votes.values()):
            return ()
        told = (*self._explanation, *self._counted)
        self._explanation = self._counted = ()
        return told

    # -- taking in

    def _apply(self, event: EventRecord, now_s: float) -> None:
        if event.kind in _STARTS:
            self._forget(lambda dump: dump.time_s > event.time_s)
            self._ras = self._ras_before = None
        if event.kind != EVENT_KIND:
            return
        packed, answer = event.fields.get("dump"), event.fields.get("ras")
        if isinstance(packed, str) and event.rank is not None:
            known = self._dumps.get(event.rank)
            if known is not None and known.time_s > event.time_s:
                return
            self._held += len(packed) - (len(known.packed) if known else 0)
            self._dumps.pop(event.rank, None)
            self._dumps[event.rank] = Dump(event.time_s, bool(event.fields.get("asked")), packed)
            while self._held > MAX_HELD_BYTES:
                self._held -= len(self._dumps.pop(next(iter(self._dumps))).packed)
            self._fresh_since_s = now_s
        elif isinstance(answer, str):
            try:
                self._ras = (event.time_s, _unpacked(answer, MAX_RAS_BYTES))
            except DataError as error:
                log.warning("RAS answer cannot be used", extra={"fields": {"job": self._job, "error": str(error)}})

    def _forget(self, keep: Any) -> None:
        self._dumps = {rank: dump for rank, dump in self._dumps.items() if keep(dump)}
        self._held = sum(len(dump.packed) for dump in self._dumps.values())
        if not self._dumps:
            self._fresh_since_s, self._explanation = None, ()

    def _outlive(self, window: Window) -> None:
        """Steps that end well after a dump show that what it tells is over."""
        if self._dumps and len(window.ends_s):
            newest_s = float(window.ends_s[-1])
            if any(dump.time_s + OUTLIVED_S < newest_s for dump in self._dumps.values()):
                self._forget(lambda dump: dump.time_s + OUTLIVED_S >= newest_s)

    # -- judging

    def _is_due(self, window: Window) -> bool:
        """True when no more dumps are to be expected soon."""
        if self._fresh_since_s is None or not self._dumps:
            return False
        if window.last or window.finished:
            return True
        lacking = any(int(rank) not in self._dumps for rank in window.ranks[window.live])
        return window.now_s - self._fresh_since_s >= (PATIENCE_S if lacking else COMPLETE_S)

    def _last_dump_s(self) -> float:
        return max(dump.time_s for dump in self._dumps.values())

    def _stands_still(self, window: Window, at_s: float) -> bool:
        """True if no step had ended for long at `at_s`, or nothing is known of steps."""
        if not len(window.ends_s):
            return True
        durations = job_duration_s(window, slice(-16, None))
        known = durations[np.isfinite(durations)]
        typical_s = float(np.median(known)) if known.size else 0.0
        return at_s - float(window.ends_s[-1]) > max(STANDSTILL_S, STANDSTILL_STEPS * typical_s)

    def _of_dumps(self, window: Window) -> tuple[EventRecord, ...]:
        dumps = _Unpacking(self._dumps, {int(rank) for rank in window.ranks})
        try:
            found = flight_recorder.analyse(dumps)
        except DataError:
            found = flight_recorder.analyse({rank: dumps[rank] for rank in dumps if self._is_sound(rank, dumps)})
        return self._events(found, window, self._last_dump_s(), EVENT_KIND)

    def _is_sound(self, rank: int, dumps: Mapping[int, Any]) -> bool:
        try:
            read_dump(rank, dumps[rank])
        except DataError as error:
            log.warning("dump cannot be used", extra={"fields": {"job": self._job, "error": str(error)}})
            return False
        return True

    def _of_ras(self, window: Window) -> tuple[EventRecord, ...]:
        """What the newest RAS answer says against the one before."""
        if self._ras is None or window.phase in _PAUSES or not self._stands_still(window, self._ras[0]):
            return ()
        (time_s, answer), before, known = self._ras, None, set()
        try:
            if self._ras_before is not None and RAS_PAIR_S[0] <= time_s - self._ras_before[0] <= RAS_PAIR_S[1]:
                before = self._ras_before[1]
                known = {(one.group, one.ranks) for one in nccl_ras.analyse(before)}
            found = nccl_ras.analyse(answer, before)
        except DataError as error:
            log.warning("RAS answer cannot be used", extra={"fields": {"job": self._job, "error": str(error)}})
            return ()
        # A rank that is silent for a moment answers again; one that is behind was so in both answers.
        sure = [
            one for one in found
            if one.op or max(one.scores, default=0.0) >= _CERTAIN or (one.group, one.ranks) in known
        ]  # fmt: skip
        return self._events(sure, window, time_s, "nccl_ras")

    def _events(
        self, found: list[CollectiveFinding], window: Window, time_s: float, source: str
    ) -> tuple[EventRecord, ...]:
        nodes = dict(zip((int(rank) for rank in window.ranks), window.nodes, strict=True))
        return tuple(
            to_event(
                finding, job=self._job, time_s=time_s, nodes=nodes, source=source,
                renews=place == 0,
            )
            for place, finding in enumerate(found)
        )  # fmt: skip


class _Unpacking(Mapping[int, Any]):
    """Dumps by rank, each unpacked when it is asked for: of many ranks, all at once would not fit. None: no dump."""

    def __init__(self, dumps: Mapping[int, Dump], ranks: set[int]) -> None:
        self._dumps = dumps
        self._ranks = sorted(ranks | set(dumps))

    def __getitem__(self, rank: int) -> Any:
        dump = self._dumps.get(rank)
        return None if dump is None else _unpacked(dump.packed, MAX_DUMP_BYTES)

    def __iter__(self) -> Iterator[int]:
        return iter(self._ranks)

    def __len__(self) -> int:
        return len(self._ranks)


def _unpacked(packed: str, most: int) -> bytes:
    """What the agent's collectors have packed.

    Raises
    ------
    DataError
        If it is damaged, or has more than `most` bytes.
    """
    try:
        data = base64.b85decode(packed)
        stream = zlib.decompressobj()
        out = stream.decompress(data, most)
    except (ValueError, zlib.error, binascii.Error) as error:
        raise DataError(f"packed data is damaged ({error})") from error
    if stream.unconsumed_tail or not stream.eof:
        raise DataError(f"packed data is cut short or has more than {most} bytes")
    return out
