"""Starts of ranks from a fork server as long as that works; whatever goes wrong is said, and ranks start as usual."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from trainwarden.actions.launchers.preload.command import python_command
from trainwarden.actions.launchers.preload.server import ForkServer

log = logging.getLogger("trainwarden.supervisor")

IMPORTS_S: Final = 300.0  # from a network file system that a thousand nodes read at once, minutes
LOOK_S: Final = 0.1  # between two looks at whether somebody wants an end


class Preload:
    """Ranks of `command` that start with `modules` imported; with none of these, nothing is done here.

    Parameters
    ----------
    say : callable
        Shows a person a sentence.

    Raises
    ------
    ConfigError
        If there are modules and the command does not start Python.
    """

    def __init__(self, command: Sequence[str], modules: Sequence[str], say: Callable[[str], None]) -> None:
        self._command = python_command(command) if modules else None
        self._modules, self._say = tuple(modules), say
        self._server: ForkServer | None = None

    @property
    def pid(self) -> int | None:
        """The process of the fork server, a child of this one; None while there is none."""
        return None if self._server is None else self._server.pid

    def get_ready(self, environ: Mapping[str, str], stop: Callable[[], bool]) -> None:
        """Wait until the modules are imported in an environment that ranks have in common, or `stop()`."""
        if self._command is None:
            return
        try:
            self._server = ForkServer(self._command, self._modules, environ)
            why = self._refusal(self._server, stop)
        except OSError as error:
            why = str(error)
        if why is not None:
            self._give_up(why)

    @staticmethod
    def _refusal(server: ForkServer, stop: Callable[[], bool]) -> str | None:
        """Why no ranks will come from `server`; None if they will."""
        until_s = time.monotonic() + IMPORTS_S
        while time.monotonic() < until_s and not stop():
            with contextlib.suppress(TimeoutError):
                return server.refusal(LOOK_S)
        return "this launch ends" if stop() else f"they are not imported after {IMPORTS_S:.0f} s"

    def spawn(self, environ: Mapping[str, str], output: int) -> int | None:
        """A new child of this process that is a rank and writes to `output`; None if it has to be started as usual."""
        if self._server is None:
            return None
        try:
            return self._server.spawn(environ, output)
        except OSError as error:
            self._give_up(str(error))
            return None

    def _give_up(self, why: str) -> None:
        self.close()
        sentence = f"ranks import {', '.join(self._modules)} themselves: {why}"
        log.warning("nothing is preloaded", extra={"fields": {"reason": sentence}})
        self._say(sentence)

    def close(self) -> None:
        """End the fork server; ranks live on."""
        if self._server is not None:
            self._server.close()
            self._server = None
