"""What an uncaught exception says: its type, all its lines, and the chain that it was raised from."""

from __future__ import annotations

import pytest

from tests.unit.detectors.detection_streams import Run
from trainwarden.detectors.facts.exceptions import exception_rule, interrupts
from trainwarden.detectors.logs.rules import LogRules
from trainwarden.detectors.testing.streams import Job, event
from trainwarden.records import EventRecord

RULES = LogRules()


def exception(message: str, types: str = "", causes: str = "") -> EventRecord:
    return event("exception", 1.0, 0, message=message, types=types, causes=causes)


@pytest.mark.parametrize(
    ("message", "types", "causes", "kind"),
    [
        ("OutOfMemoryError: no room", "torch.OutOfMemoryError RuntimeError", "", "cuda_out_of_memory"),
        ("BatchTooLarge: 7", "train.BatchTooLarge torch.OutOfMemoryError RuntimeError", "", "cuda_out_of_memory"),
        ("ShardMissing: 7", "train.ShardMissing FileNotFoundError OSError", "", "user_error"),
        ("StepFailed: 7", "train.StepFailed", "during torch.OutOfMemoryError: no room", "cuda_out_of_memory"),
        ("StepFailed: 7", "train.StepFailed", "train.Inner: 3\ntorch.AcceleratorError: CUDA error: uncorrectable "
         "ECC error encountered\vCUDA kernel errors might be asynchronously reported", "gpu_memory_error"),
        # What a device did outranks what the program says of what that broke.
        ("RuntimeError: cannot save checkpoint", "", "OSError: [Errno 28] No space left on device", "storage"),
        ("ValueError: odd", "ValueError", "", None),
        # A fallback: the missing module was expected.
        ("ValueError: odd", "ValueError", "during ModuleNotFoundError: No module named 'flash_attn'", None),
        ("ValueError: odd", "ValueError", "ModuleNotFoundError: No module named 'flash_attn'", "user_error"),
        ("ValueError: odd", "ValueError", "\v\n\n", None),
    ],
)  # fmt: skip
def test_types_lines_and_causes_name_the_kind(message: str, types: str, causes: str, kind: str | None) -> None:
    rule = exception_rule(RULES, exception(message, types, causes))
    assert (rule.kind if rule is not None and rule.role == "root" else None) == kind


def test_what_wraps_a_lost_peer_is_a_cascade() -> None:
    lost = "torch.distributed.DistBackendError: Connection closed by peer"
    rule = exception_rule(RULES, exception("StepFailed: 7", "train.StepFailed", lost))
    assert rule is not None
    assert rule.role == "cascade"


def test_an_interrupt_is_one_under_any_name_and_whatever_was_being_handled() -> None:
    assert interrupts(exception("Stopped: please", "train.Stopped KeyboardInterrupt"))
    assert interrupts(exception("KeyboardInterrupt: ", "KeyboardInterrupt", "during torch.OutOfMemoryError: full"))
    assert not interrupts(exception("ValueError: KeyboardInterrupt", "ValueError"))


def test_the_reason_says_what_an_exception_was_raised_from() -> None:
    job = Job().run(30)
    at_s = job.end_s + 0.1
    causes = "torch.OutOfMemoryError: CUDA out of memory.\vSecond line\nKeyError: 1"
    job.add(at_s, event("exception", at_s, 2, message="StepFailed: 7", frame="train.py:12 in step", causes=causes))
    (incident,) = Run().play(job.records, at_s + 1.0).incidents
    assert incident.reason.endswith(
        "raised StepFailed: 7 at train.py:12 in step, from torch.OutOfMemoryError: CUDA out of memory."
    )


def test_a_rank_out_of_memory_is_told_so_and_one_that_wraps_its_end_is_no_root() -> None:
    job = Job().run(30)
    at_s = job.end_s + 0.1
    wrapped = "torch.distributed.DistBackendError: Connection closed by peer"
    job.add(at_s, event("exception", at_s - 0.02, 0, message="StepFailed: 7", types="train.StepFailed", causes=wrapped))
    job.add(at_s, event("exception", at_s, 2, message="OutOfMemoryError: no room", types="torch.OutOfMemoryError"))
    (incident,) = Run().play(job.records, at_s + 2.0).incidents
    assert (incident.kind, incident.suspects[0].rank) == ("cuda_out_of_memory", 2)
