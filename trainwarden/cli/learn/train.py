"""`trainwarden train`: every detector learnt offline, gated, and kept as a version."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from trainwarden.cli.learn.progress import TrainingProgress
from trainwarden.cli.learn.table import table_of_versions
from trainwarden.cli.shared.extras import need
from trainwarden.cli.shared.machine import one_blas_thread
from trainwarden.cli.shared.options import ConfigFile, Json, Registry, dask_address_of, time_of
from trainwarden.cli.shared.output import Voice
from trainwarden.errors import ConfigError
from trainwarden.settings import Settings, load, parse

INTERRUPTED: Final = 130  # what a shell says of a program that Ctrl-C ended


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says of how to train, in its own words."""

    data: Path
    normal_until_s: float | None
    registry: str | None
    seed: int
    keep_start: bool
    promote: bool
    dask: str | None
    settings: Settings


def train(
    *,
    data: Annotated[
        Path, typer.Option("--data", help="A recorded folder, a folder of recorded folders, or an archive.")
    ],
    normal_until: Annotated[
        str | None, typer.Option(metavar="T", help="Rows before T (seconds or ISO 8601) are normal; else all are.")
    ] = None,
    registry: Registry = None,
    seed: Annotated[int, typer.Option(min=0, help="Same data, settings and seed: same models.")] = 0,
    keep_start: Annotated[bool, typer.Option("--keep-start", help="Do not look for phases of start and end.")] = False,
    promote: Annotated[bool, typer.Option("--promote", help="What passes the gate becomes champion at once.")] = False,
    dask: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Dask scheduler, tcp://host:8786: its workers read the data.")
    ] = None,
    json: Json = None,
    config: ConfigFile = None,
) -> int:
    """Train all detectors offline, gate them and keep them as versions; exit code 1 if all were rejected.

    Example: trainwarden train --data recordings/ --registry http://mlflow:5000
    """
    voice = Voice(json)
    need("mlflow", "train")
    one_blas_thread()
    settings = load(config)
    if not data.exists():
        raise ConfigError(f"--data: there is no folder '{data}'")
    dask = dask_address_of(dask or settings.trainer.dask)
    asked = Asked(data, time_of(normal_until), registry, seed, keep_start, promote, dask, settings)
    progress = TrainingProgress(voice, bars=json is None)
    try:
        with progress:
            progress.begin("reading", "loading libraries")
            answer = _trained(asked, progress)
    except KeyboardInterrupt:
        sys.stderr.write(f"trainwarden: {_interrupted(progress)}\n")
        return INTERRUPTED
    voice.answer(answer)
    card = answer["data"]
    voice.say(
        f"{card['rows']:,} normal rows of {card['jobs']} jobs, {len(card['metrics_kept'])} metrics kept, "
        f"{len(card['metrics_dropped'])} dropped; {answer['wall_s']:.1f} s; registry {answer['registry']}"
    )
    if still := _still(card["metrics_dropped"]):
        said = f"{len(still)} metrics never moved, so models learn nothing of them and still_metrics watches them live"
        voice.say(f"{said}: {', '.join(still)}")
    if progress.drawn:  # a bar shows one line at a time: remarks would be gone
        for note in card["notes"]:
            voice.say(note)
    table_of_versions(voice, answer["models"])
    return 0 if any(one["gate"]["passed"] or one["gate"]["provisional"] for one in answer["models"]) else 1


def _still(dropped: Sequence[Mapping[str, str]]) -> list[str]:
    """Metrics that training dropped since they never moved: what moves first when a device dies."""
    from trainwarden.detectors.metrics.bundle.preparation import CONSTANT

    return [one["name"] for one in dropped if one["why"] == CONSTANT]


def _interrupted(progress: TrainingProgress) -> str:
    if progress.registered:
        return "stopped when everything was registered: see trainwarden models list"
    if progress.stage == "registering":
        return "stopped while registering: no alias has moved, so what serves is what served before"
    return f"stopped while {progress.stage or 'starting'}: nothing was registered"


def _trained(asked: Asked, progress: TrainingProgress) -> dict[str, Any]:
    """The answer.

    Raises
    ------
    ConfigError
        On wrong use.
    DataError
        If nothing can be learnt, or the registry cannot be reached.
    """
    from trainwarden import plugins
    from trainwarden.trainer_offline.registry.registry import Registry
    from trainwarden.trainer_offline.service.train import TrainConfig
    from trainwarden.trainer_offline.service.train import train as run

    plugins.bring(asked.settings)
    said = asked.settings.trainer
    how = {"prepare": said.prepare, "models": said.models, "gate": said.gate}
    how_to = parse(TrainConfig, how, "trainer")
    return run(
        asked.data,
        Registry.at(asked.registry, create=True),
        how_to,
        normal_until_s=asked.normal_until_s,
        keep_start=asked.keep_start,
        seed=asked.seed,
        promote=asked.promote,
        dask=asked.dask,
        tell=progress,
    )
