"""`trainwarden watch` on scripts that know nothing of us: each fault is found and named, clean runs are silent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.runs import Watched, forked, torchrun
from tests.torch_forks import TorchForks

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

RANKS = {"ddp_accumulate.py": 3, "sgd_by_hand.py": 4, "fsdp.py": 3, "pipeline.py": 2}
BY_TORCHRUN = {"ddp_accumulate.py", "sgd_by_hand.py"}  # one end of each kind
AT_STEP = 28
EARLY = 14  # past the warm-up: enough where what is usual plays no part
STEPS = 60
LATE = 50  # a run that is silent until then, and its fault is not that of a start


def arguments(steps: int) -> tuple[str, ...]:
    return ("--steps", str(steps), "--work-ms", "240")  # all four take the same


def job(forks: TorchForks, script: str, steps: int) -> list[str]:
    """Forks of one process; how torchrun ends a job is seen where ranks fail."""
    return forked(forks, RANKS[script], script, *arguments(steps))


# Two others are silent until their late exception, and all end well after a slow rank.
def test_a_clean_run_is_silent(torch_forks: TorchForks, tmp_path: Path) -> None:
    command = job(torch_forks, "pipeline.py", STEPS)
    result = Watched(tmp_path, command, None, 1.0, page=True).run(180)
    assert result["exit_code"] == 0, result["log"]
    assert result["incidents"] == [], result["log"]
    assert result["actions"] == []
    assert result["steps"] == STEPS
    assert 0.2 < result["iteration_s"]["median"] < 2.0


@pytest.mark.parametrize("script", RANKS)
def test_a_slow_rank_is_named(script: str, torch_forks: TorchForks, tmp_path: Path) -> None:
    command = job(torch_forks, script, STEPS)
    result = Watched(tmp_path, command, ("slow-rank", 1, AT_STEP), 2.0).run(200)
    assert result["exit_code"] == 0, result["log"]
    assert [incident["kind"] for incident in result["incidents"]] == ["slow_compute"], result["log"]
    assert result["incidents"][0]["suspects"][0]["rank"] == 1
    assert abs(result["incidents"][0]["onset_step"] - AT_STEP) <= 5


@pytest.mark.parametrize("script", RANKS)
def test_a_hang_is_found_while_it_lasts(script: str, torch_forks: TorchForks, tmp_path: Path) -> None:
    command = job(torch_forks, script, 2000)
    result = Watched(tmp_path, command, ("hang", 1, AT_STEP), 1.0).run(120, end_after_fault_s=10.0)
    assert [incident["kind"] for incident in result["incidents"]] == ["hang"], result["log"]
    assert result["incidents"][0]["suspects"][0]["rank"] == 1


# How a rank ended is told by the agent, whatever the script: two of them each.
@pytest.mark.parametrize("script", ["ddp_accumulate.py", "pipeline.py"])
def test_a_crash_names_the_first_to_die(script: str, torch_forks: TorchForks, tmp_path: Path) -> None:
    command = (
        torchrun(RANKS[script], script, *arguments(2000)) if script in BY_TORCHRUN else job(torch_forks, script, 2000)
    )
    result = Watched(tmp_path, command, ("crash", 1, EARLY), 1.0).run(120)
    assert result["exit_code"] != 0
    assert [incident["kind"] for incident in result["incidents"]] == ["crash"], result["log"]
    assert result["incidents"][0]["suspects"][0]["rank"] == 1


@pytest.mark.parametrize("script", ["sgd_by_hand.py", "fsdp.py"])
def test_an_exception_after_a_silent_run_is_named_with_its_rank(
    script: str, torch_forks: TorchForks, tmp_path: Path
) -> None:
    fault = ("--raise-at", str(LATE), "--raise-rank", "1")
    words = (RANKS[script], script, *arguments(2000), *fault)
    command = torchrun(*words) if script in BY_TORCHRUN else forked(torch_forks, *words)
    result = Watched(tmp_path, command, None, 1.0).run(120)
    assert result["exit_code"] != 0
    assert [incident["kind"] for incident in result["incidents"]] == ["exception"], result["log"]
    assert result["steps"] == LATE
    assert 0.2 < result["iteration_s"]["median"] < 2.0
    assert result["incidents"][0]["suspects"][0]["rank"] == 1
    assert "ValueError" in result["incidents"][0]["reason"]
