"""Log files of a recorded folder: line numbers, times, ranks and nodes as each line shows them."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from trainwarden.errors import DataError
from trainwarden.recorded import logs as recorded_logs
from trainwarden.recorded.folder import read_folder
from trainwarden.recorded.job import LogTable
from trainwarden.recorded.log_stamps import Stamps
from trainwarden.records import MAX_LINE_CHARS

JANUARY_2_2024 = 1_704_164_645.0  # 03:04:05 UTC


def read(folder: Path, text: str | bytes, name: str = "logs.txt") -> LogTable:
    data = text.encode() if isinstance(text, str) else text
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    logs = {log.file: log for log in read_folder(folder).logs}
    return logs[name]


@pytest.mark.parametrize(
    "line",
    [
        "1704164645.678 x",
        "[1704164645.678] x",
        "2024-01-02T03:04:05.678Z x",
        "2024-01-02 03:04:05.678 x",
        "2024-01-02T05:04:05.678+02:00 x",
        "2024-01-01 22:04:05.678 -0500 x",
        "[2024-01-02 03:04:05,678] [INFO] [engine.py:1:step] x",
        " [2024-01-02 03:04:05.678] iteration 5/ 10",
        "2024/01/02 03:04:05.678 x",
        "Jan  2 03:04:05.678 gpu07 kernel: x",
        "Jan 02 03:04:05.678 gpu07 kernel: x",
        "[Tue Jan  2 03:04:05.678 2024] NVRM: x",
        "[Jan 02 2024 03:04:05.678] [INFO] x",
        "Tue Jan  2 03:04:05.678 UTC 2024 x",
        "E0102 03:04:05.678000 1234 torch/x.py:1] x",
        "kern  :warn  : 2024-01-02T03:04:05,678000+00:00 NVRM: x",
        "INFO 2024-01-02 03:04:05,678 x",
        "[NeMo W 2024-01-02 03:04:05.678 nemo_logging:349] x",
        "[INFO|trainer.py:1149] 2024-01-02 03:04:05,678 >> x",
        ':::MLLOG {"namespace": "", "time_ms": 1704164645678, "key": "x"}',
    ],
)
def test_a_leading_stamp_is_recognised(line: str) -> None:
    np.testing.assert_allclose(Stamps(JANUARY_2_2024).read(line)[0], JANUARY_2_2024 + 0.678, atol=1e-4)


@pytest.mark.parametrize(
    "line",
    [
        "1073741824 bytes free",  # ten digits, but years away from the job
        "1704164645678 x",
        "1704164645/x",
        "2024-13-02 03:04:05 x",
        "2024-01-02 25:04:05 x",
        "2024-01-02 03:61:05 x",
        "Foo  2 03:04:05 x",
        "Feb 30 03:04:05 x",
        "",
        "[",
        "loss 2.1 at 2024-01-02 03:04:05",
    ],
)
def test_what_is_no_leading_stamp(line: str) -> None:
    assert np.isnan(Stamps(JANUARY_2_2024).read(line)[0])


def test_a_year_that_is_not_written_lets_time_rise(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("timestamp,x\n2023-12-31T23:00:00Z,1\n")
    log = read(tmp_path, "Dec 31 23:59:59 a kernel: x\nJan  1 00:00:01 a kernel: y\nDec 31 23:59:58 b kernel: late\n")
    assert np.diff(log.times_s).tolist() == [2.0, -3.0]
    assert log.times_s[1] == 1_704_067_201.0
    assert log.nodes == ("a", "a", "b")


def test_without_any_year_dates_still_are_in_order(tmp_path: Path) -> None:
    log = read(tmp_path, "Feb 28 00:00:00 a kernel: x\nFeb 29 00:00:00 a kernel: x\nMar  1 00:00:00 a kernel: x\n")
    assert np.diff(log.times_s).tolist() == [86_400.0, 86_400.0]


def test_time_since_boot_says_nothing_on_a_job_with_wall_times(tmp_path: Path) -> None:
    line = "[ 1234.567890] NVRM: Xid (PCI:0000:3b:00): 79\n6,12,5000000,-;usb\n"
    assert read(tmp_path, line).times_s.tolist() == [1234.56789, 5.0]
    (tmp_path / "metrics.csv").write_text("timestamp,x\n2024-01-02T03:00:00Z,1\n")
    assert np.isnan(read(tmp_path, line).times_s).all()
    (tmp_path / "metrics.csv").unlink()
    (tmp_path / "logs-app.txt").write_text("2024-01-02 03:04:05 x\n")
    assert np.isnan(read(tmp_path, line).times_s).all()


def test_a_date_far_ahead_that_begins_a_line_is_not_its_time(tmp_path: Path) -> None:
    at = [f"2024-01-02 03:04:{second:02d} step\n" for second in range(8)]
    said = "2031-05-01 00:00:00 the licence ends\n"
    times_s = read(tmp_path, at[0] + said + said + "".join(at[1:])).times_s
    assert np.isnan(times_s[1:3]).all()
    assert np.diff(times_s[[0, *range(3, 10)]]).tolist() == [1.0] * 7
    slept = [f"2024-01-0{day} 03:04:05 step\n" for day in (2, 2, 5, 5, 5, 5)]
    assert np.isfinite(read(tmp_path, "".join(slept)).times_s).all()
    booted = "2024-01-02 03:04:05 x\n" + "".join(f"[   {second}.500000] kernel: x\n" for second in range(9))
    assert np.isfinite(read(tmp_path, booted).times_s[0])
    two_writers = "".join(f"2024-01-02 0{hour}:00:0{second} x\n" for second in range(9) for hour in (3, 5))
    assert np.isfinite(read(tmp_path, two_writers).times_s).all()


def test_local_times_take_their_zone_from_utc_times_around_them(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        "[2024-01-02 11:04:00] before\n1704164645 a\n[NeMo I 2024-01-02 11:04:06 x:1] b\nno stamp\n"
        "2024-01-02T03:04:07Z c\n2024-01-02 11:04:08 d\n",
    )
    times_s = log.times_s - JANUARY_2_2024
    np.testing.assert_array_equal(times_s, [-5.0, 0.0, 1.0, np.nan, 2.0, 3.0])
    hour_later = read(tmp_path, "1704164645 a\n2024-01-02 04:04:05 b\n1704168246 c\n")
    np.testing.assert_array_equal(hour_later.times_s - JANUARY_2_2024, [0.0, 3600.0, 3601.0])


def test_ranks_by_prefix_before_or_after_the_stamp(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        "[rank3]: Traceback\n[rank4]:[E0102 03:04:05.678 ProcessGroupNCCL.cpp:616] x\n2024-01-02 03:04:05 [rank5]: x\n"
        "[1,6]<stdout>: x\n[prterun-n-1@1,7]<stderr>:x\n 8: 2024-01-02 03:04:05 x\n9: no label\n[info] x\n",
    )
    assert log.ranks == (3, 4, 5, 6, 7, 8, None, None)
    assert np.isfinite(log.times_s).tolist() == [False, True, True, False, False, True, False, False]


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("[E ProcessGroupNCCL.cpp:828] [Rank 3] Watchdog caught collective operation timeout", 3),
        ("[rank2]:[E1115 22:00:31.1 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog", 2),
        ("[E1115 22:00:31.1 ProcessGroupNCCL.cpp:616] [PG ID 0 PG GUID 0(default_pg) Rank 3] Watchdog", 3),
        ("[2024-01-02 03:04:05,678] [INFO] [logging.py:96:log_dist] [Rank 0] step=10", 0),
        ("[INFO] see [Rank 3] for more", None),
        ("[Rank 3 of 8] x", None),
        ("ranks [Rank 3]", None),
    ],
)
def test_a_rank_in_a_leading_group(tmp_path: Path, line: str, rank: int | None) -> None:
    assert read(tmp_path, line + "\n").ranks == (rank,)


def test_labels_of_srun_are_ranks_where_most_lines_have_one(tmp_path: Path) -> None:
    labelled = "+ set -x\n" * 50 + "".join(f"{i % 16:2d}: step {i}\n" for i in range(300)) + "srun: error\n"
    ranks = read(tmp_path, labelled).ranks
    assert ranks[:50] == (None,) * 50
    assert ranks[50:350] == tuple(i % 16 for i in range(300))
    assert ranks[350] is None
    listed = "".join(f"    {i}: ParallelTransformerLayerPipe\n" for i in range(40)) + "iteration\n" * 160
    assert set(read(tmp_path, listed).ranks) == {None}
    assert read(tmp_path, labelled.replace("step", "[rank77]: step")).ranks[60] == 77


def test_a_local_rank_is_a_rank_on_a_single_node(tmp_path: Path) -> None:
    line = "[default1]:RuntimeError\n"
    assert read(tmp_path, line).ranks == (None,)
    (tmp_path / "metrics.csv").write_text("time_s,node,x\n0,a,1\n")
    assert read(tmp_path, line).ranks == (1,)
    (tmp_path / "metrics.csv").write_text("time_s,node,x\n0,a,1\n0,b,1\n")
    assert read(tmp_path, line).ranks == (None,)


def test_a_line_and_a_table_of_torchrun_name_the_rank_that_died_of_a_signal(tmp_path: Path) -> None:
    table = """E0102 03:04:05.678000 41 torch/distributed/elastic/api.py:869] failed (exitcode: -11) local_rank: 2 (pid: 99) of binary: x
Failures:
  rank      : 14 (local_rank: 6)
  exitcode  : 1 (pid: 98)
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
Root Cause (first observed failure):
  rank      : 10 (local_rank: 2)
  exitcode  : -11 (pid: 99)
  error_file: <N/A>
  traceback : Signal 11 (SIGSEGV) received by PID 99
====
  traceback : Signal 11 (SIGSEGV) received by PID 98
"""  # noqa: E501 - a line as it is
    assert read(tmp_path, table).ranks == (*[None] * 9, 10, None, None)
    (tmp_path / "metrics.csv").write_text("time_s,node,x\n0,a,1\n")
    assert read(tmp_path, table).ranks == (2, *[None] * 8, 10, None, None)


def test_a_file_named_after_its_rank(tmp_path: Path) -> None:
    log = read(tmp_path, "x\n[rank2]: y\n[default0]:z\n", "logs-rank12.txt")
    assert log.ranks == (12, 2, 12)


def test_nodes_of_nccl_and_syslog_lines(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        "r6i4n5:37339:37339 [0] NCCL INFO NET/IB : Using\n2024-01-02T03:04:05+00:00 gpu-07.x slurmd[12]: y\n"
        "2024-01-02 03:04:05 INFO trainer[12]: z\n[rank1]: n2:1:2 [0] NCCL WARN x\nhttp://a:1:2 [0] y\n",
    )
    assert log.nodes == ("r6i4n5", "gpu-07.x", None, "n2", None)


def test_line_numbers_count_newlines_alone_and_the_last_state_stays(tmp_path: Path) -> None:
    log = read(tmp_path, b"a\x0b\x0c\xe2\x80\xa8b\n\n 1%\r 2%\r\nlast \x1b[31mred\x1b[0m \xff\x00\r\nno newline")
    assert log.lines == ["a\ufffd\ufffd\u2028b", "", " 2%", "last red \ufffd", "no newline"]


def test_a_progress_bar_of_hours_is_one_line(tmp_path: Path) -> None:
    bar = b"".join(b"%d it\r" % i for i in range(100_000))
    log = read(tmp_path, b"first\n" + bar + b"\n" + b"x" * 300_000 + b"\nlast\n" + bar, "logs.txt.gz")
    assert [line[:20] for line in log.lines] == ["first", "99999 it", "x" * 20, "last", "99999 it"]
    assert max(map(len, log.lines)) == MAX_LINE_CHARS


@pytest.mark.parametrize("size", range(60, 70))
def test_pieces_of_a_long_line_meet_at_any_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(recorded_logs, "_PIECE_BYTES", size)
    states = [b"a" * 30, b"b" * 33, b"  ", b"c" * 64, b"", b"d" * 65]
    assert read(tmp_path, b"\r".join(states) + b"\nnext\n").lines == ["d" * 65, "next"]
    assert read(tmp_path, b"\r".join(states) + b"\r\nnext\n").lines == ["d" * 65, "next"]
    assert read(tmp_path, b"x" * size + b"\n" + b"y" * (size - 1) + b"\nnext").lines == [
        "x" * size,
        "y" * (size - 1),
        "next",
    ]


def test_json_lines(tmp_path: Path) -> None:
    text = (
        '{"time_s": 5.5, "node": "n", "rank": 2, "line": "a\\r b", "more": 1}\n\n{"line": "[rank3]: c"}\n'
        '{"line": "2024-01-02 03:04:05 d", "rank": null, "node": null}\n'
    )
    log = read(tmp_path, text, "logs-x.jsonl.gz")
    assert log.lines == [" b", "", "[rank3]: c", "2024-01-02 03:04:05 d"]
    assert log.ranks == (2, None, 3, None)
    assert log.nodes == ("n", None, None, None)
    np.testing.assert_array_equal(log.times_s, [5.5, np.nan, np.nan, JANUARY_2_2024])


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b'{"line": "a"', "logs.jsonl line 2: Input data was truncated"),
        (b'{"time_s": 1}', "logs.jsonl line 2: Object missing required field `line`"),
        (b'{"line": "a", "rank": -1}', "logs.jsonl line 2, column rank: Expected `int` >= 0"),
        (b'{"line": "a", "time_s": "x"}', "logs.jsonl line 2, column time_s: Expected `float | null`, got `str`"),
        (b'{"line": "\xff"}', "logs.jsonl line 2: "),
        (b'{"line": "a", "time_s": 1e999}', "logs.jsonl line 2"),
        (b'{"line": "a", "x": ' + b"[" * 100_000 + b"}", "logs.jsonl line 2: "),
        (b"[1]", "logs.jsonl line 2: Expected `object`, got `array`"),
    ],
)
def test_a_broken_json_line_is_one_sentence(tmp_path: Path, line: bytes, what: str) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, b'{"line": "fine"}\n' + line + b"\n", "logs.jsonl")
    assert str(caught.value).startswith(what)


def test_a_source_that_said_nothing(tmp_path: Path) -> None:
    assert read(tmp_path, "").lines == []
    assert read(tmp_path, "", "logs-2.jsonl").lines == []


def test_a_log_in_two_forms_is_refused(tmp_path: Path) -> None:
    read(tmp_path, "x\n")
    with pytest.raises(DataError, match=r"^logs\.txt and logs\.txt\.gz are both there; keep one of them$"):
        read(tmp_path, "x\n", "logs.txt.gz")


def test_a_truncated_log_is_one_sentence(tmp_path: Path) -> None:
    whole = gzip.compress(b"".join(b"line %d %d\n" % (i, i * i) for i in range(5000)))
    (tmp_path / "logs.txt.gz").write_bytes(whole[:-500])
    with pytest.raises(DataError, match=r"^logs\.txt\.gz is cut short"):
        read_folder(tmp_path)
