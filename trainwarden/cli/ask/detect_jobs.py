"""The recorded jobs of one `trainwarden detect`: found, judged each by itself, answered in their order."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from trainwarden.catalogue import Metric, add, added
from trainwarden.cli.ask.judging.detect_answer import AMOUNTS, answered, judges, of_no_form
from trainwarden.cli.shared.machine import one_blas_thread
from trainwarden.cli.shared.options import time_of
from trainwarden.errors import ConfigError, DataError, DetectorError, WardenError
from trainwarden.formats.unjudged import PLAIN
from trainwarden.records import HeartbeatRecord, IncidentRecord
from trainwarden.settings import DetectionSettings, load

TELL_EVERY_S = 2.0
# What a program says in such words it says for many reasons: a text that is no record of a run proves none of these.
OF_PROGRAMS = frozenset({"user_error", "exception", "log_storm", "checkpoint", "data_stall", "silent_corruption"})


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says of how to judge, in its own words."""

    normal_until: str | None
    normal: Path | None
    models: str | None
    detectors: str | None
    want_scores: bool
    span_s: tuple[float, float] | None = None
    columns: tuple[tuple[str, str], ...] = ()


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
    span_s: tuple[float, float] | None = None
    metrics: tuple[Metric, ...] = field(default_factory=added)  # that plug-ins have brought
    asked: frozenset[str] = frozenset()  # detectors that somebody named
    columns: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class Judged:
    """A worker's answer: the job's object, and its scores as columns."""

    answer: dict[str, Any]
    scores: dict[str, Any] | None
    failed: bool = False
    records: list[IncidentRecord] = field(default_factory=list)


def jobs_to_judge(data: Path, asked: Asked, config: Path | None) -> tuple[list[Work], bool]:
    """The jobs in `data`, and whether it is a batch of several.

    Raises
    ------
    ConfigError
        On wrong use.
    DataError
        If a folder or a registry cannot be read.
    """
    from trainwarden.detectors.configured_detectors import asked_for
    from trainwarden.formats.survey import jobs_at

    if asked.normal_until is not None and asked.normal is not None:
        raise ConfigError("--normal-until and --normal exclude each other: both say what is normal")
    settings, chosen = asked_detectors(asked.detectors, config)
    until_s = time_of(asked.normal_until)
    models = _local_models(asked.models or settings.models)
    folders, batch = jobs_at(data)
    named = asked_for(settings, chosen if asked.detectors else None)
    works = []
    for folder in folders:
        name = folder.name if batch else None
        normal = _normal_of(asked.normal, folder, batch)
        works.append(Work(folder, name, normal, until_s, models, chosen, settings, asked.want_scores, asked.span_s,
                          asked=named, columns=asked.columns))  # fmt: skip
    return works, batch


def parsed_columns(text: str | None) -> dict[str, str]:
    """What `--columns` says.

    Raises
    ------
    ConfigError
        If it is not of its form.
    """
    if text is None:
        return {}
    from trainwarden.formats.roles import parse_columns

    return parse_columns(text)


def asked_detectors(names: str | None, config: Path | None) -> tuple[DetectionSettings, tuple[str, ...]]:
    """The settings, and the detectors that ``--detectors`` names; default those of the settings.

    Raises
    ------
    ConfigError
        If there is no such detector.
    """
    from trainwarden import plugins
    from trainwarden.detectors import CATALOG, ENTRY_POINTS

    everything = load(config)
    settings = everything.detection
    plugins.bring(everything)
    wanted = plugins.chosen(CATALOG, ENTRY_POINTS, settings.detectors)
    chosen = tuple(word.strip() for word in names.split(",")) if names else tuple(wanted)
    known = plugins.names(CATALOG, ENTRY_POINTS) if names else chosen
    unknown = [word for word in chosen if word not in known]
    if unknown:
        raise ConfigError(f"--detectors: there is no detector '{unknown[0]}'; there are: {', '.join(known)}")
    return settings, chosen


def _local_models(models: str | None) -> str | None:
    """Folder of the models: a registry's champions are fetched once, here, not by every worker."""
    from trainwarden.trainer_offline.registry.address import is_registry

    if models is None or not is_registry(models):
        return models
    from trainwarden.trainer_offline.registry.serving import local_bundle

    try:
        return str(local_bundle(models))
    except DetectorError as error:
        raise DataError(str(error)) from error  # exit code 2: 1 would say that something was found


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
    from trainwarden.formats.reading import read_job

    name = work.name or work.folder.resolve().name
    add(work.metrics)
    try:
        from trainwarden.detectors.configured_detectors import chosen, ensemble
        from trainwarden.detectors.recorded.facts import read_facts
        from trainwarden.detectors.recorded.findings import job_object
        from trainwarden.detectors.recorded.metrics import nobody, score_recorded
        from trainwarden.detectors.recorded.replay import replay

        job = read_job(work.folder, work.name, dict(work.columns))
        name, facts = job.name, read_facts(job)
        if work.span_s is not None:
            job, facts = _cut(job, facts, work.span_s)
        scores = None
        if work.want_scores or any(one.role.reads == "scores" for one in chosen(work.settings, work.names).values()):
            bundle = _bundle(work.models, work.normal)
            rule = ensemble(work.settings, work.names)
            idle = nobody if work.want_scores else partial(rule.idle, asked=work.asked)  # a file has all
            scores = score_recorded(job, bundle, work.normal_until_s, idle=idle)
        result = _believed(replay(
            job, work.settings, names=work.names, facts=facts, scores=scores, progress=progress,
            normal_until_s=work.normal_until_s,
        ))  # fmt: skip
    except WardenError as error:
        return Judged({"job": name, "error": str(error)}, None, failed=True)
    columns = scores.columns(work.names) if work.want_scores and scores is not None else None
    found = job_object(result)
    return Judged(found | _answer(result, found, facts), columns, records=list(result.incidents))


def _answer(result: Any, found: dict[str, Any], facts: Sequence[Any]) -> dict[str, Any]:
    """What is added to `found`, the object of a replayed job: the answer, and who has judged."""
    import numpy as np

    from trainwarden.detectors.logs.of_training import tells_of_training
    from trainwarden.detectors.logs.unknown_ends import buffered_ends, unknown_ends

    job, known = result.job, not of_no_form(found)
    lines = found["input"]["log_lines"] > 0 and known
    judged_by = judges(result.detectors, result.abstained, facts=bool(facts) and known, lines=lines)
    if job.metrics is not None and job.metrics.times_s.size and not float(np.ptp(job.metrics.times_s)):
        # Of a single moment nobody can say whether it lasts.
        judged_by = [one for one in judged_by if result.detectors[one].role.reads != "samples"]
    found["judged"]["detectors"] = judged_by
    steps = found["input"]["iterations"] or found["input"].get("collectives")
    stepless = not steps and any(isinstance(fact, HeartbeatRecord) and fact.ranks for fact in facts)
    ends = [*unknown_ends(job.logs), *buffered_ends(job.logs)] if judged_by and not result.incidents else []
    wordless = _of_logs_alone(found["input"]) and not result.incidents and not facts and not tells_of_training(job.logs)
    return answered(found, judged_by, stepless=stepless, ends=ends, wordless=wordless)


def _of_logs_alone(amounts: Mapping[str, Any]) -> bool:
    """Whether log lines are all that was read."""
    return bool(amounts.get("log_lines")) and not any(amounts.get(key) for key in AMOUNTS if key != "log_lines")


def _believed(result: Any) -> Any:
    """`result` without what a text of no known form does not prove."""
    if not result.job.files or any(one.format != PLAIN for one in result.job.files):
        return result
    return replace(result, incidents=[one for one in result.incidents if one.kind not in OF_PROGRAMS])


def _cut(job: Any, facts: list[Any], span_s: tuple[float, float]) -> tuple[Any, list[Any]]:
    """The job and its facts within `span_s`."""
    from trainwarden.recorded.cut import between

    kept = [fact for fact in facts if span_s[0] <= fact.time_s <= span_s[1]]
    cut = between(job, *span_s)
    if cut.span_s is None and not kept:
        raise DataError(f"there is nothing of job '{job.name}' in that time")
    return cut, kept


@cache
def _bundle(models: str | None, normal: Path | None) -> Any:
    """Models that were trained before, or on a normal recording: once in a process, however many jobs they serve."""
    from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
    from trainwarden.detectors.recorded.learning import bundle_of
    from trainwarden.formats.reading import read_job

    if models is not None:
        return ModelBundle.load(Path(models))
    return None if normal is None else bundle_of(read_job(normal))


def judged_in_order(works: Sequence[Work], say: Callable[[str], None]) -> Iterator[Judged]:
    """Answers in the order of the jobs; several jobs are worked through in parallel processes."""
    workers = min(len(works), os.cpu_count() or 1)
    one_blas_thread()  # one job a core is faster than every job on all cores
    if workers <= 1:
        for work in works:
            yield judge_folder(work, _Teller(say))
        return
    from trainwarden.detectors.recorded.processes import processes, submit_all

    with processes(workers) as pool:
        futures = {future: place for place, future in enumerate(submit_all(pool, judge_folder, works))}
        waiting: dict[int, Judged] = {}
        following = 0
        for future in as_completed(futures):
            waiting[futures[future]] = future.result()
            while following in waiting:
                yield waiting.pop(following)
                following += 1


class _Teller:
    """Says now and then how far a long pass is."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._told_s = time.monotonic()

    def __call__(self, share: float) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s >= TELL_EVERY_S:
            self._told_s = now_s
            self._say(f"... {share:.0%}")
