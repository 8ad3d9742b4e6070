"""A job from whatever lies at a path: the documented layout, and files of other tools beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from trainwarden.errors import DataError
from trainwarden.formats.collected import parts_of, read_parts
from trainwarden.formats.joining.gathered import Gathered
from trainwarden.formats.joining.joined import joined
from trainwarden.formats.protocol import NEVER, Found, Misfit
from trainwarden.formats.source import Source
from trainwarden.formats.survey import files_below, looked_at, made
from trainwarden.formats.tables.ours import header_of, kind_of, parquet_kind, refuse_collapsed
from trainwarden.formats.text.log_text import NAME as TEXT
from trainwarden.formats.text.log_text import is_plain, with_logs
from trainwarden.formats.unjudged import PLAIN, recognised, tells_of_failures
from trainwarden.recorded import folder as recorded
from trainwarden.recorded.job import (
    ReadFile,
    RecordedJob,
    UnreadFile,
)

UNKNOWN: Final = "no format is known of it"
# Texts that tell of failures without being a record of one.
_WRITINGS: Final = (".md", ".rst", ".py", ".sh", ".toml", ".cfg", ".ini", ".html", ".htm", ".ipynb", ".xml")
_STEMS: Final = ("metrics", "iterations")
_UNFORESEEN: Final = (
    ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError,
)  # fmt: skip


def read_job(path: Path, name: str | None = None, said: Mapping[str, str] | None = None) -> RecordedJob:
    """Read what lies at `path`.

    Parameters
    ----------
    path : Path
        A folder or a file.
    name : str, optional
        Name of the job; else that of job.toml, else the path's.
    said : mapping, optional
        Which column is what (`--columns`).

    Raises
    ------
    DataError
        If nothing of it can be read, or a documented file holds a mistake: all mistakes of that file.
    """
    said = said or {}
    gathered = Gathered()
    if path.is_file():
        _read_file(gathered, path, path.name, said)
        _read_plainly(gathered, {path.name: path})
        _refuse_mistakes(gathered)
        return joined(RecordedJob(name or path.name.partition(".")[0] or path.name, path), gathered)
    foreign = _foreign(path, said)
    try:
        job = recorded.read_folder(path, name, foreign)
    except DataError as strict:
        job, foreign = _again(path, name, foreign, said, strict)
    _refuse_collapsed(job, path, said)
    _name_documented(gathered, job, path, foreign)
    known = {one.path for one in gathered.files} | set(recorded.documented(path)) - foreign
    texts = [file for place, file in files_below(path) if file not in known and looked_at(place, file).format == TEXT]
    job = with_logs(job, path, [one for one, kind in recorded.documented(path).items() if kind == "log"], texts)
    gathered.files += [ReadFile(log.file, "log lines", len(log.lines)) for log in job.logs if log.file in texts]
    known |= set(texts)
    for place, file in files_below(path):
        if file not in known:
            _read_file(gathered, place, file, said)
    _read_plainly(gathered, {file: place for place, file in files_below(path)})
    _refuse_mistakes(gathered)
    if foreign:
        for error in gathered.errors:
            if any(str(error).startswith(one) for one in foreign):
                raise error
    return joined(job, gathered)


def _foreign(folder: Path, said: Mapping[str, str]) -> frozenset[str]:
    """Documented names under which tables of another layout lie."""
    found = set()
    for name, kind in recorded.documented(folder).items():
        if kind not in _STEMS:
            continue
        source = Source(folder / name, name)
        try:
            header = () if name.endswith(".parquet") else header_of(source.head)
            own = parquet_kind(source) if name.endswith(".parquet") else kind_of(header)
        except DataError:
            continue  # the strict reader says what is wrong
        if set(said.values()) & set(header) or (
            own != kind and looked_at(folder / name, name).format not in (None, "recorded table")
        ):
            found.add(name)
    return frozenset(found)


def _again(
    folder: Path, name: str | None, foreign: frozenset[str], said: Mapping[str, str], strict: DataError
) -> tuple[RecordedJob, frozenset[str]]:
    """The folder without the table that the strict reader refuses, where the lenient one reads it."""
    file = next((one for one in recorded.documented(folder) if str(strict).startswith(f"{one} ")), "")
    kind = recorded.documented(folder).get(file, "")
    if kind not in _STEMS or file.endswith(".parquet"):
        raise strict
    try:
        found = _made_of("table", Source(folder / file, file), said)
    except Misfit as problems:
        raise problems if len(problems.problems) > 1 else strict from strict
    except DataError:
        raise strict from None
    if not found.metrics and not found.iterations:
        raise strict
    return recorded.read_folder(folder, name, foreign | {file}), foreign | {file}


def _refuse_collapsed(job: RecordedJob, folder: Path, said: Mapping[str, str]) -> None:
    """Raise where rows of the strict table contradict each other because no column says whose they are."""
    for name, kind in recorded.documented(folder).items():
        if kind == "metrics" and not name.endswith(".parquet") and job.metrics is not None:
            refuse_collapsed(Source(folder / name, name), job.metrics, said)


def _read_file(gathered: Gathered, path: Path, name: str, said: Mapping[str, str]) -> None:
    sniffed = looked_at(path, name)
    if sniffed.format == "recorded table" and set(said.values()) & set(header_of(Source(path, name).head)):
        sniffed = replace(sniffed, format="table")
    if sniffed.format is None:
        gathered.unread.append(UnreadFile(name, _why(path, name)))
        return
    kind = sniffed.format
    source = Source(path, name)
    try:
        found = _made_of(kind, source, said)
    except DataError as error:
        other = _otherwise(kind, source, said, error)
        if other is None:
            gathered.fail(name, kind, error)
            return
        kind, found = other
    if source.cut:
        found.notes.append("the packed file is cut short: what stands before the cut is read")
    gathered.add(name, kind, found)


def _read_plainly(gathered: Gathered, places: Mapping[str, Path]) -> None:
    """Where nothing else could be read, take texts of no known form for lines: rules may know some of them."""
    if gathered.files:
        return
    for one in list(gathered.unread):
        place = places.get(one.path)
        if (
            place is None
            or not (one.why == UNKNOWN or tells_of_failures(one.why))
            or one.path.lower().endswith(_WRITINGS)
        ):
            continue
        source = Source(place, one.path)
        if not is_plain(source.head):
            continue
        gathered.unread.remove(one)
        found = _made_of(TEXT, source, {})
        found.notes.append(one.why)
        gathered.add(one.path, PLAIN, found)


def _made_of(kind: str, source: Source, said: Mapping[str, str]) -> Found:
    """What a file holds; one that no reader foresaw must not end the answer about the others with a traceback."""
    try:
        parts = parts_of(source.text()) if kind != TEXT and parts_of(source.head) else []
        return read_parts(made(kind), source, parts, said) if parts else made(kind).read(source, said)
    except _UNFORESEEN as error:
        what = " ".join(f"{type(error).__name__}: {str(error)[:120]}".split())
        raise DataError(f"{source.name}: it cannot be read as {kind} ({what})") from error


def _otherwise(kind: str, source: Source, said: Mapping[str, str], why: DataError) -> tuple[str, Found] | None:
    """What else a file may be that its own format's reader refuses, and what it holds then."""
    if isinstance(why, Misfit):
        return None
    table = _leniently(source, said) if kind == "recorded table" else None
    lines = _as_lines(source, why) if table is None else None
    return ("table", table) if table is not None else None if lines is None else (PLAIN, lines)


def _as_lines(source: Source, why: DataError) -> Found | None:
    """The lines of a file that its own format's reader refuses, where it may be a log; None where it is none."""
    last = source.name.rsplit("/", 1)[-1].lower()
    if made(TEXT).sniff(last, source.head) <= NEVER:
        return None
    try:
        found = _made_of(TEXT, source, {})
    except DataError:
        return None
    found.notes.append(f"read as lines of a log, for {str(why).removeprefix(f'{source.name}: ')}")
    return found


def _leniently(source: Source, said: Mapping[str, str]) -> Found | None:
    """What the lenient reader makes of a table that the strict one refuses; None where it refuses it too."""
    try:
        found = _made_of("table", source, said)
    except DataError:
        return None
    return found if found.metrics or found.iterations else None


def _why(path: Path, name: str) -> str:
    source = Source(path, name)
    try:
        return "it is empty" if not source.head_bytes else recognised(source.head) or UNKNOWN
    except DataError as error:
        return str(error)


def _refuse_mistakes(gathered: Gathered) -> None:
    """Raise where no file could be read and one of them has mistakes in its cells."""
    if gathered.files:
        return
    mistake = next((error for error in gathered.errors if isinstance(error, Misfit)), None)
    if mistake is not None:
        raise mistake
    # Each unread file says what it is: not judged, with its reason.


def _name_documented(gathered: Gathered, job: RecordedJob, folder: Path, foreign: frozenset[str]) -> None:
    """The files that the documented layout gave, with their rows."""
    logs = {log.file: len(log.lines) for log in job.logs}
    for name, kind in recorded.documented(folder).items():
        if name in foreign:
            continue
        table = getattr(job, kind, None) if kind in ("metrics", "iterations", "collectives") else None
        times = getattr(table, "times_s", getattr(table, "step", np.zeros(0)))
        rank = next((one for one, why in job.broken.items() if why.startswith(name)), None)
        if kind == "dump" and rank is not None:
            gathered.unread.append(UnreadFile(name, job.broken[rank].removeprefix(f"{name} ")))
            continue
        label = {"log": "log lines", "dump": "flight recorder", "record": "record"}.get(kind, "recorded table")
        gathered.files.append(ReadFile(name, label, logs.get(name, int(times.size))))
        gathered.notes += [note for note in getattr(table, "notes", ())]
