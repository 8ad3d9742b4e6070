"""The logs collector on real files in a temporary folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doubles import ManualClock
from trainwarden.collectors.kernel_log import KernelLog
from trainwarden.collectors.logs.collector import GONE_S, LogsCollector, collapse
from trainwarden.collectors.logs.tail import MAX_PARTIAL_BYTES
from trainwarden.log_text import clean, writer_of
from trainwarden.protocols import Scope
from trainwarden.records import MAX_LINE_CHARS, LogRecord, MetricsRecord
from trainwarden.topics import LOGS


class Rig:
    """A run folder and a collector over it that can be started again from its position."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.logs = run_dir / "logs"
        self.logs.mkdir()
        self.clock = ManualClock(1000.0)
        self.options: dict[str, object] = {"kmsg": False}
        self.collector = self._new()

    def _new(self) -> LogsCollector:
        config = LogsCollector.Config(**self.options)  # type: ignore[arg-type]
        return LogsCollector(config, Scope(job="job", node="n0", run_dir=str(self.run_dir)), self.clock)

    def restart(self, **options: object) -> None:
        position = self.collector.position()
        self.collector.close()
        self.options |= options
        self.collector = self._new()
        self.collector.restore(position)

    def write(self, text: str | bytes, name: str = "rank-0.log") -> None:
        with (self.logs / name).open("ab") as file:
            file.write(text.encode() if isinstance(text, str) else text)

    def read(self, seconds: float = 1.0) -> list[LogRecord]:
        self.clock.sleep(seconds)
        return [record for record in self.collector.collect(self.clock.now_s()) if isinstance(record, LogRecord)]

    def lines(self, seconds: float = 1.0) -> list[str]:
        return [line for record in self.read(seconds) for line in record.lines]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.collector.close()


def test_lines_come_with_rank_place_and_time(rig: Rig) -> None:
    rig.write("one\ntwo\n", "rank-3.log")
    (record,) = rig.read()
    assert record == LogRecord(
        job="job", node="n0", source="logs/rank-3.log", ends=(4, 8), lines=("one", "two"), times_s=(1001.0,) * 2, rank=3
    )
    assert rig.read() == []


def test_a_line_is_held_back_until_it_is_whole(rig: Rig) -> None:
    rig.write("hal")
    assert rig.lines() == []
    rig.write("f\nnext")
    assert rig.lines() == ["half"]


def test_a_line_without_end_is_not_held_back_for_ever(rig: Rig) -> None:
    rig.write("last words")
    assert rig.lines(1.0) == []
    assert rig.lines(6.0) == ["last words"]
    rig.write(" and more\n")
    assert rig.lines() == [" and more"]


def test_a_line_of_megabytes_is_cut_and_the_next_one_is_whole(rig: Rig) -> None:
    rig.write(b"x" * (5 * MAX_PARTIAL_BYTES) + b"\nnext\n")
    lines = rig.lines()
    assert lines == ["x" * MAX_LINE_CHARS, "next"]


def test_a_line_of_megabytes_that_arrives_in_parts_is_one_line(rig: Rig) -> None:
    got: list[str] = []
    for _ in range(10):
        rig.write(b"x" * MAX_PARTIAL_BYTES)
        got += rig.lines()
    rig.write(b"tail\nnext\n")
    assert got + rig.lines() == ["x" * MAX_LINE_CHARS, "next"]


def test_rotation_by_rename_loses_and_repeats_nothing(rig: Rig) -> None:
    rig.write("a\nb\n")
    assert rig.lines() == ["a", "b"]
    rig.write("c\nd")
    (rig.logs / "rank-0.log").rename(rig.logs / "rank-0.log.1")
    rig.write("e\n")
    records = rig.read(0.2)
    with (rig.logs / "rank-0.log.1").open("a") as late:  # a writer that has not noticed yet
        late.write("ddd\n")
    records += rig.read(0.2) + rig.read(1.0)
    assert [line for record in records for line in record.lines] == ["c", "dddd", "e"]
    ends = [end for record in records for end in record.ends]
    assert ends == sorted(ends)
    assert ends[0] > 4


def test_rotation_while_the_agent_was_down(rig: Rig) -> None:
    rig.write("a\n")
    assert rig.lines() == ["a"]
    rig.write("b\n")
    for number, text in ((1, "c\n"), (2, "d\n")):
        for old in range(number, 0, -1):
            source = rig.logs / ("rank-0.log" if old == 1 else f"rank-0.log.{old - 1}")
            source.rename(rig.logs / f"rank-0.log.{old}")
        rig.write(text)
    rig.restart()
    assert [line for _ in range(4) for line in rig.lines()] == ["b", "c", "d"]


def test_a_log_that_was_rotated_before_the_agent_first_looked_is_read(rig: Rig) -> None:
    rig.write("a\n")
    (rig.logs / "rank-0.log").rename(rig.logs / "rank-0.log.1")
    (record,) = rig.read()
    assert (record.source, record.lines) == ("logs/rank-0.log", ("a",))
    rig.write("b\n")
    assert rig.lines() + rig.lines() == ["b"]


def test_truncation_starts_again_and_places_go_on_growing(rig: Rig) -> None:
    rig.write("a long first line\n")
    (first,) = rig.read()
    (rig.logs / "rank-0.log").write_text("b\n")
    (second,) = rig.read()
    assert second.lines == ("b",)
    assert second.ends[0] > first.ends[0]


def test_truncation_is_seen_even_if_the_file_has_grown_past_the_old_end(rig: Rig) -> None:
    rig.write("a\n")
    assert rig.lines() == ["a"]
    (rig.logs / "rank-0.log").write_text("b\nccccccccccccc\n")
    assert rig.lines() == ["b", "ccccccccccccc"]


@pytest.mark.thorough
def test_the_hole_that_a_truncated_writer_leaves_is_stepped_over(rig: Rig) -> None:
    path = rig.logs / "rank-0.log"
    with path.open("wb", buffering=0) as writer:
        writer.write(b"x\n" * 20_000_000)
        rig.lines()
        os.truncate(path, 0)
        writer.write(b"after the hole\n")
        assert [line for _ in range(5) for line in rig.lines()] == ["after the hole"]


def test_a_restart_goes_on_where_the_kept_position_is(rig: Rig) -> None:
    rig.write("a\nb\nhal")
    assert rig.lines() == ["a", "b"]
    rig.write("f\n")
    rig.restart()
    assert rig.lines() == ["half"]


def test_a_deleted_and_remade_file_is_read_from_its_start(rig: Rig) -> None:
    rig.write("a\n")
    assert rig.lines() == ["a"]
    (rig.logs / "rank-0.log").unlink()
    rig.write("b\n")
    assert rig.lines() + rig.lines() == ["b"]


def test_binary_junk_is_text_of_bounded_length(rig: Rig) -> None:
    junk = bytes(byte for byte in range(256) if byte != 10)
    rig.write(junk + b"\n" + os.urandom(20_000).replace(b"\n", b" ") + b"\nfine\n")
    records = rig.read()
    for record in records:
        assert LOGS.decode(LOGS.encode(record)) == record
    lines = [line for record in records for line in record.lines]
    assert lines[-1] == "fine"
    assert all(len(line) <= MAX_LINE_CHARS for line in lines)
    assert "\ufffd" in lines[0]
    assert not any(ord(character) < 32 and character != "\t" for line in lines for character in line)


def test_of_a_progress_bar_only_the_last_state_counts(rig: Rig) -> None:
    for percent in range(100):
        rig.write(f"\r{percent}%|{'#' * percent}")
        rig.lines(0.2)
    rig.write("\r100%|done\r\nnext\r\n")
    assert rig.lines() == ["100%|done", "next"]


def test_a_flood_becomes_one_line_with_a_count(rig: Rig) -> None:
    rig.restart(flood_lines=5)
    rig.write("start\n" + "".join(f"error {number} at 0x{number}\n" for number in range(1000)) + "end\n")
    (record,) = rig.read()
    assert record.lines[0] == "start"
    assert record.lines[-1] == "end"
    assert len(record.lines) == 8
    assert sum(record.counts) == 1002
    assert list(record.ends) == sorted(record.ends)


def test_a_common_file_is_taken_apart_by_rank_prefixes(rig: Rig) -> None:
    (rig.run_dir / "hook").mkdir()
    for rank in (8, 9):
        (rig.run_dir / "hook" / f"rank-{rank}-{rank + 100}.hook").touch()
    rig.write("[rank3]: boom\nplain\n[default1]:loss 2\n[rank3]: more\n", "job.log")
    found = {record.rank: (record.source, record.lines) for record in rig.read()}
    assert found == {
        3: ("logs/job.log#rank3", ("[rank3]: boom", "[rank3]: more")),
        None: ("logs/job.log", ("plain",)),
        9: ("logs/job.log#rank9", ("[default1]:loss 2",)),
    }


@pytest.mark.parametrize(
    "form", ["[1,{}]<stderr>:", " {}: ", "[rank: {}] ", "rank{}[70][MainThread]: ", "(W(rank={}) pid=7) "]
)
def test_a_common_file_is_taken_apart_by_any_launchers_prefix(rig: Rig, form: str) -> None:
    rig.write("".join(f"{form.format(rank)}KeyError: {rank}\n" for rank in (0, 1, 0, 1)), "job.log")
    assert {record.rank: len(record.lines) for record in rig.read()} == {0: 2, 1: 2}


@pytest.mark.thorough
def test_a_batch_is_bounded_and_the_rest_comes_soon(rig: Rig) -> None:
    rig.restart(batch_bytes=65_536)
    rig.write("".join(f"{'x' * 90} {'abcdefghij'[number % 10] * (number % 7)} {number}\n" for number in range(20_000)))
    first = rig.read()
    assert sum(sum(record.counts or [1] * len(record.lines)) for record in first) < 2000
    assert rig.collector.interval_s < 0.2
    total = sum(sum(record.counts or [1] * len(record.lines)) for record in first)
    for _ in range(100):
        total += sum(sum(record.counts or [1] * len(record.lines)) for record in rig.read())
    assert total == 20_000
    assert rig.collector.interval_s == 0.2


def test_a_log_that_outruns_the_agent_is_skipped_and_counted(rig: Rig) -> None:
    with (rig.logs / "rank-0.log").open("wb") as file:
        file.truncate(200 * 1024 * 1024)
        file.seek(0, os.SEEK_END)
        file.write(b"\nlast\n")
    rig.clock.sleep(1.0)
    records = list(rig.collector.collect(rig.clock.now_s()))
    for _ in range(10):
        records += rig.collector.collect(rig.clock.now_s())
    lines = [line for record in records if isinstance(record, LogRecord) for line in record.lines]
    skipped = [record.values[0][0] for record in records if isinstance(record, MetricsRecord)]
    assert lines == ["last"]
    assert skipped
    assert (skipped[-1] or 0) > 190 * 1024 * 1024


def test_configured_paths_begin_at_their_end_and_new_ones_at_their_start(rig: Rig, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "old.txt").write_text("long ago\n")
    rig.collector = LogsCollector(
        LogsCollector.Config(kmsg=False, paths=(f"{other}/*.txt",)),
        Scope(job="job", node="n0", run_dir=str(rig.run_dir)),
        rig.clock,
    )
    assert rig.lines() == []
    with (other / "old.txt").open("a") as file:
        file.write("now\n")
    (other / "new.txt").write_text("first\n")
    records = rig.read(5.0)
    assert {record.source: record.lines for record in records} == {
        str(other / "old.txt"): ("now",),
        str(other / "new.txt"): ("first",),
    }


def test_a_file_that_cannot_be_read_does_not_stop_the_others(rig: Rig) -> None:
    (rig.logs / "folder.log").mkdir()
    os.mkfifo(rig.logs / "pipe.log")
    (rig.logs / "dangling.log").symlink_to("nowhere")
    rig.write("fine\n")
    assert rig.lines() == ["fine"]


def open_logs(rig: Rig) -> int:
    """How many files below the run folder this process has open, deleted ones too."""
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the folder itself
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sum(link.startswith(str(rig.logs)) for link in links)


def test_a_deleted_file_is_let_go_of_and_its_places_go_on_growing(rig: Rig) -> None:
    rig.write("one\n")
    (before,) = rig.read()
    (rig.logs / "rank-0.log").unlink()
    assert rig.lines() == []
    assert open_logs(rig) == 1, "its writer may not be done yet"
    for _ in range(3):
        assert rig.lines(GONE_S) == []
    assert open_logs(rig) == 0
    for restarted in (False, True):
        if restarted:
            rig.restart()
        rig.write("two\n")
        (after,) = rig.read(5.0)
        assert after.lines == ("two",)
        assert after.ends[0] > before.ends[-1]
        before = after
        (rig.logs / "rank-0.log").unlink()
        for _ in range(3):
            assert rig.lines(GONE_S) == []


@pytest.mark.parametrize("deleted", [True, False])
def test_new_names_are_followed_however_many_there_were(rig: Rig, deleted: bool) -> None:
    """The collector was deaf once it had seen as many names as files may be followed."""
    rig.restart(max_files=4)
    for number in range(20):
        rig.write("a line\n", f"attempt-{number}.log")
        assert rig.lines() == ["a line"], number
        if deleted:
            (rig.logs / f"attempt-{number}.log").unlink()
        for _ in range(3):
            assert rig.lines(GONE_S) == []
        assert open_logs(rig) <= 4
    if not deleted:
        rig.write("and one more\n", "attempt-0.log")
        assert rig.lines(5.0) == ["and one more"]
        rig.restart()
        rig.write("and more\n", "attempt-5.log")
        assert rig.lines(5.0) == [], "whatever else is followed has only just been read"
        assert rig.lines(GONE_S) == ["and more"]


def test_a_file_that_finds_no_room_is_read_from_its_start_once_there_is_some(rig: Rig) -> None:
    rig.restart(max_files=2)
    for number in range(3):
        rig.write("a line\n", f"rank-{number}.log")
    assert rig.lines() == ["a line", "a line"]
    for _ in range(3):
        rig.write("more\n", "rank-1.log")
        if "a line" in rig.lines(GONE_S):
            break
    else:
        pytest.fail("it was never read")


def test_kernel_messages_are_read_once_and_places_grow_over_reboots() -> None:
    kernel = KernelLog("/dev/null", "boot-1")
    first = kernel.parse(b"3,41,1000000,-;one\n")
    assert first is not None
    assert kernel.parse(b"3,41,1000000,-;one\n") is None
    assert kernel.parse(b"junk") is None
    after = KernelLog("/dev/null", "boot-2")
    after.restore({"boot": "boot-1", "sequence": 41, "base": 0})
    after.open()
    second = after.parse(b"3,0,500000,-;two\n")
    after.close()
    assert second is not None
    assert second.end > first.end
    assert second.boot_time_s == 0.5


def test_no_kernel_log_is_one_line_and_no_failure(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    rig.restart(kmsg=True, kmsg_path="/nonexistent/kmsg")
    rig.write("fine\n")
    assert rig.lines() == ["fine"]
    rig.lines()
    assert len([record for record in caplog.records if "kernel log" in record.message]) == 1


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"plain", "plain"),
        (b"trailing \t ", "trailing"),
        (b"\x1b[1;31mred\x1b[0m", "red"),
        ("gr\u00fc\u00dfe \u2603".encode(), "gr\u00fc\u00dfe \u2603"),
        (b"a\rb\r", "b"),
        (b"a\r   ", "a"),
        (b"\r\r", ""),
        (b"a\0b\x07c", "ab\ufffdc"),
    ],
)
def test_cleaning(raw: bytes, text: str) -> None:
    assert clean(raw) == text


def test_prefixes_that_are_none() -> None:
    assert not any(writer_of(text).named for text in ("[rank]: x", "[rankings1]:", "x [rank1]:", "[rank1] x", ""))


def test_collapsing_counts_every_line() -> None:
    ends, lines, counts = collapse(range(100), [f"a {n}" if n % 3 else f"b {n}" for n in range(100)], 2)
    assert (len(lines), sum(counts)) == (6, 100)
    assert ends == sorted(ends)


def test_a_line_that_is_nested_without_end_is_a_line() -> None:
    line = b'{"log": "x", "more": ' + b"[" * 5000
    assert clean(line).startswith('{"log": "x"')
