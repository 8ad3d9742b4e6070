"""A node whose GPUs are those of the fake driver, and the collector over it, in this process."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pynvml
import pytest

from tests.doubles import ManualClock
from tests.servers.fake_nvml import FakeNvml
from trainwarden.collectors.gpu.collector import GpuCollector
from trainwarden.protocols import Scope
from trainwarden.records import EventRecord, MetricsRecord


class Node:
    """GPUs, a collector, and everything that it has said."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, *, gpus: int = 2, old_driver: bool = False) -> None:
        self.nvml = FakeNvml(folder, gpus, old_driver=old_driver)
        for name, value in self.nvml.environ().items():
            patch.setenv(name, value)
        self.library = ctypes.CDLL(str(self.nvml.library))
        patch.setattr(pynvml, "nvmlLib", self.library)
        patch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        self.run_dir = folder / "run"
        self.clock = ManualClock()
        self.collector = self.collector_again()
        self.events: list[EventRecord] = []

    def collector_again(self, **options: object) -> GpuCollector:
        """The agent starts anew."""
        config = GpuCollector.Config(**{"slow_every": 1, **options})  # type: ignore[arg-type]
        self.collector = GpuCollector(config, Scope(job="job", node="n0", run_dir=str(self.run_dir)), self.clock)
        return self.collector

    def tick(self, times: int = 1, *, seconds: float = 1.0) -> dict[str, dict[str, float]]:
        """Values by device and metric of the last of so many ticks."""
        values: dict[str, dict[str, float]] = {}
        for _ in range(times):
            values = {}
            self.clock.sleep(seconds)
            for record in self.collector.collect(self.clock.now_s()):
                if isinstance(record, EventRecord):
                    self.events.append(record)
                elif isinstance(record, MetricsRecord):
                    for place, device in enumerate(record.devices):
                        rows = zip(record.names, record.values, strict=True)
                        values[device] = {name: row[place] for name, row in rows if row[place] is not None}
                    self.ranks = dict(zip(record.devices, record.ranks, strict=False))
                    self.models = dict(zip(record.devices, record.models, strict=False))
        return values

    def told(self) -> list[tuple[str, str | None]]:
        """Kind and device of the events so far."""
        return [(event.kind, event.device) for event in self.events]

    def unfreed(self) -> int:
        """Samples and event sets that the driver still keeps for us."""
        return int(self.library.fake_nvml_unfreed())
