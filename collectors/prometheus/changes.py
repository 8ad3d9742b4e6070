"""What has changed since the last scrape: Xids, links, GPUs that their exporter tells of no more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from trainwarden.prometheus.cards import lost_cards
from trainwarden.prometheus.events import (
    SILENT_INTERVALS,
    SILENT_S,
    UP,
    XID,
    back_event,
    link_event,
    lost_event,
    xid_event,
)
from trainwarden.prometheus.exporters import Who
from trainwarden.records import EventRecord

KEPT_S: Final = 3_600.0
GPU_KEPT_S: Final = 86_400.0  # a node may be away for long and come back without one

Rows = Mapping[Who, Mapping[str, float]]
"""Values by device and catalogue name."""


class Seen(msgspec.Struct):
    """What is known of one device; `first_s` and `seen_s` are when it was first and last told of.

    `lost_as` is the name under which it was said to be lost; empty if it is not.
    """

    device: str
    uuid: str
    first_s: float
    seen_s: float
    xid: float = 0.0
    up: bool | None = None
    lost_as: str = ""

    def back_as(self, other: Seen) -> bool:
        """Whether `other`, told of now, is what was lost, or stands in its place."""
        before, now = Who("", self.device, self.uuid).card, Who("", other.device, other.uuid).card
        return now.uuid == before.uuid or (now.device == self.lost_as and other.first_s > self.seen_s)


class Changes:
    """Events of one job; `known` is by node and UUID (of what has none: device), plain data for a position.

    Parameters
    ----------
    job : str
    interval_s : float
        Between two scrapes.
    """

    def __init__(self, job: str, interval_s: float) -> None:
        self._job = job
        self._patience_s = max(SILENT_S, SILENT_INTERVALS * interval_s)
        self.known: dict[str, dict[str, Seen]] = {}

    def observe(self, rows: Rows, now_s: float) -> Iterator[EventRecord]:
        """The events of one scrape of one exporter."""
        gpus_of: set[str] = set()
        for who, values in rows.items():
            own = self.known.setdefault(who.node, {})
            before = own.get(who.uuid or who.device)
            if before is None:
                # What is there at the first look is old: nobody knows since when.
                before = Seen(who.device, who.uuid, now_s, now_s, xid=values.get(XID, 0.0))
                own[who.uuid or who.device] = before
            else:
                yield from self._xid(who, before, values, now_s)
            yield from self._link(who, before, values, now_s)
            before.device, before.seen_s = who.device, now_s
            if who.uuid:
                gpus_of.add(who.node)
        for node in sorted(gpus_of):
            yield from self._back(node, now_s)
            yield from self._lost(node, now_s)

    def forget(self, now_s: float) -> None:
        """Let go of what has long been told of no more: names come and go on some machines without end."""
        for node, own in list(self.known.items()):
            kept = {key: one for key, one in own.items() if now_s - one.seen_s < (GPU_KEPT_S if one.uuid else KEPT_S)}
            if kept:
                self.known[node] = kept
            else:
                del self.known[node]

    def _xid(self, who: Who, before: Seen, values: Mapping[str, float], now_s: float) -> Iterator[EventRecord]:
        code = values.get(XID)
        if code is not None and code != before.xid:
            before.xid = code
            if code > 0:
                yield xid_event(who, int(code), now_s, self._job)

    def _link(self, who: Who, before: Seen, values: Mapping[str, float], now_s: float) -> Iterator[EventRecord]:
        for name, active in UP.items():
            if name not in values:
                continue
            up = values[name] == active
            if before.up is None:
                before.up = up or None  # it counts from the first time that it was seen up
            elif before.up != up:
                before.up = up
                yield link_event(who, up, now_s, self._job)

    def _back(self, node: str, now_s: float) -> Iterator[EventRecord]:
        """GPUs of a node that were lost and are told of again."""
        told = [one for one in self.known[node].values() if one.uuid and one.seen_s == now_s]
        back = [one for one in self.known[node].values() if one.lost_as and any(one.back_as(other) for other in told)]
        for device in sorted({one.lost_as for one in back}):
            yield back_event(node, device, now_s, self._job)
        for one in back:
            one.lost_as = ""

    def _lost(self, node: str, now_s: float) -> Iterator[EventRecord]:
        """GPUs of a node whose exporter has just told of others."""
        gpus = [one for one in self.known[node].values() if one.uuid]
        told = [(Who(node, one.device, one.uuid), one.first_s, one.seen_s) for one in gpus]
        for who, _ in lost_cards(told, self._patience_s):
            parts = [one for one in gpus if one.uuid.partition("/")[0] == who.uuid]
            if not any(one.lost_as for one in parts):
                yield lost_event(who, now_s, self._job)
            for one in parts:
                one.lost_as = who.device
