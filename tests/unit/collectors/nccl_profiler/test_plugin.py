"""The plug-in as NCCL calls it, by the player; what then stands in the file, by its reader."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import nccl_player
from tests.nccl_player import Player
from trainwarden.collectors.nccl_profiler import layout, read
from trainwarden.collectors.nccl_profiler.source import CallsFile

STAMPS, HOST = 64 | 2 | 4, 2 | 4  # masks
US, MS = 1_000, 1_000_000
UNTOLD = 2  # the handle of a call that is stamped, and of which nothing is kept


def file_of(player: Player) -> tuple[read.Header, list[read.Comm], dict[int, read.Call]]:
    return contents(player.path)


def contents(path: Path) -> tuple[read.Header, list[read.Comm], dict[int, read.Call]]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        header = read.read_header(descriptor)
        assert header is not None
        return header, read.read_comms(descriptor), read.read_calls(descriptor, 0, header)
    finally:
        os.close(descriptor)


def warmed(player: Player, comm: int = 0) -> None:
    """Past the calls of the warm-up, into step 1, which is none of those sampled."""
    player.init(comm)
    player.ask("step", 1)
    for number in range(20):
        player.coll(comm, number)
    assert player.ask("mask") == [HOST]


def succeed(player: Player) -> None:
    """Communicator 0 goes, and after all other places have been taken communicator 1 gets its place, and one call."""
    player.ask("end", 0)
    for number in range(layout.COMMS):
        player.init(1, identity=number + 1)
        if number < layout.COMMS - 1:
            player.ask("end", 1)
    player.coll(1)


@pytest.mark.thorough
def test_layout_is_the_same_in_both_languages(built, tmp_path):
    with Player(built, tmp_path) as player:
        assert player.ask("layout") == [
            layout.ABI, layout.AT_STEP, layout.AT_CALLS, layout.AT_KERNELS, layout.AT_COUNTS,
            layout.COMMS_BEGIN, layout.CALLS_BEGIN, layout.COMM.size, layout.FILE_BYTES,
        ]  # fmt: skip
    assert layout.FILE_BYTES <= 1 << 20


def test_a_rank_pays_no_more_than_a_megabyte(built):
    """The file and all that the library itself holds, its code too: what its loadable segments take."""
    held = nccl_player.held_bytes(built[0])
    assert held > layout.CALLS * 8
    assert layout.FILE_BYTES + held <= 1_000_000


@pytest.mark.parametrize(("version", "nccl"), [(4, "22705"), (5, "22907")])
def test_a_sampled_call_is_told_with_the_longest_of_its_channels(built, tmp_path, version, nccl):
    with Player(built, tmp_path, version, PLAYER_NCCL=nccl) as player:
        warmed(player)
        player.ask("step", 63)  # NCCL reads what is wanted before it tells of a call: it is said a step ahead
        player.coll(seq=20)
        player.ask("step", 64)
        call, now = player.coll(seq=21, count=1 << 20, channels=2), player.now()
        assert call
        player.kernel(call, now, now + 40 * US, channel=0)
        player.kernel(call, now + 1 * US, now + 91 * US, channel=1)
        header, (comm,), calls = file_of(player)
    told = [one for one in calls.values() if one.seq == 21]
    assert [(one.function, one.step, one.size_bytes, one.device_ns, one.done) for one in told] == [
        ("AllReduce", 64, 4 << 20, 90 * US, True)
    ]
    assert (comm.id, comm.name, comm.nodes, comm.ranks, comm.rank) == ("0000000000000abc", "dp", 2, 8, 1)
    assert (comm.enqueued, comm.started, comm.finished) == (22, 22, 22)
    assert (header.step, header.interface, header.nccl_version) == (64, version, int(nccl))


@pytest.mark.parametrize("version", [4, 5])
def test_the_only_call_of_a_sampled_step_is_stamped(built, tmp_path, version):
    """DDP with one bucket makes one call a step, and in that the others wait."""
    with Player(built, tmp_path, version) as player:
        warmed(player)
        player.ask("from", 101)
        player.ask("until", 103)
        before = file_of(player)[0].calls
        for step in range(1, 131):
            player.ask("step", step)
            handle, asked = player.ask("coll", 0, "AllReduce", step, 8, "ncclInt8", 1)
            now = player.now()
            if asked:
                player.kernel(handle, now, now + 5 * US)
        header, _, calls = file_of(player)
    told = [(calls[number].step, calls[number].device_ns) for number in range(before + 1, header.calls + 1)]
    assert told == [(step, 5 * US) for step in (64, 101, 102, 128)]
    assert (header.counts.orphans, header.counts.stale) == (0, 0)


def test_other_steps_are_counted_and_nothing_more(built, tmp_path):
    with Player(built, tmp_path) as player:
        warmed(player)
        before = file_of(player)[0].calls
        for seq in range(1000):
            assert player.coll(seq=seq) == 0
        header, (comm,), _ = file_of(player)
    assert header.calls == before
    assert (comm.enqueued, comm.started, comm.finished) == (1020, None, None)


def test_no_step_is_sampled_before_the_hook_has_told_one(built, tmp_path):
    with Player(built, tmp_path) as player:
        player.init(0)
        for seq in range(20):
            player.coll(seq=seq)
        assert player.coll() == 0
        player.ask("step", 7)
        assert player.coll() == 0
        before = file_of(player)[0].calls
        player.ask("from", 12)
        player.ask("until", 14)
        for step in range(7, 16):
            player.ask("step", step)
            player.coll()
        header, _, calls = file_of(player)
    assert [calls[serial].step for serial in range(before + 1, header.calls + 1)] == [12, 13]


def test_what_an_agent_writes_is_what_the_plug_in_reads(built, tmp_path):
    """Two agents may ask at once, and one that dies thereafter changes nothing: the request ends by itself."""
    with Player(built, tmp_path) as player:
        warmed(player)
        for _ in range(2):
            file = CallsFile(str(player.path))
            assert file.look()
            assert file.sampled
            assert file.sample(12, 14)
            file.close()
        before = file_of(player)[0].calls
        for step in range(9, 80):
            player.ask("step", step)
            player.coll()
        header, _, calls = file_of(player)
    assert [calls[serial].step for serial in range(before + 1, header.calls + 1)] == [12, 13, 64]
    assert header.step == 79
    assert layout.AT_SAMPLE_FROM == layout.AT_SAMPLE_UNTIL + 1  # they are one write


@pytest.mark.parametrize(
    ("version", "nccl", "asked", "mode"),
    [
        (3, "22603", "", "never"), (4, "22705", "", "sampled"), (5, "23007", "", "sampled"), (5, "23100", "", "never"),
        (5, "0", "", "never"), (5, "23100", "on", "always"), (5, "22907", "off", "never"),
    ],
)  # fmt: skip
def test_which_nccl_has_its_calls_stamped(built, tmp_path, version, nccl, asked, mode):
    with Player(built, tmp_path, version, PLAYER_NCCL=nccl, TRAINWARDEN_NCCL_KERNELS=asked) as player:
        player.init(0)
        player.ask("step", 64)
        player.coll(seq=0)
        assert player.ask("mask") == [HOST if mode == "never" else STAMPS]
        header, (comm,), calls = file_of(player)
        assert (header.kernels, comm.enqueued) == (mode, 1)
        assert bool(calls) == (mode != "never")


def test_no_more_stamps_once_a_graph_holds_nccl(built, tmp_path):
    with Player(built, tmp_path) as player:
        warmed(player)
        player.ask("capture", 0)
        before = file_of(player)[0].calls
        for step in (63, 64, 127, 128):
            player.ask("step", step)
            player.coll()
            assert player.ask("mask") == [HOST]
        header, (comm,), _ = file_of(player)
    assert (header.counts.captured, header.calls) == (1, before)
    assert not comm.trusted
    assert comm.started is None


def test_a_graph_that_was_captured_with_stamps_keeps_them(built, tmp_path):
    """NCCL waits for ever for stamps of calls that were captured without (graph_clear in tests/data/nccl_host)."""
    with Player(built, tmp_path) as player:
        warmed(player)
        for step in (63, 64):
            player.ask("step", step)
            player.coll()
        assert player.ask("capture", 0) == player.ask("capture", 0) == [1]
        before = file_of(player)[0].calls
        for step in (65, 66, 128):
            player.ask("step", step)
            player.coll()
            assert player.ask("mask") == [STAMPS]
        player.ask("graph", 1)
        player.init(1, 0xDEF)
        assert player.ask("mask") == [STAMPS]
        header, comms, _ = file_of(player)
    assert (header.counts.captured, header.calls) == (1, before)
    assert not comms[0].trusted
    assert [comm.started for comm in comms] == [None, None]


@pytest.mark.parametrize(
    ("nccl", "holds_nccl", "goes_on"),
    [("22809", False, True), ("22809", True, False), ("22705", False, False), ("23100", False, False)],
)
def test_while_the_hook_tells_of_a_capture_nothing_is_stamped(built, tmp_path, nccl, holds_nccl, goes_on):
    """And never again where the graph holds NCCL, which 2.27 does not tell, nor where stamps must not be switched."""
    environ = {"PLAYER_NCCL": nccl, "TRAINWARDEN_NCCL_KERNELS": "on"}
    with Player(built, tmp_path, 4 if nccl < "228" else 5, **environ) as player:
        player.init(0)
        player.ask("step", 64)
        player.coll()
        assert player.ask("mask") == [STAMPS]
        player.ask("graph", 1)
        assert player.ask("mask") == [HOST]
        if holds_nccl:
            assert player.ask("capture", 0) == [0]
        player.coll()
        assert player.ask("mask") == [HOST]
        player.ask("graph", 0)
        player.ask("step", 128)
        player.coll()
        assert player.ask("mask") == [STAMPS if goes_on else HOST]
        assert file_of(player)[0].counts.captured == (not goes_on)


def test_a_capture_before_the_first_communicator_ends_nothing(built, tmp_path):
    with Player(built, tmp_path, 4) as player:
        player.ask("graph", 1)
        player.ask("graph", 0)
        player.init(0)
        assert player.ask("mask") == [STAMPS]


def test_sends_are_numbered_by_peer(built, tmp_path):
    with Player(built, tmp_path) as player:
        warmed(player)
        player.ask("step", 64)
        player.coll()
        for peer, func in ((1, "Send"), (2, "Send"), (1, "Recv"), (1, "Send")):
            player.ask("p2p", 0, func, 10, "ncclBfloat16", peer, 1)
        _, _, calls = file_of(player)
    pairs = [(one.function, one.peer, one.seq, one.size_bytes) for one in calls.values() if one.peer is not None]
    assert pairs == [("Send", 1, 0, 20), ("Send", 2, 0, 20), ("Recv", 1, 0, 20), ("Send", 1, 1, 20)]


def test_sends_to_more_peers_than_there_are_places_are_counted_and_not_told(built, tmp_path):
    with Player(built, tmp_path) as player:
        warmed(player)
        player.ask("step", 64)
        player.coll()
        handles = [player.ask("p2p", 0, "Send", 10, "ncclInt8", peer, 1)[0] for peer in range(6000)]
        header, (comm,), calls = file_of(player)
    assert header.counts.dropped == handles.count(UNTOLD) >= 6000 - 4096
    assert comm.enqueued == 20 + 1 + 6000
    assert sum(one.function == "Send" for one in calls.values()) == 6000 - handles.count(UNTOLD)


# -- what cannot be


def stamped(player: Player, begin: Callable[[int], int], end: Callable[[int], int], seq: int) -> None:
    call, now = player.coll(seq=seq), player.now()
    player.kernel(call, begin(now), end(now))


def test_stamps_that_stop_before_they_start_are_left_out_and_three_of_them_end_the_trust(built, tmp_path):
    with Player(built, tmp_path) as player:
        warmed(player)
        player.ask("step", 64)
        player.coll(seq=100)
        stamped(player, lambda now: now, lambda now: now - 5 * US, 101)
        stamped(player, lambda now: now, lambda now: now + 5 * US, 102)
        header, (comm,), calls = file_of(player)
        assert comm.trusted
        assert [one.device_ns for one in calls.values()][-2:] == [None, 5 * US]
        for seq in (103, 104, 105):
            stamped(player, lambda now: now, lambda now: now - 5 * US, seq)
        header, (comm,), _ = file_of(player)
    assert not comm.trusted
    assert header.counts.voided == 4


@pytest.mark.parametrize("offset", [0, -(10**15), 10**17])
def test_stamps_of_earlier_calls_end_the_trust_whatever_the_gpu_s_clock_says(built, tmp_path, offset):
    with Player(built, tmp_path) as player:
        warmed(player)
        player.ask("step", 64)
        player.coll(seq=100)
        base = 10**16 + offset
        for seq in range(101, 111):
            stamped(player, lambda now: now + base, lambda now: now + base + 5 * US, seq)
        assert file_of(player)[1][0].trusted
        for seq in range(111, 114):  # counters out of step: what comes is of 50 ms before
            stamped(player, lambda now: now + base - 50 * MS, lambda now: now + base - 49 * MS, seq)
        assert not file_of(player)[1][0].trusted


@pytest.mark.parametrize("drift", [-1e-4, 1e-4])
def test_clocks_of_gpu_and_host_that_drift_apart_leave_stamps_trusted(built, tmp_path, drift):
    with Player(built, tmp_path) as player:
        warmed(player)
        player.ask("step", 64)
        player.coll(seq=100)
        for number in range(10):  # the GPU's clock goes on by a minute and 6 ms more or less each time
            off = round(number * 60 * drift * 1e9)
            stamped(player, lambda now, off=off: now + off, lambda now, off=off: now + off + 5 * US, 101 + number)
            player.ask("pass", 60)
        header, (comm,), _ = file_of(player)
    assert (comm.trusted, header.counts.voided) == (True, 0)


def test_of_a_communicator_that_is_not_trusted_no_stamp_is_taken(built, tmp_path):
    with Player(built, tmp_path) as player:
        warmed(player)
        player.ask("step", 64)
        player.coll(seq=100)
        for seq in (101, 102, 103):
            stamped(player, lambda now: now, lambda now: now - 5 * US, seq)
        call, now = player.coll(seq=104), player.now()
        assert player.ask("begin", 0, call, 0, now) == [0]


def test_a_stamp_that_is_heard_of_late_makes_no_room_for_stamps_of_earlier_calls(built, tmp_path):
    with Player(built, tmp_path) as player:
        warmed(player)
        player.ask("step", 64)
        player.coll(seq=100)
        stamped(player, lambda now: now, lambda now: now + 5 * US, 101)
        call, began = player.coll(seq=102), player.now()
        while player.now() < began + 60 * MS:
            pass
        player.kernel(call, began, began + 5 * US)
        assert file_of(player)[1][0].trusted
        for seq in (103, 104, 105):
            stamped(player, lambda now: now - 50 * MS, lambda now: now - 49 * MS, seq)
        assert not file_of(player)[1][0].trusted


def test_a_kernel_of_a_communicator_that_is_gone_is_none_of_its_successor(built, tmp_path):
    with Player(built, tmp_path) as player:
        warmed(player)
        player.ask("step", 64)
        player.coll()
        call = player.coll()
        (kernel,) = player.ask("begin", 0, call, 0, player.now())
        succeed(player)
        player.ask("stop", kernel, player.now())
        newest = max(file_of(player)[1], key=lambda comm: comm.generation)
    assert (newest.place, newest.enqueued, newest.started, newest.finished) == (0, 1, 0, 0)


def test_a_communicator_does_not_inherit_the_doubts_of_its_place(built, tmp_path):
    with Player(built, tmp_path) as player:
        warmed(player)
        player.ask("step", 64)
        player.coll(seq=100)
        for seq in (101, 102):
            stamped(player, lambda now: now, lambda now: now - 5 * US, seq)
        succeed(player)
        call, now = player.coll(1), player.now()
        player.kernel(call, now, now - 5 * US, comm=1)
        newest = max(file_of(player)[1], key=lambda comm: comm.generation)
    assert (newest.place, newest.trusted) == (0, True)


def test_calls_of_one_launch_begin_together_and_others_may_not_overlap(built, tmp_path):
    with Player(built, tmp_path) as player:
        warmed(player)
        player.ask("step", 64)
        player.coll(seq=100)
        one, other, third = player.coll(seq=101), player.coll(seq=102), player.coll(seq=103)
        now = player.now()
        player.kernel(one, now, now + 100 * US)
        player.kernel(other, now + 2 * US, now + 101 * US)
        player.kernel(third, now + 50 * US, now + 150 * US)
        _, _, calls = file_of(player)
    assert [calls[max(calls) - back].device_ns for back in (2, 1, 0)] == [100 * US, 99 * US, None]


def test_sends_and_receives_share_the_stamps_of_their_channel(built, tmp_path):
    with Player(built, tmp_path) as player:
        warmed(player)
        player.ask("step", 64)
        player.coll()
        send, receive = (player.ask("p2p", 0, func, 8, "ncclInt8", 1, 1)[0] for func in ("Send", "Recv"))
        now = player.now()
        player.kernel(send, now, now + 100 * US)
        player.kernel(receive, now + 50 * US, now + 150 * US)
        _, _, calls = file_of(player)
    assert [one.device_ns for one in calls.values()][-2:] == [100 * US, 100 * US]


def test_no_kernel_runs_for_hours(built, tmp_path):
    with Player(built, tmp_path) as player:
        warmed(player)
        player.ask("step", 64)
        player.coll(seq=100)
        stamped(player, lambda now: now, lambda now: now + 2 * 3_600_000 * MS, 101)
        header, _, calls = file_of(player)
    assert (header.counts.voided, calls[max(calls)].device_ns) == (1, None)


def test_where_all_steps_are_stamped_those_sampled_are_told(built, tmp_path):
    with Player(built, tmp_path, PLAYER_NCCL="23100", TRAINWARDEN_NCCL_KERNELS="on") as player:
        player.init(0)
        player.ask("step", 64)
        assert player.coll(seq=0) != 0
        player.ask("step", 65)
        assert player.coll(seq=1) == UNTOLD
        assert player.ask("mask") == [STAMPS]


def test_handles_that_name_nothing_are_counted(built, tmp_path):
    with Player(built, tmp_path) as player:
        warmed(player)
        player.ask("step", 64)
        player.coll()
        call, now = player.coll(), player.now()
        assert player.ask("begin", 0, 0, 0, now) == [0]  # no parent
        assert player.ask("begin", 0, call + 8 * 5000, 0, now) == [0]  # a call that never was
        (kernel,) = player.ask("begin", 0, call, 0, now)
        player.ask("stop", kernel, now + 10)
        player.ask("stop", kernel, now + 20)  # twice
        player.ask("stop", 0, now)
        player.ask("stop", 2**63 + 12345, now)
        for number in range(layout.CALLS // 2 + 2):
            player.coll(seq=number)
        assert player.ask("begin", 0, call, 0, now) == [0]  # its record is soon to be overwritten
        header, _, _ = file_of(player)
    assert header.counts.orphans == 1
    assert header.counts.stale == 7  # a stop of no kernel is the stop of no event, too


def test_a_kernel_that_stops_when_its_record_is_soon_overwritten_writes_nothing(built, tmp_path):
    with Player(built, tmp_path) as player:
        warmed(player)
        player.ask("step", 64)
        player.coll()
        call, now = player.coll(seq=77), player.now()
        (kernel,) = player.ask("begin", 0, call, 0, now)
        for seq in range(1000, 1000 + layout.CALLS // 2 + 2):
            player.coll(seq=seq)
        player.ask("stop", kernel, now + 5 * US)
        header, _, calls = file_of(player)
    (left,) = [one for one in calls.values() if one.seq == 77]
    assert (left.device_ns, left.done, header.counts.stale) == (None, False, 1)


def test_events_of_other_kinds_are_passed_over_and_unknown_ones_counted(built, tmp_path):
    with Player(built, tmp_path) as player:
        warmed(player)
        for kind in (8, 16, 32, 128, 2048, 4096, 32768):
            assert player.ask("start", 0, kind) == [0]
        assert file_of(player)[0].counts.foreign == 0
        assert player.ask("start", 0, 1 << 20) == [0]
        for func in ("Unheard", "Send"):  # which no collective is
            player.coll(func=func)
        header, (comm,), _ = file_of(player)
    assert (header.counts.foreign, comm.enqueued) == (3, 22)


def test_a_communicator_alone_is_none_and_more_than_fit_are_counted(built, tmp_path):
    with Player(built, tmp_path) as player:
        player.init(0, ranks=1)
        player.coll(0)
        assert file_of(player)[1] == []
        for number in range(layout.COMMS + 2):
            player.init(1, identity=number + 1)
        header, comms, _ = file_of(player)
    assert len(comms) == layout.COMMS
    assert header.counts.dropped == 2


def test_loaded_again_it_goes_on_with_its_file(built, tmp_path):
    with Player(built, tmp_path) as player:
        warmed(player)
        player.ask("end", 0)
        player.ask("reload")
        player.init(1, identity=0xDEF)
        player.coll(1)
        _, comms, _ = file_of(player)
    assert [(comm.id[-3:], comm.closed, comm.enqueued) for comm in comms] == [("abc", True, 20), ("def", False, 1)]


def test_nccl_2_26_tells_the_communicator_with_each_call(built, tmp_path):
    with Player(built, tmp_path, 3) as player:
        player.init(0, 0x11)
        player.init(1, 0x22)
        for comm in (0, 1, 1):
            player.coll(comm)
        player.ask("p2p", 1, "Send", 8, "ncclInt64", 5, 1)
        header, comms, calls = file_of(player)
    assert [(comm.id[-2:], comm.name, comm.enqueued, comm.ranks) for comm in comms] == [
        ("11", "of v3", 1, None), ("22", "of v3", 3, None)
    ]  # fmt: skip
    assert (header.interface, calls) == (3, {})


def test_without_a_folder_it_is_off_and_says_so_in_one_line(built, tmp_path):
    for folder in (tmp_path / "nowhere", ""):
        with Player(built, tmp_path, TRAINWARDEN_HOOK_DIR=str(folder)) as player:
            player.init(0)
            assert player.ask("mask") == [0]
            player.init(1)
            assert player.ask("lines") == [1]
            player.coll()
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_an_earlier_process_of_this_pid_is_left_alone(built, tmp_path):
    with Player(built, tmp_path) as player:
        earlier = tmp_path / f"rank-3-{player.process.pid}-1.nccl"
        earlier.write_bytes(b"earlier")
        player.init(0)
        (other,) = set(tmp_path.iterdir()) - {earlier}
    assert earlier.read_bytes() == b"earlier"
    assert contents(other)[0].pid == player.process.pid


def test_a_process_that_runs_another_program_has_one_file(built, tmp_path):
    """The hook is to find that of the program that runs, and nobody is to take the other's counts for a hang."""
    with Player(built, tmp_path) as player:
        warmed(player)
        player.ask("exec")
        player.init(0)
        _, (comm,), _ = file_of(player)
    assert comm.enqueued == 0


def test_a_fork_of_the_rank_ends_none_of_its_communicators(built, tmp_path):
    with Player(built, tmp_path) as player:
        warmed(player)
        player.ask("fork", 0)
        player.coll()
        _, (comm,), _ = file_of(player)
    assert (comm.closed, comm.enqueued) == (False, 21)


def test_signals_while_its_file_is_made_leave_it_on(built, tmp_path):
    with Player(built, tmp_path, PLAYER_SIGNALS="3") as player:
        player.init(0)
        assert player.path.stat().st_size == layout.FILE_BYTES


def test_it_is_readable_for_whom_the_folder_lets_in(built, tmp_path):
    for mode, wanted in ((0o700, 0o600), (0o750, 0o640)):
        folder = tmp_path / f"{mode:o}"
        folder.mkdir()
        folder.chmod(mode)
        with Player(built, folder) as player:
            player.init(0)
            assert player.path.stat().st_mode & 0o777 == wanted


# -- everything at once


def check_storm(folder: Path, comms: int, calls: int) -> read.Header:
    (path,) = folder.glob("*.nccl")
    header, found, told = contents(path)
    nameless = header.interface == 3  # its communicators end unheard, and so the calls after their end count
    assert [comm.enqueued - nameless for comm in found] == [calls] * comms
    assert all(comm.closed != nameless for comm in found)
    for call in told.values():
        assert call.seq < calls
        if call.function == "AllReduce":
            assert call.size_bytes == 4 * (1024 + call.seq)
        assert call.device_ns is None or call.device_ns < 60_000 * MS
    return header


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_storm_of_threads_and_bad_callbacks(built, tmp_path, version):
    out = json.loads(nccl_player.play(built, tmp_path, version, "storm", 4, 4000, TRAINWARDEN_NCCL_EVERY="2"))
    header = check_storm(tmp_path, 4, 4000)
    if version > 3:
        assert sum(out["stamped"]) > 1000
        assert min(header.counts.stale, header.counts.orphans, header.counts.voided) > 0


@pytest.mark.thorough
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
@pytest.mark.usefixtures("compiler")
def test_sanitizers_find_nothing(tmp_path, sanitizer, require_servers):
    try:
        built = nccl_player.compile_plugin(tmp_path / "built", f"-fsanitize={sanitizer}", "-fno-omit-frame-pointer")
    except RuntimeError as error:
        require_servers(f"this compiler has no -fsanitize={sanitizer}: {str(error)[-200:]}")
    for version in (3, 4, 5):
        folder = tmp_path / f"v{version}"
        folder.mkdir()
        nccl_player.play(built, folder, version, "storm", 4, 3000, TRAINWARDEN_NCCL_EVERY="2")
        check_storm(folder, 4, 3000)
        nccl_player.play(built, folder, version, "churn", 20)


def test_communicators_that_come_and_go(built, tmp_path):
    nccl_player.play(built, tmp_path, 5, "churn", 150)
    (path,) = tmp_path.glob("*.nccl")
    header, comms, _ = contents(path)
    assert len(comms) == layout.COMMS
    assert max(comm.generation for comm in comms) == 150 * 40
    assert header.counts.dropped == 0


HEADERS = """
#include <cstddef>
#include <cstdint>
#include <sys/types.h>
typedef int ncclResult_t;
typedef pid_t ncclPid_t;
typedef void (*ncclDebugLogger_t)(int, unsigned long, const char *, int, const char *, ...);
typedef int ncclProfilerEventState_v%(v)d_t;
#include "profiler_v%(v)d.h"
#define AT(member, place) static_assert(offsetof(ncclProfilerEventDescr_v%(v)d_t, member) == place, #member)
%(asserts)s
static_assert(offsetof(ncclProfilerEventStateArgs_v%(v)d_t, %(state)s) == 0, "state");
"""
CALLS = """
AT(coll.seqNumber, 24); AT(coll.func, 32); AT(coll.count, 56); AT(coll.root, 64); AT(coll.datatype, 72);
AT(coll.nChannels, 80); AT(p2p.func, 24); AT(p2p.buff, 32); AT(p2p.datatype, 40); AT(p2p.count, 48); AT(p2p.peer, 56);
AT(p2p.nChannels, 60); AT(kernelCh.channelId, 24); AT(kernelCh.pTimer, 32);
"""
ASSERTS = {
    3: """AT(coll.name, 24); AT(coll.commHash, 32); AT(coll.seqNumber, 40); AT(coll.func, 48); AT(coll.count, 72);
    AT(coll.datatype, 88); AT(p2p.commHash, 32); AT(p2p.func, 40); AT(p2p.datatype, 56); AT(p2p.count, 64);
    AT(p2p.peer, 72); static_assert(sizeof(ncclProfilerEventDescr_v3_t::type) == 1, "type");""",
    4: CALLS + 'static_assert(sizeof(ncclProfilerEventDescr_v4_t::type) == 1, "type");',
    5: CALLS + """AT(groupApi.graphCaptured, 24); AT(collApi.graphCaptured, 64); AT(p2pApi.graphCaptured, 56);
    static_assert(sizeof(ncclProfilerEventDescr_v5_t::type) == 8, "type");""",
}  # fmt: skip


@pytest.mark.parametrize(
    ("version", "tags"),
    [(3, ["v2.26.2-1", "v2.30.7-1"]), (4, ["v2.27.3-1", "v2.27.7-1", "v2.30.7-1"]), (5, ["v2.28.3-1", "v2.30.7-1"])],
)
def test_offsets_are_those_of_nccl_s_own_headers(
    tmp_path: Path, version: int, tags: list[str], compiler: list[str]
) -> None:
    """With ``TRAINWARDEN_NCCL_SOURCE``, a git directory of NCCL."""
    source = os.environ.get("TRAINWARDEN_NCCL_SOURCE")
    if not source:
        pytest.skip("TRAINWARDEN_NCCL_SOURCE names no git directory of NCCL")
    for tag in tags:
        shown = subprocess.run(
            ["git", "-C", source, "show", f"{tag}:src/include/plugin/profiler/profiler_v{version}.h"],
            capture_output=True, check=True, timeout=60,
        )  # fmt: skip
        (tmp_path / f"profiler_v{version}.h").write_bytes(shown.stdout)
        state = "proxyOp.transSize" if version == 3 else "kernelCh.pTimer"
        text = HEADERS % {"v": version, "asserts": ASSERTS[version], "state": state}
        done = subprocess.run(
            [*compiler, "-x", "c++", "-std=c++17", "-fsyntax-only", f"-I{tmp_path}", "-"],
            input=text, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, f"{tag}:\n{done.stderr}"
