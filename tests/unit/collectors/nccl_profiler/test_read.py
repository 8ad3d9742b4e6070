"""The readers of the plug-in's file equal a slow plain one, and bear whatever lies there."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests import nccl_player
from tests.hook_doubles import write_header
from tests.nccl_files import CallsFileWriter
from trainwarden import hook
from trainwarden.collectors.nccl_profiler import layout, read

Rows = list[tuple[object, ...]]
Contents = tuple[tuple[int, int, int | None, int] | None, Rows, Rows]


def plain(data: bytes) -> Contents:
    """Header, communicators and calls of a file at rest, one word after the other."""

    def word(at: int) -> int:
        return int.from_bytes(data[at : at + 8], "little")

    if len(data) < 593_920 or data[:8] != b"TWNCCL01" or word(8) != 1 or not 0 < word(16) < 2**31 or word(64) > 2:
        return None, [], []
    count, step = word(1024), word(512)
    if max(count, step, word(24)) >= 2**62:
        return None, [], []
    comms: list[tuple[object, ...]] = []
    for at in range(4096, 4096 + 256 * 256, 256):
        generation, identity, nodes, ranks, rank, flags, enqueued, started, finished, stamped, moved = (
            word(at + 8 * number) for number in range(11)
        )
        whole = generation and word(at + 248) == generation
        if not whole or any(value >= 2**62 for value in (generation, nodes, ranks, rank, enqueued, moved)):
            continue
        known = stamped == enqueued and enqueued and flags % 4 == 0
        comms.append((
            generation, hex(identity)[2:].zfill(16), data[at + 88 : at + 152].split(b"\0")[0], ranks or None, rank,
            flags // 4 % 2 == 1, enqueued, min(started, enqueued) if known else None,
            min(finished, enqueued) if known else None, moved,
        ))  # fmt: skip
    calls: list[tuple[object, ...]] = []
    for serial in range(max(0, count - 8192) + 1, count + 1):
        at = 4096 + 65_536 + serial % 8192 * 64
        place, generation = word(at + 8) % 65_536, word(at + 8) // 65_536 % 2**24
        function, channels, flags = data[at + 13], data[at + 14], data[at + 15]
        begun, ended = word(at + 48) % 65_536, word(at + 48) // 65_536 % 65_536
        values = [word(at + 8 * number) for number in (2, 3, 4, 5, 7)]
        if word(at) != serial or function not in layout.FUNCTIONS or max(values) >= 2**62:
            continue
        done = begun > 0 and ended >= begun and ended >= channels
        calls.append((
            serial, place, generation, layout.FUNCTIONS[function], values[0], values[1],
            values[2] - 1 if values[2] else None, values[3], values[4] if done and flags % 2 == 0 else None, done,
        ))  # fmt: skip
    return (word(16), count, step - 1 if step else None, word(1152 + 16)), comms, calls


def fast(path: Path) -> Contents:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        header = read.read_header(descriptor)
        if header is None:
            return None, [], []
        comms = [
            (comm.generation, comm.id, comm.name.encode(errors="surrogateescape"), comm.ranks, comm.rank, comm.closed,
             comm.enqueued, comm.started, comm.finished, comm.moved_ns or 0)
            for comm in read.read_comms(descriptor)
        ]  # fmt: skip
        calls = [
            (call.serial, call.place, call.generation, call.function, call.seq, call.size_bytes, call.step,
             call.enqueued_ns, call.device_ns, call.done)
            for call in read.read_calls(descriptor, 0, header).values()
        ]  # fmt: skip
        return (header.pid, header.calls, header.step, header.counts.stale), comms, calls
    finally:
        os.close(descriptor)


@pytest.fixture(scope="module")
def played(built, tmp_path_factory) -> bytes:
    folder = tmp_path_factory.mktemp("played")
    nccl_player.play(built, folder, 5, "storm", 6, 6000, TRAINWARDEN_NCCL_EVERY="1")
    (path,) = folder.glob("*.nccl")
    return path.read_bytes()


def test_equal_after_a_storm(played, tmp_path):
    (tmp_path / "file").write_bytes(played)
    assert plain(played)[0] is not None
    assert len(plain(played)[2]) > 8000
    assert fast(tmp_path / "file") == plain(played)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(20))
def test_equal_with_junk_in_it(played, tmp_path, seed):
    draw, data = random.Random(seed), bytearray(played)
    for _ in range(draw.choice([1, 30, 3000])):
        at = draw.choice([draw.randrange(2048), draw.randrange(4096, 70_000), draw.randrange(len(data))])
        data[at] = draw.choice([0, 1, 255, draw.randrange(256)])
    if seed % 3 == 0:  # names are any bytes
        data[4096 + 88 : 4096 + 152] = draw.randbytes(64)
    path = tmp_path / "file"
    path.write_bytes(data)
    header, comms, calls = fast(path)
    expected = plain(bytes(data))
    assert (header, calls) == (expected[0], expected[2])
    assert [comm[:2] + comm[3:] for comm in comms] == [comm[:2] + comm[3:] for comm in expected[1]]


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 70_000, layout.FILE_BYTES - 1])
def test_a_file_cut_short_is_none(played, tmp_path, size):
    (tmp_path / "file").write_bytes(played[:size])
    assert fast(tmp_path / "file") == (None, [], [])


@pytest.mark.parametrize("said", [{"magic": 1}, {"abi": 2}, {"pid": 0}, {"kernel_mode": 9}])
def test_another_abi_is_none(tmp_path, said):
    write_header(tmp_path / "rank-0-1.hook", 1)
    who = hook.read_header(tmp_path / "rank-0-1.hook")
    assert who is not None
    CallsFileWriter(tmp_path / "file", who, **said)
    assert fast(tmp_path / "file")[0] is None


def test_what_is_overwritten_meanwhile_is_left_out(tmp_path, monkeypatch):
    """The count is read again after the records: of places claimed since nothing is believed."""
    write_header(tmp_path / "rank-0-1.hook", 1)
    who = hook.read_header(tmp_path / "rank-0-1.hook")
    assert who is not None
    file = CallsFileWriter(tmp_path / "file", who)
    for serial in range(1, 4):
        file.call(serial)
    descriptor = os.open(file.path, os.O_RDONLY)
    header = read.read_header(descriptor)
    assert header is not None
    assert list(read.read_calls(descriptor, 0, header)) == [1, 2, 3]
    file.word(layout.AT_CALLS, layout.CALLS + 2)  # two more than fit have been claimed
    assert list(read.read_calls(descriptor, 0, header)) == [3]
    os.close(descriptor)
