"""Faults of a simulated job: what each does to the steps, and which records tell of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from trainwarden.records import EventKind, EventRecord

TRACEBACK: Final = (
    "Traceback (most recent call last):",
    '  File "train.py", line 88, in <module>',
    "    loss = step(model, next(batches))",
    '  File "train.py", line 41, in step',
    "    raise ValueError(f'label {int(labels.max())} is outside of the vocabulary')",
    "ValueError: label 50304 is outside of the vocabulary",
)
NOISE: Final = "NCCL WARN NET/IB : Got completion from peer with status=12 opcode=129 len=0 vendor err 129"

THROTTLED: Final = (
    ("gpu_sm_clock_hertz", 1.005e9), ("gpu_power_watts", 380.0), ("gpu_temperature_celsius", 91.0),
    ("gpu_throttle_thermal_state", 1.0), ("gpu_throttle_hardware_state", 1.0), ("gpu_clock_event_reasons_state", 72.0),
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where a fault strikes: rank, its node and GPU, its process, and the step that it was in."""

    job: str
    node: str
    rank: int
    gpu: str
    incarnation: str
    step: int

    def event(
        self, kind: EventKind, at_s: float, message: str, device: str | None = None, **fields: Any
    ) -> EventRecord:
        """A fact of this place."""
        return EventRecord(
            id=f"{kind}/{self.node}/{self.rank}/{at_s:.3f}", job=self.job, node=self.node, time_s=at_s, kind=kind,
            rank=self.rank, device=device, message=message, fields={"incarnation": self.incarnation, **fields},
        )  # fmt: skip


def _nothing(_place: Place, _at_s: float) -> Iterator[EventRecord]:
    yield from ()


def _exit(place: Place, at_s: float, **how: Any) -> EventRecord:
    said = how.get("signal") or f"exit code {how['code']}"
    return place.event("process_exit", at_s, f"process of rank {place.rank} ended: {said}", **how)


def _crash(place: Place, at_s: float) -> Iterator[EventRecord]:
    yield _exit(place, at_s, signal="SIGSEGV")


def _exception(place: Place, at_s: float) -> Iterator[EventRecord]:
    yield place.event(
        "exception", at_s, TRACEBACK[-1], type="ValueError", types="ValueError", causes="",
        frame="train.py:41 in step", step=place.step,
    )  # fmt: skip
    yield _exit(place, at_s + 0.5, code=1)


def _gpu_lost(place: Place, at_s: float) -> Iterator[EventRecord]:
    yield place.event("xid", at_s, "Xid 79", place.gpu, xid=79)
    yield place.event("device_lost", at_s + 1.0, "the GPU has fallen off the bus", place.gpu)


def _nic_down(place: Place, at_s: float) -> Iterator[EventRecord]:
    yield place.event("link_down", at_s, "link of eth0 is down", "eth0")


@dataclass(frozen=True)
class Fault:
    """What a fault does from its moment on.

    Attributes
    ----------
    events : callable
        ``events(place, at_s)``: facts that the agent tells.
    slows : bool
        The rank computes longer, by the slowdown.
    stops : bool
        The rank finishes no further step, and all others wait for it.
    ends : bool
        The rank's process is gone; the launcher ends all others a few seconds later.
    silences : bool
        Nothing of the rank's node is sent any more.
    lines : tuple of str
        What the rank writes once.
    lines_per_s : int
        How many lines like the first it goes on to write.
    metrics : tuple of (str, float)
        What metrics of its GPU are from then on.
    """

    events: Callable[[Place, float], Iterator[EventRecord]] = _nothing
    slows: bool = False
    stops: bool = False
    ends: bool = False
    silences: bool = False
    lines: tuple[str, ...] = ()
    lines_per_s: int = 0
    metrics: tuple[tuple[str, float], ...] = ()


FAULTS: Final[dict[str, Fault]] = {
    "none": Fault(),
    "slow-rank": Fault(slows=True),
    "hang": Fault(stops=True),
    "crash": Fault(_crash, stops=True, ends=True),
    "exception": Fault(_exception, stops=True, ends=True, lines=TRACEBACK),
    "log-storm": Fault(lines=(NOISE,), lines_per_s=500),
    "gpu-throttle": Fault(slows=True, metrics=THROTTLED),
    "gpu-lost": Fault(_gpu_lost, stops=True),
    "nic-down": Fault(_nic_down, stops=True),
    "node-lost": Fault(stops=True, silences=True),
}
