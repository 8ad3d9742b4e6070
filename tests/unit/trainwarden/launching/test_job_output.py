"""Output passes through whatever fails: readers that leave, disks that are full, lines that never end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainwarden.launching.job_output import LogWriter, OutputSink, PipeReader


def drained(written: bytes, prefix: bytes = b"") -> tuple[bytes, list[bytes]]:
    """What an outlet and a log get of `written`."""
    kept: list[bytes] = []
    source, job = os.pipe()
    shown, outlet = os.pipe()
    drain = PipeReader(source, OutputSink(outlet), kept.append, prefix=prefix)
    os.write(job, written)
    os.close(job)
    assert drain.join(10.0)
    os.close(outlet)
    got = os.read(shown, 1 << 20)
    os.close(shown)
    return got, kept


def test_bytes_are_passed_on_as_they_are_and_lines_kept_whole() -> None:
    shown, kept = drained(b"one\ntwo\xff\r\nhalf")
    assert shown == b"one\ntwo\xff\r\nhalf"
    assert b"".join(kept) == shown
    assert kept[-1] == b"half"


def test_every_line_gets_its_rank_rewritten_ones_too() -> None:
    shown, kept = drained(b"one\n10%\r20%\r\nhalf", b"[rank3]: ")
    assert shown == b"[rank3]: one\n[rank3]: 10%\r[rank3]: 20%\r\n[rank3]: half\n"
    assert b"".join(kept) == b"one\n10%\r20%\r\nhalf\n"


def test_a_line_that_never_ends_is_kept_in_pieces_while_it_goes_on() -> None:
    kept: list[bytes] = []
    source, job = os.pipe()
    drain = PipeReader(source, None, kept.append)
    for _ in range(40):
        os.write(job, b"x" * 10_000)
    os.close(job)
    assert drain.join(10.0)
    assert sum(map(len, kept)) == 400_000
    assert max(map(len, kept)) < 2 * 65_536 + 1


def test_a_reader_that_left_is_not_asked_again() -> None:
    reader, writer = os.pipe()
    outlet = OutputSink(writer)
    os.close(reader)
    outlet.write(b"x")
    assert outlet.gone
    outlet.write(b"y")
    os.close(writer)


def test_a_log_stays_below_its_limit_and_says_so_once(tmp_path: Path) -> None:
    log, keeper = tmp_path / "job.log", LogWriter(limit_bytes=1000)
    for number in range(100):
        keeper.keep(log, f"line {number:04d}\n".encode())
        keeper.flush(10.0)
    keeper.close()
    (sentence,) = keeper.news()
    assert "its oldest half goes" in sentence
    older, newer = (tmp_path / "job.log.1").read_bytes(), log.read_bytes()
    assert len(older) + len(newer) <= 1000
    assert (older + newer).endswith(b"line 0098\nline 0099\n")
    assert len(older) > 400, "a half is kept whole"


def test_a_log_that_cannot_be_written_is_counted_and_told_once(tmp_path: Path) -> None:
    keeper = LogWriter()
    for _ in range(3):
        keeper.keep(tmp_path / "absent" / "job.log", b"line\n")
    keeper.close()
    sentence, loss = keeper.news()
    assert "no such file or directory" in sentence
    assert loss == "15 bytes of the job's output are missing in its log"


@pytest.mark.timeout(20)
def test_a_disk_that_hangs_holds_nobody_up(tmp_path: Path) -> None:
    """Opening a fifo without a reader waits for ever, as a dead file server does."""
    stuck = tmp_path / "job.log"
    os.mkfifo(stuck)
    keeper = LogWriter(queue_bytes=1000)
    for _ in range(10):
        keeper.keep(stuck, b"x" * 300)
    assert not keeper.flush(0.0)
    sentence, loss = keeper.news()
    assert "does not keep up" in sentence
    assert loss.startswith("2,100 bytes")
