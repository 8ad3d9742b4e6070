"""Where models are kept: a folder of this machine by default, any MLflow tracking server by its URI."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from trainwarden.errors import ConfigError, DataError

DEFAULT_FOLDER: Final = "trainwarden-models"
DATABASE: Final = "mlflow.db"
EXPERIMENT: Final = "trainwarden"
_SCHEMES: Final = ("sqlite:", "http:", "https:")

# MLflow waits minutes for a server that is away; who asks here has a last good model and asks again.
_ENVIRONMENT: Final = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}


class RegistryAway(DataError):
    """The registry cannot be reached or refused a request."""


def is_registry(models: str) -> bool:
    """Whether `models` names a registry: a URI of one, or a folder with its database; else it is a bundle's folder.

    Examples
    --------
    >>> is_registry("http://mlflow:5000"), is_registry("sqlite:///models/mlflow.db"), is_registry("some/bundle")
    (True, True, False)
    """
    return models.startswith(_SCHEMES) or (Path(models) / DATABASE).is_file()


def tracking_uri(registry: str | None) -> str:
    """The MLflow URI of `registry`: a URI as it is, a folder's database; by default ``MLFLOW_TRACKING_URI``, else here.

    Raises
    ------
    ConfigError
        If it is of a kind that MLflow refuses.
    """
    chosen = registry or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_FOLDER
    if chosen.startswith(_SCHEMES):
        return chosen
    if "://" in chosen:
        raise ConfigError(f"registry '{chosen}' is neither a folder nor a sqlite:, http: or https: URI")
    return f"sqlite:///{(Path(chosen).absolute() / DATABASE)}"


def local_folder(uri: str) -> Path | None:
    """The folder of a sqlite registry; None for a server."""
    if not uri.startswith("sqlite:///"):
        return None
    return Path(uri.removeprefix("sqlite:///").partition("?")[0]).absolute().parent


def cache_folder(uri: str) -> Path:
    """Where the last good models of a registry are kept on this machine."""
    import hashlib

    folder = local_folder(uri)
    if folder is not None:
        return folder / "served"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "trainwarden" / "models" / hashlib.sha256(uri.encode()).hexdigest()[:16]


def client_of(uri: str, *, create: bool = False) -> Any:
    """MLflow's client of a registry; `create` makes a local one where there is none.

    Raises
    ------
    RegistryAway
        If there is none.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    folder = local_folder(uri)
    if folder is not None:
        if create:
            folder.mkdir(parents=True, exist_ok=True)
        elif not (folder / Path(uri.partition("?")[0]).name).is_file():
            raise RegistryAway(f"there is no registry '{uri}': run trainwarden train")
    with asking(uri):
        from mlflow import MlflowClient

        for noisy in ("alembic", "mlflow", "mlflow.store.db.utils"):  # set by MLflow's own import
            logging.getLogger(noisy).setLevel(logging.ERROR)
        return MlflowClient(tracking_uri=uri, registry_uri=uri)


def experiment_of(client: Any, uri: str) -> str:
    """Id of our experiment, made where it does not exist; a local one keeps its artifacts beside the database."""
    found = client.get_experiment_by_name(EXPERIMENT)
    if found is not None:
        return str(found.experiment_id)
    folder = local_folder(uri)
    location = None if folder is None else (folder / "artifacts").as_uri()
    return str(client.create_experiment(EXPERIMENT, artifact_location=location))


@contextmanager
def asking(uri: str) -> Iterator[None]:
    """Everything that goes wrong with the registry as one sentence.

    Raises
    ------
    RegistryAway
        Instead of whatever MLflow, its database or the network raise.
    """
    from mlflow.exceptions import MlflowException
    from requests.exceptions import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, RequestException, SQLAlchemyError, OSError) as error:
        first = str(error).strip().splitlines()
        raise RegistryAway(f"registry '{uri}': {first[0][:300] if first else type(error).__name__}") from error
