"""The frozen view of one job that detectors score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.calls.counts import Counts
from trainwarden.detectors.calls.joined import JoinedStep
from trainwarden.detectors.calls.links import StepTraffic
from trainwarden.detectors.job.beats import HeartbeatTable
from trainwarden.detectors.job.board import MetricBuffer
from trainwarden.detectors.job.common_mode import quiet_median
from trainwarden.detectors.job.samples import FamilySamples, ScoredSamples
from trainwarden.parallelism.layout import Layout
from trainwarden.records import EventRecord, MetricsRecord


@dataclass(frozen=True, slots=True)
class LogLine:
    """One new log line (or `count` like ones that were collapsed)."""

    node: str
    source: str
    rank: int | None
    line: str
    time_s: float
    count: int = 1
    end: int = 0


@dataclass(frozen=True, slots=True)
class Window:
    """Everything known of one job up to now, as arrays over ranks.

    The arrays are views of the job's rings: read them at once, keep nothing. Rows are closed steps, oldest
    first; row i has the sequence number ``first_seq + i``, so that a detector that remembers the next sequence
    number sees every row once (`fresh`).

    Attributes
    ----------
    now_s : float
        The service's clock (of a recording: its own clock).
    end_s : float
        Newest event time.
    watermark_s : float
        No row older than this is still being waited for.
    own_end_s : float [ranks]
        Newest end of a step of each rank, by the clock of its own node; NaN if there is none.
    live : bool [ranks]
        Ranks whose process has not ended.
    node_silent_s : dict
        For each node with live ranks, how long it has sent no heartbeat, as counted by the service.
    still_s : float
        How long no rank has made a step or a collective call, as counted by the service.
    phase : str
        Why slowness would be no news: ``start``, ``restart``, ``checkpoint``, ``evaluation``, ``compile``, ``data``,
        ``exit``, ``ended`` (the launcher has said so), or empty.
    quiet_rows, repaced_rows : bool [rows]
        Rows in which slowness is planned; rows after which another pace is.
    last : bool
        Nothing comes after this window: a recording ends here.
    bases : tuple of (str, str) [ranks]
        Where the newest times of each rank's steps come from, and what it computes on behind the host's back.
    layout : Layout or None
        The job's parallel groups, as far as anybody has told.
    calls : tuple of JoinedStep
        Sampled steps whose collective calls have been joined over the ranks; shown once.
    carried : tuple of Carried
        What passed between ranks in the newest of them.
    counts : Counts or None
        How many collective calls each rank has begun and ended, by its newest word; None where none tells.
    stacks : mapping of int to str
        Where the code of ranks stands, by rank, of those that were looked at while nobody moved.
    board : MetricBoard
        The newest metric samples.
    samples, scored : tuples
        New metric samples by family of entities, and what the trained models make of them; shown once.
    unscored : mapping or None
        Why families of `samples` have no scores; None where no models are loaded at all.
    model_versions : mapping
        Versions of the models in use, by detector.
    provisional : frozenset of str
        Those of them that had too little to be judged by, such as what the job's own start has taught.
    idle : frozenset of str
        Models that are not computed, since no vote of theirs weighs anything and nobody has asked for them.
    weights : mapping of str to mapping
        What their votes weigh about a family of entities, where that was measured: by detector, then by family.
    """

    job: str
    now_s: float
    end_s: float
    watermark_s: float
    phase: str
    ranks: npt.NDArray[np.int64]
    nodes: tuple[str, ...]
    roles: tuple[str, ...]
    own_end_s: npt.NDArray[np.float64]
    live: npt.NDArray[np.bool_]
    ended_cleanly: npt.NDArray[np.bool_]
    first_seq: int
    steps: npt.NDArray[np.int64]
    epochs: npt.NDArray[np.int64]
    ends_s: npt.NDArray[np.float64]
    duration_s: npt.NDArray[np.float32]
    compute_s: npt.NDArray[np.float32]
    wait_s: npt.NDArray[np.float32]
    pause_s: npt.NDArray[np.float32]
    micro_batches: npt.NDArray[np.float32]
    quiet_rows: npt.NDArray[np.bool_]
    repaced_rows: npt.NDArray[np.bool_]
    beats: HeartbeatTable
    board: MetricBuffer
    node_silent_s: dict[str, float] = field(default_factory=dict)
    still_s: float = 0.0
    logs: tuple[LogLine, ...] = ()
    events: tuple[EventRecord, ...] = ()
    metrics: tuple[MetricsRecord, ...] = ()
    calls: tuple[JoinedStep, ...] = ()
    counts: Counts | None = None
    samples: tuple[FamilySamples, ...] = ()
    scored: tuple[ScoredSamples, ...] = ()
    unscored: Mapping[str, str] | None = None
    model_versions: Mapping[str, str] = field(default_factory=dict)
    provisional: frozenset[str] = frozenset()
    idle: frozenset[str] = frozenset()
    weights: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    finished: bool = False
    last: bool = False
    restarts: int = 0
    attempt: int | None = None
    bases: tuple[tuple[str, str], ...] = ()
    layout: Layout | None = None
    carried: tuple[StepTraffic, ...] = ()
    stacks: Mapping[int, str] = field(default_factory=dict)

    @property
    def asynchronous(self) -> npt.NDArray[np.bool_]:
        """Ranks whose device works behind the host's back: their durations say nothing of who is slow [ranks]."""
        if not self.bases:
            return np.zeros(len(self.ranks), dtype=np.bool_)
        return np.array([bool(accelerator) for _, accelerator in self.bases], dtype=np.bool_)

    @property
    def starting(self) -> bool:
        """Whether the job is only coming up."""
        return self.phase in {"start", "restart"}

    @property
    def next_seq(self) -> int:
        """Sequence number that the next closed row will get."""
        return self.first_seq + len(self.steps)

    def fresh(self, next_seq: int) -> slice:
        """Rows whose sequence number is `next_seq` or larger."""
        return slice(max(0, next_seq - self.first_seq), len(self.steps))

    def busy_s(self, rows: slice) -> npt.NDArray[np.float64]:
        """Duration of the steps without their pauses [rows, ranks]."""
        pause = self.pause_s[rows].astype(np.float64)
        return np.maximum(self.duration_s[rows] - np.where(np.isnan(pause), 0.0, pause), 1e-6)

    def work_s(self, rows: slice) -> npt.NDArray[np.float64]:
        """Compute time as if every rank had the same share of micro-batches [rows, ranks].

        A slow rank that was given fewer micro-batches is as fast as the others again, and slow all the same:
        compute / m_r * mean(m). Where no micro-batches are declared this is the plain compute time.
        """
        compute = self.compute_s[rows].astype(np.float64)
        shares = self.micro_batches[rows].astype(np.float64)
        known = np.isfinite(shares) & (shares > 0)
        count = known.sum(axis=1, keepdims=True)
        total = np.where(known, shares, 0.0).sum(axis=1, keepdims=True)
        mean = np.divide(total, count, out=np.ones_like(total), where=count > 0)
        return np.maximum(np.where(known, compute / np.where(known, shares, 1.0) * mean, compute), 1e-6)


def job_duration_s(window: Window, rows: slice) -> npt.NDArray[np.float64]:
    """The job's step time without pauses: the median over ranks [rows]; NaN where no rank reported.

    Pauses are taken out per rank, so ranks that wait for another rank's pause would still show it in their
    wait: the shortest busy time tells a pause of one rank from slowness of all.
    """
    if not len(window.steps[rows]):
        return np.zeros(0)
    plain = quiet_median(window.busy_s(rows).T)
    pause = np.fmax.reduce(window.pause_s[rows].astype(np.float64), axis=1, initial=0.0)
    paused = np.flatnonzero(pause > 0)
    if paused.size:
        # A rank's pause (checkpoint on rank 0) makes the others wait for it: their duration minus that pause.
        duration, own = window.duration_s[rows][paused].astype(np.float64), plain[paused]
        with_pause = quiet_median(duration.T) - pause[paused]
        plain[paused] = np.maximum(np.minimum(own, with_pause), 0.05 * own)
    return plain
