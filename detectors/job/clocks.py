"""One clock for a job, that of the bus: nodes and services need not agree on the time.

Everything a node says bears the time of its own clock. How far that is off is told by its heartbeats, which bear the
time at which they were sent and are stamped by the bus as they come. In the same way a service knows its own clock.
Durations are measured by one clock as it is, and are not touched.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

import msgspec

from trainwarden.clock import Clock
from trainwarden.protocols import Message
from trainwarden.records import (
    CollectivesRecord,
    EventRecord,
    HeartbeatRecord,
    IterationRecord,
    LogRecord,
    MetricsRecord,
    Record,
)

MAX_TIME_S: Final = 1e11  # far beyond any clock
SEEMS_RIGHT_S: Final = 2.0  # what comes late looks like a clock that is so far behind
SPAN_S: Final = 30.0
LATE_S: Final = 5.0
MAX_NODES: Final = 32_768  # names and boots of one job, twice those of 16,384 nodes; of more the newest are known
STEADY_S: Final = 1.0  # a clock that is behind stays so far behind; what waited somewhere catches up

Name = tuple[str, str]
"""A node, and its boot: two machines under one name have a clock each."""
_Timed = CollectivesRecord | EventRecord | HeartbeatRecord | MetricsRecord
_BUS: Final = ("", "")


class ClockOffsets:
    """How far other clocks are ahead of one, by name, from what they show and when that comes.

    What is sent comes late, never early: the most that a clock has seemed to be ahead in the last half minute or more
    is nearest the truth, and one that seems to be behind is believed once it has been equally far behind for some time,
    as it may only be heard late. Clocks that seem right are left alone, and an answer stays while it is about right.

    Examples
    --------
    >>> ahead, a, b = ClockOffsets(), ("a", ""), ("b", "")
    >>> for name, said_s, at_s in ((a, 1090.0, 1000.5), (a, 1091.1, 1001.2), (b, 999.5, 1000.5)):
    ...     ahead.observe(name, said_s, at_s)
    >>> ahead.of(a), ahead.of(b), ahead.of(("nobody", ""))
    (89.5, 0.0, 0.0)
    """

    def __init__(self) -> None:
        self._ahead_s: dict[Name, float] = {}
        self._behind_s: dict[Name, tuple[float, float]] = {}  # since when; how far ahead it has seemed to be since
        self._most_s: dict[Name, tuple[float, float, float]] = {}  # since when; the most since then; the most before

    def observe(self, name: Name, said_s: float, at_s: float) -> None:
        """Clock `name` showed `said_s` in what came at `at_s`."""
        ahead_s = said_s - at_s
        since_s, most_s, before_s = self._most_s.get(name, (at_s, ahead_s, ahead_s))
        if not 0.0 <= at_s - since_s < SPAN_S:
            since_s, most_s, before_s = at_s, ahead_s, most_s
        self._most_s[name] = since_s, max(most_s, ahead_s), before_s
        seems_s = max(most_s, before_s, ahead_s)
        if abs(seems_s) <= SEEMS_RIGHT_S:
            seems_s = 0.0
        elif seems_s < 0.0 and not self._steady(name, seems_s, at_s):
            return
        if abs(seems_s - self.of(name)) > SEEMS_RIGHT_S:
            self._ahead_s[name] = seems_s

    def _steady(self, name: Name, seems_s: float, at_s: float) -> bool:
        since_s, was_s = self._behind_s.get(name, (at_s, seems_s))
        if abs(seems_s - was_s) > STEADY_S or at_s < since_s:
            since_s, was_s = at_s, seems_s
        self._behind_s[name] = since_s, was_s
        return at_s - since_s >= LATE_S

    def set(self, name: Name, by_s: float) -> None:
        """Clock `name` has been set forward by `by_s`."""
        if name in self._most_s:
            since_s, most_s, before_s = self._most_s[name]
            self._most_s[name] = since_s, most_s + by_s, before_s + by_s
        ahead_s = self.of(name) + by_s
        self._ahead_s[name] = 0.0 if abs(ahead_s) <= SEEMS_RIGHT_S else ahead_s

    def forget(self, name: Name) -> None:
        """Nothing is known of clock `name` any more."""
        for known in (self._ahead_s, self._behind_s, self._most_s):
            known.pop(name, None)

    def most(self, name: Name, unknown_s: float) -> float:
        """The most that clock `name` has seemed to be ahead of late, `unknown_s` if it was not heard."""
        _, most_s, before_s = self._most_s.get(name, (0.0, unknown_s, unknown_s))
        return max(most_s, before_s)

    def of(self, name: Name) -> float:
        """How far clock `name` is ahead; 0 if it seems right, or nothing is known of it."""
        return self._ahead_s.get(name, 0.0)


class NodeClocks:
    """The clocks of a job's nodes.

    That one was set is told by the heartbeats too, which bear a time that nobody sets beside the other.

    Examples
    --------
    >>> clocks = NodeClocks()
    >>> clocks.on_bus(HeartbeatRecord(job="j", node="n", time_s=1090.0), at_s=1000.0).time_s
    1000.0
    >>> clocks.on_bus(EventRecord(id="e", job="j", node="n", time_s=1091.5, kind="xid"), at_s=1003.0).time_s
    1001.5
    """

    def __init__(self) -> None:
        self._ahead = ClockOffsets()
        self._newest: dict[Name, tuple[float, float, float]] = {}  # a heartbeat's times: its own, unset, of the bus
        self._of_node: dict[str, Name] = {}
        self._of_rank: dict[int | None, Name] = {}
        self._ranks: dict[Name, tuple[int, ...]] = {}

    def on_bus(self, record: Record, at_s: float) -> Record:
        """`record`, which the bus has stamped `at_s`, with all its times by the clock of the bus."""
        node: str = getattr(record, "node", None) or ""
        if isinstance(record, HeartbeatRecord):
            name = node, record.boot
            if 0.0 <= record.time_s < MAX_TIME_S:
                self._heard(name, record, at_s)
        else:
            name = self._of_rank.get(getattr(record, "rank", None), _BUS)
            if name[0] != node:
                name = self._of_node.get(node, _BUS)
        ahead_s, newest_s = self._ahead.of(name), _newest_s(record)
        if at_s + SEEMS_RIGHT_S < newest_s - ahead_s < MAX_TIME_S:
            ahead_s = newest_s - at_s  # its clock is not known yet, but nothing comes before it was
        return record if ahead_s == 0.0 else _earlier(record, ahead_s)

    def bus_set(self, by_s: float) -> None:
        """The bus has been set forward by `by_s`, and the nodes have not."""
        for name, (said_s, unset_s, at_s) in self._newest.items():
            self._newest[name] = said_s, unset_s, at_s + by_s
            self._ahead.set(name, -by_s)

    def _heard(self, name: Name, record: HeartbeatRecord, at_s: float) -> None:
        said_s, unset_s = record.time_s, record.monotonic_s
        self._of_node[name[0]] = name
        known = self._ranks.pop(name, None)
        self._ranks[name] = record.ranks  # who was heard last is the last
        if known != record.ranks:
            self._of_rank.update(dict.fromkeys(record.ranks, name))
        if len(self._ranks) > MAX_NODES:  # a quarter at once, as each look for the first passes all that are gone
            for oldest in tuple(islice(self._ranks, MAX_NODES // 4)):
                self._forget(oldest)
        if unset_s is not None:
            newest = self._newest.get(name, (said_s, unset_s, at_s))
            past_s = unset_s - newest[1]
            if -SPAN_S < past_s < 0.0:
                return  # it was overtaken, and what it shows is over
            set_s = said_s - newest[0] - past_s
            # What has waited somewhere does not tell how far ahead its clock is.
            if abs(set_s) > SEEMS_RIGHT_S and abs(at_s - newest[2] - past_s) <= SEEMS_RIGHT_S:
                self._ahead.set(name, set_s)
            self._newest[name] = said_s, unset_s, at_s
        self._ahead.observe(name, said_s, at_s)

    def _forget(self, name: Name) -> None:
        for rank in self._ranks.pop(name):
            if self._of_rank.get(rank) == name:
                del self._of_rank[rank]
        if self._of_node.get(name[0]) == name:
            del self._of_node[name[0]]
        self._newest.pop(name, None)
        self._ahead.forget(name)


class BusClock:
    """A service's clock by that of the bus, as what has just come shows it.

    It never goes back: where the bus is set back, what it stamps from then on is put on the clock of before.
    """

    def __init__(self, own: Clock) -> None:
        self._own = own
        self._bus = ClockOffsets()
        self._set_s = own.now_s() - own.monotonic_s()
        self._seemed_s = 0.0  # how far ahead the bus was by what came last
        self._back_s = 0.0  # how far the bus is set back
        self._newest: dict[tuple[str, int], tuple[int, float, float]] = {}  # by log: offset, stamp, steady clock then

    def observe(self, message: Message) -> tuple[float, float]:
        """`message` has just come: when the bus has stamped it, and how far it has been set forward since the last."""
        now_s, steady_s = self._own.now_s(), self._own.monotonic_s()
        if not message.stamped:
            return self.now_s(), 0.0
        log, at_s = (message.topic, message.partition), message.time_s + self._back_s
        offset, before_s, then_s = self._newest.get(log, (message.offset, at_s, steady_s))
        if message.offset > offset and at_s < before_s - SEEMS_RIGHT_S:  # a log is written in order
            back_s = before_s + steady_s - then_s - at_s
            self._back_s, at_s = self._back_s + back_s, at_s + back_s
        at_s, forward_s = self._forward(at_s, now_s, now_s - steady_s)
        self._newest[log] = message.offset, at_s, steady_s
        self._seemed_s = at_s - now_s
        self._bus.observe(_BUS, at_s, now_s)
        return at_s, forward_s

    def _forward(self, at_s: float, now_s: float, set_s: float) -> tuple[float, float]:
        """The stamp, and how far the bus was set forward, beyond what it had been set back."""
        by_s, self._set_s = set_s - self._set_s, set_s
        seems_s = at_s - now_s
        alone = abs(seems_s - self._seemed_s + by_s) < abs(seems_s - self._seemed_s)  # else the bus was set as well
        if abs(by_s) > SEEMS_RIGHT_S and alone:
            self._bus.set(_BUS, -by_s)
        with_us_s = 0.0 if alone else by_s
        forward_s = max(with_us_s, seems_s - self._bus.most(_BUS, seems_s))  # nothing comes before it was
        if forward_s <= SEEMS_RIGHT_S:
            return at_s, 0.0
        again_s = min(forward_s, self._back_s)
        self._back_s -= again_s
        if with_us_s > 0.0:
            self._bus.set(_BUS, -again_s)
        return at_s - again_s, forward_s - again_s

    def now_s(self) -> float:
        """See `trainwarden.clock.Clock`."""
        return self._own.now_s() + self._bus.of(_BUS)

    def monotonic_s(self) -> float:
        """See `trainwarden.clock.Clock`."""
        return self._own.monotonic_s()

    def sleep(self, seconds: float) -> None:
        """See `trainwarden.clock.Clock`."""
        self._own.sleep(seconds)


def _newest_s(record: Record) -> float:
    """The newest time that `record` says of itself."""
    if isinstance(record, IterationRecord):
        return max(record.end_s, default=0.0)
    if isinstance(record, LogRecord):
        return max(record.times_s, default=0.0)
    return record.time_s if isinstance(record, _Timed) else 0.0


def _earlier(record: Record, by_s: float) -> Record:
    """`record` with all its times `by_s` earlier."""
    if isinstance(record, HeartbeatRecord):
        ends_s, since_s = (
            tuple(None if time_s is None else time_s - by_s for time_s in lane)
            for lane in (record.step_end_s, record.phase_since_s)
        )
        return msgspec.structs.replace(record, time_s=record.time_s - by_s, step_end_s=ends_s, phase_since_s=since_s)
    if isinstance(record, IterationRecord):
        return msgspec.structs.replace(record, end_s=tuple(end_s - by_s for end_s in record.end_s))
    if isinstance(record, LogRecord):
        return msgspec.structs.replace(record, times_s=tuple(time_s - by_s for time_s in record.times_s))
    if isinstance(record, _Timed):
        return msgspec.structs.replace(record, time_s=record.time_s - by_s)
    return record
