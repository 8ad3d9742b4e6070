"""A rank's part of a step without torch: what is run, how it is weighted, when it stands still."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.hook_doubles import header_of, set_everywhere
from trainwarden.actions.planners.microbatches import even
from trainwarden.hook import Hook, TrainingShare
from trainwarden.hook.share import uneven_model
from trainwarden.hook.standing import PauseFile


class World:
    """As many ranks as one test needs, in one process: an all-reduce is over once all have begun it."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.rank = ranks, 0
        self.rounds: list[list[Any]] = []
        self.begun = [0] * ranks

    def distributed(self, rank: int) -> Any:
        return SimpleNamespace(
            is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: rank,
            get_world_size=lambda: self.ranks, new_group=lambda **asked: asked,
            ReduceOp=SimpleNamespace(MIN="min"), all_reduce=lambda word, **_: self._reduce(rank, word),
        )  # fmt: skip

    def _reduce(self, rank: int, word: list[int]) -> Any:
        number, self.begun[rank] = self.begun[rank], self.begun[rank] + 1
        if number == len(self.rounds):
            self.rounds.append([])
        words = self.rounds[number]
        words.append(word)

        def wait() -> None:
            assert len(words) == self.ranks, "a rank would wait for one that has not come"
            least = [min(column) for column in zip(*words, strict=True)]
            for one in words:
                one[:] = least

        return SimpleNamespace(wait=wait)


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[TrainingShare]]:
    """One share for each rank, each with its own view of the run folder."""

    def build(ranks: int, total: int, **more: Any) -> list[TrainingShare]:
        world, found, group = World(ranks), [], more.pop("group", None)
        for rank in range(ranks):
            folder = tmp_path / f"node{rank}"
            folder.mkdir()
            monkeypatch.setenv("TRAINWARDEN_RUN_DIR", str(folder))
            modules = {"torch": SimpleNamespace(tensor=lambda word, **_: list(word), int64=0)}
            modules["torch.distributed"] = world.distributed(rank)
            set_everywhere(monkeypatch, "loaded", modules.get)
            found.append(TrainingShare(total, group=None if group is None else group(rank), **more))
        return found

    return build


def run(found: list[TrainingShare], steps: int) -> list[list[list[int]]]:
    """Indices by step and rank; all begin a step before any begins the next."""
    out = []
    for step in range(steps):
        for share in found:
            if share.control is not None and share.work is None:
                share._ask()
        out.append([[micro.index for micro in share.step(step)] for share in found])
    return out


def put(folder: Path, name: str, what: object) -> None:
    (folder / f"{name}.part").write_text(json.dumps(what))
    (folder / f"{name}.part").replace(folder / name)


def test_a_split_is_taken_up_by_all_at_one_step(shares: Callable[..., list[TrainingShare]], tmp_path: Path) -> None:
    found = shares(3, 6)
    assert run(found, 1) == [[[0, 1], [2, 3], [4, 5]]]
    for rank in (0, 2):  # the others' launchers are quicker
        put(tmp_path / f"node{rank}", "plan.json", {"number": 1, "micro_batches": [1, 4, 1]})
    assert run(found, 3) == [[[0, 1], [2, 3], [4, 5]]] * 3
    put(tmp_path / "node1", "plan.json", {"number": 1, "micro_batches": [1, 4, 1]})
    before, *after = run(found, 4)
    assert before == [[0, 1], [2, 3], [4, 5]]
    assert after[-1] == [[0], [1, 2, 3, 4], [5]]
    assert all(sorted(index for part in step for index in part) == list(range(6)) for step in [before, *after])
    assert [share.counts for share in found] == [(1, 4, 1)] * 3


def test_ranks_may_agree_less_often(shares: Callable[..., list[TrainingShare]], tmp_path: Path) -> None:
    found = shares(2, 4, every=5)
    run(found, 1)
    for rank in range(2):
        put(tmp_path / f"node{rank}", "plan.json", {"number": 1, "micro_batches": [1, 3]})
    counts = [len(ranks[0]) for ranks in run(found, 12)]
    assert counts == [2] * 8 + [1] * 4  # asked at steps 5 and 10, and told at the next agreement


def test_what_a_plan_says_is_summed_up_once(
    shares: Callable[..., list[TrainingShare]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summed: list[bytes] = []
    set_everywhere(monkeypatch, "zlib", SimpleNamespace(crc32=lambda text: summed.append(text) or 7))
    found = shares(2, 4)
    run(found, 3)
    for rank in range(2):
        put(tmp_path / f"node{rank}", "plan.json", {"number": 1, "micro_batches": [1, 3]})
    run(found, 5)
    assert found[0].counts == (1, 3)
    assert sorted(summed) == [b"0:(2, 2)"] * 2 + [b"1:(1, 3)"] * 2


def test_who_comes_hours_late_is_waited_for(shares: Callable[..., list[TrainingShare]]) -> None:
    (share, _) = shares(2, 4)
    assert share.control is not None
    assert share.control["timeout"].total_seconds() >= 86_400  # gloo's own is half an hour, whatever the job has set


@pytest.mark.parametrize("seed", range(6))
def test_however_plans_arrive_every_step_is_whole(
    shares: Callable[..., list[TrainingShare]], tmp_path: Path, seed: int
) -> None:
    """Launchers of nodes that are quick and slow, and skip some; damage between."""
    random, ranks, total = Random(seed), 4, 11
    found = shares(ranks, total, every=random.choice([1, 3]))
    plans = [even(ranks, total)]
    for _ in range(40):
        if random.random() < 0.3:
            cuts = sorted(random.sample(range(1, total), ranks - 1))
            plans.append(tuple(b - a for a, b in pairwise([0, *cuts, total])))
        for rank in range(ranks):
            if random.random() < 0.4:
                number = random.randrange(len(plans))
                history = [{"number": n, "micro_batches": plans[n]} for n in range(1, number)]
                what = {"number": number, "micro_batches": plans[number], "history": history}
                put(tmp_path / f"node{rank}", "plan.json", random.choice([what, what, what, "damage"]))
        (step,) = run(found, 1)
        assert sorted(index for part in step for index in part) == list(range(total))
        assert len({share.adopted for share in found}) == 1


def test_a_plan_that_is_there_at_the_start_holds_from_the_first_step(
    shares: Callable[..., list[TrainingShare]], tmp_path: Path
) -> None:
    found = shares(2, 4)
    for rank in range(2):
        put(tmp_path / f"node{rank}", "plan.json", {"number": 3, "micro_batches": [1, 3]})
    assert run(found, 1) == [[[0], [1, 2, 3]]]


@examples(100)
@given(st.integers(1, 5), st.integers(0, 8), st.data())
def test_whatever_the_split_each_micro_batch_is_run_once_and_weighs_as_in_the_even_one(
    ranks: int, extra: int, data: st.DataObject
) -> None:
    total = ranks + extra
    between = st.lists(st.integers(1, max(1, total - 1)), min_size=ranks - 1, max_size=ranks - 1, unique=True)
    cuts = sorted(data.draw(between))
    counts = [b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True)]
    weights: dict[int, float] = {}
    lasts = 0
    for rank in range(ranks):
        share = TrainingShare(total)
        share.plan.group, share.plan.place, share.plan.in_force = tuple(range(ranks)), rank, tuple(counts)
        for micro in share.step():
            weights[micro.index] = weights.get(micro.index, 0.0) + micro.weight / ranks  # DDP divides by the ranks
            lasts += micro.last
    assert weights == pytest.approx(dict.fromkeys(range(total), 1 / total))
    assert lasts == ranks


def test_all_ranks_of_a_replica_run_the_same(shares: Callable[..., list[TrainingShare]], tmp_path: Path) -> None:
    found = shares(4, 4, group=lambda rank: (rank % 2, rank % 2 + 2))
    for rank in range(4):
        put(tmp_path / f"node{rank}", "plan.json", {"number": 1, "micro_batches": [1, 1, 3, 3]})
    assert run(found, 1) == [[[0], [0], [1, 2, 3], [1, 2, 3]]]


def test_a_plan_that_would_part_the_ranks_of_a_replica_is_never_taken_up(
    shares: Callable[..., list[TrainingShare]], tmp_path: Path
) -> None:
    """One that takes ranks for replicas may still fit each group by itself."""
    found = shares(4, 4, group=lambda rank: (rank % 2, rank % 2 + 2))
    for rank in range(4):
        put(tmp_path / f"node{rank}", "plan.json", {"number": 1, "micro_batches": [1, 2, 3, 2]})
    assert run(found, 4) == [[[0, 1], [0, 1], [2, 3], [2, 3]]] * 4


def test_gradients_are_exchanged_by_the_last_alone() -> None:
    entered: list[str] = []

    @contextlib.contextmanager
    def no_sync() -> Iterator[None]:
        entered.append("no")
        yield

    for micro in TrainingShare(3, SimpleNamespace(no_sync=no_sync)).step():
        with micro.sync():
            entered.append("micro")
    assert entered == ["no", "micro", "no", "micro", "micro"]


def test_a_model_that_needs_the_same_everywhere_keeps_the_even_split(
    shares: Callable[..., list[TrainingShare]], make: Callable[..., Hook], tmp_path: Path
) -> None:
    target = make()
    normal = type("BatchNorm2d", (type("_BatchNorm", (), {}),), {"track_running_stats": True})()
    model = SimpleNamespace(modules=lambda: [normal])
    found = shares(2, 4, model=model)
    for rank in range(2):
        put(tmp_path / f"node{rank}", "plan.json", {"number": 1, "micro_batches": [1, 3]})
    assert run(found, 3) == [[[0, 1], [2, 3]]] * 3
    assert found[0].refusal is not None
    assert target.memory.uneven.startswith("BatchNorm: ")


@pytest.mark.parametrize("name", ["SyncBatchNorm", "FullyShardedDataParallel", "FSDPModule", "DeepSpeedEngine"])
def test_who_is_refused_by_name(name: str) -> None:
    model = type(f"My{name}", (type(name, (), {}),), {"modules": lambda self: [self]})()
    assert uneven_model(model) is not None


@pytest.mark.parametrize("model", [None, 7, SimpleNamespace(modules=lambda: 1 / 0)])
def test_what_is_no_model_is_not_refused(model: Any) -> None:
    assert uneven_model(model) is None


def test_too_few_micro_batches_are_said_at_once(shares: Callable[..., list[TrainingShare]]) -> None:
    with pytest.raises(ValueError, match="2 micro-batches leave some of 3 replicas without any"):
        shares(3, 2)


class Sleeper:
    """Time that passes while somebody sleeps."""

    def __init__(self, at: Callable[[float], None] = lambda now: None) -> None:
        self.now, self.at, self.naps = 1000.0, at, 0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.naps += 1
        self.at(self.now)


def pauses(path: Path, sleeper: Sleeper) -> PauseFile:
    return PauseFile(str(path), sleeper, sleeper, sleeper.sleep)


def test_a_pause_lasts_until_the_request_is_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "pause.json"
    sleeper = Sleeper(lambda now: path.unlink(missing_ok=True) if now > 1002.0 else None)
    put(tmp_path, "pause.json", {"number": 4, "until_s": 1500.0})
    found = pauses(path, sleeper)
    assert found.newest() == 4
    found.obey(4)
    assert 1002.0 < sleeper.now < 1002.2
    assert (found.newest(), found.over) == (0, 4)


@pytest.mark.thorough
def test_nobody_stands_still_for_ever(tmp_path: Path) -> None:
    sleeper = Sleeper()
    put(tmp_path, "pause.json", {"number": 1, "until_s": 1060.0})
    found = pauses(tmp_path / "pause.json", sleeper)
    found.obey(1)
    assert sleeper.now == pytest.approx(1060.0, abs=0.1)
    assert found.newest() == 0
    naps = sleeper.naps
    found.obey(1)
    assert sleeper.naps == naps
    put(tmp_path, "pause.json", {"number": 2, "until_s": 1e12})
    found.obey(found.newest())
    assert sleeper.now == pytest.approx(1060.0 + 1500.0, abs=0.2)


def test_the_next_request_ends_the_one_before(tmp_path: Path) -> None:
    sleeper = Sleeper(lambda now: put(tmp_path, "pause.json", {"number": 2, "until_s": 1500.0}))
    put(tmp_path, "pause.json", {"number": 1, "until_s": 1500.0})
    found = pauses(tmp_path / "pause.json", sleeper)
    found.obey(1)
    assert sleeper.naps == 1
    assert found.newest() == 2


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", '{"number": 1}', '{"number": true, "until_s": 1e9}', '{"number": -1, "until_s": 1e9}',
     '{"number": 1, "until_s": "x"}', '{"number": 1.5, "until_s": 1e9}', '{"number": 1, "until_s": NaN}'],
)  # fmt: skip
def test_what_is_no_request_stops_nobody(tmp_path: Path, text: str) -> None:
    (tmp_path / "pause.json").write_text(text)
    sleeper = Sleeper()
    found = pauses(tmp_path / "pause.json", sleeper)
    assert found.newest() == 0
    found.obey(1)
    assert sleeper.naps == 0


def test_all_stand_still_before_the_same_step_and_say_so(
    shares: Callable[..., list[TrainingShare]], make: Callable[..., Hook], tmp_path: Path,
) -> None:  # fmt: skip
    target = make()
    found = shares(2, 2)
    stood: list[tuple[int, str, int | None]] = []
    for rank, share in enumerate(found):
        share.pauses.sleep = lambda seconds, rank=rank: (
            stood.append((rank, header_of(target).phase, header_of(target).stands))
            or put(  # type: ignore[misc,func-returns-value]
                tmp_path / f"node{rank}", "pause.json", {}
            )
        )
    run(found, 2)
    put(tmp_path / "node0", "pause.json", {"number": 1, "until_s": time.time() + 60.0})
    run(found, 3)
    assert stood == []
    assert header_of(target).stands == 0
    put(tmp_path / "node1", "pause.json", {"number": 1, "until_s": time.time() + 60.0})
    run(found, 3)
    assert stood == [(0, "evaluation", 1), (1, "evaluation", 1)]
    assert header_of(target).stands == 0
    found[0].close()
    assert header_of(target).stands is None
