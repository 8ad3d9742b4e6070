"""`trainwarden check-config`: are the words of a settings file right, its plug-ins' parts included?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainwarden import plugins
from trainwarden.cli.shared.output import Voice
from trainwarden.settings import Settings, load


def check_config(path: Annotated[Path, typer.Argument(metavar="FILE")]) -> int:
    """One clear sentence per mistake in a settings file.

    Example: trainwarden check-config trainwarden.toml
    """
    _check_plugins(load(path))
    Voice().say(f"{path}: fine")
    return 0


def _check_plugins(settings: Settings) -> None:
    """The part of each plug-in that the settings name.

    Raises
    ------
    ConfigError
        For the first mistake.
    """
    import collectors
    import detectors
    from actions import launchers
    from actions.engine.policy import Rules
    from detectors.verdict.ensemble import EnsembleConfig
    from trainwarden.settings import parse

    launcher = {settings.engine.launcher: settings.engine.launcher_settings}
    tables = (
        (collectors.CATALOG, collectors.ENTRY_POINTS, settings.agent.collectors, "agent.collectors"),
        (detectors.CATALOG, detectors.ENTRY_POINTS, settings.detection.detectors, "detection.detectors"),
        (launchers.CATALOG, launchers.ENTRY_POINTS, launcher, "engine.launcher"),
    )
    for catalog, group, wanted, where in tables:
        for name, raw in wanted.items():
            plugins.configure(plugins.load(catalog, group, name), raw, f"{where}.{name}")
    parse(EnsembleConfig, settings.detection.ensemble, "detection.ensemble")
    Rules.of(settings.engine)
