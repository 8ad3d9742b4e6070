"""`archive` and `annotate`: the archive service, its upkeep, its export, and what people say about a job."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from trainwarden.cli.output import Voice, check_json_target, write_json
from trainwarden.errors import ConfigError, DataError
from trainwarden.settings import Settings, load

ArchiveWord = Literal["serve", "compact", "export", "list"]
AnnotateWord = Literal["add", "list", "remove"]


def _settings(config: Path | None, folder: Path | None) -> tuple[Settings, Path]:
    settings = load(config)
    return settings, folder or Path(settings.archive.folder)


def archive(
    word: ArchiveWord,
    job: str | None,
    *,
    folder: Path | None,
    to: Path | None,
    days: Sequence[str],
    config: Path | None,
    json: str | None,
    with_parent: bool = False,
) -> int:
    """Run the service, join and expire files, export a job, or list what there is; the exit code.

    Raises
    ------
    ConfigError
        If an argument is missing or a setting is wrong.
    DataError
        If the archive cannot be read or written.
    """
    check_json_target(json)
    settings, root = _settings(config, folder)
    if word == "serve":
        return _serve(settings, root, with_parent)
    voice = Voice(json)
    if word == "compact":
        from trainer_offline.archive.maintenance import compact
        from trainwarden.clock import SystemClock

        if not root.is_dir():
            raise DataError(f"archive '{root}' does not exist")
        keep_days = {str(topic): number for topic, number in settings.archive.keep_days.items()}
        joined, removed = compact(root, keep_days, SystemClock().now_s())
        voice.say(f"{joined} days joined, {removed} days removed")
        write_json({"joined": joined, "removed": removed}, json)
    elif word == "export":
        from trainer_offline.archive.export import export

        if job is None or to is None:
            raise ConfigError("archive export: give the job and --to DIR")
        for day in days:
            _check_day(day)
        written = export(root, job, to, list(days) or None)
        for name, rows in written.items():
            voice.say(f"{rows:>12,} rows  {to / name}")
        write_json({"job": job, "folder": str(to), "rows": written}, json)
    else:
        _list(root, voice, json)
    return 0


def _check_day(text: str) -> None:
    try:
        good = datetime.date.fromisoformat(text).isoformat() == text
    except ValueError:
        good = False
    if not good:
        raise ConfigError(f"archive export: --day '{text}' is no day YYYY-MM-DD")


def _serve(settings: Settings, root: Path, with_parent: bool) -> int:
    from trainer_offline.archive.service import serve
    from trainwarden.cli.stack import StopFlag
    from trainwarden.self_metrics import log_to_stderr

    log_to_stderr()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    chosen = msgspec.structs.replace(settings.archive, folder=str(root))
    serve(msgspec.structs.replace(settings, archive=chosen), StopFlag(with_parent=with_parent))
    return 0


def _list(root: Path, voice: Voice, json: str | None) -> None:
    from trainer_offline.archive.reader import jobs

    found = jobs(root)
    for one in found:
        for topic, summary in one.topics.items():
            span = summary.days[0] if len(summary.days) == 1 else f"{summary.days[0]} to {summary.days[-1]}"
            size = f"{summary.nbytes / 1e6:,.1f} MB in {summary.files} files"
            voice.say(f"{one.job}  {topic:<10} {summary.rows:>14,} rows  {size}  {span}")
    if not found:
        voice.say("the archive is empty")
    write_json({"jobs": msgspec.to_builtins(found)}, json)


def annotate(
    word: AnnotateWord,
    *,
    number: int | None,
    job: str | None,
    from_time: str,
    to_time: str,
    label: str | None,
    kind: str | None,
    suspects: str,
    note: str,
    folder: Path | None,
    config: Path | None,
    json: str | None,
) -> int:
    """Add, list or remove annotations of the archive; the exit code.

    Raises
    ------
    ConfigError
        If an argument is missing or no time, label or suspect.
    DataError
        If the file has mistakes, one sentence each.
    """
    check_json_target(json)
    _, root = _settings(config, folder)
    voice = Voice(json)
    from trainer_offline.archive.layout import TOPIC_FOLDERS, job_folder
    from trainer_offline.data import annotations

    if word == "add":
        if job is None or label is None:
            raise ConfigError("annotate add: give --job and --label")
        try:
            annotation = annotations.Annotation(
                job=job,
                label=label,  # type: ignore[arg-type]  # `add` checks it and names what is allowed
                from_s=annotations.parse_time(from_time),
                to_s=annotations.parse_time(to_time),
                kind=kind,
                suspects=annotations.parse_suspects(suspects),
                note=note,
            )
        except ValueError as error:
            raise ConfigError(f"annotate add: {error}") from error
        place = annotations.add(root, annotation)
        voice.say(f"annotation {place} added")
        if not any((root / topic / job_folder(job)).is_dir() for topic in TOPIC_FOLDERS):
            voice.say(f"the archive '{root}' holds nothing of job '{job}' so far")
        write_json({"number": place, "annotation": msgspec.to_builtins(annotation)}, json)
    elif word == "remove":
        if number is None:
            raise ConfigError("annotate remove: give the number that 'annotate list' shows")
        removed = annotations.remove(root, number)
        voice.say(f"annotation {number} removed: {_shown(removed)}")
        write_json({"number": number, "annotation": msgspec.to_builtins(removed)}, json)
    else:
        _list_annotations(annotations.read(root), job, voice, json)
    return 0


def _list_annotations(found: Sequence[Any], job: str | None, voice: Voice, json: str | None) -> None:
    listed = [(number, one) for number, one in enumerate(found, 1) if job is None or one.job == job]
    for number, one in listed:
        voice.say(f"{number:>4}  {_shown(one)}")
    if not listed:
        voice.say("no annotations")
    write_json({"annotations": [{"number": number, **msgspec.to_builtins(one)} for number, one in listed]}, json)


def _shown(one: Any) -> str:
    span = f"{'' if one.from_s is None else one.from_s}..{'' if one.to_s is None else one.to_s}"
    words = [one.job, span, one.label, one.kind or "", "; ".join(str(suspect) for suspect in one.suspects), one.note]
    return "  ".join(word for word in words if word)
