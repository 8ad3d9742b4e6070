"""What lies at a path: which file is of which format, and which jobs there are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final

from trainwarden.errors import DataError
from trainwarden.formats import CATALOG
from trainwarden.formats.collected import parts_of
from trainwarden.formats.protocol import GENERIC, LIKELY, SURE, Format
from trainwarden.formats.source import Source
from trainwarden.formats.text.log_text import NAME as TEXT
from trainwarden.formats.text.log_text import goes_on_as_log
from trainwarden.formats.unjudged import is_answer, recognised
from trainwarden.recorded import folder as recorded
from trainwarden.recorded.files import reading

MAX_FILES: Final = 5_000
MAX_DEPTH: Final = 6


@dataclass(frozen=True, slots=True)
class Sniffed:
    """A file and the format it is taken for; None where nothing fits."""

    path: Path
    name: str
    format: str | None
    confidence: float


@cache
def made(name: str) -> Format:
    """The format called `name`."""
    module, _, kind = CATALOG[name].partition(":")
    found: Format = getattr(import_module(module), kind)()
    return found


def sniffed(source: Source) -> tuple[str | None, float]:
    """The format that fits best, and how certain it is; the first one of equals.

    Raises
    ------
    DataError
        If the file cannot be read.
    """
    if source.stem.endswith(".parquet") and source.head_bytes:
        return "parquet table", LIKELY
    head = source.head
    name = source.name.rsplit("/", 1)[-1].lower()
    for packed in (".gz", ".zst", ".bz2", ".xz"):
        name = name.removesuffix(packed)
    parts = parts_of(head)
    if parts:
        best, certain = _fitting(name, parts[0].text)
        if certain >= SURE:
            return best, certain
    best, certain = _fitting(name, head)
    if certain < SURE and recognised(head) is not None:
        # A report with stamps of its own is no log, but what is pasted behind one may be.
        if not (is_answer(head) and goes_on_as_log(head)):
            return None, 0.0
        return TEXT, max(certain, LIKELY)
    return best, certain


def _fitting(name: str, head: str) -> tuple[str | None, float]:
    """The format that fits best to a file called `name` that begins with `head`."""
    best, certain = None, 0.0
    for one in CATALOG:
        confidence = made(one).sniff(name, head)
        if confidence > certain:
            best, certain = one, confidence
    return best, certain


def files_below(folder: Path) -> Iterator[tuple[Path, str]]:
    """Files in `folder` and below, with their names relative to it; hidden ones are left out."""
    count = 0
    for place, folders, files in os.walk(folder):
        at = Path(place)
        depth = len(at.relative_to(folder).parts)
        folders[:] = sorted(name for name in folders if not name.startswith(".")) if depth < MAX_DEPTH else []
        for name in sorted(files):
            if name.startswith(".") or not (at / name).is_file():
                continue
            count += 1
            if count > MAX_FILES:
                raise DataError(f"'{folder}' holds more than {MAX_FILES:,} files: name one job's folder")
            yield at / name, str((at / name).relative_to(folder))


def looked_at(path: Path, name: str) -> Sniffed:
    """What a file is taken for."""
    try:
        found, confidence = sniffed(Source(path, name))
    except DataError:
        return Sniffed(path, name, None, 0.0)
    return Sniffed(path, name, found, confidence)


def jobs_at(path: Path) -> tuple[list[Path], bool]:
    """The jobs at `path`, each a folder or a file, and whether they are a batch of several.

    Raises
    ------
    DataError
        If nothing there can be read; the message names what lies there.
    """
    with reading(f"'{path}'"):
        is_file, is_folder, is_other = path.is_file(), path.is_dir(), path.exists()
    if is_file:
        return [path], False
    if not is_folder:
        what = "is a pipe or a device" if is_other else ""
        remedy = f"pass it by standard input: trainwarden detect - < '{path}'"
        raise DataError(f"'{path}' {what}; {remedy}" if what else f"there is no file or folder '{path}'")
    if recorded.is_job(path):
        return [path], False
    with reading(f"folder '{path.name}'"):
        tops = [one for one in sorted(path.iterdir()) if one.is_file() and not one.name.startswith(".")]
    if any(looked_at(one, one.name).confidence > GENERIC for one in tops):
        return [path], False
    try:
        return recorded.jobs_in(path), True
    except DataError:
        found = [looked_at(one, name) for one, name in files_below(path)]
    if found:
        return [path], False  # what cannot be read is named, with its reason
    raise DataError(f"nothing in '{path}' can be read: there is no file (docs/data.md says what can)")
