"""What several nodes cannot do is refused in a sentence that names the option, before anything begins."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trainwarden.cli.main import run
from trainwarden.cli.run.launch_node import Here, NodesAsked
from trainwarden.errors import ConfigError
from trainwarden.settings import EngineSettings, LaunchSettings, Settings, load

HERE = Here(nproc=2, checkpoints=None, job="j", keep=None, config=None)
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


def test_what_is_said_is_torchruns_own_options() -> None:
    [nodes, ranks, *where, conf] = ASKED.torchrun("j", 2, LaunchSettings(tls_ca="ca.pem"))
    assert (nodes, ranks) == ("--nnodes=2:4", "--nproc-per-node=2")
    assert where == ["--rdzv-backend=trainwarden", "--rdzv-endpoint=10.0.0.1:29401", "--rdzv-id=j"]
    assert conf == "--rdzv-conf=last_call_timeout=30.0,spares=1,max_failures=4,tls_ca=ca.pem"
    [nodes, *_, conf] = NodesAsked(rdzv="h:1", nnodes=4).torchrun("j", 2, LaunchSettings())
    assert (nodes, conf) == ("--nnodes=4:4", "--rdzv-conf=last_call_timeout=30.0,spares=0,max_failures=4")
    [*_, conf] = NodesAsked(rdzv="h:1", max_restarts=0, renews=False).torchrun("j", 2, LaunchSettings())
    assert conf == "--rdzv-conf=last_call_timeout=30.0,spares=0,max_failures=1,renew=no"


def test_a_job_with_a_weight_is_a_task_whose_nodes_wait_for_the_coordinator() -> None:
    """However many wait: each of the cluster's nodes may run it."""
    [nodes, *_, conf] = NodesAsked(rdzv="h:1", nnodes=4, min_nodes=2, weight=1.5).torchrun("j", 2, LaunchSettings())
    assert nodes == "--nnodes=2:4"
    assert conf == "--rdzv-conf=last_call_timeout=30.0,max_failures=4,weight=1.5,held=yes"
    with pytest.raises(ConfigError, match="--weight: that is of a job on several nodes"):
        NodesAsked(weight=1.5).check()


def test_a_path_that_torchrun_would_cut_is_refused() -> None:
    with pytest.raises(ConfigError, match="takes no path with a comma"):
        msgspec.structs.replace(ASKED, token_file=Path("/a,b")).torchrun("j", 2, LaunchSettings())


def test_a_job_without_a_name_has_one_that_all_nodes_know() -> None:
    nameless = msgspec.structs.replace(HERE, job=None)
    names = {msgspec.structs.replace(ASKED, rdzv=rdzv).job(nameless) for rdzv in ("node-0:29401", "10.0.0.1:29401")}
    assert names == {"launch-29401"}
    assert ASKED.job(HERE) == "j"
    assert ASKED.job(msgspec.structs.replace(nameless, config=Path("site.toml"))) is None


def test_one_machine_needs_nothing_of_several() -> None:
    NodesAsked().check()


def test_an_engine_without_a_bus_that_all_nodes_reach_is_refused_and_with_one_told_where_the_rendezvous_is(
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
    mine = EngineSettings(launcher="torchrun", launcher_settings={"endpoint": "old:1", "timeout_s": 9.0})
    told = load(environ=asked.engine(Settings(engine=mine, launch=LaunchSettings(tls_ca="ca.pem")), "confirm")).engine
    assert (told.mode, told.launcher) == ("confirm", "torchrun")
    assert told.launcher_settings == {
        "endpoint": "10.0.0.1:29401", "timeout_s": 9.0, "token_file": "/etc/a 'token' \"of\" ours", "tls_ca": "ca.pem",
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rdzv", "10.0.0.1:1"), "--token-file: 10.0.0.1 is reached by others, so the nodes have to share a token"),
        (("--rdzv", "127.0.0.1:1", "--grow", "now"), "--grow now: a job grows at a checkpoint; name the folder"),
    ],
)
def test_what_torchrun_cannot_do_is_refused_before_anything_begins(
    words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TRAINWARDEN_CHECKPOINTS", raising=False)
    monkeypatch.setattr(sys, "argv", ["trainwarden", "launch", "--nproc", "1", *words, "--", "true"])
    with pytest.raises(SystemExit, match="2"):
        run()
    assert said in capsys.readouterr().err
