"""`train` and `models`: offline training into a registry, versions, promotion, roll-back."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from trainwarden.cli.output import Voice, check_json_target, write_json
from trainwarden.cli.progress import TrainingProgress
from trainwarden.errors import ConfigError

Word = Literal["list", "promote", "rollback"]
INTERRUPTED: Final = 130  # what a shell says of a program that Ctrl-C ended
NEVER_SERVED: Final = "its training run was stopped before it was complete; it is never served"


def train(
    data: Path,
    *,
    normal_until: str | None,
    keep_start: bool,
    registry: str | None,
    seed: int,
    promote: bool,
    config: Path | None,
    json: str | None,
    dask: str | None = None,
) -> int:
    """Train every detector on recorded folders or an archive; 1 if no version passed the gate, 130 after Ctrl-C.

    Raises
    ------
    ConfigError
        On wrong use.
    DataError
        If nothing can be learnt, or the registry cannot be reached.
    """
    check_json_target(json)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    voice = Voice(json)
    progress = TrainingProgress(voice, bars=json is None)
    try:
        with progress:
            progress.begin("reading", "loading libraries")
            answer, weights = _trained(
                data, progress, normal_until=normal_until, keep_start=keep_start, registry=registry, seed=seed,
                promote=promote, config=config, dask=dask,
            )  # fmt: skip
    except KeyboardInterrupt:
        sys.stderr.write(f"trainwarden: {_interrupted(progress)}\n")
        return INTERRUPTED
    write_json(answer, json)
    card = answer["data"]
    voice.say(
        f"{card['rows']:,} normal rows of {card['jobs']} jobs, {len(card['metrics_kept'])} metrics kept, "
        f"{len(card['metrics_dropped'])} dropped; {answer['wall_s']:.1f} s; registry {answer['registry']}"
    )
    if progress.drawn:  # a bar shows one line at a time: remarks would be gone
        for note in card["notes"]:
            voice.say(note)
    _table(voice, answer["models"], weights)
    return 0 if any(one["gate"]["passed"] for one in answer["models"]) else 1


def _interrupted(progress: TrainingProgress) -> str:
    if progress.registered:
        return "stopped when everything was registered: see trainwarden models list"
    if progress.stage == "registering":
        return "stopped while registering: no alias has moved, so what serves is what served before"
    return f"stopped while {progress.stage or 'starting'}: nothing was registered"


def _trained(
    data: Path,
    progress: TrainingProgress,
    *,
    normal_until: str | None,
    keep_start: bool,
    registry: str | None,
    seed: int,
    promote: bool,
    config: Path | None,
    dask: str | None,
) -> tuple[dict[str, Any], dict[str, float]]:
    """The answer, and the weight of each member in the vote."""
    from detectors.metrics.bundle.members import by_name
    from trainer_offline.registry.registry import Registry
    from trainer_offline.service.train import TrainConfig
    from trainer_offline.service.train import train as run
    from trainwarden.cli.detect import time_of
    from trainwarden.settings import load, parse

    if not data.exists():
        raise ConfigError(f"--data: there is no folder '{data}'")
    said = load(config).trainer
    how = {"prepare": said.prepare, "models": said.models, "gate": said.gate}
    how_to = parse(TrainConfig, how, "trainer")
    answer = run(
        data,
        Registry.at(registry, create=True),
        how_to,
        normal_until_s=time_of(normal_until),
        keep_start=keep_start,
        seed=seed,
        promote=promote,
        dask=dask or said.dask,
        tell=progress,
    )
    return answer, by_name(how_to.models.members)


def models(word: Word, detector: str | None, version: str | None, *, registry: str | None, json: str | None) -> int:
    """List versions, promote one, or roll one detector back.

    Raises
    ------
    ConfigError
        On wrong use: no such version, one that was rejected, no champion before.
    DataError
        If the registry cannot be reached.
    """
    check_json_target(json)
    from trainer_offline.registry.registry import Registry

    voice = Voice(json)
    place = Registry.at(registry)
    if word == "list":
        if version is not None:
            raise ConfigError("models list takes at most a DETECTOR")
        found = place.versions(detector)
    elif detector is None:
        raise ConfigError(f"models {word} needs a DETECTOR" + (" and a VERSION" if word == "promote" else ""))
    elif word == "promote":
        if version is None:
            raise ConfigError("models promote needs a DETECTOR and a VERSION")
        found = [place.promote(detector, version)]
    else:
        if version is not None:
            raise ConfigError("models rollback takes a DETECTOR alone: it goes back to the champion before")
        found = [place.rollback(detector)]
    answers = [one.answer() for one in found]
    write_json({"registry": place.uri, "models": answers}, json)
    _table(voice, answers)
    return 0


def _table(voice: Voice, answers: Sequence[dict[str, Any]], weights: Mapping[str, float] | None = None) -> None:
    """One row for each version, as wide as the terminal; below it, in whole lines, why a version was rejected."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not answers:
        voice.say("there are no models yet: run trainwarden train")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("detector", no_wrap=True)
    if weights is not None:
        table.add_column("weight", justify="right")
    for name, side in (("version", "right"), ("aliases", "left"), ("gate", "left"), ("recall", "right"),
                       ("false/day", "right")):  # fmt: skip
        table.add_column(name, justify="right" if side == "right" else "left", no_wrap=name != "aliases")
    for one in answers:
        metrics = one["gate"]["metrics"]
        row = [
            one["detector"],
            *([] if weights is None else [_number(weights.get(one["detector"]))]),
            one["version"],
            ", ".join(one["aliases"]),
            _result(one),
            _number(metrics.get("recall")),
            _number(metrics.get("false_alarms_per_machine_day")),
        ]
        table.add_row(*map(Text, row))
    # A file or a pipe has no width of its own: nothing may be folded there.
    console = Console(file=voice.stream) if voice.stream.isatty() else Console(file=voice.stream, width=200)
    console.print(table)
    for text in _reasons(answers):
        console.print(text, markup=False, highlight=False)


def _result(one: Mapping[str, Any]) -> str:
    """What the gate said; a version whose run was stopped before it was asked has no numbers."""
    gate = one["gate"]
    if gate["passed"]:
        return "passed"
    return "rejected" if gate["reasons"] else "unfinished"


def _reasons(answers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why versions do not serve, and once what the numbers of all stand on."""
    told = [f"{one['detector']} {one['version']} {_result(one)}: {'; '.join(one['gate']['reasons']) or NEVER_SERVED}"
            for one in answers if not one["gate"]["passed"]]  # fmt: skip
    if any(one["gate"]["metrics"].get("injected") for one in answers):
        told.append("recall is that of injected anomalies of known size: the test jobs have no annotated faults")
    return told


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
