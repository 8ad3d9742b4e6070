"""A detector's state as plain data: a checksum, MessagePack and npz, nothing that executes when it is read."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden.errors import DetectorError

# What msgspec, numpy and zipfile make of damage; the last two where it looks compressed or encrypted.
_DAMAGE = (
    msgspec.DecodeError, KeyError, TypeError, ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error,
    RuntimeError,
)  # fmt: skip
# 16,384 ranks with 20 metrics of each GPU need 0.78 GB, and their models 0.2; anything above is no state of ours.
MAX_STATE_BYTES: Final = 1 << 30
_CHECKSUM_BYTES: Final = 4


def pack(kind: str, plain: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]] | None = None) -> bytes:
    """One detector's state: `plain` as MessagePack, `arrays` as npz, marked with the detector's `kind`."""
    file = io.BytesIO()
    if arrays:
        np.savez(file, allow_pickle=False, **dict(arrays))
    state = bytearray(_CHECKSUM_BYTES)
    told = {"kind": kind, "plain": plain, "arrays": file.getvalue()}
    msgspec.msgpack.Encoder(enc_hook=list).encode_into(told, state, _CHECKSUM_BYTES)
    state[:_CHECKSUM_BYTES] = _checksum(state)
    return bytes(state)


def unpack(kind: str, state: bytes) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """What `pack` was given.

    Raises
    ------
    DetectorError
        If `state` is damaged, too large or another detector's.

    Examples
    --------
    >>> plain, arrays = unpack("k", pack("k", {"n": 3}, {"x": np.arange(2)}))
    >>> plain["n"], arrays["x"].tolist()
    (3, [0, 1])
    """
    if len(state) > MAX_STATE_BYTES:
        raise DetectorError(f"state of {len(state)} bytes is larger than {MAX_STATE_BYTES}")
    if state[:_CHECKSUM_BYTES] != _checksum(state):
        raise DetectorError(f"state of {kind} is damaged: its checksum is another")
    try:
        raw = msgspec.msgpack.decode(memoryview(state)[_CHECKSUM_BYTES:])
        if not isinstance(raw, dict) or raw.get("kind") != kind:
            raise DetectorError(f"this is not the state of a {kind} detector")
        arrays: dict[str, npt.NDArray[Any]] = {}
        if raw["arrays"]:
            inside = zipfile.ZipFile(io.BytesIO(raw["arrays"])).infolist()
            if sum(one.file_size for one in inside) > MAX_STATE_BYTES:
                raise DetectorError(f"state of {kind} is too large")
            with np.load(io.BytesIO(raw["arrays"]), allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
        return dict(raw["plain"]), arrays
    except _DAMAGE as error:
        raise DetectorError(f"state of {kind} is damaged: {error}") from error


def _checksum(state: bytes | bytearray) -> bytes:
    return zlib.crc32(memoryview(state)[_CHECKSUM_BYTES:]).to_bytes(_CHECKSUM_BYTES, "big")
