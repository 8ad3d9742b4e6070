"""Xid events, by an event set of its own for each GPU.

NVML waits for a whole set, and while one GPU of a set is lost the set answers with that error at once: in one set for
all, a lost GPU hides the Xids of the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pynvml as nvml

from trainwarden.collectors.gpu.devices import Gpu

MAX_EVENTS: Final = 200  # of a GPU and tick: one in a storm of events must hold up neither the agent nor the others'
XID: Final = nvml.nvmlEventTypeXidCriticalError
_WHOLE: Final = 0xFFFFFFFF  # as the number of a MIG instance: the event is not of one


class XidEvents:
    """What to wait for, by GPU."""

    def __init__(self) -> None:
        self._sets: dict[str, Any] = {}

    def listen(self, gpu: Gpu) -> None:
        """Ask for the Xids of a GPU, if it has such events."""
        wanted = None
        try:
            if not nvml.nvmlDeviceGetSupportedEventTypes(gpu.handle) & XID:
                return
            wanted = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(gpu.handle, XID, wanted)
        except nvml.NVMLError:
            if wanted is not None:
                _free(wanted)
            return
        self._sets[gpu.uuid] = wanted
        gpu.xids = gpu.xids or 0

    def pop_new(self, gpus: list[Gpu]) -> Iterator[tuple[Gpu, int, int | None]]:
        """GPU, code and MIG instance of what has come since the last call."""
        for gpu in gpus:
            waiting = self._sets.get(gpu.uuid)
            for _ in range(0 if waiting is None else MAX_EVENTS):
                try:
                    data = nvml.nvmlEventSetWait(waiting, 0)
                except nvml.NVMLError:
                    break  # a time-out: no more; anything else shows in the readings as well
                number = int(data.gpuInstanceId)
                yield gpu, int(data.eventData), None if number == _WHOLE else number

    def close(self) -> None:
        for wanted in self._sets.values():
            _free(wanted)
        self._sets = {}


def _free(wanted: Any) -> None:
    try:
        nvml.nvmlEventSetFree(wanted)
    except nvml.NVMLError:
        return  # the driver has gone first
