"""A job of one machine: torchrun with a rendezvous of its own, which serves nobody but this user."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import msgspec

from trainwarden.actions.launchers.restart_check.measuring import JobPlace
from trainwarden.actions.launchers.torchrun.checks import JobChecks
from trainwarden.actions.launchers.torchrun.host import RendezvousHost
from trainwarden.actions.remedies.policy import Mode, Rules
from trainwarden.actions.suspicions.on_bus import SuspicionsOnBus
from trainwarden.cli.run.job_run import JobRun
from trainwarden.cli.run.launch_node import NodesAsked, asks_for_memory, job_client, ranks_environment, rendezvous_host
from trainwarden.cli.run.leftovers import Leftovers
from trainwarden.cli.run.rank_output import RankOutput
from trainwarden.cli.run.torchrun_here import GAVE_UP_CODE, Torchrun, failed_rank_code, ranks_words
from trainwarden.cli.shared.rendezvous_beside import run_token
from trainwarden.clock import SystemClock
from trainwarden.errors import ConfigError
from trainwarden.settings import Settings
from trainwarden.torchrun.files import last_lines

SERVED_S: Final = 10.0
OWN_LOG: Final = "torchrun"
WHY_BYTES: Final = 1024 * 1024  # the end of torchrun's own log
OVER: Final = "trainwarden: the job is over: "  # trainwarden.torchrun.rendezvous


class JobHere:
    """torchrun, its rendezvous and its ranks' output, for as long as one command lasts.

    Where an engine would only propose a restart nothing restarts the ranks; where a person has to agree they wait for
    one; else the rendezvous starts them again, as on several nodes. Suspects are measured before, and what ranks have
    left behind ends.
    """

    def __init__(self, settings: Settings, nproc: int, mode: Mode) -> None:
        self._settings, self._nproc, self._mode = settings, nproc, mode
        # Whom ranks that have failed wait for: nobody, a person, or a restart that comes by itself.
        self._restarts = Rules.of(msgspec.structs.replace(settings.engine, mode=mode)).mode_of("restart_process")
        self._asked = NodesAsked(
            max_restarts=0 if self._restarts == "observe" else None, renews=self._restarts == "auto"
        )  # fmt: skip
        self._host: RendezvousHost | None = None
        self._output: RankOutput | None = None
        self._checks: JobChecks | None = None
        self._said: Path | None = None  # what torchrun itself says
        self._leftovers: Leftovers | None = None
        self._sayings: queue.SimpleQueue[str] = queue.SimpleQueue()  # of the rendezvous' own thread
        self._say: Callable[[str], None] = lambda sentence: None
        self.torchrun: Torchrun | None = None

    def serve(self, run_dir: Path, bus: str) -> Mapping[str, str]:
        """Serve the rendezvous; how the engine of this job, which is on the bus at `bus`, finds it.

        Raises
        ------
        ConfigError
            If it cannot be served.
        """
        asked = msgspec.structs.replace(self._asked, token_file=run_token(run_dir))
        settings, clock = self._settings, SystemClock()
        self._checks = JobChecks(
            JobPlace(job=settings.job, node=settings.node, ranks=self._nproc, run_dir=run_dir), clock,
            SuspicionsOnBus.of(settings, clock, bus), self._sayings.put,
            lambda: self._leftovers is None or self._leftovers.gone(),
            person_s=settings.launch.person_grace_s if self._restarts == "confirm" else None,
        )  # fmt: skip
        self._host = rendezvous_host("127.0.0.1:0", asked, settings.launch, checks=self._checks)
        self._host.start()
        address = self._host.served(SERVED_S)
        if address is None:
            raise ConfigError(f"launch: no rendezvous was served on this machine within {SERVED_S:.0f} s")
        self._asked = msgspec.structs.replace(asked, rdzv=address)
        return self._asked.engine(settings, self._mode, validates=True, restarts_itself=self._restarts != "confirm")

    def start(
        self, run: JobRun, command: Sequence[str], say: Callable[[str], None], *,
        checkpoints: Path | None, shown: int | None = None,
    ) -> Torchrun:  # fmt: skip
        """Start torchrun, once the rendezvous is served; `say` is for people, and `shown` shows them ranks' output."""
        settings = self._settings
        self._say = say
        self._output = RankOutput(run.run_dir, self._nproc, shown, settings.runs.log_bytes)
        environ = {
            **call_recording(), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1",
            **ranks_environment(run, checkpoints, self._asked.rdzv or "", in_memory=asks_for_memory(command)),
            "TRAINWARDEN_OUTPUT": str(self._output.folder.absolute()),
        }  # fmt: skip
        words = [*self._asked.torchrun(settings.job, self._nproc, settings.launch), *ranks_words(command)]
        run.buries, self._leftovers = False, Leftovers(partial(self._own, run))
        job = partial(job_client, settings.job, self._asked, settings.launch)
        self._said = run.stack.log_path(OWN_LOG)
        with run.stack.open_log(OWN_LOG) as log:
            self.torchrun = Torchrun(run, words, environ, streams=(log, log), say=say, client=job)
        return self.torchrun

    def _own(self, run: JobRun) -> set[int]:
        measures = None if self._checks is None else self._checks.pid
        return run.beside | run.stack.pids() | ({measures} if measures is not None else set())

    def tend(self) -> None:
        """Go on with what is under way; to be called again and again."""
        while not self._sayings.empty():
            self._say(f"trainwarden: {self._sayings.get()}")
        if self._leftovers is not None:
            self._leftovers.tend()
        if self.torchrun is not None and self._output is not None:
            self.torchrun.tend()
            for sentence in self._output.news():
                self._say(f"trainwarden: {sentence}")

    def end(self, run_dir: Path) -> int:
        """Wait for the end of torchrun; its exit code, and where ranks have failed that of the first."""
        assert self.torchrun is not None
        code = self.torchrun.end()
        if self._leftovers is not None:
            self._leftovers.end()
        failed = failed_rank_code(run_dir) if code == GAVE_UP_CODE else None
        if code and failed is None and self._said is not None:
            self._say(_why(self._said))
        return code if failed is None else failed

    def close(self) -> None:
        """Serve no more, and keep what the ranks have said last. Safe twice."""
        if self._host is not None:
            self._host.close()
        if self._output is not None:
            self._output.close()
        self._host = self._output = None


@cache
def call_recording() -> Mapping[str, str]:
    """What torch before 2.9 needs to record calls, or nobody can say who broke a collective (docs/detection.md).

    Newer ones record by themselves, and each rank of theirs would warn of the old name.
    """
    try:
        newer = tuple(int(part) for part in version("torch").split(".")[:2]) >= (2, 9)
    except (PackageNotFoundError, ValueError):
        newer = False
    return {} if newer else {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}


def _why(log: Path) -> str:
    """Why the job is over, by the rendezvous; else the last words of torchrun."""
    said = last_lines(log, WHY_BYTES)
    words = [line.partition(OVER)[2] for line in said if OVER in line]
    return f"trainwarden: {words[-1]}" if words else "\n".join(said)[-2000:].rstrip()
