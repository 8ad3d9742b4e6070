"""What a bus says of its jobs, for the commands that ask it: status, incidents, actions, report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainwarden.bus import address as buses
from trainwarden.cli.shared import kept_runs
from trainwarden.cli.shared.follow import Follower, JobView
from trainwarden.errors import ConfigError
from trainwarden.protocols import Bus
from trainwarden.settings import DEFAULT_BUS, Settings, load


@contextmanager
def open_bus(bus: str | None, config: Path | None, job: str | None = None) -> Iterator[Bus]:
    """The bus at `bus`, the one that the settings name, or that of the newest kept run (of `job`).

    An embedded bus is not made by asking.

    Raises
    ------
    ConfigError
        If there is no such embedded bus, or a setting is wrong.
    """
    settings = load(config)
    address = address_of(bus, settings, job)
    path = Path(address.partition(":")[2])
    if address.startswith("embedded:") and not path.exists():
        raise ConfigError(f"bus: there is no embedded bus at '{path}'; name one with --bus or TRAINWARDEN_BUS")
    connected = buses.connect(address, settings.kafka)
    try:
        yield connected
    finally:
        connected.close()


def address_of(bus: str | None, settings: Settings, job: str | None) -> str:
    """The bus that a question is about: as said, as set, or that of the newest kept run (of `job`)."""
    address = bus or settings.bus
    if bus is None and address == DEFAULT_BUS and not Path(DEFAULT_BUS.partition(":")[2]).exists():
        address = next((run.bus for run in kept_runs.kept() if job in (None, run.about.job)), address)
    return address


def read_jobs(bus: Bus, job: str | None = None) -> dict[str, JobView]:
    """Every job on the bus (or `job` alone) as its records tell it, from the oldest kept to the newest."""
    views: dict[str, JobView] = {}
    for topic in Follower.TOPICS:
        for message in bus.read(topic):
            name = getattr(message.record, "job", None)
            if name is not None and job in (None, name):
                views.setdefault(name, JobView(name)).feed(message.record)
    return views
