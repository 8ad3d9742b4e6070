"""What a node's hooks have told, as records: steps, facts, heartbeats, and what the hooks themselves cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from trainwarden import hook
from trainwarden.collectors.iterations.hook_source import Kernel, Note
from trainwarden.protocols import Scope
from trainwarden.records import (
    EventKind,
    EventRecord,
    HeartbeatRecord,
    IterationRecord,
    MetricsRecord,
    Phase,
)

_DISK = ("path", "mount", "file_system", "free_bytes", "size_bytes")  # of a write that found no space
_MOST_STEPS = 2000  # per record, far below the bus's limit


class HookRecords:
    """Makes the records of one job on one node.

    Parameters
    ----------
    scope : Scope
    """

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def started(self, header: hook.Header) -> EventRecord:
        """A process has begun to train."""
        text = f"rank {header.rank} trains as process {header.pid}"
        fields = {"pid": header.pid, "world_size": header.world_size, "attempt": header.attempt}
        return self._event("process_start", "process_start", header, header.start_s, text, **fields)

    def beside(self, header: hook.Header, trainer: hook.Header) -> EventRecord:
        """A process has the rank's name without being its trainer: nothing it does is the rank's."""
        text = f"process {header.pid} runs beside process {trainer.pid}, which trains as rank {header.rank}"
        name = "process_start/beside"
        return self._event(
            "process_start", name, header, header.start_s, text, pid=header.pid, beside=trainer.incarnation
        )

    def iterations(self, header: hook.Header, steps: Sequence[hook.Step]) -> Iterator[IterationRecord]:
        """Its steps, in records of bounded size, each of steps that were measured in one way."""
        first = 0
        for place in range(1, len(steps) + 1):
            whole = place == len(steps) or place - first == _MOST_STEPS
            if whole or (steps[place].device_s is None) != (steps[first].device_s is None):
                yield self._iterations(header, steps[first:place])
                first = place

    def _iterations(self, header: hook.Header, steps: Sequence[hook.Step]) -> IterationRecord:
        record = IterationRecord(
            job=self._scope.job,
            node=self._scope.node,
            rank=header.rank,
            incarnation=header.incarnation,
            steps=tuple(step.step for step in steps),
            end_s=tuple(step.end_s for step in steps),
            duration_s=tuple(step.duration_s for step in steps),
            pause_s=tuple(step.pause_s for step in steps),
            micro_batches=tuple(step.micro_batches for step in steps),
            role=header.role,
            accelerator=header.accelerator,
        )
        if header.accelerator:
            return record if steps[0].device_s is None else _of_device(record, steps)
        marks = steps[-1].source == "marks"
        # Marks of a framework whose waiting the hook cannot see: nothing is known of the split.
        split = not (marks and not header.calls and not any(step.wait_s for step in steps))
        return msgspec.structs.replace(
            record,
            compute_s=tuple(step.compute_s for step in steps) if split else (),
            wait_s=tuple(step.wait_s for step in steps) if split else (),
            basis="marks" if marks else "host",
        )

    def pause(self, header: hook.Header, pause: hook.Pause) -> EventRecord:
        """A long pause is over."""
        kind: EventKind = "checkpoint" if pause.phase == "checkpoint" else "phase"
        end_s, took_s, step = pause.begin_s + pause.duration_s, pause.duration_s, pause.step
        text = f"rank {header.rank} spent {took_s:.1f} s in {pause.phase} during step {step}"
        name = f"{kind}/{pause.serial}"
        return self._event(kind, name, header, end_s, text, phase=pause.phase, duration_s=took_s, step=step)

    def note(self, note: Note) -> EventRecord:
        """An exception, or a plan adopted."""
        if note.type == "plan":
            text = f"rank {note.rank} runs micro-batches by plan {note.plan} from step {note.step}"
            name = f"microbatch_plan/{note.plan}"
            shares = note.micro_batches
            return self._event(
                "microbatch_plan", name, note, note.time_s, text, number=note.plan, micro_batches=shares, step=note.step
            )
        fields: dict[str, str | int | float | bool | None] = {
            "type": note.exception, "types": note.types, "causes": note.causes, "frame": note.frame,
        }  # fmt: skip
        if note.path:
            fields |= {name: getattr(note, name) for name in _DISK}
        return self._event("exception", "exception", note, note.time_s, note.message, **fields, step=note.step)

    def fatal_signal(self, header: hook.Header, signal: str, frame: str, now_s: float) -> EventRecord:
        """A signal has ended the process; `frame` is its innermost Python frame."""
        text = f"rank {header.rank} was ended by {signal} in {frame or 'unknown code'}"
        return self._event("fatal_signal", "fatal_signal", header, now_s, text, signal=signal, frame=frame)

    def _event(
        self,
        kind: EventKind,
        name: str,
        header: hook.Header | Note,
        time_s: float,
        message: str,
        /,
        **fields: str | int | float | bool | None,
    ) -> EventRecord:
        first, _, rest = name.partition("/")
        return EventRecord(
            id=f"{first}/{self._scope.node}/{header.incarnation}" + (f"/{rest}" if rest else ""),
            job=self._scope.job,
            node=self._scope.node,
            time_s=time_s,
            kind=kind,
            rank=header.rank,
            message=message[:2000],
            fields={"incarnation": header.incarnation, **fields},
        )

    def heartbeat(
        self, rows: Sequence[tuple[hook.Header, Kernel]], now_s: float, monotonic_s: float, boot: str
    ) -> HeartbeatRecord:
        """What every rank is doing, by its hook and by the kernel."""
        headers = [header for header, _ in rows]
        phases: tuple[Phase, ...] = tuple(header.phase for header in headers)
        return HeartbeatRecord(
            job=self._scope.job,
            node=self._scope.node,
            time_s=now_s,
            ranks=tuple(header.rank for header in headers),
            pids=tuple(header.pid for header in headers),
            incarnations=tuple(header.incarnation for header in headers),
            steps=tuple(header.step for header in headers),
            step_end_s=tuple(header.step_end_s for header in headers),
            phases=phases,
            phase_since_s=tuple(header.phase_since_s for header in headers),
            calls=tuple(header.calls for header in headers),
            states=tuple(kernel.state for _, kernel in rows),
            cpu_s=tuple(kernel.cpu_s for _, kernel in rows),
            monotonic_s=monotonic_s,
            boot=boot,
        )

    def overhead(self, s_per_step: float, now_s: float) -> MetricsRecord:
        """What the hooks of this node cost their training threads, per step, by their own reckoning."""
        return MetricsRecord(
            job=self._scope.job,
            node=self._scope.node,
            time_s=now_s,
            devices=("agent",),
            names=("agent_hook_overhead_seconds",),
            values=((s_per_step,),),
        )


def _of_device(record: IterationRecord, steps: Sequence[hook.Step]) -> IterationRecord:
    """`record` by what the device says. Pauses are the host's: the device may have worked on in them, or not."""
    took = [step.device_s or step.duration_s for step in steps]
    pauses = [min(step.pause_s, took_s) for step, took_s in zip(steps, took, strict=True)]
    waits = [step.device_wait_s for step in steps]
    return msgspec.structs.replace(
        record,
        duration_s=tuple(took),
        pause_s=tuple(pauses),
        wait_s=tuple(waits),
        compute_s=tuple(
            None if wait_s is None else max(0.0, took_s - wait_s - pause_s)
            for took_s, wait_s, pause_s in zip(took, waits, pauses, strict=True)
        ),
        basis="device_step",
    )
