"""Where the page is: said whole to a terminal, and without its token to whatever is written down."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainwarden.cli.shared.page_beside import ADDRESS, PageBeside
from trainwarden.cli.shared.stack import LocalStack

ENTRANCE = "http://localhost:4711/enter?token=secret"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PageBeside:
    monkeypatch.setattr(LocalStack, "start", lambda *_words, **_options: None)
    monkeypatch.setattr(LocalStack, "pid", lambda *_words: 2**22 + 1)  # nobody's
    return PageBeside(LocalStack(tmp_path, {}), tmp_path)


def test_a_terminal_is_told_the_whole_address(page: PageBeside, tmp_path: Path) -> None:
    (tmp_path / ADDRESS).write_text(f"{ENTRANCE}\n")
    assert page.news(terminal=True) == f"page: {ENTRANCE}"
    assert page.news(terminal=True) is None


def test_a_log_is_told_the_file_that_its_user_alone_may_read(page: PageBeside, tmp_path: Path) -> None:
    (tmp_path / ADDRESS).write_text(f"{ENTRANCE}\n")
    said = page.news(terminal=False)
    assert said == f"page: http://localhost:4711/ (its address with the token: {tmp_path / ADDRESS})"
    assert (tmp_path / ADDRESS).stat().st_mode & 0o777 == 0o600


def test_an_address_without_a_token_is_said_as_it_is(page: PageBeside, tmp_path: Path) -> None:
    (tmp_path / ADDRESS).write_text("http://10.0.0.1:8760/\n")
    assert page.news(terminal=False) == "page: http://10.0.0.1:8760/"
