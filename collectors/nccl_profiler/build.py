"""Compiles the plug-in with the C compiler that is there: for ``make install``, and for wheels (``setup.py``).

Needs the standard library alone, as it also runs where a wheel is built and nothing of ours can be imported.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).absolute().parent
LIBRARY = HERE / "libnccl-profiler-trainwarden.so"
VARIABLE = "TRAINWARDEN_NCCL_PROFILER"  # tells the hook where the library is; "off" keeps NCCL from it
SOURCES = ("plugin.c", "shared_file.c", "tables.c")
# The library stays loaded whoever closes it: NCCL's threads may call it a moment later.
FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-fPIC", "-fvisibility=hidden", "-shared", "-Wl,-z,nodelete")


class NoCompilerError(Exception):
    """There is no C compiler here."""


def compiler() -> list[str]:
    """The C compiler's command: ``CC``, else ``cc`` or ``gcc``.

    Raises
    ------
    NoCompilerError
        If there is none.
    """
    named = shlex.split(os.environ.get("CC", ""))
    for command in [named, ["cc"], ["gcc"]]:
        if command and shutil.which(command[0]):
            return command
    raise NoCompilerError("there is no C compiler (cc): NCCL's calls will not be seen, all else works")


def build(target: Path = LIBRARY, flags: tuple[str, ...] = ()) -> Path:
    """Compile the plug-in; it replaces `target` in one step.

    Raises
    ------
    NoCompilerError
        If there is no compiler.
    RuntimeError
        If the sources do not compile, with what the compiler says.
    """
    part = target.with_name(f".{target.name}.{os.getpid()}")
    command = [*compiler(), *FLAGS, *flags, "-o", str(part), *(str(HERE / name) for name in SOURCES), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        part.unlink(missing_ok=True)
        raise RuntimeError(f"NCCL's profiler plug-in does not compile:\n{done.stderr[-2000:]}")
    part.replace(target)
    return target


def offer(environ: Mapping[str, str]) -> dict[str, str]:
    """What ranks need in their environment so that the hook names the plug-in to NCCL, where nobody has spoken of it.

    Examples
    --------
    >>> offer({"TRAINWARDEN_NCCL_PROFILER": "off"})
    {}
    """
    return {VARIABLE: str(LIBRARY)} if VARIABLE not in environ and LIBRARY.is_file() else {}


def state() -> str | None:
    """None if the plug-in is there, else one sentence why not."""
    if LIBRARY.is_file():
        return None
    try:
        compiler()
    except NoCompilerError as error:
        return str(error)
    return f"it has not been built: {sys.executable} {__file__}"


def main() -> None:
    """Build it unless it is younger than all it is made of; without a compiler say so, which is no failure."""
    parts = [*HERE.glob("*.[ch]"), Path(__file__)]
    if LIBRARY.is_file() and LIBRARY.stat().st_mtime > max(part.stat().st_mtime for part in parts):
        return
    try:
        print(f"built {build().name}")  # noqa: T201 - a command
    except NoCompilerError as error:
        print(f"skipped: {error}")  # noqa: T201 - as above


if __name__ == "__main__":
    main()
