"""The typed records that travel on the bus; their topics and codec are in `trainwarden.topics`.

Records grow by optional fields only, so an old reader skips what it does not know and a new one fills in what an old
writer did not send. Absent means not measured: no NaN, -1 or 0 for it. Times are seconds since the epoch in UTC.

Read `trainwarden.records.measured` first.
"""

from __future__ import annotations

from trainwarden.records.base import (
    EVENT_KINDS,
    EVENT_NAME,
    MAX_LINE_CHARS,
    SCHEMA_VERSION,
    TRANSITION_PHASES,
    ActionKind,
    EventKind,
    EventName,
    IncidentKind,
    Outcome,
    Phase,
    Rank,
    Ratio,
    Record,
    Severity,
    basis_said,
)
from trainwarden.records.decided import ActionRecord, CommandRecord, Signature, TaskRecord, TaskStatus
from trainwarden.records.judged import IncidentRecord, SamplingRecord, Suspect, VerdictRecord, Vote
from trainwarden.records.kept import DeadLetter, SnapshotRecord
from trainwarden.records.measured import (
    CollectivesRecord,
    EventRecord,
    HeartbeatRecord,
    IterationRecord,
    LogRecord,
    MetricsRecord,
)

__all__ = [
    "EVENT_KINDS", "EVENT_NAME", "MAX_LINE_CHARS", "SCHEMA_VERSION", "TRANSITION_PHASES",
    "ActionKind", "ActionRecord", "CollectivesRecord", "CommandRecord", "DeadLetter", "EventKind", "EventName",
    "EventRecord", "HeartbeatRecord", "IncidentKind", "IncidentRecord", "IterationRecord", "LogRecord", "MetricsRecord",
    "Outcome", "Phase", "Rank", "Ratio", "Record", "SamplingRecord", "Severity", "Signature", "SnapshotRecord",
    "Suspect", "TaskRecord", "TaskStatus", "VerdictRecord", "Vote", "basis_said",
]  # fmt: skip
