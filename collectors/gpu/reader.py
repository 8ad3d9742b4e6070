"""Reads the values of one GPU and of its MIG instances; what a device does not have is never asked for again."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import pynvml as nvml

from trainwarden.collectors.gpu.devices import LOST, NEVER, OVER, Gpu, Instance
from trainwarden.collectors.gpu.fabric import COMPLETED, NOT_SUPPORTED, read_fabric
from trainwarden.collectors.gpu.fields import INSTANCE_READINGS, READINGS, Reading
from trainwarden.collectors.gpu.profiling import Profiling, Take

_OFTEN = tuple(reading for reading in READINGS if not reading.slow)
_SILENT_TICKS = 3  # a GPU that answers nothing at all so often is lost, whatever it calls it


class Row(NamedTuple):
    """The values of one device at one tick."""

    device: str
    rank: int | None
    values: dict[str, float]
    model: str


class Reader:
    """Reads devices.

    Parameters
    ----------
    profiling : bool
        Whether to ask for the counters of `trainwarden.collectors.gpu.profiling`.
    """

    def __init__(self, *, profiling: bool) -> None:
        self._profiling = Profiling() if profiling else None

    def rows(self, gpu: Gpu, *, slow: bool, now_s: float) -> Iterator[Row]:
        """The GPU's row and those of its instances; none if it is lost, which is noted in `gpu`.

        Raises
        ------
        NVMLError
            One of `OVER`.
        """
        if gpu.lost:
            return
        try:
            rows = [Row(gpu.name, gpu.rank, self._of_gpu(gpu, slow=slow, now_s=now_s), gpu.model)]
            rows += (
                Row(one.name, one.rank, self._of_instance(gpu, one, slow, now_s), one.model) for one in gpu.instances
            )
        except LOST:
            gpu.lost = True
            return
        gpu.silent = 0 if rows[0].values else gpu.silent + 1
        gpu.lost = gpu.silent >= _SILENT_TICKS
        yield from (row for row in rows if row.values)

    def keep_only(self, gpus: list[Gpu]) -> None:
        """Let go of what belongs to instances that are no more."""
        if self._profiling is not None:
            keys = {key for gpu in gpus for key in (gpu.name, *(_key(one) for one in gpu.instances))}
            self._profiling.keep_only(keys)

    def close(self) -> None:
        if self._profiling is not None:
            self._profiling.close()

    def _of_gpu(self, gpu: Gpu, *, slow: bool, now_s: float) -> dict[str, float]:
        values: dict[str, float] = {}
        if slow:
            self._ask_for_profiling(gpu)
            if "gpm" not in gpu.missing:
                self._profile(gpu, partial(nvml.nvmlGpmSampleGet, gpu.handle), now_s, values)
            self._fabric(gpu, values)
        for reading in READINGS if slow else _OFTEN:
            if reading.name not in values:  # profiling may have given it already
                self._read(gpu, reading, values)
        if not values:
            return {}
        counts = {
            "gpu_xid_state": gpu.xid,
            "gpu_xid_events_count": gpu.xids,
            "gpu_processes_count": gpu.processes,
        }
        return values | {name: float(count) for name, count in counts.items() if count is not None}

    def _of_instance(self, gpu: Gpu, one: Instance, slow: bool, now_s: float) -> dict[str, float]:
        values: dict[str, float] = {}
        if slow and "gpm" not in gpu.missing:
            self._profile(one, partial(nvml.nvmlGpmMigSampleGet, gpu.handle, one.number), now_s, values)
        for reading in INSTANCE_READINGS:
            self._read(one, reading, values)
        if values and one.processes is not None:
            values["gpu_processes_count"] = float(one.processes)
        return values

    def _read(self, device: Gpu | Instance, reading: Reading, values: dict[str, float]) -> None:
        if reading.name in device.missing:
            return
        try:
            values.update(reading.read(device.handle))
        except nvml.NVMLError as error:
            _refused(error, device, reading.name)

    def _profile(self, device: Gpu | Instance, take: Take, now_s: float, values: dict[str, float]) -> None:
        if self._profiling is None or "profiling" in device.missing:
            return
        key = device.name if isinstance(device, Gpu) else _key(device)
        try:
            values.update(self._profiling.read(key, take, now_s))
        except nvml.NVMLError as error:
            _refused(error, device, "profiling")

    def _ask_for_profiling(self, gpu: Gpu) -> None:
        if self._profiling is not None and "gpm" not in gpu.missing:
            try:
                if not self._profiling.supports(gpu.handle):
                    gpu.missing.add("gpm")
            except nvml.NVMLError as error:
                _refused(error, gpu, "gpm")

    def _fabric(self, gpu: Gpu, values: dict[str, float]) -> None:
        if "fabric" in gpu.missing:
            return
        try:
            gpu.fabric = fabric = read_fabric(gpu.handle)
        except nvml.NVMLError as error:
            _refused(error, gpu, "fabric")
            return
        if fabric.state != NOT_SUPPORTED:
            values["gpu_fabric_state"] = float(fabric.state)
        if fabric.state == COMPLETED:
            values["gpu_fabric_degraded_state"] = float(fabric.trouble is not None)


def _refused(error: nvml.NVMLError, device: Gpu | Instance, name: str) -> None:
    """What NVML says instead of an answer: never again, over, lost, or just not measured this time."""
    if isinstance(error, NEVER):
        device.missing.add(name)
    elif isinstance(error, OVER) or (isinstance(error, LOST) and isinstance(device, Gpu)):
        raise error  # an instance that is gone is no lost GPU


def _key(one: Instance) -> str:
    """An instance made anew under the same number begins with samples of its own."""
    return f"{one.name} {one.uuid}"
