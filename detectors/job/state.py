"""The memory of one job: records go in, windows come out.

Late, doubled and disordered records are counted, never fatal.

What has come since the last window: log lines, events and metrics, each shown once, repeats left out.
"""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from typing import Any, Final

import numpy as np

from trainwarden.detectors.calls.board import CallAssembler
from trainwarden.detectors.job.beats import HeartbeatTable, damaged
from trainwarden.detectors.job.board import HISTORY, MetricBuffer
from trainwarden.detectors.job.clocks import MAX_TIME_S, NodeClocks
from trainwarden.detectors.job.last_seen import LastSeen
from trainwarden.detectors.job.rings import COLUMNS
from trainwarden.detectors.job.roster import MAX_RANKS, Roster, Seen
from trainwarden.detectors.job.step_assembly import LATE_S, WARM_UP_STEPS, StepAssembly, phase
from trainwarden.detectors.job.window import LogLine, Window
from trainwarden.records import (
    CollectivesRecord,
    EventRecord,
    HeartbeatRecord,
    IterationRecord,
    LogRecord,
    MetricsRecord,
    Record,
)


class NewRecords:
    """Records that the next window shows.

    Attributes
    ----------
    events, metrics : list
        Records to be shown, in the order in which they came.
    """

    def __init__(self) -> None:
        self.events: list[EventRecord] = []
        self.metrics: list[MetricsRecord] = []
        self._logs: list[LogLine] = []
        self._log_ends: dict[tuple[str, str], int] = {}
        self._seen_events = Seen()
        self._seen_metrics = Seen()

    def is_new(self, record: EventRecord | MetricsRecord) -> bool:
        """Whether `record` comes for the first time."""
        if isinstance(record, EventRecord):
            return self._seen_events.add(record.id)
        # A hundred thousand of these are remembered, and kept with each snapshot.
        words = "\0".join((record.node, repr(record.time_s), *record.names[:1], *record.devices))
        return self._seen_metrics.add(blake2b(words.encode(errors="surrogatepass"), digest_size=16).digest())

    def log(self, record: LogRecord) -> tuple[int, list[float]]:
        """Apply lines; how many of them had come before, and the times of the others."""
        source = (record.node, record.source)
        high = self._log_ends.get(source, -1)
        duplicates, times_s = 0, []
        for index in range(min(len(record.lines), len(record.ends), len(record.times_s))):
            end = record.ends[index]
            if end <= high:
                duplicates += 1
                continue
            high = end
            count = record.counts[index] if index < len(record.counts) else 1
            line, time_s = record.lines[index], record.times_s[index]
            self._logs.append(LogLine(record.node, record.source, record.rank, line, time_s, max(1, count), end))
            times_s.append(time_s)
        self._log_ends[source] = high
        return duplicates, times_s

    def pop_new(self) -> dict[str, Any]:
        """Everything, once: what a window shows of it."""
        shown = {"logs": tuple(self._logs), "events": tuple(self.events), "metrics": tuple(self.metrics)}
        self._logs, self.events, self.metrics = [], [], []
        return shown


PLAN_STEPS: Final = 3  # steps in which ranks may still be changing over to a new micro-batch plan


class JobState:
    """Ring arrays and bookkeeping of one job.

    Parameters
    ----------
    rows : int
        Closed steps that are kept.
    """

    def __init__(self, job: str, rows: int = 256) -> None:
        self.job = job
        self.end_s = 0.0
        self.finished = False
        self.finished_s: float | None = None
        self.world_size = 0
        self._size_at_s = float("-inf")
        self.restarts = 0
        self.attempt: int | None = None  # the newest start of the ranks that was heard of, by their launcher's count
        self.clocks = NodeClocks()
        self._silence = LastSeen()
        self._steps = StepAssembly(rows)
        self._board, self._samples = HeartbeatTable(), MetricBuffer()
        self._calls, self._roster, self._news = CallAssembler(), Roster(), NewRecords()

    def feed(self, record: Record, at_s: float | None = None) -> None:
        """Apply one record of this job; `at_s` is its stamp of the bus, None where one clock has told all."""
        if at_s is not None:
            record = self.clocks.on_bus(record, at_s)
        if isinstance(record, IterationRecord):
            self._feed_iterations(record)
        elif isinstance(record, HeartbeatRecord):
            self._feed_heartbeat(record)
        elif isinstance(record, LogRecord):
            self._feed_log(record)
        elif isinstance(record, EventRecord) and not self._roster.layout.apply(record):
            self._feed_event(record)
        elif isinstance(record, MetricsRecord):
            self._feed_metrics(record)
        elif isinstance(record, CollectivesRecord):
            self._feed_collectives(record)

    def window(self, now_s: float, *, with_samples: bool = True, history: int = HISTORY, last: bool = False) -> Window:
        """Close what can be closed and show everything; new lines, events and metrics are shown once.

        Metric samples are gathered only `with_samples`; `history` older ones come along. `last`: nothing comes later.
        """
        self._settle()
        size, ended = len(self._roster.ranks), self._roster.ended[: len(self._roster.ranks)]
        live = ~ended & ~self._board.gone[:size]
        calls = self._calls.close(live, last or self.finished)
        self._steps.close(~ended, self.world_size <= size, [one.step for one in calls])
        ring = self._steps.ring
        values = ring.values[:, :, :size]
        values.flags.writeable = False
        return Window(
            job=self.job,
            now_s=now_s,
            end_s=self.end_s,
            watermark_s=self.end_s - LATE_S,
            phase=phase(self._steps, self._board.phase[:size][~ended], self.finished, size + self.world_size > 0),
            ranks=np.array(self._roster.ranks, dtype=np.int64),
            **self._roster.columns_of_window(),
            own_end_s=self._steps.own_end_s[:size],
            live=live,
            ended_cleanly=self._roster.clean[:size],
            first_seq=ring.first_seq,
            steps=ring.steps,
            epochs=ring.epochs,
            ends_s=ring.ends_s,
            **dict(zip(COLUMNS, values, strict=True)),
            quiet_rows=ring.quiet,
            repaced_rows=ring.repaced,
            beats=self._board,
            board=self._samples,
            node_silent_s=self._live_silence(size),
            still_s=self._silence.still_s,
            **self._news.pop_new(),
            calls=calls,
            **self._calls.columns_of_window(),
            samples=tuple(self._samples.pop_new(self._roster.said_roles(), history)) if with_samples else (),
            last=last,
            finished=self.finished,
            restarts=self.restarts,
            attempt=self.attempt,
        )

    @property
    def quiet_s(self) -> float:
        """How long no rank has made a visible step or collective call, by the newest heartbeat; 0 if unknown."""
        self._settle()
        return (
            float(np.nan_to_num(self._board.still_s, nan=np.inf).min(initial=np.inf)) if self._board.has_data else 0.0
        )

    def take_counts(self) -> dict[str, int]:
        """How many ``late``, ``duplicates``, ``incomplete_steps``, ``odd``, ``lost`` there were since the last call."""
        self._settle()
        counts = self._steps.counts + self._calls.counts + Counter(late=self._samples.late, odd=self._samples.odd)
        self._steps.counts, self._calls.counts = Counter(), Counter()
        self._samples.late = self._samples.odd = 0
        return dict(+counts)

    def count_silence(self, elapsed_s: float) -> None:
        """Let `elapsed_s` of watched time pass for every node that has not been heard since the last call."""
        self._settle()  # who moved has moved before
        self._silence.passed(elapsed_s)
        self._calls.passed(elapsed_s)

    def _heard(self, time_s: float) -> None:
        if self.end_s < time_s < MAX_TIME_S:
            self.end_s = time_s

    # -- records ---------------------------------------------------------------------------------------------

    def _columns(self, ranks: tuple[int, ...], node: str, role: str = "") -> list[int]:
        have = self._roster.ended.size
        out = self._roster.columns(ranks, node, role)
        room = self._roster.ended.size
        if room > have:
            self._board.resize(room)
            self._steps.resize(room)
            self._calls.resize(room)
        return out

    def _same_life(self, column: int, incarnation: str) -> bool:
        """True if `incarnation` is the column's present one, which it becomes if it was never seen before."""
        life = self._roster.live(column, incarnation)
        if life == "next":
            self._steps.on_process_restart(column)
            self._calls.on_process_restart(column)
        return life != "past"

    def _no_room(self, ranks: tuple[int, ...]) -> bool:
        if self._roster.has_room(ranks):
            return False
        self._steps.counts["odd"] += 1
        return True

    def _feed_iterations(self, record: IterationRecord) -> None:
        if self._no_room((record.rank,)):
            return
        (column,) = self._columns((record.rank,), record.node, record.role)
        if not self._same_life(column, record.incarnation):
            self._steps.counts["late"] += len(record.steps)
            return
        self._roster.bases[column] = record.basis, record.accelerator
        size = len(record.steps)
        optional = (record.compute_s, record.wait_s, record.pause_s, record.micro_batches)
        lanes = [lane if len(lane) == size else (None,) * size for lane in optional]
        for index in range(min(size, len(record.end_s), len(record.duration_s))):
            cell = [record.duration_s[index]]
            cell += [float("nan") if (value := lane[index]) is None else value for lane in lanes]
            if record.end_s[index] >= MAX_TIME_S:
                self._steps.counts["odd"] += 1
            else:
                self._steps.feed(column, record.steps[index], record.end_s[index], cell)
                self._silence.moved()
                self._heard(record.end_s[index])

    def _feed_heartbeat(self, record: HeartbeatRecord) -> None:
        self._silence.observe(record.node)
        if not record.ranks or damaged(record):
            self._steps.counts["odd"] += bool(record.ranks)
            return
        if self._no_room(record.ranks):
            return
        columns, keep = self._columns(record.ranks, record.node), None
        if any(self._roster.incarnations[one] != life for one, life in zip(columns, record.incarnations, strict=True)):
            keep = [i for i, column in enumerate(columns) if self._same_life(column, record.incarnations[i])]
            columns = [columns[i] for i in keep]
        if self._board.holds(columns):
            self._settle()
        self._board.apply(record, keep, columns, self._roster.incarnation[columns].tolist())

    def _settle(self) -> None:
        """Apply the heartbeats that wait."""
        settled = self._board.apply_pending()
        self._steps.counts["duplicates"] += settled.overtaken
        if settled.moved:
            self._silence.moved()
        self._heard(settled.newest_s)

    def _feed_log(self, record: LogRecord) -> None:
        duplicates, times_s = self._news.log(record)
        self._steps.counts["duplicates"] += duplicates
        for time_s in times_s:
            self._heard(time_s)

    def _feed_event(self, record: EventRecord) -> None:
        if not self._news.is_new(record):
            self._steps.counts["duplicates"] += 1
            return
        if self._roster.runs_beside(record):
            return
        self._news.events.append(record)
        self._heard(record.time_s)
        if record.kind == "job_start":
            if self.finished:
                self._silence = LastSeen()  # nobody was missed meanwhile
            self.finished, self.finished_s = False, None
            self._steps.repaced_left = WARM_UP_STEPS  # whoever starts a program anew may have changed it
            self._feed_size(record)
        elif record.kind == "process_start":
            self.attempt = self.attempt or 0
            self._feed_size(record)
        elif record.kind == "job_end":
            self.finished, self.finished_s = True, record.time_s
        elif record.kind == "heartbeat_lost":
            self._silence.missed(record.node)
        elif record.kind == "restart":
            self._feed_restart(record)
        elif record.kind == "microbatch_plan":
            self._steps.quiet_left = max(self._steps.quiet_left, PLAN_STEPS)
            self._steps.repaced_left = max(self._steps.repaced_left, PLAN_STEPS)
        elif record.kind == "process_exit" and record.rank is not None and not self._no_room((record.rank,)):
            self._feed_exit(record, record.rank)

    def _feed_size(self, record: EventRecord) -> None:
        """How many ranks there are from now on; those beyond are gone with a node that the job runs on without."""
        size = record.fields.get("world_size")
        hook = record.kind == "process_start"  # which says 1 where it does not know
        if not isinstance(size, int | float) or not hook < size <= MAX_RANKS or record.time_s < self._size_at_s:
            return
        self._size_at_s = record.time_s
        self.world_size = min(self.world_size, int(size)) if hook else int(size)
        self._roster.shrink(int(size))

    def _feed_restart(self, record: EventRecord) -> None:
        self._steps.restarting = record.fields.get("stage") != "done"
        self.restarts += self._steps.restarting
        self._steps.quiet_left = WARM_UP_STEPS
        if isinstance(attempt := record.fields.get("attempt"), int) and attempt >= 0:
            self.attempt = attempt

    def _feed_exit(self, record: EventRecord, rank: int) -> None:
        (column,) = self._columns((rank,), record.node)
        incarnation = record.fields.get("incarnation")
        if incarnation is not None and self._roster.incarnations[column] not in {"", str(incarnation)}:
            return
        self._roster.ended[column] = True
        self._roster.clean[column] = record.fields.get("code") == 0

    def _feed_metrics(self, record: MetricsRecord) -> None:
        if not self._news.is_new(record):
            self._steps.counts["duplicates"] += 1
            return
        self._news.metrics.append(record)
        if 0.0 <= record.time_s < MAX_TIME_S:
            self._samples.feed(record)
        else:
            self._steps.counts["odd"] += 1
        self._heard(record.time_s)

    def _feed_collectives(self, record: CollectivesRecord) -> None:
        if self._no_room((record.rank,)):
            return
        (column,) = self._columns((record.rank,), record.node)
        if not self._same_life(column, record.incarnation):
            self._steps.counts["late"] += 1
        elif self._calls.feed(record, column):
            self._heard(record.time_s)

    def _live_silence(self, size: int) -> dict[str, float]:
        dead = self._roster.ended[:size] | self._board.gone[:size]
        silent_s = self._silence.of({node for node, gone in zip(self._roster.nodes, dead, strict=True) if not gone})
        return {} if self.finished else silent_s
