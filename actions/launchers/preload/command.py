"""Command lines that start Python, taken apart."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

import msgspec

from trainwarden.errors import ConfigError

_PYTHON: Final = re.compile(r"python[0-9.]*\Z")
_WITH_A_WORD: Final = frozenset({"-W", "-X", "--check-hash-based-pycs"})  # `python --help`


class PythonCommand(msgspec.Struct, frozen=True):
    """`python` with `flags` of its own, and `words`: a script, or ``-m MODULE``, or ``-c CODE``, with arguments."""

    python: str
    flags: tuple[str, ...]
    words: tuple[str, ...]


def python_command(command: Sequence[str]) -> PythonCommand:
    """Take `command` apart.

    Raises
    ------
    ConfigError
        If it does not start Python with a program.

    Examples
    --------
    >>> python_command(["/usr/bin/python3", "-u", "-X", "dev", "train.py", "--lr", "1"])
    PythonCommand(python='/usr/bin/python3', flags=('-u', '-X', 'dev'), words=('train.py', '--lr', '1'))
    """
    if not _PYTHON.match(PurePath(command[0]).name):
        raise ConfigError(f"--preload: {command[0]} is not Python; write `python train.py` or `python -m MODULE`")
    at = 1
    while at < len(command) and command[at].startswith("-") and command[at] not in ("-", "-m", "-c"):
        at += 2 if command[at] in _WITH_A_WORD else 1
    words = tuple(command[at:])
    if not words or words[0] == "-" or (words[0] in ("-m", "-c") and len(words) == 1):
        raise ConfigError("--preload: the command names no program for Python to run")
    return PythonCommand(command[0], tuple(command[1:at]), words)
