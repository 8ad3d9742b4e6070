"""What the watchdogs of NCCL's ranks write as they give up, and whom it accuses: never by one witness."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from tests.unit.detectors.detection_streams import Run
from trainwarden.detectors.collectives.watchdog import Known, WatchdogLines, WatchdogTimeout, told
from trainwarden.detectors.collectives.watchdog_lines import WatchdogLine, read_watchdog_line
from trainwarden.detectors.job.object_codec import ObjectCodec
from trainwarden.detectors.job.window import LogLine
from trainwarden.detectors.testing.streams import START_S, Job, event, log_lines
from trainwarden.parallelism.layout import Layout
from trainwarden.records import IncidentRecord, IterationRecord, Record

WORK = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600061 milliseconds before timing out."  # noqa: E501 - a whole message
GAVE_UP = "[rank{rank}]:[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:607] [Rank {place}] " + WORK
STATUS = "[rank{rank}]:[E1206 18:44:12.723 ProcessGroupNCCL.cpp:2168] [PG ID 0 PG GUID {group} Rank {place}]  failure detected by watchdog at work sequence id: {seq} PG status: last enqueued work: {newest}, last completed work: 7"  # noqa: E501
SIGNAL = "[rank{rank}]:[E1206 18:44:12.9 ProcessGroupNCCL.cpp:1746] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Received a dump signal due to a collective timeout from  rank 0 and we will try our best to dump the debug info. Last enqueued NCCL work: {newest}, last completed NCCL work: 7.This is most likely caused by incorrect usages of collectives"  # noqa: E501


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (  # torch 2.1
            "[E ProcessGroupNCCL.cpp:474] [Rank 3] " + WORK.format(seq=8, op="ALLREDUCE"),
            WatchdogLine(place=3, seq=8, op="ALLREDUCE"),
        ),
        (  # 2.2, 2.3: a group's number is each rank's own
            "[rank7]:[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank 7] Timeout at NCCL work: 1, last enqueued NCCL work: 1, last completed NCCL work: 3452013982.",  # noqa: E501
            WatchdogLine(rank=7, place=7, seq=1, enqueued=1),
        ),
        (  # 2.4
            "[rank1]:[E1003 18:37:01.83 ProcessGroupNCCL.cpp:1664] [PG 0 (default_pg) Rank 1] Exception (either an error or timeout) detected by watchdog at work: 6463, last enqueued NCCL work: 6464, last completed NCCL work: 6462.",  # noqa: E501
            WatchdogLine(rank=1, place=1, group="default_pg", world=True, seq=6463, enqueued=6464),
        ),
        (  # 2.5
            "(WorkerDict pid=7) [rank6]:[E318 07:39:53.79 ProcessGroupNCCL.cpp:1834] [PG ID 2 PG GUID 9 Rank 2] Timeout at NCCL work: 610, last enqueued NCCL work: 616, last completed NCCL work: 609.",  # noqa: E501
            WatchdogLine(rank=6, place=2, group="9", seq=610, enqueued=616),
        ),
        (  # 2.7 and newer, behind a progress bar
            "Epoch 10/10: 240it [05:55,  1.47s/it, loss=5.46]"
            + GAVE_UP.format(rank=4, place=2, seq=78, op="BROADCAST"),
            WatchdogLine(rank=4, place=2, seq=78, op="BROADCAST"),
        ),
        (
            SIGNAL.format(rank=5, newest=7),
            WatchdogLine(rank=5, place=5, group="default_pg", world=True, enqueued=7),
        ),
        (
            "[rank1]:[E ProcessGroupNCCL.cpp:1414] [PG ID 1 PG GUID 3(dp) Rank 1] Process group watchdog thread terminated with exception: [Rank 1] "  # noqa: E501
            + WORK.format(seq=1, op="_ALLGATHER_BASE"),
            WatchdogLine(rank=1, place=1, group="3 dp", seq=1, op="_ALLGATHER_BASE"),
        ),
        ("[rank0]: step 7 of work 9", None),
        ("[Rank 0] Some NCCL operations have failed or timed out.", None),
        (WORK.format(seq=10**18 * 9 + 10**18 - 1, op="ALLREDUCE"), WatchdogLine(op="ALLREDUCE")),
    ],
)
def test_lines_as_each_version_writes_them(line: str, said: WatchdogLine | None) -> None:
    assert read_watchdog_line(line) == said


WORLD = frozenset(range(8))


def accused(
    spoken: dict[int, tuple[int, str]], *, group: str = "default_pg", quiet: frozenset[int] = WORLD,
    enqueued: dict[int, int] | None = None, layout: Layout | None = None, places: Sequence[int] | None = None,
) -> tuple[str, tuple[int, ...]] | None:  # fmt: skip
    """Kind and suspects by the calls that ranks of one group gave up; None where nothing is said."""
    gave_up = {
        (rank, group): WatchdogTimeout(seq, op, None if places is None else places[at])
        for at, (rank, (seq, op)) in enumerate(spoken.items())
    }
    reached = {(rank, group): seq for rank, seq in (enqueued or {}).items()}
    found = told(gave_up, reached, Known(WORLD, layout, quiet))
    return (found[0].kind, found[0].ranks) if found else None


def all_but(*ranks: int, seq: int = 8, op: str = "ALLREDUCE") -> dict[int, tuple[int, str]]:
    return {rank: (seq, op) for rank in sorted(WORLD - set(ranks))}


def test_who_gave_up_nothing_is_the_one_the_others_wait_for() -> None:
    assert accused(all_but(5)) == ("hang", (5,))
    assert accused(all_but(3, 5)) == ("hang", (3, 5))


def test_who_gave_up_an_earlier_call_or_another_is_named_by_its_own_word() -> None:
    assert accused(all_but(5) | {5: (6, "ALLREDUCE")}) == ("hang", (5,))
    assert accused(all_but(5) | {5: (8, "BROADCAST")}) == ("collective_mismatch", (5,))
    assert accused(all_but(5), enqueued={5: 7}, quiet=frozenset()) == ("hang", (5,))


def test_where_all_gave_up_the_same_call_nobody_is_named() -> None:
    assert accused(all_but()) == ("hang", ())
    assert accused(all_but(5), enqueued={5: 9}) == ("hang", ())  # it came, and its own time has not run out


def test_one_witness_accuses_nobody() -> None:
    assert accused({0: (8, "ALLREDUCE")}) is None
    assert accused({0: (8, "ALLREDUCE"), 1: (7, "ALLREDUCE")}) is None


def test_as_many_suspects_as_witnesses_are_none() -> None:
    assert accused({rank: (8, "ALLREDUCE") for rank in range(4)}) is None
    assert accused({0: (8, "ALLREDUCE"), 1: (8, "ALLREDUCE"), 2: (7, "ALLREDUCE"), 3: (7, "ALLREDUCE")}) is None


def test_silence_of_a_rank_that_is_not_known_to_live_and_be_heard_says_nothing() -> None:
    assert accused(all_but(5), quiet=WORLD - {5}) is None
    assert accused(all_but(3, 5), quiet=WORLD - {5}) is None  # rank 3 may be the one


GRID = Layout(world_size=8, sizes={"tp": 2, "cp": 1, "dp": 4, "pp": 1}, sources=("settings",))


def test_members_of_a_smaller_group_come_from_the_layout_and_from_the_places_that_ranks_name() -> None:
    three = {0: (8, "ALLREDUCE"), 2: (8, "ALLREDUCE"), 6: (8, "ALLREDUCE")}
    assert accused(three, group="7 dp", layout=GRID, places=(0, 1, 3)) == ("hang", (4,))
    assert accused(three, group="7 dp", layout=GRID, places=(0, 2, 3)) is None  # of another group than any known
    assert accused(three, group="7 dp", places=(0, 1, 3)) is None


def test_a_rank_that_waits_in_another_group_is_a_victim() -> None:
    gave_up = {(rank, "default_pg"): WatchdogTimeout(8, "ALLREDUCE", None) for rank in WORLD - {4, 5}}
    gave_up[4, "9 tp"] = WatchdogTimeout(3, "ALLREDUCE", 0)  # for rank 5
    (finding,) = told(gave_up, {}, Known(WORLD, GRID, WORLD))
    assert finding.ranks == (5,)


def test_a_group_without_a_name_is_that_of_all_ranks_or_none() -> None:
    same = tuple(rank for rank in range(8) if rank != 5)
    assert accused(all_but(5), group="", places=same) == ("hang", (5,))
    assert accused(all_but(5), group="", places=(0, 1, 2, 3, 4, 5, 6)) is None
    assert accused({0: (8, "A"), 1: (8, "A"), 2: (8, "A")}, group="", places=(0, 1, 2)) is None
    # Another number may be another group's.
    assert accused(all_but(7) | {7: (2, "ALLREDUCE")}, group="", places=range(8)) is None
    assert accused(all_but(), group="", places=range(8)) == ("hang", ())


# -- the incident ------------------------------------------------------------------------------------------------


def hung(job: Job, until_s: float, ranks: Sequence[int], *, beats: bool = True) -> Job:
    """Hosts go on as the device of all has stopped: nobody is seen to wait."""
    for place, (at_s, record) in enumerate(job.records):
        if isinstance(record, IterationRecord):
            said = msgspec.structs.replace(record, compute_s=(), wait_s=(), accelerator="cuda")
            job.records[place] = (at_s, said)
    last_s, step = job.end_s, len(job.ends_s)
    for tick in range(1, int((until_s - last_s) * 5) if beats else 0):
        job.beat(last_s + 0.2 * tick, step, calls=2 * step + 1)
        at_s, record = job.records[-1]
        job.records[-1] = at_s, msgspec.structs.replace(record, phase_since_s=(last_s,) * len(ranks))
    return job


def says(rank: int, at_s: float, *lines: str, first: int = 1) -> tuple[float, Record]:
    return at_s + 0.2, log_lines(rank, [(at_s, line) for line in lines], first=first)


def gives_up(
    rank: int, at_s: float, seq: int = 8, op: str = "ALLREDUCE", group: str = "0(default_pg)"
) -> tuple[float, Record]:
    words = {"rank": rank, "place": rank, "seq": seq, "op": op, "group": group, "newest": seq + 1}
    return says(rank, at_s, GAVE_UP.format(**words), STATUS.format(**words))


def stuck(*spoken: tuple[float, Record], late_s: float = 12.0) -> list[IncidentRecord]:
    """Revisions of the incidents of four ranks on a device that stand still, and write that `late_s` after a step."""
    job = Job().run(40)
    hung(job, job.end_s + late_s + 10.0, range(4))
    return Run().play([*job.records, *spoken], job.end_s + late_s + 8.0).revisions


END_S = Job().run(40).end_s


@pytest.mark.thorough
def test_a_hang_that_only_log_lines_tell_names_the_rank_that_gave_up_nothing() -> None:
    (incident,) = stuck(*[gives_up(rank, END_S + 12.0 + 0.3 * rank) for rank in (0, 1, 3)])
    assert (incident.kind, [one.rank for one in incident.suspects]) == ("hang", [2])
    assert incident.suspects[0].node == "node0"
    assert incident.reason == (
        "ranks 0, 1, 3 gave up ALLREDUCE 8 of group default_pg, by the log of PyTorch's watchdog; "
        "of rank 2: it gave up no call"
    )


@pytest.mark.thorough
def test_a_hang_that_was_told_without_a_suspect_gets_one() -> None:
    first, *_, last = stuck(*[gives_up(rank, END_S + 75.0) for rank in (0, 1, 3)], late_s=75.0)
    assert (first.kind, first.suspects) == ("hang", ())
    assert (last.id, last.kind, [one.rank for one in last.suspects]) == (first.id, "hang", [2])


@pytest.mark.thorough
def test_where_all_gave_up_one_call_the_hang_has_no_suspect() -> None:
    (incident,) = stuck(*[gives_up(rank, END_S + 12.0) for rank in range(4)])
    assert (incident.kind, incident.suspects) == ("hang", ())
    assert "no host held them up" in incident.reason


@pytest.mark.thorough
def test_one_rank_that_gives_up_opens_nothing() -> None:
    assert stuck(gives_up(0, END_S + 12.0)) == []


def test_a_rank_that_was_ended_with_the_first_is_not_suspected() -> None:
    """PyTorch 2.1 aborts at once, and torchrun ends the others before their own time has run out."""
    spoken = [gives_up(rank, END_S + 12.0) for rank in (0, 1, 3)]
    ended = END_S + 12.6, event("process_exit", END_S + 12.5, 2, signal="SIGTERM")
    assert all("watchdog" not in one.reason for one in stuck(*spoken, ended))


@pytest.mark.thorough
def test_a_job_that_goes_on_after_the_lines_has_no_hang() -> None:
    job = Job().run(40)
    lines = [gives_up(rank, job.end_s + 1.0) for rank in (0, 1, 3)]
    job.run(60, first=40, start_s=job.end_s + 2.0)
    assert Run().play([*job.records, *lines], job.end_s + 2.0).incidents == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("hung_s", "aborts_s", "ends_s", "suspects"),
    [
        (12.0, 0.1, 0.5, []),  # PyTorch 2.1: whether rank 2 would have given up too is not known
        (12.0, 0.1, 4.0, [2]),
        (12.0, 7.0, 7.2, [2]),  # newer ones wait for dumps first
        (75.0, 0.1, 0.5, []),  # the hang was told before
    ],
)
def test_ranks_that_the_watchdog_aborts_are_victims(
    hung_s: float, aborts_s: float, ends_s: float, suspects: list[int]
) -> None:
    job = Job().run(40)
    at_s = job.end_s + hung_s
    hung(job, at_s + aborts_s + 1.0, range(4))
    for rank in (0, 1, 3):
        job.records.append(gives_up(rank, at_s))
        aborted = event("process_exit", at_s + aborts_s + 0.02 * rank, rank, signal="SIGABRT")
        job.add(at_s + aborts_s + 0.1, aborted)  # before its log is read, if it aborts at once
    job.add(at_s + ends_s + 0.1, event("process_exit", at_s + ends_s, 2, signal="SIGTERM"))
    run = Run().play(job.records, at_s + 14.0)
    (incident,) = run.incidents
    assert (incident.kind, [one.rank for one in incident.suspects]) == ("hang", suspects)
    assert not {one.rank for revision in run.revisions for one in revision.suspects} - set(suspects)


def test_an_abort_without_such_lines_is_a_crash() -> None:
    job = Job().run(40)
    job.add(job.end_s + 0.2, event("process_exit", job.end_s + 0.1, 1, signal="SIGABRT"))
    first = Run().play(job.records, job.end_s + 3.0).revisions[0]
    assert (first.kind, first.suspects[0].rank) == ("crash", 1)
    assert first.opened_at_s - job.end_s < 1.0


def test_what_was_heard_goes_on_in_another_service() -> None:
    kept, other = WatchdogLines(), WatchdogLines()
    for rank in (0, 1, 3):
        lines = (GAVE_UP, STATUS)
        for line in lines:
            text = line.format(rank=rank, place=rank, seq=8, op="ALLREDUCE", group="0(default_pg)", newest=9)
            kept._hear(LogLine("node0", "log", rank, text, START_S), START_S)
    plain = ObjectCodec(WatchdogTimeout)
    plain.load(other, plain.dump(kept))
    assert vars(other) == vars(kept)
    assert other._gave_up[3, "default_pg"] == WatchdogTimeout(8, "ALLREDUCE", 3)


@pytest.mark.thorough
def test_of_a_job_of_which_only_logs_are_known_the_rank_behind_is_named_and_not_the_first_to_speak() -> None:
    spoken = [gives_up(rank, START_S + 2.0) for rank in (0, 1, 3)] + [
        says(2, START_S + 2.5, SIGNAL.format(rank=2, newest=7))
    ]
    (incident,) = Run().play(spoken, START_S + 320.0).incidents
    assert (incident.kind, [one.rank for one in incident.suspects]) == ("hang", [2])
    assert "it has enqueued 7 calls there and no more" in incident.reason
