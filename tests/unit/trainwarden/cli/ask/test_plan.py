"""`plan`: one exact answer, one sentence for what is no question."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainwarden.cli.ask.plan import plan
from trainwarden.errors import ConfigError, DataError


def test_plan_answers_exactly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    question = tmp_path / "q.json"
    question.write_text('{"micro_batch_s": [1.0, 1.0, 2.0], "total": 12}')
    assert plan("microbatches", str(question), json="-") == 0
    assert json.loads(capsys.readouterr().out) == {"micro_batches": [5, 5, 2], "iteration_s": 5.0}


@pytest.mark.parametrize("text", ["", "[]", '{"micro_batch_s": ["a"], "total": 1}', '{"micro_batch_s": [1.0]}'])
def test_plan_refuses_what_is_no_question(tmp_path: Path, text: str) -> None:
    question = tmp_path / "q.json"
    question.write_text(text)
    with pytest.raises(ConfigError, match="plan: input must be"):
        plan("microbatches", str(question))


def test_plan_refuses_what_has_no_answer(tmp_path: Path) -> None:
    question = tmp_path / "q.json"
    question.write_text('{"micro_batch_s": [1.0, 1.0], "total": 1}')
    with pytest.raises(DataError):
        plan("microbatches", str(question))
