"""What people say about stretches of a job: ``annotations.csv`` beside the archive, plain enough for any editor.

::

    job,from_s,to_s,label,kind,suspects,note
    llama-70b,1764000000,1764000300,initialisation,,,first checkpoint load
    llama-70b,1764010000,1764010900,fault,slow_link,node=n17 device=mlx5_0; rank=136,cable replaced

Times are Unix seconds (or ISO 8601, UTC unless it says otherwise); an empty `from_s` or `to_s` is open. `kind` is an
incident kind and belongs to the label ``fault``. `suspects` are ``rank=``, ``node=``, ``device=``, joined by blanks,
several separated by semicolons. The file is replaced whole under a lock, so a kill leaves the old or the new one.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from trainwarden.errors import DataError
from trainwarden.trainer_offline.archive.atomic import disk, locked, sync_folder
from trainwarden.trainer_offline.data.annotation_rows import (
    COLUMNS,
    FILE,
    Annotation,
    Culprit,
    Label,
    checked,
    line_of,
    parse_suspects,
    parse_time,
    row_of,
)

MAX_BYTES: Final = 64 * 1024 * 1024


def read(archive: Path) -> list[Annotation]:
    """All annotations, in the order of the file; none if there is no file.

    Raises
    ------
    DataError
        One sentence for each mistake, with its line.
    """
    return [annotation for annotation, _ in _parsed(_text(archive), archive / FILE)]


def spans(archive: Path, job: str) -> dict[str, list[tuple[float, float]]]:
    """Stretches of `job` by label, ``[from_s, to_s)`` in the order of the file; open ends are infinite.

    Raises
    ------
    DataError
        As `read`.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for one in read(archive):
        if one.job == job:
            span = (-math.inf if one.from_s is None else one.from_s, math.inf if one.to_s is None else one.to_s)
            found.setdefault(one.label, []).append(span)
    return found


def named(archive: Path, job: str) -> tuple[Culprit, ...]:
    """Everybody who is a suspect of a fault of `job`, each once.

    Raises
    ------
    DataError
        As `read`.
    """
    faults = (one for one in read(archive) if one.job == job and one.label == "fault")
    return tuple(dict.fromkeys(who for one in faults for who in one.suspects))


def add(archive: Path, annotation: Annotation) -> int:
    """Append `annotation`; its number (from 1).

    Raises
    ------
    DataError
        If it is not valid, or the file has mistakes: they are put right first, by hand.
    """
    return next(iter(append(archive, lambda _: [annotation])))


def append(archive: Path, wanted: Callable[[Sequence[Annotation]], Sequence[Annotation]]) -> dict[int, Annotation]:
    """Append what `wanted` makes of all that are there, which nobody changes meanwhile; by number (from 1).

    Raises
    ------
    DataError
        As `add`.
    """
    with disk(archive):
        archive.mkdir(parents=True, exist_ok=True)
        with locked(archive, "annotations"):
            text = _text(archive)
            known = [annotation for annotation, _ in _parsed(text, archive / FILE)]
            found = wanted(known)
            text = text or ",".join(COLUMNS) + "\n"
            text += "" if text.endswith("\n") else "\n"
            lines = [line_of(_checked_row(one), _header(text)) for one in found]
            if lines:
                _write(archive, text + "".join(lines))
    return dict(enumerate(found, len(known) + 1))


def remove(archive: Path, number: int) -> Annotation:
    """Remove annotation `number` (from 1, as `read` lists them) and return it; the other lines stay as written.

    Raises
    ------
    DataError
        If there is no such annotation, or the file has mistakes.
    """
    return _put(archive, number, lambda _: None)


def replace(archive: Path, number: int, by: Callable[[Annotation], Annotation]) -> Annotation:
    """Put what `by` makes of annotation `number` in its place; the one that was there.

    Raises
    ------
    DataError
        If there is no such annotation, the new one is not valid, or the file has mistakes.
    """
    return _put(archive, number, by)


def _put(archive: Path, number: int, by: Callable[[Annotation], Annotation | None]) -> Annotation:
    with disk(archive), locked(archive, "annotations"):
        text = _text(archive)
        parsed = _parsed(text, archive / FILE)
        if not 1 <= number <= len(parsed):
            raise DataError(f"{archive / FILE}: there is no annotation {number}, the file has {len(parsed)}")
        annotation, (first, last) = parsed[number - 1]
        new = by(annotation)
        line = [] if new is None else [line_of(_checked_row(new), _header(text))]
        lines = text.splitlines(keepends=True)
        _write(archive, "".join([*lines[: first - 1], *line, *lines[last:]]))
    return annotation


def _checked_row(annotation: Annotation) -> list[str]:
    row = row_of(annotation)
    mistakes = checked(dict(zip(COLUMNS, row, strict=True)))[1]
    if mistakes:
        raise DataError("; ".join(mistakes))
    return row


# -- the file ------------------------------------------------------------------------------------------------------


def _text(archive: Path) -> str:
    path = archive / FILE
    try:
        if path.stat().st_size > MAX_BYTES:
            raise DataError(f"{path}: larger than {MAX_BYTES} bytes")
        return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error


def _header(text: str) -> list[str]:
    return [name.strip() for name in next(csv.reader(io.StringIO(text)), [])]


def _parsed(text: str, path: Path) -> list[tuple[Annotation, tuple[int, int]]]:
    """Annotations with the first and last line (from 1) of each."""
    if not text.strip():
        return []
    # A newline as the reader's lines see it: splitlines also cuts at characters that csv leaves in a cell.
    source = csv.reader(text.splitlines(keepends=True), strict=True)
    found: list[tuple[Annotation, tuple[int, int]]] = []
    mistakes: list[str] = []
    try:
        header = [name.strip() for name in next(source, [])]
        mistakes += [f"{path} line 1: {one}" for one in _header_mistakes(header)]
        before = source.line_num
        for cells in [] if mistakes else source:
            first, before = before + 1, source.line_num
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(header):
                mistakes.append(f"{path} line {first}: {len(cells)} cells where {len(header)} belong")
                continue
            annotation, wrong = checked(dict(zip(header, cells, strict=True)))
            mistakes += [f"{path} line {first}: {one}" for one in wrong]
            if annotation is not None:
                found.append((annotation, (first, source.line_num)))
    except csv.Error as error:
        mistakes.append(f"{path} line {source.line_num}: {error}")
    if mistakes:
        raise DataError("\n".join(mistakes))
    return found


def _header_mistakes(header: Sequence[str]) -> list[str]:
    if len(header) == 1 and ";" in header[0]:
        return ["the cells are separated by semicolons, save the table with commas"]
    missing = [name for name in ("job", "from_s", "to_s", "label") if name not in header]
    unknown = [name for name in header if name not in COLUMNS]
    mistakes = [f"column '{name}' is missing" for name in missing]
    mistakes += [f"unknown column '{name[:80]}', allowed are {', '.join(COLUMNS)}" for name in unknown]
    return mistakes + (["a column appears twice"] if len(set(header)) < len(header) else [])


def _write(archive: Path, text: str) -> None:
    part = archive / f".{FILE}.{os.getpid()}.part"
    with part.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(archive / FILE)
    sync_folder(archive)


__all__ = [
    "FILE", "MAX_BYTES", "Annotation", "Culprit", "Label", "add", "append", "named", "parse_suspects", "parse_time",
    "read", "remove", "replace", "spans",
]  # fmt: skip
