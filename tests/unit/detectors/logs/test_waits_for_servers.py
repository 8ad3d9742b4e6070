"""A server that does not answer for a while counts where steps stop or slow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.detectors.last_words.judged import MEGATRON, judged

WAITS = [
    "[Wed Nov  4 08:03:01 2026] nfs: server filer2 not responding, still trying",
    "[Wed Nov  4 08:03:01 2026] Lustre: lfs1-OST0017-osc: Connection to lfs1-OST0017 (at 10.12.0.44@o2ib) was lost; in progress operations using this service will wait for recovery to complete",  # noqa: E501
]
BACK = "[Wed Nov  4 08:04:31 2026] nfs: server filer2 OK"


def run(*ends: int) -> list[str]:
    """Step lines that end so many seconds after eight."""
    lines = []
    for step, end in enumerate(ends[1:]):
        clock = f"08:{end // 60:02d}:{end % 60:02d}"
        lines.append(MEGATRON.format(clock=clock, step=step).replace("5000.0", f"{1000.0 * (end - ends[step]):.1f}"))
    return lines


@pytest.mark.parametrize("word", WAITS)
def test_steps_that_go_on_as_before_need_no_word_of_it(tmp_path: Path, word: str) -> None:
    assert not judged(tmp_path, {"train.log": run(*range(0, 900, 5)), "dmesg.txt": [word, BACK]})


@pytest.mark.parametrize("word", WAITS)
def test_steps_that_stop_or_slow_say_that_it_counts(tmp_path: Path, word: str) -> None:
    for name, times in (("stopped", [*range(0, 185, 5)]), ("slowed", [*range(0, 185, 5), *range(225, 900, 40)])):
        (tmp_path / name).mkdir()
        files = {"train.log": run(*times), "dmesg.txt": [word, "[Wed Nov  4 08:14:31 2026] docker0: port 1 entered"]}
        assert "storage" in {one.kind for one in judged(tmp_path / name, files)}, name
