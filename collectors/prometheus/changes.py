"""What has changed since the last scrape: Xids, links, GPUs that their exporter tells of no more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from trainwarden.prometheus.events import SILENT_INTERVALS, SILENT_S, UP, XID, link_event, lost_event, xid_event
from trainwarden.prometheus.exporters import Who
from trainwarden.records import EventRecord

Rows = Mapping[Who, Mapping[str, float]]
"""Values by device and catalogue name."""


class Seen(msgspec.Struct):
    """What is known of one device."""

    uuid: str
    seen_s: float
    xid: float = 0.0
    up: bool | None = None
    lost: bool = False


class Changes:
    """Events of one job; `known` is by node and device, plain data for a position.

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

    def take(self, rows: Rows, now_s: float) -> Iterator[EventRecord]:
        """The events of one scrape of one exporter."""
        gpus_of: set[str] = set()
        for who, values in rows.items():
            own = self.known.setdefault(who.node, {})
            before = own.get(who.device)
            if before is None:
                # What is there at the first look is old: nobody knows since when.
                before = own[who.device] = Seen(who.uuid, now_s, xid=values.get(XID, 0.0))
            else:
                yield from self._xid(who, before, values, now_s)
            yield from self._link(who, before, values, now_s)
            before.seen_s, before.lost = now_s, False
            if who.uuid:
                gpus_of.add(who.node)
        for node in sorted(gpus_of):
            yield from self._lost(node, now_s)

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

    def _lost(self, node: str, now_s: float) -> Iterator[EventRecord]:
        """GPUs of a node whose exporter has just told of others."""
        for device, seen in self.known[node].items():
            if seen.uuid and not seen.lost and now_s - seen.seen_s > self._patience_s:
                seen.lost = True
                yield lost_event(Who(node, device, seen.uuid), now_s, self._job)
