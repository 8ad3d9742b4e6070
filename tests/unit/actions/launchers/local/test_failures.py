"""Which failures of ranks are pending, with real short processes."""

from __future__ import annotations

import os
import selectors
import sys
import time
from pathlib import Path

from trainwarden import rundir
from trainwarden.actions.launchers.local.node_runner import NodeRunner
from trainwarden.actions.launchers.local.ranks import LocalJob
from trainwarden.clock import SystemClock

ENDS = "import os, sys; sys.exit(3 + int(os.environ['RANK']) if os.environ['TRAINWARDEN_ATTEMPT'] == '0' else 0)"


class Node:
    """Three ranks that end with 3, 4 and 5 at first, and well when they are started again."""

    def __init__(self, run_dir: Path) -> None:
        self.selector = selectors.DefaultSelector()
        place = LocalJob(
            command=(sys.executable, "-S", "-c", ENDS), ranks=3, run_dir=rundir.prepare(run_dir), job="j", node="n"
        )
        self.runner = NodeRunner(place, dict(os.environ), self.selector, SystemClock(), stop_grace_s=1.0)

    def code(self) -> int | None:
        failure = self.runner.failure
        return None if failure is None else failure.code

    def until_all_ended(self) -> None:
        deadline = time.monotonic() + 20.0
        while self.runner.running:
            assert time.monotonic() < deadline
            for key, _ in self.selector.select(0.01):
                key.data()
            self.runner.advance()


def test_a_restart_of_some_forgets_no_failure_of_others(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.runner.start([0], 0)
    node.until_all_ended()
    node.runner.start([1, 2], 0)
    node.until_all_ended()
    assert node.code() == 3  # the first one
    node.runner.start([0, 1], 1)
    node.until_all_ended()
    assert node.code() == 5
    node.runner.start([2], 1)
    node.until_all_ended()
    assert node.code() is None
    node.runner.kill_all()
