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
import datetime
import io
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, get_args

import msgspec

from trainer_offline.archive_files import disk, locked, sync_folder
from trainwarden.errors import DataError
from trainwarden.records import IncidentKind

FILE: Final = "annotations.csv"
COLUMNS: Final = ("job", "from_s", "to_s", "label", "kind", "suspects", "note")
MAX_BYTES: Final = 64 * 1024 * 1024

Label = Literal["normal", "fault", "initialisation", "ignore"]


class Culprit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who was at fault; whatever of rank, node, device is unknown is None."""

    rank: int | None = None
    node: str | None = None
    device: str | None = None

    def __str__(self) -> str:
        found = (("rank", self.rank), ("node", self.node), ("device", self.device))
        return " ".join(f"{name}={value}" for name, value in found if value is not None)


class Annotation(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of one job; `from_s` None means from the beginning, `to_s` None to the end."""

    job: str
    label: Label
    from_s: float | None = None
    to_s: float | None = None
    kind: str | None = None
    suspects: tuple[Culprit, ...] = ()
    note: str = ""


def read(archive: Path) -> list[Annotation]:
    """All annotations, in the order of the file; none if there is no file.

    Raises
    ------
    DataError
        One sentence for each mistake, with its line.
    """
    return [annotation for annotation, _ in _parsed(_text(archive), archive / FILE)]


def spans(archive: Path, job: str, label: Label) -> list[tuple[float, float]]:
    """Stretches of `job` with `label`, ``[from_s, to_s)`` by start; open ends are infinite.

    Raises
    ------
    DataError
        As `read`.
    """
    return sorted(
        (-math.inf if one.from_s is None else one.from_s, math.inf if one.to_s is None else one.to_s)
        for one in read(archive)
        if one.job == job and one.label == label
    )


def add(archive: Path, annotation: Annotation) -> int:
    """Append `annotation`; its number (from 1).

    Raises
    ------
    DataError
        If it is not valid, or the file has mistakes: they are put right first, by hand.
    """
    row = _row(annotation)
    mistakes = _checked(dict(zip(COLUMNS, row, strict=True)))[1]
    if mistakes:
        raise DataError("; ".join(mistakes))
    with disk(archive):
        archive.mkdir(parents=True, exist_ok=True)
        with locked(archive, "annotations"):
            text = _text(archive)
            number = len(_parsed(text, archive / FILE)) + 1
            text = text or ",".join(COLUMNS) + "\n"
            _write(archive, text + ("" if text.endswith("\n") else "\n") + _line(row, _header(text)))
    return number


def remove(archive: Path, number: int) -> Annotation:
    """Remove annotation `number` (from 1, as `read` lists them) and return it; the other lines stay as written.

    Raises
    ------
    DataError
        If there is no such annotation, or the file has mistakes.
    """
    with disk(archive), locked(archive, "annotations"):
        text = _text(archive)
        parsed = _parsed(text, archive / FILE)
        if not 1 <= number <= len(parsed):
            raise DataError(f"{archive / FILE}: there is no annotation {number}, the file has {len(parsed)}")
        annotation, (first, last) = parsed[number - 1]
        lines = text.splitlines(keepends=True)
        _write(archive, "".join(lines[: first - 1] + lines[last:]))
    return annotation


def parse_suspects(text: str) -> tuple[Culprit, ...]:
    """Suspects as they stand in the file.

    Raises
    ------
    ValueError
        One clause on what is wrong.

    Examples
    --------
    >>> [str(one) for one in parse_suspects("device=mlx5_0 node=n17; rank=136")]
    ['node=n17 device=mlx5_0', 'rank=136']
    """
    found = []
    for word in text.split(";"):
        parts: dict[str, str] = {}
        for pair in word.split():
            name, equals, value = pair.partition("=")
            if name not in ("rank", "node", "device") or not equals or not value or name in parts:
                raise ValueError(f"suspects has '{pair[:80]}' where rank=, node= or device= belongs")
            parts[name] = value
        if not parts:
            continue
        rank = parts.pop("rank", None)
        if rank is not None and not (rank.isascii() and rank.isdigit() and len(rank) <= 6):
            raise ValueError(f"suspects has a rank '{rank[:80]}' that is no rank")
        found.append(Culprit(rank=None if rank is None else int(rank), **parts))
    return tuple(found)


def parse_time(text: str) -> float | None:
    """Unix seconds of a number or an ISO 8601 time; None if empty.

    Raises
    ------
    ValueError
        If it is neither.

    Examples
    --------
    >>> parse_time("2026-01-01T00:00:00")
    1767225600.0
    """
    if not text.strip():
        return None
    try:
        value = float(text)
    except ValueError:
        at = datetime.datetime.fromisoformat(text.strip())
        value = (at if at.tzinfo else at.replace(tzinfo=datetime.UTC)).timestamp()
    if not math.isfinite(value):
        raise ValueError(f"'{text[:80]}' is no time")
    return value


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
            annotation, wrong = _checked(dict(zip(header, cells, strict=True)))
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


def _checked(cells: dict[str, str]) -> tuple[Annotation | None, list[str]]:
    """The annotation of one row, or what is wrong with it, one clause each."""
    cells = {name: cell.strip() for name, cell in cells.items()}
    mistakes = []
    times: dict[str, float | None] = {}
    if not cells["job"]:
        mistakes.append("job is empty")
    for name in ("from_s", "to_s"):
        try:
            times[name] = parse_time(cells[name])
        except ValueError:
            mistakes.append(f"{name} '{cells[name][:80]}' is neither seconds nor an ISO 8601 time")
    from_s, to_s = times.get("from_s"), times.get("to_s")
    if from_s is not None and to_s is not None and from_s >= to_s:
        mistakes.append("from_s is not before to_s")
    label, kind = cells["label"], cells.get("kind", "")
    if label not in get_args(Label):
        mistakes.append(f"label '{label[:80]}' is none of {', '.join(get_args(Label))}")
    elif label == "fault" and not kind:
        mistakes.append("a fault needs a kind")
    elif label != "fault" and kind:
        mistakes.append(f"kind belongs to label fault, not to {label}")
    if kind and kind not in get_args(IncidentKind):
        mistakes.append(f"kind '{kind[:80]}' is none of {', '.join(get_args(IncidentKind))}")
    suspects: tuple[Culprit, ...] = ()
    try:
        suspects = parse_suspects(cells.get("suspects", ""))
    except ValueError as error:
        mistakes.append(str(error))
    if mistakes:
        return None, mistakes
    row = {**cells, "from_s": from_s, "to_s": to_s, "kind": kind or None, "suspects": suspects}
    return msgspec.convert(row, Annotation), []


def _row(annotation: Annotation) -> list[str]:
    times = ["" if one is None else repr(one) for one in (annotation.from_s, annotation.to_s)]
    suspects = "; ".join(str(one) for one in annotation.suspects)
    note = " ".join(annotation.note.split())
    return [annotation.job, *times, annotation.label, annotation.kind or "", suspects, note]


def _line(row: Sequence[str], header: Sequence[str]) -> str:
    """`row` in the order of the file's own columns."""
    cells = dict(zip(COLUMNS, row, strict=True))
    lost = [name for name, cell in cells.items() if cell and name not in header]
    if lost:
        raise DataError(f"{FILE} has no column {', '.join(lost)}; add it to the first line")
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow([cells[name] for name in header])
    return out.getvalue()


def _write(archive: Path, text: str) -> None:
    part = archive / f".{FILE}.{os.getpid()}.part"
    with part.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(archive / FILE)
    sync_folder(archive)
