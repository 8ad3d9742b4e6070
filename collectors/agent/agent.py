"""The node agent: one thread that lets every collector read its source in time and brings the records to the bus.

A round is: wait for a wake fd or the next due collector; collect; vet; publish and flush (or spool); only then
keep the collectors' positions. Killed anywhere, sources are read again from the kept positions, so records may
come twice and none is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from collectors import CATALOG, ENTRY_POINTS
from collectors.agent.delivery import Delivery
from collectors.agent.schedule import Task, Wait
from collectors.agent.self_watch import SelfWatch
from collectors.agent.spool import Spool
from collectors.agent.vetting import Vetting
from trainwarden import plugins
from trainwarden.bus.address import connect
from trainwarden.clock import Clock, SystemClock
from trainwarden.protocols import Bus, Collector, JsonObject, Scope
from trainwarden.records import EventRecord, MetricsRecord, Record
from trainwarden.self_metrics import SelfMetrics
from trainwarden.settings import Settings
from trainwarden.state import load_json, save_json
from trainwarden.topics import topic_of

log = logging.getLogger("trainwarden.agent")

POSITIONS = "agent-positions.json"
SPOOL = "spool"
_RECHECK_S = 60.0  # how often a source that was absent is looked for again (a driver loaded late)
_CLOCK_STEP_S = 1.0


class Agent:
    """Runs the collectors of the CATALOG, changed by what the settings say of single ones.

    Parameters
    ----------
    settings : Settings
        Job, node and `settings.agent`.
    bus_factory : callable
        Makes the bus; while it or the bus raises `BusUnavailable`, records wait on disk.
    clock : Clock
        Time of the records.
    metrics : SelfMetrics
        Where the agent counts its own work.
    state_dir : Path
        Positions and spool; must outlive the process.
    run_dir : Path
        The run folder (`trainwarden.rundir`).

    Raises
    ------
    ConfigError
        If a collector does not exist or its settings are wrong.
    """

    def __init__(
        self,
        settings: Settings,
        bus_factory: Callable[[], Bus],
        clock: Clock,
        metrics: SelfMetrics,
        *,
        state_dir: Path,
        run_dir: Path,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._scope = Scope(job=settings.job, node=settings.node, run_dir=str(run_dir))
        self._positions_path = state_dir / POSITIONS
        saved = load_json(self._positions_path)
        self._positions: dict[str, JsonObject] = saved if isinstance(saved, dict) else {}
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._spool = Spool(state_dir / SPOOL, settings.agent.spool_bytes)
        self._delivery = Delivery(
            bus_factory, self._spool, clock, metrics, key=settings.job, flush_timeout_s=settings.agent.flush_timeout_s
        )
        self._vetting = Vetting(metrics)
        self._watch = SelfWatch(self._scope, clock, metrics, self._delivery, self._vetting)
        wanted = plugins.chosen(CATALOG, ENTRY_POINTS, settings.agent.collectors)
        self._tasks = [self._task(name, raw) for name, raw in wanted.items()]
        self._wait = Wait(clock)
        self._clock_offset_s = clock.now_s() - clock.monotonic_s()
        self._closed = False

    def _task(self, name: str, raw: dict[str, Any]) -> Task:
        kind = plugins.load(CATALOG, ENTRY_POINTS, name)
        config = plugins.configure(kind, raw, f"agent.collectors.{name}")
        collector: Collector = kind(config, self._scope, self._clock)
        return Task(name, collector, due_s=self._clock.monotonic_s())

    def run(self, stop: Callable[[], bool]) -> None:
        """Collect until `stop()` is true, then once more, so that the last words of a job are not missed."""
        try:
            while not stop():
                self._wait.wait(self._tasks)
                self.step()
            for task in self._tasks:
                task.due_s = self._clock.monotonic_s()
            self.step()
        finally:
            self.close()

    def step(self) -> None:
        """One round over everything that is due or awake now, without waiting."""
        now_s = self._clock.monotonic_s()
        records: list[Record] = list(self._clock_step())
        ran = [task for task in self._tasks if task.is_due(now_s)]
        for task in ran:
            records.extend(self._collect(task))
        records.extend(self._watch.records(self._tasks))
        self._delivery.drain()
        vetted = [kept for record in records if (kept := self._vet(record)) is not None]
        if vetted:
            self._delivery.send(vetted)
        self._keep_positions(ran)

    def close(self) -> None:
        """Close collectors, bus and spool. Safe twice."""
        if self._closed:
            return
        self._closed = True
        for task in self._tasks:
            task.collector.close()
        self._delivery.close()

    def _collect(self, task: Task) -> list[Record]:
        """What the task's collector has now. The one place of the agent where a collector's errors are caught."""
        start_s = self._clock.monotonic_s()
        records: list[Record] = []
        try:
            if not task.started and (absent := self._start(task)) is not None:
                return absent
            for record in task.collector.collect(self._clock.now_s()):
                topic_of(record)
                records.append(record)
            interval_s = task.collector.interval_s
            task.wake_fds = tuple(task.collector.wake_fds())
        except Exception as error:  # noqa: BLE001 - a plug-in of anybody's may raise anything; the others must go on
            self._metrics.count("collector_errors_total", "Failed collections.", collector=task.name)
            if task.failed(self._clock.monotonic_s()):
                fields = {"collector": task.name, "error": f"{type(error).__name__}: {error}"}
                log.warning("collector fails", extra={"fields": fields})
            return records
        end_s = self._clock.monotonic_s()
        if task.succeeded(start_s, end_s, interval_s):
            log.info("collector works again", extra={"fields": {"collector": task.name}})
        self._metrics.count("collect_seconds_total", "Time spent collecting.", end_s - start_s, collector=task.name)
        return records

    def _start(self, task: Task) -> list[Record] | None:
        """Begin with a source: None if it is there, else the records that say that it is not."""
        reason = task.collector.supported()
        if reason is None:
            # Taken out first: a position that the collector cannot go on from makes it fail once, not for ever.
            position = self._positions.pop(task.name, None)
            if isinstance(position, dict):
                task.collector.restore(position)
            log.info("collector runs", extra={"fields": {"collector": task.name}})
            task.started = True
            return None
        task.due_s = self._clock.monotonic_s() + _RECHECK_S
        if task.absent_reason == reason:
            return []
        task.absent_reason = reason
        log.info("collector skipped", extra={"fields": {"collector": task.name, "reason": reason}})
        event = EventRecord(
            id=f"collector_unsupported/{self._scope.node}/{task.name}",
            job=self._scope.job,
            node=self._scope.node,
            time_s=self._clock.now_s(),
            kind="collector_unsupported",
            message=reason,
            fields={"collector": task.name},
        )
        return [event]

    def _vet(self, record: Record) -> Record | None:
        return self._vetting.vet(record) if isinstance(record, MetricsRecord) else record

    def _clock_step(self) -> Iterable[Record]:
        """An event if the wall clock has jumped against the monotonic one since the last round."""
        offset_s = self._clock.now_s() - self._clock.monotonic_s()
        step_s = offset_s - self._clock_offset_s
        self._clock_offset_s = offset_s
        if abs(step_s) < _CLOCK_STEP_S:
            return
        now_s = self._clock.now_s()
        yield EventRecord(
            id=f"clock_step/{self._scope.node}/{now_s * 1000:.0f}",
            job=self._scope.job,
            node=self._scope.node,
            time_s=now_s,
            kind="clock_step",
            message=f"the wall clock jumped by {step_s:.3f} s",
            fields={"step_s": round(step_s, 6)},
        )

    def _keep_positions(self, ran: Iterable[Task]) -> None:
        """Write positions down, now that bus or spool has what was read up to them."""
        changed = False
        for task in ran:
            if task.started and not task.failures:
                position = task.collector.position()
                if position != self._positions.get(task.name, {}):
                    self._positions[task.name] = position
                    changed = True
        if changed:
            save_json(self._positions_path, self._positions, durable=False)


def serve(settings: Settings, run_dir: Path, state_dir: Path, stop: Callable[[], bool]) -> None:
    """The agent as a service: until `stop()`, with its metrics on `settings.agent.metrics_port` if set.

    Raises
    ------
    ConfigError
        If the settings name a collector or a bus that does not exist.
    """
    metrics = SelfMetrics("agent")
    if settings.agent.metrics_port is not None:
        port = metrics.serve(settings.agent.metrics_port, settings.metrics_address)
        log.info("metrics served", extra={"fields": {"port": port}})
    clock = SystemClock()
    bus_factory = partial(connect, settings.bus, settings.kafka, limit_bytes=settings.runs.bus_bytes)
    agent = Agent(settings, bus_factory, clock, metrics, state_dir=state_dir, run_dir=run_dir)
    agent.run(stop)
