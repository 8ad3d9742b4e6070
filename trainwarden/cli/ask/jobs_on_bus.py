"""What a bus says of its jobs, for the commands that ask it: status, incidents, actions, report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from trainwarden.bus import address as buses
from trainwarden.cli.shared import kept_runs
from trainwarden.cli.shared.answers import BEGIN
from trainwarden.cli.shared.follow import Follower, JobView
from trainwarden.errors import ConfigError, NotJudged
from trainwarden.protocols import Bus
from trainwarden.records import IncidentRecord
from trainwarden.settings import DEFAULT_BUS, Settings, load
from trainwarden.topics import EVENTS, INCIDENTS, VERDICTS


@contextmanager
def open_bus(bus: str | None, config: Path | None, job: str | None = None, *, asks: bool = True) -> Iterator[Bus]:
    """The bus at `bus`, the one that the settings name, or that of the newest kept run (of `job`).

    An embedded bus is not made by asking.

    Parameters
    ----------
    asks : bool
        Whether this is a question, and not a command for the services.

    Raises
    ------
    ConfigError
        If there is no such embedded bus, or a setting is wrong.
    NotJudged
        If this is a question, no bus is named, and no run has left one.
    """
    settings = load(config)
    address = address_of(bus, settings, job)
    path = Path(address.partition(":")[2])
    if address.startswith("embedded:") and not path.exists():
        if asks and bus is None and settings.bus == DEFAULT_BUS:
            what = "nothing has run here" if job is None else f"no run of a job '{job}' is kept"
            raise NotJudged(f"{what}, or it left no records", BEGIN)
        raise ConfigError(f"bus: there is no embedded bus at '{path}'; name one with --bus or TRAINWARDEN_BUS")
    connected = buses.connect(address, settings.kafka)
    try:
        yield connected
    finally:
        connected.close()


def address_of(
    bus: str | None, settings: Settings, job: str | None, runs: Sequence[kept_runs.KeptRun] | None = None
) -> str:
    """The bus that a question is about: as said, as set, or that of the newest of `runs`, default all kept (of `job`).

    A bus that ``up`` has left in this folder hides no kept run of a job that it does not know.
    """
    address = bus or settings.bus
    if bus is None and address == DEFAULT_BUS and not is_known_here(job):
        runs = kept_runs.kept() if runs is None else runs
        address = next((run.bus for run in runs if job in (None, run.about.job)), address)
    return address


def is_known_here(job: str | None) -> bool:
    """Whether the bus of this folder is there, and knows of `job` if one is named."""
    if not Path(DEFAULT_BUS.partition(":")[2]).exists():
        return False
    if job is None:
        return True
    connected = buses.connect(DEFAULT_BUS, Settings().kafka)
    try:
        return any(message.key == job for topic in (VERDICTS, EVENTS, INCIDENTS) for message in connected.read(topic))
    finally:
        connected.close()


def addresses_of(
    bus: str | None, config: Path | None, job: str | None, runs: Sequence[kept_runs.KeptRun] | None = None
) -> list[str]:
    """The buses that a question is about, the first one first: as said, or also those of `runs`, default all kept."""
    addresses = [address_of(bus, load(config), job, runs)]
    if bus is None and config is None:
        runs = kept_runs.kept() if runs is None else runs
        addresses += [run.bus for run in runs if job in (None, run.about.job)]
    return [
        one
        for one in dict.fromkeys(addresses)
        if not one.startswith("embedded:") or Path(one.partition(":")[2]).exists()
    ]


def views_of(
    bus: str | None, config: Path | None, job: str | None = None, runs: Sequence[kept_runs.KeptRun] | None = None
) -> list[JobView]:
    """Every job (or `job` alone) of the buses that a question is about (`addresses_of`); none where nothing has run.

    Raises
    ------
    ConfigError
        If there is no such bus as was named.
    """
    views: list[JobView] = []
    try:
        found: list[str | None] = [*addresses_of(bus, config, job, runs)]
        for address in found or [bus]:  # which is refused where it is not there
            with open_bus(address, config, job) as connected:
                views += [view for _, view in sorted(read_jobs(connected, job).items())]
    except NotJudged:
        return []
    return views


@contextmanager
def bus_of_incident(
    name: str | None, bus: str | None, config: Path | None, job: str | None = None
) -> Iterator[tuple[Bus, str]]:
    """The bus of incident `name` (its id or the beginning of it; default the newest) and its whole id.

    Raises
    ------
    ConfigError
        If there is no such incident, or there are several.
    NotJudged
        If nothing has judged anything, so that there is nothing to find.
    """
    settings = load(config)
    if bus is not None:
        with open_bus(bus, config, job):
            pass  # refuses what is not there
    for address in addresses_of(bus, config, job):
        connected = buses.connect(address, settings.kafka)
        try:
            if ids := _matching(connected, name, job):
                if name is not None and len(ids) > 1:
                    raise ConfigError(f"'{name}' begins {len(ids)} incidents: {', '.join(ids[:8])}")
                yield connected, ids[-1]
                return
        finally:
            connected.close()
    where = "on this bus" if bus is not None or config is not None else "on the bus or in a kept run"
    if name is not None:
        raise ConfigError(f"there is no incident '{name[:100]}' {where}; `trainwarden incidents` lists them")
    raise NotJudged(f"there is no incident {where} to explain", "`trainwarden incidents` says what was judged")


def _matching(bus: Bus, name: str | None, job: str | None) -> list[str]:
    """Ids that begin with `name`, in the order of opening; one that is `name` stands alone."""
    opened: dict[str, float] = {}
    for message in bus.read(INCIDENTS):
        one = message.record
        if isinstance(one, IncidentRecord) and job in (None, one.job) and one.id.startswith(name or ""):
            opened.setdefault(one.id, one.opened_at_s)
    return [name] if name in opened else sorted(opened, key=opened.__getitem__)


def read_jobs(bus: Bus, job: str | None = None) -> dict[str, JobView]:
    """Every job on the bus (or `job` alone) as its records tell it, from the oldest kept to the newest."""
    views: dict[str, JobView] = {}
    for topic in Follower.TOPICS:
        for message in bus.read(topic):
            name = getattr(message.record, "job", None)
            if name is not None and job in (None, name):
                views.setdefault(name, JobView(name)).feed(message.record)
    return views
