"""Slurm's own commands, run with a limit of time, and what they say in one sentence where they do not do it."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from trainwarden.actions.launchers.breakers import Breakers
from trainwarden.actions.launchers.slurm import answers
from trainwarden.actions.launchers.slurm.answers import SlurmJob, SlurmNode
from trainwarden.errors import LauncherError, LauncherUnavailable

# Words of Slurm's messages that say that nobody answered; whatever else it says is a refusal.
_AWAY: Final = ("unable to contact", "timed out", "connect", "communication", "configuration source", "zero bytes",
                "temporarily unable", "unable to establish", "failed to fetch config")  # fmt: skip
_MAX_WORDS_CHARS: Final = 300
MOST_BYTES: Final = 64 * 1024 * 1024  # of output and errors together: ten thousand nodes in JSON take less
_PIECE_BYTES: Final = 1024 * 1024
T = TypeVar("T")


class Commands:
    """scontrol, squeue, scancel and sacctmgr of one cluster.

    While nobody answers each question costs `timeout_s`; when it is asked again, `Breakers` say. Questions within
    `about(job)` are about that job.

    Parameters
    ----------
    folder : str or None
        Where the programs are; None: on the PATH.
    slurm_conf : str or None
        Where slurm.conf is; None: where Slurm looks by itself.
    """

    def __init__(
        self,
        folder: str | None,
        slurm_conf: str | None,
        timeout_s: float,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._timeout_s, self._monotonic_s = folder, timeout_s, monotonic_s
        # Variables such as SQUEUE_FORMAT would change answers; an engine may itself run within a Slurm job.
        keep = {"SLURM_CONF", "SLURM_JWT"}
        mine = {
            name: value
            for name, value in os.environ.items()
            if name in keep or not name.startswith(("SLURM_", "SQUEUE_"))
        }
        self._environ = {**mine, "LC_ALL": "C", **({"SLURM_CONF": slurm_conf} if slurm_conf else {})}
        self._json: bool | None = None  # whether this Slurm's scontrol writes JSON
        self._breakers = Breakers(timeout_s)
        self.about = self._breakers.about

    def job(self, number: int) -> SlurmJob:
        """The job of that number.

        Raises
        ------
        LauncherUnavailable
            If nobody answers, or nothing that can be read.
        LauncherError
            If Slurm knows no such job.
        """
        found = self._show("job", str(number), answers.jobs_of_json, answers.jobs_of_text)
        if len(found) != 1:
            said = "knows no" if not found else f"shows {len(found)} parts of"
            raise LauncherError(f"Slurm {said} job {number}")
        return found[0]

    def nodes(self, names: str) -> list[SlurmNode]:
        """The nodes of a list of Slurm's, in Slurm's order; none for an empty one.

        Raises
        ------
        LauncherUnavailable
            If nobody answers, or nothing that can be read.
        LauncherError
            If Slurm does not know one of them.
        """
        return self._show("node", names, answers.nodes_of_json, answers.nodes_of_text) if names else []

    def names(self, listed: str) -> list[str]:
        """The names in a list such as ``n[1-3],m7``."""
        return self.run("scontrol", "show", "hostnames", listed).split() if listed else []

    def numbers(self, name: str) -> list[tuple[int, str]]:
        """Number and state of all jobs of that name, those included that ended lately."""
        said = self.run("squeue", "--noheader", "--states=all", f"--name={name}", "--format=%A %T")
        try:
            return [(int(number), state) for number, _, state in (line.partition(" ") for line in said.splitlines())]
        except ValueError as error:
            raise LauncherUnavailable(f"Slurm's list of jobs named {name} cannot be read ({error!r:.200})") from error

    def run(self, program: str, *words: str) -> str:
        """What a command says.

        Raises
        ------
        LauncherUnavailable
            If nobody answers.
        LauncherError
            If Slurm refuses.
        """
        self._breakers.admit(self._monotonic_s())
        try:
            done = run_program([self._path(program), *words], env=self._environ, timeout_s=self._timeout_s)
        except subprocess.TimeoutExpired:
            raise self._nobody(f"Slurm did not answer {program} within {self._timeout_s:g} s") from None
        except LauncherUnavailable as error:
            raise self._nobody(str(error)) from None
        except OSError as error:
            raise self._nobody(f"{program} cannot be run ({error.strerror})") from error
        if done.returncode != 0:
            said = _sentence(done.stderr) or _sentence(done.stdout) or f"{program} ended with {done.returncode}"
            if any(word in said.lower() for word in _AWAY):
                raise self._nobody(f"Slurm's controller is away: {said}")
            self._breakers.answered()
            raise LauncherError(f"Slurm says: {said}")
        self._breakers.answered()
        return done.stdout

    def becomes(self, owner: tuple[int, int] | None) -> int:
        """The user whom `run_as` runs a command as."""
        return owner[0] if os.geteuid() == 0 and owner is not None else os.geteuid()

    def run_as(self, owner: tuple[int, int] | None, program: str, *words: str, timeout_s: float, text: str = "") -> str:
        """What a command says that the job's `owner` should run: root becomes the owner for it. It reads `text`.

        Raises
        ------
        LauncherUnavailable
            If it has not ended within `timeout_s`; it may wait for nodes, so this says nothing of Slurm's controller.
        LauncherError
            If it fails.
        """
        environ = self._environ
        if self._folder:
            environ = {**environ, "PATH": f"{environ.get('PATH', os.defpath)}:{self._folder}"}
        owner = owner if self.becomes(owner) != os.geteuid() else None
        try:
            done = run_program([self._path(program), *words], env=environ, timeout_s=timeout_s, owner=owner, text=text)
        except subprocess.TimeoutExpired:
            raise LauncherUnavailable(f"{program} did not end within {timeout_s:g} s") from None
        except OSError as error:
            raise LauncherError(f"{program} cannot be run ({error.strerror})") from error
        if done.returncode != 0:
            raise LauncherError(f"Slurm says: {_sentence(done.stderr) or f'{program} ended with {done.returncode}'}")
        return done.stdout

    def _path(self, program: str) -> str:
        return str(Path(self._folder) / program) if self._folder else program

    def _nobody(self, why: str) -> LauncherUnavailable:
        self._breakers.silent(why, self._monotonic_s())
        return LauncherUnavailable(why)

    def _show(
        self, what: str, names: str, of_json: Callable[[dict[str, Any]], list[T]], of_text: Callable[[str], list[T]]
    ) -> list[T]:
        """JSON where this Slurm writes it, else text: before 23.02, and where it was built without."""
        try:
            if self._json is not False:
                try:
                    found = of_json(json.loads(self.run("scontrol", "--json", "show", what, names)))
                except LauncherUnavailable:
                    raise
                except LauncherError:
                    pass  # it writes no JSON, or refuses: then it says in text why
                else:
                    self._json = True
                    return found
            said = of_text(self.run("scontrol", "show", what, names))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise LauncherUnavailable(f"Slurm's answer about {what} {names} cannot be read ({error!r:.200})") from error
        self._json = bool(self._json)
        return said


def _sentence(said: str) -> str:
    """The last line of what a command complained of, without the names of Slurm's functions."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith("Try ")]
    return lines[-1].rpartition("error: ")[2][:_MAX_WORDS_CHARS] if lines else ""


def run_program(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    timeout_s: float,
    owner: tuple[int, int] | None = None,
    text: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run `argv` as `owner` (user and group), with `text` to read, of a page at most.

    Where it is given up, what it has started is ended too.

    Raises
    ------
    subprocess.TimeoutExpired
        If it has not ended within `timeout_s`.
    LauncherUnavailable
        If it writes more than `MOST_BYTES`.
    OSError
        If it cannot be started.
    """
    deadline_s = time.monotonic() + timeout_s
    with subprocess.Popen(
        list(argv), env=dict(env), stdin=subprocess.PIPE if text else subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
        user=None if owner is None else owner[0], group=None if owner is None else owner[1],
        extra_groups=None if owner is None else (),
    ) as process:  # fmt: skip
        try:
            if process.stdin is not None:
                with suppress(BrokenPipeError):  # it has ended, which is seen by that
                    process.stdin.write(text.encode())
                    process.stdin.close()
            said = _read(process, deadline_s)
            process.wait(max(0.0, deadline_s - time.monotonic()))
        except BaseException as error:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)  # it is not reaped yet, so its number is its own
            if isinstance(error, subprocess.TimeoutExpired):
                raise subprocess.TimeoutExpired(list(argv), timeout_s) from None
            raise
    output, errors = (b"".join(pieces).decode(errors="replace") for pieces in said)
    return subprocess.CompletedProcess(list(argv), process.returncode, output, errors)


def _read(process: subprocess.Popen[bytes], deadline_s: float) -> tuple[list[bytes], list[bytes]]:
    """What it writes to both streams until they are closed."""
    said: tuple[list[bytes], list[bytes]] = ([], [])
    size = 0
    with selectors.DefaultSelector() as selector:
        for stream, pieces in zip((process.stdout, process.stderr), said, strict=True):
            assert stream is not None
            selector.register(stream, selectors.EVENT_READ, pieces)
        while selector.get_map():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0.0:
                raise subprocess.TimeoutExpired(process.args, 0.0)
            for key, _ in selector.select(left_s):
                piece = os.read(key.fd, _PIECE_BYTES)
                if not piece:
                    selector.unregister(key.fileobj)
                key.data.append(piece)
                size += len(piece)
            if size > MOST_BYTES:
                raise LauncherUnavailable(f"more than {MOST_BYTES // 1024**2} MiB were written by one program of Slurm")
    return said
