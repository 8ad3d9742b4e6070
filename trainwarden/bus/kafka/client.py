"""Settings of the Kafka engine and what every client of it is given: addresses, security, time limits."""

from __future__ import annotations

import logging
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from kafka import codec
from kafka.errors import (
    AuthorizationError,
    FencedInstanceIdError,
    KafkaConfigurationError,
    KafkaError,
    SaslAuthenticationFailedError,
)

from trainwarden.errors import BusError, BusUnavailable, ConfigError
from trainwarden.network.host_port import host_and_port
from trainwarden.settings import Config
from trainwarden.topics import Topic

# No upper bound that matters (24.8 days, the largest 32-bit number of milliseconds): a batch is retried in order by
# the idempotent producer until the broker is back, instead of being given up while later ones go through.
_NEVER_MS = 2**31 - 1
_LONGEST_RECONNECT_MS = 1_000  # between two attempts to reach a broker that is away (the library's default is 30 s)
_LOOK_MS = 30_000  # a topic that was deleted and made again behind a reader's back is known so soon (default 5 min)
_ATTEMPT_S = 2.0  # for one server, so that the next one gets its turn
# Beside its own tree the library raises KeyError for offsets of a topic that is gone, ValueError for a partition that
# is, and whatever its decoders meet where a server speaks something else.
LIBRARYS = (
    KafkaError, OSError, LookupError, ValueError, TypeError, RuntimeError, AssertionError, AttributeError, struct.error,
)  # fmt: skip
_INSTALLED = {"none": True, "gzip": True, "lz4": codec.has_lz4(), "zstd": codec.has_zstd()}


class KafkaConfig(Config, frozen=True, kw_only=True):
    """Settings of the Kafka engine (section ``[kafka]``).

    `compression` is ``gzip`` unless told otherwise, because every Python can read it; ``lz4`` and ``zstd`` need their
    packages wherever records are read. `topic_prefix` stands before every topic and group, so that several
    installations share a cluster. `password_file` is for secrets that are mounted as files. `instance_id` makes static
    members: one that is back within `session_timeout_s` gets its partitions again and no other notices. No two
    processes of one installation may have the same.
    """

    client_id: str = "trainwarden"
    partitions: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 8
    replication_factor: Annotated[int, msgspec.Meta(ge=1, le=15)] | None = None
    topic_prefix: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{0,100}$")] = ""
    compression: Literal["none", "gzip", "lz4", "zstd"] = "gzip"
    tls: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    check_hostname: bool = True
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    username: str | None = None
    password: str | None = None
    password_file: str | None = None
    connect_timeout_s: Annotated[float, msgspec.Meta(gt=0.0, le=600.0)] = 10.0
    request_timeout_s: Annotated[float, msgspec.Meta(ge=1.0, le=300.0)] = 10.0
    session_timeout_s: Annotated[float, msgspec.Meta(ge=1.0, le=300.0)] = 10.0
    instance_id: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,100}$")] | None = None
    linger_s: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.005
    max_queue_bytes: Annotated[int, msgspec.Meta(ge=1_048_576)] = 64 * 1024 * 1024


class Clients:
    """Checked settings, as the keyword arguments of kafka-python's clients.

    Raises
    ------
    ConfigError
        If settings contradict each other or name a file that is not there.
    """

    def __init__(self, servers: Sequence[str], config: KafkaConfig) -> None:
        self.config = config
        self.servers = list(servers)
        if not _INSTALLED[config.compression]:
            raise ConfigError(
                f"kafka: compression '{config.compression}' needs its package: pip install 'trainwarden[compression]'"
            )
        check(config)
        for server in servers:
            host_and_port(server, "kafka")
        # The library reports an absent broker once per request; the bus says it once (see `guard` and its callers).
        library = logging.getLogger("kafka")
        if library.level == logging.NOTSET:
            library.setLevel(logging.CRITICAL)

    def reach(self) -> None:
        """Return once any server accepts a connection.

        To be called before a client is made: kafka-python leaves a thread and sockets behind where a client's first
        connection fails, which would pile up while a broker is away.

        Raises
        ------
        BusUnavailable
            If none does within `KafkaConfig.connect_timeout_s`.
        ConfigError
            If a server is not ``host:port``.
        """
        addresses = [host_and_port(server, "kafka") for server in self.servers]
        deadline_s = time.monotonic() + self.config.connect_timeout_s
        while True:
            for address in addresses:
                try:
                    left_s = max(0.1, deadline_s - time.monotonic())
                    socket.create_connection(address, timeout=min(_ATTEMPT_S, left_s)).close()
                    return
                except OSError as error:
                    said = error
            if time.monotonic() >= deadline_s:
                waited = f"no broker answers within {self.config.connect_timeout_s:g} s"
                raise BusUnavailable(f"kafka {','.join(self.servers)}: {waited} ({said})") from said
            time.sleep(0.1)

    def common(self) -> dict[str, Any]:
        """What every client is given."""
        config = self.config
        security = ("SASL_" if config.sasl_mechanism else "") + ("SSL" if config.tls else "PLAINTEXT")
        return {
            "bootstrap_servers": self.servers,
            "client_id": config.client_id,
            "bootstrap_timeout_ms": int(config.connect_timeout_s * 1000),
            "request_timeout_ms": int(config.request_timeout_s * 1000),
            "reconnect_backoff_max_ms": _LONGEST_RECONNECT_MS,
            "security_protocol": security,
            "ssl_cafile": config.ca_file,
            "ssl_certfile": config.cert_file,
            "ssl_keyfile": config.key_file,
            "ssl_check_hostname": config.check_hostname,
            "sasl_mechanism": config.sasl_mechanism,
            "sasl_plain_username": config.username,
            "sasl_plain_password": _password(config),
        }

    def producer(self) -> dict[str, Any]:
        """For an idempotent producer that waits for all in-sync replicas and never gives a batch up."""
        return self.common() | {
            "enable_idempotence": True,
            "acks": "all",
            "delivery_timeout_ms": _NEVER_MS,
            "compression_type": None if self.config.compression == "none" else self.config.compression,
            "linger_ms": int(self.config.linger_s * 1000),
            "batch_size": 128 * 1024,
            "max_block_ms": int(self.config.request_timeout_s * 1000),
            "allow_auto_create_topics": False,
            "metrics_enabled": False,
        }

    def consumer(self) -> dict[str, Any]:
        """For any consumer; a group adds its own."""
        return self.common() | {
            "enable_auto_commit": False,
            # Compressed; a tenfold of it is what one poll may have to decode. A larger single batch still comes.
            "fetch_max_bytes": 1024 * 1024,
            "max_partition_fetch_bytes": 256 * 1024,
            "allow_auto_create_topics": False,
            "metadata_max_age_ms": _LOOK_MS,
            "metrics_enabled": False,
        }

    def topic_name(self, topic: Topic[Any]) -> str:
        """The topic's name on the cluster."""
        return self.config.topic_prefix + topic.name

    @contextmanager
    def guard(self, doing: str) -> Iterator[None]:
        """kafka-python's errors in our words."""
        try:
            yield
        except FencedInstanceIdError as error:
            said = f"another process has the instance_id '{self.config.instance_id}'"
            raise BusError(f"kafka {','.join(self.servers)}: {said}") from error
        except (SaslAuthenticationFailedError, AuthorizationError) as error:
            raise BusError(f"kafka {','.join(self.servers)}: not permitted while {doing}: {error}") from error
        except KafkaConfigurationError as error:
            raise ConfigError(f"kafka: {error}") from error
        except LIBRARYS as error:
            text = f"{type(error).__name__}: {error}"
            raise BusUnavailable(f"kafka {','.join(self.servers)}: {text} (while {doing})") from error


def is_about(error: AuthorizationError, topic: str) -> bool:
    """Whether `error`, which may have come with another topic's request, refuses `topic`."""
    return any(topic in ({one} if isinstance(one, str) else one or ()) for one in error.args)


def check(config: KafkaConfig) -> None:
    """That settings do not contradict each other and the files that they name are there.

    Raises
    ------
    ConfigError
        If not.
    """
    for field in ("ca_file", "cert_file", "key_file", "password_file"):
        path = getattr(config, field)
        if path is not None and not Path(path).is_file():
            raise ConfigError(f"kafka: {field} '{path}' does not exist")
    if not config.tls and (config.ca_file or config.cert_file or config.key_file):
        raise ConfigError("kafka: ca_file, cert_file and key_file have no effect without tls = true")
    if (config.cert_file is None) != (config.key_file is None):
        raise ConfigError("kafka: cert_file and key_file are given together or not at all")
    if config.password is not None and config.password_file is not None:
        raise ConfigError("kafka: give password or password_file, not both")
    secret = config.password if config.password is not None else config.password_file
    if config.sasl_mechanism is not None and (config.username is None or secret is None):
        raise ConfigError(f"kafka: sasl_mechanism {config.sasl_mechanism} needs username and password or password_file")
    if config.sasl_mechanism is None and (config.username is not None or secret is not None):
        raise ConfigError("kafka: username and password have no effect without sasl_mechanism")


def _password(config: KafkaConfig) -> str | None:
    if config.password_file is not None:
        return Path(config.password_file).read_text(encoding="utf-8").rstrip("\r\n")
    return config.password
