"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

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
Mode = Literal["observe", "confirm", "auto"]
Command = Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="The training command, after --.")]
WithParent = Annotated[bool, typer.Option("--with-parent", hidden=True)]
