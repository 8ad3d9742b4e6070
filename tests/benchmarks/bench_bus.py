"""Speed of the bus and of the record codec, each against a named peer of the same run where there is one.

Run as ``python -m tests.benchmarks.bench_bus [NAME...]``.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.records import EventRecord, MetricsRecord
from trainwarden.topics import EVENTS, METRICS

NAMES = ("bus_embedded_records_per_s", "bus_kafka_vs_bare_ratio", "codec_encode_us", "codec_decode_us")
GPUS = 8
METRICS_PER_GPU = 20
FLUSH_RECORDS = 50  # a flush per 50 node records: what 50 agents of one tick, or one agent catching up, would do
EMBEDDED_RECORDS = 10_000
KAFKA_RECORDS = 20_000
KAFKA_BYTES = 200  # traps: the size at which kafka-python's own rates were measured
CODEC_LOOPS = 20_000
ROUNDS = 5


def benchmarks(names: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """One object a benchmark, as `trainwarden bench` prints them; all, or those named."""
    made: dict[str, Callable[[], dict[str, Any]]] = {
        "bus_embedded_records_per_s": embedded_records_per_s,
        "bus_kafka_vs_bare_ratio": kafka_vs_bare_ratio,
        "codec_encode_us": codec_encode_us,
        "codec_decode_us": codec_decode_us,
    }
    return [make() for name, make in made.items() if not names or name in names]


def embedded_records_per_s() -> dict[str, Any]:
    """Node records per second that one process publishes and flushes to disk."""
    record = _node_record()
    rates = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            bus = EmbeddedBus(f"{folder}/bus.db")
            began_s = time.perf_counter()
            for number in range(EMBEDDED_RECORDS):
                bus.publish(METRICS, f"job{number % 4}", record)
                if number % FLUSH_RECORDS == FLUSH_RECORDS - 1:
                    bus.flush()
            bus.flush()
            rates.append(EMBEDDED_RECORDS / (time.perf_counter() - began_s))
            bus.close()
    return _result("bus_embedded_records_per_s", rates, "records/s", bar=5_000.0, higher_is_better=True)


def kafka_vs_bare_ratio() -> dict[str, Any]:
    """Our Kafka engine's produce rate over that of a bare kafka-python loop with the same settings, in turns.

    Needs the repository's tests and their broker; elsewhere it says why it was skipped.
    """
    name = "bus_kafka_vs_bare_ratio"
    try:
        from tests.servers.kafka import KafkaBroker, ServerMissing
    except ImportError as error:
        return _skipped(name, "ratio", 0.8, f"the broker that the tests start is not here: {error}")
    with tempfile.TemporaryDirectory() as folder:
        try:
            broker = KafkaBroker(Path(folder))
        except ServerMissing as missing:
            return _skipped(name, "ratio", 0.8, str(missing))
        broker.start()
        try:
            pairs = _kafka_rounds(broker.server)
        finally:
            broker.stop()
    result = _result(name, [ours / bare for ours, bare in pairs], "ratio", bar=0.8, higher_is_better=True)
    bare = statistics.median(bare for _, bare in pairs)
    result["peer"] = {"name": "kafka-python, bare loop (records/s)", "version": version("kafka-python"), "value": bare}
    result["ratio"] = result["value"]
    result["records_per_s"] = statistics.median(ours for ours, _ in pairs)
    return result


def codec_encode_us() -> dict[str, Any]:
    """Microseconds to encode one small record, beside ``json.dumps`` of the same content."""
    event = _event()
    plain = msgspec.to_builtins(event)
    return _codec("codec_encode_us", lambda: EVENTS.encode(event), lambda: json.dumps(plain).encode())


def codec_decode_us() -> dict[str, Any]:
    """Microseconds to decode and check one small record, beside ``json.loads`` of the same bytes, unchecked."""
    value = EVENTS.encode(_event())
    return _codec("codec_decode_us", lambda: EVENTS.decode(value), lambda: json.loads(value))


def _codec(name: str, ours: Callable[[], object], peer: Callable[[], object]) -> dict[str, Any]:
    mine, theirs = [], []
    for _ in range(2 * ROUNDS):
        mine.append(_each_us(ours))
        theirs.append(_each_us(peer))
    result = _result(name, mine, "us", bar=1.0, higher_is_better=False)
    value = statistics.median(theirs)
    result["peer"] = {"name": "json (standard library)", "version": sys.version.split()[0], "value": value}
    result["ratio"] = value / result["value"]
    return result


def _each_us(call: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    for _ in range(CODEC_LOOPS):
        call()
    return (time.perf_counter() - began_s) / CODEC_LOOPS * 1e6


def _kafka_rounds(server: str) -> list[tuple[float, float]]:
    from kafka import KafkaProducer

    from trainwarden.bus.kafka.client import Clients
    from trainwarden.bus.kafka.engine import KafkaBus, KafkaConfig

    # The queue is large enough that our own limit never holds our side up.
    config = KafkaConfig(topic_prefix=f"b{uuid.uuid4().hex[:6]}.", max_queue_bytes=1 << 30)
    bus = KafkaBus([server], config)
    producer = KafkaProducer(**Clients([server], config).producer())
    record = _event("x" * KAFKA_BYTES)
    record = _event("x" * (2 * KAFKA_BYTES - len(EVENTS.encode(record))))  # encoded, it has KAFKA_BYTES
    value = EVENTS.encode(record)
    topic = config.topic_prefix + EVENTS.name

    def ours() -> None:
        for number in range(KAFKA_RECORDS):
            bus.publish(EVENTS, f"job{number % 16}", record)
        bus.flush(120.0)

    def bare() -> None:
        for number in range(KAFKA_RECORDS):
            producer.send(topic, value, key=f"job{number % 16}".encode())
        producer.flush(120.0)

    try:
        for warm_up in (ours, bare):
            warm_up()
        return [_in_turn(ours, bare, number) for number in range(ROUNDS)]
    finally:
        producer.close(timeout=5)
        bus.close()


def _in_turn(ours: Callable[[], None], bare: Callable[[], None], number: int) -> tuple[float, float]:
    """Rates of both; who goes first changes from round to round."""
    rates = {}
    for run in (ours, bare) if number % 2 else (bare, ours):
        began_s = time.perf_counter()
        run()
        rates[run] = KAFKA_RECORDS / (time.perf_counter() - began_s)
    return rates[ours], rates[bare]


def _node_record() -> MetricsRecord:
    """What one 8-GPU node sends each tick: 20 metrics of every GPU."""
    rng = random.Random(0)
    values = tuple(tuple(round(rng.uniform(0, 1e4), 2) for _ in range(GPUS)) for _ in range(METRICS_PER_GPU))
    names = tuple(f"gpu_metric_number_{number}_celsius" for number in range(METRICS_PER_GPU))
    devices = tuple(f"GPU-{number}" for number in range(GPUS))
    return MetricsRecord(
        job="job", node="node-0001", time_s=1_700_000_000.0, devices=devices, names=names, values=values
    )


def _event(message: str = "") -> EventRecord:
    return EventRecord(
        id="exit/n7/4711-1700000000", job="llama", node="n7", time_s=1_700_000_000.25, kind="phase", rank=42,
        message=message,
    )  # fmt: skip


def _result(name: str, values: list[float], unit: str, *, bar: float, higher_is_better: bool) -> dict[str, Any]:
    value = statistics.median(values)
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "rounds": len(values),
        "spread": max(values) - min(values),
        "peer": None,
        "ratio": None,
        "bar": bar,
        "holds": value >= bar if higher_is_better else value <= bar,
    }


def _skipped(name: str, unit: str, bar: float, reason: str) -> dict[str, Any]:
    empty = {"value": None, "unit": unit, "rounds": 0, "spread": None, "peer": None, "ratio": None}
    return {"name": name, **empty, "bar": bar, "holds": None, "skipped": reason}


if __name__ == "__main__":
    print(json.dumps(benchmarks(tuple(sys.argv[1:])), indent=2))
