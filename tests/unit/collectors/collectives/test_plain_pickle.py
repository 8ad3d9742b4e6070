"""Pickles of plain data are read, anything else is refused, and nothing is ever run."""

from __future__ import annotations

import contextlib
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from trainwarden.errors import DataError
from trainwarden.formats.dumps.plain_pickle import load_plain

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=5) | st.integers(0, 9), inner, max_size=5)
    ),
    max_leaves=20,
)


@given(value=PLAIN, protocol=st.sampled_from([2, 3, 4, 5]))
@examples(200)
def test_what_pickle_writes_of_plain_data_is_read_back(value: Any, protocol: int) -> None:
    assert load_plain(pickle.dumps(value, protocol=protocol)) == value


@given(data=st.binary(max_size=200))
@examples(300)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(DataError):
        load_plain(data)


@given(value=PLAIN, at=st.integers(0, 400), byte=st.integers(0, 255))
@examples(200)
def test_one_damaged_byte_is_no_accident(value: Any, at: int, byte: int) -> None:
    data = bytearray(pickle.dumps({"entries": [value]}, protocol=2))
    data[at % len(data)] = byte
    with contextlib.suppress(DataError):
        load_plain(bytes(data))


class Evil:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self._path,))


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_pickle_that_would_run_something_is_refused_and_runs_nothing(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "ran"
    with pytest.raises(DataError):
        load_plain(pickle.dumps({"entries": Evil(path)}, protocol=protocol))
    assert not path.exists()


def test_what_is_cut_short_or_nothing_is_refused() -> None:
    whole = pickle.dumps({"entries": [{"a": 1}] * 3}, protocol=2)
    for end in range(len(whole)):
        with pytest.raises(DataError):
            load_plain(whole[:end])


def test_a_number_in_the_memo_costs_no_memory() -> None:
    # An interpreter's own reader makes room for all places up to the one that is named.
    assert load_plain(b"\x80\x02}r\xff\xff\xff\xff.") == {}
