"""Files of a recorded folder as bounded lines: plain or gzip, every failure one sentence with file and line."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from trainwarden.errors import DataError

_SHOWN_CHARS = 60
MAX_UNPACKED = 8 * 1024 * 1024 * 1024  # of one packed table: more text than its columns may fill in memory
_MOST_RATIO = 1032  # gzip packs nothing tighter
_PIECE = 1024 * 1024


def shown(value: object) -> str:
    """`value` as it may stand in a sentence: quoted, on one line, cut.

    Examples
    --------
    >>> shown("abc"), shown("x" * 100)[-5:]
    ("'abc'", "xxx…'")
    """
    text = str(value)
    return repr(text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…")


def mistake(error: Exception) -> tuple[str, str]:
    """What msgspec says, without its way of naming places, and the key that it means ("" for none).

    Examples
    --------
    >>> mistake(ValueError("Expected `int`, got `str` - at `$.parallel.tp`"))
    ('Expected `int`, got `str`', 'parallel.tp')
    """
    what, _, where = str(error).partition(" - at `$")
    return what, where.removesuffix("`").removeprefix(".")


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn what goes wrong while a file is read into a DataError about `name`."""
    try:
        yield
    except EOFError as error:
        raise DataError(f"{name} is cut short: its gzip data ends too early") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{name} is no sound gzip file ({error})") from error
    except OSError as error:
        raise DataError(f"{name} cannot be read ({error.strerror or error})") from error


def opened(path: Path) -> BinaryIO:
    """`path` for reading, unpacked if its name ends in ``.gz`` or ``.zst``.

    Raises
    ------
    DataError
        If it needs zstandard, which is not installed.
    """
    if path.suffix == ".zst":
        try:
            import zstandard
        except ModuleNotFoundError as error:
            raise DataError(f"{path.name} needs zstandard: pip install 'trainwarden[compression]'") from error
        # A reader of a stream without frames' sizes has no readline of its own.
        return cast(BinaryIO, io.BufferedReader(zstandard.open(path, "rb")))
    return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def refuse_bomb(path: Path, name: str) -> None:
    """Refuse a packed file that would fill the memory; one too small for that is not looked into.

    Raises
    ------
    DataError
        If it is larger than `MAX_UNPACKED` bytes unpacked.
    """
    if path.suffix != ".gz" or path.stat().st_size * _MOST_RATIO <= MAX_UNPACKED:
        return
    with opened(path) as file:
        size = 0
        while piece := file.read(_PIECE):
            size += len(piece)
            if size > MAX_UNPACKED:
                raise DataError(f"{name} is larger than {MAX_UNPACKED:,} bytes unpacked: write it as Parquet")


def bounded_lines(file: BinaryIO, name: str, max_bytes: int) -> Iterator[bytes]:
    """Lines of `file` with their newline, none longer than `max_bytes`.

    Raises
    ------
    DataError
        At a longer line.
    """
    number = 0
    while line := file.readline(max_bytes + 1):
        number += 1
        if len(line) > max_bytes:
            raise DataError(f"{name} line {number} is longer than {max_bytes:,} bytes")
        yield line


def whole(path: Path, name: str, max_bytes: int) -> bytes:
    """All bytes of a small file.

    Raises
    ------
    DataError
        If it cannot be read or is larger than `max_bytes`.
    """
    with reading(name), opened(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise DataError(f"{name} is larger than {max_bytes:,} bytes")
    return data
