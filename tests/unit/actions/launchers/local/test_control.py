"""The socket's words survive the wire, and nonsense does not."""

from __future__ import annotations

import msgspec
import pytest

from trainwarden.actions.launchers.local.control import AskState, Poll, Reply, Request, Submit
from trainwarden.launching import LauncherState, NodeState, Operation, Plan, Report, Targets

RESTART = Operation(id="op", job="j", kind="restart", expected_generation=3, targets=Targets(ranks=(1, 2)), why="why")
SPLIT = Operation(id="op", job="j", kind="rebalance", expected_generation=3, plan=Plan(micro_batches=(1, 2)))
DRAIN = Operation(id="op", job="j", kind="evict", expected_generation=0, targets=Targets(nodes=("n1",)), by="someone")
STATE = LauncherState(
    job="j", phase="running", generation=4, attempt=1, nodes=(NodeState(node="n1", ranks=(0, 1)),),
    ranks_running=(0, 1), under_way=("op",), step=7, micro_batches=(3, 5),
)  # fmt: skip


@pytest.mark.parametrize("request_", [AskState("j"), Submit(RESTART), Submit(SPLIT), Submit(DRAIN), Poll("j", "op")])
def test_requests_survive_the_wire(request_: Request) -> None:
    assert msgspec.json.decode(msgspec.json.encode(request_), type=Request) == request_


@pytest.mark.parametrize(
    "reply",
    [
        Reply(state=STATE),
        Reply(report=Report(operation="op", state="refused", reason="stale", text="too late")),
        Reply(error="not a request"),
    ],
)
def test_replies_survive_the_wire(reply: Reply) -> None:
    assert msgspec.json.decode(msgspec.json.encode(reply), type=Reply) == reply


@pytest.mark.parametrize(
    "field",
    [
        {"id": ""},
        {"kind": "teleport"},
        {"expected_generation": -1},
        {"targets": {"ranks": [-1]}},
        {"plan": {"micro_batches": [0, 8]}},
        {"why": "x" * 2001},
    ],
)
def test_an_impossible_operation_is_no_request(field: dict[str, object]) -> None:
    whole = {"do": "submit", "operation": {**msgspec.to_builtins(RESTART), **field}}
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(whole), type=Request)
