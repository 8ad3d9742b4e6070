"""The protocol of launchers: what the engine may ask, and what it is promised."""

from __future__ import annotations

from typing import Protocol

from trainwarden.launching.messages import Capabilities, LauncherState, Operation, Report


class Launcher(Protocol):
    """Whatever started the job: a plug-in made with its own `Config` and a `trainwarden.protocols.Scope`.

    It owns no retry and no deadline, the engine does; no call waits for an operation to end. Everything raises
    `LauncherUnavailable` while the launcher cannot be reached, which says nothing about any operation.
    """

    @property
    def job(self) -> str | None:
        """The one job that it runs; None if it runs many, as a scheduler does. Known without asking anybody."""
        ...

    def capabilities(self) -> Capabilities:
        """What it can do at all, whatever is going on."""
        ...

    def state(self, job: str) -> LauncherState:
        """What is true now.

        Raises
        ------
        LauncherUnavailable
            If it cannot be reached.
        LauncherError
            If it does not know `job`.
        """
        ...

    def submit(self, operation: Operation) -> Report:
        """Accept `operation` and begin with it, or refuse it; an id accepted before is told how far it is.

        What it cannot do (``unsupported``), what was planned from an older generation (``stale``), what is no job,
        rank or node of its own, what does not fit the job (``unfit``) and what comes too late (``over``) is
        ``refused`` and leaves everything as it was.
        """
        ...

    def poll(self, job: str, operation: str) -> Report:
        """How far the operation of that id is; ``unknown`` if it was never accepted.

        The end of an operation is told for as long as anybody may ask: after a restart of the launcher, and after the
        job is over, which a ``stop`` may well be the end of.
        """
        ...
