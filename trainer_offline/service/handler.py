"""The trainer service: trains again when it is time, and tells the bus who serves.

It trains in a process of its own (the command ``train``), so that the service stays responsive and memory is given
back. Aliases are asked for every few seconds; a change, whoever made it and however, becomes an event of kind ``model``
under the job ``models``. What is known of aliases is rebuilt from those events, so a restart repeats none.

Whether a detector's normal scores are still what they were when its version began to serve.

One training as a process of its own, so that the trainer stays responsive and memory is given back.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from trainwarden.bus.address import connect
from trainwarden.clock import Clock, SystemClock
from trainwarden.errors import ConfigError, DataError
from trainwarden.metrics_http.server import serve_metrics
from trainwarden.protocols import Bus, Consumer, Message
from trainwarden.records import EventRecord, VerdictRecord
from trainwarden.self_metrics import SelfMetrics
from trainwarden.service_loop import Output, ServiceLoop
from trainwarden.settings import Settings
from trainwarden.topics import EVENTS, VERDICTS, Topic
from trainwarden.trainer_offline.archive.reader import jobs
from trainwarden.trainer_offline.data.prepare import METRICS
from trainwarden.trainer_offline.registry.registry import Registry
from trainwarden.trainer_offline.registry.version import CHALLENGER, CHAMPION, PROVISIONAL, RUNNING


class TrainingProcess:
    """`trainwarden train` as a child process."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="trainwarden-trainer-")
        self._answer = Path(self._folder.name) / "answer.json"
        self._log = Path(self._folder.name) / "log"
        command = [sys.executable, "-P", "-m", "trainwarden.cli.main", "train", *arguments, "--json", str(self._answer)]
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, "PYTHONUNBUFFERED": "1"}
            )

    def result(self) -> dict[str, Any] | None:
        """None while it runs; else the answer, or ``{"error": ...}`` with the last line it said."""
        code = self._process.poll()
        if code is None:
            return None
        try:
            answer: dict[str, Any] = msgspec.json.decode(self._answer.read_bytes())
        except (OSError, msgspec.DecodeError):
            lines = self._log.read_text(errors="replace").strip().splitlines()
            answer = {"error": lines[-1][-500:] if lines else f"exit code {code}"}
        self._folder.cleanup()
        return answer

    def close(self) -> None:
        """End it; nothing half-registered serves, since tags and aliases come last."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._folder.cleanup()


TAILS: Final = (0.01, 0.99)  # of the first scores: a later median outside has left their middle 98 %


@dataclass(slots=True)
class _Scores:
    version: str
    first: list[float] = field(default_factory=list)
    last: deque[float] = field(default_factory=deque)


class DriftWatch:
    """Follows the normal votes of every detector with a model version; any job's count alike.

    Only normal votes of normal verdicts are looked at, so an incident is no drift. New ground is seen in the median,
    which single strange windows do not move.

    Examples
    --------
    >>> from trainwarden.records import Vote
    >>> watch = DriftWatch(verdicts=20)
    >>> for number in range(60):
    ...     vote = Vote(opinion="normal", score=0.1 + 0.001 * (number % 7) + (0.2 if number > 30 else 0.0))
    ...     watch.apply(VerdictRecord(id=str(number), job="j", time_s=0.0, window_s=1.0, anomalous=False, reason="",
    ...                              votes={"lof": vote}, model_versions={"lof": "3"}))
    >>> watch.drifted()
    {'lof': 'median normal score of version 3 went from 0.103 to 0.303'}
    """

    def __init__(self, verdicts: int) -> None:
        self._verdicts = verdicts
        self._scores: dict[str, _Scores] = {}

    def apply(self, verdict: VerdictRecord) -> None:
        """Remember the scores of one verdict."""
        if verdict.anomalous:
            return
        for name, version in verdict.model_versions.items():
            vote = verdict.votes.get(name)
            if vote is None or vote.opinion != "normal":
                continue
            scores = self._scores.get(name)
            if scores is None or scores.version != version:
                scores = self._scores[name] = _Scores(version, [], deque(maxlen=self._verdicts))
            if len(scores.first) < self._verdicts:
                scores.first.append(vote.score)
            else:
                scores.last.append(vote.score)

    def drifted(self) -> dict[str, str]:
        """A sentence for each detector whose scores have left their range."""
        found = {}
        for name, scores in self._scores.items():
            if len(scores.last) < self._verdicts:
                continue
            low, high = np.quantile(scores.first, TAILS)
            now = float(np.median(scores.last))
            if not low <= now <= high:
                before = float(np.median(scores.first))
                found[name] = f"median normal score of version {scores.version} went from {before:.3g} to {now:.3g}"
        return found

    def forget(self) -> None:
        """Begin anew, after a training."""
        self._scores.clear()


log = logging.getLogger("trainwarden.trainer")

JOB: Final = "models"
RETRY_S: Final = (
    60.0  # the first retry of a failed training, where `pause_s` is less; doubled with each further failure
)
FIRST_HOURS: Final = 0.5  # of an archive: models of less are not worth the minutes of a core that they cost
GROWTH: Final = 1.5  # of the hours trained on: seven trainings from half an hour to the seven that the gate asks for
ARCHIVE_S: Final = 20.0  # between two looks at the archive's footers
Place = tuple[str, str]
"""Detector and alias."""


def archived_hours(folder: Path) -> float:
    """Hours of metrics that the archive `folder` holds, of all jobs together; 0 where there is none.

    Raises
    ------
    DataError
        If a file of it is damaged.
    """
    if not folder.is_dir():
        return 0.0
    return sum((one.to_s - one.from_s) / 3600.0 for one in jobs(folder) if METRICS in one.topics)


class TrainerHandler:
    """Handler of the trainer service for `trainwarden.service_loop.ServiceLoop`.

    Parameters
    ----------
    settings : Settings
        `trainer` says what, where and when.
    arguments : sequence of str
        Added to every `train` command (the settings file).
    begin : callable
        Starts a training.
    hours : callable
        Hours of metrics in an archive.
    """

    topics: Sequence[Topic[Any]] = (VERDICTS,)
    group = "trainer"

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        clock: Clock,
        metrics: SelfMetrics,
        *,
        arguments: Sequence[str] = (),
        begin: Callable[[Sequence[str]], TrainingProcess] = TrainingProcess,
        hours: Callable[[Path], float] = archived_hours,
    ) -> None:
        self._settings = settings.trainer
        self._node = settings.node
        self._data = settings.trainer.data or settings.archive.folder
        self._registry = registry
        self._clock = clock
        self._metrics = metrics
        self._arguments = list(arguments)
        self._begin = begin
        self._hours = hours
        self._looked_s = float("-inf")
        self._drift = DriftWatch(self._settings.drift_verdicts)
        self._training: TrainingProcess | None = None
        self._asked_by: list[str] = []
        self._known: dict[Place, str | None] = {}
        self._to_note: list[tuple[str, str]] = []
        self._last_id = ""
        self._due_s = clock.now_s() + self._settings.every_s
        self._ended_s = float("-inf")
        self._failures = 0
        self._checked_s = float("-inf")
        self._resumed = False
        self._away: str | None = None

    def start(self, bus: Bus, consumer: Consumer) -> None:
        """What has been told of aliases so far."""
        del consumer
        for message in bus.read(EVENTS):
            record = message.record
            if (
                isinstance(record, EventRecord)
                and record.kind == "model"
                and record.fields.get("registry") == self._registry.uri
            ):
                to = record.fields.get("to")
                self._known[str(record.fields.get("detector")), str(record.fields.get("alias"))] = (
                    None if to is None else str(to)
                )
                self._last_id = record.id

    def handle(self, messages: Sequence[Message]) -> Iterable[Output]:
        """Learn what normal scores are."""
        for message in messages:
            if isinstance(message.record, VerdictRecord):
                self._drift.apply(message.record)
        return []

    def tick(self, now_s: float) -> Iterable[Output]:
        """Look at the registry when it is time, at the training always."""
        outputs = self._ended(now_s)
        if now_s - self._checked_s < self._settings.check_every_s:
            return outputs
        self._checked_s = now_s
        try:
            outputs += self._audit(now_s)
            self._note_champions()
            asked = self._registry.asked_to_retrain() + self._resume()
            if self._training is None and (why := self._why(asked, now_s)):
                self._train(why, asked)
        except DataError as error:
            self._note(str(error))
        else:
            self._note(None)
        return outputs

    def close(self) -> None:
        """End a training that runs."""
        if self._training is not None:
            self._training.close()

    # -- internals -------------------------------------------------------------------------------------------

    def _why(self, asked: Sequence[str], now_s: float) -> str | None:
        """Why to train now; a person's word goes before pauses."""
        if asked:
            return f"requested for {', '.join(asked)}"
        if now_s - self._ended_s < self._settings.pause_s:
            return None
        if now_s >= self._due_s:
            return "schedule"
        if drifted := self._drift.drifted():
            return "drift: " + "; ".join(f"{name}: {why}" for name, why in drifted.items())
        return self._enough(now_s)

    def _enough(self, now_s: float) -> str | None:
        """Why the archive is enough for the first champion, or for another try at one."""
        serves = any(alias == CHAMPION and version is not None for (_, alias), version in self._known.items())
        if serves or self._failures or now_s - self._looked_s < ARCHIVE_S:
            return None
        self._looked_s = now_s
        newest = max(self._registry.versions(), key=lambda one: one.created_s, default=None)
        card = None if newest is None else self._registry.card(newest)
        if newest is not None and card is None:
            return None  # of a size that is not known: on schedule
        wanted = FIRST_HOURS if card is None else GROWTH * card.hours
        have = self._hours(Path(self._data))
        return f"archive: {have:.1f} hours, and there is no champion yet" if have >= wanted else None

    def _resume(self) -> list[str]:
        """Once: when the last training was, and whose request a trainer that was killed had begun to answer."""
        if self._resumed:
            return []
        begun = self._registry.asked_to_retrain(RUNNING)
        made = [one.created_s for one in self._registry.versions()]
        if made:
            self._due_s = min(self._due_s, max(made) + self._settings.every_s)
        self._resumed = True
        return begun

    def _train(self, why: str, asked: Sequence[str]) -> None:
        arguments = ["--data", self._data, "--registry", self._registry.uri, *self._arguments]
        if self._settings.normal_until is not None:
            arguments += ["--normal-until", self._settings.normal_until]
        log.info("training starts", extra={"fields": {"why": why, "data": self._data}})
        self._metrics.count("trainings_total", "Trainings begun.", why=why.partition(":")[0].partition(" ")[0])
        self._training, self._asked_by = self._begin(arguments), list(asked)
        for detector in asked:
            self._registry.answer_retrain(detector, RUNNING)

    def _ended(self, now_s: float) -> list[Output]:
        """What a training that has ended has made."""
        answer = None if self._training is None else self._training.result()
        if answer is None:
            return []
        self._training = None
        self._failures = self._failures + 1 if "error" in answer else 0
        self._ended_s, self._due_s = now_s, now_s + self._again_s()
        self._metrics.gauge("failed_in_a_row", "Trainings that failed since the last that did not.", self._failures)
        self._drift.forget()
        said = f"failed: {answer['error']}" if "error" in answer else f"done: run {answer['run_id']}"
        passed = [one["detector"] for one in answer.get("models", []) if one["gate"]["passed"]]
        log.info("training ended", extra={"fields": {"result": said, "passed": ",".join(passed)}})
        try:
            again = self._registry.asked_to_retrain()  # while it ran: a new request, not to be overwritten
            for detector in self._asked_by:
                if detector not in again:
                    self._registry.answer_retrain(detector, said[:200])
        except DataError as error:
            self._note(str(error))
        self._asked_by = []
        self._checked_s = float("-inf")
        return []

    def _again_s(self) -> float:
        """Seconds until the next training by itself: after a failure soon, and less soon with each further one."""
        if not self._failures:
            return self._settings.every_s
        soon_s = max(self._settings.pause_s, RETRY_S) * 2.0 ** min(self._failures - 1, 20)
        return min(self._settings.every_s, soon_s)

    def _audit(self, now_s: float) -> list[Output]:
        """An event for each alias that points elsewhere than when it was last told."""
        now: dict[Place, str | None] = {
            (name, alias): version
            for alias in (CHAMPION, CHALLENGER, PROVISIONAL)
            for name, version in self._registry.aliases(alias).items()
        }
        outputs: list[Output] = []
        for place in sorted({*now, *self._known}):
            before, after = self._known.get(place), now.get(place)
            if before == after:
                continue
            outputs.append((JOB, self._event(place, before, after, now_s)))
            self._known[place] = after
            if place[1] == CHAMPION and after is not None:
                self._to_note.append((place[0], after))
        return outputs

    def _note_champions(self) -> None:
        """Tell the registry since when its champions are: apart from the events, which go out if this fails."""
        while self._to_note:
            with suppress(ConfigError):  # a version that somebody has deleted meanwhile
                self._registry.note_champion(self._registry.version(*self._to_note[0]))
            self._to_note.pop(0)

    def _event(self, place: Place, before: str | None, after: str | None, now_s: float) -> EventRecord:
        detector, alias = place
        text = f"{self._last_id}\n{self._registry.uri}\n{detector}\n{alias}\n{before}\n{after}"
        self._last_id = f"model-{hashlib.sha256(text.encode()).hexdigest()[:20]}"
        said = f"{alias} of {detector}: version {before or 'none'} -> {after or 'none'}"
        log.info("alias moved", extra={"fields": {"detector": detector, "alias": alias, "version": after}})
        fields: dict[str, str | int | float | bool | None] = {
            "registry": self._registry.uri, "detector": detector, "alias": alias, "from": before, "to": after,
        }  # fmt: skip
        return EventRecord(
            id=self._last_id, job=JOB, node=self._node, time_s=now_s, kind="model", message=said, fields=fields
        )

    def _note(self, error: str | None) -> None:
        self._metrics.gauge("registry_away", "1 while the registry cannot be reached.", 0.0 if error is None else 1.0)
        if error != self._away:
            self._away = error
            if error is not None:
                log.warning("registry is away", extra={"fields": {"error": error}})


def serve(settings: Settings, config: Path | None, stop: Callable[[], bool]) -> None:
    """Run the trainer until `stop()` is true.

    Raises
    ------
    BusUnavailable
        If the bus cannot be opened at all.
    """
    metrics = SelfMetrics("trainer")
    serve_metrics(metrics, settings.trainer.metrics_port, settings)
    registry = Registry.at(settings.trainer.registry or settings.detection.models, create=True)
    arguments = [] if config is None else ["--config", str(config)]
    handler = TrainerHandler(settings, registry, SystemClock(), metrics, arguments=arguments)
    connection = connect(settings.bus, settings.kafka, limit_bytes=settings.runs.bus_bytes)
    try:
        ServiceLoop(connection, handler, SystemClock(), metrics).run(stop)
    finally:
        handler.close()
        connection.close()
