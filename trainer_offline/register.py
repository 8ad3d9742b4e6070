"""One training run into the registry: a run with card and plots, a version of every detector, and who gets an alias."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from detectors.models.bundle import MANIFEST, ModelBundle
from trainer_offline.assembly import ENSEMBLE, parts_of, preparation_hash
from trainer_offline.data_card import DataCard
from trainer_offline.gate import GateResult
from trainer_offline.judged import Tally
from trainer_offline.plots import draw
from trainer_offline.registry import CHALLENGER, CHAMPION, Registry, Version, registered_name
from trainer_offline.registry_uri import asking, experiment_of

LOADER = "trainer_offline.served"
REQUIREMENTS = ["trainwarden[detect]"]
MAX_TAG = 4_900  # MLflow keeps tags of up to 5,000 characters


def register(
    registry: Registry,
    bundle: ModelBundle,
    results: Mapping[str, GateResult],
    tallies: Mapping[str, Tally],
    card: DataCard,
    settings: Mapping[str, Any],
    *,
    promote: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[str, list[Version]]:
    """Keep every detector of `bundle`; the run's id and the versions made.

    A version that passed becomes champion where there is none (or with `promote`), else challenger; one that failed is
    kept with the tag ``gate`` = ``rejected`` and gets no alias.

    Raises
    ------
    RegistryAway
        If the registry cannot be reached or refuses.
    """
    parts = parts_of(bundle)
    had = registry.aliases(CHAMPION)
    with tempfile.TemporaryDirectory(prefix="trainwarden-train-") as temporary, asking(registry.uri):
        import mlflow

        client = registry.client
        mlflow.set_tracking_uri(registry.uri)
        mlflow.set_registry_uri(registry.uri)
        with mlflow.start_run(experiment_id=experiment_of(client, registry.uri)) as run:
            run_id = str(run.info.run_id)
            mlflow.log_params({"data_hash": card.hash, **settings})
            mlflow.log_dict(msgspec.to_builtins(card), "data-card.json")
            mlflow.log_metrics(_numbers(results))
            for name, tally in tallies.items():
                for path in draw(name, tally, Path(temporary)):
                    mlflow.log_artifact(str(path), "plots")
            numbers = {}
            for name, part in parts.items():
                tell(f"registering {registered_name(name)}")
                numbers[name] = _kept(client, bundle, name, part, Path(temporary), run_id, results[name], card)
    made = []
    for name, number in numbers.items():
        if results[name].passed:
            if promote or name not in had:
                registry.promote(name, number)
            else:
                registry.challenge(registry.version(name, number))
        made.append(registry.version(name, number))
    return run_id, made


def _kept(
    client: Any, bundle: ModelBundle, name: str, part: ModelBundle, temporary: Path, run_id: str, result: GateResult,
    card: DataCard,
) -> str:  # fmt: skip
    """Log and register one artifact; the version's number. Tags come last: without them nothing is served."""
    import mlflow
    from mlflow.models import infer_signature

    folder = temporary / name
    part.save(folder)
    example = _example(bundle, name)
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):  # MLflow prints its progress
        warnings.simplefilter("ignore")  # of MLflow's own making: hints on types and on missing environments
        info = mlflow.pyfunc.log_model(
            name=registered_name(name),
            loader_module=LOADER,
            data_path=str(folder),
            signature=infer_signature(example, [0.0]),
            input_example=example,
            pip_requirements=REQUIREMENTS,
            registered_model_name=registered_name(name),
            metadata={"detector": name},
        )
    number = str(info.registered_model_version)
    tags = {
        "detector": name,
        "run": run_id,
        "content": part.versions[name],
        "preparation": preparation_hash(part),
        "manifest_sha256": hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest(),
        **_card_tags(card),
        "gate_reasons": msgspec.json.encode(result.reasons).decode()[:MAX_TAG],
        "gate_metrics": msgspec.json.encode(result.metrics).decode()[:MAX_TAG],
        "gate": "passed" if result.passed else "rejected",
    }
    for key, value in tags.items():
        client.set_model_version_tag(registered_name(name), number, key, value)
    why = "; ".join(result.reasons)
    client.update_model_version(registered_name(name), number, f"gate {tags['gate']}: {why}"[:MAX_TAG])
    return number


def _card_tags(card: DataCard) -> dict[str, str]:
    return {
        "data_hash": card.hash,
        "data_jobs": str(card.jobs),
        "data_rows": str(card.rows),
        "data_hours": f"{card.hours:g}",
        "data_split": card.split,
        "data_train_jobs": ", ".join(card.train_jobs)[:MAX_TAG],
        "data_test_jobs": ", ".join(card.test_jobs)[:MAX_TAG],
        "data_metrics_kept": ", ".join(card.metrics_kept)[:MAX_TAG],
        "data_metrics_dropped": ", ".join(one["name"] for one in card.metrics_dropped)[:MAX_TAG],
    }


def _example(bundle: ModelBundle, name: str) -> Any:
    """A row as the model takes it: normal metric values, or for the ensemble its members' scores."""
    import pandas as pd

    from trainer_offline.train import blank_row

    vote = next(vote for vote in bundle.votes.values() if name == ENSEMBLE or name in vote.models)
    row = dict.fromkeys(vote.models, 0.1) if name == ENSEMBLE else blank_row(vote)
    return pd.DataFrame([row] * 2)


def _numbers(results: Mapping[str, GateResult]) -> dict[str, float]:
    return {
        f"{name}.{key}": float(value)
        for name, result in results.items()
        for key, value in ({**result.metrics, "passed": result.passed}).items()
        if value is not None
    }


os.environ.setdefault("MPLBACKEND", "Agg")  # plots are files; a training run has no screen

__all__ = ["CHALLENGER", "CHAMPION", "register"]
