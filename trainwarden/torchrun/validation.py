"""`trainwarden validate` as a child: started, looked after, its result read. Standard library only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from trainwarden import rundir
from trainwarden.torchrun.files import last_words, opened, read_whole

MOST_BYTES: Final = 16 * 1024 * 1024  # of its log and of its result
_READY: Final = b"ready"  # trainwarden.cli.run.validate
_RANK: Final = Path(__file__).with_name("rank.py")


class ValidationChild:
    """One process, which waits for `begin` once it has imported what it needs; it ends with this one.

    Parameters
    ----------
    run_dir : Path
        Where its log and its result go.
    words : sequence of str
        Its further options.

    Raises
    ------
    OSError
        If there is no memory or process slot for it.
    """

    def __init__(self, run_dir: Path, node: str, words: Sequence[str], environ: Mapping[str, str]) -> None:
        self._target, self._log = run_dir / rundir.VALIDATION, run_dir / rundir.VALIDATION_LOG
        self._target.unlink(missing_ok=True)
        command = [sys.executable, "-I", "-S", str(_RANK), "exec", str(os.getpid())]
        command += [sys.executable, "-P", "-m", "trainwarden.cli.main", "validate", *words]
        command += ["--json", str(self._target), "--when-told"]
        own = {**environ, "TRAINWARDEN_NODE": node, "OMP_NUM_THREADS": "1"}
        self._log.unlink(missing_ok=True)
        with open(opened(self._log, os.O_EXCL), "wb") as log:
            self._process = subprocess.Popen(
                command, env=own, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )
        self.pid = self._process.pid

    @property
    def ended(self) -> bool:
        """Whether the process is gone."""
        return self._process.poll() is not None

    @property
    def ready(self) -> bool:
        """Whether it has imported what it needs: that takes seconds, in which nobody has to stand still."""
        try:
            return _READY in read_whole(self._log, MOST_BYTES).split(b"\n")
        except OSError:
            return False

    def begin(self) -> None:
        """Let it measure."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, which is seen by that
            self._process.stdin.write(b"\n")
        self._let_go()

    def kill(self) -> None:
        """End it with all that it has started, at once. Safe twice."""
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
        self._let_go()

    def result(self) -> bytes | str:
        """What it has written, once it has ended; a sentence if that is nothing."""
        code = self._process.wait()
        self._let_go()
        try:
            return read_whole(self._target, MOST_BYTES)
        except OSError:
            said = last_words(self._log) or "it said nothing"
            return f"the validation ended with code {code} and no result: {said}"

    def _let_go(self) -> None:
        """Close our end of its standard input."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
