"""The plug-in by which an engine asks the leader of a job on several nodes, whichever launcher that is now.

The leader decides about what it sees itself, at once; what an engine asks is bound to the generation that it was
planned from, so nothing is done about an attempt that is over.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from actions.launchers.cluster.client import TIMEOUT_S, LeaderClient
from actions.launchers.cluster.control import CAPABILITIES
from actions.launchers.leases.server import read_token
from trainwarden.errors import LauncherError
from trainwarden.launching import Capabilities, LauncherState, Operation, Report, refused
from trainwarden.metrics_http.tls import peer_tls
from trainwarden.network.host_port import host_and_port
from trainwarden.protocols import Scope
from trainwarden.settings import Config, PositiveSeconds

_KEPT_ENDS: Final = 100  # an engine asks about one of its actions for minutes, and begins a few an hour


class ClusterConfig(Config, frozen=True, kw_only=True):
    """Where the nodes find each other, the word that they share and the files of TLS, as for `trainwarden launch`.

    `timeout_s` is for one question, to the lease service or the leader.
    """

    rdzv: str
    token_file: str | None = None
    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    timeout_s: PositiveSeconds = TIMEOUT_S


class ClusterLauncher:
    """Client of the launchers that `trainwarden launch --rdzv` runs, one on each node."""

    Config = ClusterConfig

    def __init__(self, config: ClusterConfig, scope: Scope) -> None:
        host_and_port(config.rdzv, "launcher_settings.rdzv")
        token = None if config.token_file is None else read_token(Path(config.token_file))
        tls = peer_tls(config.tls_ca, config.tls_certificate, config.tls_key)
        self._job = scope.job
        self._leader = LeaderClient(scope.job, config.rdzv, token, tls=tls, timeout_s=config.timeout_s)
        self._ended: dict[str, Report] = {}  # after a stop nobody is left to ask

    @property
    def job(self) -> str:
        """The job of the settings."""
        return self._job

    def capabilities(self) -> Capabilities:
        """See `trainwarden.launching.Launcher.capabilities`."""
        return CAPABILITIES

    def state(self, job: str) -> LauncherState:
        """See `trainwarden.launching.Launcher.state`."""
        if job != self._job:
            raise LauncherError(f"this launcher runs job '{self._job}', not '{job[:200]}'")
        return self._leader.state()

    def submit(self, operation: Operation) -> Report:
        """See `trainwarden.launching.Launcher.submit`."""
        if operation.job != self._job:
            return refused(operation, "unknown_job", f"this launcher runs job '{self._job}'")
        return self._ended.get(operation.id) or self._kept(self._leader.submit(operation))

    def poll(self, job: str, operation: str) -> Report:
        """See `trainwarden.launching.Launcher.poll`.

        ``unknown`` is also what a leader was killed over before anybody else had heard of it: nothing of it was begun.
        """
        return self._ended.get(operation) or self._kept(self._leader.poll(operation))

    def _kept(self, report: Report) -> Report:
        if report.state == "done":
            self._ended[report.operation] = report
            while len(self._ended) > _KEPT_ENDS:
                del self._ended[next(iter(self._ended))]
        return report
