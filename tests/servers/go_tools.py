"""Command-line tools that come as Go modules, built once and kept in ``.cache/go``."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.places import ROOT
from tests.servers.kafka import ServerMissing

CACHE: Final = ROOT / ".cache" / "go"
BUILD_TIMEOUT_S: Final = 1200.0
COMPOSE_SPEC: Final = "github.com/compose-spec/compose-go/v2/cmd@v2.16.2"


def go_tool(package: str) -> Path:
    """The program that ``go install PACKAGE@VERSION`` makes; safe in several processes at once.

    Raises
    ------
    ServerMissing
        With the reason.
    """
    folder = CACHE / package.replace("/", "_")
    program = folder / package.partition("@")[0].rpartition("/")[2]
    if program.exists():
        return program
    if shutil.which("go") is None:
        raise ServerMissing(f"{package} is built by Go, and there is no go on the PATH")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            part = folder.with_name(f"{folder.name}.part")
            # Not optimized: it runs for a second, and is built in two thirds of the time.
            run_go(["install", "-gcflags=all=-N -l", package], CACHE, GOBIN=str(part))
            part.rename(folder)
    return program


def run_go(words: list[str], place: Path, **environ: str) -> None:
    """``go WORDS`` in `place`.

    Raises
    ------
    ServerMissing
        With the first lines of what it said, if it failed.
    """
    try:
        done = subprocess.run(
            ["go", *words],
            cwd=place,
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ServerMissing(f"go {' '.join(words)} took more than {BUILD_TIMEOUT_S:.0f} s") from error
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if not line.startswith("go: downloading")]
        raise ServerMissing(f"go {' '.join(words)} failed: {' '.join(said)[:500]}")
