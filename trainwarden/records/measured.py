"""What is measured and seen on nodes."""

from __future__ import annotations

import msgspec

from trainwarden.records.base import EventName, Phase, Rank, Record


class MetricsRecord(Record, frozen=True, kw_only=True, omit_defaults=True, tag="metrics"):
    """All devices of one node at one tick, columnar: `values[name][device]`; None = not measured.

    Where sent, `ranks[device]` is the rank whose process uses it (None = unknown, several), `models[device]` its model.
    """

    job: str
    node: str
    time_s: float
    devices: tuple[str, ...]
    names: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    ranks: tuple[Rank | None, ...] = ()
    models: tuple[str, ...] = ()


class IterationRecord(Record, frozen=True, kw_only=True, omit_defaults=True, tag="iterations"):
    """A batch of training steps of one rank, columnar; `(rank, incarnation, step)` is the identity of a step.

    Numbers of the hook rise within an incarnation; a script's own are kept as long as they do. Those of other sources
    may begin again, with later ends.

    `end_s` are wall times of the steps' ends; duration = compute + wait + pause, each None if unknown.
    `basis` is where the split comes from: ``host`` (waits seen there), ``device_step`` (events of the device at the
    ends of steps), ``marks`` (explicit calls), ``log`` (none there). `accelerator` names a device that the process
    computes on and that works behind the host's back (``cuda``): on basis ``host`` nothing is known of the split then,
    and durations are from launch to launch.
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
    accelerator: str = ""


class HeartbeatRecord(Record, frozen=True, kw_only=True, omit_defaults=True, tag="heartbeat"):
    """What every rank of one node is doing now, columnar over its ranks.

    `phase_since_s` is wall time; `calls` counts collective calls begun; `states` are the kernel's letters
    (R running, S sleeping, D disk, T stopped, Z zombie, X gone, empty: unseen); `cpu_s` is CPU time so far, and what
    the main thread has waited for a processor: whoever gets none on a busy machine does not sleep.
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


class CollectivesRecord(Record, frozen=True, kw_only=True, omit_defaults=True, tag="collectives"):
    """Collective calls of one rank as NCCL's profiler interface tells them: counts, and stamps of sampled steps.

    Communicators are columns of `comms` (ids that all ranks in one share), `groups` (their names), `sizes` (ranks in
    them), `places` (this process's rank there) and `node_counts`; `enqueued`, `started` and `finished` are calls so
    far, by the host and on the device (None: not stamped, also where stamps went out of step). `moved_s` is when one
    of these last grew and `monotonic_s` is now, both on the node's own clock that never steps, comparable within one
    `boot`.

    Calls are columns of `of` (a place in `comms`), `functions` (NCCL's words, ``AllReduce``), `seqs` (a count per
    communicator and function, for point-to-point calls also per peer), `steps`, `call_bytes`, `device_s` (how long its
    kernel ran, None = not stamped), `enqueued_s` (same clock) and `peers` (of point-to-point calls). `sizes` and
    `node_counts` are empty where NCCL does not tell. `lost` calls of sampled steps were overwritten before they were
    read.
    """

    job: str
    node: str
    rank: Rank
    incarnation: str
    time_s: float
    monotonic_s: float | None = None
    boot: str = ""
    comms: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    places: tuple[int, ...] = ()
    node_counts: tuple[int, ...] = ()
    enqueued: tuple[int, ...] = ()
    started: tuple[int | None, ...] = ()
    finished: tuple[int | None, ...] = ()
    moved_s: tuple[float | None, ...] = ()
    of: tuple[int, ...] = ()
    functions: tuple[str, ...] = ()
    seqs: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    call_bytes: tuple[int, ...] = ()
    device_s: tuple[float | None, ...] = ()
    enqueued_s: tuple[float | None, ...] = ()
    peers: tuple[int | None, ...] = ()
    lost: int = 0


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
