"""Where models are kept: a folder of this machine by default, any MLflow tracking server by its URI."""

from __future__ import annotations

import fcntl
import functools
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from trainwarden.errors import ConfigError, DataError
from trainwarden.network.in_time import urllib3_pools

DEFAULT_FOLDER: Final = "trainwarden-models"
DATABASE: Final = "mlflow.db"
EXPERIMENT: Final = "trainwarden"
_SCHEMES: Final = ("sqlite:", "http:", "https:")

# MLflow waits minutes for a server that is away; who asks here has a last good model and asks again.
_ENVIRONMENT: Final = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",  # for each piece of an answer; see `_bound_answers` for the whole
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",  # a proxy may ask for an hour
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}
_ANSWER_TIMES: Final = 6.0  # a set of models has some MB: that is 100 kB/s


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
    """Where the last good models of a registry are kept on this machine: beside a local one that we may write to."""
    import hashlib

    folder = local_folder(uri)
    if folder is not None and os.access(folder / "served" if (folder / "served").exists() else folder, os.W_OK):
        return folder / "served"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "trainwarden" / "models" / hashlib.sha256(uri.encode()).hexdigest()[:16]


def client_of(uri: str, *, create: bool = False) -> Any:
    """MLflow's client of a registry; `create` makes a local one where there is none.

    Raises
    ------
    RegistryAway
        If there is none, or none can be made or written to.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    folder = local_folder(uri)
    if folder is not None:
        database = folder / Path(uri.partition("?")[0]).name
        if create:
            _check_folder(folder, database)
        elif not database.is_file():
            raise RegistryAway(f"there is no registry in '{folder}': run trainwarden train")
    with asking(uri):
        if folder is not None and not database.is_file():
            _create(database)
        return _client(uri)


def _client(uri: str) -> Any:
    from mlflow import MlflowClient

    for noisy in ("alembic", "mlflow"):  # set by MLflow's own import
        logging.getLogger(noisy).setLevel(logging.ERROR)
    # It prints a stack of every refusal that it also raises, and we say that in one sentence.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    _bound_answers()
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


@functools.cache
def _bound_answers() -> None:
    """Have MLflow give up an answer that drips: its own limit is for each piece, and all of them may come for ever."""
    from mlflow.utils import request_utils

    adapter: Any = getattr(request_utils, "TCPKeepAliveHTTPAdapter", None)
    if adapter is None:
        return
    pools = urllib3_pools(time.monotonic, _ANSWER_TIMES)

    class InTimeAdapter(adapter):  # type: ignore[misc]
        def init_poolmanager(self, *words: Any, **more: Any) -> None:
            super().init_poolmanager(*words, **more)
            self.poolmanager.pool_classes_by_scheme = pools

        def proxy_manager_for(self, *words: Any, **more: Any) -> Any:
            manager = super().proxy_manager_for(*words, **more)
            manager.pool_classes_by_scheme = pools
            return manager

    request_utils.TCPKeepAliveHTTPAdapter = InTimeAdapter


def _create(database: Path) -> None:
    """Make the tables of a local registry whole or not at all, by one process at a time.

    MLflow cannot go on with a database in which some of its tables exist: a full disk, a kill, or two processes at
    once would leave one that no later start could use.
    """
    unfinished = database.with_name(f".{database.name}.unfinished")
    with database.with_name(f".{database.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if database.is_file():
            return
        for path in (unfinished, unfinished.with_name(f"{unfinished.name}-journal")):
            path.unlink(missing_ok=True)
        _client(f"sqlite:///{unfinished}").search_experiments(max_results=1)
        unfinished.replace(database)


def _check_folder(folder: Path, database: Path) -> None:
    """Make the folder of a local registry; refused before a training is worked out, not after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RegistryAway(f"registry folder '{folder}' cannot be made: {error.strerror}") from error
    for path in (folder, database):
        if path.exists() and not os.access(path, os.W_OK):
            raise RegistryAway(f"registry '{path}' cannot be written to: permission denied")


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
    KeyboardInterrupt
        Where that is what was wrong first: MLflow ends a run that was interrupted, and may find its database locked.
    """
    from mlflow.exceptions import MlflowException
    from requests.exceptions import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, RequestException, SQLAlchemyError, OSError) as error:
        first: BaseException | None = error
        while first is not None and not isinstance(first, KeyboardInterrupt):
            first = first.__context__
        if first is not None:
            raise KeyboardInterrupt from error
        raise RegistryAway(f"registry '{uri}': {_said(error)}") from error


def _said(error: BaseException) -> str:
    """What went wrong at the bottom, where that is a database or the network; else the first line."""
    from requests.exceptions import ConnectionError as NoConnection
    from requests.exceptions import Timeout
    from sqlalchemy.exc import DBAPIError

    one: BaseException | None = error
    while one is not None:
        if isinstance(one, DBAPIError) and one.orig is not None:
            return str(one.orig)
        if isinstance(one, Timeout | NoConnection):
            return "the server does not answer" + (" in time" if isinstance(one, Timeout) else "")
        one = one.__cause__ or one.__context__
    first = str(error).strip().splitlines()
    return first[0][:300] if first else type(error).__name__
