"""`trainwarden serve` as a process of its own."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

READY_TIMEOUT_S = 60.0


class PageServer:
    """Serves what is on the bus at `address` on a free port of this machine.

    Attributes
    ----------
    entrance : str
        The address that it has printed, with the token.
    """

    def __init__(self, folder: Path, address: str) -> None:
        self._folder = folder
        self._address = address
        self._process: subprocess.Popen[bytes] | None = None
        self.entrance = ""

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        out, errors = self._folder / "out", self._folder / "errors"
        command = [sys.executable, "-m", "trainwarden.cli.main", "serve", "--listen", "127.0.0.1:0"]
        command += ["--bus", self._address, "--run-dir", str(self._folder / "run")]
        with out.open("wb") as told, errors.open("wb") as wrong:
            self._process = subprocess.Popen(command, stdout=told, stderr=wrong, start_new_session=True)
        end_s = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < end_s and self._process.poll() is None:
            self.entrance = out.read_text().strip()
            if self.entrance and self._ready():
                return self
            time.sleep(0.1)
        self.close()
        raise AssertionError(f"serve was not ready in {READY_TIMEOUT_S:g} s:\n{errors.read_text()[-3000:]}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def uri(self) -> str:
        """Where it is, without a slash at the end."""
        return self.entrance.partition("/enter")[0]

    @property
    def token(self) -> str:
        """The token that it has made up."""
        return self.entrance.rpartition("=")[2]

    @property
    def port(self) -> int:
        """Where it listens on this machine."""
        return int(self.uri.rpartition(":")[2])

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def get(self, path: str) -> Any:
        """The answer to a program that asks with the token."""
        request = urllib.request.Request(self.uri + path, headers={"authorization": f"Bearer {self.token}"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read()

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False
