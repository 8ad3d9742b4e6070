"""Detection of one job of thousands of ranks over a real Kafka, in real time: what it costs, and when it names who.

Run as ``python -m tests.benchmarks.bench_fleet [RANKS]``, three minutes. One process plays all agents, as `trainwarden
simulate` does: all records that a real agent sends, scaled. With ``--fed`` the same records go straight into detection,
as fast as it handles them, and the cost of each kind is printed.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import psutil

from tests.doubles import ManualClock
from tests.unit.detectors.detection_streams import RememberingBus
from trainwarden.bus.address import connect
from trainwarden.detectors.service import DetectionHandler
from trainwarden.detectors.testing.streams import START_S, Sent
from trainwarden.protocols import Bus, Message
from trainwarden.records import IncidentRecord
from trainwarden.self_metrics import SelfMetrics
from trainwarden.settings import DetectionSettings
from trainwarden.simulation import Fleet
from trainwarden.topics import EVENTS, HEARTBEATS, INCIDENTS, ITERATIONS, LOGS, METRICS, topic_of

NAMES: Final = ("fleet_detection_processors", "fleet_slow_rank_named_s")
RANKS, SLOW, TIMES, AT_S, SECONDS = 4096, 77, 1.5, 45.0, 75.0
TOPICS: Final = (METRICS, ITERATIONS, HEARTBEATS, LOGS, EVENTS)
BARS: Final = {"fleet_detection_processors": 0.5, "fleet_slow_rank_named_s": 60.0}  # half a processor; a minute
_LEAD_S, _SHARE_EVERY_S = 15.0, 10.0


def fleet(ranks: int, start_s: float) -> Fleet:
    """A job with one rank that becomes slow."""
    return Fleet(ranks=ranks, seconds=SECONDS, start_s=start_s, fault="slow-rank", at_s=AT_S, rank=SLOW, slowdown=TIMES)


def benchmarks(ranks: int = RANKS) -> list[dict[str, Any]]:
    """Both rows; where there is no broker they say why not."""
    try:
        from tests.servers.kafka import BRIEF, KafkaBroker, ServerMissing, die_with_parent
    except ImportError as error:
        return [_row(name, ranks, skipped=f"the broker that the tests start is not here: {error}") for name in NAMES]
    with tempfile.TemporaryDirectory() as folder:
        try:
            broker = KafkaBroker(Path(folder) / "kafka", options=BRIEF)
        except ServerMissing as missing:
            return [_row(name, ranks, skipped=str(missing)) for name in NAMES]
        broker.start()
        try:
            return _measured(broker.server, ranks, die_with_parent)
        finally:
            broker.stop()


def _measured(server: str, ranks: int, tied: Callable[[], None]) -> list[dict[str, Any]]:
    job = fleet(ranks, time.time() + _LEAD_S + ranks / 50)
    sent = list(job.sent())  # made beforehand: the player is to have time for nothing but sending
    environ = {**os.environ, "TRAINWARDEN_BUS": f"kafka://{server}"}
    detector = subprocess.Popen(
        [sys.executable, "-m", "trainwarden", "detector"],
        env=environ,
        stderr=subprocess.DEVNULL,
        preexec_fn=tied,  # noqa: PLW1509 - a single C call, which takes no lock
    )
    bus = connect(f"kafka://{server}", {})
    try:
        shares = list(_played(bus, job.job, sent, psutil.Process(detector.pid)))
        bus.flush()
        found = _named(bus)
    finally:
        detector.terminate()
        detector.wait(60)
        bus.close()
    bare = _bare(server, len(sent)) / SECONDS
    own = {
        "name": "kafka-python, reading and decoding alone",
        "version": version("kafka-python"),
        "value": round(bare, 3),
    }
    value = statistics.median(shares)
    return [
        _row(NAMES[0], ranks, value, "processors", shares, peer=own, ratio=round(value / bare, 2)),
        _row(NAMES[1], ranks, None if found is None else found - job.fault_at_s, "s", []),
    ]


def _played(bus: Bus, job: str, sent: list[Sent], detector: psutil.Process) -> Iterator[float]:
    """Send each record in its time; every ten seconds, what part of a processor the detector has taken."""
    since_s, before_s = sent[0][0], None
    for at_s, record in sent:
        if (wait_s := at_s - time.time()) > 0.0:
            time.sleep(wait_s)
        bus.publish(topic_of(record), job, record)
        if at_s - since_s >= _SHARE_EVERY_S:
            now_s, times = time.time(), detector.cpu_times()
            if before_s is not None:
                yield (times.user + times.system - before_s[1]) / (now_s - before_s[0])
            since_s, before_s = at_s, (now_s, times.user + times.system)


def fed(ranks: int) -> dict[str, Any]:
    """Processor time of detection for a job's records, without bus and decoding, and of a snapshot of its memory."""
    job = fleet(ranks, START_S)
    sent, clock, end_s = list(job.sent()), ManualClock(START_S), START_S + SECONDS
    handler = DetectionHandler(DetectionSettings(), clock, SelfMetrics("detector"))
    bus = RememberingBus()
    handler.start(bus, bus)  # type: ignore[arg-type]
    spent_s, number, place = Counter[str](), Counter[str](), 0
    while clock.now_s() < end_s:
        clock.sleep(0.1)
        waiting: dict[str, list[Message]] = {}
        while place < len(sent) and sent[place][0] <= clock.now_s():
            at_s, record = sent[place]
            place += 1
            message = Message(topic_of(record).name, 0, place, at_s, job.job, record, True)
            waiting.setdefault(type(record).__name__, []).append(message)
        work = {kind: partial(handler.handle, messages) for kind, messages in waiting.items()}
        for kind, do in {**work, "windows": partial(handler.tick, clock.now_s())}.items():
            begun_s = time.process_time()
            list(do())
            spent_s[kind] += time.process_time() - begun_s
            number[kind] += len(waiting.get(kind, ())) or 1
    begun_s = time.process_time()
    kept = handler._jobs[job.job].snapshot()
    snapshot_s = time.process_time() - begun_s
    each_us = {kind: round(1e6 * spent_s[kind] / number[kind], 1) for kind in spent_s}
    processors = round(sum(spent_s.values()) / SECONDS, 3)
    return {
        "ranks": ranks,
        "processors": processors,
        "each_us": each_us,
        "snapshot_s": round(snapshot_s, 2),
        "snapshot_bytes": len(kept),
    }


def _named(bus: Bus, patience_s: float = 60.0) -> float | None:
    """When the first incident of slowness named the slow rank alone; None if none has."""
    until_s = time.time() + patience_s
    while time.time() < until_s:
        for record in _incidents(bus):
            if record.kind == "slow_compute" and [one.rank for one in record.suspects] == [SLOW]:
                return record.opened_at_s
        time.sleep(1.0)
    return None


def _incidents(bus: Bus) -> Iterable[IncidentRecord]:
    return [one.record for one in bus.read(INCIDENTS) if isinstance(one.record, IncidentRecord)]


def _bare(server: str, records: int) -> float:
    """Processor seconds to read the same records and decode them, with nothing else done."""
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        *(topic.name for topic in TOPICS),
        bootstrap_servers=server,
        auto_offset_reset="earliest",
        consumer_timeout_ms=5000,
    )
    begun_s, read = time.process_time(), 0
    for message in consumer:
        json.loads(message.value)
        read += 1
        if read == records:
            break
    spent_s = time.process_time() - begun_s
    consumer.close()
    assert read == records, f"{read} of {records} records were read"
    return spent_s


def _row(
    name: str, ranks: int, value: float | None = None, unit: str = "", rounds: list[float] | None = None, **more: Any
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": name,
        "ranks": ranks,
        "value": None if value is None else round(value, 3),
        "unit": unit,
    }
    row |= {"rounds": len(rounds or []) or 1, "spread": round(max(rounds) - min(rounds), 3) if rounds else None}
    row |= {"peer": None, "ratio": None, "bar": BARS[name]} | more
    return {**row, "holds": None if "skipped" in more else value is not None and value <= BARS[name]}


if __name__ == "__main__":
    size = int(next((word for word in sys.argv[1:] if word.isdigit()), RANKS))
    print(json.dumps(fed(size) if "--fed" in sys.argv else benchmarks(size), indent=2))
