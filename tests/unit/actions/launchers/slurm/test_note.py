"""The note in a job's comment: read back as written, a person's words untouched, generations that never fall."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwarden.actions.launchers.slurm.note import MAX_COMMENT_CHARS, Entry, Note

ENTRIES = st.builds(
    Entry,
    id=st.text(min_size=1, max_size=60),
    kind=st.sampled_from(["restart", "evict", "stop"]),
    stage=st.sampled_from(["drain", "move"]),
    restarts=st.integers(0, 10**6),
    nodes=st.lists(st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True), max_size=3).map(tuple),
)
SAVES = st.builds(
    Entry, id=st.text(min_size=1, max_size=60), kind=st.just("checkpoint"), stage=st.sampled_from(["signal", "save"]),
    restarts=st.integers(0, 99), until=st.integers(0, 10**9),
)  # fmt: skip
NAMES = st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True)
MEASURES = st.builds(
    Entry, id=st.text(min_size=1, max_size=60), kind=st.just("validate"), restarts=st.integers(0, 99),
    stage=st.sampled_from(["reserve", "measure", "judge"]), until=st.integers(0, 10**10),
    checks=st.sampled_from(["gemm", "gemm,links"]), on=st.sampled_from(["n1", "n[1-4,7],m2"]),
    nodes=st.lists(NAMES, max_size=3).map(tuple),
)  # fmt: skip
MEASURED = st.builds(
    Entry, id=st.text(min_size=1, max_size=60), kind=st.just("validate"), stage=st.just("done"),
    why=st.text(max_size=80), restarts=st.integers(0, 99), on=st.sampled_from(["n1", "n[1-4,7],m2"]),
)  # fmt: skip
ENDS = st.builds(
    Entry,
    id=st.text(min_size=1, max_size=60),
    kind=st.sampled_from(["restart", "evict", "stop"]),
    stage=st.sampled_from(["done", "failed"]),
    why=st.text(max_size=80),
)


@given(
    st.lists(ENTRIES | ENDS | SAVES | MEASURES | MEASURED, max_size=4),
    st.integers(0, 99),
    st.integers(0, 99),
    st.text(max_size=100),
)
def test_a_note_is_read_as_it_was_written_behind_the_persons_words(
    entries: list[Entry], accepted: int, restarts: int, theirs: str
) -> None:
    note = Note(accepted=accepted, restarts=restarts, entries=tuple(entries))
    text = note.written(theirs)
    if text is None:
        return
    assert text.startswith(theirs)
    assert len(text.encode()) <= MAX_COMMENT_CHARS
    read = Note.of(text)
    assert (read.accepted, read.restarts) == (accepted, restarts)
    assert read.entries == note.entries[len(note.entries) - len(read.entries) :] or any(e.ended for e in entries)
    assert read.written(text) == text


def test_the_oldest_that_have_ended_go_first_and_what_is_under_way_stays() -> None:
    entries = [Entry(id=f"i{n}/restart/1", kind="restart", stage="done", why="w" * 60) for n in range(40)]
    entries.insert(0, Entry(id="i/evict/1", kind="evict", stage="move", restarts=1, nodes=("n1",)))
    text = Note(accepted=41, entries=tuple(entries)).written("night run")
    assert text is not None
    read = Note.of(text)
    assert read.find("i/evict/1") == entries[0]
    assert read.find("i39/restart/1") is not None
    assert read.find("i0/restart/1") is None


def test_a_comment_without_room_is_not_cut() -> None:
    note = Note().accept(Entry(id="i1/restart/1", kind="restart", stage="move"), 0)
    assert note.written("x" * 1000) is None
    assert note.written("ü" * 500) is None


@pytest.mark.parametrize(
    "damaged",
    ["", "trainwarden[", "trainwarden[x]", "trainwarden[1,2]", "trainwarden[99999999999,0,0]", "trainwarden[-1,0,0]"],
)
def test_a_damaged_note_is_none(damaged: str) -> None:
    assert Note.of(f"theirs {damaged}") == Note()


@pytest.mark.parametrize("word", ["i1", "i1,evict,done", "i1,dance,done,", "i1,evict,asleep,0", "i1,evict,move,x"])
def test_a_damaged_entry_is_left_out(word: str) -> None:
    assert Note.of(f"trainwarden[3,1,9 {word}]") == Note(accepted=3, restarts=1, changes=9)


def test_the_generation_rises_with_each_operation_and_each_requeue_of_others() -> None:
    note = Note()
    assert [note.generation(restarts) for restarts in (0, 1, 2)] == [0, 1, 2]
    ours = note.accept(Entry(id="a", kind="restart", stage="move", restarts=3), restarts=2)
    assert [ours.generation(restarts) for restarts in (2, 3, 4)] == [3, 3, 4]  # our own requeue counts once
    ended = ours.put(Entry(id="a", kind="restart", stage="failed"), restarts=2)
    assert [ended.generation(restarts) for restarts in (2, 3)] == [
        3,
        4,
    ]  # it never came about, so this one is another's
