"""A real MLflow tracking server on this machine: sqlite behind it, artifacts served over HTTP."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import warnings
from pathlib import Path
from typing import Any

from tests.servers.kafka import ServerMissing

READY_TIMEOUT_S = 90.0
DATABASE = "server.db"
# `mlflow server` starts uvicorn as one more process, and importing MLflow takes each of them five seconds of a
# processor: here the command itself goes on as uvicorn.
PROGRAM = """
import os, sys
import mlflow.server, uvicorn
from mlflow.cli import cli

def go_on(command, extra_env, **_):
    os.environ.update(extra_env)
    uvicorn.main(command[command.index("uvicorn") + 1:])

mlflow.server._exec_cmd = go_on
cli(sys.argv[1:], prog_name="mlflow")
"""


def empty_database(file: Path) -> None:
    """A database with MLflow's tables and nothing in them, by its own first start: its migrations take three seconds.

    Copied, it is what a server or a registry of this machine finds when it has been started once and asked nothing.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of MLflow's own making
        from mlflow.store.db.utils import _initialize_tables, create_sqlalchemy_engine

        logging.getLogger("alembic").setLevel(logging.ERROR)
        engine = create_sqlalchemy_engine(f"sqlite:///{file}")
        _initialize_tables(engine)
        engine.dispose()


class MlflowServer:
    """One server process; started again on the same port it has its data.

    Parameters
    ----------
    folder : Path
        Its database and artifacts.
    empty : Path, optional
        What `empty_database` made, to begin with.

    Raises
    ------
    ServerMissing
        If MLflow is not installed.
    """

    def __init__(self, folder: Path, empty: Path | None = None) -> None:
        if importlib.util.find_spec("mlflow") is None:
            raise ServerMissing("mlflow is not installed")
        folder.mkdir(parents=True, exist_ok=True)
        if empty is not None:
            shutil.copyfile(empty, folder / DATABASE)
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start and wait for a real answer; a failure shows the end of the log."""
        command = [
            sys.executable, "-c", PROGRAM, "server", "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1",
            "--backend-store-uri", f"sqlite:///{self.folder / DATABASE}",
            "--artifacts-destination", str(self.folder / "artifacts"), "--serve-artifacts",
        ]  # fmt: skip
        # Job execution takes a gigabyte and eight processes that nothing here needs.
        environ = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        with (self.folder / "log").open("ab") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out, env=environ, start_new_session=True)
        end_s = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < end_s:
            if self._process.poll() is not None:
                break
            with contextlib.suppress(OSError, ValueError):
                self.ask("experiments/search", {"max_results": 1})
                return
            time.sleep(0.2)
        self.kill()
        raise AssertionError(f"mlflow did not answer in {READY_TIMEOUT_S:g} s:\n{self.tail()}")

    def ask(self, path: str, body: dict[str, Any] | None = None, method: str = "POST") -> Any:
        """Answer of the server's REST interface, without MLflow's client."""
        request = urllib.request.Request(
            f"{self.uri}/api/2.0/mlflow/{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)

    def model(self, name: str) -> dict[str, Any]:
        """A registered model as REST tells it, aliases and tags as dictionaries."""
        found = self.ask(f"registered-models/get?name={name}", method="GET")["registered_model"]
        found["aliases"] = {one["alias"]: str(one["version"]) for one in found.get("aliases", [])}
        found["tags"] = {one["key"]: one["value"] for one in found.get("tags", [])}
        return dict(found)

    def kill(self) -> None:
        """SIGKILL to it and its workers."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(20)
            self._process = None

    def tail(self) -> str:
        """The last lines of its log."""
        return "\n".join((self.folder / "log").read_text(errors="replace").splitlines()[-30:])
