"""The bars of a job on several nodes, with torch on gloo: from the fault to the first new step.

Every node has imported torch beforehand, the spare too (``--preload``): four ranks that do so at once share two
processors here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NoReturn

import pytest

from tests.servers.kafka import ServerMissing
from tests.system.cluster_job import Job, now_s
from tests.testbed.nodes import Testbed

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

CRASH_S: Final = 10.0
LOST_S: Final = 20.0


@pytest.fixture
def testbed(tmp_path: Path, require_servers: Callable[[str], NoReturn]) -> Iterator[Testbed]:
    pytest.importorskip("torch")
    try:
        with Testbed(5, tmp_path) as testbed:
            yield testbed
    except ServerMissing as missing:
        require_servers(str(missing))


def test_bars_of_a_crash_and_of_a_lost_node_with_a_spare(testbed: Testbed, tmp_path: Path) -> None:
    shape = ("--nnodes", "4", "--spares", "1", "--preload", "torch")
    job = Job(testbed, tmp_path, 5, *shape, steps=2000, script="gloo_steps.py")
    job.trains()
    trained = {one.node for one in job.lines()}
    hurt = next(node for node in job.nodes if node.name in trained and node not in (job.leader(), testbed.nodes[-1]))
    fault_s = now_s()
    hurt.run("pkill", "-KILL", "-n", "-f", "fork_server.py")  # the newest of two is the rank
    assert job.first_step_after(fault_s).at_s - fault_s < CRASH_S
    job.trains(attempt=1)
    fault_s = now_s()
    hurt.kill()
    assert job.first_step_after(fault_s).at_s - fault_s < LOST_S
    assert "themselves" not in job.said(), "all ranks were forked"
