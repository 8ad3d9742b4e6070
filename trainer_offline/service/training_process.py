"""One training as a process of its own, so that the trainer stays responsive and memory is given back."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec


class TrainingProcess:
    """`trainwarden train` as a child process."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="trainwarden-trainer-")
        self._answer = Path(self._folder.name) / "answer.json"
        self._log = Path(self._folder.name) / "log"
        command = [sys.executable, "-P", "-m", "trainwarden.cli.main", "train", *arguments, "--json", str(self._answer)]
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, "PYTHONUNBUFFERED": "1"}
            )

    def result(self) -> dict[str, Any] | None:
        """None while it runs; else the answer, or ``{"error": ...}`` with the last line it said."""
        code = self._process.poll()
        if code is None:
            return None
        try:
            answer: dict[str, Any] = msgspec.json.decode(self._answer.read_bytes())
        except (OSError, msgspec.DecodeError):
            lines = self._log.read_text(errors="replace").strip().splitlines()
            answer = {"error": lines[-1][-500:] if lines else f"exit code {code}"}
        self._folder.cleanup()
        return answer

    def close(self) -> None:
        """End it; nothing half-registered serves, since tags and aliases come last."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._folder.cleanup()
