"""The Kafka engine's settings and buffers, as far as they need no broker."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.consumer.fetcher import ConsumerRecord

from trainwarden.bus.address import connect
from trainwarden.bus.dead_letters import Decoder
from trainwarden.bus.kafka import buffers as kafka_buffers
from trainwarden.bus.kafka.buffers import Buffers
from trainwarden.bus.kafka.client import Clients
from trainwarden.bus.kafka.engine import KafkaConfig
from trainwarden.bus.kafka.read import message_of
from trainwarden.errors import ConfigError
from trainwarden.protocols import Message
from trainwarden.records import HeartbeatRecord
from trainwarden.settings import parse
from trainwarden.topics import HEARTBEATS

SERVERS = ["broker:9092"]


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        ({"partition": 3}, "unknown key .?partition"),
        ({"partitions": 0}, "expected `int` >= 1 at partitions"),
        ({"compression": "snappy"}, "invalid enum value 'snappy' at compression"),
        ({"topic_prefix": "a b"}, "at topic_prefix"),
        ({"sasl_mechanism": "GSSAPI"}, "at sasl_mechanism"),
        ({"connect_timeout_s": "10"}, "at connect_timeout_s"),
    ],
)
def test_impossible_settings_are_one_sentence(raw: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^kafka: .*{sentence}"):
        connect("kafka://broker:9092", raw)


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        ({"tls": True, "ca_file": "/nowhere/ca.pem"}, "ca_file '/nowhere/ca.pem' does not exist"),
        ({"sasl_mechanism": "PLAIN"}, "needs username and password"),
        ({"username": "me", "password": "p"}, "no effect without sasl_mechanism"),
    ],
)
def test_contradictions_are_one_sentence(raw: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Clients(SERVERS, parse(KafkaConfig, raw, "kafka"))


def test_files_belong_to_tls_and_come_in_pairs(tmp_path: Path) -> None:
    pem = tmp_path / "x.pem"
    pem.write_text("x")
    with pytest.raises(ConfigError, match="no effect without tls"):
        Clients(SERVERS, KafkaConfig(ca_file=str(pem)))
    with pytest.raises(ConfigError, match="together or not at all"):
        Clients(SERVERS, KafkaConfig(tls=True, cert_file=str(pem)))


@pytest.mark.parametrize("server", ["broker", "broker:", ":9092", "broker:port", "broker:70000", ""])
def test_a_server_is_host_and_port(server: str) -> None:
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        Clients([server], KafkaConfig())


def test_security_and_durability_reach_the_clients(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hush\n")
    config = KafkaConfig(tls=True, sasl_mechanism="SCRAM-SHA-512", username="me", password_file=str(secret))
    clients = Clients(["[::1]:9092", "b:9093"], config)
    for settings in (clients.common(), clients.producer(), clients.consumer()):
        assert settings["security_protocol"] == "SASL_SSL"
        assert (settings["sasl_mechanism"], settings["sasl_plain_password"]) == ("SCRAM-SHA-512", "hush")
        assert settings["bootstrap_servers"] == ["[::1]:9092", "b:9093"]
    assert clients.producer()["acks"] == "all"
    assert clients.producer()["enable_idempotence"] is True
    assert clients.consumer()["enable_auto_commit"] is False
    for tls, mechanism, expected in (
        (False, None, "PLAINTEXT"),
        (True, None, "SSL"),
        (False, "PLAIN", "SASL_PLAINTEXT"),
    ):
        login = {"username": "me", "password": "p"} if mechanism else {}
        made = Clients(SERVERS, KafkaConfig(tls=tls, sasl_mechanism=mechanism, **login))  # type: ignore[arg-type]
        assert made.common()["security_protocol"] == expected


@given(
    parts=st.lists(st.lists(st.integers(0, 20), max_size=8), max_size=5),
    cut=st.integers(0, 8),
)
def test_buffers_give_the_oldest_head_and_keep_each_partitions_order(parts: list[list[int]], cut: int) -> None:
    buffers = Buffers()
    queues = {
        partition: [SimpleNamespace(timestamp=time, value=b"x", offset=offset) for offset, time in enumerate(times)]
        for partition, times in enumerate(parts)
    }
    for partition, queue in queues.items():
        buffers.add(partition, queue[:cut])
    for partition, queue in queues.items():
        buffers.add(partition, queue[cut:])
    taken: dict[int, list[int]] = {partition: [] for partition in queues}
    while (head := buffers.peek()) is not None:
        partition, raw = head
        heads = [queue[len(taken[one])].timestamp for one, queue in queues.items() if len(taken[one]) < len(queue)]
        assert raw.timestamp == min(heads)
        assert buffers.first_offset(partition) == raw.offset
        assert buffers.pop_all() is raw
        taken[partition].append(raw.offset)
    assert taken == {partition: list(range(len(queue))) for partition, queue in queues.items()}
    assert not buffers


def test_buffers_are_full_by_bytes_and_by_records_and_forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_buffers, "MAX_BUFFER_RECORDS", 3)
    monkeypatch.setattr(kafka_buffers, "MAX_BUFFER_BYTES", 100)
    buffers = Buffers()
    buffers.add("few", [SimpleNamespace(timestamp=5, value=b"x", offset=0)] * 2)
    buffers.add("many", [SimpleNamespace(timestamp=1, value=None, offset=7)] * 3)
    buffers.add("large", [SimpleNamespace(timestamp=9, value=b"x" * 100, offset=0)])
    assert buffers.full() == {"many", "large"}
    buffers.pop_all()
    assert buffers.full() == {"large"}
    buffers.keep_only({"few"})
    assert (buffers.full(), buffers.first_offset("many"), buffers.pop_all().timestamp) == (set(), None, 5)


@pytest.mark.parametrize(("timestamp_type", "stamped"), [(0, False), (1, True)])
def test_who_has_stamped_a_message_is_known(timestamp_type: int, *, stamped: bool) -> None:
    record = HeartbeatRecord(job="j", node="n", time_s=1.0)
    raw = ConsumerRecord(
        HEARTBEATS.name, 0, None, 7, 1500, timestamp_type, b"j", HEARTBEATS.encode(record), [], None, 1, 1, 0
    )
    found = message_of(raw, HEARTBEATS.name, Decoder({HEARTBEATS.name: HEARTBEATS}, None))
    assert found == Message(HEARTBEATS.name, 0, 7, 1.5, "j", record, stamped)
