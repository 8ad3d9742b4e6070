"""A rank that torchrun forks ends as a program of its own: what the script has registered for its end is done."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trainwarden.torchrun import rank

# As torchrun starts it with --start-method=fork --run-path, but without torch.
AGENT = """
import atexit, multiprocessing, runpy, sys, tempfile, weakref
class Own: pass
own = Own()
atexit.register(lambda: print("end of torchrun", flush=True))
weakref.finalize(own, lambda: print("end of torchrun's object", flush=True))
def rank():
    sys.argv[:] = [RANK, "fork", SCRIPT]
    runpy.run_path(RANK, run_name="__main__")
    print("back in torchrun", flush=True)
process = multiprocessing.get_context("fork").Process(target=rank)
process.start()
process.join()
print("code", process.exitcode, flush=True)
import os
os._exit(0)
"""
SCRIPT = """
import atexit, logging, os, signal, sys, tempfile, threading, time
from logging.handlers import MemoryHandler
kept = MemoryHandler(1000, target=logging.StreamHandler(sys.stdout))
logging.getLogger().addHandler(kept)
logging.getLogger().warning("last of the log")
atexit.register(lambda: print("flushed", flush=True))
folder = tempfile.TemporaryDirectory()
atexit.register(lambda: print("folder", os.path.exists(folder.name), flush=True))
threading.Thread(target=lambda: (time.sleep(0.2), print("thread", flush=True))).start()
print(folder.name, flush=True)
"""
DONE = ["thread", "folder True", "flushed", "last of the log"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("end", "after"),
    [
        ("", ["back in torchrun", "code 0"]),
        ("sys.exit(0)", ["back in torchrun", "code 0"]),
        ("sys.exit(3)", ["code 3"]),
        ("raise ValueError('by the test')", ["code 1"]),
        ("raise KeyboardInterrupt", [f"code -{signal.SIGINT.value}"]),
    ],
)
def test_a_forked_rank_does_at_its_end_what_its_script_has_asked_for(
    tmp_path: Path, end: str, after: list[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"{SCRIPT}{end}\n")
    names = f"RANK = {rank.__file__!r}; SCRIPT = {str(script)!r}\n"
    done = subprocess.run(
        [sys.executable, "-c", names + AGENT], capture_output=True, text=True, timeout=120.0, check=True
    )  # fmt: skip
    folder, *said = done.stdout.splitlines()
    assert [one for one in said if one != "last of the log"] == [one for one in [*DONE, *after] if one != DONE[-1]]
    assert "last of the log" in said
    assert not Path(folder).exists()
