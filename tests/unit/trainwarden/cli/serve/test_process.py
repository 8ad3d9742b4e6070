"""A service beside ranks lives through signals that are for them."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from trainwarden.torchrun.signals import held_back

SERVICE = """
import os, time
print("imports", flush=True)
time.sleep(0.2)
from trainwarden.cli.serve.process import StopFlag
stop = StopFlag(with_parent=os.getppid())
print("serves", flush=True)
while not stop():
    time.sleep(0.01)
print("ended in order", flush=True)
"""


@pytest.mark.thorough
def test_a_service_outlives_signals_for_ranks_from_its_first_moment_and_stops_in_order() -> None:
    with held_back():
        process = subprocess.Popen([sys.executable, "-c", SERVICE], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process, process.stdout as said:
        for word in ("imports", "serves"):
            assert said.readline() == f"{word}\n"
            process.send_signal(signal.SIGUSR1)
        process.terminate()
        assert said.read() == "ended in order\n"
    assert process.returncode == 0


@pytest.mark.thorough
def test_a_service_that_was_started_without_that_outlives_them_once_it_serves() -> None:
    process = subprocess.Popen([sys.executable, "-c", SERVICE], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process, process.stdout as said:
        assert [said.readline(), said.readline()] == ["imports\n", "serves\n"]
        process.send_signal(signal.SIGUSR1)
        process.terminate()
        assert said.read() == "ended in order\n"
