"""What `make` says before it fetches gigabytes, without doing any of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.places import ROOT


def dry(tmp_path: Path, *words: str) -> list[str]:
    """The lines that ``make`` would run for `words` in a fresh clone."""
    command = ["make", "--no-print-directory", "-n", f"STAMP={tmp_path}/none", *words]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    return ended.stdout.splitlines()


def test_make_install_says_what_it_fetches_and_how_long_it_takes_and_shows_progress(tmp_path: Path) -> None:
    lines = dry(tmp_path, "install")
    (said,) = [line for line in lines if "Fetching" in line]
    assert "about 7 GB on disk with torch's CUDA libraries" in said
    assert "Two to four minutes" in said
    assert lines.index(said) == 0
    (everything,) = [line for line in lines if "--editable" in line]
    assert "--quiet" not in everything
    (hint,) = [line for line in lines if "No GPU is seen here" in line]
    assert "make install TORCH_INDEX=URL" in hint


def test_without_a_gpu_torchs_cpu_build_comes_from_the_index_that_is_named(tmp_path: Path) -> None:
    lines = dry(tmp_path, "install", "TORCH_INDEX=http://127.0.0.1:9/cpu")
    assert "torch for CPUs from http://127.0.0.1:9/cpu" in lines[0]
    (torch,) = [line for line in lines if "--index-url http://127.0.0.1:9/cpu torch" in line]
    (everything,) = [line for line in lines if "--editable" in line]
    assert lines.index(torch) < lines.index(everything)


def test_make_demo_installs_first_and_says_so(tmp_path: Path) -> None:
    lines = dry(tmp_path, "demo")
    assert "Fetching" in lines[0]
    assert lines[-1].endswith("trainwarden demo")
