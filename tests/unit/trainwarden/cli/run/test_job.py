"""`trainwarden job`: a word that names a node has one, and the others have none."""

from __future__ import annotations

import sys

import pytest

from trainwarden.cli.main import run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["evict"], "job evict: name the node"),
        (["uncordon"], "job uncordon: name the node"),
        (["stop", "n1"], "job stop: 'n1' is one word too much"),
        (["status", "n1"], "job status: 'n1' is one word too much"),
    ],
)
def test_a_word_with_a_node_too_many_or_too_few_is_one_sentence(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["trainwarden", "job", *words, "--job", "j", "--rdzv", "127.0.0.1:1"])
    with pytest.raises(SystemExit, match="2"):
        run()
    assert capsys.readouterr().err.splitlines() == [f"trainwarden: {said}"]
