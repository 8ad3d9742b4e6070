"""`trainwarden report`: one HTML file that tells a job's story, or an incident's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainwarden.cli.ask.jobs_on_bus import bus_of_incident, open_bus
from trainwarden.cli.shared.answers import BEGIN
from trainwarden.cli.shared.options import BusAddress, ConfigFile, JobName
from trainwarden.cli.shared.output import Voice
from trainwarden.errors import ConfigError, NotJudged
from trainwarden.protocols import Bus

if TYPE_CHECKING:
    from trainwarden.dashboards.overview.job import JobOverview
    from trainwarden.records import IncidentRecord


def report(
    *,
    out: Annotated[Path, typer.Option("--out", help="The HTML file to write.")] = Path("trainwarden-report.html"),
    incident: Annotated[str | None, typer.Option("--incident", metavar="ID", help="Of this incident alone.")] = None,
    bus: BusAddress = None,
    job: JobName = None,
    config: ConfigFile = None,
) -> int:
    """One HTML file of a job: iteration times, rank heat map, votes, incidents, log lines, actions.

    Example: trainwarden report --job llama-70b --out report.html
    """
    try:
        from trainwarden.dashboards.overview.whole import read_whole
        from trainwarden.dashboards.page.frozen import write_report
        from trainwarden.dashboards.page.lines import metrics_of_bus, of_bus
    except ImportError as error:
        raise ConfigError(f"report: {error.name} is not installed; pip install 'trainwarden[serve]'") from error

    with _bus(incident, bus, config, job) as (connected, name):
        jobs = read_whole(connected, job)
        if not jobs and job is None:
            raise NotJudged("no job has left a record here that a report could show", BEGIN)
        told, one = _meant(jobs, name)
        if one is not None:
            title, summary = f"trainwarden: {one.kind} of {told.job}", one.reason
        else:
            counted = f"{len(told.incidents)} incident(s), {len(told.actions)} action(s)"
            step = "" if told.pace.highest_step is None else f"step {told.pace.highest_step}, "
            title, summary = f"trainwarden: {told.job}", f"{told.ranks} ranks, {step}{counted}."
        write_report(
            out,
            told,
            of_bus(connected),
            read_metrics=metrics_of_bus(connected),
            title=title,
            summary=summary,
            incident=one,
        )
    Voice().say(f"report: {out}")
    return 0


@contextmanager
def _bus(
    incident: str | None, bus: str | None, config: Path | None, job: str | None
) -> Iterator[tuple[Bus, str | None]]:
    """The bus that the report is of, and the whole id of the incident, where one is named."""
    if incident is not None:
        with bus_of_incident(incident, bus, config, job) as found:
            yield found
    else:
        with open_bus(bus, config, job) as connected:
            yield connected, None


def _meant(jobs: dict[str, JobOverview], incident: str | None) -> tuple[JobOverview, IncidentRecord | None]:
    """The job that the report is of, and the incident if it is of one alone."""
    if incident is not None:
        for job in jobs.values():
            if incident in job.incidents:
                return job, job.incidents[incident]
        raise ConfigError(f"report: there is no incident '{incident[:100]}' on this bus; see trainwarden incidents")
    if len(jobs) != 1:
        names = ", ".join(sorted(jobs)) or "none"
        raise ConfigError(f"report: name one job with --job; on this bus: {names}")
    return next(iter(jobs.values())), None
