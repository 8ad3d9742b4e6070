"""Preparing jobs on an existing Dask cluster, where an archive has outgrown one machine.

The cluster's workers have this version of trainwarden installed and see the data under the same path. Dask sends work
to other workers when one is lost. A cluster is trusted: who may talk to its scheduler may run any code on its workers,
which is why ``tls://`` addresses exist; certificates come from Dask's own configuration.
"""

from __future__ import annotations

import importlib
import logging
import platform
import socket
import time
import warnings
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

import trainwarden
from trainwarden.errors import ConfigError, DataError
from trainwarden.trainer_offline.data.prepare_job import PreparedJob, Task, files_of, prepare_job

CONNECT_S: Final = 20.0
WORKERS_S: Final = 60.0  # a cluster that scales up, or restarts its workers, has one by then
POLL_S: Final = 2.0


class UnfitWorker(DataError):
    """A worker does not see the data, or would find something else; a person has to mend the cluster."""


def on_cluster(address: str, tasks: Sequence[Task]) -> Generator[PreparedJob | DataError]:
    """What becomes of each task, in the order of `tasks`, on the cluster whose scheduler is at `address`.

    Raises
    ------
    ConfigError
        If Dask is not installed.
    DataError
        If the scheduler cannot be reached, there are no workers (any more), they have other versions, or they do not
        see the data.
    """
    client = connect(address)
    futures: list[Any] = []
    try:
        _wait_for_workers(client, address)
        places = [replace(task, folder=task.folder.absolute()) for task in tasks]
        futures = [client.submit(prepare_there, task, files_of(task), versions(), pure=False) for task in places]
        for place, future in enumerate(futures):
            yield _outcome(client, address, future, tasks[place])
            futures[place] = None  # the cluster lets go of the result
    finally:
        left = [future for future in futures if future is not None]
        with suppress(OSError, TimeoutError):  # the cluster is gone, and with it what there was to cancel
            client.cancel(left, force=True)
        with suppress(OSError, TimeoutError):
            client.close(timeout=5.0)


def prepare_there(task: Task, files: Sequence[Path], wanted: Sequence[str]) -> PreparedJob:
    """What a worker runs: `prepare_job`, once it is clear that the worker is what the command takes it for.

    Raises
    ------
    UnfitWorker
        If it has not the versions `wanted`, or does not see one of `files`.
    DataError
        As `prepare_job`.
    """
    for here, there in zip(versions(), wanted, strict=True):
        if here != there:
            raise UnfitWorker(f"the worker on {socket.gethostname()} has {here}, but the command has {there}")
    for file in files:
        if not file.exists():
            raise UnfitWorker(
                f"the worker on {socket.gethostname()} does not see '{file}': the data has to lie under the same path "
                "on every worker"
            )
    return prepare_job(task)


def versions() -> tuple[str, ...]:
    """What has to be the same everywhere for equal results."""
    python = ".".join(platform.python_version_tuple()[:2])
    ours = f"trainwarden {trainwarden.__version__}"
    return (f"Python {python}", ours, f"numpy {np.__version__}", f"pyarrow {pa.__version__}")


def connect(address: str) -> Any:
    """A Dask client of the scheduler at `address`.

    Raises
    ------
    ConfigError
        If Dask is not installed.
    DataError
        If the scheduler cannot be reached.
    """
    try:
        dask: Any = importlib.import_module("distributed")
    except ImportError as error:
        raise ConfigError("--dask needs Dask: pip install 'trainwarden[train,dask]'") from error
    # Dask logs each lost connection with a traceback; what it means is said in a sentence.
    for name in [one for one in logging.root.manager.loggerDict if one.partition(".")[0] == "distributed"]:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    security = dask.Security()
    if address.startswith("tls:") and security.get_connection_args("client")["ssl_context"] is None:
        raise DataError(
            f"Dask scheduler {address}: there is no certificate to connect with; set distributed.comm.tls in Dask's "
            "own configuration"
        )
    try:
        with warnings.catch_warnings():
            # Dask warns of other versions; `prepare_there` refuses those that matter, in a sentence.
            warnings.simplefilter("ignore")
            return dask.Client(
                address, timeout=CONNECT_S, set_as_default=False, security=security, name="trainwarden-train"
            )
    except (OSError, TimeoutError, ValueError, RuntimeError) as error:
        raise DataError(f"Dask scheduler {address} cannot be reached ({_one_line(error)})") from error


def _workers(client: Any, address: str) -> int:
    try:
        return len(client.nthreads())
    except (OSError, TimeoutError, RuntimeError) as error:
        raise DataError(f"the connection to Dask scheduler {address} was lost ({_one_line(error)})") from error


def _wait_for_workers(client: Any, address: str) -> None:
    until_s = time.monotonic() + WORKERS_S
    while not _workers(client, address):
        if time.monotonic() > until_s:
            raise DataError(f"Dask scheduler {address} has no worker, and none came within {WORKERS_S:g} s")
        time.sleep(POLL_S / 4.0)


def _outcome(client: Any, address: str, future: Any, task: Task) -> PreparedJob | DataError:
    """Wait as long as the job takes, but no longer than `WORKERS_S` for a cluster without workers."""
    dask: Any = importlib.import_module("distributed")
    while True:
        try:
            found: PreparedJob = future.result(timeout=POLL_S)
            return found
        except UnfitWorker as error:
            raise DataError(f"Dask scheduler {address}: {error}") from error
        except DataError as error:
            return error
        except dask.KilledWorker as error:
            raise DataError(
                f"{task.label}: every Dask worker that prepared it was lost, most likely for want of memory; lower "
                "trainer.prepare.max_cells"
            ) from error
        except dask.CancelledError as error:
            raise DataError(f"Dask scheduler {address} is gone, or has cancelled {task.label}") from error
        except (ImportError, AttributeError, RuntimeError) as error:
            raise DataError(
                f"Dask scheduler {address}: scheduler and workers need trainwarden[train,dask] as it is installed here "
                f"({_one_line(error.__cause__ or error)})"
            ) from error
        except (OSError, TimeoutError) as error:
            if future.status == "error":
                raise DataError(f"{task.label} failed on a Dask worker ({_one_line(error)})") from error
            _wait_for_workers(client, address)


def _one_line(error: BaseException) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:200]
