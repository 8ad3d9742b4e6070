"""Real torchruns on this machine, one for each made-up node, and the rendezvous service that they meet at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.places import ROOT
from tests.servers.ports import free_ports
from tests.torch_forks import Forked, TorchForks
from trainwarden import plugins
from trainwarden.actions.launchers.torchrun.client import TorchrunLauncher
from trainwarden.launching import LauncherState, Operation, Plan, Report, Targets, Verb
from trainwarden.protocols import Scope

PATIENCE_S = 400.0
TOKEN = "a-token-of-twenty-chars"
ENTRY_POINTS = "[torchrun.handlers]\ntrainwarden = trainwarden.torchrun:handler\n"


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def with_entry_point(path: Path) -> Path:
    """A folder for PYTHONPATH by which torch finds our plug-in, also where an older trainwarden is installed."""
    metadata = path / "entry" / "trainwarden_torchrun-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: trainwarden-torchrun\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    return metadata.parent


def start_torchrun(
    script: Sequence[str], environ: Mapping[str, str], folder: Path, log: Path, forks: TorchForks | None
) -> subprocess.Popen[bytes] | Forked:
    """One torchrun in `folder`, which imports torch by itself or is a fork."""
    words = ["-m", "torch.distributed.run", *script]
    if forks is not None:
        log.touch()
        return forks.start(words, environ, folder=folder, log=log)
    with log.open("ab") as out:
        return subprocess.Popen([sys.executable, *words], env=dict(environ), stdout=out, stderr=out, cwd=folder)


class TorchrunNodes:
    """A job of `nodes` nodes, one rank each, and whatever more wait; started by torchrun as people start it.

    With `forks` each torchrun is a fork of a process that has imported torch.
    """

    def __init__(
        self, tmp_path: Path, *script: str, nodes: int = 2, lost_after_s: float = 20.0, bus: str = "",
        forks: TorchForks | None = None,
    ) -> None:  # fmt: skip
        self._forks = forks
        self.path, self._script, self._nodes, self._lost_after_s = tmp_path, script, nodes, lost_after_s
        self._bus = ("--bus", bus) if bus else ()
        self.out = tmp_path / "out"
        self.out.mkdir()
        self._token = tmp_path / "token"
        self._token.write_text(TOKEN)
        self._token.chmod(0o600)
        self._entry = with_entry_point(tmp_path)
        [self.port] = free_ports(1)
        self.processes: dict[str, subprocess.Popen[bytes] | Forked] = {}
        self.service = self.serve()
        self.settings = {"endpoint": f"127.0.0.1:{self.port}", "token_file": str(self._token)}
        config = plugins.configure(TorchrunLauncher, self.settings, "launcher")
        self.launcher = TorchrunLauncher(config, Scope(job="job", node="node", run_dir=str(tmp_path)))

    def serve(self) -> subprocess.Popen[bytes]:
        """The service, an empty one."""
        words = (
            "--token-file",
            str(self._token),
            "--lost-after",
            str(self._lost_after_s),
            "--with-parent",
            str(os.getpid()),
            *self._bus,
        )
        listen = ("rendezvous", "--listen", f"127.0.0.1:{self.port}")
        with (self.path / "rendezvous.log").open("ab") as log:
            command = [sys.executable, "-m", "trainwarden", *listen, *words]
            self.service = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT)
        return self.service

    def run_dir(self, node: str) -> Path:
        return self.path / f"run-{node}"

    def start(self, *nodes: str, **more: str) -> None:
        """torchrun on each of `nodes`."""
        for node in nodes:
            environ = {
                **os.environ, "TRAINWARDEN_NODE": node,
                "PYTHONPATH": f"{self._entry}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1",
                "PET_RDZV_BACKEND": "trainwarden", "PET_RDZV_ENDPOINT": f"127.0.0.1:{self.port}", "PET_RDZV_ID": "job",
                "PET_RDZV_CONF": f"token_file={self._token}", "PET_NNODES": f"{self._nodes}:{self._nodes}",
                "PET_NPROC_PER_NODE": "1", **more,
            }  # fmt: skip
            if not self._bus:
                environ["TRAINWARDEN_RUN_DIR"] = str(self.run_dir(node))
            self.processes[node] = start_torchrun(
                self._script, environ, self.path, self.path / f"{node}.log", self._forks
            )

    def begun(self, attempt: int) -> list[str]:
        """Nodes in the order of their ranks, of those whose ranks of that attempt were started."""
        found = sorted(path.name.split("-") for path in self.out.glob(f"{attempt}-*.begun"))
        return [node.removesuffix(".begun") for _, _, node in found]

    def state(self) -> LauncherState:
        return self.launcher.state("job")

    def runs(self, attempt: int) -> None:
        """Wait until all ranks of that attempt run."""
        said = f"attempt {attempt} has not begun"
        until(lambda: len(self.begun(attempt)) == self._nodes, said)
        until(lambda: (self.state().phase, self.state().attempt) == ("running", attempt), said)

    def ask(self, kind: Verb, *nodes: str, split: tuple[int, ...] = ()) -> Report:
        """Have it done, and wait for the end."""
        operation = Operation(
            id=f"{kind}-{time.monotonic_ns()}", job="job", kind=kind, expected_generation=self.state().generation,
            targets=Targets(nodes=nodes), plan=Plan(micro_batches=split),
        )  # fmt: skip
        report = self.launcher.submit(operation)
        assert report.state != "refused", report
        until(lambda: self.launcher.poll("job", operation.id).ended, f"{kind} has no end")
        return self.launcher.poll("job", operation.id)

    def codes(self) -> dict[str, int]:
        """Exit codes of all torchruns, which end by themselves."""
        return {node: process.wait(PATIENCE_S) for node, process in self.processes.items()}

    def close(self) -> None:
        (self.out / "end").touch()
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        self.service.kill()
        self.service.wait()
