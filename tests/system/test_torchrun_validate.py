"""A job of two torchruns is measured in its middle: all ranks stand still after one step, whatever becomes of whom."""

from __future__ import annotations

import re
import textwrap
import time
from pathlib import Path

import pytest

from tests.system.test_validate_in_job import UNCHANGED, weight_after
from tests.system.torchrun_nodes import TorchrunNodes, until
from tests.torch_forks import TorchForks
from trainwarden import rundir
from trainwarden.errors import LauncherError
from trainwarden.hook import Header, headers_in
from trainwarden.launching import Operation, Plan

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


def headers(nodes: TorchrunNodes) -> list[Header]:
    return [one for node in "ab" for one in headers_in(nodes.run_dir(node) / rundir.HOOK)]


def validate(nodes: TorchrunNodes) -> str:
    until(pausable(nodes), "the ranks cannot be held")
    operation = Operation(
        id=f"v-{time.monotonic_ns()}", job="job", kind="validate", expected_generation=nodes.state().generation,
        plan=Plan(checks=("gemm", "links")),
    )  # fmt: skip
    report = nodes.launcher.submit(operation)
    assert report.state != "refused", report
    until(lambda: len({one.stands for one in headers(nodes)} - {0}) == 1, "no rank stands still")
    until(lambda: 0 not in [one.stands for one in headers(nodes)], "not all ranks stand still")
    assert len({one.step for one in headers(nodes)}) == 1
    return operation.id


def pausable(nodes: TorchrunNodes) -> object:
    def is_so() -> bool:
        try:
            return nodes.state().pausable and nodes.state().phase == "running"
        except LauncherError:
            return False

    return is_so


def go_on(nodes: TorchrunNodes) -> None:
    stood = max(one.step for one in headers(nodes))
    until(lambda: min(one.step for one in headers(nodes)) > stood + 5, "the ranks do not go on")
    assert not [node for node in "ab" if (nodes.run_dir(node) / rundir.PAUSE).exists()]


def test_two_nodes_stand_still_are_measured_and_go_on_also_without_the_service(
    tmp_path: Path, torch_forks: TorchForks
) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(UNCHANGED))
    nodes = TorchrunNodes(
        tmp_path, "--redirects", "3", "--log-dir", str(tmp_path / "said"), str(script), forks=torch_forks
    )
    try:
        nodes.start("a", "b", PET_NPROC_PER_NODE="2")
        operation = validate(nodes)
        until(lambda: nodes.launcher.poll("job", operation).ended, "it has no end")
        report = nodes.launcher.poll("job", operation)
        assert (report.state, report.text) == ("done", "")
        assert report.findings is not None
        assert (report.findings.nodes, report.findings.accused) == (("a", "b"), ())
        assert {one.rank for one in report.findings.rates.devices} == {0, 1, 2, 3}
        go_on(nodes)
        validate(nodes)
        nodes.service.kill()
        nodes.service.wait()
        go_on(nodes)
        nodes.serve()
        until(pausable(nodes), "the empty service learns nothing")
        assert nodes.state().attempt == 0
        assert nodes.state().under_way == ()
        logs = list((tmp_path / "said").rglob("stdout.log"))
        assert len(logs) == 4
        for path in logs:
            said = re.findall(r"^step (\d+) weight (\S+)$", path.read_text(), re.M)
            assert [int(step) for step, _ in said] == list(range(max(10, len(said))))
            assert [float(weight) for _, weight in said] == [weight_after(int(step)) for step, _ in said]
    finally:
        nodes.close()
