"""One file that is to be read: unpacked, decoded and bounded."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Final, cast

from trainwarden.errors import DataError
from trainwarden.recorded.files import reading

HEAD_BYTES: Final = 65_536
MAX_BYTES: Final = 512 * 1024 * 1024  # unpacked: as text and columns it takes some ten times as much memory
PACKED: Final = (".gz", ".bz2", ".xz", ".zst")
_PIECE: Final = 65_536
_MAGIC: Final = {b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\xfd7zXZ": ".xz", b"\x28\xb5\x2f\xfd": ".zst"}


class Source:
    """A file by its path, and its name in messages.

    Parameters
    ----------
    path : Path
    name : str
        Relative to what the user named.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self.cut = False

    @property
    def stem(self) -> str:
        """The last part of the name without the endings of packing, in lower case."""
        base = self.path.name.lower()
        for ending in PACKED:
            base = base.removesuffix(ending)
        return base

    @property
    def title(self) -> str:
        """What stands above the text: the file's name."""
        return self.path.name

    def plain_path(self) -> Path:
        """The path, for a library that opens the file itself.

        Raises
        ------
        DataError
            If the file is packed.
        """
        with reading(self.name), self.path.open("rb") as raw:
            if raw.read(6).startswith(tuple(_MAGIC)):
                raise DataError(f"{self.name} is packed: unpack it")
        return self.path

    @cached_property
    def head_bytes(self) -> bytes:
        """The first bytes, unpacked.

        Raises
        ------
        DataError
            If the file cannot be read.
        """
        with self._open() as file:
            return self._up_to_the_cut(file, HEAD_BYTES)

    @cached_property
    def head(self) -> str:
        """The first bytes as text; what is not text is replaced."""
        return decoded(self.head_bytes)

    def data(self, most: int | None = None) -> bytes:
        """All bytes, unpacked.

        Raises
        ------
        DataError
            If it cannot be read, or is larger than `most` bytes (default `MAX_BYTES`).
        """
        most = MAX_BYTES if most is None else most
        with self._open() as file:
            data = self._up_to_the_cut(file, most + 1)
        if len(data) > most:
            remedy = "cut it, or write it as metrics.parquet or metrics.csv (docs/data.md)"
            raise DataError(f"{self.name} is larger than {most:,} bytes unpacked: {remedy}")
        return data

    def _up_to_the_cut(self, file: BinaryIO, most: int) -> bytes:
        """What a packed file holds; of one that is cut short the lines before the cut."""
        pieces, size = [], 0
        try:
            while size < most and (piece := file.read(min(_PIECE, most - size))):
                pieces.append(piece)
                size += len(piece)
        except (EOFError, zlib.error, lzma.LZMAError):
            whole = b"".join(pieces).rpartition(b"\n")[0]
            if not whole:
                raise
            self.cut = True
            return whole + b"\n"
        return b"".join(pieces)

    def text(self) -> str:
        """The whole file as text without a byte-order mark, its lines ended by newlines.

        Raises
        ------
        DataError
            As `data`.
        """
        return decoded(self.data()).replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")

    @contextmanager
    def _open(self) -> Iterator[BinaryIO]:
        with reading(self.name):
            with self.path.open("rb") as raw:
                magic = raw.read(6)
            packing = next((one for mark, one in _MAGIC.items() if magic.startswith(mark)), "")
            try:
                with _opener(self.path, packing, self.name) as file:
                    yield file
            except (lzma.LZMAError, zlib.error) as error:
                raise DataError(f"{self.name} is no sound {packing} file ({error})") from error


def decoded(data: bytes) -> str:
    """`data` as text, by its byte-order mark or its zeros; what is not UTF-8 is read as Latin-1.

    Examples
    --------
    >>> [decoded(text) for text in ("a,b".encode("utf-16"), b"\\xef\\xbb\\xbfa", "é".encode("latin-1"), b"a\\0b\\0")]
    ['a,b', 'a', 'é', 'ab']
    """
    if data.startswith(b"SQLite format 3\0"):
        return data.decode("latin-1")  # its pages of zeros are no UTF-16
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace").lstrip("\ufeff")
    probe = data[:200]
    if probe and probe[1::2].count(0) * 2 > len(probe) * 0.8:
        return data.decode("utf-16-le", "replace")
    if probe and probe[0::2].count(0) * 2 > len(probe) * 0.8:
        return data.decode("utf-16-be", "replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if len(data) == HEAD_BYTES and error.start >= len(data) - 4:  # a head that ends within a character
            return data[: error.start].decode("utf-8-sig")
        return data.decode("latin-1")


def _opener(path: Path, packing: str, name: str) -> BinaryIO:
    if packing == ".gz":
        return cast(BinaryIO, gzip.open(path, "rb"))
    if packing == ".bz2":
        return cast(BinaryIO, bz2.open(path, "rb"))
    if packing == ".xz":
        return cast(BinaryIO, lzma.open(path, "rb"))
    if packing == ".zst":
        try:
            import zstandard
        except ModuleNotFoundError as error:
            raise DataError(f"{name} needs zstandard: pip install 'trainwarden[compression]'") from error
        return cast(BinaryIO, zstandard.open(path, "rb"))
    return path.open("rb")
