"""A recorded folder as the records that the bus would have carried, cut into windows at the times that matter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden.detectors.logs.ends.line_times import times_of_lines
from trainwarden.detectors.pace.contention import LOST
from trainwarden.detectors.peers.cpu_wait import ON_CPU, USED
from trainwarden.detectors.peers.roles import roles
from trainwarden.detectors.recorded.calls import CallRecords, lives_of
from trainwarden.recorded.job import IterationTable, LogTable, MetricTable, RecordedJob
from trainwarden.records import EventRecord, HeartbeatRecord, IterationRecord, LogRecord, MetricsRecord, Record

Floats = npt.NDArray[np.float64]
CUT_STEPS: Final = 8  # closed steps that one window may add
CUT_S: Final = 0.5  # as often as the live service looks, where lines or heartbeats arrive


Fact = EventRecord | HeartbeatRecord


@dataclass(frozen=True, slots=True)
class _Lane:
    """Records that are ready to be cut: their times, and how to make those of a range."""

    times_s: Floats
    make: Any

    def between(self, first: int, end: int) -> Iterator[Record]:
        made: Iterator[Record] = self.make(first, end)
        return made


class ReplayStream:
    """Records of one recorded job in the order of their time.

    Parameters
    ----------
    job : RecordedJob
    facts : sequence of Record
        Events and heartbeats kept beside the contract's files, if there are any.
    times_s : float array
        Further times at which a window is to be cut, e.g. where a model's vote may change.

    Examples
    --------
    >>> from pathlib import Path
    >>> len(list(ReplayStream(RecordedJob("j", Path("."))).windows()))
    0
    """

    def __init__(self, job: RecordedJob, facts: Sequence[Fact] = (), times_s: Floats | None = None) -> None:
        self._job = job
        self._roles: tuple[str, ...] = ()
        self._lanes: list[_Lane] = []
        self._cuts: list[Floats] = [] if times_s is None else [times_s]
        start_s = min([*(job.span_s or ())[:1], *(_time_s(fact) for fact in facts)], default=0.0)
        if not any(isinstance(fact, EventRecord) and fact.kind == "job_start" for fact in facts):
            facts = [*self._own_events(job, start_s), *facts]
        self._add_facts(facts)
        if job.iterations is not None and job.iterations.step.size:
            self._add_iterations(job.iterations)
        if job.collectives is not None:
            calls = CallRecords(job.collectives, job, start_s)
            self._lanes.append(_Lane(calls.times_s, calls.between))
            self._cuts.append(calls.step_s)
        for log, written_s in zip(job.logs, times_of_lines(job.logs, start_s), strict=True):
            self._add_log(log, written_s)
        if job.metrics is not None:
            self._add_contention(job.metrics)

    def windows(self) -> Iterator[tuple[float, list[Record]]]:
        """Pairs of a window's time and the records that came since the window before."""
        ends = [lane.times_s[-1:] for lane in self._lanes]
        cuts = np.unique(np.concatenate([*self._cuts, *ends])) if self._cuts or ends else np.zeros(0)
        places = [np.searchsorted(lane.times_s, cuts, side="right") for lane in self._lanes]
        before = [0] * len(self._lanes)
        for index, cut_s in enumerate(cuts):
            records: list[Record] = []
            for lane, (make, place) in enumerate(zip(self._lanes, places, strict=True)):
                records.extend(make.between(before[lane], int(place[index])))
                before[lane] = int(place[index])
            yield float(cut_s), records

    @property
    def count(self) -> int:
        """How many windows there will be, about."""
        return int(sum(cuts.size for cuts in self._cuts)) + 1

    # -- lanes -----------------------------------------------------------------------------------------------

    def _own_events(self, job: RecordedJob, start_s: float) -> list[EventRecord]:
        """The start of the job, and its planned changes just before their step."""
        events = []
        if job.iterations is not None:
            size = len(job.iterations.ranks)
            fields: dict[str, Any] = {"world_size": size}
            events.append(
                EventRecord(id="start", job=job.name, node="", time_s=start_s, kind="job_start", fields=fields)
            )
            table = job.iterations
            for change in job.planned:
                rows = np.flatnonzero(table.step >= change.step)
                if rows.size:
                    end_s = float((table.end_s - table.duration_s)[rows].min())
                    fields = {"step": change.step, "what": change.what}
                    events.append(
                        EventRecord(
                            id=f"planned/{change.step}",
                            job=job.name,
                            node="",
                            time_s=end_s,
                            kind="microbatch_plan",
                            message=change.what,
                            fields=fields,
                        )
                    )
        elif job.collectives is not None:
            fields = {"world_size": int(np.unique(job.collectives.rank).size)}
            events = [EventRecord(id="start", job=job.name, node="", time_s=start_s, kind="job_start", fields=fields)]
        return sorted(events, key=lambda event: event.time_s)

    def _add_facts(self, facts: Sequence[Fact]) -> None:
        ordered = sorted(facts, key=_time_s)
        if not ordered:
            return
        times_s = np.array([_time_s(fact) for fact in ordered])
        self._lanes.append(_Lane(times_s, lambda first, end: iter(ordered[first:end])))
        urgent = np.array([isinstance(fact, EventRecord) for fact in ordered])
        self._cuts.append(times_s[urgent])
        beats = np.array([isinstance(fact, HeartbeatRecord) for fact in ordered])
        self._cuts.append(_spaced(times_s[beats], CUT_S))

    def _add_iterations(self, table: IterationTable) -> None:
        incarnation = lives_of(table)
        every_lane = (table.compute_s, table.wait_s, table.pause_s, table.micro_batches)
        lanes = [lane if np.isfinite(lane).any() else None for lane in every_lane]
        self._roles = roles([rank or 0 for rank in table.ranks], self._job.parallel, self._job.roles)

        def make(first: int, end: int) -> Iterator[Record]:
            part = np.arange(first, end)
            for place in np.unique(table.rank[first:end]):
                rows = part[table.rank[first:end] == place]
                lives: dict[tuple[str, str, str], list[int]] = {}
                for row in rows.tolist():
                    lives.setdefault((incarnation[row], *_basis(table, row)), []).append(row)
                for (life, *basis), own in lives.items():
                    record = self._iteration_record(table, int(place), life, np.array(own), lanes)
                    yield msgspec.structs.replace(record, basis=basis[0] or record.basis, accelerator=basis[1])

        self._lanes.append(_Lane(table.end_s, make))
        every = CUT_STEPS * len(table.ranks)
        self._cuts.append(table.end_s[every - 1 :: every])

    def _iteration_record(
        self, table: IterationTable, place: int, life: str, rows: npt.NDArray[np.int64], lanes: list[Floats | None]
    ) -> IterationRecord:
        """Rows of one rank and life; of `lanes` (compute, wait, pause, micro-batches) None is nowhere known."""
        optional = [
            () if lane is None else tuple(None if np.isnan(value) else float(value) for value in lane[rows])
            for lane in lanes
        ]
        rank = table.ranks[place]
        return IterationRecord(
            job=self._job.name,
            node=table.nodes[place] or "",
            rank=0 if rank is None else rank,
            incarnation=life,
            steps=tuple(table.step[rows].tolist()),
            end_s=tuple(table.end_s[rows].tolist()),
            duration_s=tuple(table.duration_s[rows].tolist()),
            compute_s=optional[0],
            wait_s=optional[1],
            pause_s=optional[2],
            micro_batches=tuple(None if share is None else int(share) for share in optional[3]),
            basis="log" if lanes[0] is None and lanes[1] is None else "host",
            role=self._roles[place],
        )

    def _add_contention(self, table: MetricTable) -> None:
        """What its hosts took from the ranks, as the agents sent it; all other metrics are scored in grids."""
        names = [name for name in (*LOST, ON_CPU, USED) if name in table.names]
        if not names:
            return
        cells = np.asarray(table.values[:, [table.names.index(name) for name in names]], dtype=np.float64)
        rows = np.flatnonzero(np.isfinite(cells).any(axis=1))
        ticks: dict[tuple[float, str], list[int]] = {}
        for row in rows[np.argsort(table.times_s[rows], kind="stable")].tolist():
            ticks.setdefault((float(table.times_s[row]), table.nodes[table.entity[row]] or ""), []).append(row)
        records = [
            MetricsRecord(
                job=self._job.name, node=node, time_s=time_s, names=tuple(names),
                devices=tuple(table.devices[table.entity[row]] or "" for row in found),
                ranks=tuple(table.ranks[table.entity[row]] for row in found),
                values=tuple(tuple(None if np.isnan(one) else float(one) for one in lane) for lane in cells[found].T),
            )
            for (time_s, node), found in ticks.items()
        ]  # fmt: skip
        if records:
            times_s = np.array([record.time_s for record in records])
            self._lanes.append(_Lane(times_s, lambda first, end: iter(records[first:end])))

    def _add_log(self, log: LogTable, times_s: Floats) -> None:
        if not log.lines:
            return

        def make(first: int, end: int) -> Iterator[Record]:
            writers: dict[tuple[str | None, int | None], list[int]] = {}
            for index in range(first, end):
                if log.lines[index]:  # as agents send them: blank lines say nothing
                    writers.setdefault((log.nodes[index], log.ranks[index]), []).append(index)
            for (node, rank), rows in writers.items():
                yield LogRecord(
                    job=self._job.name,
                    node=node or "",
                    source=log.file if rank is None else f"{log.file}#rank{rank}",
                    ends=tuple(row + 1 for row in rows),
                    lines=tuple(log.lines[row] for row in rows),
                    times_s=tuple(times_s[rows].tolist()),
                    rank=rank,
                )

        self._lanes.append(_Lane(times_s, make))
        self._cuts.append(_spaced(times_s, CUT_S))


def _time_s(fact: Fact) -> float:
    return fact.time_s


def _spaced(times_s: Floats, least_s: float) -> Floats:
    """The last of the times in each stretch of `least_s`.

    Examples
    --------
    >>> _spaced(np.array([0.0, 0.1, 0.2, 0.6, 5.0]), 0.5).tolist()
    [0.2, 0.6, 5.0]
    """
    if not times_s.size:
        return times_s
    stretch = np.floor((times_s - times_s[0]) / least_s)
    return np.asarray(times_s[np.append(stretch[1:] != stretch[:-1], True)])


def _basis(table: IterationTable, row: int) -> tuple[str, str]:
    """Where the times of `row` come from, and whether they are of a device that works behind the host's back."""
    basis = table.basis[row] if table.basis else ""
    # The host knows how it has spent its time, unless a device does the work.
    split = np.isfinite(table.compute_s[row]) or np.isfinite(table.wait_s[row])
    behind = basis in ("device_step", "collectives") or (basis == "host" and not split)
    return basis, "device" if behind else ""
