"""Annotations: edited by command and by hand, one sentence for each mistake."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from trainwarden.errors import DataError
from trainwarden.trainer_offline.data.annotations import FILE, Annotation, Culprit, add, read, remove, spans

HEADER = "job,from_s,to_s,label,kind,suspects,note\n"


def test_added_read_and_removed(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    assert read(archive) == []
    first = Annotation(job="j", label="initialisation", to_s=30.5)
    second = Annotation(
        job="j", label="fault", from_s=100.0, to_s=200.0, kind="slow_link",
        suspects=(Culprit(node="n17", device="mlx5_0"), Culprit(rank=136)), note='cable, "old"',
    )  # fmt: skip
    assert (add(archive, first), add(archive, second)) == (1, 2)
    assert read(archive) == [first, second]
    assert spans(archive, "j") == {"initialisation": [(-math.inf, 30.5)], "fault": [(100.0, 200.0)]}
    assert spans(archive, "other") == {}
    assert remove(archive, 1) == first
    assert read(archive) == [second]
    with pytest.raises(DataError, match="no annotation 2, the file has 1"):
        remove(archive, 2)
    assert {path.name for path in archive.iterdir()} == {FILE, ".locks"}


def test_a_file_from_a_spreadsheet_is_read(tmp_path: Path) -> None:
    text = 'job,label,from_s,to_s,note\r\nj,normal,2026-01-01T00:00:00Z,,"two\r\nlines"\r\n\r\nj,ignore,1,2,x'
    (tmp_path / FILE).write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert [(one.label, one.from_s, one.to_s) for one in read(tmp_path)] == [
        ("normal", 1767225600.0, None),
        ("ignore", 1.0, 2.0),
    ]
    assert add(tmp_path, Annotation(job="k", label="normal", from_s=3.0)) == 3
    assert remove(tmp_path, 1).note == "two\nlines"
    assert [one.job for one in read(tmp_path)] == ["j", "k"]
    with pytest.raises(DataError, match="no column kind"):
        add(tmp_path, Annotation(job="k", label="fault", kind="hang"))


def test_every_mistake_is_one_sentence_with_its_line(tmp_path: Path) -> None:
    rows = [
        "j,1,2,fault,,,", "j,1,2,wrong,,,", ",x,2,normal,,,", "j,2,1,normal,,,", "j,1,2,normal,hang,,",
        "j,1,2,fault,hang,rank=x,", "j,1,2,fault,odd,who,", "j,1,2", "j,nan,2,normal,,,",
    ]  # fmt: skip
    (tmp_path / FILE).write_text(HEADER + "\n".join(rows) + "\n")
    with pytest.raises(DataError) as caught:
        read(tmp_path)
    sentences = [line.split(f"{FILE} ")[1] for line in str(caught.value).splitlines()]
    assert [sentence.partition(":")[0] for sentence in sentences] == [
        "line 2", "line 3", "line 4", "line 4", "line 5", "line 6", "line 7", "line 8", "line 8", "line 9", "line 10",
    ]  # fmt: skip
    assert sentences[0] == "line 2: a fault needs a kind"
    assert sentences[3] == "line 4: from_s 'x' is neither seconds nor an ISO 8601 time"
    with pytest.raises(DataError):
        add(tmp_path, Annotation(job="j", label="normal"))


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"job;from_s;to_s;label\n", "separated by semicolons"),
        (b"job,from_s,label\n", "column 'to_s' is missing"),
        (b"job,from_s,to_s,label,colour\n", "unknown column 'colour'"),
        (b"job,from_s,to_s,label,label\n", "appears twice"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b'job,from_s,to_s,label\n"j"x,1,2,normal\n', "line 2"),
    ],
)
def test_a_file_of_another_kind_is_refused(content: bytes, match: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(DataError, match=match):
        read(tmp_path)


def test_what_is_not_valid_is_not_added(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a fault needs a kind"):
        add(tmp_path, Annotation(job="j", label="fault"))
    assert not (tmp_path / FILE).exists()


def test_a_kill_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(tmp_path, Annotation(job="j", label="normal"))
    before = (tmp_path / FILE).read_bytes()

    def killed(number: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", killed)
        with pytest.raises(KeyboardInterrupt):
            add(tmp_path, Annotation(job="k", label="normal"))
    assert (tmp_path / FILE).read_bytes() == before
    assert add(tmp_path, Annotation(job="k", label="normal")) == 2
