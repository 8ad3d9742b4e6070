"""`plan`: every planner answers its own example, and one sentence says what is no question."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from trainwarden.actions.planners.questions import CATALOG
from trainwarden.cli.learn.plan import plan
from trainwarden.errors import ConfigError, DataError


def ask(name: Any, tmp_path: Path, question: object, capsys: pytest.CaptureFixture[str]) -> Any:
    path = tmp_path / "q.json"
    path.write_text(question if isinstance(question, str) else json.dumps(question))
    assert plan(name, str(path), json="-") == 0
    return json.loads(capsys.readouterr().out)


def test_the_command_knows_the_planners_of_the_table() -> None:
    words = get_args(get_type_hints(plan, include_extras=True)["what"])[0]
    assert sorted(get_args(words)) == sorted(CATALOG)


@pytest.mark.parametrize("name", CATALOG)
def test_the_example_can_be_asked(name: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(name, example=True) == 0
    path = tmp_path / "q.json"
    path.write_text(capsys.readouterr().out)
    assert plan(name, str(path)) == 0
    assert capsys.readouterr().out.strip()
    first = ask(name, tmp_path, path.read_text(), capsys)
    assert first == ask(name, tmp_path, path.read_text(), capsys)  # a pure function


def test_micro_batches_by_the_contract(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    question: dict[str, Any] = {"micro_batch_s": [1.0, 1, 2.0], "total": 12}
    answer = {"micro_batches": [5, 5, 2], "iteration_s": 5.0, "weights": [1.25, 1.25, 0.5]}
    assert ask("microbatches", tmp_path, question, capsys) == answer
    question["groups"] = [[0, 1], [2, 3], [4, 5]]
    by_rank = {"0": 5, "1": 5, "2": 5, "3": 5, "4": 2, "5": 2}
    assert ask("microbatches", tmp_path, question, capsys) == {**answer, "by_rank": by_rank}


def test_a_ladder_by_the_contract(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strategies = [{"name": "restart", "overhead_s": 3.0}, {"name": "rebalance", "overhead_s": 1.0}]
    question = {"healthy_s": 1.0, "slow_s": [1.1] * 10 + [3.0] * 5, "strategies": strategies}
    assert ask("ladder", tmp_path, question, capsys) == {
        "steps": [{"iteration": 10, "name": "rebalance"}, {"iteration": 11, "name": "restart"}],
        "cost_s": pytest.approx(7.0),
        "optimum_s": 3.0,
    }


def test_a_ladder_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nothing = {"healthy_s": 1.0, "slow_s": [0.5, 2.0], "strategies": []}
    assert ask("ladder", tmp_path, nothing, capsys) == {"steps": [], "cost_s": 1.0, "optimum_s": 1.0}
    free = {"healthy_s": 1.0, "slow_s": [], "strategies": [{"name": "x", "overhead_s": 0}]}
    assert ask("ladder", tmp_path, free, capsys) == {"steps": [], "cost_s": 0.0, "optimum_s": 0.0}


def test_a_cluster_by_the_contract(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = [
        {"name": "a", "weight": 1, "minimum": 1, "now": 2, "faulted": False, "throughput": [0, 1, 2, 2.5]},
        {"name": "b", "weight": 2, "minimum": 2, "now": 1, "faulted": True, "throughput": [0, 9, 2, 2.5, 4]},
    ]
    question = {"gpus": 3, "step": 1, "running_s": {"2": 50, "3": 100, "4": 100}, "transition_s": 10, "tasks": tasks}
    assert ask("cluster", tmp_path, question, capsys) == {
        "assignment": {"a": 1, "b": 2},
        "value": 1 * 100 - 2 * 10 + 2 * 2 * 100,
        "table": {
            "lost:a": {"assignment": {"a": 0, "b": 2}, "value": -1 * 10 + 2 * 2 * 50},
            "lost:b": {"assignment": {"a": 0, "b": 2}, "value": -1 * 10 + 2 * 2 * 50 - 2 * 2 * 10},
            "finished:a": {"assignment": {"b": 3}, "value": 2.5 * 2 * 100 - 2 * 2 * 10},
            "finished:b": {"assignment": {"a": 3}, "value": 240.0},
            "joined": {"assignment": {"a": 0, "b": 4}, "value": 2 * 4 * 100 - 4 * 10 - 1 * 10},
        },
    }


def test_a_placement_by_the_contract(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A slow link of the reduction goes between pipeline stages, where it carries less (Falcon, figure 10)."""
    before = 2 * 0.5 + 1 * 0.5 + 8 * 2e9 / 1e9 + 8 * 1e6 / 2 / 10e9 * 2  # stages, reduction, two transfers through
    assert ask("topology", tmp_path, {**TOPOLOGY, "predict_only": True}, capsys) == {
        "predicted_s": {"before": pytest.approx(before, rel=1e-3)}
    }
    answer = ask("topology", tmp_path, TOPOLOGY, capsys)
    assert answer["exact"] is True
    assert sorted(answer["placement"]) == [8, 9, 10, 11]
    assert answer["predicted_s"]["after"] < answer["predicted_s"]["before"] / 5
    moves = [(rank, old, new) for rank, (old, new) in enumerate(zip([8, 9, 10, 11], answer["placement"], strict=True))]
    assert [(m["rank"], m["from"], m["to"]) for m in answer["moves"]] == [move for move in moves if move[1] != move[2]]


TOPOLOGY: dict[str, Any] = {
    **{"tp": 1, "dp": 2, "pp": 2, "gpus_per_node": 1, "placement": [8, 9, 10, 11], "micro_batches": 2},
    **{"compute_s": {"8": 0.5, "9": 0.5, "10": 0.5, "11": 0.5, "12": 9}, "default_gbps": 10, "gbps": {"10-11": 1}},
    "bytes": {"tp": 0, "dp": 2e9, "pp": 1e6},
}
CLUSTER = {"gpus": 2, "running_s": 1, "transition_s": 1, "tasks": [{"name": "a", "throughput": [0, 1, 2]}]}
LADDER = {"healthy_s": 1.0, "slow_s": [1.0], "strategies": []}


@pytest.mark.parametrize(
    ("name", "question", "sentence"),
    [
        ("microbatches", "", "Input data was truncated"),
        ("microbatches", "[]", "Expected `object`, got `array`"),
        ("microbatches", '{"micro_batch_s": [1.0]}', "Object missing required field `total`"),
        ("microbatches", {"micro_batch_s": ["a"], "total": 1}, r"micro_batch_s\[0\]: Expected `float`, got `str`"),
        ("microbatches", {"micro_batch_s": [1], "total": 1, "grups": []}, "Object contains unknown field `grups`"),
        ("microbatches", {"micro_batch_s": [1], "total": 1, "groups": [[]]}, r"groups\[0\]: Expected `array` of len"),
        ("microbatches", {"micro_batch_s": [1], "total": 2.5}, "total: Expected `int`, got `float`"),
        ("microbatches", "[" * 100_000, "plan microbatches: "),
        ("microbatches", '{"micro_batch_s": [1e999], "total": 1}', "plan microbatches: "),
        ("microbatches", '{"micro_batch_s": [NaN], "total": 1}', "plan microbatches: "),
        ("ladder", {**LADDER, "healthy_s": -1}, "healthy_s: Expected `float` >= 0.0"),
        ("ladder", {**LADDER, "strategies": [{"name": "", "overhead_s": 1}]}, r"strategies\[0\].name: Expected"),
        ("ladder", {**LADDER, "strategies": [{"name": "a", "overhead_s": 1, "x": 1}]}, "unknown field `x`"),
        ("topology", {**TOPOLOGY, "tp": 0}, "tp: Expected `int` >= 1"),
        ("topology", {**TOPOLOGY, "compute_s": {"8": 0}}, r"compute_s\[...\]: Expected `float` > 0.0"),
        ("topology", {**TOPOLOGY, "compute_s": {"a": 1}}, "compute_s: Expected `int`, got `str`"),
        ("topology", {**TOPOLOGY, "gbps": {"0-1": 0}}, r"gbps\[...\]: Expected `float` >= 1e-06"),
        ("topology", {**TOPOLOGY, "bytes": {"ep": 1}}, "bytes: Object contains unknown field `ep`"),
        ("topology", {**TOPOLOGY, "placement": [-1]}, r"placement\[0\]: Expected `int` >= 0"),
        ("cluster", {**CLUSTER, "step": 4}, "step: Invalid enum value 4"),
        ("cluster", {**CLUSTER, "gpus": -1}, "gpus: Expected `int` >= 0"),
        ("cluster", {**CLUSTER, "tasks": []}, "tasks: Expected `array` of length >= 1"),
        ("cluster", {**CLUSTER, "running_s": "x"}, "running_s: Expected `float | array | object`, got `str`"),
        ("cluster", {**CLUSTER, "tasks": [{"name": "a", "throughput": [-1]}]}, r"throughput\[0\]: Expected `float`"),
        ("cluster", {**CLUSTER, "gpu": 1}, "unknown field `gpu`"),
    ],
)
def test_what_is_no_question_is_one_sentence(name: Any, question: object, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "q.json"
    path.write_text(question if isinstance(question, str) else json.dumps(question))
    with pytest.raises(ConfigError, match=sentence) as caught:
        plan(name, str(path))
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"plan {name}: ")


A = {"name": "a", "throughput": [0, 1, None]}


@pytest.mark.parametrize(
    ("name", "question", "sentence"),
    [
        ("microbatches", {"micro_batch_s": [1.0, 1.0], "total": 1}, "cannot give each of 2 groups"),
        ("microbatches", {"micro_batch_s": [1, 1], "total": 2, "groups": [[0]]}, "1 groups are named, but .* of 2"),
        ("microbatches", {"micro_batch_s": [1, 1], "total": 2, "groups": [[0], [1, 0]]}, "rank 0 is named twice"),
        ("ladder", {**LADDER, "strategies": [{"name": "a", "overhead_s": 1}] * 2}, "strategy 'a' is named twice"),
        ("topology", {**TOPOLOGY, "pp": 3}, "tp x dp x pp is 6 ranks, but placement has 4"),
        ("topology", {**TOPOLOGY, "placement": [8, 9, 9, 11]}, "GPU 9 has two ranks in placement"),
        ("topology", {**TOPOLOGY, "placement": [8, 9, 10, 13]}, "compute_s has no time of GPU 13"),
        (
            "topology",
            {**TOPOLOGY, "dp": 2049, "placement": [*range(4098)], "compute_s": dict.fromkeys(range(4098), 1)},
            "placement is on 4098 nodes; up to 4096 can be planned for",
        ),
        ("topology", {**TOPOLOGY, "gbps": {"node1": 1}}, "gbps: 'node1' is no pair of node numbers like 0-1"),
        ("cluster", {**CLUSTER, "tasks": [A, A]}, "task 'a' is named twice"),
        ("cluster", {**CLUSTER, "tasks": [{**A, "now": 2}]}, "task 'a' has 2 GPUs now, but its throughput"),
        ("cluster", {**CLUSTER, "tasks": [{**A, "now": 3}]}, "task 'a' has 3 GPUs now, but its throughput"),
        ("cluster", {**CLUSTER, "running_s": []}, "running_s names no number of GPUs"),
        ("cluster", {**CLUSTER, "gpus": 100_000}, "100000 GPUs in steps of 1 are more than 20000 steps; use step 8"),
    ],
)
def test_what_has_no_answer_is_one_sentence(name: Any, question: object, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "q.json"
    path.write_text(json.dumps(question))
    with pytest.raises(DataError, match=sentence) as caught:
        plan(name, str(path))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"plan: '.*gone.json' cannot be read \(No such file"):
        plan("ladder", str(tmp_path / "gone.json"))


def test_without_numpy_the_installation_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "trainwarden.actions.planners.questions.cluster", raising=False)
    monkeypatch.delitem(sys.modules, "trainwarden.actions.planners.allocation", raising=False)
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(ConfigError, match="numpy is not installed; pip install 'trainwarden\\[detect\\]'"):
        plan("cluster")


@pytest.mark.parametrize("name", CATALOG)
def test_every_question_is_frozen_and_refuses_unknown_keys(name: str) -> None:
    module, _, attribute = CATALOG[name].partition(":")
    kind = getattr(__import__(module, fromlist=[attribute]), attribute).question
    assert kind.__struct_config__.frozen
    assert kind.__struct_config__.forbid_unknown_fields
    assert issubclass(kind, msgspec.Struct)


def test_closed_standard_input_is_wrong_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ConfigError, match="standard input is closed"):
        plan("ladder")
