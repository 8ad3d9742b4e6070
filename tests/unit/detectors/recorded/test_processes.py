"""Processes beside a command end with it, whatever ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from trainwarden.detectors.recorded.processes import processes, submit_all
from trainwarden.errors import DataError

LONG_S = 600.0
SCRIPT = f"""
import signal, time
from trainwarden.detectors.recorded.processes import processes, submit_all
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background
if __name__ == "__main__":
    with processes(2) as pool:
        for future in submit_all(pool, time.sleep, [{LONG_S}, {LONG_S}]):
            future.result()
"""


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["KILL", "TERM", "INT", "INT to all"])
def test_nobody_is_left_whatever_ends_the_command(way: str, tmp_path: Path) -> None:
    script = tmp_path / "works.py"
    script.write_text(SCRIPT)
    took = subprocess.Popen([sys.executable, str(script)], start_new_session=True)
    beside: list[psutil.Process] = []
    try:
        until_s = time.monotonic() + 60.0
        while len(beside) < 3 or any(_starts(one) for one in beside):  # two, and the tracker of resources
            assert time.monotonic() < until_s
            time.sleep(0.05)
            beside = psutil.Process(took.pid).children()
        number = getattr(signal, f"SIG{way.split(maxsplit=1)[0]}")
        (os.killpg if "all" in way else os.kill)(took.pid, number)
        took.wait(10.0)
        assert psutil.wait_procs(beside, timeout=10.0)[1] == []
    finally:
        took.kill()
        took.wait()
        for one in beside:
            if one.is_running():
                one.kill()


def _starts(one: psutil.Process) -> bool:
    """Whether it still imports what it needs: threads come when it works."""
    return "spawn_main" in " ".join(one.cmdline()) and one.num_threads() < 2


@pytest.mark.thorough
def test_one_that_was_ended_from_outside_is_one_sentence() -> None:
    with pytest.raises(DataError, match="ended from outside"), processes(1) as pool:
        submit_all(pool, os._exit, [9])[0].result()
