"""What py-spy prints is read with care, and the one sentence of it says where a rank stands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainwarden.collectors.stacks.collector import Frame, main_thread, said, where
from trainwarden.errors import DataError

RECORDED = Path(__file__).parents[3] / "data" / "stacks"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("waits", "all_reduce (distributed/distributed_c10d.py:4181), called by train_step (job/train.py:9)"),
        ("loads", "load_batch (job/train.py:5)"),
    ],
)
def test_a_recorded_rank_stands_where_its_main_thread_does(name: str, words: str) -> None:
    thread = main_thread((RECORDED / f"{name}.json").read_bytes())
    assert thread.thread_name == "MainThread"
    assert where(thread.frames) == words


@pytest.mark.parametrize(
    "said",
    [
        b"", b"{", b"7", b"[]", b"[7]", b'[{"pid": 1, "frames": []}]', b'[{"pid": "x", "frames": [{}]}]', b"\xff\xfe",
        b"[" * 100_000, b'[{"pid": 1, "frames": [{"name": 7, "filename": "f"}]}]',
    ],
)  # fmt: skip
def test_what_is_no_answer_of_py_spys_is_refused(said: bytes) -> None:
    with pytest.raises(DataError):
        main_thread(said)


def test_the_main_thread_is_found_without_its_name_and_else_the_first_one_speaks() -> None:
    def thread(number: int, name: str) -> dict[str, object]:
        return {"pid": 9, "os_thread_id": number, "frames": [{"name": name, "filename": "t.py", "line": 3}]}

    assert main_thread(json.dumps([thread(7, "other"), thread(9, "main")]).encode()).frames[0].name == "main"
    assert main_thread(json.dumps([thread(7, "other"), thread(8, "more")]).encode()).frames[0].name == "other"


def test_our_hook_and_the_interpreter_are_no_place_to_stand_in() -> None:
    ours = Frame("_watched_wait.<locals>.wait", "<frozen importlib trainwarden>", 40)
    assert where([ours, Frame("main", "/job/train.py", 31)]) == "main (job/train.py:31)"
    assert where([ours]).startswith("_watched_wait")


def test_names_are_cut_and_hold_no_control_characters() -> None:
    words = said(Frame("f\x1b[31m" + "x" * 500, "/a/" + "b" * 500 + "/c\n.py"))
    assert words.isprintable()
    assert len(words) < 200
    assert where([Frame("wait", "/usr/lib/python3.12/threading.py", 0)]) == "wait (python3.12/threading.py)"
