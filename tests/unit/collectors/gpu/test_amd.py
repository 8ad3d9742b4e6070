"""GPUs of AMD are seen, and said not to be read."""

from __future__ import annotations

from pathlib import Path

import pynvml
import pytest

from tests.doubles import ManualClock
from tests.unit.collectors.gpu.node import Node
from trainwarden.collectors.gpu.collector import GpuCollector
from trainwarden.protocols import Scope

NO_DRIVER = "there is no NVIDIA driver here (libnvidia-ml.so.1 is not installed)"


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """As of a machine with two GPUs, bound to their driver."""
    driver = tmp_path / "sys" / "bus" / "pci" / "drivers" / "amdgpu"
    driver.mkdir(parents=True)
    for name in ("0000:05:00.0", "0000:c5:00.0", "bind", "module", "new_id", "unbind", "uevent"):
        (driver / name).touch()
    return tmp_path / "sys"


def reason(sysfs: Path) -> str | None:
    collector = GpuCollector(
        GpuCollector.Config(sysfs=str(sysfs)), Scope(job="job", node="n0", run_dir="nowhere"), ManualClock()
    )
    said = collector.supported()
    collector.close()
    return said


def test_they_are_counted_and_said_not_to_be_read(sysfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", missing)
    assert reason(sysfs) == f"{NO_DRIVER}; the AMD GPUs that are here (2) are not read"
    assert reason(sysfs / "nowhere") == NO_DRIVER


def test_an_nvidia_driver_without_gpus_says_so_too(node: Node, sysfs: Path) -> None:
    node.nvml.set_count(0)
    assert reason(sysfs) == "the NVIDIA driver finds no GPU; the AMD GPUs that are here (2) are not read"
    node.nvml.set_count(2)
    assert reason(sysfs) is None, "an AMD chip beside NVIDIA's GPUs is nobody's concern"
