"""Detection by hand: recorded folders in, one JSON object and a table for people out."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from trainwarden.cli.output import Voice, check_json_target, write_json
from trainwarden.errors import ConfigError, DataError, DetectorError, WardenError
from trainwarden.settings import DetectionSettings, load

SHOWN = 12  # rows of a kind that people are shown; the JSON has all
TELL_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class Work:
    """One job to be judged, as it is sent to a worker process."""

    folder: Path
    name: str | None
    normal: Path | None
    normal_until_s: float | None
    models: str | None
    names: tuple[str, ...]
    settings: DetectionSettings
    want_scores: bool


@dataclass(slots=True)
class Judged:
    """A worker's answer: the job's object, and its scores as columns."""

    answer: dict[str, Any]
    scores: dict[str, Any] | None
    failed: bool = False


def detect(
    data: Path,
    *,
    normal_until: str | None,
    normal: Path | None,
    models: str | None,
    names: str | None,
    scores: Path | None,
    json: str | None,
    config: Path | None,
) -> int:
    """The whole command; 1 if an incident was found, 2 if the one folder given cannot be read.

    Raises
    ------
    ConfigError
        On wrong use.
    DataError
        If the only job cannot be read, or none of a batch.
    """
    from trainwarden.cli.detect_scores import ScoresFile

    check_json_target(json)
    voice = Voice(json)
    began_s = time.monotonic()
    works, batch = _works(data, normal_until, normal, models, names, scores is not None, config)
    target = ScoresFile.open(scores) if scores is not None else None
    answers: list[dict[str, Any]] = []
    failed = 0
    try:
        for number, judged in enumerate(_in_order(works, voice), 1):
            if judged.failed and not batch:
                raise DataError(str(judged.answer["error"]))
            failed += judged.failed
            answers.append(judged.answer)
            if target is not None and judged.scores is not None:
                target.add(judged.answer["job"], judged.scores)
            _tell(voice, judged, number, len(works))
    finally:
        if target is not None:
            target.close()
    write_json({"jobs": answers, "wall_s": round(time.monotonic() - began_s, 3)}, json)
    if failed and failed == len(works):
        raise DataError(f"none of the {failed} jobs of '{data}' could be read")
    return 1 if any(answer.get("incidents") for answer in answers) else 0


def _works(
    data: Path, normal_until: str | None, normal: Path | None, models: str | None, names: str | None,
    want_scores: bool, config: Path | None,
) -> tuple[list[Work], bool]:  # fmt: skip
    from detectors import CATALOG
    from trainwarden.recorded.folder import is_batch, jobs_in

    if normal_until is not None and normal is not None:
        raise ConfigError("--normal-until and --normal exclude each other: both say what is normal")
    settings = load(config).detection
    chosen = tuple(word.strip() for word in names.split(",")) if names else tuple(settings.detectors)
    unknown = [word for word in chosen if word not in CATALOG and word not in settings.detectors]
    if unknown:
        raise ConfigError(f"--detectors: there is no detector '{unknown[0]}'; there are: {', '.join(CATALOG)}")
    until_s = time_of(normal_until)
    models = _local_models(models or settings.models)
    batch = is_batch(data)
    works = []
    for folder in jobs_in(data):
        name = folder.name if batch else None
        works.append(
            Work(folder, name, _normal_of(normal, folder, batch), until_s, models, chosen, settings, want_scores)
        )
    return works, batch


def _local_models(models: str | None) -> str | None:
    """Folder of the models: a registry's champions are fetched once, here, not by every worker."""
    from trainer_offline.registry.address import is_registry

    if models is None or not is_registry(models):
        return models
    from trainer_offline.registry.serving import local_bundle

    try:
        return str(local_bundle(models))
    except DetectorError as error:
        raise DataError(str(error)) from error  # exit code 2: 1 would say that something was found


def time_of(text: str | None) -> float | None:
    """Seconds of the recording's clock, or an ISO 8601 time."""
    if text is None:
        return None
    from datetime import UTC, datetime

    try:
        return float(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"--normal-until: '{text}' is neither a number of seconds nor an ISO 8601 time") from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _normal_of(normal: Path | None, folder: Path, batch: bool) -> Path | None:
    """The normal recording of one job: the subfolder of the same name, or the one for all."""
    from trainwarden.recorded.folder import is_batch

    if normal is None:
        return None
    if not normal.is_dir():
        raise DataError(f"--normal: '{normal}' is no folder")
    if is_batch(normal):
        own = normal / folder.name
        if not own.is_dir():
            raise DataError(f"--normal: '{normal}' has no subfolder '{folder.name}' for that job")
        return own
    return normal


def judge_folder(work: Work, progress: Any = lambda share: None) -> Judged:
    """Judge one recorded folder; what cannot be read becomes the job's answer."""
    from trainwarden.recorded.folder import read_folder

    name = work.name or work.folder.resolve().name
    try:
        from detectors.metrics.bundle.members import ALL_MODELS
        from detectors.recorded.facts import read_facts
        from detectors.recorded.findings import job_object
        from detectors.recorded.metrics import score_recorded
        from detectors.recorded.replay import replay

        job = read_folder(work.folder, work.name)
        name = job.name
        scores = None
        if work.want_scores or any(word in ALL_MODELS for word in work.names):
            bundle = _bundle(work.models, work.normal)
            scores = score_recorded(job, bundle, work.normal_until_s)
        result = replay(job, work.settings, names=work.names, facts=read_facts(job), scores=scores, progress=progress)
    except WardenError as error:
        return Judged({"job": name, "error": str(error)}, None, failed=True)
    columns = scores.columns(work.names) if work.want_scores and scores is not None else None
    return Judged(job_object(result), columns)


@cache
def _bundle(models: str | None, normal: Path | None) -> Any:
    """Models that were trained before, or on a normal recording: once in a process, however many jobs they serve."""
    from detectors.metrics.bundle.bundle import ModelBundle
    from detectors.recorded.metrics import bundle_of
    from trainwarden.recorded.folder import read_folder

    if models is not None:
        return ModelBundle.load(Path(models))
    return None if normal is None else bundle_of(read_folder(normal))


def _in_order(works: Sequence[Work], voice: Voice) -> Iterator[Judged]:
    """Answers in the order of the jobs; several jobs are worked through in parallel processes."""
    workers = min(len(works), os.cpu_count() or 1)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # one job a core is faster than every job on all cores
    if workers <= 1:
        for work in works:
            yield judge_folder(work, _Teller(voice))
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        futures = {pool.submit(judge_folder, work): place for place, work in enumerate(works)}
        waiting: dict[int, Judged] = {}
        following = 0
        for future in as_completed(futures):
            waiting[futures[future]] = future.result()
            while following in waiting:
                yield waiting.pop(following)
                following += 1


class _Teller:
    """Says now and then how far a long pass is."""

    def __init__(self, voice: Voice) -> None:
        self._voice = voice
        self._told_s = time.monotonic()

    def __call__(self, share: float) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s >= TELL_EVERY_S:
            self._told_s = now_s
            self._voice.say(f"... {share:.0%}")


def _tell(voice: Voice, judged: Judged, number: int, total: int) -> None:
    answer = judged.answer
    lead = f"[{number}/{total}] {answer['job']}: "
    if judged.failed:
        voice.say(f"{lead}cannot be judged: {answer['error']}")
        return
    found = [
        (len(answer[key]), word)
        for key, word in (
            ("incidents", "incidents"), ("change_points", "change points"), ("stragglers", "stragglers"),
            ("log_findings", "log findings"),
        )
    ]  # fmt: skip
    voice.say(lead + (", ".join(f"{count} {word}" for count, word in found if count) or "nothing found"))
    for incident in answer["incidents"][:SHOWN]:
        who = ", ".join(_who(suspect) for suspect in incident["suspects"][:3])
        voice.say(
            f"  {incident['severity']} {incident['kind']} at {incident['opened_at_s']:.6g} s"
            + (f", step {incident['opened_step']}" if incident["opened_step"] is not None else "")
            + (f", {who}" if who else "")
            + f": {incident['reason']}"
        )
    if len(answer["incidents"]) > SHOWN:
        voice.say(f"  ... and {len(answer['incidents']) - SHOWN} more")


def _who(suspect: dict[str, Any]) -> str:
    rank = None if suspect["rank"] is None else f"rank {suspect['rank']}"
    return " ".join(word for word in (rank, suspect["node"], suspect["device"]) if word) or "the job"
