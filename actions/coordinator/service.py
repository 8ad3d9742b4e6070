"""The coordinator as a service: the launchers of its jobs and the loop that feeds it, from the settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from trainwarden.actions.coordinator.coordinator import Coordinator, ListsJobs
from trainwarden.actions.engine.service import make_launcher
from trainwarden.actions.remedies.policy import Rules
from trainwarden.bus.address import connect
from trainwarden.clock import SystemClock
from trainwarden.commands.gate import CommandGate
from trainwarden.launching import Capabilities, Launcher, LauncherState, Operation, Report
from trainwarden.metrics_http.server import serve_metrics
from trainwarden.protocols import Scope
from trainwarden.records import TaskRecord
from trainwarden.self_metrics import SelfMetrics
from trainwarden.service_loop import ServiceLoop
from trainwarden.settings import Settings


class JobLaunchers:
    """Many jobs by launchers of one job each, all made of the same settings; one that runs many serves them all.

    Parameters
    ----------
    make : callable
        The launcher of a job.
    """

    job = None

    def __init__(self, make: Callable[[str], Launcher]) -> None:
        self._make = make
        self._first = make("-")
        self._of_job: dict[str, Launcher] = {}

    def capabilities(self) -> Capabilities:
        """See `trainwarden.launching.Launcher.capabilities`."""
        return self._first.capabilities()

    def state(self, job: str) -> LauncherState:
        """See `trainwarden.launching.Launcher.state`."""
        return self._of(job).state(job)

    def submit(self, operation: Operation) -> Report:
        """See `trainwarden.launching.Launcher.submit`."""
        return self._of(operation.job).submit(operation)

    def poll(self, job: str, operation: str) -> Report:
        """See `trainwarden.launching.Launcher.poll`."""
        return self._of(job).poll(job, operation)

    def jobs(self) -> Sequence[TaskRecord]:
        """Those that the launcher names for the coordinator."""
        return self._first.jobs() if isinstance(self._first, ListsJobs) else ()

    def _of(self, job: str) -> Launcher:
        if self._first.job is None:
            return self._first
        if job not in self._of_job:
            self._of_job[job] = self._make(job)
        return self._of_job[job]


def serve(settings: Settings, run_dir: Path, stop: Callable[[], bool]) -> None:
    """Run the coordinator until `stop()` is true.

    Raises
    ------
    ConfigError
        If the launcher, its settings, the limits or the keys of commands are wrong.
    BusUnavailable
        If the bus cannot be opened.
    """
    rules = Rules.of(settings.engine)
    metrics, clock = SelfMetrics("coordinator"), SystemClock()
    launcher = JobLaunchers(
        lambda job: make_launcher(settings.engine, Scope(job=job, node=settings.node, run_dir=str(run_dir)))
    )
    serve_metrics(metrics, settings.coordinator.metrics_port, settings)
    gate = CommandGate.of(settings.commands, clock, metrics)
    coordinator = Coordinator(settings.coordinator, rules, launcher, clock, metrics, gate=gate)
    bus = connect(settings.bus, settings.kafka, limit_bytes=settings.runs.bus_bytes)
    try:
        ServiceLoop(bus, coordinator, clock, metrics).run(stop)
    finally:
        bus.close()
