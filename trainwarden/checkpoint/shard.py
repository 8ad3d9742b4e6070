"""The file of one rank's state: safetensors with facts in its metadata, and a CRC for each 4 MiB. No torch, no pickle.

The file is 8 bytes of length, a JSON header, and the tensors' bytes without gaps. While the length is zero the file is
being written (WRITING); storing the length last makes it complete (SEALED), so that no crash leaves half a header.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, Final

try:
    import crc32c
except ImportError:  # a training image may hold this package without its dependencies
    crc32c = None  # type: ignore[assignment]

CHUNK_BYTES: Final = 4 * 1024 * 1024
FORMAT: Final = "trainwarden-checkpoint-1"
MOST_HEADER_BYTES: Final = 64 * 1024 * 1024
LENGTH_BYTES: Final = 8
_THREADS: Final = min(4, os.cpu_count() or 1)  # that verify; a few take all of a socket's memory bandwidth
_PIECE_BYTES: Final = 1024 * 1024  # that are read and checked at a time: what a processor's cache holds
_ALIGNMENT: Final = 64  # of the data: a cache line
_HEAD: Final = b'{"__metadata__":{"check":"'
_CHECK_BYTES: Final = 8  # hexadecimal digits of a CRC
ITEM_BYTES: Final = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
"""Bytes of one element by safetensors' name of its type."""

Crc = Callable[[Any, int], int]
CRCS: Final[dict[str, Crc]] = {"crc32": zlib.crc32}
if crc32c is not None:
    CRCS["crc32c"] = crc32c.crc32c
"""Checksums by name. CRC32C runs at memory speed; zlib's needs no package."""
CRC_HERE: Final = "crc32" if crc32c is None else "crc32c"


class CheckpointError(Exception):
    """A checkpoint cannot be used; the message says which and why, in one sentence."""


class Unsealed(CheckpointError):
    """The file is empty or still being written."""


@dataclass(frozen=True, slots=True, order=True)
class Id:
    """Which checkpoint: a later attempt is newer than any step of an earlier one.

    A job that went back to step 50 must not meet step 100 of the attempt before it.
    """

    attempt: int
    step: int

    def __str__(self) -> str:
        return f"step-{self.step}-attempt-{self.attempt}"


@dataclass(frozen=True, slots=True)
class Facts:
    """What a shard says of itself. `state` is JSON in which tensors are named."""

    job: str
    id: Id
    rank: int
    world: int
    topology: str
    saved_at_s: float
    state: str = "{}"


@dataclass(frozen=True, slots=True)
class Tensor:
    """Bytes `start` to `end` of the data."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Header:
    """A sealed shard's header, checked."""

    facts: Facts
    tensors: dict[str, Tensor]
    crc: str
    chunks: tuple[int, ...]
    data_start: int
    data_bytes: int
    digest: str
    """BLAKE2b of the header, which holds the CRC of every chunk: equal digests are equal shards."""

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return self.data_start + self.data_bytes


def lay_out(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> dict[str, Tensor]:
    """Give each (name, dtype, shape) its bytes, in the order given.

    Examples
    --------
    >>> lay_out([("a", "F32", (2, 3)), ("b", "BOOL", ())])["b"]
    Tensor(dtype='BOOL', shape=(), start=24, end=25)
    """
    laid, at = {}, 0
    for name, dtype, shape in tensors:
        end = at + prod(shape) * ITEM_BYTES[dtype]
        laid[name] = Tensor(dtype, shape, at, end)
        at = end
    return laid


def chunk_count(data_bytes: int) -> int:
    return -(-data_bytes // CHUNK_BYTES)


def header_bytes(facts: Facts, tensors: dict[str, Tensor], chunks: Sequence[int], crc: str = CRC_HERE) -> bytes:
    """Length and header; as long whatever the CRCs in `chunks` are."""
    metadata = {
        "check": "0" * _CHECK_BYTES, "format": FORMAT, "job": facts.job, "attempt": str(facts.id.attempt),
        "step": str(facts.id.step), "rank": str(facts.rank), "world": str(facts.world), "topology": facts.topology,
        "saved_at_s": repr(facts.saved_at_s), "crc": crc, "chunks": "".join(f"{one:08x}" for one in chunks),
        "state": facts.state,
    }  # fmt: skip
    entries = {
        name: {"dtype": one.dtype, "shape": one.shape, "data_offsets": (one.start, one.end)}
        for name, one in tensors.items()
    }
    text = json.dumps({"__metadata__": metadata, **entries}, separators=(",", ":")).encode()
    text += b" " * (-(LENGTH_BYTES + len(text)) % _ALIGNMENT)
    if len(text) > MOST_HEADER_BYTES:
        raise CheckpointError(f"the names and the state beside the tensors take {len(text)} bytes of JSON; 64 MiB fit")
    check = f"{CRCS[crc](text, 0):08x}".encode()
    at = len(_HEAD)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text[:at] + check + text[at + _CHECK_BYTES :]


def read_header(descriptor: int) -> Header:
    """The header of an open shard, which may be anything.

    Raises
    ------
    Unsealed
        If the file is still being written.
    CheckpointError
        If the header is damaged or the file has another size than it says.
    """
    size = os.fstat(descriptor).st_size
    length = int.from_bytes(os.pread(descriptor, LENGTH_BYTES, 0), "little")
    if length == 0:
        raise Unsealed("the shard is not sealed")
    if length > min(MOST_HEADER_BYTES, size - LENGTH_BYTES):
        raise CheckpointError("the header's length is damaged")
    header = parse_header(os.pread(descriptor, length, LENGTH_BYTES))
    if header.size != size:
        raise CheckpointError(f"the file has {size} bytes, not {header.size}")
    return header


def parse_header(text: bytes) -> Header:
    """The header `text`, without its length.

    Raises
    ------
    CheckpointError
        If it is damaged or not ours.
    """
    try:
        fields = json.loads(text)
        metadata = fields.pop("__metadata__")
        crc = CRCS[metadata["crc"]]
        at = len(_HEAD)
        blank = text[:at] + b"0" * _CHECK_BYTES + text[at + _CHECK_BYTES :]
        if text[:at] != _HEAD or metadata["format"] != FORMAT or metadata["check"] != f"{crc(blank, 0):08x}":
            raise CheckpointError("the header fails its check")
        facts = Facts(
            job=metadata["job"], id=Id(_count(metadata["attempt"]), _count(metadata["step"])),
            rank=_count(metadata["rank"]), world=_count(metadata["world"]), topology=metadata["topology"],
            saved_at_s=float(metadata["saved_at_s"]), state=metadata["state"],
        )  # fmt: skip
        tensors = {name: _tensor(one) for name, one in fields.items()}
        chunks = tuple(int(metadata["chunks"][k : k + 8], 16) for k in range(0, len(metadata["chunks"]), 8))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError("the header is damaged") from error
    data_bytes = _end_of(tensors)
    if len(chunks) != chunk_count(data_bytes) or not facts.rank < facts.world:
        raise CheckpointError("the header contradicts itself")
    digest = hashlib.blake2b(text, digest_size=16).hexdigest()
    return Header(facts, tensors, metadata["crc"], chunks, LENGTH_BYTES + len(text), data_bytes, digest)


def verify(descriptor: int, header: Header) -> None:
    """Read all data of an open shard and compare each chunk's CRC.

    Raises
    ------
    CheckpointError
        If a chunk differs; it names the chunk.
    """
    # Reading and checking both leave Python's lock, so that a second thread halves the time.
    stride = min(_THREADS, len(header.chunks)) or 1
    with ThreadPoolExecutor(stride) as pool:
        for _ in pool.map(lambda first: _verify(descriptor, header, first, stride), range(stride)):
            pass


def _verify(descriptor: int, header: Header, first: int, stride: int) -> None:
    """Every chunk of number `first` modulo `stride`."""
    piece = memoryview(bytearray(_PIECE_BYTES))
    for number in range(first, len(header.chunks), stride):
        at, crc = number * CHUNK_BYTES, 0
        end = min(at + CHUNK_BYTES, header.data_bytes)
        while at < end and (got := os.preadv(descriptor, [piece[: end - at]], header.data_start + at)):
            crc = CRCS[header.crc](piece[:got], crc)
            at += got
        if at < end:
            raise CheckpointError(f"chunk {number} of {len(header.chunks)} is cut off")
        _compare(header, number, crc)


def compare(header: Header, number: int, data: memoryview) -> None:
    """Compare the CRC of chunk `number` with that of `data`."""
    _compare(header, number, CRCS[header.crc](data, 0))


def _compare(header: Header, number: int, crc: int) -> None:
    if crc != header.chunks[number]:
        raise CheckpointError(f"chunk {number} of {len(header.chunks)} fails its CRC")


def _count(text: str) -> int:
    if not (isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) < 16):
        raise ValueError(text)
    return int(text)


def _tensor(fields: dict[str, Any]) -> Tensor:
    shape, (start, end) = tuple(fields["shape"]), fields["data_offsets"]
    if not all(type(one) is int and one >= 0 for one in (*shape, start, end)):
        raise ValueError(fields)
    if end - start != prod(shape) * ITEM_BYTES[fields["dtype"]]:
        raise ValueError(fields)
    return Tensor(fields["dtype"], shape, start, end)


def _end_of(tensors: dict[str, Tensor]) -> int:
    spans = [(0, 0), *sorted((one.start, one.end) for one in tensors.values())]
    if any(before[1] != after[0] for before, after in pairwise(spans)):
        raise CheckpointError("the header's tensors overlap or leave gaps")
    return spans[-1][1]
