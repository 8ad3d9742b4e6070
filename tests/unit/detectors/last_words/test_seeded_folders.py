"""Three hundred seeded folders, of launchers, stamps, roots and gaps in any mixture: right kind and rank, none accused."""  # noqa: E501

from __future__ import annotations

from pathlib import Path

import pytest

from tests.log_folders.judging import answers

FAULTY, HEALTHY = 200, 100
RIGHT = 0.98


@pytest.mark.thorough
@pytest.mark.timeout(1500)  # twenty seconds of a processor, which a busy machine stretches
def test_of_seeded_folders_98_percent_are_answered_with_the_right_kind_and_rank(tmp_path: Path) -> None:
    wrong = [one for one in answers(tmp_path, range(FAULTY), healthy=False) if not one.right]
    assert len(wrong) <= (1.0 - RIGHT) * FAULTY, wrong


@pytest.mark.thorough
@pytest.mark.timeout(1500)  # twenty seconds of a processor, which a busy machine stretches
def test_of_healthy_seeded_folders_none_is_accused(tmp_path: Path) -> None:
    wrong = [one for one in answers(tmp_path, range(HEALTHY), healthy=True) if not one.right]
    assert wrong == []
