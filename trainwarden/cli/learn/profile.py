"""`trainwarden profile`: how fast a task trains on so many GPUs, from recorded jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainwarden.cli.shared.options import Json
from trainwarden.cli.shared.output import Voice
from trainwarden.errors import ConfigError, DataError


def profile(
    data: Annotated[list[Path], typer.Option("--data", metavar="DIR", help="Recorded folder of a job or a batch.")],
    *,
    work_per_step: Annotated[
        float, typer.Option(help="Tokens, samples or FLOP of a step: the unit that all tasks of a plan share.")
    ] = 1.0,
    json: Json = None,
) -> int:
    """Measure throughput by number of GPUs from recorded jobs, for `plan cluster`; exit code 1 if none says any.

    Example: trainwarden profile --data runs-of-7b/ --work-per-step 2097152 --json
    """
    if not 0.0 < work_per_step < 1e30:
        raise ConfigError(f"--work-per-step: {work_per_step} is no amount of work above 0")
    voice = Voice(json)
    try:
        from trainwarden.actions.planners import profiles
        from trainwarden.recorded.folder import jobs_in, read_folder
    except ModuleNotFoundError as error:
        raise ConfigError(f"profile: {error.name} is not installed; pip install 'trainwarden[detect]'") from error

    points, skipped = [], []
    for folder in (job for one in data for job in jobs_in(one)):
        try:
            points.append(profiles.point(read_folder(folder), work_per_step))
        except DataError as error:
            skipped.append(profiles.Skipped(folder.name, str(error)))
    found = profiles.profile(points, skipped)
    for point in found.measured:
        voice.say(
            f"{point.gpus} GPUs: {point.throughput:.6g} a second  "
            f"({point.job}, {point.steps} steps of {point.step_s:.4g} s)"
        )  # fmt: skip
    for one in found.skipped:
        voice.say(f"{one.job} is left out: {one.why}")
    voice.answer(found)
    return 0 if found.measured else 1
