"""Flight-recorder dumps of hung jobs: who stopped them."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from tests.places import DATA
from tests.unit.detectors.detection_streams import JOB, START_S
from trainwarden.detectors.collectives.findings import CollectiveFinding, accused_of, to_event
from trainwarden.detectors.collectives.flight_recorder import analyse
from trainwarden.detectors.facts.hard_event import HardEvent
from trainwarden.detectors.job.state import JobState
from trainwarden.errors import DataError
from trainwarden.topics import EVENTS

FOLDER = DATA / "flight_recorder"
WORLD = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}


def call(seq: int, op: str = "all_reduce", state: str = "scheduled", *, group: str = "0", desc: str = "default_pg",
         size: int = 8, dtype: str = "Float", at: int = 0, **more: Any) -> dict[str, Any]:  # fmt: skip
    return {
        "collective_seq_id": seq, "p2p_seq_id": 0, "process_group": [group, desc], "profiling_name": f"nccl:{op}",
        "input_sizes": [[size]], "output_sizes": [[size]], "input_dtypes": [dtype], "output_dtypes": [dtype],
        "state": state, "retired": state == "completed", "time_created_ns": (1_000 + seq + at) * 10**9, "pg_id": 0,
        "is_p2p": False,
    } | more  # fmt: skip


def dump(*calls: dict[str, Any], config: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"version": "2.9", "pg_config": config or WORLD, "pg_status": {}, "entries": list(calls)}


def done(upto: int) -> list[dict[str, Any]]:
    return [call(seq, state="completed") for seq in range(1, upto + 1)]


@pytest.mark.parametrize(("case", "hurt"), [("gpu_error", (12, 14)), ("lock_gil", (9, 14))])
def test_recorded_hangs_name_the_ranks_that_were_hurt(case: str, hurt: tuple[int, ...]) -> None:
    with gzip.open(FOLDER / f"{case}.json.gz") as file:
        dumps = {int(rank): dump for rank, dump in json.load(file).items()}
    (found,) = analyse(dumps, world_size=16)
    assert found.kind == "hang"
    assert set(found.ranks) == set(hurt)
    assert found.op == "all_to_all"
    assert "EXPERT_MODEL_PARALLEL_GROUP" in found.group
    (named, *_) = (found.ranks,)
    assert named[0] in hurt


def test_a_skipped_collective_of_the_same_name_is_a_hang_with_its_rank() -> None:
    dumps = {rank: dump(*done(4), call(5)) for rank in range(4)} | {2: dump(*done(4))}
    (found,) = analyse(dumps)
    assert (found.kind, found.ranks, found.seq, found.waiting) == ("hang", (2,), 5, (0, 1, 3))
    assert found.time_s == 1005.0


def test_a_rank_without_a_dump_or_entries_is_missed() -> None:
    dumps: dict[int, Any] = {rank: dump(*done(4), call(5)) for rank in (0, 1, 3)}
    assert analyse(dumps, world_size=4)[0].ranks == (2,)
    assert analyse({**dumps, 2: None})[0].ranks == (2,)
    assert analyse({**dumps, 2: {}})[0].ranks == (2,)
    assert analyse({**dumps, 2: {"entries": []}})[0].ranks == (2,)


def test_ranks_whose_dumps_were_not_collected_are_no_suspects() -> None:
    dumps: dict[int, Any] = {rank: dump(*done(4), call(5)) for rank in (0, 1)}
    (found,) = analyse(dumps, world_size=4)
    assert (found.kind, found.ranks, found.waiting) == ("hang", (), (0, 1))
    assert "of ranks 2, 3 there is no dump" in found.reason


def test_of_a_rank_whose_dump_is_broken_nothing_is_known() -> None:
    dumps: dict[int, Any] = {rank: dump(*done(4), call(5)) for rank in (0, 1)}
    (found,) = analyse({**dumps, 2: dump(*done(4))}, world_size=4, broken=(3,))
    assert found.ranks == (2,)
    assert "the dump of rank 3 is cut short or damaged" in found.reason
    assert analyse(dumps, world_size=3, broken=(2,))[0].ranks == ()


def test_another_operation_size_or_type_is_a_mismatch() -> None:
    for odd, what in ((call(5, "broadcast"), "operation"), (call(5, size=9), "size"), (call(5, dtype="Half"), "type")):
        dumps = {rank: dump(*done(4), call(5)) for rank in range(4)} | {3: dump(*done(4), odd)}
        (found,) = analyse(dumps)
        assert (found.kind, found.ranks, found.seq) == ("collective_mismatch", (3,), 5)
        assert what in found.reason


def test_uneven_all_to_all_is_no_mismatch() -> None:
    dumps = {rank: dump(call(1, "all_to_all", size=100 + rank)) for rank in range(4)}
    assert all(found.kind == "hang" for found in analyse(dumps))


def test_the_group_where_the_break_began_is_told_and_its_victims_are_not() -> None:
    config = WORLD | {
        "1": {"name": "1", "desc": "tp", "ranks": "[0, 1]"},
        "2": {"name": "2", "desc": "tp", "ranks": "[2, 3]"},
    }
    tp = {"group": "1", "desc": "tp"}
    dumps = {
        0: dump(call(7, "all_gather", **tp), config=config),  # waits for 1, so 2 and 3 wait for it
        1: dump(call(6, "all_gather", "completed", **tp), config=config),
        2: dump(call(3, at=20), config=config),
        3: dump(call(3, at=20), config=config),
    }
    (found,) = analyse(dumps)
    assert found.ranks == (1,)
    assert (found.group, found.op) == ("1 tp", "all_gather")


def test_a_rank_that_calls_elsewhere_than_all_others_is_a_mismatch() -> None:
    config = WORLD | {"1": {"name": "1", "desc": "dp", "ranks": [0, 1, 2, 3]}}
    dumps = {rank: dump(call(3), config=config) for rank in (0, 1, 3)}
    dumps[2] = dump(call(3, group="1", desc="dp", at=1), config=config)
    (found,) = analyse(dumps)
    assert (found.kind, found.ranks) == ("collective_mismatch", (2,))


def test_a_receive_without_a_send_names_the_sender() -> None:
    def receive(rank: int) -> dict[str, Any]:
        return call(0, f"recv {rank}<-{rank - 1}", is_p2p=True, p2p_seq_id=3)

    (found,) = analyse({0: dump(), 1: dump(receive(1)), 2: dump(receive(2)), 3: dump(receive(3))})
    assert (found.ranks, found.op) == ((0,), "recv")


def test_what_nobody_finishes_suspects_those_whose_device_has_not_started() -> None:
    dumps = {rank: dump(call(5, state="started")) for rank in range(4)} | {1: dump(call(5))}
    (found,) = analyse(dumps)
    assert (found.kind, found.ranks, found.seq) == ("hang", (1,), 5)
    (found,) = analyse({rank: dump(call(5)) for rank in range(4)})
    assert found.ranks == (0, 1, 2, 3)
    assert max(found.scores) < 0.5


def test_nothing_pending_is_nothing_wrong() -> None:
    assert analyse({rank: dump(*done(4)) for rank in range(4)}) == []
    assert analyse({}) == []
    assert analyse({0: {}}, world_size=8) == []


def test_gloo_says_retired_and_counts_in_text() -> None:
    def gloo(last: int) -> dict[str, Any]:
        entries = [call(seq, retired=seq <= 3) for seq in range(1, last + 1)]
        status = {"0": {"last_completed_collective": "3", "last_enqueued_collective": str(last)}}
        return {"version": "2.10", "pg_config": {"": {"desc": "", "name": "", "ranks": "[0, 1]"}},
                "pg_status": status, "entries": entries}  # fmt: skip

    (found,) = analyse({0: gloo(4), 1: gloo(4), 2: gloo(3)})
    assert (found.ranks, found.seq) == ((2,), 4)


@pytest.mark.parametrize(
    "raw",
    [3, "nonsense", b"\xff", [], {"entries": 3}, {"entries": [3]}, {"entries": [{}]}, {"entries": {}, "pg_config": 1},
     {"entries": [{"collective_seq_id": "x"}]}, {"entries": [call(1, time_created_ns=[])]}, {"pg_config": {"0": 3}},
     {"pg_config": {"0": {"ranks": "[-1]"}}}, {"pg_config": {"0": {"ranks": "["}}}, {"pg_status": {"0": 3}},
     {"entries": [call(True)]}, {"entries": [call(1)], "pg_status": {"0": {"last_completed_collective": "x"}}}],
)  # fmt: skip
def test_a_malformed_dump_is_one_sentence_that_names_its_rank(raw: Any) -> None:
    with pytest.raises(DataError, match="rank 7"):
        analyse({7: raw})


def test_a_finding_becomes_an_incident_of_its_kind_with_its_suspects() -> None:
    finding = CollectiveFinding(
        kind="hang", ranks=(3, 1), scores=(1.0, 0.5), group="0 default_pg", op="all_reduce", seq=7,
        reason="rank 3 did not reach all_reduce 7", evidence=("first", "second"),
    )  # fmt: skip
    event = EVENTS.decode(EVENTS.encode(to_event(finding, job=JOB, time_s=START_S, nodes={3: "node9"})))
    assert [(one.rank, one.node, one.score, one.reason) for one in accused_of(event)] == [
        (3, "node9", 1.0, "first"), (1, "", 0.5, "second"),
    ]  # fmt: skip
    detector, state = HardEvent(HardEvent.Config()), JobState(JOB)
    state.feed(event)
    window = state.window(START_S + 1.0)
    detector.update(window)
    restored = HardEvent(HardEvent.Config())
    restored.restore(detector.state())
    for one in (detector, restored):
        vote = one.score(window)
        assert (vote.opinion, vote.kind, vote.hard) == ("anomalous", "hang", True)
        assert next((suspect.rank, suspect.node) for suspect in vote.suspects) == (3, "node9")
        assert [suspect.rank for suspect in vote.suspects] == [3, 1]


def test_a_mismatch_and_a_hang_take_turns() -> None:
    detector, state = HardEvent(HardEvent.Config()), JobState(JOB)
    for kind in ("hang", "collective_mismatch"):
        finding = CollectiveFinding(kind=kind, ranks=(1,), scores=(1.0,), group="g", op="o", seq=1, reason=kind)
        state.feed(to_event(finding, job=JOB, time_s=START_S))
    window = state.window(START_S + 1.0)
    detector.update(window)
    kinds = {detector.score(window).kind}
    assert detector.more
    detector.update(JobState(JOB).window(START_S + 1.0))
    kinds.add(detector.score(window).kind)
    assert kinds == {"hang", "collective_mismatch"}
