"""The keeper that a torchrun starts: it is started again, and the end of the job waits for it only while it writes."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from trainwarden.torchrun import memory
from trainwarden.torchrun.memory import MemoryFolder

STANDS_STILL = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
WRITES = """
import os, signal, sys, time
def end(*_):
    for _ in range(20):
        os.write(2, b'x' * 100)
        time.sleep(0.15)
    sys.exit(0)
signal.signal(15, end)
print('up', flush=True)
time.sleep(600)
"""


def folder(path: Path) -> MemoryFolder:
    store = str(path / "store")
    environ = {"TRAINWARDEN_CHECKPOINT_MEMORY": str(path / "memory"), "TRAINWARDEN_CHECKPOINTS_STORE": store}
    return MemoryFolder("j", store, environ, path, node="a", alone=True, found=lambda found: None)


@pytest.mark.thorough
@pytest.mark.parametrize(("program", "code"), [(STANDS_STILL, -signal.SIGKILL), (WRITES, 0)])
def test_the_end_waits_for_a_store_that_takes_bytes_and_not_for_one_that_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, program: str, code: int
) -> None:
    monkeypatch.setattr(memory, "_STILL_S", 1.5)
    made = folder(tmp_path)
    keeper = made._keeper = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert keeper.stdout is not None
    with keeper.stdout as said, caplog.at_level(logging.WARNING):
        assert said.readline() == b"up\n"
        made.close()
    assert keeper.returncode == code
    assert ("has taken no byte" in caplog.text) == (code != 0)


def test_a_keeper_that_is_killed_is_started_again(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    made = folder(tmp_path)
    made.start()
    try:
        first = until(lambda: made._keeper)
        first.kill()
        second = until(lambda: made._keeper if made._keeper not in (None, first) else None)
        assert second.pid != first.pid
    finally:
        made.close()


def test_the_end_does_not_wait_for_a_disk_that_stands_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_KILL_S", 0.2)
    made = folder(tmp_path)
    with made._guard:  # whoever writes for the keeper holds it
        end = threading.Thread(target=made.close, daemon=True)
        end.start()
        end.join(20)
        assert not end.is_alive()


@pytest.mark.thorough
def test_a_store_that_does_not_say_what_it_has_is_given_up_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(memory, "_STILL_S", 0.6)
    monkeypatch.setattr(memory, "_SAY_S", 0.2)
    monkeypatch.setattr(memory.Search, "wait", lambda self, seconds: time.sleep(seconds))
    with caplog.at_level(logging.WARNING), pytest.raises(memory.NotFilled, match="did not answer within 1 s"):
        folder(tmp_path)._kept(lambda: False)
    assert "waiting for the store" in caplog.text


def until(found):
    deadline_s = time.monotonic() + 60.0
    while (value := found()) is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    return value
