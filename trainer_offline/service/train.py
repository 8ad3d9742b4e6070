"""A whole training run: prepare, fit, judge, register; what `trainwarden train` and the trainer service do."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
from trainwarden.detectors.metrics.bundle.members import VoteConfig
from trainwarden.errors import DataError, DetectorError
from trainwarden.settings import Config
from trainwarden.trainer_offline.data.card import BY_TIME, DataCard
from trainwarden.trainer_offline.data.grids import PrepareConfig
from trainwarden.trainer_offline.data.prepare import prepare
from trainwarden.trainer_offline.fit.fit import fit
from trainwarden.trainer_offline.fit.floors import GateConfig, needed
from trainwarden.trainer_offline.fit.gate import Champion, gate
from trainwarden.trainer_offline.progress import Tell, TellStage, silent_stage
from trainwarden.trainer_offline.registry.publish import TrainedRun, register
from trainwarden.trainer_offline.registry.registry import Registry
from trainwarden.trainer_offline.registry.serving import Wanted, assemble
from trainwarden.trainer_offline.registry.version import CHAMPION, Version, listed


class TrainConfig(Config, frozen=True, kw_only=True):
    """Everything that decides what a training run makes of its data."""

    prepare: PrepareConfig = PrepareConfig()
    models: VoteConfig = msgspec.field(default_factory=VoteConfig)
    gate: GateConfig = GateConfig()


def train(
    data: Path,
    registry: Registry,
    config: TrainConfig,
    *,
    normal_until_s: float | None = None,
    keep_start: bool = False,
    seed: int = 0,
    promote: bool = False,
    dask: str | None = None,
    tell: TellStage = silent_stage,
) -> dict[str, Any]:
    """Train on `data` (a recorded folder, a batch or an archive); the object of contracts 7.

    Parameters
    ----------
    dask : str, optional
        Address of a Dask scheduler whose workers read and prepare the jobs:
        `trainwarden.trainer_offline.data.dask_cluster`.

    Raises
    ------
    ConfigError
        With `dask`, if Dask is not installed.
    DataError
        If nothing can be learnt, the registry is away (before anything is worked out), or the workers are lost.
    """
    began_s = time.monotonic()
    champion = champion_on(registry, partial(tell, "reading"))
    ready = prepare(
        data,
        config.prepare,
        normal_until_s=normal_until_s,
        keep_start=keep_start,
        seed=seed,
        dask=dask,
        tell=partial(tell, "preparing"),
    )
    if (short := needed(ready.card.hours, ready.tested_days, config.gate)) is not None:
        tell("preparing", f"{short}; what is trained will be provisional")
    bundle = fit(ready, config.models, seed, partial(tell, "fitting"))
    judging: Tell = partial(tell, "judging")
    judging(f"judging on {', '.join(ready.card.test_jobs)} ({ready.card.split})")
    if champion is not None and not ready.card.split.startswith(BY_TIME):
        champion = replace(champion, before=frozenset())  # a whole job is the test now
    results, tallies = gate(bundle, champion, ready.test, config.gate, seed=seed, tell=judging)
    given = {name: {family: one.weight for family, one in result.weights.items()} for name, result in results.items()}
    bundle, ready.card.weights = replace(bundle, weights=given), given
    settings = {"seed": seed, "data": data.name, "normal_until_s": normal_until_s}
    run = TrainedRun(bundle, results, tallies, ready.card, settings)
    run_id, made = register(registry, run, promote=promote, tell=partial(tell, "registering"))
    answers = []
    for one in made:
        result = results[one.detector]
        shown = {"passed": result.passed, "provisional": result.provisional, "reasons": result.reasons,
                 "metrics": result.metrics}  # fmt: skip
        answers.append({"detector": one.detector, "version": one.version, "aliases": list(one.aliases), "gate": shown,
                        "weights": msgspec.to_builtins(result.weights)})  # fmt: skip
    return {
        "run_id": run_id,
        "registry": registry.uri,
        "data": msgspec.to_builtins(ready.card),
        "models": answers,
        "wall_s": round(time.monotonic() - began_s, 3),
    }


def champion_on(registry: Registry, tell: Tell) -> Champion | None:
    """Today's champions and what they were trained on; None where there are none that can be compared with."""
    try:
        if not Wanted.under(registry, CHAMPION).versions:
            return None
        versions, bundle = assemble(registry, CHAMPION)
    except DetectorError as error:
        tell(f"no comparison with the champion: {error}")
        return None
    serves = [one for one in registry.versions() if versions.get(one.detector) == one.version]
    try:
        return champion_of(bundle, {one.run_id: registry.card(one) or _card(one) for one in serves}.values())
    except DataError as error:
        tell(f"no comparison with the champion: {error}")
        return None


def champion_of(bundle: ModelBundle, cards: Iterable[DataCard]) -> Champion:
    """Who serves, and everything that any of its parts was trained on."""
    part: set[str] = set()
    whole: set[str] = set()
    until_s: dict[str, float] = {}
    jobs: set[str] = set()
    for card in cards:
        jobs |= {*card.train_jobs}
        (part if card.split.startswith(BY_TIME) else whole).update(card.train_digests)
        for name in card.train_jobs:
            until_s[name] = max(card.train_until_s.get(name, math.inf), until_s.get(name, -math.inf))
    known = {name: one for name, one in until_s.items() if one < math.inf}
    return Champion(bundle, frozenset(jobs), frozenset(whole | part), frozenset(part - whole), known)


def _card(one: Version) -> DataCard:
    """What the tags of a version say of its training data, where its run's card is gone.

    Raises
    ------
    DataError
        If they do not hold everything: then nobody knows what it was trained on.
    """
    jobs, digests = (listed(one.tags, f"data_train_{name}") for name in ("jobs", "digests"))
    if jobs is None or digests is None:
        raise DataError(
            f"version {one.version} of {one.detector} has a list of training jobs that is cut short, and its run's "
            "data card is gone, so nobody knows which test jobs are new to it"
        )
    return DataCard(
        hash=one.tags.get("data_hash", ""), jobs=len(jobs), rows=0, hours=0.0, train_jobs=sorted(jobs), test_jobs=[],
        split=one.tags.get("data_split", ""), train_rows=0, test_rows=0, train_digests=sorted(digests),
    )  # fmt: skip
