"""Services of one command: their logs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from trainwarden.cli.shared.stack import LocalStack


def test_a_services_log_stays_below_its_limit_while_it_goes_on_writing(tmp_path: Path) -> None:
    stack = LocalStack(tmp_path, {})
    path = stack.log_path("agent")
    with path.open("ab", buffering=0) as log:
        child = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=log)
        stack._processes["agent"] = child
        assert child.stdin is not None
        for number in range(40):
            child.stdin.write(b"%05d\n" % number * 100)
            child.stdin.flush()
            while path.stat().st_size == 0 or not path.read_bytes().endswith(b"%05d\n" % number):
                os.sched_yield()
            stack.limit_logs(8_000)
            written = path.read_bytes() + (path.with_suffix(".log.1").read_bytes() if number > 8 else b"")
            assert len(written) <= 8_000
            assert path.stat().st_size <= 4_000
        child.stdin.close()
        child.wait(10)
    assert path.with_suffix(".log.1").exists()
    assert b"\0" not in path.read_bytes(), "it goes on at the end of what is left"


def test_a_log_that_is_gone_ends_nothing(tmp_path: Path) -> None:
    stack = LocalStack(tmp_path, {})
    stack._processes["agent"] = None  # type: ignore[assignment]
    stack.limit_logs(10)


def test_files_of_the_folder_where_a_command_is_given_are_no_modules_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "typer.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    stack = LocalStack(tmp_path, {})
    stack.start("agent", "--help")
    assert stack._processes["agent"].wait(60.0) == 0


def test_a_settings_file_is_the_services_and_no_word_of_the_command_behind_the_dashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: started.append(command))
    config = tmp_path / "site.toml"
    LocalStack(tmp_path, {}, config).start("keeper", "--job", "j", "--", "python", "train.py", "--steps", "3")
    (words,) = started
    ours, theirs = words[: words.index("--")], words[words.index("--") + 1 :]
    assert theirs == ["python", "train.py", "--steps", "3"]
    assert ours[ours.index("--config") + 1] == str(config)
