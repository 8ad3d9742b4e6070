"""What a bus says of its jobs, for the commands that ask it: status, incidents, actions, report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainwarden.bus import address as buses
from trainwarden.cli.shared.follow import Follower, JobView
from trainwarden.errors import ConfigError
from trainwarden.protocols import Bus
from trainwarden.settings import load


@contextmanager
def open_bus(bus: str | None, config: Path | None) -> Iterator[Bus]:
    """The bus at `bus`, or the one that the settings name; an embedded one is not made by asking.

    Raises
    ------
    ConfigError
        If there is no such embedded bus, or a setting is wrong.
    """
    settings = load(config)
    address = bus or settings.bus
    path = Path(address.partition(":")[2])
    if address.startswith("embedded:") and not path.exists():
        raise ConfigError(f"bus: there is no embedded bus at '{path}'; name one with --bus or TRAINWARDEN_BUS")
    connected = buses.connect(address, settings.kafka)
    try:
        yield connected
    finally:
        connected.close()


def read_jobs(bus: Bus, job: str | None = None) -> dict[str, JobView]:
    """Every job on the bus (or `job` alone) as its records tell it, from the oldest kept to the newest."""
    views: dict[str, JobView] = {}
    for topic in Follower.TOPICS:
        for message in bus.read(topic):
            name = getattr(message.record, "job", None)
            if name is not None and job in (None, name):
                views.setdefault(name, JobView(name)).feed(message.record)
    return views
