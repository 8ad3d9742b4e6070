"""NVIDIA GPUs through NVML: metrics, Xid events, lost devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pynvml as nvml

from collectors.gpu.fields import READINGS, Gpu, Reading
from collectors.kernel_log import boot_id
from collectors.ranks import Ranks
from trainwarden.clock import Clock
from trainwarden.errors import CollectorError
from trainwarden.protocols import JsonObject, Scope
from trainwarden.records import EventKind, EventRecord, MetricsRecord, Record
from trainwarden.settings import Config

_MAX_EVENTS = 1_000  # per tick: a GPU in a storm of events must not hold up the agent
_RETRY_TICKS = 60  # a lost GPU is asked again so often
# Errors that will not go away by asking again.
_NEVER = (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NoPermission)
# The driver has been unloaded or replaced under us: start over.
_OVER = (nvml.NVMLError_Uninitialized, nvml.NVMLError_DriverNotLoaded, nvml.NVMLError_LibRmVersionMismatch)
_XID = nvml.nvmlEventTypeXidCriticalError


class GpuCollector:
    """Every GPU of the node by NVML, each under its UUID.

    Parameters
    ----------
    config : GpuCollector.Config
    scope : Scope
    clock : Clock
    """

    class Config(Config, frozen=True, kw_only=True):
        """`slow_every`: rarely changing and slow readings are made every so many ticks, GPUs taking turns."""

        interval_s: Annotated[float, msgspec.Meta(ge=0.1, le=3600.0)] = 1.0
        slow_every: Annotated[int, msgspec.Meta(ge=1, le=3600)] = 10
        xid_events: bool = True

    def __init__(self, config: Config, scope: Scope, clock: Clock) -> None:
        self._config = config
        self._scope = scope
        self._rank_pids = Ranks(Path(scope.run_dir))
        self._gpus: list[Gpu] = []
        self._open = False
        self._events: Any = None
        self._tick = 0
        self._boot = boot_id()
        self._known: list[str] = []  # UUIDs seen during this boot
        self._losses: dict[str, int] = {}  # UUID -> how often it was lost during this boot
        self._away: set[str] = set()  # UUIDs that are lost now

    @property
    def interval_s(self) -> float:
        return self._config.interval_s

    def device_index(self, device: str) -> int | None:
        """NVML's number for the GPU of this name, as other exporters tell it; None where it is not known."""
        return next((gpu.index for gpu in self._gpus if gpu.uuid == device), None)

    def supported(self) -> str | None:
        try:
            self._begin()
        except nvml.NVMLError_LibraryNotFound:
            return "there is no NVIDIA driver here (libnvidia-ml.so.1 is not installed)"
        except nvml.NVMLError as error:
            return f"NVML does not start ({error})"
        if not self._gpus:
            self.close()
            return "the NVIDIA driver finds no GPU"
        return None

    def collect(self, now_s: float) -> Iterable[Record]:
        if not self._open:
            try:
                self._begin()
            except nvml.NVMLError as error:
                raise CollectorError(f"NVML does not start ({error})") from error
        yield from self._missing_gpus(now_s)
        if self._tick % self._config.slow_every == 0:
            self._find_ranks()
        if self._tick % _RETRY_TICKS == 0:
            for gpu in self._gpus:
                gpu.lost = False  # until it says so again: a reset may have brought it back
        try:
            rows = [self._read(gpu, place) for place, gpu in enumerate(self._gpus)]
        except _OVER as error:
            self.close()
            raise CollectorError(f"NVML is gone ({error})") from error
        self._tick += 1
        yield from self._xids(now_s)
        yield from self._newly_lost(now_s)
        yield from self._metrics(rows, now_s)

    def wake_fds(self) -> Sequence[int]:
        return ()

    def position(self) -> JsonObject:
        xids = {gpu.uuid: [gpu.xid, gpu.xids] for gpu in self._gpus if gpu.xids}
        return {
            "boot": self._boot,
            "known": list(self._known),
            "losses": dict(self._losses),
            "away": sorted(self._away),
            "xids": xids,
        }

    def restore(self, position: JsonObject) -> None:
        if position.get("boot") != self._boot:
            return  # GPUs may have been exchanged, and counters begin anew
        self._known = list(position.get("known", ()))
        self._losses = dict(position.get("losses", {}))
        self._away = set(position.get("away", ()))
        for gpu in self._gpus:
            gpu.xid, gpu.xids = position.get("xids", {}).get(gpu.uuid, (None, None))

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        self._gpus = []
        try:
            if self._events is not None:
                nvml.nvmlEventSetFree(self._events)
            nvml.nvmlShutdown()
        except nvml.NVMLError:
            return  # the driver has gone first
        finally:
            self._events = None

    def _begin(self) -> None:
        """Open NVML and look at what GPUs there are."""
        if self._open:
            return
        nvml.nvmlInit()
        self._open = True
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                bus = nvml.nvmlDeviceGetPciInfo(handle).busId
                uuid = nvml.nvmlDeviceGetUUID(handle)
            except nvml.NVMLError:
                continue  # it does not even say its name: found missing below if it has been known
            self._gpus.append(Gpu(uuid, handle, bus.decode() if isinstance(bus, bytes) else bus, index))
        if self._config.xid_events:
            self._listen()

    def _listen(self) -> None:
        """Ask for Xid events of every GPU that has them."""
        try:
            self._events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            return
        for gpu in self._gpus:
            try:
                if nvml.nvmlDeviceGetSupportedEventTypes(gpu.handle) & _XID:
                    nvml.nvmlDeviceRegisterEvents(gpu.handle, _XID, self._events)
                    gpu.xids = gpu.xids or 0
            except nvml.NVMLError:
                gpu.missing.add("xid_events")

    def _read(self, gpu: Gpu, place: int) -> dict[str, float]:
        """All values that are due of one GPU; what it does not have is never asked for again."""
        values: dict[str, float] = {}
        if gpu.lost:
            return values
        slow_turn = self._tick % self._config.slow_every == place % self._config.slow_every
        for reading in READINGS:
            if (reading.slow and not slow_turn) or reading.name in gpu.missing:
                continue
            if not self._read_one(gpu, reading, values):
                return {}
        for name, value in (
            ("gpu_xid_state", gpu.xid),
            ("gpu_xid_events_count", gpu.xids),
            ("gpu_processes_count", gpu.processes),
        ):
            if value is not None:
                values[name] = float(value)
        return values

    def _read_one(self, gpu: Gpu, reading: Reading, values: dict[str, float]) -> bool:
        """Add the values of one reading; False if the GPU is lost."""
        try:
            values.update(reading.read(gpu.handle))
        except _NEVER:
            gpu.missing.add(reading.name)
        except (nvml.NVMLError_GpuIsLost, nvml.NVMLError_GpuNotFound):
            gpu.lost = True
            return False
        except _OVER:
            raise
        except nvml.NVMLError:
            return True  # not measured this time
        return True

    def _find_ranks(self) -> None:
        """Which rank uses which GPU, by the process ids of both in this namespace."""
        ranks = self._rank_pids.by_pid()
        for gpu in self._gpus:
            if gpu.lost or "processes" in gpu.missing:
                continue
            try:
                pids = [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(gpu.handle)]
            except _NEVER:
                gpu.missing.add("processes")
                continue
            except nvml.NVMLError:
                continue
            users = {ranks[pid] for pid in pids if pid in ranks}
            gpu.processes = len(pids)
            # Between two runs of a rank its GPU stays its GPU.
            gpu.rank = users.pop() if len(users) == 1 else (None if users else gpu.rank)

    def _xids(self, now_s: float) -> Iterator[EventRecord]:
        """Xid events since the last tick."""
        for number in range(_MAX_EVENTS if self._events is not None else 0):
            try:
                data = nvml.nvmlEventSetWait(self._events, 0)
            except nvml.NVMLError:
                return  # a time-out: no more; anything else shows in the readings as well
            gpu = next((gpu for gpu in self._gpus if _same(gpu.handle, data.device)), None)
            if gpu is None or data.eventType != _XID:
                continue
            gpu.xid, gpu.xids = int(data.eventData), (gpu.xids or 0) + 1
            what = f"{gpu.xid}/{now_s * 1000:.0f}.{number}"
            yield self._event("xid", gpu, what, f"Xid {gpu.xid}", now_s, xid=gpu.xid, pci=gpu.pci)

    def _newly_lost(self, now_s: float) -> Iterator[EventRecord]:
        """One event per loss, not per tick."""
        for gpu in self._gpus:
            if gpu.uuid not in self._known:
                self._known.append(gpu.uuid)
            if not gpu.lost:
                self._away.discard(gpu.uuid)
            elif gpu.uuid not in self._away:
                yield self._loss(gpu, f"GPU {gpu.uuid} at {gpu.pci} does not answer any more", now_s)

    def _missing_gpus(self, now_s: float) -> Iterator[EventRecord]:
        """GPUs that this boot has seen and that NVML does not list any more, as after a restart of the agent."""
        present = {gpu.uuid for gpu in self._gpus}
        for uuid in self._known:
            if uuid not in present and uuid not in self._away:
                yield self._loss(Gpu(uuid, None, ""), f"GPU {uuid} is not listed any more", now_s)

    def _loss(self, gpu: Gpu, message: str, now_s: float) -> EventRecord:
        self._away.add(gpu.uuid)
        number = self._losses[gpu.uuid] = self._losses.get(gpu.uuid, 0) + 1
        return self._event("device_lost", gpu, f"{self._boot[:8]}.{number}", message, now_s, pci=gpu.pci)

    def _event(
        self, kind: EventKind, gpu: Gpu, what: str, message: str, now_s: float, **fields: str | int | None
    ) -> EventRecord:
        return EventRecord(
            id=f"{kind}/{self._scope.node}/{gpu.uuid}/{what}",
            job=self._scope.job,
            node=self._scope.node,
            time_s=now_s,
            kind=kind,
            rank=gpu.rank,
            device=gpu.uuid,
            message=message,
            fields={**fields},
        )

    def _metrics(self, rows: Sequence[dict[str, float]], now_s: float) -> Iterator[MetricsRecord]:
        """One columnar record over all GPUs that answered."""
        answered = [(gpu, row) for gpu, row in zip(self._gpus, rows, strict=True) if row]
        if not answered:
            return
        names = tuple(dict.fromkeys(name for _, row in answered for name in row))
        yield MetricsRecord(
            job=self._scope.job,
            node=self._scope.node,
            time_s=now_s,
            devices=tuple(gpu.uuid for gpu, _ in answered),
            names=names,
            values=tuple(tuple(row.get(name) for _, row in answered) for name in names),
            ranks=tuple(gpu.rank for gpu, _ in answered) if any(gpu.rank is not None for gpu, _ in answered) else (),
        )


def _same(one: Any, other: Any) -> bool:
    """True if two NVML handles are the same device (ctypes pointers do not compare by address)."""
    return bytes(one) == bytes(other)
