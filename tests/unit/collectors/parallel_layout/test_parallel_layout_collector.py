"""What a node tells of the job's layout, from a real process's command line and the hook's files."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.doubles import ManualClock
from tests.hook_doubles import write_header
from trainwarden.collectors.parallel_layout.collector import ParallelLayoutCollector
from trainwarden.collectors.ranks import UNSEEN, ProcessFinder
from trainwarden.errors import ConfigError
from trainwarden.parallelism.board import LayoutBoard
from trainwarden.plugins import configure
from trainwarden.protocols import Scope
from trainwarden.records import EventRecord

Start = Callable[..., int]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A process with these words in its command line, and the hook file of a rank that has made steps."""
    made: list[subprocess.Popen[bytes]] = []
    (tmp_path / "hook").mkdir()

    def begin(rank: int, *words: str, world: int = 8, recorded: int = 5, groups: dict[str, str] | None = None) -> int:
        script = ["/bin/sh", "-c", "echo; read line", "train.py", *words]
        process = subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path)
        made.append(process)
        assert process.stdout is not None
        process.stdout.readline()  # Popen returns before the kernel shows the new command line
        pid = process.pid
        path = tmp_path / "hook" / f"rank-{rank}-{pid}.hook"
        write_header(path, pid, world=world, recorded=recorded)
        if groups is not None:
            path.with_suffix(".groups").write_text(json.dumps({"groups": groups}))
        return pid

    yield begin
    for process in made:
        process.kill()
        process.communicate()


def collector(run_dir: Path, clock: ManualClock | None = None, **settings: object) -> ParallelLayoutCollector:
    config = configure(ParallelLayoutCollector, settings, "here")
    return ParallelLayoutCollector(config, Scope(job="j", node="n", run_dir=str(run_dir)), clock or ManualClock())


def told(found: ParallelLayoutCollector) -> list[EventRecord]:
    records = list(found.collect(10.0))
    assert all(isinstance(record, EventRecord) for record in records)
    return records  # type: ignore[return-value]


def said(events: list[EventRecord]) -> str | None:
    board = LayoutBoard()
    for event in events:
        board.apply(event)
    layout = board.layout()
    return None if layout is None else layout.summary()


MEGATRON = ("--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2", "--calculate-per-token-loss")


def test_one_rank_of_a_node_tells_the_command_line(tmp_path: Path, start: Start) -> None:
    for rank in (4, 2, 3):
        start(rank, *MEGATRON)
    (event,) = told(collector(tmp_path))
    assert (event.rank, event.kind) == (2, "parallel_layout")
    assert said([event]) == "tp 2 x pp 2 x dp 2; from Megatron arguments"


def test_a_file_is_read_as_its_process_sees_it(tmp_path: Path, start: Start) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}, "tensor_parallel": {"autotp_size": 8}}')
    start(0, "--deepspeed_config", "ds.json")
    (event,) = told(collector(tmp_path))
    assert event.fields["uneven"] == "ZeRO-3: every micro-batch is a collective call of all replicas"
    assert said([event]) == "tp 8 x pp 1 x dp 1; from DeepSpeed arguments"


@pytest.mark.parametrize("name", ["missing.json", "/dev/zero", ".", "a\x01b", "x" * 5000])
def test_a_file_that_is_none_does_no_harm(tmp_path: Path, start: Start, name: str) -> None:
    start(0, "--deepspeed_config", name)
    assert told(collector(tmp_path)) == []


def test_settings_are_told_first(tmp_path: Path, start: Start) -> None:
    start(0, *MEGATRON)
    events = told(collector(tmp_path, tp=4))
    assert [event.fields["source"] for event in events] == ["settings", "arguments"]
    assert said(events) == (
        "tp 4 x pp 1; from settings and Megatron arguments; "
        "contradiction: settings say tensor 4, Megatron arguments say 2; "
        "contradiction: settings say pipeline 1, Megatron arguments say 2"
    )


def test_every_rank_tells_its_groups(tmp_path: Path, start: Start) -> None:
    for rank in range(4):
        low = rank // 2 * 2
        names = {"mesh_tp": f"{low}-{low + 1}", "mesh_dp": f"{rank % 2}-{rank % 2 + 2}:2", "RING": "0-3"}
        start(rank, world=4, groups=names)
    events = told(collector(tmp_path))
    assert len(events) == 4
    assert said(events) == "tp 2 x pp 1 x dp 2; from process groups"


def test_a_rank_says_why_unequal_numbers_are_wrong(tmp_path: Path, start: Start) -> None:
    pid = start(0)
    (tmp_path / "hook" / f"rank-0-{pid}.groups").write_text('{"groups": {}, "uneven": "BatchNorm: so"}')
    (event,) = told(collector(tmp_path))
    board = LayoutBoard()
    board.apply(event)
    layout = board.layout()
    assert layout is not None
    assert layout.uneven == ("BatchNorm: so",)


def test_it_is_said_again_under_the_same_ids(tmp_path: Path, start: Start) -> None:
    start(0, *MEGATRON)
    clock = ManualClock()
    watch = collector(tmp_path, clock, again_s=60.0)
    first = told(watch)
    assert told(watch) == []
    clock.sleep(61.0)
    assert [event.id for event in told(watch)] == [event.id for event in first]
    assert [event.id for event in told(collector(tmp_path))] == [event.id for event in first]


def test_who_does_not_train_or_is_alone_tells_nothing(tmp_path: Path, start: Start) -> None:
    start(0, *MEGATRON, recorded=0)
    start(1, *MEGATRON, world=1)
    assert told(collector(tmp_path)) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        "[1]",
        '{"groups": 3}',
        '{"groups": {"mesh_tp": 7}}',
        '{"groups": {"mesh_tp": "0-"}}',
        '{"groups": {"mesh_tp": "a=b;tp=1"}}',
        '{"uneven": [1]}',
    ],
)
def test_a_damaged_file_of_groups_is_passed_over(tmp_path: Path, start: Start, text: str) -> None:
    pid = start(0)
    (tmp_path / "hook" / f"rank-0-{pid}.groups").write_text(text)
    board = LayoutBoard()
    for event in told(collector(tmp_path)):
        board.apply(event)
    layout = board.layout()
    assert layout is None or not layout.whole


def test_a_pipe_in_place_of_the_groups_holds_nobody_up(tmp_path: Path, start: Start) -> None:
    pid = start(0, *MEGATRON)
    os.mkfifo(tmp_path / "hook" / f"rank-0-{pid}.groups")
    assert [event.fields["source"] for event in told(collector(tmp_path))] == ["arguments"]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_groups_that_another_user_wrote_where_anybody_may_are_not_believed(tmp_path: Path, start: Start) -> None:
    pid = start(0, groups={"mesh_tp": "0-1"})
    (tmp_path / "hook").chmod(0o1777)
    assert [event.fields["source"] for event in told(collector(tmp_path))] == ["groups"]
    os.chown(tmp_path / "hook" / f"rank-0-{pid}.groups", 65534, 65534)
    assert told(collector(tmp_path)) == []


def test_a_command_that_is_seen_late_is_told(tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    start(0, *MEGATRON)
    watch = collector(tmp_path)
    with monkeypatch.context() as hidden:
        hidden.setattr(ProcessFinder, "look", lambda *_: UNSEEN)
        assert told(watch) == []
    (event,) = told(watch)
    assert event.fields["source"] == "arguments"


def test_sizes_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"here: .*tp"):
        configure(ParallelLayoutCollector, {"tp": 0}, "here")
