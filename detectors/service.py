"""The detection service: records in, verdicts and incidents out, one memory and one set of detectors per job."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from trainwarden.bus import address as buses
from trainwarden.clock import Clock, SystemClock
from trainwarden.detectors.configured_detectors import asked_for, checked, rule
from trainwarden.detectors.detector_runner import MAX_WHY_CHARS, pipeline_incident
from trainwarden.detectors.job.clocks import BusClock
from trainwarden.detectors.job_monitor import JobMonitor
from trainwarden.detectors.metrics.shadow import told
from trainwarden.detectors.metrics.source import ModelPoller, ModelSource
from trainwarden.detectors.own_models.learner import Learner
from trainwarden.detectors.replay_tracker import ReplayTracker
from trainwarden.detectors.served_models import ServedModels
from trainwarden.detectors.snapshot_manager import SnapshotManager
from trainwarden.detectors.verdict.incidents import IncidentTracker
from trainwarden.metrics_http.server import serve_metrics
from trainwarden.protocols import Bus, Consumer, Message
from trainwarden.records import EventRecord, IncidentRecord
from trainwarden.self_metrics import SelfMetrics
from trainwarden.service_loop import Output, ServiceLoop, dead_letter_of
from trainwarden.settings import DetectionSettings, Settings
from trainwarden.topics import COLLECTIVES, EVENTS, HEARTBEATS, INCIDENTS, ITERATIONS, LOGS, METRICS, Topic

log = logging.getLogger("trainwarden.detection")

URGENT: Final = frozenset({
    "process_exit", "exception", "fatal_signal", "xid", "link_down", "fabric_down", "device_lost", "heartbeat_lost",
    "job_end", "transition",
})  # fmt: skip
ATTENTIVE_S: Final = 3.0  # after a hard event a job is judged at every tick for this long: cascades, roots, words
STALL_S: Final = 0.3  # no sign of progress for this long: judge at every tick, a hang may be under way
MAX_TICK_S: Final = 0.5  # longer gaps between ticks are our own stalls and say nothing about nodes
ASIDE_S: Final = 60.0  # after a defect in judging it a job is begun anew, with what comes then


def _of_models(message: Message) -> bool:
    """Whether it is about models changing hands, which is no fact of a job."""
    return isinstance(message.record, EventRecord) and message.record.kind == "model"


class DetectionHandler:
    """Handler of the detection service for `trainwarden.service_loop.ServiceLoop`.

    Parameters
    ----------
    settings : DetectionSettings
        Which detectors run, with which settings, and the ensemble's rule.
    clock : Clock
        Wall time, for time-outs only; windows go by event time.
    metrics : SelfMetrics
        Counters and gauges of the service.
    follower : ModelFollower, optional
        Brings models while the service runs; without it they are those of the folder `settings.models`.

    Raises
    ------
    ConfigError
        If a detector does not exist or a setting is wrong.
    """

    topics: Sequence[Topic[Any]] = (METRICS, ITERATIONS, HEARTBEATS, COLLECTIVES, LOGS, EVENTS)
    group = "detection"

    def __init__(
        self,
        settings: DetectionSettings,
        clock: Clock,
        metrics: SelfMetrics,
        follower: ModelPoller | None = None,
    ) -> None:
        self._settings = settings
        self._clock = BusClock(clock)
        self._metrics = metrics
        self._config = rule(settings)
        self._chosen = checked(settings)
        self.models = ServedModels(settings.models, follower, metrics, asked_for(settings))
        self._jobs: dict[str, JobMonitor] = {}
        self._past: dict[str, list[IncidentRecord]] = {}
        self._past_since_s = 0.0
        self._reading = ReplayTracker()
        self._keeper = SnapshotManager(self._clock, metrics, self._reading, self._made)
        self._consumer: Consumer | None = None
        self._last_tick_s: float | None = None
        self._aside_until_s: dict[str, float] = {}
        self._dead: list[Output] = []
        self._whole = True  # what follows from all that was handled has been handed over
        for name in (*self._chosen, "job"):
            metrics.count("set_aside_total", "Detectors and jobs set aside after a defect.", 0, what=name)
        for name in (*self._chosen, "models"):
            metrics.count("detector_errors_total", "Windows that a detector could not score.", 0, detector=name)

    def start(self, bus: Bus, consumer: Consumer) -> None:
        """Let go of jobs whose partition is another's now; for those that came, go on from their snapshots.

        What the group had handled after a snapshot, or in the last `rewind_s` where there is none, is read again
        silently; what it has missed, from the first record where it has committed nothing, is told late.
        """
        committed = dict(consumer.committed())
        if not self._whole:
            self._reading.forget()
        kept, gained = self._reading.take_over(consumer.assignment(), committed)
        self._consumer, self._last_tick_s = consumer, None
        if not kept and not gained:
            return  # between two assignments
        for job, watch in list(self._jobs.items()):
            if watch.partition not in kept:
                del self._jobs[job]
                self._keeper.drop(job)
        self._take_back(bus)
        watches, offsets = self._keeper.restore_jobs(bus, kept, gained, committed)
        self._jobs |= watches
        for job in self._jobs.keys() & self._past.keys():  # another member may have judged it in between
            for record in self._past.pop(job):
                self._jobs[job].joiner.resume(record)
        if gained:
            consumer.seek_to_time(self._clock.now_s() - self._settings.rewind_s)
        # Where nobody has committed nobody has handled anything: that is read from its first record, however old.
        unread = {place: 0 for place in consumer.assignment() if place[1] in gained and place not in committed}
        consumer.seek(self._reading.places(kept) | offsets | unread)
        self._reading.catch_up(gained, committed, consumer)
        self._whole = True

    def _take_back(self, bus: Bus) -> None:
        """Take up what is on the bus about jobs of this member: the newest revision of each incident."""
        now_s = self._clock.now_s()
        newest: dict[str, tuple[int, IncidentRecord]] = {}
        for message in bus.read(INCIDENTS, from_time_s=now_s - 7 * 86_400.0):
            record = message.record
            if isinstance(record, IncidentRecord):
                known = newest.get(record.id)
                if known is None or record.revision >= known[1].revision:
                    newest[record.id] = (message.partition, record)
        self._past, self._past_since_s, self._aside_until_s = {}, now_s, {}
        for partition, record in newest.values():
            if partition in self._reading.assigned:
                self._past.setdefault(record.job, []).append(record)

    def handle(self, messages: Sequence[Message]) -> Iterable[Output]:
        """Apply messages; a job with a hard event is judged at once."""
        self._whole = False
        urgent: dict[str, None] = {}
        outputs: list[Output] = []
        for message in messages:
            standing = self._reading.standing(message)
            at_s, set_s = self._clock.observe(message) if standing == "live" else (message.time_s, 0.0)
            for watch in self._jobs.values() if set_s > 0.0 else ():
                watch.state.clocks.bus_set(set_s)
            if self._keeper.has(message) or _of_models(message):
                continue
            is_urgent = self._ingest(message, at_s, told=standing == "old")
            if message.key in self._jobs:
                self._keeper.observe(message)
            if standing != "live":
                outputs.extend(self._follow(message, is_urgent, live=standing == "late"))
            elif is_urgent:
                urgent[message.key] = None
        now_s = self._clock.now_s()
        for watch in [self._jobs[job] for job in urgent if job in self._jobs]:
            watch.attentive_until_s = now_s + ATTENTIVE_S
            outputs.extend(self._judged(watch, now_s))
        self._whole = True
        return outputs + self._take_dead()

    def tick(self, now_s: float) -> Iterable[Output]:
        """Judge the jobs that are due, and forget those that are over."""
        whole, self._whole = self._whole, False
        outputs = self._ticked(now_s)
        self._whole = whole
        return outputs

    def _ticked(self, now_s: float) -> list[Output]:
        self.models.swap(self._jobs.values())
        if self._consumer is not None and self._reading.caught_up(self._consumer):
            return self._caught_up()
        if not self._reading.assigned:
            return []
        outputs: list[Output] = []
        elapsed_s = 0.0 if self._last_tick_s is None else min(max(now_s - self._last_tick_s, 0.0), MAX_TICK_S)
        self._last_tick_s, now_s = now_s, self._clock.now_s()
        live = {job: watch for job, watch in self._jobs.items() if watch.partition not in self._reading.catching}
        for job, watch in live.items():
            watch.state.count_silence(elapsed_s)
            attentive = now_s < watch.attentive_until_s or watch.state.quiet_s > STALL_S
            since_s = now_s - watch.last_window_s
            if attentive or since_s >= self._config.window_every_s - 1e-3 or since_s < 0:
                outputs.extend(self._judged(watch, now_s))
            if now_s - watch.heard_s > self._config.forget_s:
                outputs.extend((job, record) for record in watch.joiner.end(now_s))
                outputs.extend(self._keeper.over(watch))
                self._jobs.pop(job, None)
        outputs.extend(self._end_past(now_s))
        self._gauges()
        return outputs + self._keeper.poll({job: watch for job, watch in live.items() if job in self._jobs})

    # -- internals -------------------------------------------------------------------------------------------

    def _made(self, job: str) -> JobMonitor:
        """A watch of `job` that remembers nothing yet."""
        detectors = {name: choice.made() for name, choice in self._chosen.items()}
        return self.models.watched(job, detectors, self._config)

    def _ingest(self, message: Message, at_s: float, *, told: bool) -> bool:
        """Feed what came at `at_s`; True if it should be judged at once. `told`: the group has handled it before."""
        if at_s < self._aside_until_s.get(message.key, 0.0):
            self._metrics.count("records_aside_total", "Records of jobs that are set aside.")
            return False
        self._aside_until_s.pop(message.key, None)
        watch = self._jobs.get(message.key)
        if watch is None:
            watch = self._jobs[message.key] = self._made(message.key)
            for record in self._past.pop(message.key, []):
                watch.joiner.resume(record)
        try:
            watch.state.feed(message.record, at_s)
        except Exception as error:
            self._metrics.count("errors_total", "Records that broke what they were fed to.", kind=type(error).__name__)
            log.exception("record refused", extra={"fields": {"job": message.key, "topic": message.topic}})
            if not told:  # else whoever handled it has said so
                self._dead.append((message.topic, dead_letter_of(message, error)))
        watch.heard_s, watch.partition = max(watch.heard_s, at_s), message.partition
        return isinstance(message.record, EventRecord) and message.record.kind in URGENT

    def _follow(self, message: Message, urgent: bool, *, live: bool) -> list[Output]:
        """Judge a job that is being caught up with, in event time, if it is due after `message`."""
        watch = self._jobs.get(message.key)
        if watch is None:
            return []  # its job is set aside
        if urgent:
            watch.attentive_until_s = message.time_s + ATTENTIVE_S
        every_s = 0.1 if message.time_s < watch.attentive_until_s else self._config.window_every_s
        if not urgent and 0.0 <= message.time_s - watch.last_window_s < every_s:
            return []
        late_s = self._clock.now_s() - message.time_s
        return [
            (job, watch.joiner.told_late(record, late_s) if isinstance(record, IncidentRecord) else record)
            for job, record in self._judged(watch, message.time_s, live=live)
        ]

    def _caught_up(self) -> list[Output]:
        """From now on everything is live; what was found in what is old and nobody has told is told now."""
        self._keeper.caught_up()
        log.info("memory rebuilt", extra={"fields": {"jobs": len(self._jobs)}})
        return [(job, record) for job, watch in self._jobs.items() for record in watch.joiner.unpublished()]

    def _judged(self, watch: JobMonitor, now_s: float, *, live: bool = True) -> list[Output]:
        """One window of one job. The one place where a defect in judging it ends at the job."""
        job = watch.state.job
        try:
            return [(job, record) for record in watch.score(now_s, live=live)]
        except Exception as error:
            self._metrics.count("set_aside_total", "Detectors and jobs set aside after a defect.", what="job")
            log.exception("job set aside", extra={"fields": {"job": job}})
            self._jobs.pop(job, None)
            over = self._keeper.over(watch)  # what was kept of it may hold the defect
            self._aside_until_s[job] = now_s + ASIDE_S
            why = f"the job cannot be judged for {ASIDE_S:.0f} s: {type(error).__name__}: {error}"[:MAX_WHY_CHARS]
            incident = pipeline_incident(job, "job", now_s, why)
            known = watch.joiner.tells(incident)
            self._past[job] = [*watch.joiner.published, *(() if known else (incident,))]  # for whoever judges it anew
            return over if known else [(job, incident), *over]

    def _end_past(self, now_s: float) -> Iterable[Output]:
        """Close what is open of jobs that nobody hears of: since they were set aside, or since this member began."""
        for job in list(self._past):
            if now_s - self._aside_until_s.get(job, self._past_since_s) > self._config.forget_s:
                self._aside_until_s.pop(job, None)
                joiner = IncidentTracker(job, self._config)
                for record in self._past.pop(job, []):
                    joiner.resume(record)
                yield from ((job, record) for record in joiner.end(now_s))

    def _take_dead(self) -> list[Output]:
        dead, self._dead = self._dead, []
        return dead

    def _gauges(self) -> None:
        self._metrics.gauge("jobs", "Jobs watched.", len(self._jobs))
        self._metrics.gauge("incidents_open", "Incidents open.", sum(len(it.joiner.open) for it in self._jobs.values()))


def serve(settings: Settings, stop: Callable[[], bool], source: ModelSource | None = None) -> None:
    """Run the detection service until `stop()` is true.

    Parameters
    ----------
    source : ModelSource, optional
        Where models come from while the service runs; without it, the folder `settings.detection.models`.

    Raises
    ------
    ConfigError, BusUnavailable
        If a setting is wrong; if the bus cannot be opened at all.
    """
    metrics = SelfMetrics("detector")
    follower = None if source is None else ModelPoller(source, settings.detection.models_every_s, told(metrics))
    handler = DetectionHandler(settings.detection, SystemClock(), metrics, follower)
    if settings.detection.own_models:
        handler.models.learn = Learner().learn
    serve_metrics(metrics, settings.detection.metrics_port, settings)
    connection = buses.connect(settings.bus, settings.kafka, limit_bytes=settings.runs.bus_bytes)
    if follower is not None:
        follower.start()
    try:
        ServiceLoop(connection, handler, SystemClock(), metrics).run(stop)
    finally:
        if follower is not None:
            follower.close()
        connection.close()
