"""A log that ends with words of a failure, of which no rule made an incident, is not called healthy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trainwarden.cli.ask.detect_jobs import Asked, jobs_to_judge, judge_folder
from trainwarden.detectors.logs.unknown_ends import UnknownEnd, buffered_ends, unknown_ends
from trainwarden.recorded.job import LogTable

STEPS = [f"2026-05-03 10:{n // 60:02d}:{n % 60:02d} step {n} loss {3 - 0.01 * n:.2f}" for n in range(120)]
UNKNOWN = "FluxError: the flux of plane 3 is gone"


def found(*lines: str) -> list[int]:
    nobody = (None,) * len(lines)
    return [one.number for one in unknown_ends([LogTable("a.log", np.zeros(len(lines)), nobody, nobody, lines)])]


@pytest.mark.parametrize(
    "line",
    [
        UNKNOWN,
        "fluxd: fatal: plane 3 does not answer",
        "2026-05-03 10:02:00 [ERROR] plane 3 does not answer",
        "zsh: abort      fluxtrain --config a.toml",
        "plane driver exited with status 9",
        "terminate called after throwing an instance of 'flux::gone'",
    ],
)
def test_words_of_a_failure_at_the_end_are_found(line: str) -> None:
    assert found(*STEPS, line) == [len(STEPS) + 1]
    assert found(*STEPS, line, "", "cleaning up", "bye") == [len(STEPS) + 1]


@pytest.mark.parametrize(
    "lines",
    [
        (UNKNOWN, *STEPS),  # it went on
        (UNKNOWN, "training complete"),
        (UNKNOWN, "plane process exited with code 0"),
        ("[rank1]:[W1104 08:03:05.22 TCPStore.cpp:106] FluxError: the flux is gone",),
        ("wandb: ERROR Error while calling W&B API: FluxError: gone",),
        ("WARNING FluxError: gone, will retry",),
        ("May  3 10:02:00 g1 kernel: plane0: fatal: gone",),
        ("May  3 10:02:00 g1 systemd[1]: apt-daily.service: Failed with result 'exit-code'.",),
        ("slurmstepd: error: *** JOB 9 ON g1 CANCELLED AT 2026-05-03T10:02:00 DUE TO TIME LIMIT ***",),
        ("Fatal Python error: _enter_buffered_busy: could not acquire lock for <stdout> at interpreter shutdown",),
        ("eval error: 0.12, loss 0.3", "0 errors"),
    ],
)
def test_what_is_no_failure_or_over_is_not(lines: tuple[str, ...]) -> None:
    assert found(*STEPS, *lines) == []


def test_such_a_job_is_not_judged_and_the_line_is_named(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    for end, answer, named in (("fluxd: fatal: no plane 3", "not judged", [True]), ("bye", "healthy", [])):
        log.write_text("\n".join([*STEPS, end, ""]))
        (work,), _ = jobs_to_judge(log, Asked(None, None, None, None, want_scores=False), None)
        found = judge_folder(work).answer
        assert found["answer"] == answer
        assert [f"line 121: {end}" in one["reason"] for one in found["not_judged"]] == named


RAISED = ["Traceback (most recent call last):", '  File "/w/train.py", line 70, in main', "ValueError: a bad sample"]
UNSTAMPED = [f"step {number} loss 2.{number}" for number in range(40)]


def buffered(lines: list[str], times_s: float = np.nan) -> list[UnknownEnd]:
    size = len(lines)
    return buffered_ends([LogTable("a.log", np.full(size, times_s), (None,) * size, (None,) * size, lines)])


@pytest.mark.parametrize("before", [[], UNSTAMPED])
@pytest.mark.parametrize("prefix", ["", "[rank3]: "])
def test_steps_behind_an_exception_may_have_been_made_before_it(before: list[str], prefix: str) -> None:
    (end,) = buffered([*before, *(prefix + line for line in RAISED), *UNSTAMPED])
    assert (end.number, end.line, end.buffered) == (len(before) + 3, f"{prefix}ValueError: a bad sample", True)


@pytest.mark.parametrize(
    "lines",
    [
        [*RAISED, *UNSTAMPED * 20],  # more than a buffer
        [*RAISED, *UNSTAMPED, "training finished"],
        ["Exception in thread Thread-3 (run):", *RAISED, *UNSTAMPED],
        ["skipping a sample", *RAISED, *UNSTAMPED],
        [*RAISED, "bye"],  # no step: other rules know the last words of a log
        UNSTAMPED,
    ],
)
def test_what_refutes_that(lines: list[str]) -> None:
    assert buffered(lines) == []


def test_where_lines_have_times_their_order_is_known() -> None:
    assert buffered([*RAISED, *UNSTAMPED], 1.8e9) == []
