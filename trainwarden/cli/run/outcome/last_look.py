"""A failed command judged by its own run folder, where no detector has: its end, those of its ranks, its output."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from trainwarden import rundir
from trainwarden.errors import RecordError
from trainwarden.log_text import clean, label_of, writer_of
from trainwarden.records import EventRecord, IncidentRecord, LogRecord
from trainwarden.topics import EVENTS
from trainwarden.torchrun.files import read_part

TAIL_BYTES: Final = 65_536  # of each log
MAX_LOGS: Final = 1_024
EVENTS_BYTES: Final = 1_000_000
SETTLED_S: Final = 5.0  # by the detector's own clock: longer than it waits for words and roots


def last_look(run_dir: Path, ended: EventRecord) -> list[IncidentRecord]:
    """The incidents that the end of the command itself opens, by the detector's own rules for hard facts.

    Parameters
    ----------
    run_dir : Path
    ended : EventRecord
        The end of the command, ``job_end``.
    """
    from trainwarden.detectors.facts.hard_event import HardEvent, HardEventConfig
    from trainwarden.detectors.job_monitor import JobMonitor
    from trainwarden.detectors.verdict.rule import EnsembleConfig
    from trainwarden.self_metrics import SelfMetrics

    detectors = {"hard_event": HardEvent(HardEventConfig())}
    watch = JobMonitor(ended.job, detectors, EnsembleConfig(), SelfMetrics("last_look"))  # type: ignore[arg-type]
    for record in (*_events(run_dir, ended), *_logs(run_dir, ended), ended):
        watch.state.feed(record)
    newest: dict[str, IncidentRecord] = {}
    for now_s in (ended.time_s, ended.time_s + SETTLED_S):
        for record in watch.score(now_s):
            if isinstance(record, IncidentRecord) and record.state != "closed":
                newest[record.id] = record
    return list(newest.values())


def _events(run_dir: Path, ended: EventRecord) -> Iterator[EventRecord]:
    try:
        lines = read_part(run_dir / rundir.EVENTS, 0, EVENTS_BYTES).split(b"\n")
    except OSError:
        return
    for line in lines:
        try:
            event = EVENTS.decode(line) if line.strip() else None
        except RecordError:
            continue
        if isinstance(event, EventRecord) and event.id != ended.id:
            yield event


def _logs(run_dir: Path, ended: EventRecord) -> Iterator[LogRecord]:
    for path in sorted((run_dir / rundir.LOGS).glob("*.log"))[:MAX_LOGS]:
        try:
            lines = [text for raw in read_part(path, -TAIL_BYTES, TAIL_BYTES).split(b"\n") if (text := clean(raw))]
        except OSError:
            continue
        rank = rundir.rank_of_log(path)
        label = label_of(lines)
        by_rank: dict[int | None, list[str]] = {}
        for text in lines:
            by_rank.setdefault(writer_of(text, label).rank if rank is None else rank, []).append(text)
        for whose, texts in by_rank.items():
            yield LogRecord(
                job=ended.job, node=ended.node, source=f"{rundir.LOGS}/{path.name}", rank=whose,
                ends=tuple(range(1, len(texts) + 1)), lines=tuple(texts), times_s=(ended.time_s,) * len(texts),
            )  # fmt: skip
