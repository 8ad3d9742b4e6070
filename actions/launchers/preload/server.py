"""The launcher's side of the fork server: started, asked for ranks, given up when it fails."""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

import trainwarden
from trainwarden.actions.launchers.preload.command import PythonCommand

log = logging.getLogger("trainwarden.supervisor")

PR_SET_CHILD_SUBREAPER: Final = 36  # linux/prctl.h
ANSWER_S: Final = 10.0  # a fork takes milliseconds; a machine that swaps takes seconds
RANK_SLOT: Final = "0" * 7  # room for the rank's number in what others read of its environment
_FORK_SERVER: Final = Path(__file__).with_name("fork_server.py")
_SITE: Final = Path(trainwarden.__file__).parent / "inject" / "sitecustomize.py"
_MAX_BYTES: Final = 4096  # of an answer


class ForkServer:
    """A process that has imported `modules` and becomes ranks of `command`.

    Parameters
    ----------
    command : PythonCommand
        What ranks run.
    modules : sequence of str
        Names of modules, imported in this order.
    environ : mapping
        What ranks have in common; without what makes them different, or modules would read it too early.

    Raises
    ------
    OSError
        If it cannot be started.
    """

    def __init__(self, command: PythonCommand, modules: Sequence[str], environ: Mapping[str, str]) -> None:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # ranks are given to us when they are forked
        self._environ = dict(environ)
        self._channel, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        us = str(os.getpid())
        python = (command.python, *command.flags, str(_FORK_SERVER), str(far.fileno()), us, ",".join(modules))
        try:
            self._process = subprocess.Popen(
                [*python, "--", *command.words],
                env={**self._environ, "RANK": RANK_SLOT}, pass_fds=[far.fileno()],
                stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(), start_new_session=True,
            )  # fmt: skip
        except BaseException:
            self._channel.close()
            raise
        finally:
            far.close()
        self.pid = self._process.pid

    def refusal(self, wait_s: float) -> str | None:
        """Wait at most `wait_s` for the imports: why there will be no ranks from here, None if there will be.

        Raises
        ------
        TimeoutError
            If they are not done yet.
        """
        answer = self._answer(wait_s)
        return None if answer.get("ready") else str(answer.get("refused", answer.get("failed")))

    def spawn(self, environ: Mapping[str, str], output: int) -> int:
        """The process of a new rank, a child of this process, which writes to `output`.

        Raises
        ------
        OSError
            If there is none: the server is gone or does not answer, or no process can be made.
        """
        request = {
            "set": {name: value for name, value in environ.items() if self._environ.get(name) != value},
            "unset": [name for name in self._environ if name not in environ],
            "hook": str(_SITE),
        }
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [output]))]
        self._channel.sendmsg([json.dumps(request).encode()], rights)
        try:
            answer = self._answer(ANSWER_S)
        except TimeoutError:
            self._channel.shutdown(socket.SHUT_RD)  # a rank that could not say who it is does not run
            answer = self._answer(ANSWER_S)  # what was said before
        if not isinstance(answer.get("pid"), int):
            raise OSError(str(answer.get("failed")))
        return int(answer["pid"])

    def _answer(self, wait_s: float) -> dict[str, Any]:
        self._channel.settimeout(wait_s)
        text = self._channel.recv(_MAX_BYTES)
        try:
            return msgspec.json.decode(text, type=dict[str, Any]) if text else {"failed": "it has ended"}
        except msgspec.MsgspecError as error:
            raise OSError(f"what it says is not understood ({error})") from error

    def close(self) -> None:
        """End the server; the ranks that came from it live on."""
        self._channel.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
