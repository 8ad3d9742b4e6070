"""What the agent costs and loses, published like any other metric."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Sequence

from trainwarden.clock import Clock
from trainwarden.collectors.agent.delivery import Delivery
from trainwarden.collectors.agent.schedule import Task
from trainwarden.collectors.agent.validation import MetricsValidator
from trainwarden.protocols import Scope
from trainwarden.records import MetricsRecord, Record
from trainwarden.self_metrics import SelfMetrics

_INTERVAL_S = 5.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class SelfWatch:
    """CPU, memory, lag, spool and losses of this process, every few seconds."""

    def __init__(
        self, scope: Scope, clock: Clock, metrics: SelfMetrics, delivery: Delivery, vetting: MetricsValidator
    ) -> None:
        self._scope = scope
        self._clock = clock
        self._metrics = metrics
        self._delivery = delivery
        self._vetting = vetting
        self._last_s = clock.monotonic_s()
        self._last_cpu_s = _cpu_s()

    def records(self, tasks: Sequence[Task]) -> Iterable[Record]:
        """One record if the last one is old enough."""
        now_s = self._clock.monotonic_s()
        if now_s - self._last_s < _INTERVAL_S:
            return
        cpu_s = _cpu_s()
        values = {
            "agent_cpu_ratio": (cpu_s - self._last_cpu_s) / (now_s - self._last_s),
            "agent_resident_memory_bytes": resident_bytes(),
            "agent_spool_bytes": float(self._delivery.spool.size_bytes),
            "agent_spool_records_count": float(len(self._delivery.spool)),
            "agent_dropped_records_count": float(self._delivery.dropped),
            "agent_dropped_values_count": float(self._vetting.dropped),
            "agent_lag_seconds": max([0.0, *(task.late_s for task in tasks)]),
            "agent_flush_seconds": self._delivery.flush_s,
            "agent_stuck_collectors_count": float(sum(task.stuck for task in tasks)),
        }
        self._last_s, self._last_cpu_s = now_s, cpu_s
        for task in tasks:
            task.late_s = 0.0
        for name, value in values.items():
            self._metrics.gauge(name.removeprefix("agent_"), f"See {name} in the metric catalogue.", value)
        yield MetricsRecord(
            job=self._scope.job,
            node=self._scope.node,
            time_s=self._clock.now_s(),
            devices=("agent",),
            names=tuple(values),
            values=tuple((value,) for value in values.values()),
        )


def resident_bytes() -> float:
    """Memory of this process that is in RAM, in bytes."""
    with open("/proc/self/statm", "rb") as file:
        return float(file.read().split()[1]) * _PAGE_BYTES


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
