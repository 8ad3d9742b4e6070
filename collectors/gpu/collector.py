"""NVIDIA GPUs through NVML: metrics, Xid events, lost devices, the state of their fabric.

How many AMD GPUs there are: by their kernel driver, as nothing else of theirs is read.

AMD's own binding (``amdsmi``) is one for ROCm's ``libamd_smi.so`` and does not import without it; what could not be run
is not built.

Xid events, by an event set of its own for each GPU.

NVML waits for a whole set, and while one GPU of a set is lost the set answers with that error at once: in one set for
all, a lost GPU hides the Xids of the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import pynvml as nvml

from trainwarden.clock import Clock
from trainwarden.collectors.gpu.devices import OVER, Gpu, find_gpus, find_instances, find_processes
from trainwarden.collectors.gpu.fabric import FabricWatch
from trainwarden.collectors.gpu.reader import Reader, Row
from trainwarden.collectors.kernel_log import boot_id
from trainwarden.collectors.ranks import Ranks
from trainwarden.errors import CollectorError
from trainwarden.protocols import JsonObject, Scope
from trainwarden.records import EventKind, EventRecord, MetricsRecord, Record
from trainwarden.settings import Config

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


_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def amd_gpus(sysfs: str) -> int:
    """GPUs that the ``amdgpu`` driver of the kernel has taken, by PCI address."""
    try:
        return sum(bool(_ADDRESS.fullmatch(found.name)) for found in Path(sysfs, "bus/pci/drivers/amdgpu").iterdir())
    except OSError:
        return 0


Fields = dict[str, str | int | None]

# In turns of the slow readings:
_RETRY_TURNS = 6  # a lost GPU is asked again so often
_AGAIN_TURNS = 30  # and NVML is opened again so often: one that was reset has another handle, and new event sets


class GpuCollector:
    """Every GPU of the node by NVML under its UUID, every MIG instance under UUID and number (``GPU-.../3``).

    Parameters
    ----------
    config : GpuCollector.Config
    scope : Scope
    clock : Clock
    """

    class Config(Config, frozen=True, kw_only=True):
        """`slow_every`: rarely changing and slow readings are made every so many ticks, GPUs taking turns.

        `profiling`: what the units of the GPU really did (Hopper and newer), as means over those ticks.
        """

        interval_s: Annotated[float, msgspec.Meta(ge=0.1, le=3600.0)] = 1.0
        slow_every: Annotated[int, msgspec.Meta(ge=1, le=3600)] = 10
        xid_events: bool = True
        profiling: bool = True
        sysfs: str = "/sys"

    def __init__(self, config: Config, scope: Scope, clock: Clock) -> None:
        self._config = config
        self._scope = scope
        self._clock = clock
        self._rank_pids = Ranks(Path(scope.run_dir))
        self._gpus: list[Gpu] = []
        self._ever: dict[str, Gpu] = {}  # all that were listed, by UUID: one that is away may come back
        self._open = False
        self._reader = Reader(profiling=config.profiling)
        self._events = XidEvents()
        self._fabric = FabricWatch()
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
        uuid = device.partition("/")[0]
        return next((gpu.index for gpu in self._gpus if gpu.uuid == uuid), None)

    def supported(self) -> str | None:
        reason = self._unsupported()
        others = amd_gpus(self._config.sysfs) if reason else 0
        return f"{reason}; the AMD GPUs that are here ({others}) are not read" if others else reason

    def _unsupported(self) -> str | None:
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
        turn, rest = divmod(self._tick, self._config.slow_every)
        if self._away and turn and not rest and turn % _AGAIN_TURNS == 0:
            yield from self._xids(now_s)  # closing drops what has not been taken yet
            self._shut()
        if not self._open:
            self._start()
        yield from self._missing_gpus(now_s)
        if not rest:
            self._look_around()
            if turn % _RETRY_TURNS == 0:
                for gpu in self._gpus:
                    gpu.lost = False  # until it says so again
        try:
            rows = [row for place, gpu in enumerate(self._gpus) for row in self._read(gpu, place)]
        except OVER as error:
            self._shut()
            raise CollectorError(f"NVML is gone ({error})") from error
        self._tick += 1
        yield from self._xids(now_s)
        yield from self._lost_and_back({row.device for row in rows}, now_s)
        yield from self._fabric_changes(now_s)
        yield from self._metrics(rows, now_s)

    def wake_fds(self) -> Sequence[int]:
        return ()

    def position(self) -> JsonObject:
        xids = {gpu.uuid: [gpu.xid, gpu.xids] for gpu in self._ever.values() if gpu.xids}
        return {
            "boot": self._boot,
            "known": list(self._known),
            "losses": dict(self._losses),
            "away": sorted(self._away),
            "xids": xids,
            "fabric": self._fabric.position(),
        }

    def restore(self, position: JsonObject) -> None:
        self._fabric.restore(position.get("fabric", {}))
        if position.get("boot") != self._boot:
            return  # GPUs may have been exchanged, and counters begin anew
        self._known = list(position.get("known", ()))
        self._losses = dict(position.get("losses", {}))
        self._away = set(position.get("away", ()))
        for uuid, counted in position.get("xids", {}).items():
            gpu = self._ever.setdefault(uuid, Gpu(uuid, None, ""))
            gpu.xid, gpu.xids = counted

    def close(self) -> None:
        self._shut()
        self._gpus = []

    def _begin(self) -> None:
        """Open NVML and look at what GPUs there are."""
        if self._open:
            return
        nvml.nvmlInit()
        self._open = True
        try:
            self._gpus = find_gpus(self._ever)
        except nvml.NVMLError:
            self._shut()
            raise
        self._ever |= {gpu.uuid: gpu for gpu in self._gpus}
        if self._config.xid_events:
            for gpu in self._gpus:
                self._events.listen(gpu)

    def _start(self) -> None:
        try:
            self._begin()
        except nvml.NVMLError_LibRmVersionMismatch as error:
            why = f"the NVIDIA driver was exchanged for another version: restart the agent ({error})"
            raise CollectorError(why) from error
        except nvml.NVMLError as error:
            raise CollectorError(f"NVML does not start ({error})") from error

    def _shut(self) -> None:
        """Close NVML, and keep what is known of the GPUs."""
        if not self._open:
            return
        self._open = False
        self._events.close()
        self._reader.close()
        try:
            nvml.nvmlShutdown()
        except nvml.NVMLError:
            return  # the driver has gone first

    def _look_around(self) -> None:
        ranks = self._rank_pids.by_pid()
        for gpu in self._gpus:
            find_instances(gpu)
            find_processes(gpu, ranks)
        self._reader.keep_only(self._gpus)

    def _read(self, gpu: Gpu, place: int) -> Iterator[Row]:
        slow = self._tick % self._config.slow_every == place % self._config.slow_every
        return self._reader.rows(gpu, slow=slow, now_s=self._clock.monotonic_s())

    def _xids(self, now_s: float) -> Iterator[EventRecord]:
        """Xid events since the last tick."""
        for number, (gpu, code, instance) in enumerate(self._events.pop_new(self._gpus)):
            gpu.xid, gpu.xids = code, (gpu.xids or 0) + 1
            fields: Fields = {"xid": code, "pci": gpu.pci}
            rank = gpu.rank
            if instance is not None:
                fields["instance"] = instance
                rank = next((one.rank for one in gpu.instances if one.number == instance), None)
            what = f"{code}/{now_s * 1000:.0f}.{number}"
            yield self._event("xid", gpu.uuid, what, f"Xid {code}", now_s, rank=rank, fields=fields)

    def _lost_and_back(self, answered: set[str], now_s: float) -> Iterator[EventRecord]:
        """One event per loss and one per return, not per tick."""
        for gpu in self._gpus:
            if gpu.uuid not in self._known:
                self._known.append(gpu.uuid)
            if gpu.uuid in answered:
                if gpu.uuid in self._away:
                    self._away.discard(gpu.uuid)
                    message = f"GPU {gpu.uuid} at {gpu.pci} answers again"
                    fields: Fields = {"pci": gpu.pci}
                    yield self._event(
                        "device_back", gpu.uuid, self._nth_loss(gpu), message, now_s, rank=gpu.rank, fields=fields
                    )
            elif gpu.lost and gpu.uuid not in self._away:
                yield self._loss(gpu, f"GPU {gpu.uuid} at {gpu.pci} does not answer any more", now_s)

    def _missing_gpus(self, now_s: float) -> Iterator[EventRecord]:
        """GPUs that this boot has seen and that NVML does not list any more, as after a restart of the agent."""
        present = {gpu.uuid for gpu in self._gpus}
        for uuid in self._known:
            if uuid not in present and uuid not in self._away:
                yield self._loss(
                    self._ever.get(uuid) or Gpu(uuid, None, ""), f"GPU {uuid} is not listed any more", now_s
                )

    def _loss(self, gpu: Gpu, message: str, now_s: float) -> EventRecord:
        self._away.add(gpu.uuid)
        self._losses[gpu.uuid] = self._losses.get(gpu.uuid, 0) + 1
        what = self._nth_loss(gpu)
        return self._event("device_lost", gpu.uuid, what, message, now_s, rank=gpu.rank, fields={"pci": gpu.pci})

    def _nth_loss(self, gpu: Gpu) -> str:
        return f"{self._boot[:8]}.{self._losses.get(gpu.uuid, 0)}"

    def _fabric_changes(self, now_s: float) -> Iterator[EventRecord]:
        """One event when a GPU comes into trouble with its NVLink fabric, and one when it is well again."""
        for gpu in self._gpus:
            fabric, gpu.fabric = gpu.fabric, None
            well = None if fabric is None else self._fabric.change(gpu.uuid, fabric, self._clock.monotonic_s())
            if fabric is None or well is None:
                continue
            kind: EventKind = "fabric_up" if well else "fabric_down"
            message = f"NVLink fabric of GPU {gpu.uuid}: {'well again' if well else fabric.trouble}"
            fields: Fields = {"state": fabric.state, "pci": gpu.pci}
            what = str(self._fabric.changes(gpu.uuid))
            yield self._event(kind, gpu.uuid, what, message, now_s, rank=gpu.rank, fields=fields)

    def _event(
        self, kind: EventKind, device: str, what: str, message: str, now_s: float, *, rank: int | None, fields: Fields
    ) -> EventRecord:
        return EventRecord(
            id=f"{kind}/{self._scope.node}/{device}/{what}",
            job=self._scope.job,
            node=self._scope.node,
            time_s=now_s,
            kind=kind,
            rank=rank,
            device=device,
            message=message,
            fields={**fields},
        )

    def _metrics(self, rows: Sequence[Row], now_s: float) -> Iterator[MetricsRecord]:
        """One columnar record over all devices that answered."""
        if not rows:
            return
        names = tuple(dict.fromkeys(name for row in rows for name in row.values))
        yield MetricsRecord(
            job=self._scope.job,
            node=self._scope.node,
            time_s=now_s,
            devices=tuple(row.device for row in rows),
            names=names,
            values=tuple([tuple([row.values.get(name) for row in rows]) for name in names]),  # lists: twice as fast
            ranks=tuple(row.rank for row in rows) if any(row.rank is not None for row in rows) else (),
            models=tuple(row.model for row in rows) if any(row.model for row in rows) else (),
        )
