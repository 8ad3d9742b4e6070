"""The bus at an address: embedded on one machine, Apache Kafka beyond it; both engines pass one contract suite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainwarden.errors import ConfigError
from trainwarden.protocols import Bus


def connect(address: str, kafka: Mapping[str, Any] | None = None, *, limit_bytes: int | None = None) -> Bus:
    """The bus at `address`.

    Parameters
    ----------
    address : str
        ``embedded:PATH`` or ``kafka://host:port[,host:port...]``.
    kafka : mapping, optional
        Settings of the Kafka engine (`trainwarden.bus.kafka.engine.KafkaConfig`).
    limit_bytes : int, optional
        Most bytes of an embedded bus; whoever publishes keeps to it.

    Raises
    ------
    ConfigError
        If the address is neither form.
    BusUnavailable
        If the broker or the file cannot be reached.
    """
    scheme, _, rest = address.partition(":")
    if scheme == "embedded" and rest:
        from trainwarden.bus.embedded.engine import EmbeddedBus

        return EmbeddedBus(rest, limit_bytes=limit_bytes)
    if scheme == "kafka" and rest.startswith("//") and len(rest) > 2:
        from trainwarden.bus.kafka.engine import KafkaBus, KafkaConfig
        from trainwarden.settings import parse

        return KafkaBus(rest[2:].split(","), parse(KafkaConfig, dict(kafka or {}), "kafka"))
    raise ConfigError(f"bus: '{address}' is neither embedded:PATH nor kafka://host:port")
