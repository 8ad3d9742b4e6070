"""`trainwarden report`: one HTML file that tells a job's story."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainwarden.cli.ask.jobs_on_bus import open_bus, read_jobs
from trainwarden.cli.shared.options import BusAddress, ConfigFile, JobName
from trainwarden.cli.shared.output import Voice
from trainwarden.cli.shared.report_html import write_report
from trainwarden.errors import ConfigError


def report(
    *,
    out: Annotated[Path, typer.Option("--out", help="The HTML file to write.")] = Path("trainwarden-report.html"),
    bus: BusAddress = None,
    job: JobName = None,
    config: ConfigFile = None,
) -> int:
    """One HTML file of a job: iteration times, rank heat map, votes, incidents, actions.

    Example: trainwarden report --job llama-70b --out report.html
    """
    with open_bus(bus, config, job) as connected:
        views = read_jobs(connected, job)
    if len(views) != 1:
        names = ", ".join(sorted(views)) or "none"
        raise ConfigError(f"report: name one job with --job; on this bus: {names}")
    view = next(iter(views.values()))
    counted = f"{len(view.incidents)} incident(s), {len(view.actions)} action(s)"
    summary = f"{len(view.ranks())} ranks, {view.steps_done()} steps, {counted}."
    write_report(out, view, title=f"trainwarden: {view.job}", summary=summary)
    Voice().say(f"report: {out}")
    return 0
