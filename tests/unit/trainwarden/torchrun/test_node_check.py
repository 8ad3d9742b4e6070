"""A node's part in a validation: its ranks are asked by their file, and let go whatever the service says."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from trainwarden import rundir
from trainwarden.torchrun import node_check
from trainwarden.torchrun.node_check import NodeCheck
from trainwarden.torchrun.standing import Progress


class Child:
    made: list[Child]
    result_is: bytes | str = b"{}"

    def __init__(self, run_dir: Path, node: str, words: list[str], environ: dict[str, str]) -> None:
        self.words, self.environ = words, environ
        self.ready = self.ended = self.begun = self.killed = False
        self.made.append(self)

    def begin(self) -> None:
        self.begun = True

    def kill(self) -> None:
        self.killed = True

    def result(self) -> bytes | str:
        return self.result_is


class Header:
    pid, rank, stands = 10, 3, 0


class Node:
    def __init__(self, run_dir: Path) -> None:
        self.header, self.beat = Header(), dict[str, Any]()
        self.heard_s = 0.0
        environ = {"PATH": "/bin", "TRAINWARDEN_HOOK_DIR": "/x", "PET_NNODES": "2"}
        self.check = NodeCheck(
            run_dir, "a", environ, running=lambda: [10], update=self.told, heard_s=self.heard
        )  # fmt: skip
        self.pause = run_dir / rundir.PAUSE

    def heard(self) -> float:
        return time.monotonic() - self.heard_s

    def told(self, **fields: Any) -> None:
        self.beat.update(fields)

    def hears(self, **fields: Any) -> None:
        """Of the service, one word."""
        word = {"number": 5, "place": 1, "nodes": 2, "checks": ["gemm"], "host": "n0", **fields}
        self.check.want(word if fields.get("number", 5) else None)
        self.check.look()

    @property
    def said(self) -> dict[str, Any] | None:
        return self.beat.get("check")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    Child.made, Child.result_is = [], b"{}"
    made = Node(tmp_path)
    monkeypatch.setattr(node_check, "ValidationChild", Child)
    monkeypatch.setattr(node_check, "files_in", lambda folder: [(tmp_path / "rank-3-10.hook", made.header)])
    monkeypatch.setattr(node_check, "progress_of", lambda files: Progress(4, 4, 0.5, 1))
    return made


def measures(node: Node) -> Child:
    node.hears(port=7)
    (child,) = Child.made
    child.ready = True
    node.hears(port=7, for_s=390.0, step=40)
    node.header.stands = 5
    node.hears(port=7, for_s=390.0, step=40, measures=True)
    return child


def test_a_node_starts_stands_still_measures_and_goes_on(node: Node) -> None:
    node.hears()
    assert (Child.made, node.beat["holds"], node.said) == ([], True, {"number": 5})
    node.hears(port=7)
    (child,) = Child.made
    assert child.words == [
        "--nproc", "1", "--nnodes", "2", "--node-rank", "1", "--master-addr", "n0", "--port", "7", "--checks", "gemm",
    ]  # fmt: skip
    assert child.environ == {"PATH": "/bin"}
    assert (node.said or {})["progress"] == [4, 4, 0.5, 1]
    child.ready = True
    node.hears(port=7)
    assert ((node.said or {})["ready"], node.pause.exists()) == (True, False)
    node.hears(port=7, for_s=390.0, step=40)
    asked = json.loads(node.pause.read_text())
    assert (asked["number"], asked["step"], round(asked["until_s"] - time.time(), -1)) == (5, 40, 390)
    assert "stands" not in (node.said or {})
    node.header.stands = 5
    node.hears(port=7, for_s=390.0, step=40)
    assert ((node.said or {})["stands"], child.begun) == ([3], False)
    node.hears(port=7, for_s=390.0, step=40, measures=True)
    assert child.begun
    child.ended = True
    node.hears(port=7, for_s=390.0, step=40, measures=True)
    assert "result" not in (node.said or {})  # the first node's is the job's
    node.hears(number=0)
    assert (node.pause.exists(), child.killed, node.said) == (False, True, None)


def test_the_first_node_chooses_the_port_and_says_what_was_found(node: Node) -> None:
    node.hears(place=0)
    port = (node.said or {})["port"]
    assert 0 < port < 65_536
    node.hears(place=0, port=port)
    Child.made[0].ended = True
    node.hears(place=0, port=port)
    assert (node.said or {})["result"] == "{}"


@pytest.mark.parametrize("result", ["it ended with code 1", b"x" * 400_001], ids=["none", "too long"])
def test_a_result_that_cannot_be_told_is_an_error(node: Node, result: bytes | str) -> None:
    Child.result_is = result
    node.hears(place=0, port=7)
    Child.made[0].ended = True
    node.hears(place=0, port=7)
    assert (node.said or {})["error"] in ("it ended with code 1", "the result has 400001 bytes")


def test_without_a_word_of_the_service_all_goes_on_and_its_old_word_begins_nothing_anew(node: Node) -> None:
    child = measures(node)
    assert node.pause.exists()
    node.heard_s = 5.5
    node.check.look()
    assert (node.pause.exists(), child.killed, node.said) == (False, True, None)
    node.heard_s = 0.0
    node.check.look()
    assert (node.pause.exists(), len(Child.made), node.said) == (False, 1, None)
    node.hears(number=6, port=7)
    assert len(Child.made) == 2


def test_another_validation_ends_the_one_before(node: Node) -> None:
    child = measures(node)
    node.hears(number=6)
    assert (node.pause.exists(), child.killed, node.said) == (False, True, {"number": 6})


def test_a_word_that_is_not_understood_breaks_nothing_and_is_told(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    child = measures(node)

    def once(*_: object) -> None:
        node.check._over = True

    monkeypatch.setattr(node.check._wake, "wait", once)
    node.check.want({"number": 5})
    node.check._run()
    assert (node.pause.exists(), child.killed) == (False, True)
    assert (node.said or {})["number"] == 5
    assert "its agent broke" in (node.said or {})["error"]


def test_what_a_killed_torchrun_has_asked_holds_no_rank_of_the_next_one(node: Node) -> None:
    node.pause.write_text("{}")
    node.check.start()
    node.check.close()
    assert not node.pause.exists()


def test_ranks_that_cannot_be_held_are_told(node: Node) -> None:
    node.header.stands = None  # type: ignore[assignment]
    node.check.look()
    assert node.beat == {}
    node.header.stands = 0
    node.check.look()
    assert node.beat["holds"] is True
