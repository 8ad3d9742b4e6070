"""Made-up jobs of which one rank stops anywhere: its name comes out, whatever the dumps leave out."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from trainwarden.detectors.collectives.flight_recorder import analyse
from trainwarden.errors import DataError

OPS = ("all_reduce", "_all_gather_base", "_reduce_scatter_base", "all_to_all")


@dataclass
class Rank:
    """One rank's way through its program; it may begin `ahead` calls before the first unfinished one ends."""

    program: list[tuple[str, str, int]]  # group, operation, size
    begun: int = 0
    ended: int = 0
    at: list[int] = field(default_factory=list)


@dataclass
class MadeUpJob:
    """Tensor-parallel groups of neighbours, data-parallel groups across, and everybody."""

    tp: int
    dp: int
    steps: int
    ops: tuple[int, ...]
    ahead: int

    def groups(self) -> dict[str, tuple[int, ...]]:
        world = range(self.tp * self.dp)
        out = {"0": tuple(world)}
        out |= {f"{1 + i}": tuple(range(i * self.tp, (i + 1) * self.tp)) for i in range(self.dp)}
        out |= {f"{1 + self.dp + i}": tuple(range(i, len(world), self.tp)) for i in range(self.tp)}
        return out

    def program(self, rank: int) -> list[tuple[str, str, int]]:
        tp, dp = f"{1 + rank // self.tp}", f"{1 + self.dp + rank % self.tp}"
        out = []
        for step in range(self.steps):
            out += [(tp, OPS[self.ops[(step + i) % len(self.ops)]], 16 + i) for i in range(3)]
            out += [(dp, "all_reduce", 64), ("0", "all_reduce", 1)]
        return out

    def run(self, culprit: int, stop_at: int) -> dict[int, Rank]:
        """Everybody goes on until nobody can; the culprit begins `stop_at` calls and no more."""
        groups = self.groups()
        ranks = {rank: Rank(self.program(rank)) for rank in groups["0"]}
        now, moved = 0, True
        while moved:
            moved = False
            for number, rank in ranks.items():
                limit = stop_at if number == culprit else len(rank.program)
                while rank.begun < limit and rank.begun - rank.ended < self.ahead:
                    rank.begun, moved, now = rank.begun + 1, True, now + 1
                    rank.at.append(now)
            for rank in ranks.values():
                if rank.ended < rank.begun and self._complete(ranks, groups[rank.program[rank.ended][0]], rank):
                    group = rank.program[rank.ended][0]
                    for member in groups[group]:
                        ranks[member].ended += 1
                    moved = True
        return ranks

    def _complete(self, ranks: dict[int, Rank], members: tuple[int, ...], rank: Rank) -> bool:
        """True if the next call of every member is this one, begun and in turn."""
        group, seq = rank.program[rank.ended][0], _number(rank, rank.ended)
        for member in members:
            other = ranks[member]
            if other.ended >= other.begun or other.program[other.ended][0] != group:
                return False
            if _number(other, other.ended) != seq:
                return False
        return True


def _number(rank: Rank, place: int) -> int:
    group = rank.program[place][0]
    return sum(1 for name, _, _ in rank.program[: place + 1] if name == group)


def dump(job: MadeUpJob, number: int, rank: Rank, *, only_active: bool, config: bool) -> dict[str, Any]:
    entries = []
    for place in range(rank.begun):
        group, op, size = rank.program[place]
        if only_active and place < rank.ended:
            continue
        entries.append({
            "collective_seq_id": _number(rank, place), "process_group": [group, "default_pg" if group == "0" else "g"],
            "profiling_name": f"nccl:{op}", "input_sizes": [[size]], "input_dtypes": ["Float"], "pg_id": int(group),
            "state": "completed" if place < rank.ended else "scheduled", "time_created_ns": 10**9 + rank.at[place],
        })  # fmt: skip
    described = {
        name: {"name": name, "desc": "g", "ranks": json.dumps(list(members))}
        for name, members in job.groups().items()
        if number in members
    }
    return {"version": "2.9", "entries": entries, "pg_config": described if config else {}}


jobs = st.builds(
    MadeUpJob, tp=st.integers(1, 4), dp=st.integers(2, 4), steps=st.integers(1, 3),
    ops=st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple), ahead=st.integers(1, 8),
)  # fmt: skip


@examples(150)
@given(job=jobs, data=st.data(), only_active=st.booleans(), silent=st.booleans())
def test_the_rank_that_stops_is_named_first(job: MadeUpJob, data: Any, only_active: bool, silent: bool) -> None:
    culprit = data.draw(st.integers(0, job.tp * job.dp - 1))
    stop_at = data.draw(st.integers(0, job.steps * 5 - 1))
    ranks = job.run(culprit, stop_at)
    dumps: dict[int, Any] = {
        number: dump(job, number, rank, only_active=only_active, config=True) for number, rank in ranks.items()
    }
    if silent:
        del dumps[culprit]
    found = analyse(dumps, world_size=job.tp * job.dp)
    assert found
    assert found[0].kind == "hang"
    assert found[0].ranks[0] == culprit


@examples(60)
@given(job=jobs)
def test_a_job_that_runs_through_has_no_finding(job: MadeUpJob) -> None:
    ranks = job.run(-1, 0)
    assert all(rank.ended == len(rank.program) for rank in ranks.values())
    dumps = {number: dump(job, number, rank, only_active=False, config=False) for number, rank in ranks.items()}
    assert analyse(dumps, world_size=len(dumps)) == []


@examples(80)
@given(job=jobs, data=st.data(), what=st.sampled_from(["profiling_name", "input_sizes", "input_dtypes"]))
def test_a_rank_that_calls_something_else_is_named(job: MadeUpJob, data: Any, what: str) -> None:
    culprit = data.draw(st.integers(0, job.tp * job.dp - 1))
    ranks = job.run(-1, 0)
    dumps = {number: dump(job, number, rank, only_active=False, config=True) for number, rank in ranks.items()}
    own = [entry for entry in dumps[culprit]["entries"] if entry["process_group"][0] == "0"]
    entry = data.draw(st.sampled_from(own))
    entry[what] = {"profiling_name": "nccl:broadcast", "input_sizes": [[777]], "input_dtypes": ["Half"]}[what]
    found = analyse(dumps, world_size=len(dumps))
    assert found[0].kind == "collective_mismatch"
    assert culprit in found[0].ranks
    assert found[0].ranks == (culprit,) or len(dumps) == 2
    assert found[0].seq == entry["collective_seq_id"]


@pytest.mark.thorough
@examples(200)
@given(
    raw=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
            st.sampled_from(["entries", "pg_config", "pg_status", "collective_seq_id", "process_group", "ranks", "0"])
            | st.text(max_size=3), inner, max_size=4),
        max_leaves=20,
    )
)  # fmt: skip
def test_no_dump_crashes_the_analysis(raw: Any) -> None:
    with contextlib.suppress(DataError):
        analyse({0: raw, 1: {"entries": []}}, world_size=3)
