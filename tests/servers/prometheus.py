"""A real Prometheus: started on a folder, with targets to scrape, or with a history that `promtool` has put there."""

from __future__ import annotations

import base64
import json
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.servers.kafka import ServerMissing

READY_TIMEOUT_S = 60.0


class Prometheus:
    """One Prometheus process.

    Parameters
    ----------
    folder : Path
        Holds configuration, data and log.
    targets : dict
        By scrape job: ``host:port`` addresses, or address, path and ``instance`` of each target.
    interval : str
        Between two scrapes.
    arguments : tuple of str
        Further words of its command line.
    config : dict
        Laid over the configuration that follows from `targets` and `interval`.
    tls : ssl.SSLContext
        How a client reaches it that serves TLS (``--web.config.file`` in `arguments`).
    user : tuple of str
        Name and password, where it wants them.

    Raises
    ------
    ServerMissing
        If prometheus or promtool is not installed.
    """

    def __init__(
        self,
        folder: Path,
        targets: dict[str, list[str] | list[tuple[str, str, str]]] | None = None,
        interval: str = "15s",
        arguments: tuple[str, ...] = (),
        *,
        config: dict[str, Any] | None = None,
        tls: ssl.SSLContext | None = None,
        user: tuple[str, str] | None = None,
    ) -> None:
        self._prometheus, self._promtool = shutil.which("prometheus"), shutil.which("promtool")
        if self._prometheus is None or self._promtool is None:
            raise ServerMissing("prometheus and promtool are not installed (docker/system-packages.sh)")
        self._folder, self._arguments, self._tls = folder, arguments, tls
        words = "" if user is None else base64.b64encode(":".join(user).encode()).decode()
        self._headers = {"Authorization": f"Basic {words}"} if words else {}
        folder.mkdir(parents=True, exist_ok=True)
        jobs = [
            {"job_name": name, "static_configs": [_target(one) for one in addresses]}
            for name, addresses in (targets or {}).items()
        ]
        # JSON is YAML.
        own = {"global": {"scrape_interval": interval, "scrape_timeout": interval}, "scrape_configs": jobs}
        (folder / "prometheus.yml").write_text(json.dumps({**own, **(config or {})}))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = int(free.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """Of its process."""
        return None if self._process is None else self._process.pid

    def fill(self, openmetrics: Path, timeout_s: float = 300.0) -> None:
        """Put the samples of a file with time stamps into its data, before it is started."""
        command = [str(self._promtool), "tsdb", "create-blocks-from", "openmetrics", "-q", str(openmetrics)]
        done = subprocess.run(
            [*command, str(self._folder / "data")], capture_output=True, text=True, timeout=timeout_s, check=False
        )
        if done.returncode:
            raise AssertionError(f"promtool does not take the history:\n{done.stderr[-2000:]}")

    def __enter__(self) -> Self:
        command = [
            str(self._prometheus), f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'data'}", "--storage.tsdb.retention.time=10y",
            f"--web.listen-address=127.0.0.1:{self._port}", *self._arguments,
        ]  # fmt: skip
        with (self._folder / "prometheus.log").open("ab") as out:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            self.until("ready", lambda: self._get("/-/ready") is not None, READY_TIMEOUT_S)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(20)
            self._process = None

    def query(self, expression: str, at_s: float | None = None) -> list[dict[str, Any]]:
        """The result of an instant query."""
        asked = {"query": expression} | ({} if at_s is None else {"time": f"{at_s:.3f}"})
        return list(json.loads(self._get("/api/v1/query", asked) or b"{}").get("data", {}).get("result", []))

    def until(self, what: str, holds: Callable[[], Any], timeout_s: float = 180.0) -> Any:
        """Wait for it and return it; else fail with the end of the log."""
        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s:
            if found := holds():
                return found
            if self._process is None or self._process.poll() is not None:
                break
            time.sleep(0.2)
        log = (self._folder / "prometheus.log").read_text(errors="replace")[-3000:]
        raise AssertionError(f"{what}: not within {timeout_s:g} s\n{log}")

    def _get(self, path: str, asked: dict[str, str] | None = None) -> bytes | None:
        try:
            query = f"?{urllib.parse.urlencode(asked)}" if asked else ""
            request = urllib.request.Request(f"{self.url}{path}{query}", headers=self._headers)
            with urllib.request.urlopen(request, timeout=30, context=self._tls) as answer:
                return bytes(answer.read())
        except (urllib.error.URLError, OSError):
            return None


def _target(one: str | tuple[str, str, str]) -> dict[str, Any]:
    if isinstance(one, str):
        return {"targets": [one]}
    address, path, instance = one
    return {"targets": [address], "labels": {"__metrics_path__": path, "instance": instance}}
