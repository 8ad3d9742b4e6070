"""A real Alertmanager of Debian's package, with no cluster and a short memory."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.servers.kafka import ServerMissing

PROGRAM = "prometheus-alertmanager"
READY_TIMEOUT_S = 60.0


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def ask(url: str, **parameters: str) -> Any:
    """The JSON that a server answers, to a form if there are `parameters`; a refusal's words are an AssertionError."""
    data = urllib.parse.urlencode(parameters).encode() if parameters else None
    try:
        with urllib.request.urlopen(url, data=data, timeout=20) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{url} {parameters}: {error.read().decode(errors='replace')}") from error


class Alertmanager:
    """Keeps alerts, and tells `webhook` if there is one.

    Raises
    ------
    ServerMissing
        If it is not installed.
    """

    def __init__(self, folder: Path, webhook: dict[str, Any] | None = None) -> None:
        if shutil.which(PROGRAM) is None:
            raise ServerMissing(f"{PROGRAM} is not installed (docker/system-packages.sh)")
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._port = folder, free_port()
        self._process: subprocess.Popen[bytes] | None = None
        receiver = {"name": "here", "webhook_configs": [webhook] if webhook else []}
        route = {
            "receiver": "here",
            "group_by": ["alertname", "training_job", "kind"],
            "group_wait": "1s",
            "group_interval": "1s",
        }
        # JSON is YAML.
        (folder / "alertmanager.yml").write_text(json.dumps({"route": route, "receivers": [receiver]}))

    @property
    def address(self) -> str:
        """``host:port``, as Prometheus wants it."""
        return f"127.0.0.1:{self._port}"

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{self.address}"

    def alerts(self, name: str) -> list[dict[str, Any]]:
        """The alerts of this name that it has now."""
        kept: list[dict[str, Any]] = ask(f"{self.url}/api/v2/alerts?filter=alertname%3D{name}")
        return kept

    def raise_alert(self, name: str, **annotations: str) -> None:
        """What a person does by ``amtool alert add``."""
        said = [f"--annotation={key}={value}" for key, value in annotations.items()]
        command = ["amtool", f"--alertmanager.url={self.url}", "alert", "add", *said, f"alertname={name}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, done.stderr

    def __enter__(self) -> Self:
        command = [
            PROGRAM, f"--config.file={self._folder / 'alertmanager.yml'}", f"--storage.path={self._folder / 'data'}",
            f"--web.listen-address={self.address}", "--cluster.listen-address=",
        ]  # fmt: skip
        with (self._folder / "alertmanager.log").open("ab") as out:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        end_s = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < end_s and self._process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/-/ready", timeout=2) as answer:
                if answer.status == 200:
                    return self
            time.sleep(0.1)
        self.stop()
        raise AssertionError(f"the Alertmanager was not ready in {READY_TIMEOUT_S:g} s:\n{self.tail()}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(20)
            self._process = None

    def tail(self) -> str:
        """The end of its log."""
        return (self._folder / "alertmanager.log").read_text(errors="replace")[-3000:]
