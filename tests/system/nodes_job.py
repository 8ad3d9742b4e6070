"""A job of `trainwarden launch` on several nodes of a testbed, looked at by what its ranks write down.

All nodes are of one machine, so their clocks are one, and what the ranks do can be put in order.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from tests.places import ROOT
from tests.system.runs import SCRIPTS, WARDEN
from tests.testbed.nodes import Node, Testbed

PORT: Final = 29_401
WAIT_S: Final = 180.0
RANK: Final = r"^[^ ]+ [^ ]+/tests/scripts/"  # the command line of a rank, not of its launcher


class Line(msgspec.Struct, array_like=True):
    """A step of one rank, as `tests/scripts/ring.py` writes it."""

    at_s: float
    attempt: int
    rank: int
    ranks: int
    step: int
    node: str


class Job:
    """`nodes` launchers of one job; the rendezvous is on the last node of the testbed."""

    def __init__(
        self, testbed: Testbed, folder: Path, nodes: int, *words: str, steps: int = 250, script: str = "ring.py"
    ) -> None:
        self.testbed, self.folder, self.nodes = testbed, folder, testbed.nodes[:nodes]
        self.log, self.checkpoints = folder / "log", folder / "checkpoints"
        self.checkpoints.mkdir()
        self.token = folder / "token"
        self.token.write_text("a-word-nobody-guesses")
        self.token.chmod(0o600)
        self.words, self.steps, self.script = words, steps, script
        self.processes: dict[str, subprocess.Popen[Any]] = {}
        for node in self.nodes:
            self.start(node)

    def start(self, node: Node) -> None:
        environ = {**os.environ, "TRAINWARDEN_NODE": node.name, "TRAINWARDEN_RUN_DIR": str(self.folder / node.name)}
        command = [
            *WARDEN, "launch", "--job", "j", "--nproc", "1", "--rdzv", f"{self.home}:{PORT}",
            "--token-file", str(self.token), "--checkpoints", str(self.checkpoints),
            *(word.format(rank=self.nodes[::-1].index(node)) for word in self.words),
            "--", sys.executable, str(SCRIPTS / self.script), str(self.steps), str(self.log),
        ]  # fmt: skip
        with (self.folder / f"{node.name}.out").open("ab") as out:
            self.processes[node.name] = node.start(*command, cwd=ROOT, env=environ, stdout=out, stderr=out)

    @property
    def home(self) -> str:
        """Where the rendezvous is: the last node of the testbed, which may take part."""
        return self.testbed.nodes[-1].address

    def lines(self) -> list[Line]:
        """What all ranks have done, in the order of time."""
        if not self.log.exists():
            return []
        words = [line.split() for line in self.log.read_text().splitlines()]
        return sorted((msgspec.convert(one, Line, strict=False) for one in words), key=lambda one: one.at_s)

    def wait(self, what: str, found: Callable[[list[Line]], Any], within_s: float = WAIT_S) -> Any:
        """What `found` makes of the lines, as soon as that is something."""
        until_s = time.monotonic() + within_s
        while not (result := found(self.lines())):
            assert time.monotonic() < until_s, f"not seen: {what}\n{self.said()}"
            time.sleep(0.1)
        return result

    def trains(self, attempt: int = 0, steps: int = 15) -> None:
        self.wait("steps", lambda lines: any(one.attempt >= attempt and one.step >= steps for one in lines))

    def first_step_after(self, fault_s: float) -> Line:
        """The first step of an attempt that had made none before the fault."""
        attempt = 1 + max(one.attempt for one in self.lines() if one.at_s <= fault_s)
        found = self.wait("a new step", lambda lines: [o for o in lines if o.at_s > fault_s and o.attempt >= attempt])
        first: Line = found[0]
        print(f"first new step {first.at_s - fault_s:.1f} s after the fault")
        return first

    def said(self) -> str:
        return "\n".join(f"--- {one.name}\n{one.read_text()[-4000:]}" for one in sorted(self.folder.glob("*.out")))

    def first(self) -> Node:
        """The node of rank 0."""
        name = [one.node for one in self.lines() if one.rank == 0][-1]
        return next(node for node in self.nodes if node.name == name)

    def end(self, *but: Node) -> dict[str, int]:
        """Exit codes of all launchers, once they have ended by themselves."""
        codes = {}
        for node in self.nodes:
            if node not in but:
                try:
                    codes[node.name] = self.processes[node.name].wait(WAIT_S)
                except subprocess.TimeoutExpired:
                    pytest.fail(f"{node.name} does not end\n{self.said()}")
        return codes

    def check(self) -> None:
        """One attempt after the other, each on from a checkpoint that is no further than what was done."""
        lines = [one for one in self.lines() if one.rank == 0]
        assert [one.attempt for one in lines] == sorted(one.attempt for one in lines), "two attempts at once"
        done = 0
        for _, some in groupby(lines, key=lambda one: one.attempt):
            steps = [one.step for one in some]
            assert steps == list(range(steps[0], steps[0] + len(steps)))
            # A checkpoint every ten steps, one of which may be half written; agents look for them every two seconds.
            assert done - 80 <= steps[0] <= done
            done = steps[-1] + 1
        assert done == self.steps


def now_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def rendezvous_command(folder: Path) -> list[str]:
    return [*WARDEN, "rendezvous", "--listen", f"0.0.0.0:{PORT}", "--token-file", str(folder / "token")]


def ranks_on(node: Node) -> str:
    """The command lines of ranks that run on `node`."""
    return "\n".join(one for one in node.run("ps", "-eo", "args").splitlines() if re.match(RANK, one))
