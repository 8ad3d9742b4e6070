"""The bus at an address: embedded on one machine, Apache Kafka beyond it; both engines pass one contract suite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainwarden.errors import ConfigError
from trainwarden.network.host_port import host_and_port
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
    place = place_of(address)
    if isinstance(place, str):
        from trainwarden.bus.embedded.engine import EmbeddedBus

        return EmbeddedBus(place, limit_bytes=limit_bytes)
    from trainwarden.bus.kafka.engine import KafkaBus, KafkaConfig
    from trainwarden.settings import parse

    return KafkaBus(place, parse(KafkaConfig, dict(kafka or {}), "kafka"))


def check(address: str, kafka: Mapping[str, Any] | None = None) -> None:
    """Refuse what `connect` would refuse for good, without reaching for anything.

    Raises
    ------
    ConfigError
        If the address is neither form, or the Kafka engine cannot be set up so.
    """
    place = place_of(address) if address != "embedded" else ""
    if not isinstance(place, str):
        from trainwarden.bus.kafka.client import Clients, KafkaConfig
        from trainwarden.settings import parse

        Clients(place, parse(KafkaConfig, dict(kafka or {}), "kafka"))


def place_of(address: str) -> str | list[str]:
    """The file of an embedded bus, or the brokers of Kafka.

    Raises
    ------
    ConfigError
        If the address is neither form, or a broker is not HOST:PORT.

    Examples
    --------
    >>> place_of("embedded:/run/bus.db"), place_of("kafka://a:9092,b:9092")
    ('/run/bus.db', ['a:9092', 'b:9092'])
    """
    scheme, _, rest = address.partition(":")
    if scheme == "embedded" and rest:
        return rest
    if scheme == "kafka" and rest.startswith("//") and len(rest) > 2:
        servers = rest[2:].split(",")
        for server in servers:
            host_and_port(server, "bus: kafka")
        return servers
    raise ConfigError(f"bus: '{address[:200]}' is neither embedded:PATH nor kafka://host:port")
