"""`train` and `models`: offline training into a registry, versions, promotion, roll-back."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from trainwarden.cli.output import Voice, check_json_target, write_json
from trainwarden.errors import ConfigError

Word = Literal["list", "promote", "rollback"]


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
) -> int:
    """Train every detector on recorded folders or an archive; 1 if no version passed the gate.

    Raises
    ------
    ConfigError
        On wrong use.
    DataError
        If nothing can be learnt, or the registry cannot be reached.
    """
    check_json_target(json)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from trainer_offline.registry import Registry
    from trainer_offline.training import TrainConfig
    from trainer_offline.training import train as run
    from trainwarden.cli.detect import time_of
    from trainwarden.settings import load, parse

    if not data.exists():
        raise ConfigError(f"--data: there is no folder '{data}'")
    said = load(config).trainer
    how = {"prepare": said.prepare, "models": said.models, "gate": said.gate}
    voice = Voice(json)
    answer = run(
        data,
        Registry.at(registry, create=True),
        parse(TrainConfig, how, "trainer"),
        normal_until_s=time_of(normal_until),
        keep_start=keep_start,
        seed=seed,
        promote=promote,
        tell=voice.say,
    )
    write_json(answer, json)
    card = answer["data"]
    voice.say(
        f"{card['rows']:,} normal rows of {card['jobs']} jobs, {len(card['metrics_kept'])} metrics kept, "
        f"{len(card['metrics_dropped'])} dropped; {answer['wall_s']:.1f} s; registry {answer['registry']}"
    )
    _table(voice, answer["models"])
    return 0 if any(one["gate"]["passed"] for one in answer["models"]) else 1


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
    from trainer_offline.registry import Registry

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


def _table(voice: Voice, answers: Sequence[dict[str, Any]]) -> None:
    """One row for each version."""
    from rich.console import Console
    from rich.table import Table

    if not answers:
        voice.say("there are no models yet: run trainwarden train")
        return
    table = Table("detector", "version", "aliases", "gate", "recall", "false/day", "why", box=None, pad_edge=False)
    for one in answers:
        gate = one["gate"]
        metrics = gate["metrics"]
        table.add_row(
            one["detector"],
            one["version"],
            ", ".join(one["aliases"]),
            "passed" if gate["passed"] else "rejected",
            _number(metrics.get("recall")),
            _number(metrics.get("false_alarms_per_machine_day")),
            gate["reasons"][0] if gate["reasons"] else "",
        )
    Console(file=voice.stream, width=160).print(table)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
