"""Both engines behind one face, and the processes that the kill tests kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from tests.places import ROOT
from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.bus.kafka.engine import KafkaBus, KafkaConfig
from trainwarden.protocols import Bus, Consumer, Message
from trainwarden.records import EventRecord
from trainwarden.topics import Topic

DEADLINE_S = 120.0  # for anything that should happen at once; only a broken engine needs so long
PARTITIONS = 4


def event(key: str, number: int, message: str = "") -> EventRecord:
    """Record number `number` of `key`."""
    return EventRecord(id=f"{key}/{number}", job=key, node="n0", time_s=float(number), kind="phase", message=message)


def ids(messages: Sequence[Message]) -> list[str]:
    """Their records' ids, in order."""
    return [message.record.id for message in messages]  # type: ignore[attr-defined]


class Engine:
    """One storage: `open` connects to it, any number of times, also from other processes."""

    def __init__(self, kind: str, place: str, prefix: str) -> None:
        self.kind = kind
        self.place = place
        self.prefix = prefix
        self._buses: list[Bus] = []

    def open(self, session_s: float = 2.0) -> Bus:
        """A new connection, closed after the test; its members are taken for dead after `session_s` of silence."""
        bus: Bus
        if self.kind == "embedded":
            bus = EmbeddedBus(self.place, partitions=PARTITIONS)
        else:
            config = KafkaConfig(partitions=PARTITIONS, topic_prefix=self.prefix, session_timeout_s=session_s)
            bus = KafkaBus([self.place], config)
        self._buses.append(bus)
        return bus

    def expire(self, bus: Bus) -> None:
        """Let retention run now where it would otherwise wait for its turn."""
        if isinstance(bus, EmbeddedBus):
            bus.prune()

    def close(self) -> None:
        """Close all connections."""
        for bus in self._buses:
            bus.close()


def poll_until(consumer: Consumer, count: int, deadline_s: float = DEADLINE_S) -> list[Message]:
    """Poll until `count` messages have come; fails with what came if they do not."""
    messages: list[Message] = []
    end = time.monotonic() + deadline_s
    while len(messages) < count:
        messages += consumer.poll(0.2)
        assert time.monotonic() < end, f"{len(messages)} of {count} messages came"
    return messages


def wait_until(true: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait until `true()`; fails with `what` if it does not become so."""
    end = time.monotonic() + deadline_s
    while not true():
        assert time.monotonic() < end, f"waited in vain: {what}"
        time.sleep(0.02)


def joined(consumer: Consumer) -> Consumer:
    """`consumer`, once it reads at least one partition."""
    wait_until(lambda: consumer.poll(0.05) == [] and consumer.assignment(), "an assignment")
    return consumer


class Worker:
    """A child process that runs a function of this module's `main` against the same storage."""

    def __init__(self, engine: Engine, role: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "tests.contract.bus_harness", engine.kind, engine.place, engine.prefix, role]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [*command, *arguments], stdout=subprocess.PIPE, text=True, bufsize=1, env=environment
        )
        self.lines: list[str] = []

    def read_lines(self, count: int) -> list[str]:
        """Read on until `count` lines in all have come."""
        assert self._process.stdout is not None
        while len(self.lines) < count:
            line = self._process.stdout.readline()
            assert line, "the worker ended early"
            self.lines.append(line.strip())
        return self.lines

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def kill(self) -> list[str]:
        """SIGKILL; all whole lines it wrote in its life."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(timeout=20)
        assert self._process.stdout is not None
        rest = self._process.stdout.read()  # not `communicate`, which passes over what `readline` has read ahead
        self.lines += [line for line in rest.split("\n")[:-1] if line]
        return self.lines

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        if self._process.poll() is None:
            self.kill()
        if self._process.stdout is not None:
            self._process.stdout.close()


def _produce(bus: Bus, topic: Topic[Any], key: str) -> None:
    """Publish and flush for ever; a line per record that `flush` returned for."""
    number = 0
    while True:
        batch = range(number, number + 7)
        for index in batch:
            bus.publish(topic, key, event(key, index))
        bus.flush()
        for index in batch:
            print(index, flush=True)
        number += 7


def _consume(bus: Bus, topic: Topic[Any], group: str) -> None:
    """Poll and commit for ever; a line per record before it is committed."""
    consumer = bus.consumer([topic], group)
    while True:
        for record_id in ids(consumer.poll(0.2, max_records=5)):
            print(record_id, flush=True)
        consumer.commit()


def _follow(bus: Bus, topic: Topic[Any], group: str) -> None:
    """Poll and commit for ever; a line for each assignment, and for each record."""
    consumer, shown = bus.consumer([topic], group), -1
    while True:
        records = ids(consumer.poll(0.2))
        if len(consumer.assignment()) != shown:
            shown = len(consumer.assignment())
            print(f"owns {shown}", flush=True)
        for record_id in records:
            print(record_id, flush=True)
        consumer.commit()


def main(kind: str, place: str, prefix: str, role: str, argument: str) -> None:
    """Entry of a `Worker`."""
    from trainwarden.topics import EVENTS

    bus = Engine(kind, place, prefix).open()
    {"produce": _produce, "consume": _consume, "follow": _follow}[role](bus, EVENTS, argument)


if __name__ == "__main__":
    main(*sys.argv[1:])
