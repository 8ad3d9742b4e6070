"""Whatever the Kafka library raises, and whoever answers in a broker's place: only errors of our tree come out."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import IllegalStateError, KafkaTimeoutError, UnknownError

from tests.contract.bus_harness import event, ids, wait_until
from tests.system.test_kafka_topics import Cluster, cluster
from trainwarden.bus.kafka.engine import KafkaBus, KafkaConfig
from trainwarden.errors import BusError, BusUnavailable
from trainwarden.topics import EVENTS

__all__ = ["cluster"]

pytestmark = [
    pytest.mark.system,
    pytest.mark.kafka,
]


CALLS = [
    (KafkaProducer, ("send", "flush", "partitions_for", "close")),
    (
        KafkaConsumer,
        (
            "poll", "pause", "resume", "paused", "seek", "position", "committed", "commit", "highwater", "assign",
            "beginning_offsets", "end_offsets", "offsets_for_times", "partitions_for_topic", "close",
        ),
    ),
    (KafkaAdminClient, ("list_topics",)),
]  # fmt: skip
RAISED = [KafkaTimeoutError("late"), IllegalStateError("closed"), UnknownError("what?"), ValueError("no partition")]


def uses(bus: KafkaBus, consumer: Any, number: int) -> dict[str, Callable[[], object]]:
    """Each way in which services use a bus."""
    return {
        "publish": lambda: bus.publish(EVENTS, "k", event("k", number)),
        "flush": lambda: bus.flush(1.0),
        "poll": lambda: consumer.poll(0.2),
        "commit": consumer.commit,
        "lag": consumer.lag,
        "committed": consumer.committed,
        "seek": lambda: consumer.seek({(EVENTS.name, 0): 0}),
        "seek_to_time": lambda: consumer.seek_to_time(0.0),
        "read": lambda: list(bus.read(EVENTS)),
        "consumer": lambda: bus.consumer([EVENTS], "other").close(),
        "flush again": lambda: bus.flush(1.0),
    }


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_no_error_of_the_library_comes_out_and_no_record_is_lost(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    bus = cluster.open()
    consumer = bus.consumer([EVENTS], "g")
    wait_until(lambda: consumer.poll(0.1) == [] and consumer.assignment(), "an assignment")
    taken, leaks, raised, open_still = set(), [], set(), []

    def broken(name: str) -> Callable[..., Any]:
        def call(client: Any, *_words: Any, **_named: Any) -> Any:
            raised.add(name)
            if name.endswith(".close"):
                open_still.append(client)
            raise error

        return call

    number = 0
    for kind, names in CALLS:
        for name in names:
            number += 1
            with monkeypatch.context() as patched:
                patched.setattr(kind, name, broken(f"{kind.__name__}.{name}"))
                for use, call in uses(bus, consumer, number).items():
                    try:
                        call()
                    except BusError:
                        continue
                    except Exception as leaked:
                        leaks.append((f"{kind.__name__}.{name}", use, repr(leaked)))
                        continue
                    if use == "publish":
                        taken.add(f"k/{number}")
    for client in open_still:  # else its sockets are a later test's: six for each error
        client.close()
    bus.flush()
    assert leaks == []
    assert len(raised) >= 15, "the library was asked"
    assert {f"k/{one}" for one in range(1, number + 1)} >= set(ids(list(bus.read(EVENTS)))) >= taken


def test_a_topic_that_was_made_again_with_fewer_partitions_is_written_on(cluster: Cluster) -> None:
    config = KafkaConfig(partitions=8, topic_prefix=cluster.config.topic_prefix)
    bus = KafkaBus([cluster.server], config)
    cluster.buses.append(bus)
    for number in range(16):
        bus.publish(EVENTS, f"k{number}", event(f"k{number}", 0))
    bus.flush()
    cluster.admin.delete_topics([cluster.topic])
    wait_until(lambda: cluster.topic not in cluster.admin.list_topics(), "the topic is gone")
    cluster.admin.create_topics({cluster.topic: {"num_partitions": 2, "replication_factor": 1}})
    bus._producer._producer._metadata.request_update()
    time.sleep(1.0)
    wanted = set()

    def said() -> bool:
        for number in range(16):
            name = f"k{number}/{len(wanted)}"
            bus.publish(EVENTS, f"k{number}", event(f"k{number}", len(wanted)))
            wanted.add(name)
        try:
            bus.flush(2.0)
        except BusUnavailable:
            return False
        return True

    wait_until(said, "all is acknowledged")
    assert set(ids(list(bus.read(EVENTS)))) >= wanted


@contextmanager
def answering(answer: bytes | None) -> Iterator[str]:
    """A server that is no broker: it says `answer` to whatever it is told; None hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve(connection: socket.socket) -> None:
            with connection, suppress(OSError):
                connection.settimeout(5.0)
                while answer is not None and connection.recv(1 << 16):
                    connection.sendall(answer)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    "answer",
    [None, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00" * 64, b"\xff" * 64, b"\x7f\xff\xff\xff" + b"A" * 4096],
    ids=["hangs up", "silent", "http", "zeros", "ones", "endless"],
)
def test_who_answers_and_is_no_broker_is_one_error_of_ours_in_time(answer: bytes | None) -> None:
    config = KafkaConfig(connect_timeout_s=2.0, request_timeout_s=2.0)
    started_s = time.monotonic()
    with answering(answer) as server, pytest.raises(BusError, match=r"kafka 127\.0\.0\.1"):
        KafkaBus([server], config)
    assert time.monotonic() - started_s < 60.0
