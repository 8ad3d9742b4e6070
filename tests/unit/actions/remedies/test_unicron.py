"""Unicron's table 1: the severity of each error status, of what tells of it here, and of its first remedy."""

from __future__ import annotations

import pytest

from trainwarden.actions.remedies.table import SEVERITY_OF, load
from trainwarden.detectors.logs.rules import LogRules
from trainwarden.records import Severity

RULES, REMEDIES = LogRules(), load(None)

LINES: list[tuple[str, str, Severity]] = [
    ("illegal memory access", "RuntimeError: CUDA error: an illegal memory access was encountered", "sev2"),
    ("ECC errors", "RuntimeError: CUDA error: uncorrectable ECC error encountered", "sev1"),
    ("invalid DMA mapping", "NVRM: GPU at PCI:0000:17:00: Failed to create a DMA mapping!", "sev1"),
    ("CUDA errors", "RuntimeError: CUDA error: device-side assert triggered", "sev2"),
    ("NVLink errors", "RuntimeError: CUDA error: invalid access of peer GPU memory over nvlink", "sev1"),
    ("GPU driver errors", "NVRM: GPU 0000:17:00.0: GPU has fallen off the bus.", "sev1"),
    ("other network errors", "NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 3 timed out", "sev3"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "severity"), [row[1:] for row in LINES], ids=[row[0] for row in LINES])
def test_a_line_has_the_severity_of_its_row_and_its_first_remedy_is_for_that(line: str, severity: Severity) -> None:
    rule = RULES.match(line)
    assert rule is not None
    assert rule.kind is not None
    assert (rule.severity, SEVERITY_OF[REMEDIES.rungs(rule.kind)[0].action]) == (severity, severity)


@pytest.mark.parametrize(
    ("status", "kind", "severities"),
    [
        ("lost connection", "node_lost", ["sev1"]),
        ("exited abnormally", "crash", ["sev2", "sev1", "sev1"]),
        ("other software errors", "exception", ["sev2", "sev1"]),
        ("link flapping", "nic_down", ["sev3", "sev1"]),
        ("task hang", "hang", ["sev2", "sev1", "sev1"]),
    ],
)
def test_remedies_of_a_fact_begin_with_the_severity_of_its_row_and_rise(status, kind, severities) -> None:
    assert [SEVERITY_OF[rung.action] for rung in REMEDIES.rungs(kind)] == severities, status
