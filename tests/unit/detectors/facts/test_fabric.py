"""A GPU in trouble with its NVLink fabric is an NVLink error until it says that it is well again."""

from __future__ import annotations

from tests.unit.detectors.detection_streams import Job, Run, event


def of_the_fabric(job: Job, kind: str, at_s: float) -> None:
    message = "NVLink fabric of GPU GPU-1: its bandwidth is degraded"
    job.add(at_s, event(kind, at_s, device="GPU-1", message=message))


def test_it_is_an_incident_with_the_gpu_as_suspect_and_ends() -> None:
    job = Job().run(10)
    of_the_fabric(job, "fabric_down", job.end_s)
    from_s = job.end_s
    job.run(40)
    of_the_fabric(job, "fabric_up", from_s + 3.0)
    incidents = Run().play(job.records, job.end_s).incidents
    assert {(one.kind, one.severity, one.suspects[0].device) for one in incidents} == {
        ("nvlink_error", "sev1", "GPU-1")
    }
    assert "its bandwidth is degraded" in incidents[0].reason
    assert incidents[-1].closed_at_s is not None


def test_that_it_is_well_again_takes_no_xid_back() -> None:
    job = Job().run(10)
    at_s = job.end_s
    job.add(at_s, event("xid", at_s, device="GPU-1", xid=74))
    job.run(40)
    of_the_fabric(job, "fabric_up", at_s + 3.0)
    incidents = Run().play(job.records, job.end_s).incidents
    assert incidents[-1].kind == "nvlink_error"
    assert incidents[-1].closed_at_s is None
