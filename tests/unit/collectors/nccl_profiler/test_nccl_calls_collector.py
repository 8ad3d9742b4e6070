"""The collector over files of calls: what it sends, how often, and what it bears."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hook_doubles import write_header
from tests.nccl_files import CallsFileWriter
from tests.nccl_player import Player
from tests.unit.collectors.nccl_profiler.watching import Rank, Watch
from trainwarden.collectors.nccl_profiler.layout import AT_COUNTS, CALLS
from trainwarden.topics import COLLECTIVES

SECOND = 1_000_000_000
UNTRUSTED, CLOSED = 1, 4


@pytest.fixture
def watch(run_dir: Path) -> Iterator[Watch]:
    watch = Watch(run_dir)
    yield watch
    watch.collector.close()


def test_calls_of_sampled_steps_are_sent_once(rank: Rank, watch: Watch) -> None:
    rank.file.comm(0, enqueued=2, started=2, finished=2, stamped=2, moved_ns=900 * SECOND)
    rank.file.step(64)
    rank.file.call(1, enqueued_ns=899 * SECOND)
    rank.file.call(2, function=16, peer=6, seq=9, device_ns=70_000)
    record, counts = watch.look()
    assert (record.rank, record.incarnation, record.node) == (3, rank.who.incarnation, "n0")
    assert (record.comms, record.groups, record.sizes, record.places) == (("000000000000ab00",), ("dp",), (8,), (3,))
    assert (record.of, record.functions, record.seqs, record.peers) == (
        (0, 0),
        ("AllReduce", "Send"),
        (1, 9),
        (None, 5),
    )
    assert (record.steps, record.call_bytes, record.lost) == ((64, 64), (4096, 4096), 0)
    assert (record.device_s, record.enqueued_s) == ((50e-6, 70e-6), (899.0, 1.0))
    assert (counts.enqueued, counts.started, counts.finished, counts.of) == ((2,), (2,), (2,), ())  # it is new
    assert watch.look(1.0) == []
    watch.restart()
    rank.file.call(3)
    (record,) = watch.look()
    assert record.seqs == (3,)


def test_a_call_waits_for_its_stamps_but_not_for_ever(rank: Rank, watch: Watch) -> None:
    rank.file.comm(0, enqueued=3)
    watch.look()
    rank.file.call(1, begun=1, ended=0, enqueued_ns=1_000 * SECOND)
    rank.file.call(2)
    assert watch.look(1.0) == []
    rank.file.call(1, begun=1, ended=1, enqueued_ns=1_000 * SECOND, counted=False)
    (record,) = watch.look()
    assert record.seqs == (1, 2)
    rank.file.call(3, begun=1, ended=0, enqueued_ns=1_002 * SECOND)
    sent = [record for record in watch.look(6.0) if record.of]
    assert [(record.seqs, record.device_s) for record in sent] == [((3,), (None,))]


def test_a_call_of_a_time_to_come_holds_the_others_up_no_longer(rank: Rank, watch: Watch) -> None:
    rank.file.comm(0, enqueued=3)
    rank.file.call(1, begun=1, ended=0, enqueued_ns=2**61)
    rank.file.call(2)
    assert [record.seqs for record in watch.look() if record.of] == [(1, 2)]


@pytest.mark.parametrize("flags", [CLOSED, UNTRUSTED])
def test_a_call_whose_stamps_will_not_come_is_not_waited_for(rank: Rank, watch: Watch, flags: int) -> None:
    rank.file.comm(0, enqueued=1, flags=flags)
    rank.file.comm(1, generation=7)
    rank.file.call(1, begun=1, ended=0, enqueued_ns=1_000 * SECOND)
    calls, counts = watch.look()
    assert (calls.seqs, calls.comms) == ((1,), ("000000000000ab00",))
    assert counts.comms == ("000000000000ab00", "000000000000ab01")[flags == CLOSED :]


def test_of_communicators_that_are_all_gone_nothing_is_told(rank: Rank, watch: Watch) -> None:
    rank.file.comm(0, enqueued=1, flags=CLOSED)
    assert watch.look(20.0) == []


def test_a_position_is_that_of_one_file_alone(rank: Rank, watch: Watch) -> None:
    rank.file.comm(0, enqueued=1)
    rank.file.call(1)
    watch.look()
    rank.file.path.unlink()
    rank.file = CallsFileWriter(rank.file.path, rank.who, born_ns=2_000)  # while the agent is away
    rank.file.comm(0, enqueued=1)
    rank.file.call(1, seq=77)
    watch.restart()
    assert watch.look()[0].seqs == (77,)
    rank.file.path.unlink()
    watch.restart()
    watch.look()
    assert watch.collector.position() == {"files": {}}


def test_a_call_that_the_device_passed_over_is_told_without_a_time(rank: Rank, watch: Watch) -> None:
    """The first call of a step, which NCCL 2.27 cannot have stamped any more."""
    rank.file.comm(0, enqueued=2)
    rank.file.call(1, begun=0, ended=0, enqueued_ns=1_000 * SECOND)
    rank.file.call(2, enqueued_ns=1_000 * SECOND)
    assert watch.look()[0].device_s == (None, 50e-6)


@pytest.mark.parametrize("said", [{"flags": UNTRUSTED}, {"flags": 2}])
def test_stamps_that_are_not_to_be_trusted_are_left_out(rank: Rank, watch: Watch, said: dict[str, int]) -> None:
    rank.file.comm(0, enqueued=2, started=2, finished=2, stamped=2, **said)
    rank.file.call(1)
    rank.file.call(2, begun=1, ended=0)
    record = watch.look()[0]
    assert (record.device_s, record.started, record.finished) == ((None, None), (None,), (None,))


@pytest.mark.parametrize(
    ("flags", "at", "said"),
    [(UNTRUSTED, None, "out of step"), (2, AT_COUNTS + 6, "CUDA graph"), (0, AT_COUNTS + 1, "more communicators")],
)
def test_why_not_all_is_told_is_said_once(
    rank: Rank, watch: Watch, caplog: pytest.LogCaptureFixture, flags: int, at: int | None, said: str
) -> None:
    rank.file.comm(0, enqueued=2)
    watch.look()
    assert caplog.records == []
    rank.file.comm(0, enqueued=3, flags=flags)
    if at is not None:
        rank.file.word(at, 1)
    watch.look(5.0)
    assert [said in one.message for one in caplog.records] == [True]


def test_a_voided_stamp_and_a_call_of_an_untold_step(rank: Rank, watch: Watch) -> None:
    rank.file.comm(0, enqueued=2)
    rank.file.call(1, flags=1)
    rank.file.call(2, step=-1)
    record = watch.look()[0]
    assert (record.seqs, record.device_s) == ((1,), (None,))


def test_counts_are_sent_when_calls_and_steps_stand_still_and_again(rank: Rank, watch: Watch) -> None:
    rank.file.step(7)
    rank.file.comm(0, enqueued=5, moved_ns=999 * SECOND)
    rank.file.comm(1, enqueued=2, id=0xFF, stamped=2, started=2, finished=1)
    (new,) = watch.look()
    assert (new.comms, new.enqueued) == (("000000000000ab00", "00000000000000ff"), (5, 2))
    assert watch.look(1.5) == []
    (still,) = watch.look()
    assert (still.enqueued, still.started, still.finished) == ((5, 2), (None, 2), (None, 1))
    assert still.moved_s == (999.0, None)
    assert still.of == ()
    assert watch.look(9.5) == []
    assert len(watch.look()) == 1
    rank.file.comm(0, enqueued=6)
    assert watch.look(1.5) == []
    rank.file.step(8)  # calls stand still, as in a replayed graph, and steps do not
    assert watch.look(2.0) == []
    assert len(watch.look()) == 1


def test_a_rank_before_its_first_call_does_not_stand_still(rank: Rank, watch: Watch) -> None:
    rank.file.comm(0)
    assert len(watch.look(20.0)) == 1  # that it is there


def test_communicators_that_come_are_told_and_those_that_go_are_not(rank: Rank, watch: Watch) -> None:
    rank.file.comm(0, generation=1)
    assert [record.comms for record in watch.look(1.0)] == [("000000000000ab00",)]
    rank.file.comm(0, generation=1, flags=CLOSED)
    rank.file.comm(1, generation=2)
    assert [record.comms for record in watch.look(1.0)] == [("000000000000ab01",)]
    rank.file.comm(1, generation=3, id=0xCC)  # the place is another's
    assert [record.comms for record in watch.look(1.0)] == [("00000000000000cc",)]
    watch.restart()
    assert watch.look(1.0) == []


def test_torn_communicators_are_left_out(rank: Rank, watch: Watch) -> None:
    rank.file.comm(0, again=7)
    rank.file.comm(1, ranks=2**63)
    rank.file.comm(2)
    assert [record.comms for record in watch.look()] == [("000000000000ab02",)]


def test_what_was_overwritten_is_counted(rank: Rank, watch: Watch) -> None:
    rank.file.comm(0, enqueued=1)
    rank.file.call(1)
    watch.look()
    for serial in range(CALLS + 9, CALLS + 12):
        rank.file.call(serial)
    rank.file.call(5_000, number=5_000, counted=False)
    sent = watch.look(6.0)
    assert sum(record.lost for record in sent) == 10
    assert next(seq for record in sent if record.of for seq in record.seqs) == 5_000


def test_a_record_that_was_never_finished_holds_the_others_up_for_a_while_only(rank: Rank, watch: Watch) -> None:
    rank.file.comm(0, enqueued=1)
    watch.look()
    rank.file.call(1, number=0)
    rank.file.call(2)
    assert watch.look(4.0) == [] or not any(record.of for record in watch.look())
    assert [record.seqs for record in watch.look(3.0) if record.of and record.device_s[0]] == [(2,)]


def test_many_calls_go_in_records_that_the_bus_takes(rank: Rank, watch: Watch) -> None:
    for place in range(256):
        rank.file.comm(place, name=b"\x01" * 63, enqueued=2**61)
    for serial in range(1, CALLS + 1):
        generation = serial % 256 + 1 if serial > 1 else 77  # of the first one the communicator is gone
        rank.file.call(serial, place=serial % 256, generation=generation, seq=2**61, counted=serial == CALLS)
    records = watch.look()
    assert sum(len(record.of) for record in records) == CALLS - 1
    assert sum(record.lost for record in records) == 1
    assert max(len(COLLECTIVES.encode(record)) for record in records) < 900_000


def test_nccl_2_26_tells_no_sizes(rank: Rank, watch: Watch) -> None:
    rank.file.comm(0, ranks=0, nodes=0, enqueued=1)
    (record,) = watch.look()
    assert (record.sizes, record.node_counts, record.places) == ((), (), (3,))


# -- whose file, and whose not


def test_a_file_waits_for_its_hook_and_goes_with_it(run_dir: Path, rank: Rank, watch: Watch) -> None:
    rank.file.comm(0)
    away = rank.stem.with_suffix(".hook").rename(run_dir / "away")
    assert watch.look() == []
    away.rename(rank.stem.with_suffix(".hook"))
    assert len(watch.look()) == 1
    rank.stem.with_suffix(".hook").unlink()
    assert watch.look() == []
    assert not rank.file.path.exists()


def test_a_file_that_no_hook_comes_to_is_deleted_in_the_end(run_dir: Path, rank: Rank, watch: Watch) -> None:
    """Of a process that calls NCCL past torch: each start of it would leave one in /dev/shm."""
    rank.file.comm(0, enqueued=1)
    other = run_dir / "hook" / "rank-4-77.nccl"
    other.write_bytes(b"none of ours")
    away = rank.stem.with_suffix(".hook").rename(run_dir / "away")
    assert watch.look() == []
    watch.clock.sleep(3_590.0)
    assert watch.look() == []
    away.rename(rank.stem.with_suffix(".hook"))
    assert len(watch.look()) == 1
    rank.stem.with_suffix(".hook").unlink()
    watch.restart()  # so it is not known any more whose file it was
    watch.look()
    assert rank.file.path.exists()
    watch.clock.sleep(3_600.0)
    watch.look()
    assert not rank.file.path.exists()
    assert other.exists()


def test_a_rank_that_ended_is_told_to_the_end_and_once(run_dir: Path, watch: Watch) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    rank = Rank(run_dir, pid=child.pid)
    rank.file.comm(0, enqueued=1)
    rank.file.call(1, begun=1, ended=0, enqueued_ns=1_000 * SECOND)
    assert not any(record.of for record in watch.look())
    child.communicate()
    calls, counts = watch.look()
    assert (calls.seqs, calls.device_s, counts.enqueued) == ((1,), (None,), (1,))
    watch.restart()
    assert watch.look(20.0) == []
    assert rank.file.path.exists()


def test_files_of_others_are_counted_and_said_once(
    run_dir: Path, rank: Rank, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    rank.file.comm(0)
    for number, data in enumerate((b"", b"junk" * 1000, bytes(593_920))):
        (run_dir / "hook" / f"rank-{number}-77.nccl").write_bytes(data)
    (run_dir / "hook" / "rank-9-77.nccl").symlink_to("/dev/zero")
    os.mkfifo(run_dir / "hook" / "rank-8-77.nccl")
    assert len(watch.look()) == 1
    watch.look(20.0)
    assert watch.collector.junk == 4  # a link is not followed
    assert len([one for one in caplog.records if "left alone" in one.message]) == 4


def test_a_file_that_was_replaced_is_begun_anew(rank: Rank, watch: Watch) -> None:
    """The process has run another program: same pid, same start."""
    rank.file.comm(0, enqueued=1)
    rank.file.call(1)
    watch.look()
    rank.file.path.unlink()
    rank.file = CallsFileWriter(rank.file.path, rank.who, born_ns=2_000)
    rank.file.comm(0, id=0xEE, enqueued=1)
    rank.file.call(1, seq=77)
    assert watch.look()[0].seqs == (77,)


@pytest.mark.parametrize(
    ("plugin", "said"),
    [("/opt/own.so", ["/opt/own.so"]), ("/opt/libnccl-profiler-inspector.so", []), ("inspector", [])],
)
def test_a_plug_in_of_somebody_else_s_is_said_but_one_that_is_read(
    run_dir: Path, watch: Watch, caplog: pytest.LogCaptureFixture, plugin: str, said: list[str]
) -> None:
    environ = {"NCCL_PROFILER_PLUGIN": plugin}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environ) as child:
        while plugin.encode() not in Path(f"/proc/{child.pid}/environ").read_bytes():
            time.sleep(0.001)  # it begins its program: the kernel shows no environment meanwhile
        Rank(run_dir, pid=child.pid)
        watch.look(2.0)
        assert [one.fields["plugin"] for one in caplog.records] == said  # type: ignore[attr-defined]
        child.communicate()


def test_a_plug_in_is_said_though_the_environment_cannot_be_read_at_the_first_look(
    tmp_path: Path, run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel shows none while a process begins a program, and another namespace's process may not be found yet."""
    Rank(run_dir)
    own = Path(f"/proc/{os.getpid()}")
    there = tmp_path / "proc" / str(os.getpid())
    there.mkdir(parents=True)
    for name in ("stat", "status", "environ"):
        (there / name).write_bytes((own / name).read_bytes() if name != "environ" else b"")
    watch = Watch(run_dir, proc=str(tmp_path / "proc"))
    watch.look(2.0)
    assert caplog.records == []
    (there / "environ").write_bytes(b"HOME=/\0NCCL_PROFILER_PLUGIN=/opt/own.so\0")
    watch.look(2.0)
    assert [one.fields["plugin"] for one in caplog.records] == ["/opt/own.so"]  # type: ignore[attr-defined]
    watch.collector.close()


@pytest.mark.thorough
def test_what_the_plug_in_itself_wrote_is_told(built: tuple[Path, Path], run_dir: Path) -> None:
    watch = Watch(run_dir)
    with Player(built, run_dir / "hook") as player:
        write_header(run_dir / "hook" / f"rank-3-{player.process.pid}.hook", player.process.pid)
        player.init(0)
        player.ask("step", 64)
        call, now = player.coll(seq=0, count=1 << 20), player.now()
        player.kernel(call, now, now + 2_000_000)
        record = watch.look()[0]
        assert (record.functions, record.call_bytes, record.device_s) == (("AllReduce",), (4 << 20,), (0.002,))
        assert (record.steps, record.enqueued, record.started, record.finished) == ((64,), (1,), (1,), (1,))
        player.process.kill()
        player.process.wait()
        watch.look()
    watch.collector.close()
