"""The events that exporters' metrics are turned into."""

from __future__ import annotations

from typing import Any, Final, Literal

from trainwarden.prometheus.exporters import Who
from trainwarden.records import EventRecord

XID: Final = "gpu_xid_state"
UP: Final = {"nic_rdma_link_state": 4.0, "nic_link_state": 1.0}  # IB_PORT_ACTIVE in the kernel's rdma/ib_verbs.h
SILENT_INTERVALS: Final = 4.0  # a series is over after so many,
SILENT_S: Final = 60.0  # and so long
Links = Literal["link_down", "link_up"]


def link_event(who: Who, up: bool, time_s: float, job: str) -> EventRecord:
    """A link that has changed."""
    kind: Links = "link_up" if up else "link_down"
    message = f"link of {who.device} is {'up' if up else 'down'}"
    return EventRecord(
        id=f"{kind}/{who.node}/{who.device}/t{time_s * 1000:.0f}", job=job, node=who.node, time_s=time_s, kind=kind,
        device=who.device, message=message,
    )  # fmt: skip


def xid_event(who: Who, code: int, time_s: float, job: str) -> EventRecord:
    """A new Xid."""
    fields: dict[str, Any] = {"xid": code, "uuid": who.uuid}
    return EventRecord(
        id=f"xid/{who.node}/{who.device}/{code}/t{time_s * 1000:.0f}", job=job, node=who.node, time_s=time_s,
        kind="xid", device=who.device, message=f"Xid {code} on GPU {who.device}", fields=fields,
    )  # fmt: skip


def back_event(node: str, device: str, time_s: float, job: str) -> EventRecord:
    """A GPU that was lost is told of again, or another one in its place."""
    return EventRecord(
        id=f"device_back/{node}/{device}/t{time_s * 1000:.0f}", job=job, node=node, time_s=time_s, kind="device_back",
        device=device, message="its exporter tells of it again, or of another one in its place",
    )  # fmt: skip


def lost_event(who: Who, time_s: float, job: str) -> EventRecord:
    """A GPU that its exporter tells of no more."""
    own = f" ({who.uuid})" if who.uuid else ""
    return EventRecord(
        id=f"device_lost/{who.node}/{who.device}/t{time_s * 1000:.0f}", job=job, node=who.node, time_s=time_s,
        kind="device_lost", device=who.device, fields={"uuid": who.uuid},
        message=f"its exporter tells nothing of it any more{own}, and goes on telling of the other GPUs of the node",
    )  # fmt: skip
