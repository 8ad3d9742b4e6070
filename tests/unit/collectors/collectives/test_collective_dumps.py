"""Records of collective calls on their way to the bus: asked for once, read once, small, and only the rank's own."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.doubles import ManualClock
from tests.hooked_ranks import HookedRanks, sent
from trainwarden import hook
from trainwarden.collectors.collectives.call_records import MAX_PACKED, pack, read_record, reduced, unpack
from trainwarden.collectors.collectives.dumps import CollectiveDumpsCollector
from trainwarden.errors import DataError
from trainwarden.hook.layout import AT_START_NS, CHECKPOINT
from trainwarden.protocols import Scope
from trainwarden.records import EventRecord


def entry(seq: int, group: str = "0", *, done: bool = True, **more: Any) -> dict[str, Any]:
    return {
        "collective_seq_id": seq, "process_group": (group, "dp"), "pg_id": int(group),
        "profiling_name": "nccl:all_reduce",
        "state": "completed" if done else "scheduled", "retired": done, "is_p2p": False, "time_created_ns": seq,
        "input_sizes": ((4, 8), (2,)), "output_sizes": ((4, 8),), "input_dtypes": ["Float"], "output_dtypes": ["Float"],
        "frames": [{"name": "f", "filename": "x.py", "line": 1}] * 40,
    } | more  # fmt: skip


# -- cutting down ------------------------------------------------------------------------------------------------


def test_the_newest_calls_and_the_oldest_unfinished_ones_of_each_group_are_kept() -> None:
    calls = [entry(seq) for seq in range(1, 101)] + [entry(seq, done=False) for seq in range(101, 201)]
    calls += [entry(seq, "1") for seq in range(1, 4)]
    kept = reduced({"entries": calls}, 5)["entries"]
    numbers = [one["collective_seq_id"] for one in kept if one["process_group"] == ["0", "dp"]]
    assert numbers == [100, 101, 102, 103, 104, 105, 196, 197, 198, 199, 200]
    assert [one["collective_seq_id"] for one in kept if one["process_group"] == ["1", "dp"]] == [1, 2, 3]
    assert kept[0]["input_sizes"] == [[34]]
    assert "frames" not in kept[0]


@pytest.mark.thorough
def test_a_full_ring_is_small_on_the_bus_and_a_huge_one_is_cut_until_it_fits() -> None:
    ring = {"entries": [entry(seq, done=seq < 1990) for seq in range(2000)]}
    assert len(pack(ring, 32)) < 4_000
    groups = {"entries": [entry(seq, str(seq % 600), profiling_name=os.urandom(50).hex()) for seq in range(20_000)]}
    packed = pack(groups, 64)
    assert len(packed) <= MAX_PACKED
    assert len(unpack(packed)["entries"]) >= 600


@pytest.mark.parametrize(
    "raw", [{"entries": 7}, {"entries": [7]}, {"pg_config": [1]}, {"pg_config": {"0": {"ranks": "x"}}}]
)
def test_what_is_no_record_is_refused(raw: Any) -> None:
    with pytest.raises(DataError):
        pack(raw, 8)


@pytest.mark.parametrize("data", [b"", b"\x80", b"[1]", b"{", b"\x80\x02].", b"7"])
def test_files_that_hold_none_are_refused(data: bytes) -> None:
    with pytest.raises(DataError):
        read_record(data)


def test_shared_lists_of_a_pickle_cost_no_time() -> None:
    shared: Any = [1] * 1000
    for _ in range(5):
        shared = [shared] * 1000
    assert pack({"entries": [entry(1, input_sizes=shared)]}, 8)


# -- the collector -----------------------------------------------------------------------------------------------


class Node(HookedRanks):
    """With a collector over it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.collector = self.new()

    def new(self, **settings: Any) -> CollectiveDumpsCollector:
        config = CollectiveDumpsCollector.Config(prefix=str(self.run_dir / "trace_rank_"), **settings)
        return CollectiveDumpsCollector(config, self.scope, self.clock)

    def events(self, now_s: float) -> list[EventRecord]:
        return sent(self.collector.collect(now_s))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.collector.close()


@pytest.fixture
def rank(node: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], hook.Hook]]:
    def build(number: int) -> hook.Hook:
        built = node.join(number, monkeypatch)
        built.requests.listen()
        return built

    yield build
    for built in node.made:
        built.memory.off = True
        os.write(built.requests.pipe, b"!")  # the thread sees that it is over


def steps(built: hook.Hook, number: int) -> None:
    for _ in range(number):
        built.marked(None)


def test_nobody_is_asked_before_the_job_stands_still_and_then_everybody_once(
    node: Node, rank: Callable[[int], hook.Hook], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("trainwarden.hook.ask_hook", lambda path, _owner: asked.append(path) or True)
    for number in range(2):
        steps(rank(number), 3)
    last_s = node.now_s()
    assert node.events(last_s + 0.9) == []
    assert asked == []
    node.events(last_s + 1.5)
    node.events(last_s + 2.5)
    assert len(asked) == 2
    assert node.collector.interval_s < 0.1  # an answer is awaited
    node.events(last_s + 40.0)
    node.events(last_s + 80.0)
    node.events(last_s + 120.0)
    assert len(asked) == 4  # once more, then never


def test_a_child_with_the_ranks_name_is_not_asked_for_the_trainer(
    node: Node, rank: Callable[[int], hook.Hook], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("trainwarden.hook.ask_hook", lambda path, _owner: asked.append(path) or True)
    trainer = rank(0)
    steps(trainer, 3)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", os.getppid)
        probe = rank(0)
    steps(probe, 1)
    probe.words[AT_START_NS] = trainer.words[AT_START_NS] + 10**9
    node.events(node.now_s() + 1.5)
    node.events(node.now_s() + 30.0)
    assert asked == [trainer.memory.path + ".hook"]


def test_a_pause_and_a_first_step_get_more_time(
    node: Node, rank: Callable[[int], hook.Hook], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("trainwarden.hook.ask_hook", lambda path, _owner: asked.append(path) or True)
    built = rank(0)
    node.events(node.now_s() + 50.0)
    assert asked == []
    steps(built, 3)
    assert built.begin_pause(CHECKPOINT) is not None
    node.events(node.now_s() + 50.0)
    assert asked == []
    node.events(node.now_s() + 61.0)
    assert len(asked) == 1


def test_an_answer_is_sent_once_also_after_a_restart(node: Node, rank: Callable[[int], hook.Hook]) -> None:
    built = rank(3)
    answer = Path(built.memory.path + ".calls")
    answer.write_text(json.dumps({"entries": [entry(7, done=False)]}))
    (told,) = node.events(1e10)
    assert (told.kind, told.rank, told.fields["asked"]) == ("flight_recorder", 3, True)
    assert unpack(str(told.fields["dump"]))["entries"][0]["collective_seq_id"] == 7
    assert node.events(1e10 + 1) == []
    position = json.loads(json.dumps(node.collector.position()))
    node.collector.close()
    node.collector = node.new()
    node.collector.restore(position)
    assert node.events(1e10 + 2) == []
    answer.write_text(json.dumps({"entries": [entry(8, done=False)]}))
    assert len(node.events(1e10 + 3)) == 1


def test_a_pickle_that_pytorch_leaves_is_read_when_it_has_stopped_growing(
    node: Node, rank: Callable[[int], hook.Hook]
) -> None:
    rank(1)
    path = node.run_dir / "trace_rank_1"
    whole = pickle.dumps({"version": "2.10", "entries": [entry(seq, done=seq < 5) for seq in range(9)]}, protocol=2)
    path.write_bytes(whole[: len(whole) // 2])
    assert node.events(1e10) == []
    path.write_bytes(whole)
    assert node.events(1e10 + 2) == []
    (told,) = node.events(1e10 + 4)
    assert (told.rank, told.fields["asked"]) == (1, False)
    assert len(unpack(str(told.fields["dump"]))["entries"]) == 9
    assert node.events(1e10 + 6) == []


def test_files_of_an_earlier_run_are_left_alone(node: Node, rank: Callable[[int], hook.Hook]) -> None:
    rank(1)
    path = node.run_dir / "trace_rank_1"
    path.write_bytes(pickle.dumps({"entries": []}, protocol=2))
    os.utime(path, (1_000.0, 1_000.0))
    assert [*node.events(1e10), *node.events(1e10 + 2), *node.events(1e10 + 4)] == []


def test_a_file_that_is_no_record_or_too_large_is_said_and_not_read_again(
    node: Node, rank: Callable[[int], hook.Hook]
) -> None:
    node.collector = node.new(max_bytes=1024)
    built = rank(1)
    Path(built.memory.path + ".calls").write_bytes(b"{" * 2000)
    (told,) = node.events(1e10)
    assert "cannot be used" in told.message
    assert "dump" not in told.fields
    assert node.events(1e10 + 1) == []


def test_a_pipe_or_a_folder_in_its_place_does_not_hold_the_agent_up(
    node: Node, rank: Callable[[int], hook.Hook]
) -> None:
    built = rank(1)
    os.mkfifo(built.memory.path + ".calls")
    (node.run_dir / "trace_rank_1").mkdir()
    assert [*node.events(1e10), *node.events(1e10 + 2), *node.events(1e10 + 4)] == []


def test_the_environment_of_the_rank_names_the_files(node: Node, tmp_path: Path) -> None:
    environ = tmp_path / "proc" / "77"
    environ.mkdir(parents=True)
    (environ / "environ").write_bytes(
        b"A=1\0TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/old/rank_\0TORCH_FR_DUMP_TEMP_FILE=/d/r_\0"
    )
    config = CollectiveDumpsCollector.Config(proc=str(tmp_path / "proc"))
    collector = CollectiveDumpsCollector(config, Scope(job="job", node="n", run_dir=str(tmp_path)), ManualClock(0.0))
    assert collector._prefixes(77) == ("/d/r_",)
    (environ / "environ").write_bytes(b"HOME=/h\0")
    assert collector._prefixes(77) == ("/h/.cache/torch/comm_lib_trace_rank_", "/tmp/nccl_trace_rank_")
    assert len(collector._prefixes(78)) == 2
