"""`trainwarden archive`: the archive service, its upkeep, its export, and what it holds."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from trainwarden.cli.serve.process import StopFlag
from trainwarden.cli.shared.machine import one_blas_thread
from trainwarden.cli.shared.options import ArchiveFolder, ConfigFile, Json, RunDir, WithParent
from trainwarden.cli.shared.output import Voice
from trainwarden.errors import ConfigError, DataError
from trainwarden.settings import Settings, load


def archive(
    word: Annotated[Literal["serve", "compact", "export", "list"], typer.Argument()] = "serve",
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="For export.")] = None,
    *,
    folder: ArchiveFolder = None,
    to: Annotated[Path | None, typer.Option("--to", help="For export: the folder to write.")] = None,
    day: Annotated[list[str] | None, typer.Option("--day", help="For export: YYYY-MM-DD, repeatable.")] = None,
    config: ConfigFile = None,
    json: Json = None,
    run_dir: RunDir = None,
    with_parent: WithParent = None,
) -> int:
    """Archive the bus to Parquet until stopped; or compact, export, list.

    Example: trainwarden archive export llama-70b --to kept
    """
    del run_dir  # every service is started with it
    voice = Voice(json)
    settings = load(config)
    root = folder or Path(settings.archive.folder)
    match word:
        case "serve":
            _serve(settings, root, with_parent=with_parent)
        case "compact":
            _compact(settings, root, voice)
        case "export":
            if job is None or to is None:
                raise ConfigError("archive export: give the job and --to DIR")
            _export(root, job, to, day or [], voice)
        case "list":
            _list(root, voice)
    return 0


def _serve(settings: Settings, root: Path, *, with_parent: int | None) -> None:
    from trainwarden.self_metrics import log_to_stderr
    from trainwarden.trainer_offline.archive.service import serve

    log_to_stderr()
    one_blas_thread()
    chosen = msgspec.structs.replace(settings.archive, folder=str(root))
    serve(msgspec.structs.replace(settings, archive=chosen), StopFlag(with_parent=with_parent))


def _compact(settings: Settings, root: Path, voice: Voice) -> None:
    from trainwarden.clock import SystemClock
    from trainwarden.trainer_offline.archive.maintenance import compact

    if not root.is_dir():
        raise DataError(f"archive '{root}' does not exist")
    keep_days = {str(topic): number for topic, number in settings.archive.keep_days.items()}
    joined, removed = compact(root, keep_days, SystemClock().now_s())
    voice.say(f"{joined} days joined, {removed} days removed")
    voice.answer({"joined": joined, "removed": removed})


def _export(root: Path, job: str, to: Path, days: Sequence[str], voice: Voice) -> None:
    from trainwarden.trainer_offline.archive.export import export

    for day in days:
        _check_day(day)
    written = export(root, job, to, list(days) or None)
    for name, rows in written.items():
        voice.say(f"{rows:>12,} rows  {to / name}")
    voice.answer({"job": job, "folder": str(to), "rows": written})


def _check_day(text: str) -> None:
    try:
        good = datetime.date.fromisoformat(text).isoformat() == text
    except ValueError:
        good = False
    if not good:
        raise ConfigError(f"archive export: --day '{text}' is no day YYYY-MM-DD")


def _list(root: Path, voice: Voice) -> None:
    from trainwarden.trainer_offline.archive.reader import jobs

    found = jobs(root)
    for one in found:
        for topic, summary in one.topics.items():
            span = summary.days[0] if len(summary.days) == 1 else f"{summary.days[0]} to {summary.days[-1]}"
            size = f"{summary.nbytes / 1e6:,.1f} MB in {summary.files} files"
            voice.say(f"{one.job}  {topic:<10} {summary.rows:>14,} rows  {size}  {span}")
    if not found:
        voice.say("the archive is empty")
    voice.answer({"jobs": msgspec.to_builtins(found)})
