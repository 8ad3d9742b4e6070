"""Lines of a large log lie in a file, and nobody who reads them sees it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.unit.detectors.last_words.judged import TIMED_OUT, judged, raised, steps
from trainwarden.recorded import logs
from trainwarden.recorded.stored_lines import BLOCK, KEPT, StoredLines, stored

LINES = [f"line {number} \u00e9" if number % 7 else "" for number in range(3 * BLOCK * KEPT + 5)]


def test_each_line_stands_where_it_stood() -> None:
    found = stored(LINES, in_memory=1_000)
    assert isinstance(found, StoredLines)
    assert list(found) == LINES
    assert len(found) == len(LINES)
    for place in (0, BLOCK - 1, BLOCK, len(LINES) - 1, -1, -len(LINES), 17 * BLOCK, 3):
        assert found[place] == LINES[place]
    assert found[BLOCK - 3 : BLOCK + 3] == LINES[BLOCK - 3 : BLOCK + 3]
    with pytest.raises(IndexError):
        found[len(LINES)]


def test_few_lines_stay_a_list() -> None:
    assert stored(iter(LINES[:10])) == LINES[:10]


def test_a_log_in_a_file_is_judged_as_one_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [*steps("08:00:00", 60), *raised(2, "KeyError: 'labels'"), TIMED_OUT.format(rank=0, clock="08:10:05")]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    few = judged(tmp_path / "a", {"train.log": lines})
    monkeypatch.setattr(logs, "stored", partial(stored, in_memory=100))
    (incident,) = judged(tmp_path / "b", {"train.log": lines})
    assert (incident.kind, incident.suspects) == (few[0].kind, few[0].suspects)
    assert incident.kind == "exception"
