"""The engine as a service: its rules, its launcher and the loop that feeds it, from the settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trainwarden import plugins
from trainwarden.actions import launchers
from trainwarden.actions.engine.handler import EngineHandler
from trainwarden.actions.remedies.policy import Rules
from trainwarden.bus.address import connect
from trainwarden.clock import SystemClock
from trainwarden.commands.gate import CommandGate
from trainwarden.launching import Launcher
from trainwarden.metrics_http.server import serve_metrics
from trainwarden.protocols import Scope
from trainwarden.self_metrics import SelfMetrics
from trainwarden.service_loop import ServiceLoop
from trainwarden.settings import EngineSettings, Settings


def serve(settings: Settings, run_dir: Path, stop: Callable[[], bool]) -> None:
    """Run the engine until `stop()` is true.

    Parameters
    ----------
    run_dir : Path
        The run folder, which the launcher is told of.

    Raises
    ------
    ConfigError
        If the launcher, its settings, the limits, the table of remedies or the keys of commands are wrong.
    BusUnavailable
        If the bus cannot be opened.
    """
    rules = Rules.of(settings.engine)
    launcher = make_launcher(settings.engine, Scope(job=settings.job, node=settings.node, run_dir=str(run_dir)))
    metrics = SelfMetrics("engine")
    serve_metrics(metrics, settings.engine.metrics_port, settings)
    clock = SystemClock()
    gate = CommandGate.of(settings.commands, clock, metrics)
    handler = EngineHandler(rules, launcher, clock, metrics, gate=gate)
    bus = connect(settings.bus, settings.kafka, limit_bytes=settings.runs.bus_bytes)
    try:
        ServiceLoop(bus, handler, clock, metrics).run(stop)
    finally:
        bus.close()


def make_launcher(engine: EngineSettings, scope: Scope) -> Launcher:
    """The launcher that `engine` names, told where it is.

    Raises
    ------
    ConfigError
        If there is none of that name or its settings are wrong.
    """
    plugin = plugins.load(launchers.CATALOG, launchers.ENTRY_POINTS, engine.launcher)
    config = plugins.configure(plugin, engine.launcher_settings, f"engine.launcher_settings ({engine.launcher})")
    launcher: Launcher = plugin(config, scope)
    return launcher
