"""The warm-up check of `trainwarden launch`: what ends it, and that no job is started then."""

from __future__ import annotations

import signal
import sys

import pytest

from trainwarden.cli.run import warm_up
from trainwarden.cli.shared.output import Voice
from trainwarden.errors import LauncherError

WELL = "import os, signal; signal.signal({n}, signal.SIG_IGN); os.kill(os.getppid(), {n})"
pytestmark = pytest.mark.thorough  # starts a process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_comes_as_the_validation_ends_well_starts_nothing(tmp_path, number):
    before = signal.signal(number, lambda *_: None)
    with (tmp_path / "said").open("w") as said:
        try:
            with pytest.raises(SystemExit) as ended:
                warm_up._run([sys.executable, "-S", "-c", WELL.format(n=int(number))], Voice(stream=said))
        finally:
            signal.signal(number, before)
    assert ended.value.code == 128 + number


def test_a_validation_that_the_kernel_kills_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(warm_up, "_run", lambda *_: -signal.SIGKILL)
    with pytest.raises(LauncherError, match="ended with code -9 and no result"):
        warm_up.warm_up(2, Voice(), checkpoints=None, config=None)
