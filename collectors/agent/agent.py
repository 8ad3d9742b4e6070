"""The node agent: collectors read their sources in time, each lane of them in a thread, and records go to the bus.

A round is: let the collectors that are due read; vet; publish and flush (or spool); only then keep the collectors'
positions. Killed anywhere, sources are read again from the kept positions, so records may come twice and none is
lost. Heartbeats have a lane of their own, and a way past a delivery that does not come back.

The newest values of this node's GPUs, under the names of dcgm-exporter where they are the same thing.

Dashboards and rules that are made for dcgm-exporter work on a node where only the agent runs. What the agent counts of
itself has names of its own.

What the agent costs and loses, published like any other metric.

What the agent lets through: metrics that the catalogue knows, finite and possible; the rest is counted.
"""

from __future__ import annotations

import logging
import math
import os
import resource
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from prometheus_client import Metric

from trainwarden import plugins
from trainwarden.bus.address import connect
from trainwarden.catalogue import CATALOGUE
from trainwarden.clock import Clock, SystemClock
from trainwarden.collectors import CATALOG, ENTRY_POINTS
from trainwarden.collectors.agent.collector_runner import Batch, CollectorRunner
from trainwarden.collectors.agent.collector_thread import CollectorThread
from trainwarden.collectors.agent.delivery import Delivery
from trainwarden.collectors.agent.listener import Listener
from trainwarden.collectors.agent.schedule import Task
from trainwarden.collectors.agent.spool import Spool
from trainwarden.metrics_http.server import serve_metrics
from trainwarden.protocols import Bus, Collector, JsonObject, Scope
from trainwarden.records import EventRecord, HeartbeatRecord, MetricsRecord, Record
from trainwarden.self_metrics import SelfMetrics
from trainwarden.settings import Settings
from trainwarden.state import load_json, save_json


class MetricsValidator:
    """Checks metrics records against the catalogue.

    Examples
    --------
    >>> vetting = MetricsValidator(SelfMetrics("agent"))
    >>> record = MetricsRecord(job="j", node="n", time_s=1.0, devices=("GPU-0",),
    ...     names=("gpu_temperature_celsius", "made_up"), values=((float("nan"),), (1.0,)))
    >>> vetting.vet(record) is None, vetting.dropped
    (True, 2)
    """

    def __init__(self, metrics: SelfMetrics) -> None:
        self._metrics = metrics
        self.dropped = 0

    def vet(self, record: MetricsRecord) -> MetricsRecord | None:
        """`record` without unknown names and impossible values; None if nothing is left."""
        devices = len(record.devices)
        if len(record.names) != len(record.values) or any(len(row) != devices for row in record.values):
            self._drop(max(1, len(record.names)), "shape")
            return None
        names: list[str] = []
        rows: list[tuple[float | None, ...]] = []
        changed = False
        for name, row in zip(record.names, record.values, strict=True):
            metric = CATALOGUE.get(name)
            if metric is None:
                self._drop(devices, "unknown_name")
                changed = True
                continue
            low = -math.inf if metric.low is None else metric.low
            high = math.inf if metric.high is None else metric.high
            checked = row
            if not _all_pass(row, low, high):
                changed = True
                checked = tuple(self._checked(value, low, high) for value in row)
                if not any(value is not None for value in checked):
                    continue
            names.append(name)
            rows.append(checked)
        if not names:
            return None
        return msgspec.structs.replace(record, names=tuple(names), values=tuple(rows)) if changed else record

    def _checked(self, value: float | None, low: float, high: float) -> float | None:
        if value is None or (low <= value <= high and math.isfinite(value)):
            return value
        self._drop(1, "out_of_bounds" if math.isfinite(value) else "not_finite")
        return None

    def _drop(self, values: int, why: str) -> None:
        self.dropped += values
        self._metrics.count("dropped_values_total", "Metric values dropped.", values, why=why)


def _all_pass(row: tuple[float | None, ...], low: float, high: float) -> bool:
    """True if something was measured and all of it is finite and possible, which nearly every row is."""
    measured: Sequence[float] = [value for value in row if value is not None] if None in row else row  # type: ignore[assignment]
    # A sum is finite only if all its parts are.
    return bool(measured) and math.isfinite(sum(measured)) and low <= min(measured) and max(measured) <= high


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


NAMES: Final = {
    metric.name: (alias, metric.scale_of(alias), metric.kind, metric.meaning)
    for metric in CATALOGUE.values()
    if metric.per == "gpu"
    for alias in metric.aliases[:1]
    if alias.startswith("DCGM_FI_")  # DCGM_EXP_* are the exporter's own counts, over its own windows
}
"""Alias, its scale, kind and meaning, by our name."""
HOLD_S: Final = 60.0
_TURNS: Final = 20.0  # slow readings are made every ten turns, GPUs taking turns


class GpuValues:
    """What `SelfMetrics.register_families` asks at each scrape.

    Parameters
    ----------
    hostname : str
        The node.
    clock : Clock
        A value that nobody has told again for a minute (or for twenty turns of a slower collector) is told no more.
    index_of : callable
        The number of a device by its name; None if nobody knows it.
    """

    def __init__(self, hostname: str, clock: Clock, index_of: Callable[[str], int | None]) -> None:
        self._hostname, self._clock, self._index_of = hostname, clock, index_of
        self._lock = threading.Lock()
        self._values: dict[tuple[str, str], tuple[float, float]] = {}  # name, device -> value, when it came
        self._indices: dict[str, str] = {}
        self._last_s: float | None = None
        self._hold_s = HOLD_S

    def observe(self, records: Iterable[Record]) -> None:
        """Keep what `records` say of GPUs."""
        for record in records:
            if isinstance(record, MetricsRecord) and any(name in NAMES for name in record.names):
                self._keep(record)

    def _keep(self, record: MetricsRecord) -> None:
        now_s = self._clock.monotonic_s()
        with self._lock:
            if self._last_s is not None:
                self._hold_s = max(HOLD_S, _TURNS * (now_s - self._last_s))
            self._last_s = now_s
            for device in record.devices:
                if (index := self._index_of(device)) is not None:
                    self._indices[device] = str(index)
            for name, row in zip(record.names, record.values, strict=True):
                if name in NAMES:
                    fresh = zip(record.devices, row, strict=True)
                    self._values |= {(name, device): (value, now_s) for device, value in fresh if value is not None}

    def families(self) -> Iterable[Metric]:
        """A family for each name that is known, a sample for each GPU."""
        with self._lock:
            since_s = self._clock.monotonic_s() - self._hold_s
            self._values = {key: kept for key, kept in self._values.items() if kept[1] >= since_s}
            values, indices = dict(self._values), dict(self._indices)
        told: dict[str, Metric] = {}
        for (name, device), (value, _) in sorted(values.items()):
            alias, scale, kind, meaning = NAMES[name]
            # Their counters have no "_total", which a counter here would get.
            family = told.setdefault(name, Metric(alias, meaning, "gauge" if kind == "gauge" else "unknown"))
            uuid, _, instance = device.partition("/")  # of MIG
            labels = {"gpu": indices.get(device, ""), "UUID": uuid, "hostname": self._hostname}
            if instance:
                labels["GPU_I_ID"] = instance
            family.add_sample(alias, labels, value / scale)
        return told.values()


log = logging.getLogger("trainwarden.agent")

POSITIONS = "agent-positions.json"
SPOOL = "spool"
_CLOCK_STEP_S = 1.0
_DELIVER_S = 0.2  # what heartbeats bring waits so long at most; facts go at once
_ROUND_S = 1.0  # a step of the clock is noticed within this time though nobody has a turn
_KEEP_S = 1.0  # how old kept positions may be where no fact was read: a kill has so much read and sent again
_LOOK_S = 0.4  # a request to stop, and a collector that is stuck, are noticed within this time
_FINISH_S = 10.0  # longest wait for the last round


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
        self._vetting = MetricsValidator(metrics)
        self._watch = SelfWatch(self._scope, clock, metrics, self._delivery, self._vetting)
        wanted = plugins.chosen(CATALOG, ENTRY_POINTS, settings.agent.collectors)
        self._tasks = [self._task(name, raw) for name, raw in wanted.items()]
        self._hearers: list[Any] = [one.collector for one in self._tasks if hasattr(one.collector, "ask")]
        self._listener = Listener(bus_factory, settings.job, settings.node)
        metrics.count("sampling_requests_total", "Requests of detectors for denser samples that were heard.", 0)
        self._gpu_values = GpuValues(settings.node, clock, self._device_index)
        metrics.register_families(self._gpu_values.families)
        self._brought: deque[Batch] = deque()
        self._idle = threading.Event()
        turn = CollectorRunner(self._scope, clock, metrics, dict(self._positions))
        beats = [task for task in self._tasks if getattr(task.collector, "heartbeats", False)]
        others = [task for task in self._tasks if task not in beats]
        # Delivery has no thread of its own: every wake-up of a thread costs as much as some collectors do.
        self._others = CollectorThread("collectors", others, turn, self._brought.append, clock=clock, metrics=metrics)
        self._others.after(self.deliver, _DELIVER_S)
        self.lanes = [self._others]
        if beats:
            first = CollectorThread("heartbeats", beats, turn, self._take_beats, clock=clock, metrics=metrics)
            self.lanes.insert(0, first)
        self._clock_offset_s = clock.now_s() - clock.monotonic_s()
        self._positions_failed = False
        self._positions_changed = False
        self._positions_kept_s = self._round_due_s = float("-inf")
        self._closed = False

    def _task(self, name: str, raw: dict[str, Any]) -> Task:
        kind = plugins.load(CATALOG, ENTRY_POINTS, name)
        config = plugins.configure(kind, raw, f"agent.collectors.{name}")
        collector: Collector = kind(config, self._scope, self._clock)
        self._metrics.count("collector_errors_total", "Failed collections.", 0, collector=name)
        return Task(name, collector, due_s=self._clock.monotonic_s())

    def _device_index(self, device: str) -> int | None:
        """A device's number, of the collector that knows it."""
        asked = [getattr(task.collector, "device_index", None) for task in self._tasks]
        return next((index for ask in asked if ask is not None and (index := ask(device)) is not None), None)

    def run(self, stop: Callable[[], bool]) -> None:
        """Collect until `stop()` is true, then once more, so that the last words of a job are not missed."""
        try:
            for lane in self.lanes:
                lane.start()
            while not stop():
                self._idle.wait(_LOOK_S)
                for lane in self.lanes:
                    lane.look_after(self._settings.agent.collect_deadline_s)
            until_s = self._clock.monotonic_s() + _FINISH_S
            for lane in self.lanes:  # the one that delivers comes last
                lane.finish()
                while lane.join(_LOOK_S) and self._clock.monotonic_s() < until_s:
                    lane.look_after(self._settings.agent.collect_deadline_s)
        finally:
            self.close()

    def step(self) -> None:
        """One round over everything that is due or awake now, without waiting and in this thread."""
        for lane in self.lanes:
            lane.step()

    def deliver(self) -> None:
        """Bring what the lanes have brought onto the bus or the disk, then keep the positions behind it."""
        self._hear()
        now_s = self._clock.monotonic_s()
        if not self._brought and not self._delivery.behind and now_s < self._round_due_s:
            return  # a tick at which nobody had a turn
        self._round_due_s = now_s + _ROUND_S
        batches = [self._brought.popleft() for _ in range(len(self._brought))]
        records = [*self._clock_step(), *(record for batch in batches for record in batch.records)]
        records.extend(self._watch.records(self._tasks))
        self._delivery.drain()
        vetted = [kept for record in records if (kept := self._vet(record)) is not None]
        if self._settings.agent.metrics_port is not None:  # else nobody can ask for them
            self._gpu_values.observe(vetted)
        if vetted:
            self._delivery.send(vetted)
        self._keep_positions(batches)
        self._metrics.round_ended(self._clock.now_s(), bus_answers=not self._delivery.away)

    def close(self) -> None:
        """Close collectors, bus and spool. Safe twice."""
        if self._closed:
            return
        self._closed = True
        self._listener.close()
        for lane in self.lanes:
            lane.close()
        if self._positions_changed:
            self._write_positions()
        self._delivery.close()

    def _hear(self) -> None:
        """Hand detectors' requests to the collectors that grant them; nobody listens before one of them would."""
        hearers = [one for one in self._hearers if one.listens]
        if hearers:
            self._listener.start()
        for request in self._listener.pop_new():
            self._metrics.count("sampling_requests_total", "Requests of detectors for denser samples that were heard.")
            for hearer in hearers:
                hearer.ask(request)

    def _take_beats(self, batch: Batch) -> None:
        """Keep `batch` for delivery, but heartbeats that can overtake one that is stuck; a fact goes at once."""
        kept = [it for it in batch.records if not (isinstance(it, HeartbeatRecord) and self._delivery.overtake(it))]
        self._brought.append(batch._replace(records=kept))
        if any(isinstance(it, EventRecord) for it in kept):
            self._others.wait.wake()

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

    def _keep_positions(self, batches: Iterable[Batch]) -> None:
        """Write down, at once behind a fact and else seldom, positions up to which bus or spool has what was read."""
        at_once = self._positions_failed
        for name, records, position in batches:
            if position is not None and position != self._positions.get(name, {}):
                self._positions[name] = position
                self._positions_changed = True
            # A line or a step that comes twice is known by its place; of a fact it may be the number kept here.
            at_once = at_once or any(isinstance(record, EventRecord) for record in records)
        if self._positions_changed and (at_once or self._clock.monotonic_s() - self._positions_kept_s >= _KEEP_S):
            self._write_positions()

    def _write_positions(self) -> None:
        self._positions_kept_s = self._clock.monotonic_s()
        try:
            save_json(self._positions_path, self._positions, durable=False)
            self._positions_failed = self._positions_changed = False
        except OSError as error:  # sources are read again after a restart; until then all goes on
            if not self._positions_failed:
                log.error("positions cannot be kept", extra={"fields": {"error": str(error)}})
            self._positions_failed = True


def serve(settings: Settings, run_dir: Path, state_dir: Path, stop: Callable[[], bool]) -> None:
    """The agent as a service: until `stop()`, with its metrics on `settings.agent.metrics_port` if set.

    Raises
    ------
    ConfigError
        If the settings name a collector or a bus that does not exist.
    """
    metrics = SelfMetrics("agent")
    serve_metrics(metrics, settings.agent.metrics_port, settings)
    clock = SystemClock()
    bus_factory = partial(connect, settings.bus, settings.kafka, limit_bytes=settings.runs.bus_bytes)
    agent = Agent(settings, bus_factory, clock, metrics, state_dir=state_dir, run_dir=run_dir)
    agent.run(stop)
