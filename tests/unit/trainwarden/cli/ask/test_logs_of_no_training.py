"""Logs in which no training speaks are not judged; a log behind a command's answer is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.detectors.last_words.judged import answered, raised, steps

BUILD = [
    "#4 [4/14] RUN pip install numpy",
    "#4 4.43 Successfully installed numpy-1.4.0",
    "#4 DONE 4.9s",
    "#15 exporting to image",
]
BANNER = [
    "== PyTorch ==",
    "NVIDIA Release 24.05 (build 91431255)",
    "All rights reserved.",
    "NOTE: CUDA Forward Compatibility mode ENABLED.",
]
LIST = [
    "$ nvidia-smi -L",
    *(f"GPU {n}: NVIDIA H100 80GB HBM3 (UUID: GPU-0a1b2c3d-0000-4000-8000-00000000000{n})" for n in range(4)),
]


OLD_BUILD = ["Step 1/9 : FROM nvcr.io/nvidia/pytorch:24.10-py3", " ---> 0a1b2c3d", "Successfully built 0a1b2c3d"]


@pytest.mark.parametrize("lines", [BUILD, OLD_BUILD, BANNER])
def test_a_log_without_a_step_or_a_machine_is_not_healthy(tmp_path: Path, lines: list[str]) -> None:
    assert answered(tmp_path, "train.log", lines)[0] == "not judged"
    assert answered(tmp_path, "more.log", [*lines, *steps("08:05:00", 30)])[0] == "healthy"


def test_a_kernels_log_alone_is_judged(tmp_path: Path) -> None:
    lines = [
        f"Nov  4 08:0{minute}:11 g7 kernel: docker0: port 1(veth2f) entered forwarding state" for minute in range(9)
    ]
    assert answered(tmp_path, "kern.log", lines)[0] == "healthy"


def test_a_log_behind_the_list_of_devices_is_read(tmp_path: Path) -> None:
    lines = [*LIST, "$ torchrun train.py", *steps("08:05:00", 30)]
    assert answered(tmp_path, "term.log", lines)[0] == "healthy"
    failed = [*lines, *raised(1, "RuntimeError: CUDA error: invalid device ordinal")]
    answer, (found,) = answered(tmp_path, "more.log", failed)
    assert (answer, found.kind, found.suspects[0].rank) == ("incident", "user_error", 1)


def test_the_list_of_devices_alone_is_not_judged(tmp_path: Path) -> None:
    assert answered(tmp_path, "term.log", LIST)[0] == "not judged"


def test_steps_that_a_program_may_have_printed_at_its_end_do_not_make_it_healthy(tmp_path: Path) -> None:
    lines = ["Traceback (most recent call last):", '  File "/w/t.py", line 8, in f', "ValueError: a bad sample"]
    lines += [f"step {number} loss 2.{number}" for number in range(40)]
    assert answered(tmp_path, "train.log", lines)[0] == "not judged"
