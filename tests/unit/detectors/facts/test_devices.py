"""A restart takes nothing back that an agent tells once: the link is down, the GPU is lost until it says otherwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.detectors.detection_streams import Job, Run, event
from trainwarden.records import IncidentRecord

BROKEN = {"link_down": ("nic_down", "link_up"), "device_lost": ("gpu_lost", "device_back")}


def restarted(kind: str, node: Callable[[int], str], *later: tuple[str, float]) -> IncidentRecord:
    """The newest word about a device of node0 that fails by `kind`; all ranks run on `node` after a restart.

    Each of `later` is an event of the device with its seconds after the restart.
    """
    job = Job().run(20)
    at_s = job.end_s
    job.add(at_s, event(kind, at_s, device="d0"))
    for place, stage in enumerate(("started", "begun", "done")):
        job.add(at_s + 1.0 + place, event("restart", at_s + 1.0 + place, operation="a", stage=stage))
    job.life, job.node = 1, node
    job.run(80, first=20, start_s=at_s + 4.0)
    for name, after_s in later:
        job.add(at_s + 3.0 + after_s, event(name, at_s + 3.0 + after_s, device="d0"))
    job.records.sort(key=lambda entry: entry[0])
    found = [one for one in Run().play(job.records, job.end_s).incidents if one.kind == BROKEN[kind][0]]
    assert len(found) == 1
    return found[0]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_broken_still_is_an_incident_after_a_restart_in_place(kind: str) -> None:
    assert restarted(kind, lambda rank: "node0").state != "closed"


@pytest.mark.thorough
@pytest.mark.parametrize("kind", BROKEN)
def test_it_ends_once_its_agent_says_so(kind: str) -> None:
    assert restarted(kind, lambda rank: "node0", (BROKEN[kind][1], 8.0)).state == "closed"


@pytest.mark.thorough
@pytest.mark.parametrize("kind", BROKEN)
def test_it_ends_once_the_job_runs_without_its_node(kind: str) -> None:
    assert restarted(kind, lambda rank: "node1").state == "closed"
