"""`trainwarden validate` as a child of the launcher: started, looked after, its result read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

import trainwarden
from trainwarden import rundir
from trainwarden.actions.launchers.restart_check.messages import Outcome
from trainwarden.launching import Accused, Check, Findings, Rates
from trainwarden.torchrun.files import last_words, opened, read_whole

_MOST_BYTES: Final = 16 * 1024 * 1024  # of its log and of its result
_READY: Final = b"ready"  # trainwarden.cli.run.validate
_RANK: Final = Path(trainwarden.__file__).with_name("torchrun") / "rank.py"


class JobPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A job whose `ranks` all run on this machine, `node`, with the run folder `run_dir`."""

    job: str
    node: str
    ranks: int
    run_dir: Path


class _Result(msgspec.Struct, frozen=True):
    """What is read of the object that `trainwarden validate --json` writes."""

    accused: tuple[Accused, ...]
    nodes: dict[str, tuple[int, ...]]
    judged: tuple[Check, ...] = ()
    rates: Rates = Rates()


def findings_in(path: Path) -> Findings:
    """What a validation has written to `path`.

    Raises
    ------
    OSError, msgspec.DecodeError
        If there is no whole result.
    """
    found = msgspec.json.decode(read_whole(path, _MOST_BYTES), type=_Result)
    return Findings(accused=found.accused, judged=found.judged, nodes=tuple(found.nodes), rates=found.rates)


class Measurement:
    """A validation of the places of all ranks of `place`, which waits for `begin`; it ends with the launcher.

    Raises
    ------
    OSError
        If there is no memory or process slot for it.
    """

    def __init__(self, place: JobPlace, checks: Sequence[Check]) -> None:
        self._target, self._log = place.run_dir / rundir.VALIDATION, place.run_dir / rundir.VALIDATION_LOG
        self._target.unlink(missing_ok=True)
        command = [sys.executable, "-I", "-S", str(_RANK), "exec", str(os.getpid())]
        command += [sys.executable, "-P", "-m", "trainwarden.cli.main", "validate", "--nproc", str(place.ranks)]
        command += ["--checks", ",".join(checks), "--json", str(self._target), "--when-told"]
        own = {**os.environ, "TRAINWARDEN_NODE": place.node, "OMP_NUM_THREADS": "1"}
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
            return _READY in read_whole(self._log, _MOST_BYTES).split(b"\n")
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

    def outcome(self) -> Outcome:
        """What it found, once it has ended."""
        code = self._process.wait()
        self._let_go()
        try:
            return Outcome(findings_in(self._target))
        except (OSError, msgspec.DecodeError):
            said = last_words(self._log) or "it said nothing"
            return Outcome(None, f"the validation ended with code {code} and no result: {said}")

    def _let_go(self) -> None:
        """Close our end of its standard input."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
