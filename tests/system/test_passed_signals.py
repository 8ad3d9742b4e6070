"""Signals reach whoever trains, once; and whatever becomes of `watch`, its command can write."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.places import ROOT
from tests.system.runs import LEAN, WARDEN

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

NUMBERS = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGHUP, signal.SIGINT, signal.SIGTERM]
# Says which signals it gets, and ends well once it is told to by a file.
LISTENER = """
import os, signal, sys, time
from pathlib import Path
heard, end = (Path(word + os.environ.get("RANK", "")) for word in sys.argv[1:3])
def hear(number, _frame):
    with heard.open("a") as file:
        file.write(f"{number}\\n")
for number in map(int, sys.argv[3:]):
    signal.signal(number, hear)
heard.touch()
while not Path(sys.argv[2]).exists():
    time.sleep(0.02)
"""


def wait(true: Callable[[], object], timeout_s: float = 60.0) -> None:
    until_s = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < until_s
        time.sleep(0.02)


def begin(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    environ = {**os.environ, **LEAN, "XDG_STATE_HOME": str(folder), "PYTHONPATH": str(ROOT)}
    command = ["env", *(f"--default-signal={n.name[3:]}" for n in NUMBERS), *WARDEN, *words]
    with (folder / "said").open("wb") as said:
        return subprocess.Popen(command, env=environ, stdout=said, stderr=said, cwd=folder, start_new_session=True)


def test_a_signal_to_watch_alone_and_one_to_its_group_reach_the_command_once(tmp_path: Path) -> None:
    """An interrupt to `watch` alone never came, one to end that went to the group came twice, others ended all."""
    heard, end = tmp_path / "heard", tmp_path / "end"
    words = [str(heard), str(end), *(str(int(number)) for number in NUMBERS)]
    process = begin(tmp_path, "watch", "--", sys.executable, "-c", LISTENER, *words)
    try:
        wait(heard.exists)
        sent: list[str] = []
        for send in (os.kill, os.killpg):
            for number in NUMBERS:
                send(process.pid, number)
                sent.append(str(int(number)))
                wait(lambda: len(heard.read_text().split()) >= len(sent))
        end.touch()
        assert process.wait(60) == 0, (tmp_path / "said").read_text()
        assert heard.read_text().split() == sent
    finally:
        end.touch()  # the command does not end with the one that is killed
        process.kill()


def test_signals_to_launch_reach_every_rank(tmp_path: Path) -> None:
    heard, end = tmp_path / "heard", tmp_path / "end"
    ranks = [tmp_path / "heard0", tmp_path / "heard1"]
    numbers = [int(number) for number in NUMBERS[:3]]
    words = [str(heard), str(end), *map(str, numbers)]
    process = begin(tmp_path, "launch", "--nproc", "2", "--", "python", "-c", LISTENER, *words)
    try:
        wait(lambda: all(rank.exists() for rank in ranks))
        for count, number in enumerate(numbers, 1):
            process.send_signal(number)
            wait(lambda count=count: all(len(rank.read_text().split()) >= count for rank in ranks))
        end.touch()
        assert process.wait(60) == 0, (tmp_path / "said").read_text()
        assert [rank.read_text().split() for rank in ranks] == [list(map(str, numbers))] * 2
    finally:
        end.touch()
        process.kill()


TALKER = """
import sys, time
from pathlib import Path
began, go_on, done = map(Path, sys.argv[1:4])
print("begun", flush=True)
began.touch()
while not go_on.exists():
    time.sleep(0.02)
for line in range(4000):
    print("x" * 99, flush=True)
sys.stderr.write("and this\\n")
done.touch()
"""


def test_the_command_can_write_though_watch_is_killed(tmp_path: Path) -> None:
    began, go_on, done = (tmp_path / name for name in ("began", "go_on", "done"))
    process = begin(tmp_path, "watch", "--", sys.executable, "-c", TALKER, str(began), str(go_on), str(done))
    try:
        wait(began.exists)
        process.kill()
        process.wait(60)
    finally:
        go_on.touch()
    wait(done.exists)
    wait(lambda: (tmp_path / "said").read_text().count("x" * 99) == 4000)


def test_what_the_command_leaves_behind_can_write_though_watch_has_ended(tmp_path: Path) -> None:
    began, go_on, done = (tmp_path / name for name in ("began", "go_on", "done"))
    left = shlex.join([sys.executable, "-c", TALKER, str(began), str(go_on), str(done)])
    process = begin(tmp_path, "watch", "--", "bash", "-c", f"{left} & exit 5")
    try:
        assert process.wait(90) == 5
        wait(began.exists)
    finally:
        go_on.touch()
        process.kill()
    wait(done.exists)


def test_a_command_runs_though_all_our_streams_are_closed(tmp_path: Path) -> None:
    done = tmp_path / "done"
    job = "import sys; print('x' * 99999, flush=True); sys.stderr.write('y'); open(sys.argv[1], 'w'); sys.exit(7)"
    command = shlex.join([*WARDEN, "watch", "--", sys.executable, "-c", job, str(done)])
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(["bash", "-c", f"{command} >&- 2>&-"], env=environ, timeout=90, cwd=tmp_path, check=False)
    assert ended.returncode == 7
    assert done.exists()
