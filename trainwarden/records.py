"""The typed records that travel on the bus; their topics and codec are in `trainwarden.topics`.

Records grow by optional fields only, so an old reader skips what it does not know and a new one fills in what an old
writer did not send. Absent means not measured: no NaN, -1 or 0 for it. Times are seconds since the epoch in UTC.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec

from trainwarden.errors import RecordError

SCHEMA_VERSION = 1
MAX_LINE_CHARS = 8_192  # a log line is cut here by the collector

Rank = Annotated[int, msgspec.Meta(ge=0, lt=1_000_000)]
Ratio = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]

IncidentKind = Literal[
    "crash", "exception", "hang", "slow_compute", "slow_link", "slow_job", "node_lost", "gpu_lost",
    "gpu_memory_error", "gpu_throttle", "nvlink_error", "pcie_error", "nic_down", "nic_error", "congestion",
    "host_contention", "out_of_memory", "cuda_out_of_memory", "storage", "data_stall", "checkpoint",
    "collective_mismatch", "silent_corruption", "log_storm", "user_error", "restart_loop", "metric_anomaly",
    "data_quality", "pipeline",
]  # fmt: skip
Severity = Literal["sev1", "sev2", "sev3"]
ActionKind = Literal[
    "ignore", "rebalance", "move_topology", "restart_process", "restart_job", "evict_node", "reconfigure", "stop_job",
]  # fmt: skip
Outcome = Literal["proposed", "started", "done", "failed", "skipped"]
Opinion = Literal["anomalous", "normal", "abstain"]
EventKind = Literal[
    "job_start", "job_end", "process_start", "process_exit", "exception", "fatal_signal", "xid", "link_down", "link_up",
    "device_lost", "heartbeat_lost", "checkpoint", "phase", "microbatch_plan", "restart", "collector_unsupported",
    "clock_step", "flight_recorder", "model",
]  # fmt: skip
EVENT_KINDS: frozenset[str] = frozenset(get_args(EventKind))
EVENT_NAME = r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*"  # held of what plug-ins declare; on the wire it costs half a decode
EventName = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
F = TypeVar("F", bound=msgspec.Struct)
Phase = Literal["start", "compute", "wait", "checkpoint", "data", "evaluation", "exit"]


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Root of all records; `schema_version` is the version of the writer."""

    schema_version: int = SCHEMA_VERSION


class MetricsRecord(Record, frozen=True, kw_only=True, omit_defaults=True, tag="metrics"):
    """All devices of one node at one tick, columnar: `values[name][device]`; None = not measured.

    `ranks[device]`, where sent, is the rank whose process uses the device (None = unknown or several).
    """

    job: str
    node: str
    time_s: float
    devices: tuple[str, ...]
    names: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    ranks: tuple[Rank | None, ...] = ()


class IterationRecord(Record, frozen=True, kw_only=True, omit_defaults=True, tag="iterations"):
    """A batch of training steps of one rank, columnar; `(rank, incarnation, step)` is the identity of a step.

    `end_s` are wall times of the steps' ends; duration = compute + wait + pause, each None if unknown.
    `basis` is where the split comes from: ``host`` (waits seen), ``marks`` (explicit calls), ``log`` (none there).
    """

    job: str
    node: str
    rank: Rank
    incarnation: str
    steps: tuple[int, ...]
    end_s: tuple[float, ...]
    duration_s: tuple[float, ...]
    compute_s: tuple[float | None, ...] = ()
    wait_s: tuple[float | None, ...] = ()
    pause_s: tuple[float | None, ...] = ()
    micro_batches: tuple[int | None, ...] = ()
    basis: str = "host"
    role: str = ""


class HeartbeatRecord(Record, frozen=True, kw_only=True, omit_defaults=True, tag="heartbeat"):
    """What every rank of one node is doing now, columnar over its ranks.

    `phase_since_s` is wall time; `calls` counts collective calls begun; `states` are the kernel's letters
    (R running, S sleeping, D disk, T stopped, Z zombie, X gone, empty: unseen); `cpu_s` is CPU time so far.
    `duration` of the step in progress is ``time_s - step_end_s``. `monotonic_s` is the node's own clock that never
    steps, comparable within one `boot`; durations between heartbeats are taken on it, `time_s` only labels.
    """

    job: str
    node: str
    time_s: float
    ranks: tuple[Rank, ...] = ()
    pids: tuple[int, ...] = ()
    incarnations: tuple[str, ...] = ()
    steps: tuple[int, ...] = ()
    step_end_s: tuple[float | None, ...] = ()
    phases: tuple[Phase, ...] = ()
    phase_since_s: tuple[float | None, ...] = ()
    calls: tuple[int, ...] = ()
    states: tuple[str, ...] = ()
    cpu_s: tuple[float | None, ...] = ()
    monotonic_s: float | None = None
    boot: str = ""


class LogRecord(Record, frozen=True, kw_only=True, omit_defaults=True, tag="log"):
    """A batch of lines of one source (a rank's output, a file, the kernel).

    `ends[i]`, the position in the source after line i, grows. `counts[i]` > 1: so many like lines were collapsed.
    """

    job: str
    node: str
    source: str
    ends: tuple[int, ...]
    lines: tuple[str, ...]
    times_s: tuple[float, ...]
    counts: tuple[int, ...] = ()
    rank: Rank | None = None


class EventRecord(Record, frozen=True, kw_only=True, omit_defaults=True, tag="event"):
    """A hard fact. `id` is the same whenever the same fact is sent again.

    `kind` is one of `EventKind` or a plug-in's own, with its name and a dot (``rack.tripped``); unknown ones go on.
    """

    id: str
    job: str
    node: str
    time_s: float
    kind: EventName
    rank: Rank | None = None
    device: str | None = None
    message: str = ""
    fields: dict[str, str | int | float | bool | None] = msgspec.field(default_factory=dict)

    def fields_as(self, kind: type[F]) -> F:
        """`fields` as the typed struct that the plug-in declares for this kind of event.

        Raises
        ------
        RecordError
            If they do not fit it.

        Examples
        --------
        >>> class Tripped(msgspec.Struct):
        ...     celsius: float
        >>> event = EventRecord(id="e", job="j", node="n", time_s=1.0, kind="my.tripped", fields={"celsius": 95.0})
        >>> event.fields_as(Tripped)
        Tripped(celsius=95.0)
        """
        try:
            return msgspec.convert(self.fields, kind)
        except msgspec.ValidationError as error:
            raise RecordError(f"event {self.id} of kind {self.kind}: {error}") from error


class Suspect(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """One candidate culprit; whatever of rank, node, device is unknown is None."""

    score: Ratio
    reason: str
    rank: Rank | None = None
    node: str | None = None
    device: str | None = None


class Vote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One detector's opinion of one window; `score` and `threshold` are calibrated to 0..1."""

    opinion: Opinion
    score: Ratio = 0.0
    threshold: Ratio = 0.5
    reason: str = ""
    kind: IncidentKind | None = None
    severity: Severity | None = None
    suspects: tuple[Suspect, ...] = ()
    metrics: tuple[str, ...] = ()
    onset_s: float | None = None
    onset_step: int | None = None
    at_step: int | None = None
    verified: bool = False
    hard: bool = False


class VerdictRecord(Record, frozen=True, kw_only=True, omit_defaults=True, tag="verdict"):
    """The ensemble's answer for one window of one job, with every vote and the model versions used."""

    id: str
    job: str
    time_s: float
    window_s: float
    anomalous: bool
    reason: str
    votes: dict[str, Vote] = msgspec.field(default_factory=dict)
    kind: IncidentKind | None = None
    severity: Severity | None = None
    suspects: tuple[Suspect, ...] = ()
    phase: str = ""
    step: int | None = None
    model_versions: dict[str, str] = msgspec.field(default_factory=dict)
    iteration_s: float | None = None


class IncidentRecord(Record, frozen=True, kw_only=True, omit_defaults=True, tag="incident"):
    """Verdicts of one cause joined, one per problem; updates are revisions. `told_late_s`: nobody was there in time."""

    id: str
    job: str
    kind: IncidentKind
    severity: Severity
    state: Literal["opened", "updated", "closed"]
    revision: int
    opened_at_s: float
    updated_at_s: float
    reason: str
    closed_at_s: float | None = None
    onset_s: float | None = None
    onset_step: int | None = None
    opened_step: int | None = None
    suspects: tuple[Suspect, ...] = ()
    metrics: tuple[str, ...] = ()
    votes: dict[str, Ratio] = msgspec.field(default_factory=dict)
    model_versions: dict[str, str] = msgspec.field(default_factory=dict)
    evidence: dict[str, Any] = msgspec.field(default_factory=dict)
    told_late_s: float | None = None


class ActionRecord(Record, frozen=True, kw_only=True, omit_defaults=True, tag="action"):
    """What the engine decided and what became of it; one record per change of `outcome`, same id.

    `generation` is the launcher's then (`trainwarden.launching`), `plan_digest` stands for all that would be done, `by`
    is who approved it.
    """

    id: str
    incident: str
    job: str
    kind: ActionKind
    outcome: Outcome
    at_s: float
    why: str
    finished_at_s: float | None = None
    plan: dict[str, Any] = msgspec.field(default_factory=dict)
    generation: int | None = None
    plan_digest: str | None = None
    by: str | None = None


class CommandRecord(Record, frozen=True, kw_only=True, omit_defaults=True, tag="command"):
    """A person's word to the engine: on one action (by the `plan_digest` that was shown), on all acting, or a silence.

    A silence lasts until `until_s`, of incidents of that kind whose first suspect is on that node; None means any.
    """

    id: str
    job: str
    at_s: float
    kind: Literal["approve", "deny", "stop", "resume", "silence"]
    by: str
    action: str | None = None
    plan_digest: str | None = None
    until_s: Annotated[float, msgspec.Meta(ge=0.0, le=1e11)] | None = None
    incident_kind: IncidentKind | None = None
    node: str | None = None


class DeadLetter(Record, frozen=True, kw_only=True, omit_defaults=True, tag="dead_letter"):
    """Bytes that were no record of their topic, kept for a person to look at (cut at 64 KiB)."""

    topic: str
    partition: int
    offset: int
    reason: str
    value: bytes


class SnapshotRecord(Record, frozen=True, kw_only=True, omit_defaults=True, tag="snapshot"):
    """A part of what a detection service remembers of a job; see `detectors.snapshots`, also for offsets by topic."""

    job: str
    number: Annotated[int, msgspec.Meta(ge=1)]
    part: Annotated[int, msgspec.Meta(ge=0, lt=4_096)]
    parts: Annotated[int, msgspec.Meta(ge=0, le=4_096)]
    partition: int
    positions: dict[str, int]
    floors: dict[str, int]
    digest: str
    value: bytes
