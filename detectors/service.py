"""The detection service: records in, verdicts and incidents out, one memory and one set of detectors per job."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from detectors.barrier import MAX_WHY_CHARS, pipeline_incident
from detectors.choice import chosen, rule
from detectors.job_watch import JobWatch
from detectors.metrics.bundle.bundle import ModelBundle
from detectors.metrics.shadow import show_versions, told
from detectors.metrics.source import ModelFollower, ModelSource
from detectors.verdict.incidents import Joiner
from trainwarden.bus import address as buses
from trainwarden.clock import Clock, SystemClock
from trainwarden.errors import ConfigError, DetectorError
from trainwarden.protocols import Bus, Consumer, Message
from trainwarden.records import EventRecord, IncidentRecord
from trainwarden.self_metrics import SelfMetrics
from trainwarden.service_loop import Output, ServiceLoop, letter_of
from trainwarden.settings import DetectionSettings, Settings
from trainwarden.topics import EVENTS, HEARTBEATS, INCIDENTS, ITERATIONS, LOGS, METRICS, Topic

log = logging.getLogger("trainwarden.detection")

URGENT: Final = frozenset(
    {"process_exit", "exception", "fatal_signal", "xid", "link_down", "device_lost", "heartbeat_lost", "job_end"}
)
ATTENTIVE_S: Final = 3.0  # after a hard event a job is judged at every tick for this long: cascades, roots, words
STALL_S: Final = 0.3  # no sign of progress for this long: judge at every tick, a hang may be under way
MAX_TICK_S: Final = 0.5  # longer gaps between ticks are our own stalls and say nothing about nodes
ASIDE_S: Final = 60.0  # after a defect in judging it a job is begun anew, with what comes then
MAX_HELD: Final = 2_000_000  # messages held while the log is read again


def _of_models(message: Message) -> bool:
    """Whether it is about models changing hands, which is no fact of a job."""
    return isinstance(message.record, EventRecord) and message.record.kind == "model"


def _bundle(models: str | None) -> ModelBundle | None:
    """The models that the settings name."""
    if models is None:
        return None
    try:
        return ModelBundle.load(Path(models))
    except DetectorError as error:
        raise ConfigError(f"detection.models: {error}") from error


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

    topics: Sequence[Topic[Any]] = (METRICS, ITERATIONS, HEARTBEATS, LOGS, EVENTS)
    group = "detection"

    def __init__(
        self,
        settings: DetectionSettings,
        clock: Clock,
        metrics: SelfMetrics,
        follower: ModelFollower | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._config = rule(settings)
        self._chosen = chosen(settings)
        self._follower = follower
        self._bundle = _bundle(settings.models) if follower is None else None
        self._challenger: ModelBundle | None = None
        self._jobs: dict[str, JobWatch] = {}
        self._past: dict[str, list[IncidentRecord]] = {}
        self._handled: dict[tuple[str, int], int] = {}
        self._held: list[Message] = []
        self._consumer: Consumer | None = None
        self._rereading = False
        self._last_tick_s: float | None = None
        self._aside_until_s: dict[str, float] = {}
        self._dead: list[Output] = []

    def start(self, bus: Bus, consumer: Consumer) -> None:
        """Read the last `rewind_s` again to rebuild memory; what is on the bus already is not told again."""
        self._jobs, self._held, self._past = {}, [], {}
        newest: dict[str, IncidentRecord] = {}
        for message in bus.read(INCIDENTS, from_time_s=self._clock.now_s() - 7 * 86_400.0):
            if isinstance(message.record, IncidentRecord):
                known = newest.get(message.record.id)
                if known is None or message.record.revision >= known.revision:
                    newest[message.record.id] = message.record
        for record in newest.values():
            self._past.setdefault(record.job, []).append(record)
        self._handled = dict(consumer.committed())
        consumer.seek_to_time(self._clock.now_s() - self._settings.rewind_s)
        self._consumer = consumer
        self._rereading = any(offset > 0 for offset in self._handled.values())
        self._last_tick_s = None

    def handle(self, messages: Sequence[Message]) -> Iterable[Output]:
        """Take in messages; a job with a hard event is judged at once."""
        messages = [one for one in messages if not _of_models(one)]
        if self._rereading:
            self._held.extend(messages)
            return []
        urgent: dict[str, None] = {}
        for message in messages:
            if self._take(message):
                urgent[message.key] = None
        now_s = self._clock.now_s()
        outputs: list[Output] = []
        for watch in [self._jobs[job] for job in urgent if job in self._jobs]:
            watch.attentive_until_s = now_s + ATTENTIVE_S
            outputs.extend(self._judged(watch, now_s))
        return outputs + self._take_dead()

    def tick(self, now_s: float) -> Iterable[Output]:
        """Judge the jobs that are due, and forget those that are over."""
        self._swap()
        if self._rereading:
            lag = self._consumer.lag() if self._consumer is not None else 0
            if lag > 0 and len(self._held) < MAX_HELD:
                return []
            return self._catch_up()
        elapsed_s = 0.0 if self._last_tick_s is None else min(max(now_s - self._last_tick_s, 0.0), MAX_TICK_S)
        self._last_tick_s = now_s
        outputs: list[Output] = []
        for job, watch in list(self._jobs.items()):
            watch.state.count_silence(elapsed_s)
            attentive = now_s < watch.attentive_until_s or watch.state.quiet_s > STALL_S
            since_s = now_s - watch.last_window_s
            if attentive or since_s >= self._config.window_every_s - 1e-3 or since_s < 0:
                outputs.extend(self._judged(watch, now_s))
            if now_s - watch.heard_s > self._config.forget_s:
                outputs.extend((job, record) for record in watch.joiner.end(now_s))
                self._jobs.pop(job, None)
        outputs.extend(self._end_asides(now_s))
        self._gauges()
        return outputs

    # -- internals -------------------------------------------------------------------------------------------

    def _swap(self) -> None:
        """Serve what the follower has brought: between two windows, so that each is scored by one set of models."""
        found = None if self._follower is None else self._follower.take()
        if found is None:
            return
        if self._bundle is None or found.champion.versions != self._bundle.versions:
            before = {} if self._bundle is None else self._bundle.versions
            show_versions(self._metrics, "champion", before, found.champion.versions)
            self._bundle = found.champion
            for watch in self._jobs.values():
                watch.scorer.swap(found.champion)
            self._metrics.count("model_swaps_total", "Times that other models were taken into service.")
            log.info("models swapped", extra={"fields": {"versions": dict(found.champion.versions)}})
        if found.why:
            log.warning("there is no challenger", extra={"fields": {"error": found.why}})
        before = {} if self._challenger is None else self._challenger.versions
        show_versions(
            self._metrics, "challenger", before, {} if found.challenger is None else found.challenger.versions
        )
        self._challenger = found.challenger
        for watch in self._jobs.values():
            watch.shadow.swap(found.challenger)

    def _take(self, message: Message) -> bool:
        """Feed one message; True if it should be judged at once."""
        if message.time_s < self._aside_until_s.get(message.key, 0.0):
            self._metrics.count("records_aside_total", "Records of jobs that are set aside.")
            return False
        self._aside_until_s.pop(message.key, None)
        watch = self._jobs.get(message.key)
        if watch is None:
            detectors = {name: choice.made() for name, choice in self._chosen.items()}
            watch = self._jobs[message.key] = JobWatch(
                message.key, detectors, self._config, self._metrics, self._bundle
            )
            watch.shadow.swap(self._challenger)
            for record in self._past.pop(message.key, []):
                watch.joiner.resume(record)
        try:
            watch.state.feed(message.record)
        except Exception as error:
            self._metrics.count("errors_total", "Records that broke what they were fed to.", kind=type(error).__name__)
            log.exception("record refused", extra={"fields": {"job": message.key, "topic": message.topic}})
            if not self._is_old(message):  # else whoever handled it has said so
                self._dead.append((message.topic, letter_of(message, error)))
        watch.heard_s = max(watch.heard_s, message.time_s)
        return isinstance(message.record, EventRecord) and message.record.kind in URGENT

    def _catch_up(self) -> list[Output]:
        """Go through what was read again in the order of its time, silently, then through what is new."""
        self._rereading = False
        held, self._held = sorted(self._held, key=lambda message: message.time_s), []
        last_old = max((i for i, message in enumerate(held) if self._is_old(message)), default=-1)
        outputs: list[Output] = []
        for place, message in enumerate(held):
            live = place > last_old
            urgent = self._take(message)
            watch = self._jobs.get(message.key)
            if watch is None:
                continue  # its job is set aside
            if urgent:
                watch.attentive_until_s = message.time_s + ATTENTIVE_S
            every_s = 0.1 if message.time_s < watch.attentive_until_s else self._config.window_every_s
            if urgent or message.time_s - watch.last_window_s >= every_s:
                outputs.extend(self._judged(watch, message.time_s, live=live))
        for job, watch in self._jobs.items():
            outputs.extend((job, record) for record in watch.joiner.unpublished())
        log.info("memory rebuilt", extra={"fields": {"messages": len(held), "jobs": len(self._jobs)}})
        return outputs + self._take_dead()

    def _judged(self, watch: JobWatch, now_s: float, *, live: bool = True) -> list[Output]:
        """One window of one job. The one place where a defect in judging it ends at the job."""
        job = watch.state.job
        try:
            return [(job, record) for record in watch.score(now_s, live=live)]
        except Exception as error:
            self._metrics.count("set_aside_total", "Detectors and jobs set aside after a defect.", what="job")
            log.exception("job set aside", extra={"fields": {"job": job}})
            self._jobs.pop(job, None)
            self._aside_until_s[job] = now_s + ASIDE_S
            why = f"the job cannot be judged for {ASIDE_S:.0f} s: {type(error).__name__}: {error}"[:MAX_WHY_CHARS]
            incident = pipeline_incident(job, "job", now_s, why)
            self._past[job] = [*watch.joiner.published, incident]  # for whoever judges the job anew
            return [(job, incident)]

    def _end_asides(self, now_s: float) -> Iterable[Output]:
        """Close what is open of jobs that were set aside and never heard of again."""
        for job, until_s in list(self._aside_until_s.items()):
            if now_s - until_s > self._config.forget_s:
                del self._aside_until_s[job]
                joiner = Joiner(job, self._config)
                for record in self._past.pop(job, []):
                    joiner.resume(record)
                yield from ((job, record) for record in joiner.end(now_s))

    def _take_dead(self) -> list[Output]:
        dead, self._dead = self._dead, []
        return dead

    def _is_old(self, message: Message) -> bool:
        return message.offset < self._handled.get((message.topic, message.partition), 0)

    def _gauges(self) -> None:
        self._metrics.gauge("jobs", "Jobs watched.", len(self._jobs))
        number = sum(len(watch.joiner.open) for watch in self._jobs.values())
        self._metrics.gauge("incidents_open", "Incidents open.", number)


def serve(settings: Settings, stop: Callable[[], bool], source: ModelSource | None = None) -> None:
    """Run the detection service until `stop()` is true.

    Parameters
    ----------
    source : ModelSource, optional
        Where models come from while the service runs; without it, the folder `settings.detection.models`.

    Raises
    ------
    ConfigError
        If a setting is wrong.
    BusUnavailable
        If the bus cannot be opened at all.
    """
    metrics = SelfMetrics("detector")
    follower = None if source is None else ModelFollower(source, settings.detection.models_every_s, told(metrics))
    handler = DetectionHandler(settings.detection, SystemClock(), metrics, follower)
    if settings.detection.metrics_port is not None:
        metrics.serve(settings.detection.metrics_port, settings.metrics_address)
    connection = buses.connect(settings.bus, settings.kafka, limit_bytes=settings.runs.bus_bytes)
    if follower is not None:
        follower.start()
    try:
        ServiceLoop(connection, handler, SystemClock(), metrics).run(stop)
    finally:
        if follower is not None:
            follower.close()
        connection.close()
