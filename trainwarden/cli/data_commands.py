"""Commands that work on what was recorded: archive, annotate, detect, train, models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from trainwarden.cli.options import ConfigFile, JobName, Json, Registry, RunDir, WithParent

app = typer.Typer()


@app.command()
def archive(
    word: Annotated[Literal["serve", "compact", "export", "list"], typer.Argument()] = "serve",
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="For export.")] = None,
    folder: Annotated[Path | None, typer.Option("--folder", help="The archive; default archive.folder.")] = None,
    to: Annotated[Path | None, typer.Option("--to", help="For export: the folder to write.")] = None,
    day: Annotated[list[str] | None, typer.Option("--day", help="For export: YYYY-MM-DD, repeatable.")] = None,
    config: ConfigFile = None,
    json: Json = None,
    run_dir: RunDir = None,
    with_parent: WithParent = False,
) -> None:
    """Archive the bus to Parquet until stopped; or compact, export, list.

    Example: trainwarden archive export llama-70b --to kept
    """
    from trainwarden.cli.archive import archive as run_archive

    del run_dir  # every service is started with it
    code = run_archive(
        word, job, folder=folder, to=to, days=day or [], config=config, json=json, with_parent=with_parent
    )
    raise typer.Exit(code)


@app.command()
def annotate(
    word: Annotated[Literal["add", "list", "remove"], typer.Argument()],
    number: Annotated[int | None, typer.Argument(metavar="[NUMBER]", help="For remove.")] = None,
    job: JobName = None,
    from_time: Annotated[str, typer.Option("--from", help="Unix seconds or ISO 8601; empty: beginning.")] = "",
    to_time: Annotated[str, typer.Option("--to", help="As --from; empty: end.")] = "",
    label: Annotated[str | None, typer.Option(help="normal, fault, initialisation or ignore.")] = None,
    kind: Annotated[str | None, typer.Option(help="Incident kind of a fault.")] = None,
    suspects: Annotated[str, typer.Option(help="'node=n17 device=gpu0; rank=3'.")] = "",
    note: Annotated[str, typer.Option(help="In your words.")] = "",
    folder: Annotated[Path | None, typer.Option("--folder", help="The archive; default archive.folder.")] = None,
    config: ConfigFile = None,
    json: Json = None,
) -> None:
    """Say what a stretch of an archived job was: add, list, remove.

    Example: trainwarden annotate add --job llama-70b --label fault --kind hang --from 100 --to 200
    """
    from trainwarden.cli.archive import annotate as run_annotate

    code = run_annotate(
        word, number=number, job=job, from_time=from_time, to_time=to_time, label=label, kind=kind,
        suspects=suspects, note=note, folder=folder, config=config, json=json,
    )  # fmt: skip
    raise typer.Exit(code)


@app.command()
def detect(
    data: Annotated[Path, typer.Option("--data", help="A recorded folder, or a folder of recorded folders.")],
    normal_until: Annotated[
        str | None, typer.Option(metavar="T", help="Rows before T (seconds or ISO 8601) are normal training.")
    ] = None,
    normal: Annotated[Path | None, typer.Option(metavar="DIR", help="A recording that is normal throughout.")] = None,
    models: Annotated[str | None, typer.Option(metavar="URI", help="Trained models.")] = None,
    detectors: Annotated[str | None, typer.Option(metavar="A,B", help="Ask these detectors only.")] = None,
    scores: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Scores of every row of metrics: .csv, .csv.gz or .parquet.")
    ] = None,
    json: Json = None,
    config: ConfigFile = None,
) -> None:
    """Judge recorded folders in one pass in time order; exit code 1 if an incident was found.

    Example: trainwarden detect --data recording/ --normal-until 3600 --json
    """
    from trainwarden.cli.detect import detect as run_detect

    code = run_detect(
        data, normal_until=normal_until, normal=normal, models=models, names=detectors, scores=scores, json=json,
        config=config,
    )  # fmt: skip
    raise typer.Exit(code)


@app.command()
def train(
    data: Annotated[
        Path, typer.Option("--data", help="A recorded folder, a folder of recorded folders, or an archive.")
    ],
    normal_until: Annotated[
        str | None, typer.Option(metavar="T", help="Rows before T (seconds or ISO 8601) are normal; else all are.")
    ] = None,
    registry: Registry = None,
    seed: Annotated[int, typer.Option(min=0, help="Same data, settings and seed: same models.")] = 0,
    keep_start: Annotated[bool, typer.Option("--keep-start", help="Do not look for initialisation phases.")] = False,
    promote: Annotated[bool, typer.Option("--promote", help="What passes the gate becomes champion at once.")] = False,
    dask: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Dask scheduler, tcp://host:8786: its workers read the data.")
    ] = None,
    json: Json = None,
    config: ConfigFile = None,
) -> None:
    """Train all detectors offline, gate them and keep them as versions; exit code 1 if none passed.

    Example: trainwarden train --data recordings/ --registry http://mlflow:5000
    """
    from trainwarden.cli.train import train as run_train

    code = run_train(
        data, normal_until=normal_until, keep_start=keep_start, registry=registry, seed=seed, promote=promote,
        config=config, json=json, dask=dask,
    )  # fmt: skip
    raise typer.Exit(code)


@app.command()
def models(
    word: Annotated[Literal["list", "promote", "rollback"], typer.Argument()] = "list",
    detector: Annotated[str | None, typer.Argument(metavar="[DETECTOR]", help="For list, one detector only.")] = None,
    version: Annotated[str | None, typer.Argument(metavar="[VERSION]", help="For promote.")] = None,
    registry: Registry = None,
    json: Json = None,
) -> None:
    """List versions of models; make one champion; go back to the champion before.

    Example: trainwarden models promote lof 3
    """
    from trainwarden.cli.train import models as run_models

    raise typer.Exit(run_models(word, detector, version, registry=registry, json=json))
