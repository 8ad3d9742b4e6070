"""One training run into the registry: a run with card and plots, a version of every detector, and who gets an alias."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import signal
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from trainwarden.detectors.metrics.bundle.bundle import MANIFEST, ModelBundle
from trainwarden.trainer_offline.data.card import DataCard
from trainwarden.trainer_offline.fit.floors import GateResult
from trainwarden.trainer_offline.fit.judge import Tally
from trainwarden.trainer_offline.fit.plots import draw
from trainwarden.trainer_offline.fit.weights import Weight
from trainwarden.trainer_offline.progress import Tell, silent
from trainwarden.trainer_offline.registry.address import asking, experiment_of
from trainwarden.trainer_offline.registry.parts import ENSEMBLE, parts_of, preparation_hash
from trainwarden.trainer_offline.registry.registry import Registry
from trainwarden.trainer_offline.registry.version import (
    CARD,
    CHAMPION,
    CUT,
    MAX_TAG,
    PROVISIONAL,
    Version,
    registered_name,
    tag_of,
)

LOADER = "trainwarden.trainer_offline.registry.pyfunc"
REQUIREMENTS = ["trainwarden[detect]"]
MAX_REASON = 500  # characters of a reason in a tag, where not all fit


@dataclass(frozen=True, slots=True)
class TrainedRun:
    """What one training run has made.

    Attributes
    ----------
    bundle : ModelBundle
    results : mapping of str to GateResult
        For each detector and the ``ensemble``.
    tallies : mapping of str to Tally
        What was counted, for the plots.
    card : DataCard
    settings : mapping
        What it was called with, for the run's page.
    """

    bundle: ModelBundle
    results: Mapping[str, GateResult]
    tallies: Mapping[str, Tally]
    card: DataCard
    settings: Mapping[str, Any]


def register(
    registry: Registry, trained: TrainedRun, *, promote: bool = False, tell: Tell = silent
) -> tuple[str, list[Version]]:
    """Keep every detector of a run; the run's id and the versions made.

    A version that passed becomes champion where there is none (or with `promote`), else challenger. One that failed is
    kept with the tag ``gate`` = ``rejected`` and gets no alias. For one that is provisional see `_stand_in`.

    Raises
    ------
    RegistryAway
        If the registry cannot be reached or refuses.
    """
    parts, results = parts_of(trained.bundle), trained.results
    tell("keeping the run with its card and plots", 0, len(parts))
    had = registry.aliases(CHAMPION)
    with tempfile.TemporaryDirectory(prefix="trainwarden-train-") as temporary, asking(registry.uri):
        import mlflow

        client = registry.client
        mlflow.set_tracking_uri(registry.uri)
        mlflow.set_registry_uri(registry.uri)
        with mlflow.start_run(experiment_id=experiment_of(client, registry.uri)) as run:
            run_id = str(run.info.run_id)
            mlflow.log_params({"data_hash": trained.card.hash, **trained.settings})
            mlflow.log_dict(msgspec.to_builtins(trained.card), CARD)
            for name, tally in trained.tallies.items():
                for path in draw(name, tally, Path(temporary)):
                    mlflow.log_artifact(str(path), "plots")
            numbers: dict[str, str] = {}
            logged: dict[str, str] = {}
            for done, (name, part) in enumerate(parts.items()):
                tell(f"registering {registered_name(name)}", done, len(parts))
                folder = Path(temporary) / name
                part.save(folder)
                logged[name] = _logged(name, folder, _example(trained.bundle, name))
                one = _registered(logged[name], name, _tags(trained, part, folder, run_id))
                why = f"gate {one.tags['gate']}: {'; '.join(results[name].reasons)}"
                client.update_model_version(one.name, one.version, why[:MAX_TAG])
                numbers[name] = str(one.version)
            # Last: MLflow asks the server for the history of each metric that a run has when it keeps a model.
            for name, model_id in logged.items():
                mlflow.log_metrics(_numbers(name, results[name]), model_id=model_id)
    with _uninterrupted():
        stand_in = registry.aliases(PROVISIONAL)
        for name, number in numbers.items():
            one, first = registry.version(name, number), name not in had
            if results[name].passed:
                _give_alias(registry, one, champion=promote or first)
            elif first:
                _stand_in(registry, results[name], one, stand_in.get(name))
        tell("registered", len(parts), len(parts))
    return run_id, [registry.version(name, number) for name, number in numbers.items()]


def _give_alias(registry: Registry, one: Version, *, champion: bool) -> None:
    if champion:
        registry.promote(one.detector, one.version)
    else:
        registry.challenge(one)


def _stand_in(registry: Registry, result: GateResult, one: Version, serving: str | None) -> None:
    """Who serves where there is no champion and the new version has not passed.

    The provisional version that serves today becomes champion if what it has not learnt from is enough to pass by now;
    it serves no more if that is enough to reject it. Else the new one takes its place if it is provisional too, unless
    it did worse.
    """
    if serving is not None and result.stand_in is not None and not result.stand_in.provisional:
        old = registry.version(one.detector, serving)
        registry.settle(old, result.stand_in.passed, _reasons(result.stand_in.reasons))
        if result.stand_in.passed:
            return
    elif result.beats is False:
        return
    if result.provisional:
        registry.serve_provisionally(one)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Aliases move together: Ctrl-C waits until all have. Elsewhere than in the main thread it never comes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: asked.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if asked:
        signal.raise_signal(signal.SIGINT)  # to whoever handled it before


def _logged(name: str, folder: Path, example: Any) -> str:
    """Log one artifact, which lies in `folder`; the id of MLflow's logged model."""
    import mlflow
    from mlflow.models import infer_signature

    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):  # MLflow prints its progress
        warnings.simplefilter("ignore")  # of MLflow's own making: hints on types and on missing environments
        info = mlflow.pyfunc.log_model(
            name=registered_name(name),
            loader_module=LOADER,
            data_path=str(folder),
            signature=infer_signature(example, [0.0]),
            input_example=example,
            pip_requirements=REQUIREMENTS,
            metadata={"detector": name},
        )
    return str(info.model_id)


def _registered(model_id: str, name: str, tags: Mapping[str, str]) -> Any:
    """Make a version of a logged model, with all its tags at once: no version is ever seen with a part of them."""
    import mlflow

    with contextlib.redirect_stderr(io.StringIO()):  # MLflow prints its progress
        return mlflow.register_model(f"models:/{model_id}", registered_name(name), tags=dict(tags))


def _tags(trained: TrainedRun, part: ModelBundle, folder: Path, run_id: str) -> dict[str, str]:
    name = next(iter(part.versions))
    result = trained.results[name]
    return {
        "detector": name,
        "run": run_id,
        "content": part.versions[name],
        "preparation": preparation_hash(part),
        "manifest_sha256": hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest(),
        **_card_tags(trained.card),
        "gate_reasons": _reasons(result.reasons),
        "gate_metrics": msgspec.json.encode(result.metrics).decode(),
        "weights": _json_tag(result.weights),
        "gate": "passed" if result.passed else PROVISIONAL if result.provisional else "rejected",
    }


def _reasons(reasons: Sequence[str]) -> str:
    """As many as a tag holds, as JSON that can be read: names of many test jobs may be in them."""
    whole = msgspec.json.encode(reasons).decode()
    if len(whole) <= MAX_TAG:
        return whole
    kept: list[str] = []
    for reason in (one if len(one) <= MAX_REASON else one[:MAX_REASON] + CUT for one in reasons):
        if len(msgspec.json.encode([*kept, reason, CUT]).decode()) > MAX_TAG:
            kept.append(CUT)
            break
        kept.append(reason)
    return msgspec.json.encode(kept).decode()


def _json_tag(weights: Mapping[str, Weight]) -> str:
    """Weights by family, without their reasons where a tag does not hold all; then nothing, as the card has them."""
    shorter = {family: {"weight": one.weight} for family, one in weights.items()}
    texts = (msgspec.json.encode(one).decode() for one in (weights, shorter, {}))
    return next(text for text in texts if len(text) <= MAX_TAG)


def _card_tags(card: DataCard) -> dict[str, str]:
    return {
        "data_hash": card.hash,
        "data_jobs": str(card.jobs),
        "data_rows": str(card.rows),
        "data_hours": f"{card.hours:g}",
        "data_split": card.split,
        "data_train_jobs": tag_of(card.train_jobs),
        "data_train_digests": tag_of(card.train_digests),
        "data_scales": "; ".join(f"{family}: {why}" for family, why in card.scales.items())[:MAX_TAG],
        "data_test_jobs": tag_of(card.test_jobs),
        "data_metrics_kept": tag_of(card.metrics_kept),
        "data_metrics_dropped": tag_of([one["name"] for one in card.metrics_dropped]),
    }


def _example(bundle: ModelBundle, name: str) -> Any:
    """A row as the model takes it: normal metric values, or for the ensemble its members' scores."""
    import pandas as pd

    from trainwarden.trainer_offline.fit.fit import blank_row

    vote = next(vote for vote in bundle.votes.values() if name == ENSEMBLE or name in vote.models)
    row = dict.fromkeys(vote.models, 0.1) if name == ENSEMBLE else blank_row(vote)
    return pd.DataFrame([row] * 2)


def _numbers(name: str, result: GateResult) -> dict[str, float]:
    found = {**result.metrics, "passed": result.passed}
    return {f"{name}.{key}": float(value) for key, value in found.items() if value is not None}


os.environ.setdefault("MPLBACKEND", "Agg")  # plots are files; a training run has no screen
# At the end of a run MLflow tells a server's pages on standard output, which may be a program's JSON.
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
