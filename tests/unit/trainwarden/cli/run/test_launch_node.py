"""What several nodes cannot do is refused in a sentence that names the option, before anything begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from trainwarden.cli.run.launch_node import Here, NodesAsked
from trainwarden.errors import ConfigError

HERE = Here(nproc=2, checkpoints=None, job="j", keep=None, config=None)
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
        ({"min_nodes": 5}, {}, {}, "--min-nodes 5"),
        ({}, {"job": None}, {}, "--job"),
        ({}, {"keep": Path("kept")}, {}, "--keep"),
        ({}, {}, {"mode": "auto"}, "--mode auto"),
        ({}, {}, {"validate": True}, "--validate"),
    ],
)
def test_what_they_cannot_do_is_refused(asked: dict[str, Any], here: dict[str, Any], how: Any, option: str) -> None:
    wrong = msgspec.structs.replace(ASKED, **asked)
    with pytest.raises(ConfigError, match=option):
        wrong.check(msgspec.structs.replace(HERE, **here), **{"mode": "observe", "validate": False, **how})
