"""`hook`: what is printed is a Python file."""

from __future__ import annotations

import pytest

from trainwarden.cli.setup.hook import hook


@pytest.mark.thorough
def test_the_hook_is_printed_as_one_file_that_compiles(capsys: pytest.CaptureFixture[str]) -> None:
    assert hook() == 0
    said = capsys.readouterr()
    assert said.err == ""
    compile(said.out, "trainwarden_hook.py", "exec")
