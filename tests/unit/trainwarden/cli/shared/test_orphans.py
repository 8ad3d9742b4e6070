"""Process 1 buries orphans, and leaves those whose end others wait for alone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from trainwarden.cli.shared.orphans import OrphansOfAll


def ended(pid: int) -> bool:
    """Whether process `pid` has ended and waits to be buried."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_what_has_ended_and_is_nobodys_is_buried_by_process_1_alone() -> None:
    orphan, own = subprocess.Popen(["true"]), subprocess.Popen(["false"])
    while not (ended(orphan.pid) and ended(own.pid)):
        os.sched_yield()
    OrphansOfAll().bury({own.pid})
    assert ended(orphan.pid), "this process is not the first"
    OrphansOfAll(pid=1).bury({own.pid})
    with pytest.raises(ChildProcessError):
        os.waitpid(orphan.pid, os.WNOHANG)
    assert own.wait() == 1  # which subprocess takes for 0 where somebody else has buried it
    orphan.wait()
