"""What several nodes cannot do is refused in a sentence that names the option, before anything begins."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actions.launchers.cluster.words import Shape
from trainwarden.cli.main import run
from trainwarden.cli.run.launch_node import Here, NodesAsked
from trainwarden.errors import ConfigError
from trainwarden.settings import EngineSettings, LaunchSettings, Settings, load

HERE = Here(nproc=2, preload=(), checkpoints=None, job="j", keep=None, config=None)
ASKED = NodesAsked(
    rdzv="10.0.0.1:29401", nnodes=4, min_nodes=2, join_wait_s=30.0, spares=1, max_restarts=3, token_file=None
)


def test_what_several_nodes_can_do_is_taken() -> None:
    ASKED.check()
    msgspec.structs.replace(ASKED, node_rank=4).check()


@pytest.mark.parametrize(
    ("asked", "option"),
    [
        ({"rdzv": None}, "--nnodes"),
        ({"rdzv": None, "nnodes": 1}, "--min-nodes"),
        ({"min_nodes": 5}, "--min-nodes 5"),
        ({"node_rank": 5}, "--node-rank 5: counted from 0 there are 5, spares among them"),
    ],
)
def test_what_they_cannot_do_is_refused(asked: dict[str, Any], option: str) -> None:
    with pytest.raises(ConfigError, match=option):
        msgspec.structs.replace(ASKED, **asked).check()


def test_what_is_not_said_of_a_shape_is_as_documented() -> None:
    assert NodesAsked(rdzv="h:1", nnodes=4).shape(2) == Shape(nodes=4, least_nodes=4, ranks=2)
    said = ASKED.shape(2)
    assert (said.least_nodes, said.spares, said.restarts, said.grow) == (2, 1, 3, "worth")


def test_a_job_without_a_name_has_one_that_all_nodes_know() -> None:
    nameless = msgspec.structs.replace(HERE, job=None)
    names = {msgspec.structs.replace(ASKED, rdzv=rdzv).job(nameless) for rdzv in ("node-0:29401", "10.0.0.1:29401")}
    assert names == {"launch-29401"}
    assert ASKED.job(HERE) == "j"
    assert ASKED.job(msgspec.structs.replace(nameless, config=Path("site.toml"))) is None


def test_one_machine_needs_nothing_of_several() -> None:
    NodesAsked().check()


def test_an_engine_without_a_bus_that_all_nodes_reach_is_refused_and_with_one_told_where_the_leader_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["launch", "--nproc", "1", "--job", "j", "--rdzv", "127.0.0.1:1", "--mode", "auto", "--", "true"]
    monkeypatch.setattr(sys, "argv", ["trainwarden", *words])
    with pytest.raises(SystemExit, match="2"):
        run()
    [said] = capsys.readouterr().err.splitlines()
    assert "--mode auto: its engine needs a bus that all nodes reach" in said
    assert "--config on each node, and have trainwarden detector --config FILE run somewhere" in said
    words[words.index("--mode") : words.index("--")] = ["--keep", "kept"]
    monkeypatch.setattr(sys, "argv", ["trainwarden", *words])
    with pytest.raises(SystemExit, match="2"):
        run()
    assert "--keep: what all nodes say is on a bus that all reach" in capsys.readouterr().err
    asked = msgspec.structs.replace(ASKED, token_file=Path("/etc/a 'token' \"of\" ours"))
    mine = EngineSettings(launcher="cluster", launcher_settings={"rdzv": "old:1", "timeout_s": 9.0})
    told = load(environ=asked.engine(Settings(engine=mine, launch=LaunchSettings(tls_ca="ca.pem")), "confirm")).engine
    assert (told.mode, told.launcher) == ("confirm", "cluster")
    assert told.launcher_settings == {
        "rdzv": "10.0.0.1:29401", "timeout_s": 9.0, "token_file": "/etc/a 'token' \"of\" ours", "tls_ca": "ca.pem",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--min-nodes", "1"),
        ("--join-wait", "5"),
        ("--spares", "0"),
        ("--max-restarts", "3"),
        ("--grow", "now"),
        ("--node-rank", "0"),
        ("--token-file", "token"),
    ],
)
def test_what_is_of_several_nodes_is_refused_on_one_and_not_passed_over(
    option: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["trainwarden", "launch", "--nproc", "1", option, value, "--", "true"])
    with pytest.raises(SystemExit, match="2"):
        run()
    assert capsys.readouterr().err.splitlines() == [
        f"trainwarden: {option}: that is of a job on several nodes; name --rdzv HOST:PORT or leave it out"
    ]
