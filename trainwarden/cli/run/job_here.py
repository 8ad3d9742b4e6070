"""A job of one machine: torchrun with a rendezvous of its own, which serves nobody but this user."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from trainwarden.actions.launchers.local.ranks import call_recording
from trainwarden.actions.launchers.torchrun.host import RendezvousHost
from trainwarden.actions.remedies.policy import Mode
from trainwarden.cli.run.job_run import JobRun
from trainwarden.cli.run.launch_node import NodesAsked, job_client, ranks_environment, rendezvous_host
from trainwarden.cli.run.rank_output import RankOutput
from trainwarden.cli.run.torchrun_here import GAVE_UP_CODE, Torchrun, failed_rank_code, ranks_words
from trainwarden.errors import ConfigError
from trainwarden.settings import Settings

SERVED_S: Final = 10.0
RENDEZVOUS_WORD: Final = "rendezvous.token"
OWN_LOG: Final = "torchrun"


class JobHere:
    """torchrun, its rendezvous and its ranks' output, for as long as one command lasts.

    In mode ``observe`` nothing restarts the ranks; in others the rendezvous does, as on several nodes.
    """

    def __init__(self, settings: Settings, nproc: int, mode: Mode) -> None:
        self._settings, self._nproc, self._mode = settings, nproc, mode
        self._asked = NodesAsked(max_restarts=0 if mode == "observe" else None)
        self._host: RendezvousHost | None = None
        self._output: RankOutput | None = None
        self._say: Callable[[str], None] = lambda sentence: None
        self.torchrun: Torchrun | None = None

    def serve(self, run_dir: Path) -> Mapping[str, str]:
        """Serve the rendezvous; how the engine of this job finds it.

        Raises
        ------
        ConfigError
            If it cannot be served.
        """
        token = run_dir / RENDEZVOUS_WORD
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(16))
        asked = msgspec.structs.replace(self._asked, token_file=token.absolute())
        self._host = rendezvous_host("127.0.0.1:0", asked, self._settings.launch)
        self._host.start()
        address = self._host.served(SERVED_S)
        if address is None:
            raise ConfigError(f"launch: no rendezvous was served on this machine within {SERVED_S:.0f} s")
        self._asked = msgspec.structs.replace(asked, rdzv=address)
        return self._asked.engine(self._settings, self._mode)

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
            **ranks_environment(run, checkpoints, self._asked.rdzv or ""),
            "TRAINWARDEN_OUTPUT": str(self._output.folder.absolute()),
        }  # fmt: skip
        words = [*self._asked.torchrun(settings.job, self._nproc, settings.launch), *ranks_words(command)]
        job = partial(job_client, settings.job, self._asked, settings.launch)
        with run.stack.log_path(OWN_LOG).open("ab") as log:
            self.torchrun = Torchrun(run, words, environ, streams=(log, log), say=say, client=job)
        return self.torchrun

    def tend(self) -> None:
        """Go on with what is under way; to be called again and again."""
        if self.torchrun is not None and self._output is not None:
            self.torchrun.tend()
            for sentence in self._output.news():
                self._say(f"trainwarden: {sentence}")

    def end(self, run_dir: Path) -> int:
        """Wait for the end of torchrun; its exit code, and where ranks have failed that of the first."""
        assert self.torchrun is not None
        code = self.torchrun.end()
        failed = failed_rank_code(run_dir) if code == GAVE_UP_CODE else None
        return code if failed is None else failed

    def close(self) -> None:
        """Serve no more, and keep what the ranks have said last. Safe twice."""
        if self._host is not None:
            self._host.close()
        if self._output is not None:
            self._output.close()
        self._host = self._output = None
