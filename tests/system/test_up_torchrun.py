"""`trainwarden up` and the command that it prints: an unchanged script under torchrun, a killed rank, a frozen one."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.places import ROOT
from tests.system.runs import TORCHRUN, WARDEN
from tests.system.torchrun_nodes import until, with_entry_point
from trainwarden import rundir
from trainwarden.bus import address as buses
from trainwarden.hook import headers_in
from trainwarden.records import ActionRecord
from trainwarden.settings import Settings
from trainwarden.topics import ACTIONS

pytestmark = [pytest.mark.system, pytest.mark.timeout(500)]
JOINING = re.compile(r"^a torchrun job joins it by: (.+) torchrun --nproc-per-node 4 train\.py$", re.MULTILINE)
STEPS = 100  # a hang is seen the sooner the better a step is known
SCRIPT = """
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), 1e-4)
while True:
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    time.sleep(0.02)
"""


class Joined:
    """`up`, and a torchrun of two ranks that has joined it by what `up` has printed."""

    def __init__(self, path: Path, mode: str, over: ExitStack) -> None:
        self._path, self.run_dir, self._bus = path, path / "run", f"embedded:{path / 'bus.db'}"
        (path / "settings.toml").write_text(f'[engine]\nmode = "{mode}"\n')
        (path / "train.py").write_text(SCRIPT)
        up = [*WARDEN, "up", "--config", "settings.toml", "--run-dir", str(self.run_dir)]
        self._over = over
        self._start(up, "up.log", {"TRAINWARDEN_BUS": self._bus})
        until(self._said, "up prints no command for torchrun")
        joining = dict(word.split("=", 1) for word in shlex.split(self._said()))
        ranks = [*TORCHRUN, "--nproc-per-node", "2", "train.py"]
        entry = with_entry_point(path)
        self.torchrun = self._start(ranks, "ranks.log", {"PYTHONPATH": f"{entry}:{ROOT}", **joining})

    def _start(self, command: list[str], log: str, environ: dict[str, str]) -> subprocess.Popen[bytes]:
        with (self._path / log).open("wb") as said:
            environ = {**os.environ, "OMP_NUM_THREADS": "1", **environ}
            process = subprocess.Popen(command, cwd=self._path, env=environ, stdout=said, stderr=said)
        self._over.callback(process.wait, 60)
        self._over.callback(process.terminate)
        return process

    def _said(self) -> str:
        found = JOINING.search((self._path / "up.log").read_text())
        return "" if found is None else found[1]

    def trains(self, besides: set[int]) -> dict[int, int]:
        """Ranks' processes by rank, once both have finished steps, none of them one of `besides`."""
        found: dict[int, int] = {}

        def all_do() -> bool:
            headers = headers_in(self.run_dir / rundir.HOOK)
            found.update({one.rank: one.pid for one in headers if one.pid not in besides and one.recorded > STEPS})
            return len(found) == 2

        until(all_do, "ranks do not train")
        return dict(found)

    def actions(self) -> list[ActionRecord]:
        bus = buses.connect(self._bus, Settings().kafka)
        try:
            return [message.record for message in bus.read(ACTIONS)]
        finally:
            bus.close()


@pytest.fixture
def joined(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Joined]:
    with ExitStack() as over:
        yield Joined(tmp_path, request.param, over)


@pytest.mark.parametrize("joined", ["observe"], indirect=True)
def test_where_nobody_is_to_act_a_failed_rank_ends_the_job(joined: Joined) -> None:
    os.kill(joined.trains(set())[1], signal.SIGKILL)
    assert joined.torchrun.wait(120) == 75
    until(lambda: any(one.outcome == "proposed" for one in joined.actions()), "no restart is proposed")


@pytest.mark.parametrize("joined", ["auto"], indirect=True)
def test_the_printed_command_joins_a_job_that_is_mended_after_a_kill_and_a_freeze(joined: Joined) -> None:
    first = joined.trains(set())
    os.kill(first[1], signal.SIGKILL)
    second = joined.trains({*first.values()})
    assert joined.torchrun.poll() is None
    os.kill(second[1], signal.SIGSTOP)
    third = joined.trains({*first.values(), *second.values()})
    assert not psutil.pid_exists(second[1])
    assert all(psutil.Process(pid).ppid() == joined.torchrun.pid for pid in third.values())
    restarts = [one for one in joined.actions() if one.kind == "restart_process"]
    crash, hang = dict.fromkeys(one.id for one in restarts)
    # The rendezvous mends an end of ranks itself; what only detection sees is the engine's to mend.
    assert [one.outcome for one in restarts if one.id == crash] == ["skipped"]
    assert [one.outcome for one in restarts if one.id == hang][-1] == "done"
