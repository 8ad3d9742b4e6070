"""A job under a real Slurm, an engine beside it, and the bus between the test and the engine.

Programs of the test's own stand before Slurm's: they write down every change that is asked for, and kill the engine
before or after one of them.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.servers.slurm import Slurm
from tests.system.engine_world import EngineWorld
from tests.system.runs import WARDEN
from trainwarden.bus.address import connect

NODES: Final = ("n1", "n2", "n3", "n4", "n5")
PATIENCE_S: Final = 120.0
BATCH: Final = """#!/bin/sh
srun sh -c 'echo $SLURM_PROCID $SLURMD_NODENAME >> {folder}/starts; exec sleep 600'
"""
PROGRAM: Final = """#!/bin/sh
case "$*" in *show*) exec {real} "$@" ;; esac
echo "$*" >> {folder}/asked
[ -e {folder}/aim ] || exec {real} "$@"
aim=$(cat {folder}/aim)
case "$*" in
$aim*) ;;
*) exec {real} "$@" ;;
esac
rm {folder}/aim
[ -e {folder}/first ] && kill -9 $PPID
{real} "$@"
kill -9 $PPID
"""
SETTINGS: Final = """
bus = "embedded:{folder}/bus.db"
[engine]
mode = "auto"
launcher = "slurm"
cool_down_s = 0.0
{remedies}[engine.launcher_settings]
slurm_conf = "{conf}"
programs = "{folder}/bin"
timeout_s = 3.0
{more}"""


class World(EngineWorld):
    """A job of two nodes, an engine, and the bus between the test and the engine."""

    def __init__(
        self, slurm: Slurm, folder: Path, script: str = BATCH, more: str = "", remedies: str = "", nodes: int = 2
    ) -> None:
        self.slurm, self.folder, self.nodes = slurm, folder, nodes
        (folder / "bin").mkdir()
        for name in ("squeue", "srun"):
            (folder / "bin" / name).symlink_to(str(shutil.which(name)))
        for name in ("scontrol", "scancel", "sbatch"):
            program = folder / "bin" / name
            program.write_text(PROGRAM.format(real=shutil.which(name), folder=folder))
            program.chmod(0o755)
        if remedies:
            (folder / "remedies.toml").write_text(remedies)
            remedies = f'remedies = "{folder}/remedies.toml"\n'
        settings = SETTINGS.format(folder=folder, conf=slurm.conf, more=more, remedies=remedies)
        (folder / "site.toml").write_text(settings)
        self.bus = connect(f"embedded:{folder}/bus.db")
        self.name = f"job-{folder.name}"[:40]
        self.engine: subprocess.Popen[bytes] | None = None
        self.submit(script)

    def submit(self, script: str = BATCH, *more: str) -> None:
        path = self.folder / "job.sh"
        path.write_text(script.format(folder=self.folder))
        words = (f"--nodes={self.nodes}", "--ntasks-per-node=1", f"--output={self.folder}/out")
        more = ("--exclude=n5", *more) if self.nodes < len(NODES) - 1 else more
        self.job = self.slurm.ask(
            "sbatch", "--parsable", f"--job-name={self.name}", "--comment=night run", *words, *more, str(path)
        )

    def start_engine(self) -> None:
        command = [*WARDEN, "engine", "--config", str(self.folder / "site.toml")]
        with (self.folder / "engine.log").open("ab") as log:
            self.engine = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)

    def kill_engine(self) -> None:
        if self.engine is not None:
            self.engine.kill()
            self.engine.wait()

    def starts(self) -> list[list[str]]:
        path = self.folder / "starts"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def asked(self, *words: str) -> list[str]:
        """The changes that Slurm was asked for which begin so."""
        path = self.folder / "asked"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(words or "")]

    def field(self, name: str, of: str = "job") -> str:
        said = self.slurm.ask("scontrol", "show", of, self.job if of == "job" else of)
        return next((word.partition("=")[2] for word in said.split() if word.startswith(f"{name}=")), "")

    def node(self, name: str) -> str:
        return self.slurm.ask("scontrol", "show", "node", name)

    def until(self, true: Callable[[], object]) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not true():
            log = (self.folder / "engine.log").read_text()[-3000:] if self.engine else ""
            if time.monotonic() > end_s:
                job = self.slurm.ask("scontrol", "show", "job", self.job)
                raise AssertionError("\n".join([str(self.story()), *self.asked(), job, log]))
            time.sleep(0.1)

    @property
    def bad(self) -> str:
        """The node at fault: the first of those that the job was on at first."""
        return min(node for _, node in self.starts()[: self.nodes])

    def went_elsewhere(self) -> bool:
        """Whether the job was started once more, away from that node and from what its owner had excluded."""
        after = {node for _, node in self.starts()[2:]}
        return len(self.starts()) == 4 and not after & {self.bad, "n5"}

    def running(self, starts: int = 2) -> None:
        self.until(lambda: len(self.starts()) == starts and self.field("JobState") == "RUNNING")

    def done(self, action: str = "i1/evict/1") -> None:
        self.until(lambda: (action, "done") in self.story())

    def close(self) -> None:
        self.kill_engine()
        self.bus.close()
        self.slurm.signal_controller(signal.SIGCONT)
        self.slurm.ask("scancel", "--user=root")
        self.slurm.ask("scancel", "--user=nobody")
        for node in NODES:
            self.slurm.ask("scontrol", "update", f"NodeName={node}", "State=RESUME")
        for node in NODES:
            self.slurm.wait_for_state("IDLE", node=node)
