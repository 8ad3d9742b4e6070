"""RUN_DIR/events.jsonl: what the local launcher knows first hand, for the agent to pass on."""

from __future__ import annotations

import logging
import os
import signal

from trainwarden import rundir
from trainwarden.actions.launchers.local.ranks import LocalJob, RankProcess
from trainwarden.launching import Operation
from trainwarden.records import EventRecord
from trainwarden.topics import EVENTS

log = logging.getLogger("trainwarden.supervisor")


class EventFile:
    """Appends events of one run, each whole, so that a reader never sees half of two."""

    def __init__(self, place: LocalJob) -> None:
        self._place = place
        self._path = place.run_dir / rundir.EVENTS

    def exited(self, process: RankProcess, code: int, now_s: float) -> None:
        """`process` has ended."""
        self._append(exit_event(self._place, process, code, now_s))

    def restart(self, operation: Operation, stage: str, attempt: int, now_s: float) -> None:
        """`operation` is at `stage`: ``started`` or ``done``."""
        targets = operation.targets.ranks
        ranks = "all" if targets is None else ",".join(map(str, sorted(set(targets))))
        self._append(
            EventRecord(
                id=f"restart/{operation.id}/{stage}",
                job=self._place.job,
                node=self._place.node,
                time_s=now_s,
                kind="restart",
                message=operation.why,
                fields={"attempt": attempt, "ranks": ranks, "operation": operation.id, "stage": stage},
            )
        )

    def asked(self, operation: Operation, sentence: str, stage: str, now_s: float) -> None:
        """`operation` was asked of the job, and is at `stage`: ``accepted`` or ``done``."""
        fields: dict[str, str | int | float | bool | None] = {
            "operation": operation.id, "stage": stage, "verb": operation.kind, "by": operation.by, "why": operation.why,
        }  # fmt: skip
        if operation.targets.nodes:
            fields["target"] = operation.targets.nodes[0]
        self._append(
            EventRecord(
                id=f"operation/{operation.id}/{stage}",
                job=self._place.job,
                node=self._place.node,
                time_s=now_s,
                kind="operation",
                message=sentence,
                fields=fields,
            )
        )

    def _append(self, event: EventRecord) -> None:
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(file, EVENTS.encode(event) + b"\n")
            finally:
                os.close(file)
        except OSError as error:  # a full disk must not end the training that we look after
            log.error("event lost", extra={"fields": {"event": event.id, "error": str(error)}})


def exit_event(place: LocalJob, process: RankProcess, code: int, now_s: float) -> EventRecord:
    """The fact that `process` has ended; `asked` says that the launcher itself stopped it."""
    incarnation = process.incarnation
    fields: dict[str, str | int | float | bool | None] = {"pid": process.pid, "incarnation": incarnation}
    if code < 0:
        fields["signal"] = _signal_name(-code)
    else:
        fields["code"] = code
    if process.asked_to_stop:
        fields["asked"] = True
    return EventRecord(
        id=f"exit/{place.node}/{incarnation}",
        job=place.job,
        node=place.node,
        time_s=now_s,
        kind="process_exit",
        rank=process.rank,
        message=f"rank {process.rank} ended with {fields.get('signal') or f'code {code}'}",
        fields=fields,
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # real-time signals have no names
