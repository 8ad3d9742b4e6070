"""`trainwarden validate` as a child of the launcher: started, looked after, its result read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import msgspec

import trainwarden
from trainwarden import rundir
from trainwarden.actions.launchers.restart_check.messages import Outcome
from trainwarden.launching import Accused, Check, Findings, Rates

_READY: Final = b"ready"  # trainwarden.cli.run.validate
_RANK: Final = Path(trainwarden.__file__).with_name("torchrun") / "rank.py"


class MeasuredJob(Protocol):
    """Whose ranks all have their places on this machine."""

    @property
    def ranks(self) -> int: ...
    @property
    def run_dir(self) -> Path: ...
    @property
    def node(self) -> str: ...


class _Result(msgspec.Struct, frozen=True):
    """What is read of the object that `trainwarden validate --json` writes."""

    accused: tuple[Accused, ...]
    nodes: dict[str, tuple[int, ...]]
    judged: tuple[Check, ...] = ()
    rates: Rates = Rates()


class Measurement:
    """A validation of the places of all ranks of `place`, which waits for `begin`; it ends with the launcher.

    Parameters
    ----------
    words : sequence of str
        More options of `trainwarden validate`.
    environ : mapping, optional
        Its environment; default this process's.

    Raises
    ------
    OSError
        If there is no memory or process slot for it.
    """

    def __init__(
        self,
        place: MeasuredJob,
        checks: Sequence[Check],
        words: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._target, self._log = place.run_dir / rundir.VALIDATION, place.run_dir / rundir.VALIDATION_LOG
        self._target.unlink(missing_ok=True)
        command = [sys.executable, "-I", "-S", str(_RANK), "exec", str(os.getpid())]
        command += [sys.executable, "-P", "-m", "trainwarden.cli.main", "validate", "--nproc", str(place.ranks)]
        command += ["--checks", ",".join(checks), "--json", str(self._target), "--when-told", *words]
        own = {**(os.environ if environ is None else environ), "TRAINWARDEN_NODE": place.node, "OMP_NUM_THREADS": "1"}
        with self._log.open("wb") as log:
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
            return _READY in self._log.read_bytes().split(b"\n")
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
            found = msgspec.json.decode(self._target.read_bytes(), type=_Result)
        except (OSError, msgspec.DecodeError):
            return Outcome(None, f"the validation ended with code {code} and no result: {self._last_words()}")
        nodes = tuple(found.nodes)
        return Outcome(Findings(accused=found.accused, judged=found.judged, nodes=nodes, rates=found.rates))

    def _let_go(self) -> None:
        """Close our end of its standard input."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()

    def _last_words(self) -> str:
        try:
            lines = self._log.read_text(errors="replace").split("\n")
        except OSError:
            return "it has left no log"
        said = [line.strip() for line in lines if line.strip()]
        return said[-1][:300] if said else "it said nothing"
