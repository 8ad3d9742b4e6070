"""A make-believe training job as the records that agents would send: healthy, or with every kind of fault in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np

from trainwarden.records import EventRecord, HeartbeatRecord, IterationRecord, LogRecord, MetricsRecord, Record

JOB, START_S = "job", 1_000_000.0
Sent = tuple[float, Record]
"""When a record is sent, and the record."""


@dataclass
class Job:
    """A synchronous job: every rank computes, then waits for the slowest.

    `slow(rank, step)` multiplies a rank's compute time, `pause(rank, step)` adds a pause, `stop_s` ends everything.
    """

    ranks: int = 4
    step_s: float = 0.3
    noise: float = 0.04
    seed: int = 0
    share: float = 0.8
    roles: Sequence[str] = ()
    node: Callable[[int], str] = lambda rank: "node0"
    slow: Callable[[int, int], float] = lambda rank, step: 1.0
    everyone: Callable[[int], float] = lambda step: 1.0
    pause: Callable[[int, int], float] = lambda rank, step: 0.0
    micro: Callable[[int, int], int | None] = lambda rank, step: None
    life: int = 0
    records: list[tuple[float, Record]] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)

    def incarnation(self, rank: int) -> str:
        return f"{1000 + rank + 100 * self.life}-{self.life}"

    def run(self, steps: int, *, first: int = 0, start_s: float = START_S) -> Job:
        """Add `steps` steps and their heartbeats."""
        rng = np.random.default_rng((self.seed, self.life))
        now_s, batch = start_s, 2
        rows: dict[int, list[tuple[Any, ...]]] = {rank: [] for rank in range(self.ranks)}
        for step in range(first, first + steps):
            even = [self.micro(rank, step) for rank in range(self.ranks)]
            mean = np.mean([m for m in even if m is not None]) if any(m is not None for m in even) else 1.0
            work = np.array(
                [
                    self.share * self.step_s * self.slow(rank, step) * self.everyone(step)
                    * ((m / mean) if (m := even[rank]) is not None else 1.0) * rng.lognormal(0.0, self.noise)
                    for rank in range(self.ranks)
                ]
            )  # fmt: skip
            pauses = np.array([self.pause(rank, step) for rank in range(self.ranks)])
            took = float((work + pauses).max()) + (1 - self.share) * self.step_s
            begun_s, now_s = now_s, now_s + took
            for rank in range(self.ranks):
                wait = took - work[rank] - pauses[rank]
                rows[rank].append((step, now_s, took, float(work[rank]), float(wait), float(pauses[rank]), even[rank]))
            self.ends_s.append(now_s)
            self._beat(begun_s, now_s, step)
            if (step - first + 1) % batch == 0 or step == first + steps - 1:
                self._flush(rows, now_s + 0.05)
        return self

    def _flush(self, rows: dict[int, list[tuple[Any, ...]]], at_s: float) -> None:
        for rank, lines in rows.items():
            if not lines:
                continue
            steps, ends, took, work, wait, pause, micro = zip(*lines, strict=True)
            self.records.append(
                (
                    at_s,
                    IterationRecord(
                        job=JOB, node=self.node(rank), rank=rank, incarnation=self.incarnation(rank), steps=steps,
                        end_s=ends, duration_s=took, compute_s=work, wait_s=wait, pause_s=pause,
                        micro_batches=micro if micro[0] is not None else (),
                        role=self.roles[rank] if self.roles else "collective",
                    ),
                )
            )  # fmt: skip
            lines.clear()

    def _beat(self, begun_s: float, end_s: float, step: int) -> None:
        for at_s in np.arange(np.ceil(begun_s / 0.2) * 0.2, end_s, 0.2):
            waiting = at_s - begun_s > 0.9 * (end_s - begun_s)
            self.beat(float(at_s), step, phase="wait" if waiting else "compute", calls=2 * step + waiting)

    def beat(
        self,
        at_s: float,
        step: int,
        *,
        phase: str = "compute",
        calls: int = 0,
        states: Mapping[int, str] | None = None,
        phases: Mapping[int, str] | None = None,
        cpu_s: Mapping[int, float] | None = None,
        begun: Mapping[int, int] | None = None,
        since_s: float | None = None,
    ) -> None:
        """One heartbeat of every node; phases last since `since_s`, by default since this moment."""
        nodes: dict[str, list[int]] = {}
        for rank in range(self.ranks):
            nodes.setdefault(self.node(rank), []).append(rank)
        for node, ranks in nodes.items():
            self.records.append(
                (
                    at_s,
                    HeartbeatRecord(
                        job=JOB, node=node, time_s=at_s, ranks=tuple(ranks), pids=tuple(1000 + r for r in ranks),
                        incarnations=tuple(self.incarnation(r) for r in ranks), steps=(step,) * len(ranks),
                        step_end_s=(None,) * len(ranks),
                        phases=tuple((phases or {}).get(r, phase) for r in ranks),  # type: ignore[misc]
                        phase_since_s=(at_s if since_s is None else since_s,) * len(ranks),
                        calls=tuple((begun or {}).get(r, calls) for r in ranks),
                        states=tuple((states or {}).get(r, "S") for r in ranks),
                        cpu_s=tuple((cpu_s or {}).get(r, at_s - START_S) for r in ranks),
                    ),
                )
            )  # fmt: skip

    def add(self, at_s: float, *records: Record) -> Job:
        """Add further records that are sent at `at_s`."""
        self.records.extend((at_s, record) for record in records)
        return self

    @property
    def end_s(self) -> float:
        return self.ends_s[-1]


def event(
    kind: str, at_s: float, rank: int | None = None, *, message: str = "", life: int = 0, **fields: Any
) -> EventRecord:
    """An event of a rank's process."""
    if rank is not None:
        fields.setdefault("incarnation", f"{1000 + rank + 100 * life}-{life}")
    node = fields.pop("node", "node0")
    device = fields.pop("device", None)
    return EventRecord(
        id=f"{kind}/{node}/{rank}/{device}/{life}/{at_s}", job=JOB, node=node, time_s=at_s, kind=kind,
        rank=rank, device=device, message=message, fields=fields,
    )  # fmt: skip


def log_lines(
    rank: int | None, lines: Sequence[tuple[float, str]], *, first: int = 1, node: str = "node0"
) -> LogRecord:
    """A batch of log lines of one rank."""
    return LogRecord(
        job=JOB, node=node, source=f"rank-{rank}.log" if rank is not None else "kernel", rank=rank,
        ends=tuple(range(first, first + len(lines))), lines=tuple(line for _, line in lines),
        times_s=tuple(at_s for at_s, _ in lines),
    )  # fmt: skip


METRICS: Final = ("load", "flow")


def metric_values(seed: int, samples: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """`METRICS` of one device ``[samples, 2]``."""
    random = np.random.default_rng(seed)
    ticks = np.arange(samples)[:, None]
    return np.asarray(np.sin(ticks / np.array([3.0, 5.0])) + random.normal(0.0, 0.1, (samples, 2)))


def metrics(seconds: int, sick_from: int | None = None) -> list[Sent]:
    """Two samples a second of four devices; from a second on device 1 is not what it was."""
    values = np.stack([metric_values(20 + one, 2 * seconds) for one in range(4)])
    if sick_from is not None:
        values[1, 2 * sick_from :, 0] += 25.0 * np.sin(np.arange(2 * (seconds - sick_from)) ** 2)
    return [
        (
            START_S + tick / 2,
            MetricsRecord(
                job=JOB, node="node0", time_s=START_S + tick / 2, devices=tuple(f"GPU-{one}" for one in range(4)),
                names=METRICS, values=tuple(map(tuple, values[:, tick, :].T.tolist())), ranks=(0, 1, 2, 3),
            ),
        )
        for tick in range(2 * seconds)
    ]  # fmt: skip


def talk(job: Job) -> None:
    """Every rank says four lines a second; towards the end rank 1 says something new, 40 times a second."""
    for rank in range(4):
        for second in range(int(job.end_s - START_S)):
            at_s = START_S + second
            lines = [(at_s + i / 4, f"step {second} micro {i} loss 3.{i}") for i in range(4)]
            if rank == 1 and job.end_s - 8 < at_s < job.end_s - 3:
                lines += [(at_s + i / 40, f"cannot reach peer {i}, will try again") for i in range(40)]
            record = log_lines(rank, sorted(lines), first=1 + 10_000 * second)
            job.add(at_s + 1, msgspec.structs.replace(record, source=f"talk-{rank}"))


def job_records(sick: bool) -> list[Sent]:
    """Half a minute of a job of four ranks. If it is `sick`: a slow rank, a strange device, a talkative rank, an Xid
    that fells a GPU, and at the end a process that dies.
    """
    if not sick:
        job = Job().run(60)
        return job.records + metrics(20)
    job = Job(slow=lambda rank, step: 2.0 if rank == 1 and step >= 40 else 1.0).run(70)
    job.records.extend(metrics(28, sick_from=14))
    talk(job)
    at_s = job.end_s
    job.add(at_s - 5, log_lines(0, [(at_s - 5, "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.")]))
    return job.add(at_s, event("process_exit", at_s, 2, signal="SIGSEGV")).records
