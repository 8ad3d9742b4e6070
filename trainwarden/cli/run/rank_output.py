"""What the ranks of a torchrun on this machine write: shown with a prefix like torch's own, and kept, a log each."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from trainwarden import rundir
from trainwarden.launching.job_output import LogWriter, OutputSink, PipeReader, join_all
from trainwarden.launching.job_relay import LAST_OUTPUT_S

FOLDER: Final = "output"
LEAST_LOG_BYTES: Final = 1024 * 1024  # of one rank


class RankOutput:
    """A FIFO for each of `ranks`, which `trainwarden.torchrun.rank` has them write to, in any attempt.

    Parameters
    ----------
    shown : int, optional
        The descriptor that lines are passed on to.
    log_bytes : int
        Most bytes of the logs of all ranks together.
    """

    def __init__(self, run_dir: Path, ranks: int, shown: int | None, log_bytes: int) -> None:
        self.folder = run_dir / FOLDER
        self._logs = LogWriter(max(LEAST_LOG_BYTES, log_bytes // ranks))
        self._ends: list[int] = []
        self._readers: list[PipeReader] = []
        sink = None if shown is None else OutputSink(shown)
        with suppress(OSError):  # ranks without a FIFO write where torchrun writes
            self.folder.mkdir(mode=0o700)
            for rank in range(ranks):
                self._open(run_dir, rank, sink)

    def _open(self, run_dir: Path, rank: int, sink: OutputSink | None) -> None:
        path = self.folder / str(rank)
        os.mkfifo(path, 0o600)
        source = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(source, True)
        self._ends.append(os.open(path, os.O_WRONLY | os.O_CLOEXEC))  # between two attempts nobody else has one
        keep = partial(self._logs.keep, rundir.rank_log(run_dir, rank))
        self._readers.append(PipeReader(source, sink, keep, prefix=f"[rank{rank}]: ".encode()))

    def news(self) -> list[str]:
        """Sentences about what is not kept, each once."""
        return self._logs.news()

    def close(self) -> None:
        """Wait a little for last words: what ranks have left behind may hold a FIFO for ever."""
        for end in self._ends:
            os.close(end)
        self._ends = []
        join_all(self._readers, LAST_OUTPUT_S)
        self._logs.close()
        shutil.rmtree(self.folder, ignore_errors=True)
