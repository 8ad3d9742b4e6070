"""Shells complete our commands and options by a script that we print."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ASK = """
eval "$(trainwarden completion bash)"
COMP_WORDS=({words}) COMP_CWORD={last}
_trainwarden_completion trainwarden
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def completed(tmp_path: Path, *words: str) -> list[str]:
    """What bash would offer for the last of `words`."""
    (tmp_path / "trainwarden").write_text(f'#!/bin/sh\nexec {sys.executable} -m trainwarden.cli.main "$@"\n')
    (tmp_path / "trainwarden").chmod(0o755)
    script = ASK.format(words=" ".join(f"'{word}'" for word in words), last=len(words) - 1)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ended = subprocess.run(["bash", "-c", script], env=environ, capture_output=True, text=True, check=True)
    return ended.stdout.split()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "offered"), [(("trainwarden", "stat"), ["status"]), (("trainwarden", "explain", "--al"), ["--all"])]
)
def test_bash_completes_commands_and_their_options(tmp_path: Path, words: tuple[str, ...], offered: list[str]) -> None:
    assert completed(tmp_path, *words) == offered


def test_another_shell_is_refused_in_one_sentence() -> None:
    command = [sys.executable, "-m", "trainwarden.cli.main", "completion", "tcsh"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "'tcsh' is not known; bash, zsh and fish are" in ended.stderr
