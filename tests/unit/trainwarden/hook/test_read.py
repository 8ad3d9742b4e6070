"""The readers, on files that are whole, torn, cut short or none."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.hook_doubles import HandClock
from trainwarden import hook
from trainwarden.hook import Hook, layout
from trainwarden.hook.layout import (
    AT_MAGIC,
    AT_PID,
    AT_TIMED,
    AT_VERSION,
    DEVICE_BEGINS,
    DEVICE_WORDS,
    HEADER,
    HEADER_BYTES,
    STEP_BYTES,
    Words,
)


def test_writer_and_readers_count_the_header_alike() -> None:
    named = {name: place for name, place in vars(layout).items() if name.startswith("AT_")}
    words = ["AT_" + name.upper() for name in Words._fields]
    assert [named[word] for word in words] == list(range(len(words)))
    assert len(named) == len(words)


def test_the_ring_keeps_the_newest_steps(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    for _ in range(hook.RING + 100):
        clock.pass_ms(1)
        hook.iteration()
    path = target.memory.path + ".hook"
    rows = hook.read_steps(path)
    assert rows is not None
    assert [row.step for row in rows] == list(range(100, hook.RING + 100))
    assert [row.step for row in hook.read_steps(path, hook.RING + 98) or []] == [hook.RING + 98, hook.RING + 99]
    assert hook.read_steps(path, hook.RING + 100) == []
    assert hook.read_steps(path, 10**9) == []


def test_a_torn_record_is_left_out(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    for _ in range(5):
        clock.pass_ms(1)
        hook.iteration()
    path = Path(target.memory.path + ".hook")
    data = bytearray(path.read_bytes())
    size = STEP_BYTES
    struct.pack_into("@q", data, HEADER_BYTES + 3 * size - 8, 0)  # the second serial number of the third
    torn = path.with_name("torn")
    torn.write_bytes(data)
    assert [row.serial for row in hook.read_steps(torn) or []] == [1, 2, 4, 5]
    torn.write_bytes(data[: HEADER_BYTES + size + 7])
    assert [row.serial for row in hook.read_steps(torn) or []] == [1]
    torn.write_bytes(data[: HEADER_BYTES - 1])
    assert hook.read_steps(torn) is None
    assert hook.read_header(torn) is None


def test_what_is_no_hook_file_is_none(tmp_path: Path) -> None:
    assert hook.read_header(tmp_path / "missing") is None
    assert hook.read_steps(tmp_path) is None
    (tmp_path / "zeros").write_bytes(bytes(hook.FILE_BYTES))
    assert hook.read_header(tmp_path / "zeros") is None


@pytest.mark.thorough
@given(words=st.dictionaries(st.integers(0, 63), st.integers(-(2**63), 2**63 - 1)), length=st.integers(0, 2000))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_readers_take_any_bytes(tmp_path: Path, words: dict[int, int], length: int) -> None:
    header = [0] * 64
    header[AT_MAGIC], header[AT_VERSION], header[AT_PID] = hook.MAGIC, hook.VERSION, 1
    for place, word in words.items():
        header[place] = word
    path = tmp_path / "any"
    path.write_bytes(HEADER.pack(*header) + bytes(length))
    hook.read_header(path)
    hook.read_steps(path)
    hook.read_pauses(path)


@pytest.mark.parametrize("word", range(len(Words._fields)))
def test_readers_take_any_word_of_a_header(make: Callable[..., Hook], clock: HandClock, word: int) -> None:
    target = make()
    clock.pass_ms(1)
    hook.iteration()
    data = bytearray(Path(target.memory.path + ".hook").read_bytes())
    junk = Path(target.memory.folder) / "junk"
    for value in (-(2**63), -1, 0, 7, 1 << 20, 2**63 - 1):
        struct.pack_into("@q", data, 8 * word, value)
        junk.write_bytes(data)
        assert hook.read_header(junk) is None or len(hook.read_steps(junk) or []) <= 1


def test_what_the_device_says_is_read_where_it_is_whole(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    for _ in range(6):
        clock.pass_ms(1)
        hook.iteration()
    buffer = target.memory.buffer
    rows = [(1, 7, layout.NO_WAIT, 1), (2, 8, 3, 2), (3, 9, 3, 99), (4, 5, 6, 4), (77, 9, 3, 77), (6, 9, 3, 6)]
    for place, row in enumerate(rows):  # torn, a wait longer than the step, of another step, not yet settled
        DEVICE_WORDS.pack_into(buffer, DEVICE_BEGINS + place * DEVICE_WORDS.size, *row)
    target.memory.words[AT_TIMED] = 5
    path = Path(target.memory.path + ".hook")

    def told(path: Path) -> list[tuple[float | None, float | None]]:
        return [(row.device_s, row.device_wait_s) for row in hook.read_steps(path) or []]

    assert told(path) == [(7e-9, None), (8e-9, 3e-9), *[(None, None)] * 4]
    assert [row.device_s for row in hook.read_steps(path, 1) or []] == [8e-9, *[None] * 4]
    short = path.with_name("short")  # of an older hook, which has no such ring
    short.write_bytes(path.read_bytes()[:DEVICE_BEGINS])
    assert told(short) == [(None, None)] * 6
    target.memory.words[AT_TIMED] = 10**9
    assert len(told(path)) == 6
    target.memory.words[AT_TIMED] = -1
    assert hook.read_steps(path) is None
