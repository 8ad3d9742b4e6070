"""When what an event tells began: what is told by silence or standstill is told later."""

from __future__ import annotations

from typing import Final

from trainwarden.records import EventRecord

DAY_S: Final = 86_400.0


def began_s(event: EventRecord) -> float:
    """The event's ``since_s``, if it has one that lies within the day before it; else its own time.

    Examples
    --------
    >>> event = EventRecord(id="1", job="j", node="n", time_s=90.0, kind="device_lost", fields={"since_s": 20.0})
    >>> began_s(event)
    20.0
    """
    since_s = event.fields.get("since_s")
    if isinstance(since_s, int | float) and event.time_s - DAY_S <= since_s <= event.time_s:
        return float(since_s)
    return event.time_s
