"""The node agent: collectors read their sources in time, each lane of them in a thread, and records go to the bus.

A round is: let the collectors that are due read; vet; publish and flush (or spool); only then keep the collectors'
positions. Killed anywhere, sources are read again from the kept positions, so records may come twice and none is
lost. Heartbeats have a lane of their own, and a way past a delivery that does not come back.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from trainwarden import plugins
from trainwarden.bus.address import connect
from trainwarden.clock import Clock, SystemClock
from trainwarden.collectors import CATALOG, ENTRY_POINTS
from trainwarden.collectors.agent.collector_runner import Batch, CollectorRunner
from trainwarden.collectors.agent.collector_thread import CollectorThread
from trainwarden.collectors.agent.delivery import Delivery
from trainwarden.collectors.agent.gpu_values import GpuValues
from trainwarden.collectors.agent.listener import Listener
from trainwarden.collectors.agent.schedule import Task
from trainwarden.collectors.agent.self_watch import SelfWatch
from trainwarden.collectors.agent.spool import Spool
from trainwarden.collectors.agent.validation import MetricsValidator
from trainwarden.metrics_http.server import serve_metrics
from trainwarden.protocols import Bus, Collector, JsonObject, Scope
from trainwarden.records import EventRecord, HeartbeatRecord, MetricsRecord, Record
from trainwarden.self_metrics import SelfMetrics
from trainwarden.settings import Settings
from trainwarden.state import load_json, save_json

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
