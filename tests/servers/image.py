"""docker/Dockerfile built without a Docker engine or a registry of images: buildah over a Debian of our own."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

from tests.places import ROOT
from tests.servers.kafka import ServerMissing

CACHE: Final = ROOT / ".cache" / "image"
SUITE: Final = "bookworm"
BASE: Final = "localhost/base:test"
IMAGE: Final = "localhost/trainwarden:test"
BUILD_TIMEOUT_S: Final = 1500.0
_HOSTS_TRUST: Final = ("etc/ssl/certs/ca-certificates.crt", "etc/pip.conf")  # how this machine reaches packages


class ImageBuilder:
    """A storage of images in `folder`, with the Debian that stands in for the Dockerfile's own base.

    Raises
    ------
    ServerMissing
        If this user may not, or a program is missing.
    """

    def __init__(self, folder: Path) -> None:
        if os.geteuid() != 0:
            raise ServerMissing("an image is built in a chroot, which only root may do")
        for name in ("buildah", "debootstrap", "tar"):
            if shutil.which(name) is None:
                raise ServerMissing(f"{name} is not installed")
        self._folder = folder
        self._options = ["--root", str(folder / "root"), "--runroot", str(folder / "run"), "--storage-driver", "vfs"]

    def build(self, extras: str) -> None:
        """The image, from the checkout as it is."""
        tree = self._folder / "base"
        tree.mkdir(parents=True)
        _said("tar", "-xf", str(_debian()), "-C", str(tree))
        for name in _HOSTS_TRUST:
            if Path("/", name).exists():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(Path("/", name), tree / name)
        container = self._buildah("from", "scratch").strip()
        self._buildah("copy", "--quiet", container, str(tree), "/")
        self._buildah("commit", "--quiet", "--rm", container, BASE)
        shutil.rmtree(tree)
        self._buildah(
            "bud", "--pull-never", "--isolation", "chroot", "--network", "host", "--format", "docker", "--layers=false",
            "--build-arg", f"BASE={BASE}", "--build-arg", f"EXTRAS={extras}",
            "--file", str(ROOT / "docker" / "Dockerfile"), "--tag", IMAGE, str(ROOT),
        )  # fmt: skip
        self.container = self._buildah("from", "--pull-never", IMAGE).strip()

    def config(self) -> dict[str, Any]:
        """What the image tells Docker."""
        told: dict[str, Any] = json.loads(self._buildah("inspect", "--type", "image", IMAGE))
        return dict(told["Docker"]["config"])

    def run(self, *command: str) -> str:
        """What `command` says in a container, as the image's user."""
        return self._buildah("run", "--isolation", "chroot", "--network", "host", self.container, "--", *command)

    def close(self) -> None:
        """Let go of the disk."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _buildah(self, *words: str) -> str:
        return _said("buildah", *self._options, *words)


def _debian() -> Path:
    """A small Debian with a Python that can make virtual environments, as a tar file; made once."""
    kept = CACHE / f"{SUITE}.tar"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            tree, part = CACHE / SUITE, CACHE / f"{SUITE}.part"
            shutil.rmtree(tree, ignore_errors=True)
            wanted = "--include=python3,python3-venv,ca-certificates"
            _said("debootstrap", "--variant=minbase", wanted, SUITE, str(tree), _mirror())
            _said("tar", "-cf", str(part), "--exclude=./var/cache/apt/archives/*.deb", "-C", str(tree), ".")
            shutil.rmtree(tree)
            part.rename(kept)
    return kept


def _mirror() -> str:
    """Where this machine has its own packages from."""
    places = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    text = "\n".join(place.read_text(encoding="utf-8") for place in places if place.is_file())
    found = re.search(r"^(?:URIs:|deb(?:\s+\[[^\]]*\])?)\s+(https?://\S+)", text, re.MULTILINE)
    if found is None:
        raise ServerMissing("this machine names no place for Debian's packages")
    return found[1]


def _said(*words: str) -> str:
    """Standard output of a command; a failure shows the end of what it said."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
    if done.returncode:
        said = f"{done.stdout}\n{done.stderr}"[-3000:]
        raise AssertionError(f"{' '.join(words[:8])} ... ended with {done.returncode}:\n{said}")
    return done.stdout
