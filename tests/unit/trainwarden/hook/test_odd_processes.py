"""Processes of which the hook might take something: their files, streams, exit code, threads. No torch is needed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.places import ROOT
from trainwarden.hook import read_header

LOAD = """
import json, os, sys, time
from trainwarden import hook
hook.autoload()
def steps(count=3):
    for _ in range(count):
        hook.iteration()
def ask():
    from trainwarden.hook.process import current
    try:
        pipe = os.open(current().memory.path + ".ask", os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return  # nobody listens any more
    os.write(pipe, b"?")
    os.close(pipe)
    time.sleep(0.3)  # a thief would have come by then
"""


def run(folder: Path, program: str, closed: str = "", first: str = "") -> tuple[int, str, str]:
    """Exit code, ``said.txt`` and standard error of `program`, begun without the streams `closed`."""
    (folder / "hook").mkdir(exist_ok=True)
    (folder / "train.py").write_text(first + LOAD + textwrap.dedent(program))
    environ = {
        **os.environ, "TRAINWARDEN_HOOK_DIR": str(folder / "hook"), "RANK": "0", "WORLD_SIZE": "2",
        "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    words = ["/bin/sh", "-c", f'exec "$0" train.py {closed}', sys.executable]
    done = subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, timeout=60.0, check=False)
    said = folder / "said.txt"
    return done.returncode, said.read_text() if said.exists() else "", done.stderr


def test_a_folder_that_is_gone_costs_the_program_no_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / ".hook").write_text("the program's own")
    code, _, said = run(tmp_path, "os.rmdir(os.environ['TRAINWARDEN_HOOK_DIR'])\nsteps()")
    assert (code, said) == (0, "")
    assert (tmp_path / ".hook").read_text() == "the program's own"


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_streams_that_are_closed_stay_closed(tmp_path: Path, closed: str) -> None:
    """What libraries in C write to them must not get into the file of steps."""
    code, said, _ = run(tmp_path, """
        steps()
        for number in range(3):
            try:
                place = os.readlink(f"/proc/self/fd/{number}")
            except OSError:
                continue
            assert "/hook/" not in place, place
        open("said.txt", "w").write("whole")
        sys.exit(9)
    """, closed)  # fmt: skip
    assert (code, said) == (9, "whole")
    (path,) = (tmp_path / "hook").glob("*.hook")
    header = read_header(path)
    assert header is not None
    assert header.recorded == 3


def test_what_a_program_opens_in_our_places_is_not_read(tmp_path: Path) -> None:
    program = """
        steps()
        os.closerange(3, 100)
        pipes = [os.pipe() for _ in range(20)]
        for _, end in pipes:
            os.write(end, b"its own")
        ask()
        ask()
        for end, _ in pipes:
            os.set_blocking(end, False)
        def left(end):
            try:
                return os.read(end, 7)
            except BlockingIOError:
                return b""
        open("said.txt", "w").write(str([left(end) for end, _ in pipes].count(b"its own")))
    """
    assert run(tmp_path, program)[:2] == (0, "20")


def test_who_interrupts_ends_the_process_as_ever(tmp_path: Path) -> None:
    code, _, said = run(tmp_path, f"steps()\nos.kill(os.getpid(), {signal.SIGINT.value})\ntime.sleep(60)")
    assert code == -signal.SIGINT
    assert "KeyboardInterrupt" in said


@pytest.mark.parametrize("raised", ["SystemExit(3)", "KeyboardInterrupt", "GeneratorExit"])
def test_an_exception_that_exits_when_it_is_printed_has_pythons_exit_code(tmp_path: Path, raised: str) -> None:
    program = f"""
        class Odd(Exception):
            def __str__(self):
                raise {raised}
        steps()
        raise Odd
    """
    code, _, said = run(tmp_path, program)
    assert (code, "Odd" in said) == (1, True)
    (notes,) = (tmp_path / "hook").glob("*.last")
    assert json.loads(notes.read_text())["exception"] == "Odd"


def test_where_threads_are_none_no_request_is_listened_for(tmp_path: Path) -> None:
    patch = "import _thread\n_thread.start_new_thread = lambda work, args: work(*args)\n"
    code, said, _ = run(tmp_path, "steps()\nopen('said.txt', 'w').write('alive')", first=patch)
    assert (code, said) == (0, "alive")


def test_a_label_that_is_no_number_costs_no_step(tmp_path: Path) -> None:
    program = """
        import math
        odd = (10**30, -1, math.nan, math.inf, "epoch", b"", [], object(), 2**62, 1 + 1j)
        for label in odd:
            hook.set_step(label)
            hook.iteration(label)
        open("said.txt", "w").write(str(len(odd)))
    """
    code, count, said = run(tmp_path, program)
    assert (code, said) == (0, "")
    (path,) = (tmp_path / "hook").glob("*.hook")
    header = read_header(path)
    assert header is not None
    assert header.recorded == int(count)
    assert header.errors == 0
