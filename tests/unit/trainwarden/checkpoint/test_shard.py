"""The file format: what is sealed reads back, and nothing that is damaged passes."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwarden.checkpoint import shard
from trainwarden.checkpoint.shard import (
    CRC_HERE,
    CRCS,
    CheckpointError,
    Facts,
    Id,
    Unsealed,
    header_bytes,
    lay_out,
    parse_header,
    read_header,
    verify,
)

FACTS = Facts("llama", Id(1, 120), 3, 4, "world 4", 12.5, '{"model":{}}')


def sealed(path: Path, data: bytes, crc: str = CRC_HERE) -> bytes:
    tensors = lay_out([("a", "F32", (2, 3)), ("b", "U8", (len(data) - 24,))])
    chunks = [CRCS[crc](data[at : at + shard.CHUNK_BYTES], 0) for at in range(0, len(data), shard.CHUNK_BYTES)]
    text = header_bytes(FACTS, tensors, chunks, crc) + data
    path.write_bytes(text)
    return text


def check(path: Path) -> shard.Header:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        header = read_header(descriptor)
        verify(descriptor, header)
        return header
    finally:
        os.close(descriptor)


@pytest.fixture
def _small_chunks(monkeypatch):
    monkeypatch.setattr(shard, "CHUNK_BYTES", 1024)


@pytest.mark.parametrize("crc", sorted(CRCS))
def test_a_sealed_shard_says_what_it_is(tmp_path, crc):
    sealed(tmp_path / "s", bytes(5000), crc)
    header = check(tmp_path / "s")
    assert header.facts == FACTS
    assert (header.data_bytes, header.crc) == (5000, crc)
    assert header.tensors["a"].shape == (2, 3)


def test_the_layout_is_that_of_safetensors(tmp_path):
    """Written from the format's description: length, JSON, then the data, without gaps and to the file's last byte."""
    text = sealed(tmp_path / "s", bytes(range(100)))
    length = int.from_bytes(text[:8], "little")
    fields = json.loads(text[8 : 8 + length])
    assert all(isinstance(value, str) for value in fields.pop("__metadata__").values())
    assert fields["a"] == {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    assert 8 + length + max(one["data_offsets"][1] for one in fields.values()) == len(text)


def test_without_its_length_a_shard_is_not_sealed(tmp_path):
    text = sealed(tmp_path / "s", bytes(100))
    for beginning in (b"", bytes(8) + text[8:]):
        (tmp_path / "s").write_bytes(beginning)
        with pytest.raises(Unsealed):
            check(tmp_path / "s")


@pytest.mark.thorough
@pytest.mark.usefixtures("_small_chunks")
def test_every_seeded_flip_and_truncation_is_found(tmp_path):
    path, draw = tmp_path / "s", random.Random(7)
    good = sealed(path, draw.randbytes(5000))
    for number in range(1000):
        bad = bytearray(good)
        if number % 2:
            bad[draw.randrange(len(bad))] ^= 1 << draw.randrange(8)
        else:
            del bad[draw.randrange(len(bad)) :]
        path.write_bytes(bad)
        with pytest.raises(CheckpointError):
            check(path)


@given(st.binary(max_size=300))
def test_a_foreign_header_is_refused_and_nothing_worse(text):
    with pytest.raises(CheckpointError):
        parse_header(text)


@pytest.mark.parametrize(
    "change",
    [
        {"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [8, 32]}},
        {"a": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 24]}},
        {"a": {"dtype": "F32", "shape": [-2, -3], "data_offsets": [0, 24]}},
        {"a": {"dtype": "F33", "shape": [6], "data_offsets": [0, 24]}},
        {"a": {"dtype": "BOOL", "shape": [True] * 24, "data_offsets": [0, 1]}},
        {"a": []},
    ],
)
def test_a_header_that_lies_with_a_good_check_is_refused(tmp_path, change):
    text = header_bytes(FACTS, lay_out([("a", "F32", (2, 3))]), [0])
    fields = json.loads(text[8:]) | change
    fields["__metadata__"]["check"] = "0" * 8
    forged = json.dumps(fields, separators=(",", ":")).encode()
    at = len(b'{"__metadata__":{"check":"')
    with pytest.raises(CheckpointError):
        parse_header(forged[:at] + f"{CRCS[CRC_HERE](forged, 0):08x}".encode() + forged[at + 8 :])


def test_deeply_nested_json_is_refused():
    with pytest.raises(CheckpointError):
        parse_header(b'{"__metadata__":{"check":"' + b"[" * 100_000)
