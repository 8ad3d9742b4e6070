"""The table of remedies: complete, as it was, and every mistake in an operator's file is one clear sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from tests.places import ROOT
from trainwarden.actions.engine.launcher_client import VERBS
from trainwarden.actions.planners.ladder import Strategy
from trainwarden.actions.remedies import table as remedies
from trainwarden.actions.remedies.policy import Rules
from trainwarden.actions.remedies.table import AnyRung, Rebalance, RestartProcess, StopJob, Validate
from trainwarden.errors import ConfigError
from trainwarden.launching import Verb
from trainwarden.records import IncidentKind
from trainwarden.settings import EngineSettings

SHIPPED = remedies.load(None)


def actions_against(kind: IncidentKind) -> list[str]:
    return [rung.action for rung in SHIPPED.rungs(kind)]


def test_every_kind_of_incident_has_a_row_in_the_shipped_file() -> None:
    assert set(SHIPPED._table) == set(get_args(IncidentKind))
    nothing = {kind for kind in get_args(IncidentKind) if not SHIPPED.rungs(kind)}
    assert nothing == {"restart_loop", "pipeline", "data_quality"}


def test_what_is_done_about_what() -> None:
    restarts = {kind for kind in get_args(IncidentKind) if actions_against(kind) == ["restart_process", "stop_job"]}
    assert restarts == {
        "exception", "collective_mismatch", "out_of_memory", "cuda_out_of_memory",
    }  # fmt: skip
    isolating = {"restart_process", "evict_node", "stop_job"}
    assert {kind for kind in get_args(IncidentKind) if set(actions_against(kind)) == isolating} == {"crash", "hang"}
    evictions = {kind for kind in get_args(IncidentKind) if actions_against(kind) == ["evict_node"]}
    assert evictions == {"node_lost", "gpu_lost", "gpu_memory_error", "nvlink_error", "pcie_error"}
    assert actions_against("nic_down") == ["ignore", "evict_node"]
    assert actions_against("user_error") == ["stop_job"]
    assert actions_against("slow_compute") == [
        "rebalance", "validate", "evict_node", "move_topology", "checkpoint_job", "restart_job",
    ]  # fmt: skip
    assert actions_against("slow_link") == actions_against("congestion") == ["validate", "move_topology"]
    assert actions_against("metric_anomaly") == ["validate", "evict_node"]


def test_the_shipped_numbers_are_those_that_a_rung_without_any_has() -> None:
    assert SHIPPED.find("slow_compute", Rebalance) == Rebalance(overhead_s=0.5)
    assert SHIPPED.find("hang", RestartProcess) == RestartProcess()
    assert SHIPPED.find("hang", StopJob) == StopJob(after_restarts=3)
    strategies = SHIPPED.ladder("slow_compute").strategies
    first = (Strategy("rebalance", 0.5), Strategy("validate", 60.0))
    assert strategies == (
        *first,
        *(Strategy(kind, 600.0) for kind in ("evict_node", "move_topology", "checkpoint_job", "restart_job")),
    )
    assert SHIPPED.find("slow_compute", Validate) == Validate(overhead_s=60.0)


def test_every_action_of_a_rung_is_a_verb_of_launchers_but_ignoring() -> None:
    tags = {kind.__struct_config__.tag for kind in get_args(AnyRung)}
    assert tags - {"ignore"} <= set(VERBS)
    assert set(VERBS.values()) <= set(get_args(Verb))


def test_an_operators_file_replaces_the_kinds_it_names_and_leaves_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    path.write_text('hang = [{ action = "restart_process", persist_s = 300 }]\nslow_compute = []\n')
    rules = Rules.of(EngineSettings(remedies=str(path)))
    assert rules.remedies.rungs("hang") == (RestartProcess(persist_s=300.0),)
    assert rules.remedies.rungs("slow_compute") == ()
    assert rules.remedies.rungs("crash") == SHIPPED.rungs("crash")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("hang = [", "is not valid TOML"),
        ("crassh = []", "there is no kind of incident 'crassh'; there are: crash, exception"),
        ('hang = "restart"', "hang: expected `array`, got `str` at rungs"),
        ('hang = [{ action = "reboot" }]', "hang: invalid value 'reboot' at rungs[0].action"),
        ("hang = [{ persist_s = 5 }]", "hang: missing required field `action` at rungs[0]"),
        ('hang = [{ action = "restart_process", persist = 5 }]', "hang: unknown key `persist` at rungs[0]"),
        ('metric_anomaly = [{ action = "evict_node" }]', "metric_anomaly: metrics alone take no node out"),
        (
            'metric_anomaly = [{ action = "evict_node" }, { action = "validate" }]',
            "metric_anomaly: metrics alone take no node out",
        ),
        ('hang = [{ action = "evict_node", at_most = 5 }]', "hang: unknown key `at_most` at rungs[0]"),
        ('slow_compute = [{ action = "rebalance", relief_ratio = 0.5 }]', "at rungs[0].relief_ratio"),
        ('slow_compute = [{ action = "rebalance", overhead_s = -1 }]', "at rungs[0].overhead_s"),
        ('slow_compute = [{ action = "rebalance", overhead_s = "much" }]', "expected `float`, got `str`"),
        ('hang = [{ action = "ignore" }, { action = "ignore" }]', "hang: ignore may be a rung only once"),
        (
            'slow_compute = [{ action = "checkpoint_job" }]',
            "slow_compute: checkpoint_job cures nothing: restart_job has to come after it",
        ),
        (
            'slow_compute = [{ action = "restart_job" }, { action = "checkpoint_job" }, { action = "ignore" }]',
            "slow_compute: checkpoint_job cures nothing: restart_job has to come after it",
        ),
        ('hang = [{ action = "stop_job" }, { action = "ignore" }]', "hang: nothing can come after stop_job"),
        (
            'slow_compute = [{ action = "restart_job", overhead_s = 9 }, { action = "rebalance", overhead_s = 1 }]',
            "slow_compute: rebalance costs less than restart_job, which comes before it",
        ),
    ],
)
def test_every_mistake_is_one_sentence_that_names_file_and_kind(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        Rules.of(EngineSettings(remedies=str(path)))
    assert str(caught.value).startswith(f"engine.remedies: {path}: ")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        remedies.load(str(tmp_path / "none.toml"))


@pytest.mark.parametrize(
    ("policy", "word"),
    [
        ({"stale_s": 0}, "stale_s"),
        ({"operation_deadline_s": {"evict": 0}}, "operation_deadline_s"),
        ({"operation_deadline_s": {"teleport": 5}}, "teleport"),
        ({"relief_ratio": 1.1}, "relief_ratio"),
    ],
)
def test_limits_are_checked(policy: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        Rules.of(EngineSettings(policy=policy))


def test_every_verb_has_a_deadline() -> None:
    config = Rules.of(EngineSettings(policy={"operation_deadline_s": {"restart": 5}})).config
    assert all(config.deadline_s(verb) > 0.0 for verb in get_args(Verb))
    assert config.deadline_s("restart") == 5.0


def test_the_example_in_the_documentation_is_a_table(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "actions.md").read_text().partition("### A table of your own")[2]
    lines = [line.strip() for line in page.splitlines() if line.startswith("    ")]
    path = tmp_path / "ours.toml"
    path.write_text("\n".join(line for line in lines if line.startswith(("#", "hang", "slow_compute", "storage"))))
    table = remedies.load(str(path))
    assert [rung.action for rung in table.rungs("hang")] == ["restart_process", "evict_node"]
    assert [rung.overhead_s for rung in table.rungs("slow_compute")] == [0.5, 1200.0]
    assert table.rungs("storage") == ()
