"""Options that several commands share, and what their words mean."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from trainwarden.errors import ConfigError
from trainwarden.settings import JOB_NAME

Json = Annotated[
    str | None,
    typer.Option("--json", metavar="[FILE]", help="One JSON object, to FILE or (without FILE) to standard output."),
]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="Settings file (TOML).")]
RunDir = Annotated[Path | None, typer.Option("--run-dir", help="Run folder shared with the training processes.")]
Checkpoints = Annotated[
    Path | None,
    typer.Option(
        "--checkpoints", metavar="DIR", help="Folder of the job's checkpoints: a restart must go on from them."
    ),
]
BusAddress = Annotated[str | None, typer.Option("--bus", help="embedded:PATH or kafka://host:port.")]


def job_name(text: str | None) -> str | None:
    """The name of a job that an option gives.

    Raises
    ------
    ConfigError
        If no job can have that name (`trainwarden.settings.Settings.job`).

    Examples
    --------
    >>> job_name("llama-3.1_70B"), job_name(None)
    ('llama-3.1_70B', None)
    """
    if text is None or re.fullmatch(JOB_NAME, text, re.ASCII):
        return text
    raise ConfigError(
        f"--job {text[:140]!r}: a job's name has up to 128 letters, digits, dots, dashes and underscores, "
        "a letter or digit first"
    )


JobName = Annotated[str | None, typer.Option("--job", callback=job_name, help="Name of the job.")]
KeyFile = Annotated[
    Path | None, typer.Option("--key", metavar="FILE", help="Sign with this key; default commands.key.")
]
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
WithParent = Annotated[int | None, typer.Option("--with-parent", metavar="PID", hidden=True)]


def time_of(text: str | None, option: str = "--normal-until") -> float | None:
    """The moment that an option names: seconds of the clock in question, or an ISO 8601 time (UTC without zone).

    Raises
    ------
    ConfigError
        If `text` is neither.

    Examples
    --------
    >>> time_of("3600"), time_of("1970-01-01T01:00:00"), time_of(None)
    (3600.0, 3600.0, None)
    >>> time_of("1790000400000")
    1790000400.0
    """
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        return _iso_s(text, f"{option}: '{text}' is neither a number of seconds nor an ISO 8601 time")
    if not math.isfinite(seconds) or abs(seconds) >= _EPOCHS[-1][0]:
        raise ConfigError(f"{option}: '{text}' is no time")
    return next(seconds * factor for most, factor in _EPOCHS if abs(seconds) < most)


def since_of(text: str | None, now_s: float) -> float | None:
    """The moment that a ``--since`` names: so long before `now_s`, or an ISO 8601 time (UTC without zone).

    Raises
    ------
    ConfigError
        If `text` is neither.

    Examples
    --------
    >>> since_of("30m", 10_000.0), since_of("1970-01-01T01:00:00", 10_000.0), since_of(None, 10_000.0)
    (8200.0, 3600.0, None)
    """
    if text is None:
        return None
    if (ago_s := _length_s(text)) is not None:
        return now_s - ago_s
    return _iso_s(text, f"--since: '{text}' is neither a time ago (90s, 30m, 12h, 7d) nor an ISO 8601 time")


def length_of(text: str | None, option: str) -> float | None:
    """The length of time that an option names.

    Raises
    ------
    ConfigError
        If `text` is none.

    Examples
    --------
    >>> length_of("15s", "--step"), length_of("1.5m", "--step"), length_of(None, "--step")
    (15.0, 90.0, None)
    """
    if text is None:
        return None
    length_s = _length_s(text)
    if not length_s:
        raise ConfigError(f"{option}: '{text}' is no length of time like 15s, 2m or 1h")
    return length_s


def dask_address_of(text: str | None) -> str | None:
    """The Dask scheduler that ``--dask`` or ``trainer.dask`` names.

    Raises
    ------
    ConfigError
        If `text` is no address of one.

    Examples
    --------
    >>> dask_address_of("tcp://scheduler:8786"), dask_address_of(None)
    ('tcp://scheduler:8786', None)
    """
    if text is None or _DASK.fullmatch(text):
        return text
    raise ConfigError(f"--dask: '{text[:200]}' is no address of a Dask scheduler (tcp://host:8786)")


def _length_s(text: str) -> float | None:
    number, unit = text[:-1], text[-1:]
    if unit in _UNITS_S and number.isascii() and number.replace(".", "", 1).isdecimal():
        return float(number) * _UNITS_S[unit]
    return None


_DASK: Final = re.compile(r"(tcp|tls)://([^/\s:]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")
# Milli-, micro- and nanoseconds since 1970, told by their magnitude as in recorded tables.
_EPOCHS: Final = ((1e11, 1.0), (1e14, 1e-3), (1e17, 1e-6), (1e20, 1e-9))
_UNITS_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def _iso_s(text: str, otherwise: str) -> float:
    from datetime import UTC, datetime

    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(otherwise) from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
