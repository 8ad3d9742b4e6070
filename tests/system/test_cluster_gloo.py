"""The bars of a job on several nodes, with torch on gloo: from the fault to the first new step.

Torch's import is taken out and told: it is three seconds of a processor in every rank, four of which share two here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NoReturn

import pytest

from tests.servers.kafka import ServerMissing
from tests.system.cluster_job import RANK, Job, now_s
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
    job = Job(testbed, tmp_path, 5, "--nnodes", "4", "--spares", "1", steps=2000, script="gloo_steps.py")
    job.trains()
    trained = {one.node for one in job.lines()}
    hurt = next(node for node in job.nodes if node.name in trained and node not in (job.leader(), testbed.nodes[-1]))
    fault_s = now_s()
    hurt.run("pkill", "-KILL", "-f", RANK)
    crash_s = without_import(job, fault_s)
    job.trains(attempt=1)
    fault_s = now_s()
    hurt.kill()
    lost_s = without_import(job, fault_s)
    assert crash_s < CRASH_S
    assert lost_s < LOST_S


def without_import(job: Job, fault_s: float) -> float:
    """Seconds from the fault to the first new step, less those in which any of its ranks imported torch."""
    first = job.first_step_after(fault_s)
    lines = [line.split() for line in job.log.with_name("imports").read_text().splitlines()]
    spans = [(float(began_s), float(ended_s)) for attempt, began_s, ended_s in lines if int(attempt) == first.attempt]
    imported_s = max(ended_s for _, ended_s in spans) - min(began_s for began_s, _ in spans)
    print(f"of which {imported_s:.1f} s import torch")
    return first.at_s - fault_s - imported_s
