"""Sources of a layout, joined: what they say together, and where they contradict."""

from __future__ import annotations

import itertools
import json
import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwarden.hook import ranks_text
from trainwarden.parallelism.arguments import claim_of_command
from trainwarden.parallelism.board import LayoutBoard, joined
from trainwarden.parallelism.claim import Claim, event_fields
from trainwarden.parallelism.layout import AXES, Layout
from trainwarden.records import EventRecord
from trainwarden.topics import EVENTS

MEGATRON = (
    "python pretrain_gpt.py --tensor-model-parallel-size 8 --pipeline-model-parallel-size=4 --calculate-per-token-loss"
)


def slow_groups(sizes: dict[str, int], order: tuple[str, ...], kinds: tuple[str, ...]) -> list[tuple[int, ...]]:
    """The plain twin: ranks that agree on all axes but `kinds`, found by looking at every rank."""
    places = list(itertools.product(*(range(sizes[axis]) for axis in reversed(order))))
    found: dict[tuple[int, ...], list[int]] = {}
    for rank, place in enumerate(places):
        at = dict(zip(reversed(order), place, strict=True))
        found.setdefault(tuple(at[axis] for axis in AXES if axis not in kinds), []).append(rank)
    return sorted(map(tuple, found.values()))


GRIDS = st.tuples(st.fixed_dictionaries({axis: st.integers(1, 4) for axis in AXES}), st.permutations(AXES))


def made(sizes: dict[str, int], order: tuple[str, ...]) -> Layout:
    world = sizes["tp"] * sizes["cp"] * sizes["dp"] * sizes["pp"]
    return Layout(world_size=world, sizes=sizes, order=order)


def group_claims(sizes: dict[str, int], order: tuple[str, ...]) -> list[tuple[int, Claim]]:
    """What every rank's hook would say of groups along each axis."""
    mine: dict[int, list[str]] = {}
    for kind in AXES:
        for ranks in slow_groups(sizes, order, (kind,)):
            for rank in ranks:
                mine.setdefault(rank, []).append(f"{kind}={ranks_text(ranks)}")
    world = len(mine)
    return [
        (rank, Claim(source="groups", world_size=world, started_s=1.0, groups=";".join(parts)))
        for rank, parts in mine.items()
    ]


@settings(max_examples=25, deadline=None)
@given(GRIDS)
def test_groups_are_those_of_a_plain_count(grid: tuple[dict[str, int], list[str]]) -> None:
    sizes, order = grid[0], tuple(grid[1])
    layout = made(sizes, order)
    for kind in AXES:
        assert sorted(layout.groups(kind)) == slow_groups(sizes, order, (kind,))
    assert sorted(layout.replicas()) == slow_groups(sizes, order, ("tp", "cp", "pp"))
    stages = layout.stages()
    for ranks in slow_groups(sizes, order, ("tp", "cp", "dp")):
        assert len({stages[rank] for rank in ranks}) == 1


@settings(max_examples=25, deadline=None)
@given(GRIDS)
def test_a_layout_is_read_off_process_groups_alone(grid: tuple[dict[str, int], list[str]]) -> None:
    sizes, order = grid[0], tuple(grid[1])
    layout = joined(group_claims(sizes, order))
    if made(sizes, order).world_size == 1:
        assert layout is None
        return
    assert layout is not None
    assert layout.whole, layout
    assert layout.sizes == sizes
    for kind in AXES:
        assert sorted(layout.groups(kind)) == slow_groups(sizes, order, (kind,))


def claims(command: str = "", world: int = 128, **more: Claim) -> Layout | None:
    found = [(0, one) for one in more.values()]
    if command:
        asked = claim_of_command(command.split(), world, 1.0, lambda path: None)
        assert asked is not None
        found.append((0, asked))
    return joined(found)


def told(world: int = 128, **sizes: int) -> Claim:
    return Claim(source="settings", world_size=world, started_s=1.0, **sizes)  # type: ignore[arg-type]


def test_megatron_says_all_but_what_is_left() -> None:
    layout = claims(MEGATRON + " --expert-model-parallel-size 8 --num-experts 64")
    assert layout is not None
    assert layout.whole
    assert layout.summary() == "tp 8 x pp 4 x dp 4; expert 8; from Megatron arguments"
    assert [one.partition(":")[0] for one in layout.uneven] == ["experts (MoE)"]
    assert layout.order == ("tp", "cp", "dp", "pp")


def test_megatrons_other_mapping_is_another_order() -> None:
    layout = claims(MEGATRON + " --use-tp-pp-dp-mapping", world=64)
    assert layout is not None
    assert layout.groups("pp")[0] == (0, 8, 16, 24)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ("--num-layers-per-virtual-pipeline-stage 2", "interleaved pipeline"),
        ("--num-virtual-stages-per-pipeline-rank 2", "interleaved pipeline"),
        ("--use-megatron-fsdp", "FSDP"),
        ("--use-torch-fsdp2", "FSDP"),
        ("--num-experts 8", "experts (MoE)"),
        ("--zero-stage 3", "ZeRO-3"),
    ],
)
def test_what_uneven_counts_would_break_is_named(more: str, reason: str) -> None:
    layout = claims(f"{MEGATRON} {more}")
    assert layout is not None
    assert [one.partition(":")[0] for one in layout.uneven] == [reason]


def test_megatron_without_its_per_token_loss_is_named() -> None:
    layout = claims(MEGATRON.replace("--calculate-per-token-loss", ""))
    assert layout is not None
    assert layout.uneven[0].startswith("Megatron without --calculate-per-token-loss")


def test_sizes_that_do_not_divide_the_ranks_are_said() -> None:
    layout = claims(MEGATRON, world=100)
    assert layout is not None
    assert not layout.whole
    assert layout.contradictions == ("tp 8 x cp 1 x pp 4 do not divide 100 ranks",)
    assert "contradiction: " in layout.summary()


def test_a_product_that_is_not_the_world_is_said() -> None:
    layout = claims(said=told(tp=2, cp=1, pp=2, dp=16))
    assert layout is not None
    assert layout.contradictions == ("tp 2 x cp 1 x dp 16 x pp 2 are 64 ranks, and there are 128",)


def test_settings_are_believed_and_what_contradicts_them_is_said() -> None:
    layout = claims(MEGATRON, said=told(tp=4, cp=1, pp=4))
    assert layout is not None
    assert not layout.whole
    assert layout.sizes["tp"] == 4
    assert layout.contradictions == ("settings say tensor 4, Megatron arguments say 8",)


def test_two_nodes_that_were_started_differently_contradict() -> None:
    one = claim_of_command(MEGATRON.split(), 128, 1.0, lambda path: None)
    other = claim_of_command(MEGATRON.replace("8", "2").split(), 128, 1.0, lambda path: None)
    assert one is not None
    assert other is not None
    layout = joined([(0, one), (8, other)])
    assert layout is not None
    assert layout.contradictions == ("Megatron arguments say tensor 8, Megatron arguments say 2",)


def test_groups_that_are_not_those_of_the_arguments_are_said() -> None:
    order = ("tp", "cp", "pp", "dp")
    seen = group_claims({"tp": 2, "cp": 1, "dp": 2, "pp": 2}, order)
    command = "x --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
    asked = claim_of_command(command.split(), 8, 1.0, lambda path: None)
    assert asked is not None
    layout = joined([(0, asked), *seen])
    assert layout is not None
    assert not layout.whole
    assert any("and by the sizes would be in" in one for one in layout.contradictions)


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        (["tp=0-1", "tp=0,1,3"], "a tensor parallel group is not evenly spaced"),
        (["tp=0-1", "tp=0-3"], "tensor parallel groups have 2 and 4 ranks"),
        (["pp=0-4:4", "pp=0-2:2"], "pipeline parallel groups are not spaced alike"),
    ],
)
def test_groups_that_are_no_grid_are_said(groups: list[str], said: str) -> None:
    found = [(r, Claim(source="groups", world_size=8, started_s=1.0, groups=one)) for r, one in enumerate(groups)]
    layout = joined(found)
    assert layout is not None
    assert said in layout.contradictions


def test_a_device_mesh_that_shares_the_model_out() -> None:
    """tp 2, shard 2, replicate 2, as torchtitan makes them."""
    texts = {
        r: f"tp={r // 2 * 2}-{r // 2 * 2 + 1};shard={ranks_text([r - r % 4 + r % 2, r - r % 4 + r % 2 + 2])}"
        for r in range(8)
    }
    texts = {r: f"{text};replicate={ranks_text([r % 4, r % 4 + 4])}" for r, text in texts.items()}
    layout = joined([(r, Claim(source="groups", world_size=8, started_s=1.0, groups=t)) for r, t in texts.items()])
    assert layout is not None
    assert layout.whole
    assert layout.summary() == "tp 2 x pp 1 x dp 4; from process groups"
    assert layout.uneven[0].startswith("FSDP")


def test_torchtitan_reads_its_file_and_what_is_said_over_it() -> None:
    lines = "[parallelism]", "tensor_parallel_degree = 4", "pipeline_parallel_degree = 2"
    file = "\n".join([*lines, 'pipeline_parallel_schedule = "Interleaved1F1B"']).encode()
    words = ["train.py", "--job.config_file", "./llama.toml", "--parallelism.tensor_parallel_degree", "2"]
    claim = claim_of_command(words, 32, 1.0, lambda path: file if path == "./llama.toml" else None)
    assert claim is not None
    assert claim.sizes == {"tp": 2, "cp": 1, "pp": 2}
    assert [one.partition(":")[0] for one in claim.uneven.split("; ")] == ["FSDP", "interleaved pipeline"]
    layout = joined([(0, claim)])
    assert layout is not None
    assert layout.summary() == "tp 2 x pp 2 x dp 8; from torchtitan arguments"


def test_torchtitan_by_arguments_alone_says_no_more_than_they_do() -> None:
    words = ["train.py", "--module", "llama3", "--parallelism.tensor_parallel_degree", "2"]
    claim = claim_of_command(words, 32, 1.0, lambda path: None)
    assert claim is not None
    layout = joined([(0, claim)])
    assert layout is not None
    assert not layout.whole
    assert layout.summary() == "tp 2; context and data and pipeline not known; from torchtitan arguments"


@pytest.mark.parametrize(("stage", "named"), [(0, ""), (1, ""), (2, "ZeRO-2"), (3, "ZeRO-3")])
def test_deepspeed_names_its_stage(stage: int, named: str) -> None:
    file = json.dumps({"zero_optimization": {"stage": stage}, "tensor_parallel": {"autotp_size": 2}}).encode()
    claim = claim_of_command(["t.py", "--deepspeed", "ds.json"], 8, 1.0, lambda path: file)
    assert claim is not None
    assert claim.sizes == {"tp": 2}
    assert claim.uneven.partition(":")[0] == named


@pytest.mark.parametrize("data", [None, b"", b"[", b"[]", b'{"zero_optimization": 3}', b"\xff", b"[" * 100_000])
def test_a_file_that_is_none_says_nothing(data: bytes | None) -> None:
    for words in (["--deepspeed_config", "x"], ["--job.config_file", "x", "--parallelism.tensor_parallel_degree", "2"]):
        claim = claim_of_command(words, 8, 1.0, lambda path: data)
        assert claim is not None
        assert claim.sizes in ({}, {"tp": 2})


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.text(max_size=12) | st.sampled_from(["--tensor-model-parallel-size", "--deepspeed", "--job.config_file"])
    )
)
def test_no_command_line_is_too_odd(words: list[str]) -> None:
    claim = claim_of_command(words, 8, 1.0, lambda path: None)
    if claim is not None:
        joined([(0, claim)])


def event(claim: Claim, rank: int = 0, node: str = "n") -> EventRecord:
    name = f"parallel_layout/{node}/{rank}/{claim.source}"
    record = EventRecord(
        id=name, job="j", node=node, time_s=2.0, kind="parallel_layout", rank=rank, fields=event_fields(claim)
    )
    return EVENTS.decode(EVENTS.encode(record))


def test_over_the_bus_in_any_order_and_number() -> None:
    sizes = {"tp": 2, "cp": 1, "dp": 2, "pp": 2}
    events = [event(claim, rank) for rank, claim in group_claims(sizes, AXES)] + [event(told(8, tp=2, cp=1, pp=2))]
    boards = [LayoutBoard() for _ in range(2)]
    for one in events:
        assert boards[0].apply(one)
    for one in [*reversed(events), *events]:
        boards[1].apply(one)
    assert boards[0].layout() == boards[1].layout()
    assert boards[0].layout().summary() == "tp 2 x pp 2 x dp 2; from settings and process groups"  # type: ignore[union-attr]
    kept = LayoutBoard()
    kept.restore(boards[0].state())
    assert kept.layout() == boards[0].layout()


def test_a_new_attempt_forgets_the_words_of_the_one_before() -> None:
    board = LayoutBoard()
    board.apply(event(told(8, tp=2, cp=1, pp=2), node="gone"))
    board.apply(event(msgspec.structs.replace(told(8, tp=4, cp=1, pp=1), started_s=5000.0), node="here"))
    layout = board.layout()
    assert layout is not None
    assert layout.whole
    assert layout.sizes["tp"] == 4
    board.apply(event(told(8, tp=1, cp=1, pp=1), node="here"))  # late
    assert board.layout() == layout


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"source": "settings"},
        {"source": "x", "world_size": 8, "started_s": 1.0},
        {"source": "arguments", "world_size": 8, "started_s": 1.0, "tp": 2, "framework": "\x1b[31m"},
        {"source": "arguments", "world_size": 8, "started_s": 1.0, "uneven": "x" * 3000},
    ],
)
def test_damage_is_passed_over(fields: dict[str, object]) -> None:
    board = LayoutBoard()
    damaged = EventRecord(id="e", job="j", node="n", time_s=1.0, kind="parallel_layout", rank=0, fields=fields)  # type: ignore[arg-type]
    assert board.apply(damaged)
    assert board.layout() is None


@pytest.mark.thorough
def test_eight_times_the_ranks_are_joined_in_little_more_than_eight_times_the_time() -> None:
    """Once for every change: by texts, never by comparing lists of ranks."""

    def cost_s(dp: int) -> float:
        layout = made({"tp": 8, "cp": 1, "dp": dp, "pp": 16}, AXES)
        texts: dict[int, list[str]] = {}
        for kind in AXES:
            for ranks in layout.groups(kind):
                for rank in ranks:
                    texts.setdefault(rank, []).append(f"{kind}={ranks_text(ranks)}")
        found = [
            (rank, Claim(source="groups", world_size=128 * dp, started_s=1.0, groups=";".join(one)))
            for rank, one in texts.items()
        ]
        began_s = time.process_time()
        again = joined(found)
        lasted_s = time.process_time() - began_s
        assert again is not None
        assert again.whole
        return lasted_s

    assert cost_s(64) < 24.0 * cost_s(8)
