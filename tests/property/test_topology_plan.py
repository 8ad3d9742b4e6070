"""Placements against brute force, the prediction against a slow plain twin, and the search where all is too many."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from trainwarden.actions.planners import placement, placement_search
from trainwarden.actions.planners.questions.topology import Exchanged, Topology, TopologyAnswer, TopologyQuestion

SIZES = [(tp, dp, pp) for tp in (1, 2) for dp in (1, 2, 3) for pp in (1, 2, 3) if 1 < tp * dp * pp <= 6]
SECONDS = st.sampled_from([0.1, 0.1, 0.1, 0.15, 0.3])
BYTES = st.sampled_from([0.0, 1e8, 4e9])


@st.composite
def questions(draw: st.DrawFn, sizes: Sequence[tuple[int, int, int]] = SIZES) -> TopologyQuestion:
    tp, dp, pp = draw(st.sampled_from(sizes))
    per_node = draw(st.integers(1, 4))
    # Numbers with gaps: the job has some GPUs of some nodes.
    gpus = draw(st.lists(st.integers(0, 20), min_size=tp * dp * pp, max_size=tp * dp * pp, unique=True))
    seconds = SECONDS if draw(st.booleans()) else st.floats(0.05, 0.5)
    pairs = st.tuples(st.integers(0, 20), st.integers(0, 20)).map("{0[0]}-{0[1]}".format)
    return TopologyQuestion(
        tp,
        dp,
        pp,
        gpus_per_node=per_node,
        placement=gpus,
        compute_s={gpu: draw(seconds) for gpu in gpus},
        default_gbps=200.0,
        micro_batches=draw(st.integers(1, 9)),
        gbps=draw(st.dictionaries(pairs, st.sampled_from([10.0, 50.0, 400.0]), max_size=12)),
        bytes=Exchanged(draw(BYTES), draw(BYTES), draw(BYTES)),
    )


def predicted(question: TopologyQuestion, order: Sequence[int]) -> float:
    """The documented model, written out."""
    tp, dp, pp, m = question.tp, question.dp, question.pp, question.micro_batches

    def gpu(t: int, d: int, p: int) -> int:
        return order[t + tp * (d + dp * p)]

    def seconds(one: int, other: int, size: float) -> float:
        a, b = one // question.gpus_per_node, other // question.gpus_per_node
        given = [question.gbps[key] for key in {f"{a}-{b}", f"{b}-{a}"} if key in question.gbps]
        if a == b and not given:
            return 0.0
        return size * 8e-9 / min(given, default=question.default_gbps)

    def group(gpus: list[int], size: float) -> float:
        return max((seconds(one, other, size) for one, other in itertools.combinations(gpus, 2)), default=0.0)

    stages, links, reduction = [], [], 0.0
    for p in range(pp):
        groups = [[gpu(t, d, p) for t in range(tp)] for d in range(dp)]
        stages.append(
            max(max(question.compute_s[g] for g in one) + group(one, question.bytes.tp / m) for one in groups)
        )
        reduction = max(reduction, *(group([gpu(t, d, p) for d in range(dp)], question.bytes.dp) for t in range(tp)))
        if p + 1 < pp:
            pairs = [(gpu(t, d, p), gpu(t, d, p + 1)) for t in range(tp) for d in range(dp)]
            links.append(max(seconds(*pair, question.bytes.pp / m) for pair in pairs))
    return math.fsum(stages + links) + (m - 1) * max(stages + links) + reduction


def of(answer: TopologyAnswer) -> Any:
    assert answer.placement is not None
    assert answer.moves is not None
    assert answer.predicted_s.after is not None
    return answer


def check(question: TopologyQuestion, answer: TopologyAnswer) -> None:
    """What holds of every answer."""
    given = of(answer)
    assert sorted(given.placement) == sorted(question.placement)
    changed = enumerate(zip(question.placement, given.placement, strict=True))
    assert [(m.rank, m.source, m.target) for m in given.moves] == [(r, a, b) for r, (a, b) in changed if a != b]
    assert given.predicted_s.before == pytest.approx(predicted(question, question.placement))
    assert given.predicted_s.after == pytest.approx(predicted(question, given.placement))
    assert given.predicted_s.after < given.predicted_s.before or not given.moves
    alone = msgspec.structs.replace(question, placement=list(given.placement), predict_only=True)
    assert msgspec.to_builtins(Topology().answer(alone)) == {"predicted_s": {"before": given.predicted_s.after}}


@examples(120)
@given(questions())
def test_no_placement_of_a_small_grid_is_better(question: TopologyQuestion) -> None:
    answer = Topology().answer(question)
    check(question, answer)
    assert answer.exact
    best = min(predicted(question, order) for order in itertools.permutations(question.placement))
    assert of(answer).predicted_s.after == pytest.approx(best, rel=2e-9)


@examples(60)
@given(questions(), st.sampled_from([1, 2]))
def test_groups_by_nodes_are_predicted_as_groups_by_pairs(question: TopologyQuestion, many: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement, "MANY", many)
        alone = Topology().answer(msgspec.structs.replace(question, predict_only=True))
    assert alone.predicted_s.before == pytest.approx(predicted(question, question.placement))


@examples(120)
@given(questions())
def test_local_search_is_never_worse_than_today_and_says_what_it_knows(question: TopologyQuestion) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement_search, "MOST_ARRANGEMENTS", 0.5)
        answer = Topology().answer(question)
    check(question, answer)
    exact = of(Topology().answer(question))
    assert of(answer).predicted_s.after >= exact.predicted_s.after * (1 - 2e-9)
    if answer.exact:
        assert of(answer).predicted_s.after == pytest.approx(exact.predicted_s.after)


@pytest.mark.parametrize("stragglers", [1, 2, 3, 4, 5, 8])
def test_stragglers_share_the_fewest_stages_inner_ones_first(stragglers: int) -> None:
    """A job of 8 stages of 4 GPUs, whose slow GPUs are scattered: ceil(stragglers / 4) stages hold them all."""
    slow = [(7 * place) % 32 for place in range(stragglers)]
    compute_s = {gpu: 0.2 if gpu in slow else 0.1 for gpu in range(32)}
    question = TopologyQuestion(1, 4, 8, 8, list(range(32)), compute_s, 200.0, 16)
    answer = of(Topology().answer(question))
    check(question, answer)
    stages = {place // 4 for place, gpu in enumerate(answer.placement) if gpu in slow}
    assert len(stages) == -(-stragglers // 4)


def test_a_few_stragglers_go_to_an_inner_stage() -> None:
    compute_s = {gpu: 0.2 if gpu in (0, 7) else 0.1 for gpu in range(8)}
    question = TopologyQuestion(1, 2, 4, 8, list(range(8)), compute_s, 200.0, 16)
    answer = of(Topology().answer(question))
    assert {answer.placement.index(0) // 2, answer.placement.index(7) // 2} in ({1}, {2})


@pytest.mark.thorough
@pytest.mark.parametrize(("tp", "dp", "pp"), [(8, 16, 8), (4, 32, 8), (1, 64, 8)])
def test_a_slow_link_of_a_large_job_leaves_the_reduction(tp: int, dp: int, pp: int) -> None:
    ranks = tp * dp * pp
    compute_s = {gpu: 0.1 for gpu in range(ranks)}
    question = TopologyQuestion(
        tp, dp, pp, 8, list(range(ranks)), compute_s, 200.0, 16, {"0-1": 20.0, "5-6": 40.0}, Exchanged(0, 4e9, 1e8)
    )
    answer = of(Topology().answer(question))
    check(question, answer)
    healthy = predicted(msgspec.structs.replace(question, gbps={}), question.placement)
    assert answer.predicted_s.after <= healthy * 1.001
    assert len(answer.moves) <= 10 * max(8, tp)


@pytest.mark.thorough
def test_noise_moves_nobody_of_a_large_job() -> None:
    rng = np.random.default_rng(0)
    compute_s = {gpu: 0.1 * (1 + 1e-4 * float(rng.standard_normal())) for gpu in range(256)}
    question = TopologyQuestion(8, 8, 4, 8, list(range(256)), compute_s, 200.0, 16, bytes=Exchanged(1e9, 1e9, 1e8))
    answer = of(Topology().answer(question))
    assert answer.moves == ()
    assert not answer.exact


@pytest.mark.parametrize(("tp", "dp"), [(1, 4096), (4096, 1)])
def test_one_group_of_all_is_alike_however_it_lies(tp: int, dp: int) -> None:
    """Looking at every pair of its members for every swap took three minutes."""
    compute_s = {gpu: 0.1 + 0.1 * (gpu % 7) for gpu in range(4096)}
    question = TopologyQuestion(tp, dp, 1, 8, list(range(4096)), compute_s, 200.0, 16, {"0-1": 1.0}, Exchanged(1, 1e9))
    answer = of(Topology().answer(question))
    assert (answer.moves, answer.exact) == ((), True)
