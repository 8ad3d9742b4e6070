"""Facts of a recording: events and heartbeats that our own keep beside the files, flight-recorder dumps, and what
exporters tell by metrics (Xids, links, lost GPUs and nodes, hangs)."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from trainwarden.detectors.collectives import ras as nccl_ras
from trainwarden.detectors.collectives.findings import to_event
from trainwarden.detectors.collectives.flight_recorder import analyse
from trainwarden.detectors.logs.ends.last_messages import last_word_events
from trainwarden.detectors.recorded.exporter_facts import exporter_events
from trainwarden.detectors.recorded.hangs import hang_events
from trainwarden.detectors.recorded.lost_nodes import lost_node_events, silent_node_events
from trainwarden.detectors.recorded.stream import Fact
from trainwarden.detectors.recorded.xids import xid_events
from trainwarden.errors import DataError
from trainwarden.recorded.job import RecordedJob
from trainwarden.records import EventRecord, HeartbeatRecord

MAX_FACT_BYTES: Final = 16 * 1024 * 1024  # of one line
R = TypeVar("R", EventRecord, HeartbeatRecord)


def read_facts(job: RecordedJob) -> list[Fact]:
    """Events and heartbeats of `job`, in the order of the files, and what its flight-recorder dumps and
    its metrics say: Xids, links, GPUs, nodes, hangs.

    Raises
    ------
    DataError
        Naming file and line, or rank and entry, if one cannot be read.
    """
    facts: list[Fact] = []
    events = [*_lines(job.folder / "events.jsonl", EventRecord), *job.events]
    events += [*xid_events(job, events), *exporter_events(job, events)]
    beats = _lines(job.folder / "heartbeats.jsonl", HeartbeatRecord)
    if beats:
        events += silent_node_events(job, beats, events)
    else:
        events += last_word_events(job, events)
        events += lost_node_events(job, events)
        events += hang_events(job, events)
    facts += [*events, *beats]
    facts.extend(_collectives(job))
    return facts


def _collectives(job: RecordedJob) -> list[EventRecord]:
    """One event for each broken collective, at the end of the recording: dumps are written when all is over."""
    if job.ras:
        return _of_ras(job)
    if not job.flight:
        return []
    table = job.iterations
    ranks = [] if table is None else [rank for rank in table.ranks if rank is not None]
    known = zip(table.ranks, table.nodes, strict=True) if table is not None else ()
    nodes = {rank: node for rank, node in known if rank is not None and node}
    findings = analyse(job.flight, max(ranks) + 1 if ranks else None, job.broken)
    end_s = job.end_s
    return [
        to_event(finding, job=job.name, time_s=end_s if end_s is not None else finding.time_s or 0.0, nodes=nodes)
        for finding in findings
    ]


def _of_ras(job: RecordedJob) -> list[EventRecord]:
    """What answers of NCCL's RAS service say, each beside the one before it."""
    end_s = job.end_s or 0.0
    found: dict[tuple[str, tuple[int, ...]], EventRecord] = {}
    for before, answer in zip((None, *job.ras), job.ras, strict=False):
        for finding in nccl_ras.analyse(answer, before):
            found[finding.group, finding.ranks] = to_event(finding, job=job.name, time_s=end_s, source="nccl_ras")
    return list(found.values())


def _lines(path: Path, kind: type[R]) -> list[R]:
    packed = path.with_name(f"{path.name}.gz")
    if not path.is_file() and not packed.is_file():
        return []
    decoder = msgspec.json.Decoder(kind)
    found = []
    try:
        with path.open("rb") if path.is_file() else gzip.open(packed, "rb") as file:
            number = 0
            while line := file.readline(MAX_FACT_BYTES):
                number += 1
                if line.strip():
                    found.append(decoder.decode(line))
    except (OSError, EOFError, zlib.error) as error:  # what is damaged in packing has no name of its own
        raise DataError(f"{path.name}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    except msgspec.DecodeError as error:
        raise DataError(f"{path.name} line {number}: {error}") from error
    return found
