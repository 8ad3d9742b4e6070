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

HERE = Here(nproc=2, preload=(), checkpoints=None, job="j", keep=None, config=None)
ASKED = NodesAsked(
    rdzv="10.0.0.1:29401", nnodes=4, min_nodes=2, join_wait_s=30.0, spares=1, max_restarts=3, token_file=None
)


def test_what_several_nodes_can_do_is_taken() -> None:
    ASKED.check(HERE, mode="observe", validate=False)
    ASKED.check(msgspec.structs.replace(HERE, job=None, config=Path("site.toml")), mode="observe", validate=False)


@pytest.mark.parametrize(
    ("asked", "here", "how", "option"),
    [
        ({"rdzv": None}, {}, {}, "--nnodes"),
        ({"rdzv": None, "nnodes": 1}, {}, {}, "--min-nodes"),
        ({"min_nodes": 5}, {}, {}, "--min-nodes 5"),
        ({}, {"job": None}, {}, "--job"),
        ({}, {"keep": Path("kept")}, {}, "--keep"),
        ({}, {}, {"mode": "auto"}, "--mode auto: .* trainwarden engine --config FILE"),
        ({}, {}, {"validate": True}, "--validate"),
    ],
)
def test_what_they_cannot_do_is_refused(asked: dict[str, Any], here: dict[str, Any], how: Any, option: str) -> None:
    wrong = msgspec.structs.replace(ASKED, **asked)
    with pytest.raises(ConfigError, match=option):
        wrong.check(msgspec.structs.replace(HERE, **here), **{"mode": "observe", "validate": False, **how})


def test_what_is_not_said_of_a_shape_is_as_documented() -> None:
    assert NodesAsked(rdzv="h:1", nnodes=4).shape(2) == Shape(nodes=4, least_nodes=4, ranks=2)
    said = ASKED.shape(2)
    assert (said.least_nodes, said.spares, said.restarts, said.grow) == (2, 1, 3, "worth")


def test_one_machine_needs_nothing_of_several() -> None:
    NodesAsked().check(HERE, mode="auto", validate=True)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--min-nodes", "1"),
        ("--join-wait", "5"),
        ("--spares", "0"),
        ("--max-restarts", "3"),
        ("--grow", "now"),
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
