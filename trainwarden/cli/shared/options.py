"""Options that several commands share, and what their words mean."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from trainwarden.errors import ConfigError

Json = Annotated[
    str | None,
    typer.Option("--json", metavar="[FILE]", help="One JSON object, to FILE or (without FILE) to standard output."),
]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="Settings file (TOML).")]
RunDir = Annotated[Path | None, typer.Option("--run-dir", help="Run folder shared with the training processes.")]
BusAddress = Annotated[str | None, typer.Option("--bus", help="embedded:PATH or kafka://host:port.")]
JobName = Annotated[str | None, typer.Option("--job", help="Name of the job.")]
Keep = Annotated[Path | None, typer.Option("--keep", help="Leave a recorded folder of the run in this folder.")]
Registry = Annotated[
    str | None,
    typer.Option(
        metavar="URI", help="Folder, sqlite: or http: URI of MLflow; else MLFLOW_TRACKING_URI or ./trainwarden-models."
    ),
]
ArchiveFolder = Annotated[Path | None, typer.Option("--folder", help="The archive; default archive.folder.")]
Mode = Literal["observe", "confirm", "auto"]
EngineMode = Annotated[Mode, typer.Option(help="What the engine may do.")]
Command = Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="The training command, after --.")]
WithParent = Annotated[bool, typer.Option("--with-parent", hidden=True)]


def time_of(text: str | None) -> float | None:
    """Seconds of the recording's clock for a ``--normal-until``: such seconds, or an ISO 8601 time (UTC without zone).

    Raises
    ------
    ConfigError
        If `text` is neither.

    Examples
    --------
    >>> time_of("3600"), time_of("1970-01-01T01:00:00"), time_of(None)
    (3600.0, 3600.0, None)
    """
    if text is None:
        return None
    from datetime import UTC, datetime

    try:
        return float(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"--normal-until: '{text}' is neither a number of seconds nor an ISO 8601 time") from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
